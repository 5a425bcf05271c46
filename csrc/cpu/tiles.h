// Walking a plan's tiles in output order, and sharing them among threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/int_math.h"
#include "core/plan.h"
#include "cpu/run.h"

namespace tx::cpu {

// The tile at hand: byte offsets of its first element on both sides, and its extents.
class TileWalk {
 public:
  TileWalk(const Plan& plan, int64_t tile) : plan_(plan) {
    const Problem& p = plan.problem;
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t tiles = ceil_div(p.dims[d].extent, plan.tile[d]);
      enter(d, tile % tiles * plan.tile[d]);
      in += start_[d] * p.dims[d].in_stride;
      out += start_[d] * p.dims[d].out_stride;
      tile /= tiles;
    }
  }

  void next() {
    const Problem& p = plan_.problem;
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t step = plan_.tile[d];
      if (start_[d] + step < p.dims[d].extent) {
        in += step * p.dims[d].in_stride;
        out += step * p.dims[d].out_stride;
        return enter(d, start_[d] + step);
      }
      in -= start_[d] * p.dims[d].in_stride;
      out -= start_[d] * p.dims[d].out_stride;
      enter(d, 0);
    }
  }

  int64_t in = 0;
  int64_t out = 0;
  int64_t extent[kMaxDims];  // entries at and past rank unspecified

 private:
  void enter(int d, int64_t start) {
    start_[d] = start;
    extent[d] = std::min<int64_t>(plan_.tile[d], plan_.problem.dims[d].extent - start);
  }

  const Plan& plan_;
  int64_t start_[kMaxDims];
};

inline int64_t tile_count(const Plan& plan) {
  int64_t count = 1;
  for (int d = 0; d < plan.problem.rank; ++d) count *= ceil_div(plan.problem.dims[d].extent, plan.tile[d]);
  return count;
}

// Calls work(first, last) for each thread's share of the tiles.
template <class F>
void share_tiles(const Plan& plan, ParallelFor parallel_for, const F& work) {
  const int64_t tiles = tile_count(plan);
  const int64_t threads = std::min<int64_t>(plan.threads, tiles);
  if (threads <= 1) return work(0, tiles);
  parallel_for(0, threads, 1,
               [&](int64_t begin, int64_t end) { work(tiles * begin / threads, tiles * end / threads); });
}

}  // namespace tx::cpu
