// Micro-kernels in vectors of 32 bytes (AVX2).
#include "cpu/micro_impl.h"

#ifdef __AVX2__
#include <immintrin.h>

namespace tx::cpu {
namespace {

struct Avx2 {
  using Vec = __m256i;
  static constexpr int kLanes = 2;
  static constexpr bool kShuffles = true;
  template <int e>
  static constexpr bool kPermutes = false;

  TX_INLINE __m128i load_lane(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  TX_INLINE Vec load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const Vec*>(p)); }
  TX_INLINE void store(char* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<Vec*>(p), v); }
  TX_INLINE Vec load_lanes(const char* p, int64_t stride) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_lane(p)), load_lane(p + stride), 1);
  }
  TX_INLINE void store_lanes(char* p, int64_t stride, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + stride), _mm256_extracti128_si256(v, 1));
  }
  TX_INLINE void transpose_lanes(Vec* v) {
    const Vec lo = _mm256_permute2x128_si256(v[0], v[1], 0x20);
    v[1] = _mm256_permute2x128_si256(v[0], v[1], 0x31);
    v[0] = lo;
  }
  template <int e>
  TX_INLINE Vec zip_lo(Vec a, Vec b) {
    if constexpr (e == 1) return _mm256_unpacklo_epi8(a, b);
    if constexpr (e == 2) return _mm256_unpacklo_epi16(a, b);
    if constexpr (e == 4) return _mm256_unpacklo_epi32(a, b);
    if constexpr (e == 8) return _mm256_unpacklo_epi64(a, b);
  }
  template <int e>
  TX_INLINE Vec zip_hi(Vec a, Vec b) {
    if constexpr (e == 1) return _mm256_unpackhi_epi8(a, b);
    if constexpr (e == 2) return _mm256_unpackhi_epi16(a, b);
    if constexpr (e == 4) return _mm256_unpackhi_epi32(a, b);
    if constexpr (e == 8) return _mm256_unpackhi_epi64(a, b);
  }
  TX_INLINE Vec shuffle(Vec v, const uint8_t* index) {
    return _mm256_shuffle_epi8(v,
                               _mm256_broadcastsi128_si256(load_lane(reinterpret_cast<const char*>(index))));
  }
  TX_INLINE Vec either(Vec a, Vec b) { return _mm256_or_si256(a, b); }

  static void stream(char* out, const char* in, int64_t lines) {
    for (int64_t b = 0; b < lines * kLine; b += 32)
      _mm256_stream_si256(reinterpret_cast<Vec*>(out + b), load(in + b));
  }
  static void fence() { _mm_sfence(); }
};

constexpr MicroKernels kTable = micro_kernels<Avx2>("avx2");

}  // namespace

const MicroKernels* const kAvx2 = &kTable;

}  // namespace tx::cpu
#else
const tx::cpu::MicroKernels* const tx::cpu::kAvx2 = nullptr;
#endif
