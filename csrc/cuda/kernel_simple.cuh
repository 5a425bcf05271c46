// Kernels that move elements straight from load to store: one contiguous run, many runs, and any strides.
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Bytes [low, high) of the 16 at `from`, cut from the one or two aligned vectors that hold them; others are
// not read.
__device__ __forceinline__ uint4 cut_vector(const uint8_t* from, int low, int high, uint64_t policy) {
  const auto skew = static_cast<int>(reinterpret_cast<uintptr_t>(from) & (kVector - 1));
  const uint8_t* granule = from - skew;
  uint4 a = {}, b = {};
  if (skew + low < kVector) a = load_by<kVector>(granule, policy);
  if (skew + high > kVector) b = load_by<kVector>(granule + kVector, policy);
  uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = skew & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = skew & 4 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], 8 * (skew & 3));
  return make_uint4(w[0], w[1], w[2], w[3]);
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

// Bytes [low, high) of a vector to the aligned 16 bytes at `to`.
__device__ __forceinline__ void store_part(uint8_t* to, uint4 v, int low, int high) {
  if (low == 0 && high == kVector) {
    *reinterpret_cast<uint4*>(to) = v;
  } else if (low == 0) {
    store_first(to, v, high);
  } else if (high == kVector) {
    store_last(to, v, kVector - low);
  } else {
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int b = 0; b < kVector; ++b) {
      if (b >= low && b < high) to[b] = static_cast<uint8_t>(w[b / 4] >> (8 * (b % 4)));
    }
  }
}

// One run, one vector a thread: of copies that L2 does not hold, more bytes a thread, persistent grids, bulk
// copies and hints to stores were all no faster (H200).
__global__ void __launch_bounds__(kSimpleThreads) copy_kernel(const __grid_constant__ CopyParams p) {
  // The aligned vectors of the output, the first of which holds its first byte.
  const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(p.out) & (kVector - 1));
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kSimpleThreads + threadIdx.x) * kVector - lead;
  const int low = at < 0 ? static_cast<int>(-at) : 0;
  const auto high = static_cast<int>(min(p.bytes - at, int64_t{kVector}));
  if (low >= high) return;
  wait_for_inputs();
  const uint8_t* const from = p.in + at;
  const bool aligned = low == 0 && high == kVector && reinterpret_cast<uintptr_t>(from) % kVector == 0;
  const uint64_t policy = load_policy(p.keep);
  store_part(p.out + at, aligned ? load_by<kVector>(from, policy) : cut_vector(from, low, high, policy), low,
             high);
  if (p.release) release_line_of_vector(from);
}

// The same, aligned on both sides, several vectors a thread: all are read before the first is written.
__global__ void __launch_bounds__(kShortCopyThreads) short_copy_kernel(const __grid_constant__ CopyParams p) {
  constexpr int64_t kStep = kShortCopyThreads * kVector;
  const int64_t at = blockIdx.x * (kStep * kShortCopyVectors) + threadIdx.x * kVector;
  const int64_t end = p.bytes / kVector * kVector;
  wait_for_inputs();
  uint4 v[kShortCopyVectors];
#pragma unroll
  for (int k = 0; k < kShortCopyVectors; ++k) {
    if (at + k * kStep < end) v[k] = *reinterpret_cast<const uint4*>(p.in + at + k * kStep);
  }
#pragma unroll
  for (int k = 0; k < kShortCopyVectors; ++k) {
    if (at + k * kStep < end) *reinterpret_cast<uint4*>(p.out + at + k * kStep) = v[k];
  }
  const int64_t rest = end + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1 && rest < p.bytes) p.out[rest] = p.in[rest];
}

// Bytes [0, count) of a, the others of b.
__device__ __forceinline__ uint4 merge_vectors(uint4 a, uint4 b, int count) {
  const auto merge = [&](uint32_t x, uint32_t y, int n) {
    const uint32_t mask = n >= 4 ? ~0u : n <= 0 ? 0 : (1u << (8 * n)) - 1;
    return (x & mask) | (y & ~mask);
  };
  return make_uint4(merge(a.x, b.x, count), merge(a.y, b.y, count - 4), merge(a.z, b.z, count - 8),
                    merge(a.w, b.w, count - 12));
}

// A chunk of runs that follow one another in the output: kRunsChunkBytes of it, whole lines. So no two blocks
// write to one sector inside a span of the output, however short its runs are.
template <int kThreads>
struct RunsChunk {
  uint8_t* out;  // where the chunk begins; bytes [low, high) of it are the span's
  int low, high;
  bool one;    // run only, of any length
  int before;  // bytes that the first run has before the chunk
  int run_bytes;
  const uint8_t** begins;  // of each run, in the input

  // Fills `begins`; every thread of the block must call it.
  __device__ __forceinline__ RunsChunk(const RunsParams& p, const uint8_t** table) : begins(table) {
    const QuotRem chunk = p.chunks.divmod(blockIdx.x);
    const uint8_t* in = p.in;
    out = p.out;
    p.outer.advance(chunk.quot, in, out);
    constexpr int kLine = 128;
    const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(out) & (kLine - 1));
    const int64_t begin =
        static_cast<int64_t>(chunk.rem) * kRunsChunkBytes - lead;  // of this chunk, in the span
    out += begin;
    one = p.runs == 1;
    const auto first_byte = static_cast<uint32_t>(one ? 0 : max(begin, int64_t{0}));
    const uint32_t first_run = p.run.divmod(first_byte).quot;
    const int64_t skip = begin - static_cast<int64_t>(first_run) * p.run_bytes;
    run_bytes = static_cast<int>(one ? min(p.run_bytes - skip, int64_t{1} << 30) : p.run_bytes);
    before = one ? 0 : static_cast<int>(skip);
    const int64_t touched = one ? 1 : (kRunsChunkBytes + max(before, 0)) / run_bytes + 1;
    const auto count = static_cast<int>(min(p.runs - first_run, touched));
    for (int i = threadIdx.x; i < count; i += kThreads) {
      begins[i] = in + (one ? skip : p.fused.offset(first_run + i));
    }
    __syncthreads();
    low = begin < 0 ? static_cast<int>(-begin) : 0;
    high = static_cast<int>(min(p.span_bytes - begin, int64_t{kRunsChunkBytes}));
  }
  // Which run byte `at` of the chunk is of, and where in it.
  __device__ __forceinline__ QuotRem find(const RunsParams& p, int at) const {
    const auto place = static_cast<uint32_t>(at + before);
    return one ? QuotRem{0, place} : p.run.divmod(place);
  }
};

// Runs of any length at any address, a vector of the output a thread at a time, gathered from the one or more
// runs that it spans. Bound by instructions (H200: 73 % of issue slots at 1 byte, runs of 33).
//
// kLong: vectors within a run come as words that are shifted; those in which two runs meet, or the span
// begins or ends, are put together by warps of their own: among the others, they would keep every warp
// waiting, and after them the block (runs of 409, 1 byte .72 and .80 for .86; of 3001 .85 and .89 for .94).
template <bool kLong>
__global__ void __launch_bounds__(runs_threads(kLong)) runs_kernel(const __grid_constant__ RunsParams p) {
  extern __shared__ __align__(16) uint8_t memory[];
  constexpr int kEach = kRunsChunkBytes / kVector / kSimpleThreads;
  const RunsChunk<runs_threads(kLong)> chunk(p, reinterpret_cast<const uint8_t**>(memory));
  const uint64_t policy = load_policy(p.keep);
  wait_for_inputs();
  if constexpr (!kLong) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = (threadIdx.x + i * kSimpleThreads) * kVector;
      const int begin = max(chunk.low - at, 0), end = min(kVector, chunk.high - at);
      int done = begin;  // bytes of the vector
      uint4 v = {};
      while (done < end) {
        const QuotRem run = chunk.find(p, at + done);
        const auto in_run = static_cast<int>(run.rem);
        const int stop = min(done + chunk.run_bytes - in_run, end);
        const uint4 piece = cut_vector(chunk.begins[run.quot] + (in_run - done), done, stop, policy);
        v = done == begin ? piece : merge_vectors(v, piece, done);
        done = stop;
      }
      if (begin < end) store_part(chunk.out + at, v, begin, end);
    }
  } else if (threadIdx.x < kSimpleThreads) {
    uint32_t word[kEach][5], shift[kEach];
    bool whole[kEach];  // within one run
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = (threadIdx.x + i * kSimpleThreads) * kVector;
      whole[i] = at >= chunk.low && at + kVector <= chunk.high;
      if (!whole[i]) continue;
      const QuotRem run = chunk.find(p, at);
      whole[i] = static_cast<int>(run.rem) + kVector <= chunk.run_bytes;
      if (!whole[i]) continue;
      const uint8_t* const from = chunk.begins[run.quot] + run.rem;
      const auto skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from) & 3);
#pragma unroll
      for (int j = 0; j < 4; ++j) word[i][j] = load_by<4>(from - skew + 4 * j, policy);
      word[i][4] = skew > 0 ? load_by<4>(from - skew + 16, policy) : 0;
      shift[i] = skew * 8;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!whole[i]) continue;
      const auto shifted = [&](int j) { return __funnelshift_r(word[i][j], word[i][j + 1], shift[i]); };
      *reinterpret_cast<uint4*>(chunk.out + (threadIdx.x + i * kSimpleThreads) * kVector) =
          make_uint4(shifted(0), shifted(1), shifted(2), shifted(3));
    }
  } else {
    // The chunk's part of the span begins and ends, and runs do between them. Where two of these are in one
    // vector, the first stands for it.
    const int runs = chunk.one ? 0 : (chunk.high + chunk.before - 1) / chunk.run_bytes;
    const auto boundary = [&](int k) {
      return k <= 0 ? chunk.low : k > runs ? chunk.high : k * chunk.run_bytes - chunk.before;
    };
    for (int k = threadIdx.x - kSimpleThreads; k < runs + 2; k += kRunsMeetThreads) {
      const int at = boundary(k) & ~(kVector - 1);
      if (boundary(k) == at || (k > 0 && boundary(k - 1) > at)) continue;
      const int begin = max(chunk.low - at, 0), end = min(kVector, chunk.high - at);
      if (begin >= end) continue;
      const QuotRem run = chunk.find(p, at + begin);
      const auto in_run = static_cast<int>(run.rem);
      const int stop = min(begin + chunk.run_bytes - in_run, end);
      uint4 v = cut_vector(chunk.begins[run.quot] + (in_run - begin), begin, stop, policy);
      if (stop < end) {
        v = merge_vectors(v, cut_vector(chunk.begins[run.quot + 1] - stop, stop, end, policy), stop);
      }
      store_part(chunk.out + at, v, begin, end);
    }
  }
}

// Any strides, in the output's order: kEach words a thread, of one element or, where the output is one run,
// of several, of which two runs of the input have parts at most. All are read before the first is written.
// kRank: dims, known when compiled, so that what a thread divides by are operands of its instructions; 0:
// any. kKeep: loads by keep_policy().
template <int E, int kWord, int kEach, bool kKeep, int kRank>
__global__ void __launch_bounds__(kSimpleThreads)
    strided_kernel(const __grid_constant__ StridedParams<kRank> p) {
  using Offset = typename StridedParams<kRank>::Offset;
  constexpr uint32_t kElements = kWord / E;
  struct Place {
    uint32_t inner;  // index along the fastest dim
    Offset in, out;  // elements
  };
  // Of the elements numbered first, first + step, ...
  const auto find = [&](auto& places, uint32_t first, uint32_t step) {
    constexpr int kCount = sizeof(places) / sizeof(Place);
    const int rank = kRank == 0 ? p.rank : kRank;
    uint32_t rest[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) rest[k] = first + k * step, places[k] = {};
#pragma unroll
    for (int d = 0; d < rank; ++d) {
      const auto& dim = p.dims[d];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const QuotRem at = d + 1 < rank ? dim.extent.divmod(rest[k]) : QuotRem{0, rest[k]};
        rest[k] = at.quot;
        if (d == 0) places[k].inner = at.rem;
        places[k].in += static_cast<Offset>(at.rem) * dim.in_stride;
        places[k].out += static_cast<Offset>(at.rem) * dim.out_stride;
      }
    }
  };
  const uint32_t first = (blockIdx.x * kEach * kSimpleThreads + threadIdx.x) * kElements;
  constexpr uint32_t kStep = kSimpleThreads * kElements;
  const auto* const in = reinterpret_cast<const Word<E>*>(p.in);
  auto* const out = reinterpret_cast<Word<E>*>(p.out);
  const int64_t in_step = p.dims[0].in_stride;
  const uint32_t extent = p.dims[0].extent.divisor;
  union Elements {
    Word<E> element[kElements];
    Word<kWord> word;
  };
  Elements v[kEach];
  Place place[kEach];
  find(place, first, kStep);
  const auto load = [policy = kKeep ? keep_policy() : 0](const Word<E>* from) {
    if constexpr (kKeep) return load_hinted<E, false>(reinterpret_cast<const uint8_t*>(from), policy);
    return *from;
  };
  wait_for_inputs();
#pragma unroll
  for (uint32_t k = 0; k < kEach; ++k) {
    const uint32_t i = first + k * kStep;
    if (i >= p.count) continue;
    const Word<E>* const from = in + place[k].in;
    if (kElements == 1 || place[k].inner + kElements <= extent) {
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) v[k].element[j] = load(from + j * in_step);
    } else {
      Place next[1];
      const uint32_t here = extent - place[k].inner;  // elements of the first run
      find(next, i + here, 0);
#pragma unroll
      for (uint32_t j = 0; j < kElements; ++j) {
        const Word<E>* const one = j < here ? from + j * in_step : in + next[0].in + (j - here) * in_step;
        if (i + j < p.count) v[k].element[j] = load(one);
      }
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < kEach; ++k) {
    const uint32_t i = first + k * kStep;
    if (i >= p.count) continue;
    Word<E>* const to = out + place[k].out;
    if (i + kElements <= p.count) {
      *reinterpret_cast<Word<kWord>*>(to) = v[k].word;
      continue;
    }
#pragma unroll
    for (uint32_t j = 0; j < kElements; ++j) {
      if (i + j < p.count) to[j] = v[k].element[j];
    }
  }
}

// The same of 2^31 elements or more, by 64-bit division, looping where a grid cannot hold them; the speed of
// that case is not a concern, its being right is.
template <int E>
__global__ void __launch_bounds__(kSimpleThreads)
    strided_wide_kernel(const __grid_constant__ StridedWideParams p) {
  wait_for_inputs();
  const int64_t step = int64_t{gridDim.x} * kSimpleThreads;
  for (int64_t i = int64_t{blockIdx.x} * kSimpleThreads + threadIdx.x; i < p.count; i += step) {
    const uint8_t* in = p.in;
    uint8_t* out = p.out;
    int64_t rest = i;
    for (int d = 0; d < p.rank; ++d) {
      const Dim& dim = p.dims[d];
      in += rest % dim.extent * dim.in_stride;
      out += rest % dim.extent * dim.out_stride;
      rest /= dim.extent;
    }
    *reinterpret_cast<Word<E>*>(out) = *reinterpret_cast<const Word<E>*>(in);
  }
}

}  // namespace tx::cuda
