// Glue between tensors and the two backends: plan, then run on the right stream or threads.
#include "ops/run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "core/normalize.h"
#include "core/plan_cpu.h"
#include "cpu/run.h"
#include "ops/tensor_problem.h"

#ifdef TX_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda/run.h"
#endif

namespace tx::ops {
namespace {

void check_forced(Kernel kernel, const std::string& why_not) {
  TORCH_CHECK(why_not.empty(), "kernel '", name(kernel), "' cannot run this problem: ", why_not,
              ". Call transpose or permute, which choose a kernel that can.");
}

Plan make_cpu_plan(const Problem& problem, std::optional<Kernel> forced) {
  TORCH_CHECK(cpu::isa_error().empty(), "tx: ", cpu::isa_error());
  const CpuFacts facts = cpu::facts(at::in_parallel_region() ? 1 : at::get_num_threads());
  if (!forced) return plan_cpu(problem, facts);
  check_forced(*forced, why_not_cpu(*forced, normalize(problem)));
  return plan_cpu_forced(problem, facts, *forced);
}

#ifdef TX_WITH_CUDA
Plan make_cuda_plan(const Problem& problem, int device, std::optional<Kernel> forced) {
  DeviceFacts facts;
  const cudaError_t status = cuda::device_facts(device, facts);
  TORCH_CHECK(status == cudaSuccess, "tx: reading the properties of cuda:", device,
              " failed: ", cudaGetErrorString(status));
  if (!forced) return plan_cuda(problem, facts);
  check_forced(*forced, why_not_cuda(*forced, normalize(problem), facts));
  return plan_cuda_forced(problem, facts, *forced);
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

Plan make_plan(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims, std::optional<Kernel> forced) {
  const Problem problem = make_problem(self, out, dims);
  if (self.is_cpu()) return make_cpu_plan(problem, forced);
#ifdef TX_WITH_CUDA
  if (self.is_cuda()) return make_cuda_plan(problem, self.get_device(), forced);
#endif
  no_backend(self.device());
}

void run(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims, std::optional<Kernel> forced) {
  const Plan plan = make_plan(self, out, dims, forced);
  if (plan.kernel == Kernel::kNone) return;
  if (self.is_cpu()) {
    cpu::run(plan, self.const_data_ptr(), out.mutable_data_ptr(),
             [](int64_t begin, int64_t end, int64_t grain, cpu::RangeBody body) {
               at::parallel_for(begin, end, grain, body);
             });
    return;
  }
#ifdef TX_WITH_CUDA
  const c10::cuda::CUDAGuard guard(self.device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(self.get_device());
  const cudaError_t status = cuda::run(plan, self.const_data_ptr(), out.mutable_data_ptr(), self.get_device(), stream);
  TORCH_CHECK(status == cudaSuccess, "tx: launching the CUDA kernel failed: ", cudaGetErrorString(status), " (",
              cudaGetErrorName(status), "), for ", to_string(plan));
#endif
}

at::Tensor empty_permuted(const at::Tensor& self, at::IntArrayRef dims) {
  at::DimVector sizes(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) sizes[d] = self.size(dims[d]);
  return at::empty(sizes, self.options().memory_format(at::MemoryFormat::Contiguous));
}

}  // namespace tx::ops
