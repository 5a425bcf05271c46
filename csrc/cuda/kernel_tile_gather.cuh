// 2-D tiles whose input is one span of memory: they have all of some rows, which are short and follow one
// another; output rows begin at vectors. The other way round than tiles of one output span
// (kernel_tile_span.cuh): channels before pixels or tokens (768 x 197, say), turned.
//
//   load   The span goes to shared memory by asynchronous copies of 16 bytes, as it lies in memory.
//   gather A warp takes K rows a lane, K = elements of a word (4 bytes), and some words of them, wherever
//   rows
//          begin: each is shifted together from two. Lanes are K rows apart: where rows have an odd number of
//          elements, no bank is asked twice.
//   turn   Square blocks of K x K elements, in registers.
//   store  A lane has K neighbours of an output row, the next lane the next ones: a warp writes 128 bytes.
//
// Output rows that begin inside a vector are left to tile_unaligned: where stores share sectors, this is
// slower (H100: 777 x 197 -> 0,2,1, 2 bytes .47 for .78; 768 x 197 .96 for .86).
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// As GatherVariant's members. kFused: a row is several dims of the output.
template <int Element, int Batch, bool Fused>
struct GatherConfig {
  static constexpr GatherVariant kVariant{Element, Batch};
  static constexpr int kElement = Element, kBatch = Batch, kBlock = kVariant.block();
  static constexpr bool kFused = Fused;
};

template <class C>
__global__ void __launch_bounds__(kGatherThreads, resident_blocks(kGatherThreads, kGatherMinBlocks))
    gather_kernel(const __grid_constant__ GatherParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int E = C::kElement, K = C::kBlock, kBatch = C::kBatch, kWord = 4;

  const uint8_t* in;
  uint8_t* out;  // the tile's part of the first output row
  const QuotRem tile = p.bands.divmod(p.batch.turn(blockIdx.x, in, out));
  const int64_t row0 = int64_t{tile.rem} * p.tile_rows;
  const auto rows = static_cast<int>(min(p.rows - row0, int64_t{p.tile_rows}));
  in += row0 * p.row_bytes;
  out += row0 * E;
  p.outer.advance(tile.quot, in, out);

  // Where columns begin in the output, if rows are of several dims, and the span behind it.
  const uint32_t table = shared_address(memory);
  const uint32_t span = align_like(in, table + (C::kFused ? gather_table_bytes(p.cols) : 0));
  const auto lead = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(in) & (kVector - 1));
  const uint32_t end = lead + rows * p.row_bytes;
  wait_for_inputs();
#pragma unroll 4
  for (uint32_t i = threadIdx.x * kVector; i < end; i += kGatherThreads * kVector) {
    copy_async<kVector>(span - lead + i, in - lead + i, p.keep);
  }
  if constexpr (C::kFused) {
    for (uint32_t c = threadIdx.x; c < p.cols; c += kGatherThreads) {
      const auto at = static_cast<uint64_t>(p.col_offsets.offset(c));
      store_shared<8>(table + c * 8, make_uint2(static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32)));
    }
  }
  wait_for_copies();
  __syncthreads();

  // The warps take turns at 32 blocks of K rows, and in these at kBatch words of each row.
  const int blocks = static_cast<int>(ceil_div(rows, K)), lane = threadIdx.x % 32;
  const uint32_t units = static_cast<uint32_t>(ceil_div(blocks, 32)) * p.parts.divisor;
#pragma unroll 1
  for (uint32_t unit = threadIdx.x / 32; unit < units; unit += kGatherThreads / 32) {
    const QuotRem at = p.parts.divmod(unit);
    const int row = (static_cast<int>(at.quot) * 32 + lane) * K;
    const int col0 = static_cast<int>(at.rem) * kBatch * K, cols = static_cast<int>(p.cols) - col0;
    const uint32_t from = span + min(row, (blocks - 1) * K) * p.row_bytes + col0 * E;
    uint32_t v[kBatch][K];
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const uint32_t begin = from + j * p.row_bytes, low = begin & (kWord - 1);
      uint32_t word = load_shared<kWord>(begin - low);
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        v[b][j] = word;
        if (K == 1 && b + 1 == kBatch) break;
        word = load_shared<kWord>(begin - low + (b + 1) * kWord);
        if constexpr (K > 1) v[b][j] = __funnelshift_r(v[b][j], word, low * 8);
      }
    }
    uint8_t* const to = out + static_cast<int64_t>(row) * E;
    uint8_t* column = to + col0 * p.out_pitch;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (b * K >= cols) break;
      if constexpr (K > 1) transpose_words(v[b]);
#pragma unroll
      for (int m = 0; m < K; ++m, column += p.out_pitch) {
        if (b * K + m >= cols) break;
        if constexpr (C::kFused) {
          const uint2 begin = load_shared<8>(table + (col0 + b * K + m) * 8);
          column = to + (uint64_t{begin.y} << 32 | begin.x);
        }
        if (row + K <= rows) {
          store_past_l1(column, v[b][m]);
        } else if constexpr (K > 1) {
#pragma unroll
          for (int i = 0; i + 1 < K; ++i) {
            if (row + i < rows) {
              *reinterpret_cast<Word<E>*>(column + i * E) = static_cast<Word<E>>(v[b][m] >> (8 * E * i));
            }
          }
        }
      }
    }
  }
}

}  // namespace tx::cuda
