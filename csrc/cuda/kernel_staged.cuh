// Tiles over the innermost dims of both sides: whatever a tile's shape, it is a set of contiguous runs in the
// input and another set of contiguous runs in the output. Runs come in as aligned 16-byte vectors, wait in shared
// memory in input order, and leave as words gathered in output order. Serves narrow matrices, batches of small
// ones, and permutations whose innermost dims are short.
//
//   input    A run is widened to the 16-byte granules that hold it, so that every load is aligned whatever the
//            run's address. The granules of a valid byte lie on the byte's own page: reading them cannot fault.
//   shared   A byte at global address a lies at a shared address congruent to a modulo 16: strides between runs
//            keep the input's residue, so alignment needs no shifting. On top of that every 128 bytes are moved
//            one word along (staged_padded()), which spreads the power-of-two strides of the gather over the banks.
//   output   A word (4 bytes, or an element if wider) is aligned in global memory. A thread finds the coordinates
//            of the word's first element by multiplication, then steps from element to element. Words that stick
//            out of a run are written element by element.
#pragma once

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

inline constexpr int kStagedThreads = 256;

template <int E, int kChain>
__global__ void __launch_bounds__(kStagedThreads) staged_kernel(const __grid_constant__ StagedParams p) {
  extern __shared__ __align__(16) uint8_t shared[];
  using Element = Word<E>;
  const uint8_t* in = p.in;
  uint8_t* out = p.out;
  int in_cut = p.in_cut_tile, out_cut = p.out_cut_tile;
  uint32_t index = blockIdx.x;
  for (int d = 0; d < p.grid.count; ++d) {
    const OuterDim& dim = p.grid.dims[d];
    const QuotRem at = dim.extent.divmod(index);
    in += at.rem * dim.in_stride;
    out += at.rem * dim.out_stride;
    index = at.quot;
    if (d == p.in_cut_dim) in_cut = static_cast<int>(min(int64_t{in_cut}, p.in_cut_extent - int64_t{at.rem} * p.in_cut_tile));
    if (d == p.out_cut_dim) out_cut = static_cast<int>(min(int64_t{out_cut}, p.out_cut_extent - int64_t{at.rem} * p.out_cut_tile));
  }
  const auto limit = [&](Cut cut, int extent) {
    return cut == Cut::kNone ? extent : cut == Cut::kIn ? in_cut : out_cut;
  };

  // The whole tile's shared addresses start at the input's residue.
  const int residue = static_cast<int>(reinterpret_cast<uintptr_t>(in) & (kVector - 1));
  const int run_bytes = p.in_prefix_bytes * limit(p.in_last_cut, p.in_last);
  const int pieces = p.in_run_count * p.in_pieces.divisor;
  constexpr int kBatch = 4;
  for (int first = threadIdx.x; first < pieces; first += kBatch * kStagedThreads) {
    uint4 v[kBatch];
    int to[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int i = first + b * kStagedThreads;
      to[b] = -1;
      if (i < pieces) {
        const QuotRem piece = p.in_pieces.divmod(i);
        uint32_t run = piece.quot;
        const uint8_t* from = in;
        int at = residue;
        bool inside = true;
        for (int d = 0; d < p.in_axis_count; ++d) {
          const StagedAxis& axis = p.in_axes[d];
          const QuotRem c = axis.extent.divmod(run);
          run = c.quot;
          from += c.rem * axis.stride;
          at += static_cast<int>(c.rem) * axis.shared_stride;
          inside &= static_cast<int>(c.rem) < limit(axis.cut, axis.extent.divisor);
        }
        const int begin = at & (kVector - 1);
        const int offset = static_cast<int>(piece.rem) * kVector;
        if (inside && offset < begin + run_bytes) {
          v[b] = *reinterpret_cast<const uint4*>(from - begin + offset);
          to[b] = at - begin + offset;
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (to[b] < 0) continue;
      uint8_t* at = shared + staged_padded(to[b], E);
      if constexpr (E == 16) {
        *reinterpret_cast<uint4*>(at) = v[b];
      } else if constexpr (E == 8) {
        reinterpret_cast<uint2*>(at)[0] = make_uint2(v[b].x, v[b].y);
        reinterpret_cast<uint2*>(at)[1] = make_uint2(v[b].z, v[b].w);
      } else {
        reinterpret_cast<uint32_t*>(at)[0] = v[b].x;
        reinterpret_cast<uint32_t*>(at)[1] = v[b].y;
        reinterpret_cast<uint32_t*>(at)[2] = v[b].z;
        reinterpret_cast<uint32_t*>(at)[3] = v[b].w;
      }
    }
  }
  __syncthreads();

  constexpr int kWord = E > 4 ? E : 4;
  constexpr int kPerWord = kWord / E;
  const int run_elements = p.out_prefix * limit(p.out_last_cut, p.out_last);
  const int words = p.out_run_count * p.out_words.divisor;
  for (int i = threadIdx.x; i < words; i += kStagedThreads) {
    const QuotRem word = p.out_words.divmod(i);
    uint32_t run = word.quot;
    uint8_t* to = out;
    int base = residue;
    bool inside = true;
    for (int d = 0; d < p.out_axis_count; ++d) {
      const StagedAxis& axis = p.out_axes[d];
      const QuotRem c = axis.extent.divmod(run);
      run = c.quot;
      to += c.rem * axis.stride;
      base += static_cast<int>(c.rem) * axis.shared_stride;
      inside &= static_cast<int>(c.rem) < limit(axis.cut, axis.extent.divisor);
    }
    // Elements of the run that lie in this word: the first may stick out in front, the last behind.
    const int lead = kPerWord == 1 ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(to) & (kWord - 1)) / E;
    const int first = static_cast<int>(word.rem) * kPerWord - lead;
    if (!inside || first >= run_elements) continue;
    uint8_t* const address = to + first * E;

    // Coordinates of the first element inside the run.
    uint32_t rest = kPerWord == 1 ? first : max(first, 0);
    int c[kChain];
    int from = base;
#pragma unroll
    for (int d = 0; d < kChain; ++d) {
      if (d + 1 < kChain) {
        const QuotRem at = p.chain[d].extent.divmod(rest);
        c[d] = at.rem;
        rest = at.quot;
      } else {
        c[d] = rest;
      }
      from += c[d] * p.chain[d].shared_stride;
    }
    if constexpr (kPerWord == 1) {
      const Element v = *reinterpret_cast<const Element*>(shared + staged_padded(from, E));
      *reinterpret_cast<Element*>(address) = v;
    } else {
      const int skip = first < 0 ? -first : 0;
      const int count = min(kPerWord, run_elements - first);
      uint32_t packed = 0;
#pragma unroll
      for (int e = 0; e < kPerWord; ++e) {
        if (e >= skip && e < count) {
          packed |= static_cast<uint32_t>(*reinterpret_cast<const Element*>(shared + staged_padded(from, E)))
                    << (8 * E * e);
          from += p.chain[0].shared_stride;
          if constexpr (kChain > 1) {
            if (++c[0] == static_cast<int>(p.chain[0].extent.divisor)) {
              c[0] = 0;
              from += p.chain[1].shared_stride - static_cast<int>(p.chain[0].extent.divisor) * p.chain[0].shared_stride;
              if constexpr (kChain > 2) {
                if (++c[1] == static_cast<int>(p.chain[1].extent.divisor)) {
                  c[1] = 0;
                  from += p.chain[2].shared_stride -
                          static_cast<int>(p.chain[1].extent.divisor) * p.chain[1].shared_stride;
                }
              }
            }
          }
        }
      }
      if (skip == 0 && count == kPerWord) {
        *reinterpret_cast<uint32_t*>(address) = packed;
      } else {
        for (int e = skip; e < count; ++e) {
          *reinterpret_cast<Element*>(address + e * E) = static_cast<Element>(packed >> (8 * E * e));
        }
      }
    }
  }
}

}  // namespace tx::cuda
