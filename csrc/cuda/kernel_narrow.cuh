// Narrow matrices: a few long rows that lie apart in one memory and, in the other, their columns one behind
// the other. A block takes a piece of every row.
//
//   merge     long rows in, columns out
//   split     columns in, long rows out
//
// By words:
//   rows      move as words of 4 bytes, or an element if wider, lanes side by side: the elements of a word
//             are those of 1, 2 or 4 columns. They go to or come from their columns in shared memory one by
//             one: a thread keeps the columns' addresses and counts rows in constants
//   columns   are one run in global memory and the same in shared memory: vectors of 16 bytes
//   banks     words lie as far apart as they have rows. Where rows are even, lanes whose words meet in a bank
//             start from different elements: with 4 to a word, 12 rows meet in no bank and 8 in pairs
//
// Bound by DRAM (H200, 12 rows of 5M bytes: 48 % of issue slots, 48 % of the shared memory's). The pins hold
// the compiler to that: without them it computes addresses again for every word, 4 times the instructions.
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Columns [begin, end) of a tile, in bytes, by vectors of kBytes.
template <int kBytes>
__device__ __forceinline__ void load_columns(const uint8_t* in, uint32_t shared, uint32_t begin, uint32_t end,
                                             uint64_t policy) {
  constexpr uint32_t kStep = kNarrowThreads * kBytes, kBatch = 4;
  for (uint32_t i = begin + threadIdx.x * kBytes; i < end; i += kBatch * kStep) {
    Word<kBytes> v[kBatch];
    // The last one again for those behind it: no branch parts the loads.
#pragma unroll
    for (uint32_t b = 0; b < kBatch; ++b) {
      v[b] = load_by<kBytes>(in + min(i + b * kStep, end - kBytes), policy);
    }
#pragma unroll
    for (uint32_t b = 0; b < kBatch; ++b) {
      if (i + b * kStep < end) store_shared<kBytes>(shared + i + b * kStep, v[b]);
    }
  }
}

// kWords: of one row, that a thread has in flight.
template <int E, bool kMerge, int kWords>
__global__ void __launch_bounds__(kNarrowThreads) narrow_kernel(const __grid_constant__ NarrowParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kWord = word_bytes(E), kPerWord = kWord / E, kRows = kNarrowBatch / kWords;
  constexpr uint32_t kNextWord = kNarrowThreads * kWord;  // of a thread in a row, bytes
  using Register = Word<kWord>;
  const uint32_t shared = shared_address(memory);
  const QuotRem tile = p.tiles.divmod(blockIdx.x);
  const uint8_t* in = p.in;
  uint8_t* out = p.out;
  p.outer.advance(tile.quot, in, out);
  const int64_t first = int64_t{tile.rem} * p.tile_words;
  in += first * kWord * (kMerge ? 1 : p.rows);
  out += first * kWord * (kMerge ? p.rows : 1);
  auto words = static_cast<uint32_t>(min(p.words - first, int64_t{p.tile_words}));
  const uint32_t bytes = words * p.rows * kWord, wide = p.wide ? bytes / kVector * kVector : 0;

  // Where a thread's elements begin in shared memory, from element `turn` of a word on.
  const uint32_t column_bytes = p.rows * E;
  uint32_t turn = (threadIdx.x >> p.log_spread) % kPerWord;
  uint32_t begin[kWords][kPerWord];
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const uint32_t word = threadIdx.x + w * kNarrowThreads;
      begin[w][e] = shared + (word * kPerWord + (e + turn) % kPerWord) * column_bytes;
    }
  }
  turn *= E * 8;  // bits of a word
  pin(in);
  pin(out);
  pin(words);
  pin(turn);
  const uint64_t policy = load_policy(p.keep);

  wait_for_inputs();
  if constexpr (!kMerge) {
    load_columns<kVector>(in, shared, 0, wide, policy);
    load_columns<kWord>(in, shared, wide, bytes, policy);
    __syncthreads();
  }
  for (uint32_t word = threadIdx.x; word < words; word += kNarrowThreads * kWords) {
    const uint8_t* from = in + word * kWord;
    uint8_t* to = out + word * kWord;
    uint32_t at[kWords][kPerWord];
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
#pragma unroll
      for (int e = 0; e < kPerWord; ++e) {
        at[w][e] = begin[w][e];
        begin[w][e] += kNarrowThreads * kWords * kPerWord * column_bytes;
      }
    }
    for (uint32_t row = 0; row < p.rows; row += kRows) {
      const auto there = [&](int w, int r) {
        return row + r < p.rows && (w == 0 || word + w * kNarrowThreads < words);
      };
      Register v[kWords][kRows];
      if constexpr (kMerge) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int w = 0; w < kWords; ++w) {
            if (there(w, r)) v[w][r] = load_by<kWord>(from + w * kNextWord, policy);
          }
          from += p.pitch;
          pin(from);
        }
      }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if constexpr (kMerge) {
            if (!there(w, r)) continue;
            if constexpr (kPerWord == 1) {
              store_shared<E>(at[w][0] + r * E, v[w][r]);
            } else {
              const uint32_t turned = __funnelshift_r(v[w][r], v[w][r], turn);
#pragma unroll
              for (int e = 0; e < kPerWord; ++e) {
                store_shared<E>(at[w][e] + r * E, static_cast<Word<E>>(turned >> (8 * E * e)));
              }
            }
          } else {  // of what is not there too: shared memory has room for it, and no branch parts the loads
            if constexpr (kPerWord == 1) {
              v[w][r] = load_shared<E>(at[w][0] + r * E);
            } else {
              uint32_t element[kPerWord];
#pragma unroll
              for (int e = 0; e < kPerWord; ++e) element[e] = load_shared<E>(at[w][e] + r * E);
              const uint32_t turned = pack_word(element);
              v[w][r] = __funnelshift_l(turned, turned, turn);
            }
          }
        }
      }
      if constexpr (!kMerge) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
#pragma unroll
          for (int w = 0; w < kWords; ++w) {
            if (there(w, r)) store_past_l1(to + w * kNextWord, v[w][r]);
          }
          to += p.pitch;
          pin(to);
        }
      }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) {
          at[w][e] += kRows * E;
          pin(at[w][e]);
        }
      }
    }
  }
  if constexpr (kMerge) {
    __syncthreads();
    store_from_shared<kVector>(out, shared, 0, wide, kNarrowThreads);
    store_from_shared<kWord>(out, shared, wide, bytes, kNarrowThreads);
  }
  if (p.release) {
    const int of_row = kMerge ? words * kWord : bytes;
    release_rows(kMerge ? p.rows : 1, of_row, ceil_div(of_row, kLine), kNarrowThreads,
                 [&](int row) { return in + row * p.pitch; });
  }
}

// By vectors: of so few rows that a lane holds a block of all of them, 16 bytes of each, where everything
// lies at multiples of 16 bytes. A warp has blocks side by side: of each row 512 bytes, and columns that are
// one run. Bytes are permuted in registers, and lanes exchange vectors through shared memory of the warp's
// own, so that it waits for no other. Vectors of a lane lie side by side there; where rows are even, lanes
// would meet in banks, and the place within 128 bytes is XORed with the number of those.
//
// One H200, over words: 20M x 3 in 1 byte 1.07, 30M x 2 in 1 byte 1.22, 12M x 5 in 1 byte 1.11, 12 x 5M in 2
// bytes 1.03, 9 x 4M in 2 bytes 1.07, images of 3 colours in 1 byte 1.10 to 1.14; over staging 9 x 4M in 4
// bytes 1.04, 8000000 x 7 in 4 bytes 1.02; over small tiles 6M x 8 in 4 bytes 1.02. Straight between
// registers and columns: 3 x 20M in 4 bytes .77 of a copy for 1.01, 12 x 5M .27.
template <int E, int kRows, bool kMerge>
__global__ void __launch_bounds__(kNarrowThreads)
    narrow_vectors_kernel(const __grid_constant__ NarrowParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kLanes = 32, kVectors = kLanes * kRows;  // of a warp
  const uint32_t warp = blockIdx.x * (kNarrowThreads / kLanes) + threadIdx.x / kLanes,
                 lane = threadIdx.x % kLanes;
  if (warp >= p.warps) return;
  const uint32_t shared = shared_address(memory) + threadIdx.x / kLanes * kVectors * kVector;
  const auto place = [&](uint32_t vector) {
    return shared + (kRows % 2 == 0 ? vector ^ (vector / 8 & 7) : vector) * kVector;
  };
  const QuotRem tile = p.tiles.divmod(warp);
  const uint8_t* in = p.in;
  uint8_t* out = p.out;
  p.outer.advance(tile.quot, in, out);
  const int64_t first = int64_t{tile.rem} * kLanes;
  const auto lanes = static_cast<uint32_t>(min(p.words - first, int64_t{kLanes}));
  in += (first * (kMerge ? 1 : kRows) + lane) * kVector;
  out += (first * (kMerge ? kRows : 1) + lane) * kVector;
  const auto is_there = [&](int i) { return i * kLanes + lane < lanes * kRows; };  // vector of the columns
  const uint64_t policy = load_policy(p.keep);

  wait_for_inputs();
  uint32_t words[4 * kRows];
  const auto take = [&](int i, uint4 v) {
    words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
  };
  // Lines are released here, not at the end: addresses that live until then cost registers, and spilt ones
  // memory traffic (one H100, 4 bytes, 7 x 2M and 7 x 8M 1.03 and 1.02; 1 byte, 15M x 8 1.07).
  if constexpr (kMerge) {
    if (lane < lanes) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) take(r, load_by<kVector>(in + r * p.pitch, policy));
      if (p.release) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) release_line_of_vector(in + r * p.pitch);
      }
    }
  } else {
    uint4 v[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (is_there(i)) v[i] = load_by<kVector>(in + i * kLanes * kVector, policy);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) store_shared<kVector>(place(i * kLanes + lane), v[i]);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) take(i, load_shared<kVector>(place(lane * kRows + i)));
    if (p.release) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (is_there(i)) release_line_of_vector(in + i * kLanes * kVector);
      }
    }
  }
  // Byte b of row r is, among the columns' bytes, byte b % E of element b / E * kRows + r.
  uint32_t turned[4 * kRows];
#pragma unroll
  for (int i = 0; i < 4 * kRows; ++i) {
    int at[4];
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      const int byte = 4 * i + b, element = byte / E;
      at[b] = byte % E + E * (kMerge ? element % kRows * (kVector / E) + element / kRows
                                     : element % (kVector / E) * kRows + element / (kVector / E));
    }
    turned[i] = gather_word(words, at);
  }
  const auto vector = [&](int i) {
    return make_uint4(turned[4 * i], turned[4 * i + 1], turned[4 * i + 2], turned[4 * i + 3]);
  };
  if constexpr (kMerge) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) store_shared<kVector>(place(lane * kRows + i), vector(i));
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (is_there(i))
        store_global(out + i * kLanes * kVector, load_shared<kVector>(place(i * kLanes + lane)));
    }
  } else if (lane < lanes) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) store_global(out + r * p.pitch, vector(r));
  }
}

}  // namespace tx::cuda
