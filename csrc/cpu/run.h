// Runs a CPU plan, and tells the planner about this machine. Threads are passed in: nothing here knows whose
// pool they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"
#include "core/plan_cpu.h"

namespace tx::cpu {

// A reference to a callable void(int64_t begin, int64_t end); it must outlive the call it is passed to.
class RangeBody {
 public:
  template <class F>
  RangeBody(const F& f)  // NOLINT: implicit, so that a lambda can be passed
      : object_(&f), call_([](const void* object, int64_t begin, int64_t end) {
          (*static_cast<const F*>(object))(begin, end);
        }) {}
  void operator()(int64_t begin, int64_t end) const { call_(object_, begin, end); }

 private:
  const void* object_;
  void (*call_)(const void*, int64_t, int64_t);
};

// Splits [begin, end) among threads in pieces of at least `grain` and returns when all have run
// (at::parallel_for).
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, RangeBody body);

// Moves the plan's bytes. A plan for one thread never calls parallel_for. Reads and writes only the problem's
// elements.
void run(const Plan& plan, const void* in, void* out, ParallelFor parallel_for);

// This machine, for calls that may use `threads` threads. Precondition: isa_error() is empty.
CpuFacts facts(int threads);

// The instruction set in use: the best this machine has, or the one that TX_CPU_ISA names. Chosen once.
const char* isa();

// Every one that this machine and this build have, the best last.
std::vector<const char*> isas();

// What is wrong with TX_CPU_ISA (rule, value, remedy); empty if nothing is.
const std::string& isa_error();

}  // namespace tx::cpu
