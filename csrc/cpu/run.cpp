// The loops of every CPU kernel.
#include "cpu/run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/int_math.h"

namespace tx::cpu {
namespace {

struct Element16 {
  uint64_t half[2];
};

// Calls f(in_offset, out_offset, extents) for tiles [first, last) of the plan, counted in output order.
template <class F>
void for_each_tile(const Plan& plan, int64_t first, int64_t last, F&& f) {
  const Problem& p = plan.problem;
  int64_t start[kMaxDims];
  int64_t extent[kMaxDims];
  int64_t left = first;
  int64_t in = 0, out = 0;
  const auto enter = [&](int d) { extent[d] = std::min<int64_t>(plan.tile[d], p.dims[d].extent - start[d]); };
  for (int d = p.rank - 1; d >= 0; --d) {
    const int64_t tiles = ceil_div(p.dims[d].extent, plan.tile[d]);
    start[d] = left % tiles * plan.tile[d];
    left /= tiles;
    in += start[d] * p.dims[d].in_stride;
    out += start[d] * p.dims[d].out_stride;
    enter(d);
  }
  for (int64_t tile = first; tile < last; ++tile) {
    f(in, out, static_cast<const int64_t*>(extent));
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t step = plan.tile[d];
      if (start[d] + step < p.dims[d].extent) {
        start[d] += step;
        in += step * p.dims[d].in_stride;
        out += step * p.dims[d].out_stride;
        enter(d);
        break;
      }
      in -= start[d] * p.dims[d].in_stride;
      out -= start[d] * p.dims[d].out_stride;
      start[d] = 0;
      enter(d);
    }
  }
}

int64_t tile_count(const Plan& plan) {
  int64_t count = 1;
  for (int d = 0; d < plan.problem.rank; ++d) count *= ceil_div(plan.problem.dims[d].extent, plan.tile[d]);
  return count;
}

// f(first, last) on every thread's share of the tiles.
template <class F>
void share_tiles(const Plan& plan, ParallelFor parallel_for, const F& f) {
  const int64_t tiles = tile_count(plan);
  const int64_t threads = std::min<int64_t>(plan.threads, tiles);
  if (threads <= 1) return f(0, tiles);
  parallel_for(0, threads, 1,
               [&](int64_t begin, int64_t end) { f(tiles * begin / threads, tiles * end / threads); });
}

// One tile of two dims; `a` is the dim in the outer loop.
template <class T>
void move_tile(const char* in, char* out, const Dim& a, int64_t a_extent, const Dim& b, int64_t b_extent) {
  for (int64_t i = 0; i < a_extent; ++i) {
    const char* src = in + i * a.in_stride;
    char* dst = out + i * a.out_stride;
    for (int64_t j = 0; j < b_extent; ++j) {
      std::memcpy(dst, src, sizeof(T));
      src += b.in_stride;
      dst += b.out_stride;
    }
  }
}

template <class F>
void with_element(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Element16{});
  }
}

}  // namespace

void run(const Plan& plan, const void* in, void* out, ParallelFor parallel_for) {
  if (plan.kernel == Kernel::kNone || element_count(plan.problem) == 0) return;
  const Problem& p = plan.problem;
  const auto* src = static_cast<const char*>(in);
  auto* dst = static_cast<char*>(out);
  if (p.rank == 0) {
    std::memcpy(dst, src, static_cast<size_t>(p.element_bytes));
    return;
  }
  const int last = p.rank - 1;
  int other = -1;  // the second dim with a tile
  for (int d = 0; d < last; ++d) {
    if (plan.tile[d] > 1) other = d;
  }
  const Dim unit = {1, 0, 0};
  const Dim& outer = other < 0 ? unit : p.dims[other];
  const auto outer_extent = [&](const int64_t* extent) { return other < 0 ? 1 : extent[other]; };
  if (plan.kernel == Kernel::kCopy || plan.kernel == Kernel::kRows) {
    share_tiles(plan, parallel_for, [&](int64_t first, int64_t end) {
      for_each_tile(plan, first, end, [&](int64_t i, int64_t o, const int64_t* extent) {
        for (int64_t k = 0; k < outer_extent(extent); ++k) {
          std::memcpy(dst + o + k * outer.out_stride, src + i + k * outer.in_stride,
                      static_cast<size_t>(extent[last] * p.element_bytes));
        }
      });
    });
    return;
  }
  with_element(p.element_bytes, [&](auto element) {
    share_tiles(plan, parallel_for, [&](int64_t first, int64_t end) {
      for_each_tile(plan, first, end, [&](int64_t i, int64_t o, const int64_t* extent) {
        move_tile<decltype(element)>(src + i, dst + o, outer, outer_extent(extent), p.dims[last],
                                     extent[last]);
      });
    });
  });
}

const char* isa() { return "portable"; }

const std::string& isa_error() {
  static const std::string error = [] {
    const char* wanted = std::getenv("TX_CPU_ISA");
    if (wanted == nullptr || std::strcmp(wanted, isa()) == 0) return std::string();
    return std::string("TX_CPU_ISA must name an instruction set of this machine, but got '") + wanted +
           "'; set it to one of: portable; or unset it";
  }();
  return error;
}

CpuFacts facts(int threads) {
  CpuFacts f;
  f.threads = threads;
  f.isa = isa();
  return f;
}

}  // namespace tx::cpu
