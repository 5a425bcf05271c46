// Glue between tensors and the two backends: plan, then run on the right stream or threads.
#include "ops/run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/irange.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "core/normalize.h"
#include "core/plan_cpu.h"
#include "cpu/run.h"
#include "ops/tensor_problem.h"

#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef TX_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/run.h"
#endif

namespace tx::ops {
namespace {

// Outputs that allocators take from the system anew each time. Below, memory is used again, and has its
// pages.
constexpr size_t kHugePagesFrom = 4 << 20;

void check_forced(Kernel kernel, const std::string& why_not) {
  TORCH_CHECK(why_not.empty(), "kernel '", name(kernel), "' cannot run this problem: ", why_not,
              ". Call transpose or permute, which choose a kernel that can.");
}

// OpenMP's threads do not survive a fork: a parallel region in the child would wait for them for ever.
std::atomic<bool> forked{false};
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] { forked = true; });

Plan make_cpu_plan(const Problem& problem, int threads, std::optional<Kernel> forced) {
  TORCH_CHECK(cpu::isa_error().empty(), "tx: ", cpu::isa_error());
  const CpuFacts facts = cpu::facts(threads);
  if (!forced) return plan_cpu(problem, facts);
  check_forced(*forced, why_not_cpu(*forced, normalize(problem)));
  return plan_cpu_forced(problem, facts, *forced);
}

int cpu_threads() {
  const bool alone = forked.load(std::memory_order_relaxed) || at::in_parallel_region();
  return alone ? 1 : at::get_num_threads();
}

#ifdef TX_WITH_CUDA
Plan make_cuda_plan(const Problem& problem, int device, std::optional<Kernel> forced, bool alone = true) {
  DeviceFacts facts;
  const cudaError_t status = cuda::device_facts(device, facts);
  TORCH_CHECK(status == cudaSuccess, "tx: reading the properties of cuda:", device,
              " failed: ", cudaGetErrorString(status));
  if (!forced) return plan_cuda(problem, facts, alone);
  check_forced(*forced, why_not_cuda(*forced, normalize(problem), facts));
  return plan_cuda_forced(problem, facts, *forced);
}
#endif

// What a plan depends on.
Problem without_place(Problem problem, uint64_t alignment) {
  problem.in_address %= alignment;
  problem.out_address %= alignment;
  return problem;
}

// Where a plan is for: a device, -1 the CPU, and how much of it is used, whose meaning is the backend's.
struct Use {
  int device = -1;
  int extent = -1;
  bool operator==(const Use&) const = default;
};

// The plans that this thread made last, of problems without their place: make() makes one that is not among
// them. Planning a permutation takes 20 to 100 us for a GPU and up to half a microsecond for the CPU, as long
// as a small one runs, and programs repeat their shapes.
const Plan& recent_plan(const Problem& problem, Use use, c10::function_ref<Plan()> make) {
  constexpr size_t kSets = 16, kWays = 4;
  struct Entry {
    Problem problem;
    Use use;
    Plan plan;
  };
  struct Set {
    std::array<Entry, kWays> ways;
    size_t next = 0;  // to be replaced
  };
  thread_local const auto sets = std::make_unique<std::array<Set, kSets>>();
  uint64_t hash = problem.in_address << 4 ^ problem.out_address ^ static_cast<uint64_t>(use.device);
  for (int d = 0; d < problem.rank; ++d) {
    const Dim& dim = problem.dims[d];
    for (const int64_t value : {dim.extent, dim.in_stride}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15u;  // Fibonacci hashing
    }
  }
  Set& set = (*sets)[hash >> 60];
  for (const Entry& entry : set.ways) {
    if (entry.use == use && entry.problem == problem) return entry.plan;
  }
  Entry& entry = set.ways[set.next++ % kWays];
  entry.use = {};  // in case planning throws
  entry.plan = make();
  entry.problem = problem;
  entry.use = use;
  return entry.plan;
}

const Plan& recent_cpu_plan(const Problem& problem) {
  const int threads = cpu_threads();
  return recent_plan(problem, {-1, threads}, [&] { return make_cpu_plan(problem, threads, std::nullopt); });
}

#ifdef TX_WITH_CUDA
const Plan& recent_cuda_plan(const Problem& problem, int device, bool alone) {
  return recent_plan(problem, {device, alone},
                     [&] { return make_cuda_plan(problem, device, std::nullopt, alone); });
}
#endif

// Fresh memory comes from the kernel page by page, and for a large output that takes several times as long as
// the transpose. Asks for huge pages where they fit whole. Only a hint, and never more than that: where the
// system has none, or the memory is not its to give, nothing changes.
void ask_for_huge_pages([[maybe_unused]] const at::Tensor& fresh) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = 2 << 20;
  const auto begin = reinterpret_cast<uintptr_t>(fresh.const_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + fresh.nbytes()) / kHugePage * kHugePage;
  if (first < last && fresh.nbytes() >= kHugePagesFrom) {
    madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }
#endif
}

#ifdef TX_WITH_CUDA
void run_cuda_plan(const Plan& plan, const Place* places, size_t count, int device) {
  const cudaError_t status =
      cuda::run(plan, places, static_cast<int>(count), device, c10::cuda::getCurrentCUDAStream(device));
  TORCH_CHECK(status == cudaSuccess, "tx: launching the CUDA kernel failed: ", cudaGetErrorString(status),
              " (", cudaGetErrorName(status), "), for ", to_string(plan));
}
#endif

[[noreturn]] void no_backend(const at::Device& device) {
  TORCH_CHECK(false, "tx: this build has no kernels for device ", device,
#ifdef TX_WITH_CUDA
              ". Supported: cpu, cuda. Move the tensor first."
#else
              ". It was built for the CPU only: rebuild with TX_WITH_CUDA=1, or move the tensor to the CPU."
#endif
  );
}

}  // namespace

Plan make_plan(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims,
               std::optional<Kernel> forced) {
  const Problem problem = make_problem(self, out, dims);
  if (self.is_cpu()) return make_cpu_plan(problem, cpu_threads(), forced);
#ifdef TX_WITH_CUDA
  if (self.is_cuda()) return make_cuda_plan(problem, self.get_device(), forced);
#endif
  no_backend(self.device());
}

void run(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims, std::optional<Kernel> forced) {
  const void* const from = self.const_data_ptr();
  void* const to = out.mutable_data_ptr();
  if (self.is_cpu()) {
    const Problem problem = without_place(make_problem(self, out, dims), kCpuAddressAlignment);
    Plan forced_plan;
    if (forced) forced_plan = make_cpu_plan(problem, cpu_threads(), forced);
    const Plan& plan = forced ? forced_plan : recent_cpu_plan(problem);
    if (plan.kernel == Kernel::kNone) return;
    cpu::run(plan, from, to, [](int64_t begin, int64_t end, int64_t grain, cpu::RangeBody body) {
      at::parallel_for(begin, end, grain, body);
    });
    return;
  }
#ifdef TX_WITH_CUDA
  if (self.is_cuda()) {
    const int device = self.get_device();
    const c10::cuda::CUDAGuard guard(self.device());
    const Problem problem = without_place(make_problem(self, out, dims), kAddressAlignment);
    Plan forced_plan;
    if (forced) forced_plan = make_cuda_plan(problem, device, forced);
    const Plan& plan = forced ? forced_plan : recent_cuda_plan(problem, device, true);
    const Place place{from, to};
    run_cuda_plan(plan, &place, 1, device);
    return;
  }
#endif
  no_backend(self.device());
}

void run_each(at::TensorList selves, at::TensorList outs, at::IntArrayRef dims) {
#ifdef TX_WITH_CUDA
  if (!selves.empty() && selves[0].is_cuda()) {
    const int device = selves[0].get_device();
    const c10::cuda::CUDAGuard guard(selves[0].device());
    std::vector<std::pair<Problem, std::vector<Place>>> groups;
    for (const auto i : c10::irange(selves.size())) {
      const Problem problem = without_place(make_problem(selves[i], outs[i], dims), kAddressAlignment);
      auto group =
          std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == problem; });
      if (group == groups.end()) group = groups.insert(groups.end(), {problem, {}});
      group->second.push_back({selves[i].const_data_ptr(), outs[i].mutable_data_ptr()});
    }
    for (const auto& [problem, places] : groups) {
      const Plan& plan = recent_cuda_plan(problem, device, places.size() == 1);
      run_cuda_plan(plan, places.data(), places.size(), device);
    }
    return;
  }
#endif
  for (const auto i : c10::irange(selves.size())) run(selves[i], outs[i], dims);
}

at::Tensor empty_permuted(const at::Tensor& self, at::IntArrayRef dims) {
  at::DimVector sizes(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) sizes[d] = self.size(dims[d]);
  at::Tensor out = at::empty(sizes, self.options().memory_format(at::MemoryFormat::Contiguous));
  if (out.is_cpu()) ask_for_huge_pages(out);
  return out;
}

}  // namespace tx::ops
