// Permutations of pieces that are dense on both sides, wherever each lies: a piece of the output is a piece
// of the input in another order.
//
//   load      the aligned vectors that hold a block's pieces go to shared memory past the registers, a warp a
//             piece
//   gather    meanwhile threads find where the elements of their words of a piece come from. These places are
//             the same in every piece, and stay in registers
//   store     the words of a piece wait in the slot of the piece before it, to leave as the output's vectors.
//             They are the piece's words, not the output's: a vector is put together from two
//
// Lanes gather words some steps apart, which the planner chooses so that they meet in few banks (1 byte, 19 x
// 17 x 23 x 13 x 29 x 11 -> 0,2,1,4,3,5: 18 wavefronts of loads and stores for 128 bytes, with steps of 5
// words 9). Bound by DRAM from 2 bytes up, at 1 byte by shared memory and instructions (H200, the same:
// wavefronts 66 %, issue slots 60 %). Tried: blocks that stay (.46 where this has .83), a buffer or two of
// their own for the words, which leave room for fewer blocks (.80), more pieces a block (8: .69), pieces
// whose input is several runs (slower than staging in 3 of 4 problems).
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Where a piece lies in shared memory, and where it goes.
struct alignas(16) PieceAt {
  uint32_t from;
  uint8_t* to;
};
static_assert(sizeof(PieceAt) == kPieceEntryBytes, "the planner counts the table into shared memory");

// kSlots: words of a piece that a thread has.
template <int E, int kSlots>
__global__ void __launch_bounds__(kPiecesMostThreads) pieces_kernel(const __grid_constant__ PiecesParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kWord = word_bytes(E), kPerWord = kWord / E;
  const uint32_t slots = shared_address(memory);
  auto* const pieces = reinterpret_cast<PieceAt*>(memory + (p.at_once + 1) * p.slot_bytes);
  const uint32_t first = blockIdx.x * p.at_once, count = min(p.count - first, p.at_once);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  wait_for_inputs();
#pragma unroll 1
  for (uint32_t i = warp; i < count; i += blockDim.x / 32) {
    const uint8_t* in = p.in;
    uint8_t* out = p.out;
    p.outer.advance(first + i, in, out);
    const auto skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(in) & (kVector - 1));
    in -= skew;
    const uint32_t to = align_like(in, slots + (i + 1) * p.slot_bytes);
    if (lane == 0) pieces[i] = {to + skew, out};
#pragma unroll 4
    for (uint32_t v = lane * kVector; v < skew + p.piece_bytes; v += 32 * kVector) {
      copy_async<kVector>(to + v, in + v, p.keep);
    }
  }

  // Where rows of the innermost dim begin, in the first slot, which has no piece.
  for (uint32_t i = threadIdx.x; i < p.rows; i += blockDim.x) {
    store_shared<2>(slots + i * 2, static_cast<uint16_t>(p.row_dims.place(i)));
  }
  __syncthreads();
  uint32_t place[kSlots][kPerWord], word_at[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    // Threads without a word move the last one again.
    const uint32_t index = min(threadIdx.x + s * blockDim.x, p.words.divisor - 1);
    const uint32_t word = p.words.divmod(index * p.word_step).rem;
    word_at[s] = word * kWord;
    pin(word_at[s]);
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const QuotRem c = p.row.divmod(min(word * kPerWord + e, p.rows * p.row.divisor - 1));
      place[s][e] = load_shared<2>(slots + c.quot * 2) + c.rem * p.row_stride;
      pin(place[s][e]);
    }
  }
  wait_for_copies();
  __syncthreads();

#pragma unroll 1
  for (uint32_t i = 0; i < count; ++i) {
    const PieceAt piece = pieces[i];
    const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(piece.to));
    // Vectors of the output are vectors here, but for the bytes by which it misses a word.
    const uint32_t words = slots + i * p.slot_bytes + kVector + (low & (kVector - 4)), miss = low % 4;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if constexpr (kPerWord == 1) {
        store_shared<kWord>(words + word_at[s], load_shared<E>(piece.from + place[s][0]));
      } else {
        uint32_t element[kPerWord];
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) element[e] = load_shared<E>(piece.from + place[s][e]);
        store_shared<kWord>(words + word_at[s], pack_word(element));
      }
    }
    __syncthreads();
    const uint32_t head = -low % kVector;
    const uint32_t end = head + (p.piece_bytes - head) / kVector * kVector;
#pragma unroll 2
    for (uint32_t at = head + threadIdx.x * kVector; at < end; at += blockDim.x * kVector) {
      const uint32_t from = words + at + miss;
      uint4 v = load_shared<kVector>(from);
      if constexpr (E < 4) {
        const uint32_t before = load_shared<4>(from - 4), selector = 0x7654 - 0x1111 * miss;
        v = make_uint4(__byte_perm(before, v.x, selector), __byte_perm(v.x, v.y, selector),
                       __byte_perm(v.y, v.z, selector), __byte_perm(v.z, v.w, selector));
      }
      store_global(piece.to + at, v);
    }
    // The last warp has least of the vectors: the bytes before the first and behind the last are its lanes'.
    if (threadIdx.x + 32 >= blockDim.x) {
      const uint32_t at = lane < kVector ? lane : end + lane - kVector;
      if (lane < kVector ? at < head : at < p.piece_bytes) {
        piece.to[at] = static_cast<uint8_t>(load_shared<1>(words + at));
      }
    }
  }
}

}  // namespace tx::cuda
