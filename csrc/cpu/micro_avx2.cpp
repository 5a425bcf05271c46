// Micro-kernels in vectors of 32 bytes (AVX2).
#include "cpu/micro_impl.h"

#ifdef __AVX2__
#include <immintrin.h>

#include "cpu/micro_x86.h"

namespace tx::cpu {
namespace {

struct Avx2 : X86Lane {
  using Vec = __m256i;
  static constexpr int kLanes = 2;
  static constexpr bool kLoadsParts = false;
  static constexpr bool kShuffles = true;
  template <int e>
  static constexpr bool kPermutes = false;

  TX_INLINE Vec load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const Vec*>(p)); }
  TX_INLINE void store(char* p, Vec v) { _mm256_storeu_si256(reinterpret_cast<Vec*>(p), v); }
  template <class At>
  TX_INLINE Vec load_lanes(At at) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_lane(at(0))), load_lane(at(1)), 1);
  }
  template <class At>
  TX_INLINE void store_lanes(At at, Vec v) {
    store_lane(at(0), _mm256_castsi256_si128(v));
    store_lane(at(1), _mm256_extracti128_si256(v, 1));
  }
  TX_INLINE void stream_half_line(char* p, Vec v) { _mm256_stream_si256(reinterpret_cast<Vec*>(p), v); }
  template <class At>
  TX_INLINE void stream_lanes(At at, Vec v) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(at(0)), _mm256_castsi256_si128(v));
    _mm_stream_si128(reinterpret_cast<__m128i*>(at(1)), _mm256_extracti128_si256(v, 1));
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
    for (int64_t b = 0; b < lines * kLine; b += 32) stream_half_line(out + b, load(in + b));
  }
  static void fence() { _mm_sfence(); }
};

// Two of them side by side, a whole cache line: for streaming stores, which meet in the core's
// write-combining buffers and leave together.
struct Avx2Line {
  struct Vec {
    Avx2::Vec half[2];
  };
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 2;
  static constexpr bool kLoadsParts = false;
  static constexpr bool kShuffles = true;
  template <int e>
  static constexpr bool kPermutes = false;

  TX_INLINE Vec load(const char* p) { return {{Avx2::load(p), Avx2::load(p + 32)}}; }
  TX_INLINE void store(char* p, Vec v) {
    Avx2::store(p, v.half[0]);
    Avx2::store(p + 32, v.half[1]);
  }
  TX_INLINE void stream_line(char* p, Vec v) {
    Avx2::stream_half_line(p, v.half[0]);
    Avx2::stream_half_line(p + 32, v.half[1]);
  }
  template <class At>
  TX_INLINE Vec load_lanes(At at) {
    return {{Avx2::load_lanes(at), Avx2::load_lanes([&](int l) { return at(l + 2); })}};
  }
  template <class At>
  TX_INLINE void stream_lanes(At at, Vec v) {
    Avx2::stream_lanes(at, v.half[0]);
    Avx2::stream_lanes([&](int l) { return at(l + 2); }, v.half[1]);
  }
  TX_INLINE void transpose_lanes(Vec* v) {
    Vec t[4];
    TX_UNROLL for (int h = 0; h < 2; ++h) {
      TX_UNROLL for (int c = 0; c < 2; ++c) {
        Avx2::Vec pair[2] = {v[2 * h].half[c], v[2 * h + 1].half[c]};
        Avx2::transpose_lanes(pair);
        t[2 * c].half[h] = pair[0];
        t[2 * c + 1].half[h] = pair[1];
      }
    }
    TX_UNROLL for (int c = 0; c < 4; ++c) v[c] = t[c];
  }
  template <int e>
  TX_INLINE Vec zip_lo(Vec a, Vec b) {
    return {{Avx2::zip_lo<e>(a.half[0], b.half[0]), Avx2::zip_lo<e>(a.half[1], b.half[1])}};
  }
  template <int e>
  TX_INLINE Vec zip_hi(Vec a, Vec b) {
    return {{Avx2::zip_hi<e>(a.half[0], b.half[0]), Avx2::zip_hi<e>(a.half[1], b.half[1])}};
  }
  TX_INLINE Vec shuffle(Vec v, const uint8_t* index) {
    return {{Avx2::shuffle(v.half[0], index), Avx2::shuffle(v.half[1], index)}};
  }
  TX_INLINE Vec either(Vec a, Vec b) {
    return {{Avx2::either(a.half[0], b.half[0]), Avx2::either(a.half[1], b.half[1])}};
  }
};

constexpr MicroKernels kTable = micro_kernels<Avx2, Avx2Line>("avx2");

}  // namespace

const MicroKernels* const kAvx2 = &kTable;

}  // namespace tx::cpu
#else
const tx::cpu::MicroKernels* const tx::cpu::kAvx2 = nullptr;
#endif
