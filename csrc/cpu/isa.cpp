// Which micro-kernels this machine gets, and what the planner is told about it.
#include "cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "cpu/run.h"

namespace tx::cpu {
namespace {

bool machine_runs(const MicroKernels* micro) {
  if (micro == nullptr) return false;
#if defined(__x86_64__) || defined(__i386__)
  if (micro == kAvx2) return __builtin_cpu_supports("avx2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  if (micro == kAvx512) return avx512;
  if (micro == kAvx512Vbmi) return avx512 && __builtin_cpu_supports("avx512vbmi");
#endif
  return true;  // the baseline of its target
}

// The last that runs is the best.
const MicroKernels* const kAll[] = {kPortable, kNeon, kAvx2, kAvx512, kAvx512Vbmi};

struct Choice {
  const MicroKernels* micro = kPortable;
  std::string error;
};

Choice choose() {
  Choice choice;
  std::string available;
  const char* wanted = std::getenv("TX_CPU_ISA");
  bool found = false;
  for (const MicroKernels* micro : kAll) {
    if (!machine_runs(micro)) continue;
    available += (available.empty() ? "" : ", ") + std::string(micro->name);
    if (wanted != nullptr && std::strcmp(wanted, micro->name) != 0) continue;
    choice.micro = micro;
    found = true;
  }
  if (!found) {
    choice.error =
        std::string(
            "TX_CPU_ISA must name an instruction set that this machine and this build have, but is '") +
        wanted + "'. Set it to one of: " + available + "; or unset it.";
  }
  return choice;
}

const Choice& choice() {
  static const Choice chosen = choose();
  return chosen;
}

// The size of a cache that this process' first core has or shares, as Linux tells it, else the default:
// "index0" is the first data cache, "index3" the last. The C library's answer (sysconf) is no use: on AMD it
// adds up the last caches of all the package's core complexes.
int64_t size_of_cache(const char* index, int64_t otherwise) {
  std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/") + index + "/size");
  int64_t kilobytes = 0;
  char unit = 0;
  return file >> kilobytes >> unit && unit == 'K' && kilobytes > 0 ? kilobytes << 10 : otherwise;
}

CpuFacts this_machine() {
  CpuFacts f;
  f.isa = micro_kernels_in_use().name;
  f.line_vectors = micro_kernels_in_use().line_vectors;
  f.carries_bytes = micro_kernels_in_use().streaming[0].carried[0] != nullptr;
  std::copy_n(micro_kernels_in_use().piece_bytes, 2, f.piece_bytes);
  std::copy_n(micro_kernels_in_use().permutes_runs, 2, f.permutes_runs);
  f.l1_bytes = size_of_cache("index0", f.l1_bytes);
  f.l2_bytes = size_of_cache("index2", f.l2_bytes);
  f.l3_bytes = size_of_cache("index3", f.l3_bytes);
  return f;
}

}  // namespace

const MicroKernels& micro_kernels_in_use() { return *choice().micro; }

const char* isa() { return micro_kernels_in_use().name; }

std::vector<const char*> isas() {
  std::vector<const char*> names;
  for (const MicroKernels* micro : kAll) {
    if (machine_runs(micro)) names.push_back(micro->name);
  }
  return names;
}

const std::string& isa_error() { return choice().error; }

CpuFacts facts(int threads) {
  static const CpuFacts machine = this_machine();
  CpuFacts f = machine;
  f.threads = threads;
  return f;
}

}  // namespace tx::cpu
