// 2-D tiles whose output is one span of memory: they have all rows of some columns, and output rows follow
// one another. So nothing is read twice, and all but a span's two ends is written as whole vectors, wherever
// rows begin. For rows so short that one tile has them all: of 197 tokens, say.
//
//   load   A warp reads input rows in aligned words (4 bytes, or an element if wider), lane by lane: one row,
//          or where tiles have few columns several that are far apart. All of a lane's rows are in flight
//          before the first is turned. Elements narrower than a word may begin anywhere in one: a lane shifts
//          its word and its neighbour's together, and the last lane's columns are left to the next tile.
//   turn   K rows make square blocks of K x K elements, K = elements of a word: transposed in registers, a
//          word holds K neighbours of an output row.
//   stage  Shared memory holds the span as it is to be written: of a column's words, which may begin anywhere
//          in the span's, two neighbours are shifted together while they are still in registers. A lane has
//          words that follow one another, and reads a block more, the one before them. What a column has of
//          its first word and of its last one goes by elements. Lanes' columns are so many rows apart: where
//          that is an odd number, no bank is asked twice.
//   store  The span leaves as vectors of 16 bytes, its ends by elements.
//
// Instructions bound it, so what lanes do is straight: no loops, and no branches but for ends of columns.
// Rows of one dim lie a pitch apart. Where those of several do is looked up in shared memory, where the block
// puts it first (H200: .01 to .04 slower).
//
// Reads the whole words that hold the first and last bytes of a row: they lie on the pages of those bytes.
#pragma once

#include <cstring>

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// As SpanVariant's members.
template <int Element, int Batch, int Registers, bool ShiftsIn, bool Fused>
struct SpanConfig {
  static constexpr SpanVariant kVariant{Element, Batch, Registers, ShiftsIn};
  static constexpr int kElement = Element, kBatch = Batch, kRegisters = Registers;
  static constexpr bool kShiftsIn = ShiftsIn, kFused = Fused;
  static constexpr int kWord = kVariant.word(), kBlock = kVariant.block(), kBefore = kVariant.before();
};

// The words of a lane: of each of kBlock columns, kBatch from word `first` on, and the one before. First of
// rows, in words of the input.
template <class C>
using SpanWords = Word<C::kWord>[C::kBefore + C::kBatch][C::kBlock];

// From `table`, bytes from the first row to those of block b.
template <class C>
__device__ __forceinline__ void row_offsets(uint32_t table, int first, int b, uint32_t (&offset)[C::kBlock]) {
  const Word<4 * C::kBlock> entries = load_shared<4 * C::kBlock>(table + (first + b) * C::kBlock * 4);
  memcpy(offset, &entries, sizeof(offset));
}

// Rows that there are not are replaced by others.
template <class C>
__device__ __forceinline__ void load_words(const SpanParams& p, const uint8_t* in, uint32_t table, int first,
                                           SpanWords<C>& v) {
  constexpr int K = C::kBlock;
  const uint64_t policy = keep_policy();
#pragma unroll
  for (int b = 0; b < C::kBefore + C::kBatch; ++b) {
    uint32_t offset[K];
    if constexpr (C::kFused) row_offsets<C>(table, first, b, offset);
    const int block = first + b - C::kBefore;
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const int row = min((b < C::kBefore ? max(block, 0) : block) * K + j, p.rows - 1);
      const uint8_t* from = in + (C::kFused ? offset[j] : static_cast<int64_t>(row) * p.pitch);
      if constexpr (C::kShiftsIn) from -= reinterpret_cast<uintptr_t>(from) & (C::kWord - 1);
      v[b][j] = load_far<C::kWord>(from, policy);
    }
  }
}

// From rows to columns. Rows that there are not may be shifted anyhow.
template <class C>
__device__ __forceinline__ void turn_words(const SpanParams& p, const uint8_t* in, uint32_t table, int first,
                                           SpanWords<C>& v) {
  constexpr int K = C::kBlock;
  const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(in));
  uint32_t at = low + (first - C::kBefore) * K * p.pitch;
#pragma unroll
  for (int b = 0; b < C::kBefore + C::kBatch; ++b) {
    if constexpr (C::kShiftsIn) {
      uint32_t offset[K];
      if constexpr (C::kFused) row_offsets<C>(table, first, b, offset);
#pragma unroll
      for (int j = 0; j < K; ++j, at += p.pitch) {
        const uint32_t bits = (C::kFused ? low + offset[j] : at) * 8;
        v[b][j] = __funnelshift_r(v[b][j], __shfl_down_sync(~0u, v[b][j], 1), bits);
      }
    }
    if constexpr (K > 1) transpose_words(v[b]);
  }
}

// Stores the first `cols` columns' words in shared memory, where the first column begins at `column` bytes of
// `span`.
template <class C>
__device__ __forceinline__ void stage_words(const SpanWords<C>& v, int first, int cols, int column,
                                            int column_bytes, uint32_t span) {
  constexpr int E = C::kElement, K = C::kBlock, kWord = C::kWord;
  const bool whole = first >= C::kBefore && (first + C::kBatch) * kWord <= column_bytes;
#pragma unroll
  for (int m = 0; m < K; ++m, column += column_bytes) {
    if (m >= cols) break;
    const int shift = column & (kWord - 1);
    const uint32_t to = span + column - shift + first * kWord;
    Word<kWord> word[C::kBatch];
#pragma unroll
    for (int b = 0; b < C::kBatch; ++b) {
      if constexpr (K > 1) {
        word[b] = __funnelshift_l(v[b][m], v[b + 1][m], shift * 8);
      } else {
        word[b] = v[b][m];
      }
    }
    if (whole) {
#pragma unroll
      for (int b = 0; b < C::kBatch; ++b) store_shared<kWord>(to + b * kWord, word[b]);
      continue;
    }
#pragma unroll
    for (int b = 0; b < C::kBatch; ++b) {
      const int begin = (first + b) * kWord - shift;  // in the column; only the first word's is below 0
      if ((b > 0 || begin >= 0) && begin + kWord <= column_bytes) {
        store_shared<kWord>(to + b * kWord, word[b]);
      } else if constexpr (K > 1) {
#pragma unroll
        for (int i = 0; i < kWord; i += E) {
          if ((b > 0 || begin + i >= 0) && begin + i < column_bytes) {
            store_shared<E>(to + b * kWord + i, static_cast<Word<E>>(word[b] >> (8 * i)));
          }
        }
      }
    }
  }
}

template <class C>
__global__ void __maxnreg__(C::kRegisters) span_kernel(const __grid_constant__ SpanParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int E = C::kElement, K = C::kBlock, kWord = C::kWord;

  const uint8_t* in;
  uint8_t* out;  // the span
  const QuotRem tile = p.strips.divmod(p.batch.turn(blockIdx.x, in, out));
  const int column_bytes = p.rows * E;
  const auto tile_words = static_cast<int>(p.tile_words.divisor);
  const int tile_cols = (tile_words - (C::kShiftsIn ? 1 : 0)) * K;
  const auto skipped = [&](int of_tile) {
    return static_cast<int64_t>(uint64_t{tile.rem} * static_cast<uint32_t>(of_tile));
  };
  const int64_t left = p.cols - skipped(tile_cols);
  const auto cols = static_cast<int>(min(left, int64_t{tile_cols}));
  in += skipped(tile_cols * E);
  out += skipped(tile_cols * column_bytes);
  p.outer.advance(tile.quot, in, out);

  // Each part of a warp reads a row of its own.
  const QuotRem lane = p.tile_words.divmod(threadIdx.x % 32);
  const int part = min(static_cast<int>(lane.quot), p.parts - 1), word = static_cast<int>(lane.rem);
  const int first = (static_cast<int>(threadIdx.x / 32) * p.parts + part) * C::kBatch;
  const int lane_cols = static_cast<int>(lane.quot) < p.parts ? cols - word * K : 0;
  // Words past the row's end are replaced by its last one.
  const int last_byte = static_cast<int>(min(left, int64_t{tile_words * K})) * E - 1;
  in += min(word * kWord, C::kShiftsIn ? last_byte : last_byte & -kWord);

  const uint32_t table = shared_address(memory);
  const uint32_t span = table + (C::kFused ? p.table_bytes : 0);
  if constexpr (C::kFused) {
    for (uint32_t i = threadIdx.x; i * 4 < p.table_bytes; i += blockDim.x) {
      const int row = min(max(static_cast<int>(i) - C::kBefore * K, 0), p.rows - 1);
      store_shared<4>(table + i * 4, static_cast<uint32_t>(p.row_offsets.offset(row)));
    }
    __syncthreads();
  }
  wait_for_inputs();
  SpanWords<C> v;
  load_words<C>(p, in, table, first, v);
  turn_words<C>(p, in, table, first, v);
  // As in global memory, modulo a vector.
  const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(out) & (kVector - 1));
  stage_words<C>(v, first, lane_cols, lead + word * K * column_bytes, column_bytes, span);
  __syncthreads();

  const uint32_t end = lead + cols * column_bytes;
  const uint32_t vectors = lead > 0 ? kVector : 0, vectors_end = max(end & ~(kVector - 1), vectors);
  out -= lead;
  store_from_shared<kVector>(out, span, vectors, vectors_end, blockDim.x);
  // The ends: a thread an element.
  const uint32_t head = lead + threadIdx.x * E, tail = vectors_end + threadIdx.x * E;
  if (head < min(vectors, end)) *reinterpret_cast<Word<E>*>(out + head) = load_shared<E>(span + head);
  if (tail < end) *reinterpret_cast<Word<E>*>(out + tail) = load_shared<E>(span + tail);
}

}  // namespace tx::cuda
