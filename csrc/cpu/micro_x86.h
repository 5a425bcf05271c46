// What the vector types of x86 share: loads and stores of their lanes of 16 bytes.
#pragma once

#include <immintrin.h>

#include "cpu/micro_impl.h"

namespace tx::cpu {
namespace {

struct X86Lane {
  static constexpr int kVectors = 1;
  TX_INLINE __m128i load_lane(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  TX_INLINE __m128i load_lane(Ends<const char> from) {
    const __m128 first = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from.first)));
    return _mm_castps_si128(_mm_loadh_pi(first, reinterpret_cast<const __m64*>(from.last)));
  }
  TX_INLINE __m128i load_lane(Four from) { return (__m128i)from.load(); }
  TX_INLINE void store_lane(char* p, __m128i v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
  TX_INLINE void store_lane(Ends<char> to, __m128i v) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to.first), v);
    _mm_storeh_pi(reinterpret_cast<__m64*>(to.last), _mm_castsi128_ps(v));
  }
};

}  // namespace
}  // namespace tx::cpu
