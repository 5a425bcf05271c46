// Walking a plan's tiles in output order, and sharing them among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/int_math.h"
#include "core/plan.h"
#include "cpu/micro.h"
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
      if (tiles > 1) moving_[moving_count_++] = d;
    }
  }

  void next() {
    const Problem& p = plan_.problem;
    for (int m = 0; m < moving_count_; ++m) {
      const int d = moving_[m];
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
  int moving_[kMaxDims];  // the dims of several tiles, innermost first
  int moving_count_ = 0;
};

// Tiles under one step along dim d.
inline int64_t tiles_under(const Plan& plan, int d) {
  int64_t count = 1;
  while (++d < plan.problem.rank) count *= ceil_div(plan.problem.dims[d].extent, plan.tile[d]);
  return count;
}

inline int64_t tile_count(const Plan& plan) { return tiles_under(plan, -1); }

// Whether the rows that follow those of a tile are of another share than its own, which ends before `last`.
inline bool others_follow(const Plan& plan, int row, int64_t tile, int64_t last) {
  return tile + tiles_under(plan, row) >= last && last < tile_count(plan);
}

// Whether no output line holds bytes of tiles both before and from `tile` on. Relies on nested output
// strides: what an index of one dim spans ends before the next index begins.
inline bool cut_is_clean(const Plan& plan, const char* out, int64_t tile) {
  const Problem& p = plan.problem;
  int64_t start[kMaxDims];
  int cut = -1;  // the innermost dim along which there is something on both sides
  for (int d = p.rank - 1; d >= 0; --d) {
    const int64_t tiles = ceil_div(p.dims[d].extent, plan.tile[d]);
    start[d] = tile % tiles * plan.tile[d];
    tile /= tiles;
    if (cut < 0 && start[d] != 0) cut = d;
  }
  for (int d = 0; d <= cut; ++d) {
    out += start[d] * p.dims[d].out_stride;
    if (d < cut && plan.tile[d] == 1)
      continue;  // one index: all of it lies on one side, or is cut further in
    if (reinterpret_cast<intptr_t>(out) % kLine != 0) return false;
    if (d < cut && p.dims[d].out_stride % kLine != 0) return false;
  }
  return true;
}

// The tile nearest to `wanted`, less than `most` away, at which a cut is clean; else `wanted`.
inline int64_t clean_cut(const Plan& plan, const char* out, int64_t wanted, int64_t most) {
  if (cut_is_clean(plan, out, wanted)) return wanted;
  const Problem& p = plan.problem;
  int64_t step = 1;  // tiles under one step along dim d
  for (int d = p.rank - 1; d >= 0; --d) {
    const int64_t nearest = (wanted + step / 2) / step * step;
    for (int64_t away = 0; away <= kLine; ++away) {  // whole lines come back after at most so many steps
      if (away * step >= most) break;
      for (const int64_t tile : {nearest - away * step, nearest + away * step}) {
        if (std::abs(tile - wanted) < most && cut_is_clean(plan, out, tile)) return tile;
      }
    }
    step *= ceil_div(p.dims[d].extent, plan.tile[d]);
  }
  return wanted;
}

// The first tile of a share, when shares are even in bytes: the outermost dim's last tile may be a small one.
inline int64_t even_cut(const Plan& plan, int64_t share, int64_t shares) {
  const int64_t extent = plan.problem.dims[0].extent, step = plan.tile[0], inner = tiles_under(plan, 0);
  const int64_t wanted = extent * inner * share / shares;
  const int64_t outer = wanted / (step * inner);
  const int64_t size = std::min(step, extent - outer * step);
  return outer * inner + (wanted - outer * step * inner + size / 2) / size;
}

// Calls work(first, last) for each thread's share of the tiles. Shares are cut where no output line is in two
// of them, if there is such a place within half a share: there is but for outputs of few rows, or few tiles
// of elements that are long runs, that do not start on lines.
template <class F>
void share_tiles(const Plan& plan, const char* out, ParallelFor parallel_for, const F& work) {
  const int64_t tiles = tile_count(plan);
  const int64_t threads = std::min<int64_t>(plan.threads, tiles);
  if (threads <= 1) return work(0, tiles);
  const auto cut = [&](int64_t share) {
    return share == 0 || share == threads
               ? share / threads * tiles
               : clean_cut(plan, out, even_cut(plan, share, threads), ceil_div(tiles, 2 * threads));
  };
  parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = cut(begin), last = cut(end);
    if (first < last) work(first, last);
  });
}

}  // namespace tx::cpu
