// Micro-kernels for any target, in the compiler's own vectors of 16 bytes. Streams where the baseline can
// (x86-64).
#include "cpu/micro_impl.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tx::cpu {
namespace {

struct Portable : Lane {
#ifdef __SSE2__
  static void stream(char* out, const char* in, int64_t lines) {
    for (int64_t b = 0; b < lines * kLine; b += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(out + b),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + b)));
    }
  }
  static void fence() { _mm_sfence(); }
#else
  static void stream(char* out, const char* in, int64_t lines) {
    std::memcpy(out, in, static_cast<size_t>(lines * kLine));
  }
  static void fence() {}
#endif
};

constexpr MicroKernels kTable = micro_kernels<Portable>("portable");

}  // namespace

const MicroKernels* const kPortable = &kTable;

}  // namespace tx::cpu
