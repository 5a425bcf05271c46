// How kernels touch memory: words by width, hinted 16-byte loads and stores, and the in-register transpose.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

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

inline constexpr int kVector = 16;  // bytes of the widest load and store

// Keeps input lines in L2 longer than output lines: neighbouring tiles read what is left of a line, nobody reads
// outputs. Only for the L2-prefetching loads below; architectures before sm_80 have neither.
__device__ __forceinline__ uint64_t keep_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// 16-byte load that fetches 256 bytes into L2 and keeps them there.
__device__ __forceinline__ uint4 load_keep(const uint8_t* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}

__device__ __forceinline__ uint4 load_256(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}

// Stores that leave L1 alone.
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

// Transposes a block of V rows x V elements held one row a vector, V = 16 / kElement: afterwards v[j] holds
// element j of every row. 4- and 8-byte elements only rename registers; 1- and 2-byte ones take byte permutes
// (8 and 4 a vector).
template <int kElement>
__device__ __forceinline__ void transpose_in_registers(uint4 (&v)[kVector / kElement]) {
  constexpr int V = kVector / kElement;
  uint32_t w[V][4];
#pragma unroll
  for (int r = 0; r < V; ++r) {
    w[r][0] = v[r].x, w[r][1] = v[r].y, w[r][2] = v[r].z, w[r][3] = v[r].w;
  }
  if constexpr (kElement == 8) {
    v[0] = make_uint4(w[0][0], w[0][1], w[1][0], w[1][1]);
    v[1] = make_uint4(w[0][2], w[0][3], w[1][2], w[1][3]);
  } else if constexpr (kElement == 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = make_uint4(w[0][j], w[1][j], w[2][j], w[3][j]);
  } else if constexpr (kElement == 2) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t even[4], odd[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        even[m] = __byte_perm(w[2 * m][k], w[2 * m + 1][k], 0x5410);
        odd[m] = __byte_perm(w[2 * m][k], w[2 * m + 1][k], 0x7632);
      }
      v[2 * k] = make_uint4(even[0], even[1], even[2], even[3]);
      v[2 * k + 1] = make_uint4(odd[0], odd[1], odd[2], odd[3]);
    }
  } else if constexpr (kElement == 1) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t out[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const uint32_t a = w[4 * m][k], b = w[4 * m + 1][k], c = w[4 * m + 2][k], d = w[4 * m + 3][k];
        const uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
        const uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
        out[0][m] = __byte_perm(ab_low, cd_low, 0x5410);
        out[1][m] = __byte_perm(ab_low, cd_low, 0x7632);
        out[2][m] = __byte_perm(ab_high, cd_high, 0x5410);
        out[3][m] = __byte_perm(ab_high, cd_high, 0x7632);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) v[4 * k + j] = make_uint4(out[j][0], out[j][1], out[j][2], out[j][3]);
    }
  }
}

}  // namespace tx::cuda
