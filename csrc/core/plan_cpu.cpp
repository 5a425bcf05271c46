// Legality of each CPU kernel, and the choice among them.
#include "core/plan_cpu.h"

#include <algorithm>

#include "core/int_math.h"
#include "core/normalize.h"

namespace tx {
namespace {

constexpr int64_t kBytesPerThread = 64 << 10;  // below this, a second thread costs more than it brings

// A run that is contiguous on both sides.
bool ends_in_common_run(const Problem& p) {
  const Dim& last = p.dims[p.rank - 1];
  return last.in_stride == p.element_bytes && last.out_stride == p.element_bytes;
}

// The dim, other than the last, along which the input moves least.
int smallest_input_step(const Problem& p) {
  int best = 0;
  for (int d = 1; d + 1 < p.rank; ++d) {
    if (p.dims[d].in_stride < p.dims[best].in_stride) best = d;
  }
  return best;
}

void set_tile(Plan& plan, const CpuFacts&) {
  const Problem& p = plan.problem;
  for (int d = 0; d < p.rank; ++d) plan.tile[d] = 1;
  if (p.rank == 0) return;
  const int last = p.rank - 1;
  const auto bounded = [&](int d, int64_t wanted) {
    plan.tile[d] = static_cast<int32_t>(std::min(p.dims[d].extent, wanted));
  };
  switch (plan.kernel) {
    case Kernel::kNone:
      break;
    case Kernel::kCopy:
      bounded(last, (int64_t{1} << 20) / p.element_bytes);
      break;
    case Kernel::kRows:
      bounded(last, int64_t{1} << 30);
      if (p.rank > 1) bounded(smallest_input_step(p), 64);
      break;
    case Kernel::kTile: {
      const int64_t side = std::max<int64_t>(64 / p.element_bytes, 16);
      bounded(last, side);
      bounded(input_run_dim(p), side);
      break;
    }
    case Kernel::kStaged:
      bounded(last, 512 / p.element_bytes);
      bounded(input_run_dim(p), 256 / p.element_bytes);
      break;
    default: {
      const int64_t side = std::max<int64_t>(256 / p.element_bytes, 32);
      bounded(last, side);
      if (p.rank > 1) bounded(smallest_input_step(p), side);
    }
  }
}

Plan finish(Problem normalised, const CpuFacts& facts, Kernel kernel) {
  Plan plan;
  plan.backend = Backend::kCpu;
  plan.kernel = kernel;
  plan.problem = normalised;
  plan.isa = facts.isa;
  const int64_t bytes = element_count(normalised) * normalised.element_bytes;
  plan.threads = static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1, facts.threads));
  set_tile(plan, facts);
  return plan;
}

}  // namespace

int input_run_dim(const Problem& p) {
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (p.dims[d].in_stride == p.element_bytes) return d;
  }
  return -1;
}

std::string why_not_cpu(Kernel kernel, const Problem& p) {
  const bool empty = element_count(p) == 0;
  switch (kernel) {
    case Kernel::kNone:
      return empty ? "" : "it moves nothing, but there are " + std::to_string(element_count(p)) + " elements";
    case Kernel::kStrided:
      return "";
    case Kernel::kCopy:
      if (empty) return "it needs at least one element, but an extent is 0";
      if (p.rank == 0 || (p.rank == 1 && ends_in_common_run(p))) return "";
      return "it needs one run, contiguous on both sides, but got " + to_string(p);
    case Kernel::kRows:
      if (empty) return "it needs at least one element, but an extent is 0";
      if (p.rank >= 1 && ends_in_common_run(p)) return "";
      return "it needs runs that are contiguous on both sides, but got " + to_string(p);
    case Kernel::kTile:
    case Kernel::kStaged:
      if (empty) return "it needs at least one element, but an extent is 0";
      if (p.rank >= 2 && p.dims[p.rank - 1].out_stride == p.element_bytes && input_run_dim(p) >= 0) return "";
      return "it needs one dim contiguous in the input and another, the last, contiguous in the output, but "
             "got " +
             to_string(p);
    default:
      return std::string("the CPU has no kernel '") + name(kernel) + "'";
  }
}

const std::vector<Kernel>& kernels_cpu() {
  static const std::vector<Kernel> kernels = {Kernel::kNone, Kernel::kCopy,   Kernel::kRows,
                                              Kernel::kTile, Kernel::kStaged, Kernel::kStrided};
  return kernels;
}

Plan plan_cpu(const Problem& problem, const CpuFacts& facts) {
  const Problem p = normalize(problem);
  for (Kernel kernel : kernels_cpu()) {
    if (why_not_cpu(kernel, p).empty()) return finish(p, facts, kernel);
  }
  return finish(p, facts, Kernel::kStrided);
}

Plan plan_cpu_forced(const Problem& problem, const CpuFacts& facts, Kernel kernel) {
  return finish(normalize(problem), facts, kernel);
}

}  // namespace tx
