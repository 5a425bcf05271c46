// The vector type of AVX-512 F and BW: 64 bytes, whole cache lines. With VBMI, where it is compiled for that,
// permutes bytes too. Included by micro_avx512.cpp and micro_avx512vbmi.cpp.
#pragma once

#include "cpu/micro_impl.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
// False alarms in GCC's own header, whose vectors begin undefined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "cpu/micro_x86.h"

namespace tx::cpu {
namespace {

struct Avx512 : X86Lane {
  using Vec = __m512i;
  static constexpr int kLanes = 4;
  static constexpr bool kLoadsParts = true;
  static constexpr bool kShuffles = true;
#ifdef __AVX512VBMI__
  template <int e>
  static constexpr bool kPermutes = true;
#else
  template <int e>
  static constexpr bool kPermutes = e >= 2;
#endif

  TX_INLINE Vec load(const char* p) { return _mm512_loadu_si512(p); }
  TX_INLINE void store(char* p, Vec v) { _mm512_storeu_si512(p, v); }
  TX_INLINE __mmask64 first(int64_t bytes) { return bytes < 64 ? (uint64_t{1} << bytes) - 1 : ~uint64_t{0}; }
  TX_INLINE Vec load_masked(const char* p, uint64_t mask) { return _mm512_maskz_loadu_epi8(mask, p); }
  TX_INLINE void store_masked(char* p, uint64_t mask, Vec v) { _mm512_mask_storeu_epi8(p, mask, v); }
  TX_INLINE Vec load_part(const char* p, int64_t bytes) { return load_masked(p, first(bytes)); }
  TX_INLINE void store_part(char* p, int64_t bytes, Vec v) { store_masked(p, first(bytes), v); }
  TX_INLINE void stream_line(char* p, Vec v) { _mm512_stream_si512(reinterpret_cast<Vec*>(p), v); }
  template <class At>
  TX_INLINE Vec load_lanes(At at) {
    Vec v = _mm512_castsi128_si512(load_lane(at(0)));
    v = _mm512_inserti32x4(v, load_lane(at(1)), 1);
    v = _mm512_inserti32x4(v, load_lane(at(2)), 2);
    return _mm512_inserti32x4(v, load_lane(at(3)), 3);
  }
  template <class At>
  TX_INLINE void store_lanes(At at, Vec v) {
    store_lane(at(0), _mm512_castsi512_si128(v));
    store_lane(at(1), _mm512_extracti32x4_epi32(v, 1));
    store_lane(at(2), _mm512_extracti32x4_epi32(v, 2));
    store_lane(at(3), _mm512_extracti32x4_epi32(v, 3));
  }
  template <class At>
  TX_INLINE void stream_lanes(At at, Vec v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(at(0)), _mm512_castsi512_si128(v));
    _mm_stream_si128(reinterpret_cast<__m128i*>(at(1)), _mm512_extracti32x4_epi32(v, 1));
    _mm_stream_si128(reinterpret_cast<__m128i*>(at(2)), _mm512_extracti32x4_epi32(v, 2));
    _mm_stream_si128(reinterpret_cast<__m128i*>(at(3)), _mm512_extracti32x4_epi32(v, 3));
  }
  TX_INLINE void transpose_lanes(Vec* v) {
    const Vec lo01 = _mm512_shuffle_i64x2(v[0], v[1], 0x44), hi01 = _mm512_shuffle_i64x2(v[0], v[1], 0xee);
    const Vec lo23 = _mm512_shuffle_i64x2(v[2], v[3], 0x44), hi23 = _mm512_shuffle_i64x2(v[2], v[3], 0xee);
    v[0] = _mm512_shuffle_i64x2(lo01, lo23, 0x88);
    v[1] = _mm512_shuffle_i64x2(lo01, lo23, 0xdd);
    v[2] = _mm512_shuffle_i64x2(hi01, hi23, 0x88);
    v[3] = _mm512_shuffle_i64x2(hi01, hi23, 0xdd);
  }
  template <int e>
  TX_INLINE Vec zip_lo(Vec a, Vec b) {
    if constexpr (e == 1) return _mm512_unpacklo_epi8(a, b);
    if constexpr (e == 2) return _mm512_unpacklo_epi16(a, b);
    if constexpr (e == 4) return _mm512_unpacklo_epi32(a, b);
    if constexpr (e == 8) return _mm512_unpacklo_epi64(a, b);
  }
  template <int e>
  TX_INLINE Vec zip_hi(Vec a, Vec b) {
    if constexpr (e == 1) return _mm512_unpackhi_epi8(a, b);
    if constexpr (e == 2) return _mm512_unpackhi_epi16(a, b);
    if constexpr (e == 4) return _mm512_unpackhi_epi32(a, b);
    if constexpr (e == 8) return _mm512_unpackhi_epi64(a, b);
  }
  TX_INLINE Vec shuffle(Vec v, const uint8_t* index) {
    return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(load_lane(reinterpret_cast<const char*>(index))));
  }
  template <int e>
  TX_INLINE Vec permute(Vec a, Vec b, Vec index) {
#ifdef __AVX512VBMI__
    if constexpr (e == 1) return _mm512_permutex2var_epi8(a, index, b);
#endif
    if constexpr (e == 2) return _mm512_permutex2var_epi16(a, index, b);
    if constexpr (e == 4) return _mm512_permutex2var_epi32(a, index, b);
    if constexpr (e >= 8) return _mm512_permutex2var_epi64(a, index, b);
  }
  // v, but the bits of `by` where `where` has ones.
  TX_INLINE Vec replace(Vec v, Vec by, Vec where) { return _mm512_ternarylogic_epi64(v, by, where, 0xd8); }
  // Each of e bytes.
  template <int e>
  TX_INLINE Vec plus(Vec v, int64_t k) {
    if constexpr (e == 1) return _mm512_add_epi8(v, _mm512_set1_epi8(static_cast<char>(k)));
    if constexpr (e == 2) return _mm512_add_epi16(v, _mm512_set1_epi16(static_cast<short>(k)));
    if constexpr (e == 4) return _mm512_add_epi32(v, _mm512_set1_epi32(static_cast<int>(k)));
    if constexpr (e == 8) return _mm512_add_epi64(v, _mm512_set1_epi64(k));
  }
#ifdef __AVX512VBMI__
  TX_INLINE Vec permute_bytes(Vec v, Vec index) { return _mm512_permutexvar_epi8(index, v); }
#endif
  TX_INLINE Vec either(Vec a, Vec b) { return _mm512_or_si512(a, b); }

  static void stream(char* out, const char* in, int64_t lines) {
    for (int64_t b = 0; b < lines * kLine; b += kLine)
      _mm512_stream_si512(reinterpret_cast<Vec*>(out + b), load(in + b));
  }
  static void fence() { _mm_sfence(); }
};

}  // namespace
}  // namespace tx::cpu
#endif
