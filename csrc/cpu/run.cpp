// The loops of every CPU kernel.
#include "cpu/run.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/plan_cpu.h"
#include "cpu/isa.h"
#include "cpu/staged.h"
#include "cpu/tiles.h"

namespace tx::cpu {
namespace {

struct Element16 {
  uint64_t half[2];
};

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

MicroKernels::Transpose transpose_of(const Problem& p) {
  return micro_kernels_in_use().transpose[std::countr_zero(static_cast<uint64_t>(p.element_bytes))];
}

void run_tile(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = input_run_dim(p), col = p.rank - 1;
  const auto transpose = transpose_of(p);
  share_tiles(plan, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      transpose(in + at.in, p.dims[col].in_stride, out + at.out, p.dims[row].out_stride, at.extent[row],
                at.extent[col]);
    }
  });
}

void run_staged(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = input_run_dim(p), col = p.rank - 1;
  const int64_t e = p.element_bytes;
  const int64_t in_pitch = p.dims[col].in_stride, out_stride = p.dims[row].out_stride;
  const bool rows_adjoin =
      plan.tile[col] == p.dims[col].extent && out_stride == p.dims[col].extent * e && row == col - 1;
  const auto transpose = transpose_of(p);
  const MicroKernels& micro = micro_kernels_in_use();
  const int64_t flush_bytes = rows_adjoin ? plan.tile[row] * plan.tile[col] * e : plan.tile[col] * e;
  share_tiles(plan, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char memory[StagedRows::kBytes];
    StagedRows staged(micro, memory, rows_adjoin ? 0 : out_stride, flush_bytes * 2);
    TileWalk at(plan, first), ahead(plan, first);
    const auto nothing = [](int64_t) {};
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const int64_t rows = at.extent[row], cols = at.extent[col];
      char* const to = out + at.out;
      const int64_t streams = rows_adjoin ? 1 : rows;
      if (tile == first) {
        staged.begin(to, streams);
      } else if (!staged.continues(to, streams)) {
        staged.flush(true, nothing);
        staged.begin(to, streams);
      }
      transpose(in + at.in, in_pitch, staged.next(), rows_adjoin ? cols * e : staged.pitch(), rows, cols);
      staged.add(rows_adjoin ? rows * cols * e : cols * e);
      ahead.next();
      const bool more = tile + 1 < last;
      const int64_t next_cols = more ? ahead.extent[col] : 0;
      const char* const next = in + ahead.in;
      int64_t touched = 0;
      const auto touch = [&](int64_t until) {
        for (; touched < until; ++touched) {
          const char* const from = next + touched * in_pitch;
          const char* const to = from + ahead.extent[row] * e;
          for (const char* line = from - reinterpret_cast<intptr_t>(from) % kLine; line < to; line += kLine) {
            __builtin_prefetch(line, 0, 2);
          }
        }
      };
      if (staged.filled() >= std::max(flush_bytes, kLine)) {
        staged.flush(false, [&](int64_t k) { touch(next_cols * (k + 1) / streams); });
      }
      touch(next_cols);
    }
    staged.flush(true, nothing);
    micro.fence();
  });
}

// The dim of a tile besides the last, or -1.
int second_tile_dim(const Plan& plan) {
  for (int d = 0; d + 1 < plan.problem.rank; ++d) {
    if (plan.tile[d] > 1) return d;
  }
  return -1;
}

void run_runs(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int across = second_tile_dim(plan);
  const Dim step = across < 0 ? Dim{1, 0, 0} : p.dims[across];
  share_tiles(plan, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const auto bytes = static_cast<size_t>(at.extent[p.rank - 1] * p.element_bytes);
      const int64_t runs = across < 0 ? 1 : at.extent[across];
      for (int64_t r = 0; r < runs; ++r) {
        std::memcpy(out + at.out + r * step.out_stride, in + at.in + r * step.in_stride, bytes);
      }
    }
  });
}

void run_strided(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int col = p.rank - 1;
  const int row = second_tile_dim(plan);
  const Dim unit = {1, 0, 0};
  with_element(p.element_bytes, [&](auto element) {
    share_tiles(plan, parallel_for, [&](int64_t first, int64_t last) {
      TileWalk at(plan, first);
      for (int64_t tile = first; tile < last; ++tile, at.next()) {
        move_tile<decltype(element)>(in + at.in, out + at.out, row < 0 ? unit : p.dims[row],
                                     row < 0 ? 1 : at.extent[row], p.dims[col], at.extent[col]);
      }
    });
  });
}

}  // namespace

void run(const Plan& plan, const void* in, void* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const auto* from = static_cast<const char*>(in);
  auto* to = static_cast<char*>(out);
  if (element_count(p) == 0) return;
  if (p.rank == 0) {
    std::memcpy(to, from, static_cast<size_t>(p.element_bytes));
    return;
  }
  switch (plan.kernel) {
    case Kernel::kCopy:
    case Kernel::kRows:
      return run_runs(plan, from, to, parallel_for);
    case Kernel::kTile:
      return run_tile(plan, from, to, parallel_for);
    case Kernel::kStaged:
      return run_staged(plan, from, to, parallel_for);
    default:
      return run_strided(plan, from, to, parallel_for);
  }
}

}  // namespace tx::cpu
