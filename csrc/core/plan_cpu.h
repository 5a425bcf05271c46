// Chooses the CPU kernel, its tile, stores and threads for a Problem: a pure function of the problem and the
// machine's facts.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"

namespace tx {

// What planning may know about the machine. Filled by tx::cpu::facts(), or by a test.
struct CpuFacts {
  int threads = 1;               // most threads a call may use
  const char* isa = "portable";  // name of the micro-kernels in use
  int64_t l1_bytes = 32 << 10;   // data cache of one core
  int64_t l2_bytes = 1 << 20;    // cache of one core
  int64_t l3_bytes = 32 << 20;   // cache of all cores
};

Plan plan_cpu(const Problem& problem, const CpuFacts& facts);

// The rule that keeps `kernel` from running a normalised problem, with the value that breaks it; empty if
// none.
std::string why_not_cpu(Kernel kernel, const Problem& normalised);

// The plan with `kernel` in place of the planner's choice. Precondition: why_not_cpu() is empty.
Plan plan_cpu_forced(const Problem& problem, const CpuFacts& facts, Kernel kernel);

// Every kernel the CPU has, best first: plan_cpu() takes the first that is legal and worth its set-up.
const std::vector<Kernel>& kernels_cpu();

// The dim that is contiguous in the input, other than the last; -1 if there is none.
int input_run_dim(const Problem& normalised);

}  // namespace tx
