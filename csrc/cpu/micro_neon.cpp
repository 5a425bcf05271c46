// Micro-kernels in vectors of 16 bytes with any-byte shuffles (ARM's NEON, part of the baseline there).
#include "cpu/micro_impl.h"

#ifdef __aarch64__
#include <arm_neon.h>

namespace tx::cpu {
namespace {

struct Neon : Lane {
  static constexpr bool kShuffles = true;
  TX_INLINE Vec shuffle(Vec v, const uint8_t* index) {
    return (Vec)vqtbl1q_u8((uint8x16_t)v, vld1q_u8(index));
  }
  TX_INLINE Vec either(Vec a, Vec b) { return a | b; }

  // Pairs of registers stored with the hint that they will not be read soon.
  static void stream(char* out, const char* in, int64_t lines) {
    for (int64_t b = 0; b < lines * kLine; b += 32) {
      const Vec lo = load(in + b), hi = load(in + b + 16);
      asm volatile("stnp %q0, %q1, [%2]" : : "w"(lo), "w"(hi), "r"(out + b) : "memory");
    }
  }
  static void fence() {}  // such stores need none: they are ordered as all others are
};

constexpr MicroKernels kTable = micro_kernels<Neon>("neon");

}  // namespace

const MicroKernels* const kNeon = &kTable;

}  // namespace tx::cpu
#else
const tx::cpu::MicroKernels* const tx::cpu::kNeon = nullptr;
#endif
