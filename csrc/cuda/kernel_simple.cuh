// Kernels that move elements straight from load to store: one contiguous run, many runs, and any strides.
#pragma once

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

inline constexpr int kSimpleThreads = 256;

// Bytes [0, 16) at `from` as a vector, cut from the aligned words that hold them; words outside [low, high)
// are not read.
__device__ __forceinline__ uint4 cut_vector(const uint8_t* from, int low, int high) {
  const auto skew = static_cast<int>(reinterpret_cast<uintptr_t>(from) & 3);
  const auto* words = reinterpret_cast<const uint32_t*>(from - skew);
  uint32_t w[5];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = 4 * i - skew + 4 > low && 4 * i - skew < high ? words[i] : 0;
  return make_uint4(__funnelshift_r(w[0], w[1], 8 * skew), __funnelshift_r(w[1], w[2], 8 * skew),
                    __funnelshift_r(w[2], w[3], 8 * skew), __funnelshift_r(w[3], w[4], 8 * skew));
}

// The first `count` < 16 bytes of a vector to the aligned 16 bytes at `to`: the powers of two that make up
// the count, the largest first.
__device__ __forceinline__ void store_first(uint8_t* to, uint4 v, int count) {
  if (count & 8) *reinterpret_cast<uint2*>(to) = make_uint2(v.x, v.y), v.x = v.z, v.y = v.w, to += 8;
  if (count & 4) *reinterpret_cast<uint32_t*>(to) = v.x, v.x = v.y, to += 4;
  if (count & 2) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(v.x), v.x >>= 16, to += 2;
  if (count & 1) *to = static_cast<uint8_t>(v.x);
}

// The last `count` < 16 bytes, likewise, from the end.
__device__ __forceinline__ void store_last(uint8_t* to, uint4 v, int count) {
  to += kVector;
  if (count & 8) to -= 8, *reinterpret_cast<uint2*>(to) = make_uint2(v.z, v.w), v.w = v.y, v.z = v.x;
  if (count & 4) to -= 4, *reinterpret_cast<uint32_t*>(to) = v.w, v.w = v.z;
  if (count & 2) to -= 2, *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(v.w >> 16), v.w <<= 16;
  if (count & 1) to -= 1, *to = static_cast<uint8_t>(v.w >> 24);
}

// Vector `index` of the aligned 16-byte vectors that cover a run of `bytes` at `out`, from `in` at any
// address. Vector 0 holds the first byte.
__device__ __forceinline__ void copy_vector(const uint8_t* in, uint8_t* out, int64_t bytes, int64_t index) {
  const int head = static_cast<int>(-reinterpret_cast<uintptr_t>(out) & (kVector - 1));
  const int64_t at = index * kVector + (head ? head - kVector : 0);
  if (at >= bytes) return;
  const uint8_t* from = in + at;
  if (at >= 0 && at + kVector <= bytes) {
    const bool aligned = (reinterpret_cast<uintptr_t>(from) & (kVector - 1)) == 0;
    *reinterpret_cast<uint4*>(out + at) =
        aligned ? *reinterpret_cast<const uint4*>(from) : cut_vector(from, 0, kVector);
    return;
  }
  const int low = at < 0 ? static_cast<int>(-at) : 0;
  const int high = static_cast<int>(min(bytes - at, int64_t{kVector}));
  if (low > 0 && high < kVector) {  // the whole run
    for (int b = low; b < high; ++b) out[at + b] = from[b];
    return;
  }
  const uint4 v = cut_vector(from, low, high);
  if (low > 0) {
    store_last(out + at, v, kVector - low);
  } else {
    store_first(out + at, v, high);
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
