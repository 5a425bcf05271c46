// Batches of small permutations, dense on both sides: a piece of the input is the same piece of the output in
// another order. After every few pieces, a period, the words of the output are gathered from the same places
// again, only further on.
//
//   load      a block's chunk of periods goes to shared memory as it is, past the registers, to where its
//             sectors are sectors (align_like(): 17 x 31 in 2 bytes .966 for .944)
//   gather    meanwhile the places of a piece's elements go into a table, where a thread finds those of its
//             words of a period. Every period adds a constant to them. Lanes take words some steps apart, so
//             that they meet in few banks (17 x 48 in 4 bytes: 1.00, staged .73)
//   store     words wait in shared memory once more, to leave in whole vectors: a period may begin anywhere
//             in a sector (3 x 5: .97 of a copy for .78)
//
// Bound by DRAM, at 1 byte by instructions and shared memory (H200, 65536 x 17 x 31: of issue slots 80 %, of
// the wavefronts 73 %). Tried: blocks that stay and fetch a chunk while they gather another, which find their
// places once (.83 to .90 where this has .93 to .97: blocks that come and go spread reads and writes better);
// chunks of 12 and 16 KiB (.01 to .04 worse); periods counted for the whole block, in place of an addition to
// each place (1 byte .99 to 1.00).
#pragma once

#include <type_traits>

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// kSlots: words of a period that a thread has.
template <int E, int kSlots>
__global__ void __launch_bounds__(kPeriodicMostThreads)
    periodic_kernel(const __grid_constant__ PeriodicParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kWord = word_bytes(E), kPerWord = kWord / E;
  const int64_t first = int64_t{blockIdx.x} * p.chunk_bytes;
  const uint8_t* const in = p.in + first;
  const uint32_t gathered = shared_address(memory), table = gathered + p.chunk_bytes,
                 data = align_like(in, table + round_up(2 * p.piece.divisor, kVector));
  const auto bytes = static_cast<uint32_t>(min(p.bytes - first, int64_t{p.chunk_bytes}));
  const uint32_t vectors_end = bytes / kVector * kVector, tail = vectors_end + threadIdx.x * 4;

  wait_for_inputs();
  for (uint32_t i = threadIdx.x * kVector; i < vectors_end; i += blockDim.x * kVector) {
    copy_async<kVector>(data + i, in + i, p.keep);
  }
  if (tail < bytes) copy_async<4>(data + tail, in + tail);
  for (uint32_t i = threadIdx.x; i < p.piece.divisor; i += blockDim.x) {
    store_shared<2>(table + i * 2, static_cast<uint16_t>(p.dims.place(i)));
  }
  __syncthreads();
  const uint32_t period_bytes = p.period.divisor * kWord;
  uint32_t begin[kSlots][kPerWord], word_at[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    const uint32_t index = threadIdx.x + s * blockDim.x;
    const uint32_t word = index < p.period.divisor ? p.period.divmod(index * p.word_step).rem : index;
    word_at[s] = word * kWord;
    pin(word_at[s]);
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const QuotRem piece = p.piece.divmod(word * kPerWord + e);
      begin[s][e] = data + piece.quot * p.piece.divisor * E + load_shared<2>(table + piece.rem * 2);
      pin(begin[s][e]);
    }
  }
  wait_for_copies();
  __syncthreads();

#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    uint32_t at = word_at[s];
    if (at >= period_bytes) break;
    const auto move = [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      Word<kWord> v[kCount];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (kPerWord == 1) {
          v[i] = load_shared<E>(begin[s][0]);
        } else {
          uint32_t element[kPerWord];
#pragma unroll
          for (int e = 0; e < kPerWord; ++e) element[e] = load_shared<E>(begin[s][e]);
          v[i] = pack_word(element);
        }
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) begin[s][e] += period_bytes;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        store_shared<kWord>(gathered + at, v[i]);
        at += period_bytes;
      }
    };
    constexpr int kAtOnce = 4;
#pragma unroll 1
    while (at + (kAtOnce - 1) * period_bytes < bytes) move(std::integral_constant<int, kAtOnce>());
#pragma unroll 1
    while (at < bytes) move(std::integral_constant<int, 1>());
  }
  __syncthreads();
  uint8_t* const out = p.out + first;
  store_from_shared<kVector>(out, gathered, 0, vectors_end, blockDim.x);
  if (tail < bytes) store_global(out + tail, load_shared<4>(gathered + tail));
  if (p.release) release_rows(1, bytes, ceil_div(bytes, kLine), blockDim.x, [&](int) { return in; });
}

}  // namespace tx::cuda
