// Kernels that move elements straight from load to store: one contiguous run, many runs, and any strides.
#pragma once

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

inline constexpr int kSimpleThreads = 256;

// Vector `index` of the aligned 16-byte vectors that cover a run of `bytes` at `out`, from `in` at any
// address. Vector 0 holds the first byte. Where the two sides are not congruent modulo 16 a vector is cut
// from the five aligned words that hold it; ends shorter than a vector go by bytes.
__device__ __forceinline__ void copy_vector(const uint8_t* in, uint8_t* out, int64_t bytes, int64_t index) {
  const int head = static_cast<int>(-reinterpret_cast<uintptr_t>(out) & (kVector - 1));
  const int64_t at = index * kVector + (head ? head - kVector : 0);
  if (at >= bytes) return;
  if (at >= 0 && at + kVector <= bytes) {
    const uint8_t* from = in + at;
    const auto residue = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) & (kVector - 1));
    uint4 v;
    if (residue == 0) {
      v = *reinterpret_cast<const uint4*>(from);
    } else {
      const uint32_t shift = 8 * (residue & 3);
      const auto* words = reinterpret_cast<const uint32_t*>(from - (residue & 3));
      const uint32_t w0 = words[0], w1 = words[1], w2 = words[2], w3 = words[3], w4 = shift ? words[4] : 0;
      v = make_uint4(__funnelshift_r(w0, w1, shift), __funnelshift_r(w1, w2, shift),
                     __funnelshift_r(w2, w3, shift), __funnelshift_r(w3, w4, shift));
    }
    *reinterpret_cast<uint4*>(out + at) = v;
  } else {
    const int64_t end = min(at + kVector, bytes);
    for (int64_t b = max(at, int64_t{0}); b < end; ++b) out[b] = in[b];
  }
}

// One run, one vector a thread: more bytes a thread, persistent grids, bulk copies and cache hints were all
// no faster (H200).
__global__ void __launch_bounds__(kSimpleThreads) copy_kernel(const __grid_constant__ CopyParams p) {
  copy_vector(p.in, p.out, p.bytes, static_cast<int64_t>(blockIdx.x) * kSimpleThreads + threadIdx.x);
}

// Many runs, contiguous on both sides. A block moves a plane of tile_rows runs x tile_cols vectors, lanes
// along a run. kAligned: every run is whole vectors on both sides.
template <bool kAligned>
__global__ void __launch_bounds__(kSimpleThreads) rows_kernel(const __grid_constant__ RowsParams p) {
  const QuotRem strip = p.strips.divmod(blockIdx.x);
  const QuotRem band = p.bands.divmod(strip.quot);
  const int64_t row0 = static_cast<int64_t>(band.rem) * p.tile_rows;
  const int64_t col0 = static_cast<int64_t>(strip.rem) * p.tile_cols.divisor;
  const uint8_t* in = p.in + row0 * p.in_pitch;
  uint8_t* out = p.out + row0 * p.out_pitch;
  p.outer.advance(band.quot, in, out);
  const auto rows = static_cast<uint32_t>(min(p.rows - row0, int64_t{p.tile_rows}));
  const auto cols = static_cast<uint32_t>(min(p.vectors - col0, static_cast<int64_t>(p.tile_cols.divisor)));
  const int count = p.tile_rows * p.tile_cols.divisor;
  if constexpr (kAligned) {
    in += col0 * kVector;
    out += col0 * kVector;
    constexpr int kBatch = 4;
    for (int first = threadIdx.x; first < count; first += kBatch * kSimpleThreads) {
      uint4 v[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const QuotRem at = p.tile_cols.divmod(first + b * kSimpleThreads);
        if (at.quot < rows && at.rem < cols) {
          v[b] = *reinterpret_cast<const uint4*>(in + at.quot * p.in_pitch + at.rem * kVector);
        }
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const QuotRem at = p.tile_cols.divmod(first + b * kSimpleThreads);
        if (at.quot < rows && at.rem < cols) {
          *reinterpret_cast<uint4*>(out + at.quot * p.out_pitch + at.rem * kVector) = v[b];
        }
      }
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < count; i += kSimpleThreads) {
      const QuotRem at = p.tile_cols.divmod(i);
      if (at.quot < rows && at.rem < cols) {
        copy_vector(in + at.quot * p.in_pitch, out + at.quot * p.out_pitch, p.run_bytes, col0 + at.rem);
      }
    }
  }
}

// Any strides: one element a thread, in output order. kWide: 2^31 elements or more, by 64-bit division,
// looping where a grid cannot hold them; the speed of that case is not a concern, its being right is.
template <int E, bool kWide>
__global__ void __launch_bounds__(kSimpleThreads) strided_kernel(const __grid_constant__ StridedParams p) {
  const int64_t step = kWide ? int64_t{gridDim.x} * kSimpleThreads : p.count;
  for (int64_t i = int64_t{blockIdx.x} * kSimpleThreads + threadIdx.x; i < p.count; i += step) {
    const uint8_t* in = p.in;
    uint8_t* out = p.out;
    int64_t rest = i;
    for (int d = 0; d < p.rank; ++d) {
      const StridedDim& dim = p.dims[d];
      int64_t at;
      if constexpr (kWide) {
        at = rest % dim.extent;
        rest /= dim.extent;
      } else {
        const QuotRem c = dim.divide.divmod(static_cast<uint32_t>(rest));
        at = c.rem;
        rest = c.quot;
      }
      in += at * dim.in_stride;
      out += at * dim.out_stride;
    }
    *reinterpret_cast<Word<E>*>(out) = *reinterpret_cast<const Word<E>*>(in);
  }
}

}  // namespace tx::cuda
