// Chooses the CPU kernel, its tile, stores and threads: a pure function of the problem and of facts about the
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"

namespace tx {

// What planning may know about the machine. Filled by tx::cpu::facts(), or by a test.
struct CpuFacts {
  int threads = 1;               // most threads a call may use
  const char* isa = "portable";  // name of the micro-kernels in use
  int line_vectors = 0;          // of theirs that make a line they write past the caches; 0: they write none
  bool carries_bytes = false;    // whether they put lines together of bytes, too
  int64_t piece_bytes[2] = {0, 0};  // up to which they permute pieces: elements of one byte, and of more
  bool permutes_runs[2] = {false, false};  // whether they do so of several runs; likewise
  int64_t l1_bytes = 48 << 10;             // first data cache, of a core
  int64_t l2_bytes = 1 << 20;              // second cache, of a core
  int64_t l3_bytes = 32 << 20;             // last cache, shared by all cores
};

// A plan depends on addresses only through their places in lines of so many bytes.
inline constexpr uint64_t kCpuAddressAlignment = 64;

Plan plan_cpu(const Problem& problem, const CpuFacts& facts);

// The rule that keeps `kernel` from running a normalised problem, with the value that breaks it; empty if
// none.
std::string why_not_cpu(Kernel kernel, const Problem& normalised);

// The plan with `kernel` in place of the planner's choice. Precondition: why_not_cpu() is empty.
Plan plan_cpu_forced(const Problem& problem, const CpuFacts& facts, Kernel kernel);

// Runs of so many bytes at most are elements to tiles, where these would else be none.
inline constexpr int64_t kMostElementBytes = 1024;

// Every kernel the CPU has.
const std::vector<Kernel>& kernels_cpu();

}  // namespace tx
