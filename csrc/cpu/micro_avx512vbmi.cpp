// Micro-kernels in vectors of 64 bytes that permute bytes too (AVX-512 F, BW and VBMI).
#include "cpu/micro.h"

#if defined(__AVX512BW__) && defined(__AVX512VBMI__)
#include "cpu/micro_avx512.h"

namespace tx::cpu {
namespace {

constexpr MicroKernels kTable = micro_kernels<Avx512>("avx512vbmi");

}  // namespace

const MicroKernels* const kAvx512Vbmi = &kTable;

}  // namespace tx::cpu
#else
const tx::cpu::MicroKernels* const tx::cpu::kAvx512Vbmi = nullptr;
#endif
