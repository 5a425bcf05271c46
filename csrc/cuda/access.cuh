// How kernels touch memory: words by width, hinted 16-byte loads and stores, and the in-register transpose.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/tuning_cuda.h"

namespace tx::cuda {

template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using type = uint8_t;
};
template <>
struct WordOf<2> {
  using type = uint16_t;
};
template <>
struct WordOf<4> {
  using type = uint32_t;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};
// An element or vector of kBytes as one machine word.
template <int kBytes>
using Word = typename WordOf<kBytes>::type;

// Blocks that registers are limited for: as many of `wanted` as an SM's threads allow.
__host__ __device__ constexpr int resident_blocks(int threads, int wanted) {
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 1200 || (__CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900))
  constexpr int kThreadsOfSm = 1536;
#else
  constexpr int kThreadsOfSm = 2048;
#endif
  return wanted * threads <= kThreadsOfSm ? wanted : kThreadsOfSm / threads;
}

// Keeps input lines in L2 longer than output lines. Architectures before sm_80 have no such policies.
__device__ __forceinline__ uint64_t keep_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Makes the line that holds `p` one like others again, when what was read of it is stored: L2 is then free
// for who comes next.
__device__ __forceinline__ void release_line(const uint8_t* p) {
  const uintptr_t line = reinterpret_cast<uintptr_t>(p) & ~static_cast<uintptr_t>(kLine - 1);
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(line) : "memory");
  static_assert(kLine == 128);
}

// The same by the thread that has read the first vector of the line.
__device__ __forceinline__ void release_line_of_vector(const uint8_t* p) {
  if ((reinterpret_cast<uintptr_t>(p) & (kLine - 1)) < kVector) release_line(p);
}

// Lines of a tile, which has `bytes` of each of `rows` input rows from row_at(row) on.
template <class RowAt>
__device__ __forceinline__ void release_rows(int rows, int bytes, int lines, int threads, RowAt row_at) {
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * lines; i += threads) {
    const int row = i / lines, at = (i - row * lines) * static_cast<int>(kLine);
    if (at < bytes) release_line(row_at(row) + at);
  }
}

// keep_policy() for a plan that wants it, else no other than loads have by themselves. As a policy that is a
// hint like the other, and no branch parts the loads (narrow, 12 x 5M of 4 bytes, .85 with one); but
// asynchronous copies take it for an illegal instruction, so that it is not trusted where it was not run.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define TX_HINTS_USUAL_POLICY
#endif
__device__ __forceinline__ uint64_t load_policy(bool keep) {
  uint64_t usual = 0;
#ifdef TX_HINTS_USUAL_POLICY
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(usual));
#endif
  return keep ? keep_policy() : usual;
}

// Load of kBytes (4, 8 or 16) with a policy. Far: it fetches 256 bytes into L2.
template <int kBytes, bool kFar>
__device__ __forceinline__ Word<kBytes> load_hinted(const uint8_t* p, uint64_t policy) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  Word<kBytes> v;
#define TX_LOAD(hints)                                                                    \
  if constexpr (kBytes == 16) {                                                           \
    asm volatile("ld.global" hints ".v4.u32 {%0,%1,%2,%3}, [%4], %5;"                     \
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                             \
                 : "l"(p), "l"(policy));                                                  \
  } else if constexpr (kBytes == 8) {                                                     \
    asm volatile("ld.global" hints ".v2.u32 {%0,%1}, [%2], %3;"                           \
                 : "=r"(v.x), "=r"(v.y)                                                   \
                 : "l"(p), "l"(policy));                                                  \
  } else {                                                                                \
    asm volatile("ld.global" hints ".u32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy)); \
  }
  if constexpr (kFar) {
    TX_LOAD(".L2::cache_hint.L2::256B")
  } else {
    TX_LOAD(".L2::cache_hint")
  }
#undef TX_LOAD
  return v;
}

// As load_policy() says.
template <int kBytes>
__device__ __forceinline__ Word<kBytes> load_by(const uint8_t* p, uint64_t policy) {
#ifndef TX_HINTS_USUAL_POLICY
  if (policy == 0) return *reinterpret_cast<const Word<kBytes>*>(p);
#endif
  return load_hinted<kBytes, false>(p, policy);
}

// For tiles whose neighbours read what is left of a line, and read some rows again.
template <int kBytes>
__device__ __forceinline__ Word<kBytes> load_far(const uint8_t* p, uint64_t policy) {
  return load_hinted<kBytes, true>(p, policy);
}

// Every kernel calls this before it touches the tensors: launch() lets it start while what was queued before
// it still runs. Waits until that is done and its writes are seen.
__device__ __forceinline__ void wait_for_inputs() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Stores that leave L1 alone: of words, and where lines are begun and ended by different warps (one H200,
// against ordinary ones: unaligned tiles of 8 and 16 bytes .01 faster).
__device__ __forceinline__ void store_past_l1(uint8_t* p, uint4 v) {
  asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_past_l1(uint8_t* p, uint2 v) {
  asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_past_l1(uint8_t* p, uint32_t v) {
  asm volatile("st.global.L1::no_allocate.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Ordinary stores to what the compiler cannot see is global memory: of vectors, where lanes fill whole lines
// (one H200, against those past L1: narrow matrices, tiles and batches 0 to .01 faster).
__device__ __forceinline__ void store_global(uint8_t* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_global(uint8_t* p, uint2 v) {
  asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.x), "r"(v.y) : "memory");
}
__device__ __forceinline__ void store_global(uint8_t* p, uint32_t v) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Shared memory by 32-bit address: the compiler would add up base and offset of a pointer in every access.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The word of kBytes at `from`. In order with other loads of this kind: what can be in flight together is
// read together.
template <int kBytes>
__device__ __forceinline__ Word<kBytes> load_shared(uint32_t from) {
  if constexpr (kBytes == 16) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from));
    return v;
  } else if constexpr (kBytes == 8) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from));
    return v;
  } else {
    uint32_t v;
    if constexpr (kBytes == 4) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
    if constexpr (kBytes == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=r"(v) : "r"(from));
    if constexpr (kBytes == 1) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(from));
    return static_cast<Word<kBytes>>(v);
  }
}

// A vector of words that need not lie at a multiple of 16.
template <int kWord>
__device__ __forceinline__ uint4 load_shared_vector(uint32_t from) {
  if constexpr (kWord == 16) {
    return load_shared<16>(from);
  } else if constexpr (kWord == 8) {
    const uint2 low = load_shared<8>(from), high = load_shared<8>(from + 8);
    return make_uint4(low.x, low.y, high.x, high.y);
  } else {
    return make_uint4(load_shared<4>(from), load_shared<4>(from + 4), load_shared<4>(from + 8),
                      load_shared<4>(from + 12));
  }
}

template <int kBytes>
__device__ __forceinline__ void store_shared(uint32_t to, Word<kBytes> v) {
  *static_cast<Word<kBytes>*>(__cvta_shared_to_generic(to)) = v;
}

// Bytes [begin, end) of shared memory, as vectors of kBytes that a block's threads take in turns.
template <int kBytes>
__device__ __forceinline__ void store_from_shared(uint8_t* out, uint32_t shared, uint32_t begin, uint32_t end,
                                                  uint32_t threads) {
#pragma unroll 4
  for (uint32_t i = begin + threadIdx.x * kBytes; i < end; i += threads * kBytes) {
    store_global(out + i, load_shared<kBytes>(shared + i));
  }
}

// The shared address from `from` on where asynchronous copies of what begins at `global` go: congruent modulo
// a line. A sector whose halves go to two sectors of shared memory is read from L2 twice (H200: 2 x the
// sectors).
__device__ __forceinline__ uint32_t align_like(const uint8_t* global, uint32_t from) {
  return from + ((static_cast<uint32_t>(reinterpret_cast<uintptr_t>(global)) - from) & (kAsyncAlignment - 1));
}

// The 16 or 4 bytes at `from`, to shared memory, past the registers. By branches: see load_policy().
template <int kBytes>
__device__ __forceinline__ void copy_async(uint32_t to, const uint8_t* from, bool keep = false) {
  if constexpr (kBytes == 4) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  } else if (keep) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(keep_policy())
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Computes `v` here, once: the compiler would rather compute it again in every branch that uses it.
__device__ __forceinline__ void pin(uint32_t& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void pin(uint8_t*& p) { asm volatile("" : "+l"(p)); }
__device__ __forceinline__ void pin(const uint8_t*& p) { asm volatile("" : "+l"(p)); }

// Transposes a square block of 2- or 1-byte elements, one row a word.
__device__ __forceinline__ void transpose_words(uint32_t (&w)[2]) {
  const uint32_t a = w[0], b = w[1];
  w[0] = __byte_perm(a, b, 0x5410);
  w[1] = __byte_perm(a, b, 0x7632);
}
__device__ __forceinline__ void transpose_words(uint32_t (&w)[4]) {
  const uint32_t ab_low = __byte_perm(w[0], w[1], 0x5140), ab_high = __byte_perm(w[0], w[1], 0x7362);
  const uint32_t cd_low = __byte_perm(w[2], w[3], 0x5140), cd_high = __byte_perm(w[2], w[3], 0x7362);
  w[0] = __byte_perm(ab_low, cd_low, 0x5410);
  w[1] = __byte_perm(ab_low, cd_low, 0x7632);
  w[2] = __byte_perm(ab_high, cd_high, 0x5410);
  w[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

// A word of narrower elements, one a register.
__device__ __forceinline__ uint32_t pack_word(const uint32_t (&v)[2]) {
  return __byte_perm(v[0], v[1], 0x5410);
}
__device__ __forceinline__ uint32_t pack_word(const uint32_t (&v)[4]) {
  return __byte_perm(__byte_perm(v[0], v[1], 0x0040), __byte_perm(v[2], v[3], 0x0040), 0x5410);
}

// The word whose bytes are those of `w` at `at`, all of them known when this is compiled: a permute less than
// words it takes from.
template <int N>
__device__ __forceinline__ uint32_t gather_word(const uint32_t (&w)[N], const int (&at)[4]) {
  // Where a byte of the result comes from: in the lower word the ones that are there already.
  const auto selector = [&](int upper, auto lower) {
    uint32_t bits = 0;
#pragma unroll
    for (int b = 0; b < 4; ++b) {
      bits |= static_cast<uint32_t>(at[b] / 4 == upper ? 4 + at[b] % 4 : lower(b)) << (4 * b);
    }
    return bits;
  };
  uint32_t v = w[at[0] / 4];
  bool merged = false;
#pragma unroll
  for (int i = 1; i < 4; ++i) {
    bool seen = false;
#pragma unroll
    for (int j = 0; j < i; ++j) seen |= at[j] / 4 == at[i] / 4;
    if (seen) continue;
    v = __byte_perm(v, w[at[i] / 4], selector(at[i] / 4, [&](int b) { return merged ? b : at[b] % 4; }));
    merged = true;
  }
  if (merged) return v;
  const uint32_t order = selector(-1, [&](int b) { return at[b] % 4; });
  return order == 0x3210 ? v : __byte_perm(v, 0, order);
}

// Transposes a block of rows x V elements held one row a vector, V = 16 / kElement: afterwards column[j]
// holds element j of every row. V rows, but 8 of 1-byte elements: 16 rows would take twice the registers. 4-
// and 8-byte elements only rename registers; 1- and 2-byte ones take 8 and 4 byte permutes a vector.
template <int kElement>
inline constexpr int kBlockRows = kElement == 1 ? 8 : kVector / kElement;

template <int kElement>
using ColumnOf = Word<kBlockRows<kElement> * kElement>;

template <int kElement>
__device__ __forceinline__ void transpose_in_registers(const uint4 (&row)[kBlockRows<kElement>],
                                                       ColumnOf<kElement> (&column)[kVector / kElement]) {
  constexpr int kRows = kBlockRows<kElement>;
  uint32_t w[kRows][4];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    w[r][0] = row[r].x, w[r][1] = row[r].y, w[r][2] = row[r].z, w[r][3] = row[r].w;
  }
  if constexpr (kElement == 16) {
    column[0] = row[0];
  } else if constexpr (kElement == 8) {
    column[0] = make_uint4(w[0][0], w[0][1], w[1][0], w[1][1]);
    column[1] = make_uint4(w[0][2], w[0][3], w[1][2], w[1][3]);
  } else if constexpr (kElement == 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) column[j] = make_uint4(w[0][j], w[1][j], w[2][j], w[3][j]);
  } else if constexpr (kElement == 2) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t even[4], odd[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t block[2] = {w[2 * m][k], w[2 * m + 1][k]};
        transpose_words(block);
        even[m] = block[0], odd[m] = block[1];
      }
      column[2 * k] = make_uint4(even[0], even[1], even[2], even[3]);
      column[2 * k + 1] = make_uint4(odd[0], odd[1], odd[2], odd[3]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t out[4][2];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        uint32_t block[4] = {w[4 * m][k], w[4 * m + 1][k], w[4 * m + 2][k], w[4 * m + 3][k]};
        transpose_words(block);
#pragma unroll
        for (int j = 0; j < 4; ++j) out[j][m] = block[j];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) column[4 * k + j] = make_uint2(out[j][0], out[j][1]);
    }
  }
}

}  // namespace tx::cuda
