// The micro-kernels in use.
#pragma once

#include "cpu/micro.h"

namespace tx::cpu {

// The best set that this machine has, or the one that TX_CPU_ISA names. Chosen once.
const MicroKernels& micro_kernels_in_use();

}  // namespace tx::cpu
