// Kernels that move elements straight from load to store: one contiguous run, many runs, and any strides.
#pragma once

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

inline constexpr int kSimpleThreads = 256;

// One run. A thread writes one aligned 16-byte vector of the output: more bytes a thread, persistent grids,
// bulk copies and cache hints were all no faster (H200). `shift` is (in - out) modulo 16: zero takes the
// plain load, otherwise the vector is cut from the five aligned words that hold it. Ends shorter than a
// vector go by bytes.
__global__ void __launch_bounds__(kSimpleThreads) copy_kernel(const __grid_constant__ CopyParams p) {
  const int head = static_cast<int>(-reinterpret_cast<uintptr_t>(p.out) & (kVector - 1));
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * kSimpleThreads + threadIdx.x;
  // Vector 0 is the aligned vector that holds the first byte.
  const int64_t at = vector * kVector + (head ? head - kVector : 0);
  if (at >= p.bytes) return;
  if (at >= 0 && at + kVector <= p.bytes) {
    const uint8_t* from = p.in + at;
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
    *reinterpret_cast<uint4*>(p.out + at) = v;
  } else {
    const int64_t end = min(at + kVector, p.bytes);
    for (int64_t b = max(at, int64_t{0}); b < end; ++b) p.out[b] = p.in[b];
  }
}

// Many runs, contiguous on both sides. A block moves a plane of `rows` runs x `cols` elements, lanes along a
// run.
template <int E>
__global__ void __launch_bounds__(kSimpleThreads) rows_kernel(const __grid_constant__ RowsParams p) {
  const QuotRem strip = p.strips.divmod(blockIdx.x);
  const QuotRem band = p.bands.divmod(strip.quot);
  const int64_t row0 = static_cast<int64_t>(band.rem) * p.tile_rows;
  const int64_t col0 = static_cast<int64_t>(strip.rem) * p.tile_cols.divisor;
  const uint8_t* in = p.in + row0 * p.in_pitch + col0 * E;
  uint8_t* out = p.out + row0 * p.out_pitch + col0 * E;
  p.outer.advance(band.quot, in, out);
  const int rows = static_cast<int>(min(p.rows - row0, int64_t{p.tile_rows}));
  const auto cols = static_cast<uint32_t>(min(p.cols - col0, static_cast<int64_t>(p.tile_cols.divisor)));
  const int count = p.tile_rows * p.tile_cols.divisor;
  constexpr int kBatch = 4;
  for (int first = threadIdx.x; first < count; first += kBatch * kSimpleThreads) {
    Word<E> v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const QuotRem at = p.tile_cols.divmod(first + b * kSimpleThreads);
      if (static_cast<int>(at.quot) < rows && at.rem < cols) {
        v[b] = *reinterpret_cast<const Word<E>*>(in + at.quot * p.in_pitch + at.rem * E);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const QuotRem at = p.tile_cols.divmod(first + b * kSimpleThreads);
      if (static_cast<int>(at.quot) < rows && at.rem < cols) {
        *reinterpret_cast<Word<E>*>(out + at.quot * p.out_pitch + at.rem * E) = v[b];
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
