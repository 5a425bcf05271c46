// Tiles over the innermost dims of both sides: whatever a tile's shape, it is a set of contiguous runs in the
// input and another set of contiguous runs in the output. Runs come in as aligned 16-byte vectors, wait in
// shared memory in input order, and leave as words gathered in output order. Serves narrow matrices and
// batches of small ones that have no kernel of their own, and permutations whose innermost dims are short.
//
//   input    A run is widened to the 16-byte granules that hold it, so that every load is aligned. The
//            granules of a valid byte lie on the byte's own page: reading them cannot fault. Where the runs
//            lie is found once for each, into a table. Stepped inputs (x[..., ::2]) come in with their gaps.
//   shared   A byte at global address a lies at a shared address congruent to a modulo 16, or modulo a word:
//            strides between runs keep the input's residue, so alignment needs no shifting. The planner
//            chooses those strides, and where they do not suffice moves every 128 bytes one word along
//            (staged_padded()), so that the gather spreads over the banks.
//   blocks   1- and 2-byte elements whose strides keep to words move as blocks of 4 x 4 and 2 x 2: a quarter
//            and half of the shared loads, turned in registers by byte permutes.
//   output   A word (4 bytes, or an element if wider) is aligned in global memory. A thread finds where the
//            elements of a word lie by division, once; then it repeats: along one dim of the tile the same
//            pattern comes again, shifted by constants in both memories. Words are counted from whole sectors
//            of the output where repeats can keep to them: then no two warps write to one inside a run. Words
//            that stick out of a run go by elements.
//
// Bound by DRAM from 4 bytes up, by instructions and their latency below (H200: 10 to 27 an element at 1
// byte, where a copy's time has room for 14; DRAM at 22 to 40 %). Tried for 1 and 2 bytes, and slower: blocks
// at any alignment, by funnel shifts along rows and a shuffle between lanes (.1 to .2 better on 12 of 30
// permutations at 1 byte, as much worse on the others); cp.async, whose shared address needs three
// instructions more than a store.
#pragma once

#include <type_traits>

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Where a run's granules lie in both memories.
struct alignas(16) StagedRun {
  const uint8_t* from;
  int32_t at;
  int32_t end;  // bytes from the first granule's begin to the run's end; 0: outside the problem
};
static_assert(sizeof(StagedRun) == kStagedRunEntryBytes, "the planner counts the table into shared memory");

// A block's tile: its origins, and how much of it the problem fills.
struct StagedOrigin {
  const uint8_t* in;
  uint8_t* out;
  int in_cut, out_cut;

  __device__ __forceinline__ explicit StagedOrigin(const StagedParams& p)
      : in(p.in), out(p.out), in_cut(p.in_cut_tile), out_cut(p.out_cut_tile) {
    uint32_t index = blockIdx.x;
#pragma unroll 1
    for (int d = 0; d < p.grid.count; ++d) {
      const OuterDim& dim = p.grid.dims[d];
      const QuotRem at = dim.extent.divmod(index);
      in += at.rem * dim.in_stride;
      out += at.rem * dim.out_stride;
      index = at.quot;
      if (d == p.in_cut_dim)
        in_cut = static_cast<int>(min(int64_t{in_cut}, p.in_cut_extent - int64_t{at.rem} * p.in_cut_tile));
      if (d == p.out_cut_dim)
        out_cut =
            static_cast<int>(min(int64_t{out_cut}, p.out_cut_extent - int64_t{at.rem} * p.out_cut_tile));
    }
  }
  __device__ __forceinline__ int limit(Cut cut, int extent) const {
    return cut == Cut::kNone ? extent : cut == Cut::kIn ? in_cut : out_cut;
  }
  // The whole tile's shared addresses start at the input's residue.
  __device__ __forceinline__ int residue() const {
    return static_cast<int>(reinterpret_cast<uintptr_t>(in) & (kVector - 1));
  }
};

// Brings the tile's runs into shared memory at `data`. `table` has room for all of them.
template <int E>
__device__ __forceinline__ void stage_runs(const StagedParams& p, const StagedOrigin& tile, StagedRun* table,
                                           uint32_t data) {
  const int run_bytes = p.in_prefix_bytes * tile.limit(p.in_last_cut, p.in_last) - p.in_slack_bytes;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.in_run_count; i += kStagedThreads) {
    uint32_t run = i;
    const uint8_t* from = tile.in;
    int at = tile.residue();
    bool inside = true;
#pragma unroll 1
    for (int d = 0; d < p.in_axis_count; ++d) {
      const StagedAxis& axis = p.in_axes[d];
      const QuotRem c = axis.extent.divmod(run);
      run = c.quot;
      from += c.rem * axis.stride;
      at += static_cast<int>(c.rem) * axis.shared_stride;
      inside &= static_cast<int>(c.rem) < tile.limit(axis.cut, axis.extent.divisor);
    }
    const auto begin = static_cast<int>(reinterpret_cast<uintptr_t>(from) & (kVector - 1));
    table[i] = {from - begin, at - begin, inside ? begin + run_bytes : 0};
  }
  __syncthreads();
  const uint64_t policy = load_policy(p.keep);
  wait_for_inputs();
  const int pieces = p.in_run_count * p.in_pieces.divisor;
  constexpr int kBatch = 4;
  for (int first = threadIdx.x; first < pieces; first += kBatch * kStagedThreads) {
    uint4 v[kBatch];
    int to[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = min(first + b * kStagedThreads, pieces - 1);
      const QuotRem piece = p.in_pieces.divmod(i);
      const StagedRun run = table[piece.quot];
      const int offset = static_cast<int>(piece.rem) * kVector;
      to[b] = offset < run.end ? run.at + offset : -1;
      if (offset < run.end) v[b] = load_by<kVector>(run.from + offset, policy);
    }
    if (p.vectors) {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (to[b] >= 0) store_shared<16>(data + to[b], v[b]);
      }
    } else {
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (to[b] < 0) continue;
        const uint32_t at = data + (p.padded ? staged_padded(to[b], E) : to[b]);
        if constexpr (E == 16) {
          store_shared<16>(at, v[b]);
        } else if constexpr (E == 8) {
          store_shared<8>(at, make_uint2(v[b].x, v[b].y));
          store_shared<8>(at + 8, make_uint2(v[b].z, v[b].w));
        } else {
          store_shared<4>(at, v[b].x);
          store_shared<4>(at + 4, v[b].y);
          store_shared<4>(at + 8, v[b].z);
          store_shared<4>(at + 12, v[b].w);
        }
      }
    }
  }
  __syncthreads();
}

// Shared addresses of the elements [first, first + kPerWord) of a run that begins at `base`. An element
// before the run's begin is the one of the repeat before, or none.
template <int E, int kChain, int kPerWord>
__device__ __forceinline__ void find_elements(const StagedParams& p, uint32_t data, int base, int first,
                                              uint32_t (&from)[kPerWord]) {
  bool before = first < 0;
  auto rest = static_cast<uint32_t>(before ? max(first + p.repeat_elements, 0) : first);
  int at = base;
  int index[kChain];
#pragma unroll
  for (int d = 0; d < kChain; ++d) {
    if (d + 1 < kChain) {
      const QuotRem c = p.chain[d].extent.divmod(rest);
      index[d] = static_cast<int>(c.rem);
      rest = c.quot;
    } else {
      index[d] = static_cast<int>(rest);
    }
    at += index[d] * p.chain[d].shared_stride;
  }
#pragma unroll
  for (int e = 0; e < kPerWord; ++e) {
    from[e] = data + (p.padded ? staged_padded(at, E) : at) - (before ? p.repeat_shared : 0);
    pin(from[e]);
    if (e + 1 == kPerWord) break;
    // The next element: one further along the first dim, with a carry. Where the run does not repeat, the
    // first elements lie before all of it: the walk waits at its begin.
    bool carry = !before || first + e + p.repeat_elements >= 0;
#pragma unroll
    for (int d = 0; d < kChain; ++d) {
      const auto extent = static_cast<int>(p.chain[d].extent.divisor);
      if (carry) ++index[d], at += p.chain[d].shared_stride;
      carry = carry && d + 1 < kChain && index[d] == extent;
      if (carry) index[d] = 0, at -= extent * p.chain[d].shared_stride;
    }
    if (first + e + 1 == 0) {
      before = false;
      at = base;
#pragma unroll
      for (int d = 0; d < kChain; ++d) index[d] = 0;
    }
  }
}

// kBlock > 1: the words of narrower elements, in square blocks of kBlock; E is then 4.
template <int E, int kChain, int kBlock>
__global__ void __launch_bounds__(kStagedThreads) staged_kernel(const __grid_constant__ StagedParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  const StagedOrigin tile(p);
  const int residue = tile.residue();
  const uint32_t data = shared_address(memory) + p.in_run_count * static_cast<uint32_t>(sizeof(StagedRun));
  stage_runs<E>(p, tile, reinterpret_cast<StagedRun*>(memory), data);

  constexpr int kWord = word_bytes(E);
  constexpr int kPerWord = kWord / E;
  using Register = Word<kWord>;  // what an element is loaded to
  const int run_elements = p.out_prefix * tile.limit(p.out_last_cut, p.out_last);
  const int slots = p.out_run_count * p.out_words.divisor;
  for (int slot = threadIdx.x; slot < slots; slot += kStagedThreads) {
    const QuotRem word = p.out_words.divmod(slot);
    uint32_t run = word.quot;
    uint8_t* to = tile.out;
    int base = residue;
    bool inside = true;
    int repeats = 1;
    for (int d = 0; d < p.out_axis_count; ++d) {
      const StagedAxis& axis = p.out_axes[d];
      const QuotRem c = axis.extent.divmod(run);
      run = c.quot;
      to += c.rem * axis.stride;
      base += static_cast<int>(c.rem) * axis.shared_stride;
      if (d == p.repeat_axis) {
        repeats = (tile.limit(p.repeat_cut, p.repeat_extent) - static_cast<int>(c.rem) + p.repeat_step - 1) /
                  p.repeat_step;
      } else {
        inside &= static_cast<int>(c.rem) < tile.limit(axis.cut, axis.extent.divisor);
      }
    }
    if (!inside) continue;
    // The word's elements are [first, first + kPerWord) of the run. Lined up with the output's words and
    // sectors, the first ones may begin before the run: then they belong to the repeat before, if there is
    // one.
    const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(to) & (p.align - 1)) / E;
    const int first = static_cast<int>(word.rem) * kPerWord - lead;
    to += first * E;
    uint32_t from[kPerWord];
    find_elements<E, kChain>(p, data, base, first, from);
    // Repeats [begin, end) of the run hold the whole word; every repeat of an axis holds the same part of it.
    int begin = 0, end = repeats;
    // A bit for each element that lies in the run.
    const auto elements_inside = [&](int index) {
      uint32_t bits = 0;
#pragma unroll
      for (int e = 0; e < kPerWord; ++e) {
        if (index + e >= 0 && index + e < run_elements) bits |= 1u << e;
      }
      return bits;
    };
    const auto store_part = [&](uint8_t* at, uint32_t bits, uint32_t shift) {
#pragma unroll
      for (int e = 0; e < kPerWord; ++e) {
        if (bits >> e & 1) reinterpret_cast<Word<E>*>(at)[e] = load_shared<E>(from[e] + shift);
      }
    };
    if (p.repeat_elements > 0) {
      begin = first < 0 ? 1 : 0;
      const int room = run_elements - kPerWord - first;
      end = room < 0 ? 0 : room / p.repeat_elements + 1;
      if constexpr (kPerWord > 1) {
        if (begin > 0) store_part(to, elements_inside(first), 0);
        const int left = first + end * p.repeat_elements;
        if (end >= begin && left < run_elements) {
          store_part(to + end * p.repeat_out, elements_inside(left), end * p.repeat_shared);
        }
      }
    } else if (first < 0 || first + kPerWord > run_elements) {
      const uint32_t part = elements_inside(first);
      for (int i = 0; i < repeats && part != 0; ++i)
        store_part(to + i * p.repeat_out, part, i * p.repeat_shared);
      end = 0;
    }
    to += begin * p.repeat_out;
#pragma unroll
    for (int e = 0; e < kPerWord; ++e) from[e] += begin * p.repeat_shared;
    // Several repeats at once, so that their loads are in flight together.
    constexpr int kAtOnce = kBlock > 1 ? 4 / kBlock : 4;
    const auto move = [&](auto count) {
      constexpr int kCount = decltype(count)::value;
      constexpr int kLoads = kBlock > 1 ? kBlock : kPerWord;
      Register v[kCount][kLoads];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
#pragma unroll
        for (int e = 0; e < kLoads; ++e) {
          v[i][e] = load_shared<E>(kBlock > 1 ? from[0] + e * p.block_shared : from[e]);
        }
#pragma unroll
        for (int e = 0; e < kPerWord; ++e) from[e] += p.repeat_shared;
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if constexpr (kBlock > 1) {
          transpose_words(v[i]);
#pragma unroll
          for (int m = 0; m < kBlock; ++m) store_global(to + m * p.block_out, v[i][m]);
        } else if constexpr (kPerWord == 1) {
          store_global(to, v[i][0]);
        } else {
          store_global(to, pack_word(v[i]));
        }
        to += p.repeat_out;
      }
    };
    int r = begin;
#pragma unroll 1
    for (; r + kAtOnce <= end; r += kAtOnce) move(std::integral_constant<int, kAtOnce>());
#pragma unroll 1
    for (; r < end; ++r) move(std::integral_constant<int, 1>());
  }
}

}  // namespace tx::cuda
