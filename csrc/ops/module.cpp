// The Python module _C: planning values, build info, forced runs, and many pieces at once, which the sharded
// transpose moves. Ops are not here: they live in the library beside it and are reached through
// torch.ops.tx.
#include <ATen/ops/empty.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <sstream>

#include "core/normalize.h"
#include "core/overlap.h"
#include "core/plan.h"
#include "core/plan_cpu.h"
#include "core/plan_cuda.h"
#include "cpu/run.h"
#include "ops/run.h"
#include "ops/tensor_problem.h"

namespace tx::ops {
namespace {

namespace py = pybind11;
using Ints = std::vector<int64_t>;

Problem problem_from_lists(int64_t element_bytes, const Ints& extents, const Ints& in_strides,
                           const Ints& out_strides, uint64_t in_address, uint64_t out_address) {
  TORCH_CHECK_VALUE(extents.size() == in_strides.size() && extents.size() == out_strides.size() &&
                        extents.size() <= static_cast<size_t>(kMaxDims),
                    "Problem: extents, in_strides and out_strides must have one length of at most ", kMaxDims,
                    ", got ", extents.size(), ", ", in_strides.size(), ", ", out_strides.size(), ".");
  TORCH_CHECK_VALUE(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8 ||
                        element_bytes == 16,
                    "Problem: element_bytes must be 1, 2, 4, 8 or 16, got ", element_bytes, ".");
  Problem p;
  p.element_bytes = element_bytes;
  p.rank = static_cast<int>(extents.size());
  p.in_address = in_address;
  p.out_address = out_address;
  for (int d = 0; d < p.rank; ++d) p.dims[d] = {extents[d], in_strides[d], out_strides[d]};
  return p;
}

Ints field(const Problem& p, int64_t Dim::* member) {
  Ints values(p.rank);
  for (int d = 0; d < p.rank; ++d) values[d] = p.dims[d].*member;
  return values;
}

Kernel kernel_or_throw(const std::string& wanted) {
  const auto kernel = kernel_from_name(wanted);
  TORCH_CHECK_VALUE(kernel.has_value(), "unknown kernel '", wanted, "'. _C.kernels(backend) lists them.");
  return *kernel;
}

Plan explain(const at::Tensor& self, const Ints& dims) {
  const at::DimVector wrapped = permute_dims(self.dim(), dims);
  at::DimVector sizes(wrapped.size());
  for (size_t d = 0; d < wrapped.size(); ++d) sizes[d] = self.size(wrapped[d]);
  // A stand-in for the output: allocators align far beyond what any kernel asks, as its null address is.
  return make_plan(self, at::empty(sizes, self.options().device(at::kMeta)), wrapped);
}

at::Tensor run_forced(const at::Tensor& self, const Ints& dims, const std::string& kernel,
                      const std::optional<at::Tensor>& given) {
  const at::DimVector wrapped = permute_dims(self.dim(), dims);
  const at::Tensor out = given ? *given : empty_permuted(self, wrapped);
  check_out(self, out, wrapped);
  run(self, out, wrapped, kernel_or_throw(kernel));
  return out;
}

void permute_each(const std::vector<at::Tensor>& selves, const std::vector<at::Tensor>& outs,
                  const Ints& dims) {
  TORCH_CHECK_VALUE(selves.size() == outs.size(), "permute_each: as many outs as selves, got ", outs.size(),
                    " and ", selves.size(), ".");
  for (size_t i = 0; i < selves.size(); ++i) {
    check_out(selves[i], outs[i], permute_dims(selves[i].dim(), dims));
    TORCH_CHECK_VALUE(selves[i].device() == selves[0].device(), "permute_each: all on one device, got ",
                      selves[i].device(), " and ", selves[0].device(), ".");
  }
  run_each(selves, outs, dims);
}

std::vector<std::string> kernels(const std::string& backend) {
  TORCH_CHECK_VALUE(backend == "cpu" || backend == "cuda", "backend must be 'cpu' or 'cuda', got '", backend,
                    "'.");
  std::vector<std::string> names;
  for (const Kernel k : backend == "cpu" ? kernels_cpu() : kernels_cuda()) names.emplace_back(name(k));
  return names;
}

py::dict build_info() {
  py::dict info;
  info["torch"] = TX_TORCH_VERSION;
  info["cuda"] = *TX_CUDA_VERSION ? py::object(py::str(TX_CUDA_VERSION)) : py::none();
  py::list archs;
  std::istringstream list(TX_CUDA_ARCHS);
  for (std::string arch; std::getline(list, arch, ' ');) archs.append(arch);
  info["arch_list"] = archs;
#ifdef _OPENMP
  info["openmp"] = true;
#else
  info["openmp"] = false;
#endif
  py::list backends;
  backends.append("cpu");
#ifdef TX_WITH_CUDA
  backends.append("cuda");
#endif
  info["backends"] = backends;
  info["compiler"] = TX_COMPILER;
  info["cpu_isa"] = cpu::facts(1).isa;
  return info;
}

template <class T>
std::string repr(const T& value) {
  return to_string(value);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  py::class_<Problem>(m, "Problem", "A strided copy between two layouts. Strides and addresses are in bytes.")
      .def(py::init(&problem_from_lists), py::arg("element_bytes"), py::arg("extents"), py::arg("in_strides"),
           py::arg("out_strides"), py::arg("in_address") = 0, py::arg("out_address") = 0)
      .def_readonly("element_bytes", &Problem::element_bytes)
      .def_readonly("in_address", &Problem::in_address)
      .def_readonly("out_address", &Problem::out_address)
      .def_property_readonly("extents", [](const Problem& p) { return field(p, &Dim::extent); })
      .def_property_readonly("in_strides", [](const Problem& p) { return field(p, &Dim::in_stride); })
      .def_property_readonly("out_strides", [](const Problem& p) { return field(p, &Dim::out_stride); })
      .def(
          "__eq__", [](const Problem& a, const Problem& b) { return a == b; }, py::is_operator())
      .def("__repr__", [](const Problem& p) { return "Problem(" + to_string(p) + ")"; });

  py::class_<Plan>(
      m, "Plan",
      "The kernel and parameters chosen for a problem. Fields that a backend lacks are 0, -1 or ''.")
      .def_property_readonly("backend", [](const Plan& p) { return name(p.backend); })
      .def_property_readonly("kernel", [](const Plan& p) { return name(p.kernel); })
      .def_property_readonly("element_bytes", [](const Plan& p) { return p.problem.element_bytes; })
      .def_property_readonly("extents", [](const Plan& p) { return field(p.problem, &Dim::extent); })
      .def_property_readonly("in_strides", [](const Plan& p) { return field(p.problem, &Dim::in_stride); })
      .def_property_readonly("out_strides", [](const Plan& p) { return field(p.problem, &Dim::out_stride); })
      .def_property_readonly("tile", [](const Plan& p) { return Ints(p.tile, p.tile + p.problem.rank); })
      .def_readonly("grid", &Plan::grid)
      .def_readonly("block", &Plan::block)
      .def_readonly("shared_bytes", &Plan::shared_bytes)
      .def_readonly("group", &Plan::group)
      .def_readonly("first_beyond", &Plan::first_beyond)
      .def_readonly("keep", &Plan::keep)
      .def_readonly("release", &Plan::release)
      .def_readonly("threads", &Plan::threads)
      .def_property_readonly("stores",
                             [](const Plan& p) { return p.backend == Backend::kCpu ? name(p.stores) : ""; })
      .def_property_readonly("order",
                             [](const Plan& p) { return p.backend == Backend::kCpu ? name(p.order) : ""; })
      .def_readonly("carries", &Plan::carries)
      .def_readonly("prefetches", &Plan::prefetches)
      .def_readonly("prefetches_l1", &Plan::prefetches_l1)
      .def_readonly("edge_rows", &Plan::edge_rows)
      .def_property_readonly("isa", [](const Plan& p) { return std::string(p.isa); })
      .def(
          "__eq__", [](const Plan& a, const Plan& b) { return a == b; }, py::is_operator())
      .def("__repr__", &repr<Plan>);

  py::class_<DeviceFacts>(m, "DeviceFacts",
                          "What planning needs to know of a GPU; the defaults are an H200's.")
      .def(py::init([](int sm_count, int shared_per_block, int shared_per_sm, int l2_bytes, int arch) {
             return DeviceFacts{sm_count, shared_per_block, shared_per_sm, l2_bytes, arch};
           }),
           py::arg("sm_count") = DeviceFacts{}.sm_count,
           py::arg("shared_per_block") = DeviceFacts{}.shared_per_block,
           py::arg("shared_per_sm") = DeviceFacts{}.shared_per_sm,
           py::arg("l2_bytes") = DeviceFacts{}.l2_bytes, py::arg("arch") = DeviceFacts{}.arch)
      .def_readonly("sm_count", &DeviceFacts::sm_count)
      .def_readonly("shared_per_block", &DeviceFacts::shared_per_block)
      .def_readonly("shared_per_sm", &DeviceFacts::shared_per_sm)
      .def_readonly("l2_bytes", &DeviceFacts::l2_bytes)
      .def_readonly("arch", &DeviceFacts::arch);

  m.def("normalize", &normalize, py::arg("problem"));
  m.def("output_may_overlap_itself", &output_may_overlap_itself, py::arg("problem"));
  m.def("sides_may_overlap", &sides_may_overlap, py::arg("problem"));
  m.def("plan_cuda", &plan_cuda, py::arg("problem"), py::arg("facts"), py::arg("alone") = true);
  m.def(
      "plan_cpu",
      [](const Problem& p, int threads, std::optional<int64_t> l1_bytes, std::optional<int64_t> l2_bytes,
         std::optional<int64_t> l3_bytes, std::optional<int> line_vectors, std::optional<bool> carries_bytes,
         std::optional<int64_t> piece_bytes, std::optional<bool> permutes_runs) {
        CpuFacts facts = cpu::facts(threads);
        facts.l1_bytes = l1_bytes.value_or(facts.l1_bytes);
        facts.l2_bytes = l2_bytes.value_or(facts.l2_bytes);
        facts.l3_bytes = l3_bytes.value_or(facts.l3_bytes);
        facts.line_vectors = line_vectors.value_or(facts.line_vectors);
        facts.carries_bytes = carries_bytes.value_or(facts.carries_bytes);
        for (int64_t& most : facts.piece_bytes) most = piece_bytes.value_or(most);
        for (bool& whether : facts.permutes_runs) whether = permutes_runs.value_or(whether);
        return plan_cpu(p, facts);
      },
      py::arg("problem"), py::arg("threads"), py::arg("l1_bytes") = py::none(),
      py::arg("l2_bytes") = py::none(), py::arg("l3_bytes") = py::none(),
      py::arg("line_vectors") = py::none(), py::arg("carries_bytes") = py::none(),
      py::arg("piece_bytes") = py::none(), py::arg("permutes_runs") = py::none());
  m.def("explain", &explain, py::arg("x"), py::arg("dims"));
  m.def("run_forced", &run_forced, py::arg("x"), py::arg("dims"), py::arg("kernel"),
        py::arg("out") = py::none());
  m.def("permute_each", &permute_each, py::arg("selves"), py::arg("outs"), py::arg("dims"));
  m.def("kernels", &kernels, py::arg("backend"));
  m.def("build_info", &build_info);
}

}  // namespace tx::ops
