// Micro-kernels in vectors of 64 bytes (AVX-512 F and BW).
#include "cpu/micro.h"

#if defined(__AVX512F__) && defined(__AVX512BW__)
#include "cpu/micro_avx512.h"

namespace tx::cpu {
namespace {

constexpr MicroKernels kTable = micro_kernels<Avx512>("avx512");

}  // namespace

const MicroKernels* const kAvx512 = &kTable;

}  // namespace tx::cpu
#else
const tx::cpu::MicroKernels* const tx::cpu::kAvx512 = nullptr;
#endif
