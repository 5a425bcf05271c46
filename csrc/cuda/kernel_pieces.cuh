// Permutations of pieces that are a few long runs of consecutive bytes in the input and a few in the output,
// wherever each lies.
//
//   load      the aligned vectors that hold a block's pieces go to shared memory past the registers, so many
//             lanes a run that each has two of its vectors or more
//   gather    meanwhile threads find where the elements of their words of a piece come from. These places are
//             the same in every piece, and stay in registers
//   store     the words of a piece wait in the slot of the piece before it, to leave as the output's vectors.
//             They are the runs' words, not the output's: a vector is put together from two
//
// A dim that is cut into parts is cut into equal ones: the last ends with the dim, and moves some elements
// that its neighbour moves too.
//
// Lanes gather words some steps apart, which the planner chooses so that they meet in few banks (1 byte, 19 x
// 17 x 23 x 13 x 29 x 11 -> 0,2,1,4,3,5: 18 wavefronts of loads and stores for 128 bytes, with steps of 5
// words 9). Bound by DRAM from 2 bytes up, at 1 byte by shared memory and instructions (H200, the same:
// wavefronts 66 %, issue slots 60 %). Tried: blocks that stay (.46 where this has .83), a buffer or two of
// their own for the words, which leave room for fewer blocks (.80), more pieces a block (8: .69). Of runs,
// one H100, 281 to 465 problems an element width, 1, 2, 4 and 8 bytes: a warp for each .50 .53 .56 .61, as
// here .77 .85 .89 .90; four vectors a lane .77 .82 .85 .87; where a piece lies found by all lanes .75 .83
// .86 .89.
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Where a piece lies, and in shared memory.
struct PieceAt {
  const uint8_t* in;
  uint8_t* out;
  uint32_t shared;
};
static_assert(sizeof(PieceAt) == kPieceEntryBytes, "the planner counts the table into shared memory");

// Runs of a piece: one on both sides, one of the output, or several of it.
enum class PieceForm { kDense, kOneRun, kRuns };

// kSlots: words of a piece that a thread has.
template <int E, int kSlots, PieceForm kForm>
__global__ void __launch_bounds__(kPiecesMostThreads) pieces_kernel(const __grid_constant__ PiecesParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kWord = word_bytes(E), kPerWord = kWord / E;
  constexpr bool kDense = kForm == PieceForm::kDense, kOneRun = kForm != PieceForm::kRuns;
  const uint32_t slots = shared_address(memory);
  auto* const pieces = reinterpret_cast<PieceAt*>(memory + (p.at_once + 1) * p.slot_bytes);
  const uint32_t first = blockIdx.x * p.at_once, count = min(p.count - first, p.at_once);

  // Of local variables: nvcc 13.0 loses what happens to `in` where it is a member of a PieceAt.
  const auto find = [&](uint32_t i) {
    const uint8_t* in = p.in;
    uint8_t* out = p.out;
    p.outer.advance(first + i, in, out);
    if constexpr (!kDense) {
      const FastDiv& cut = p.outer.dims[0].extent;
      const bool ends = cut.divmod(first + i).rem + 1 == cut.divisor;
      if (ends) in -= p.in_back, out -= p.out_back;
    }
    return PieceAt{in, out, align_like(in, slots + (i + 1) * p.slot_bytes)};
  };
  // Runs look up where their piece lies. A dense one is sooner on its way without.
  if constexpr (!kDense) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) pieces[i] = find(i);
    __syncthreads();
  }
  wait_for_inputs();
  const uint32_t lanes = 1u << p.log_lanes, lane = threadIdx.x % lanes;
  const uint32_t runs = kDense ? count : count * p.in_runs.divisor;
#pragma unroll 1
  for (uint32_t i = threadIdx.x >> p.log_lanes; i < runs; i += blockDim.x >> p.log_lanes) {
    const QuotRem run = kDense ? QuotRem{i, 0} : p.in_runs.divmod(i);
    const PieceAt piece = kDense ? find(i) : pieces[run.quot];
    if (kDense && lane == 0) pieces[i] = piece;
    const uint8_t* in = piece.in;
    uint32_t to = piece.shared;
    if constexpr (!kDense) p.in_run_dims.advance(run.rem, in, to);
    const auto skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(in) & (kVector - 1));
    in -= skew;
    to -= skew;
#pragma unroll 4
    for (uint32_t v = lane * kVector; v < skew + p.in_run_bytes; v += lanes * kVector) {
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
    uint32_t word = p.words.divmod(index * p.word_step).rem, begin = 0;
    word_at[s] = 0;
    if constexpr (!kOneRun) {
      const QuotRem of_run = p.run_words.divmod(word);
      uint32_t at = 0;
      p.out_run_dims.advance(of_run.quot, at, word_at[s]);
      word = of_run.rem;
      begin = of_run.quot * p.run_elements;
    }
    word_at[s] += word * kWord;
    pin(word_at[s]);
    const uint32_t end = begin + p.run_elements - 1;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) {
      const QuotRem c = p.row.divmod(min(begin + word * kPerWord + e, end));
      place[s][e] = load_shared<2>(slots + c.quot * 2) + c.rem * p.row_stride;
      pin(place[s][e]);
    }
  }
  const uint32_t threads = kOneRun ? blockDim.x : p.run_threads.divisor;  // that store a run
  const QuotRem of_run = kOneRun ? QuotRem{0, threadIdx.x} : p.run_threads.divmod(threadIdx.x);
  wait_for_copies();
  __syncthreads();

#pragma unroll 1
  for (uint32_t i = 0; i < count; ++i) {
    const PieceAt piece = pieces[i];
    const auto low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(piece.out)) & (kVector - 1);
    // Vectors of the output are vectors here, but for the bytes by which it misses a word.
    const uint32_t words = slots + i * p.slot_bytes + kVector + (kOneRun ? low & ~3u : low);
    const auto word_of = [&](uint32_t at) { return kOneRun || E >= 4 ? words + at : (words + at) & ~3u; };
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if constexpr (kPerWord == 1) {
        store_shared<kWord>(word_of(word_at[s]), load_shared<E>(piece.shared + place[s][0]));
      } else {
        uint32_t element[kPerWord];
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) element[e] = load_shared<E>(piece.shared + place[s][e]);
        store_shared<kWord>(word_of(word_at[s]), pack_word(element));
      }
    }
    __syncthreads();
#pragma unroll 1
    for (uint32_t r = of_run.quot; r < (kOneRun ? 1 : p.out_runs); r += kOneRun ? 1 : p.runs_at_once) {
      uint8_t* out = piece.out;
      uint32_t at_run = 0;
      if constexpr (!kOneRun) {
        if (of_run.quot >= p.runs_at_once) break;
        p.out_run_dims.advance(r, out, at_run);
      }
      const auto run_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out));
      const uint32_t run = word_of(at_run), miss = run_low % 4,
                     head = min(-run_low % kVector, p.out_run_bytes);
      const uint32_t end = head + (p.out_run_bytes - head) / kVector * kVector;
#pragma unroll 2
      for (uint32_t at = head + of_run.rem * kVector; at < end; at += threads * kVector) {
        const uint32_t from = run + at + miss;
        uint4 v = load_shared<kVector>(from);
        if constexpr (E < 4) {
          const uint32_t before = load_shared<4>(from - 4), selector = 0x7654 - 0x1111 * miss;
          v = make_uint4(__byte_perm(before, v.x, selector), __byte_perm(v.x, v.y, selector),
                         __byte_perm(v.y, v.z, selector), __byte_perm(v.z, v.w, selector));
        }
        store_global(out + at, v);
      }
      // The last threads have least of the vectors: the elements before the first and behind the last are
      // theirs.
      constexpr uint32_t kFew = kVector / E;
      for (uint32_t j = threads - 1 - of_run.rem; j < 2 * kFew; j += threads) {
        const uint32_t at = j < kFew ? j * E : end + (j - kFew) * E;
        if (at < (j < kFew ? head : p.out_run_bytes)) {
          *reinterpret_cast<Word<E>*>(out + at) = load_shared<E>(run + at);
        }
      }
    }
  }
}

}  // namespace tx::cuda
