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

MicroKernels::Transpose of_width(const MicroKernels::Transpose* kernels, const Problem& p) {
  return kernels[std::countr_zero(static_cast<uint64_t>(p.element_bytes))];
}

void run_tile(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const MicroKernels& micro = micro_kernels_in_use();
  const bool streaming = plan.stores == Stores::kStreaming;
  const auto transpose = plan.in_blocks
                             ? of_width(streaming ? micro.stream_blocks : micro.transpose_blocks, p)
                             : of_width(streaming ? micro.stream_transpose : micro.transpose, p);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      transpose(in + at.in, p.dims[col].in_stride, out + at.out, p.dims[row].out_stride, at.extent[row],
                at.extent[col]);
    }
    if (streaming) micro.fence();
  });
}

// Brings the input of tiles to come into the L2 cache, some columns at a time.
class Prefetcher {
 public:
  Prefetcher(const Plan& plan, const char* in, int64_t first, int64_t last)
      : in_(in),
        row_(tile_row_dim(plan.kernel, plan.problem)),
        col_(plan.problem.rank - 1),
        element_bytes_(plan.problem.element_bytes),
        pitch_(plan.problem.dims[col_].in_stride),
        last_(last),
        tile_(first),
        at_(plan, first) {
    // The machine's own prefetchers follow long pieces and whole blocks; what is stored within the caches is
    // read from there.
    const int64_t piece = plan.tile[row_] * element_bytes_;
    if (plan.stores == Stores::kOrdinary || piece >= kPage || (piece == pitch_ && piece < kLine))
      last_ = first;
  }

  // About how many columns are still to be touched in the tiles before `until`.
  int64_t columns(int64_t until) const {
    return std::max<int64_t>((std::min(until, last_) - tile_) * at_.extent[col_] - column_, 0);
  }

  void touch(int64_t columns) {
    for (; columns > 0; --columns) {
      const char* const from = in_ + at_.in + column_ * pitch_;
      const char* const to = from + at_.extent[row_] * element_bytes_;
      for (const char* line = from - reinterpret_cast<intptr_t>(from) % kLine; line < to; line += kLine) {
        __builtin_prefetch(line, 0, 2);
      }
      if (++column_ < at_.extent[col_]) continue;
      column_ = 0;
      ++tile_;
      at_.next();
    }
  }

 private:
  static constexpr int64_t kPage = 4096;

  const char* const in_;
  const int row_, col_;
  const int64_t element_bytes_, pitch_;
  int64_t last_;
  int64_t tile_;
  int64_t column_ = 0;
  TileWalk at_;
};

void copy_lines(char* out, const char* in, int64_t lines) {
  std::memcpy(out, in, static_cast<size_t>(lines * kLine));
}

void run_staged(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const bool adjoin = tile_rows_adjoin(plan);
  const int64_t in_pitch = p.dims[col].in_stride, out_stride = p.dims[row].out_stride;
  const int64_t row_bytes = staged_row_bytes(plan), pitch = staged_pitch(row_bytes);
  const int64_t most_bytes =
      (adjoin ? plan.tile[row] : 1) * plan.tile[col] * p.element_bytes;  // that a tile adds to a row
  const int64_t tiles_per_write = row_bytes / most_bytes;
  const MicroKernels& micro = micro_kernels_in_use();
  const auto transpose = of_width(micro.transpose, p);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char memory[kStagingBytes + 2 * kLine];
    StagedRows staged(plan.stores == Stores::kStreaming ? micro.stream : copy_lines, memory, pitch,
                      out_stride);
    TileWalk at(plan, first);
    Prefetcher ahead(plan, in, first + 1, last);
    staged.begin(out + at.out, adjoin ? 1 : at.extent[row]);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const int64_t rows = at.extent[row], cols = at.extent[col];
      const int64_t staged_rows = adjoin ? 1 : rows;
      const bool rows_end = !staged.continues(out + at.out, staged_rows);
      if (rows_end || staged.filled() + most_bytes > row_bytes) {
        // Spread over the writes: more prefetches at a time than the core can queue are dropped.
        const int64_t columns = ahead.columns(tile + tiles_per_write);
        staged.write(rows_end, [&](int64_t k) {
          ahead.touch(columns * (k + 1) / staged_rows - columns * k / staged_rows);
        });
        if (rows_end) staged.begin(out + at.out, staged_rows);
      }
      transpose(in + at.in, in_pitch, staged.next(), adjoin ? cols * p.element_bytes : pitch, rows, cols);
      staged.add((adjoin ? rows : 1) * cols * p.element_bytes);
    }
    staged.write(true, [](int64_t) {});
    micro.fence();
  });
}

// Copies a run past the caches but for its ends.
void stream_run(const MicroKernels& micro, char* out, const char* in, int64_t bytes) {
  const int64_t head = std::min((kLine - reinterpret_cast<intptr_t>(out) % kLine) % kLine, bytes);
  const int64_t lines = (bytes - head) / kLine;
  const int64_t body = head + lines * kLine;
  std::memcpy(out, in, static_cast<size_t>(head));
  micro.stream(out + head, in + head, lines);
  std::memcpy(out + body, in + body, static_cast<size_t>(bytes - body));
}

void run_runs(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const Dim rows = row < 0 ? Dim{1, 0, 0} : p.dims[row];
  const MicroKernels& micro = micro_kernels_in_use();
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const int64_t bytes = at.extent[col] * p.element_bytes;
      const int64_t runs = row < 0 ? 1 : at.extent[row];
      const char* from = in + at.in;
      char* to = out + at.out;
      for (int64_t r = 0; r < runs; ++r, from += rows.in_stride, to += rows.out_stride) {
        if (plan.stores == Stores::kStreaming) {
          stream_run(micro, to, from, bytes);
        } else {
          std::memcpy(to, from, static_cast<size_t>(bytes));
        }
      }
    }
    if (plan.stores == Stores::kStreaming) micro.fence();
  });
}

void run_strided(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const Dim rows = row < 0 ? Dim{1, 0, 0} : p.dims[row];
  with_element(p.element_bytes, [&](auto element) {
    share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
      TileWalk at(plan, first);
      for (int64_t tile = first; tile < last; ++tile, at.next()) {
        move_tile<decltype(element)>(in + at.in, out + at.out, rows, row < 0 ? 1 : at.extent[row],
                                     p.dims[col], at.extent[col]);
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
