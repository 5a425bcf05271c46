// Registration: the schemas of torch.ops.tx and the kernels of the CPU, CUDA, Meta and unsupported keys.
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/conj.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>
#include <torch/library.h>

#include "core/overlap.h"
#include "ops/run.h"
#include "ops/tensor_problem.h"
#include "ops/typed_ops.h"

namespace tx::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;

Tensor permuted(const Tensor& self, IntArrayRef dims) {
  Tensor out = empty_permuted(self, dims);
  run(self, out, dims);
  return out;
}

void check_memory(const Tensor& self, const Tensor& out, IntArrayRef dims) {
  if (out.is_meta()) return;
  const Problem problem = make_problem(self, out, dims);
  TORCH_CHECK(!output_may_overlap_itself(problem), "tx: out must not overlap itself, got shape ", out.sizes(),
              " with strides ", out.strides(),
              ", in which two elements may share memory. Pass an out whose elements are all distinct.");
  TORCH_CHECK(
      !sides_may_overlap(problem),
      "tx: out must not overlap self, but their memory may: both reach into the same bytes. Give out memory "
      "of its own (a transpose in place is not supported).");
}

void permuted_into(const Tensor& self, const Tensor& out, IntArrayRef dims) {
  check_out(self, out, dims);
  check_memory(self, out, dims);
  run(self, out, dims);
}

Tensor transpose(const Tensor& self, int64_t dim0, int64_t dim1) {
  return permuted(self, transpose_dims(self.dim(), dim0, dim1));
}

void transpose_into(const Tensor& self, Tensor& out, int64_t dim0, int64_t dim1) {
  permuted_into(self, out, transpose_dims(self.dim(), dim0, dim1));
}

Tensor permute(const Tensor& self, IntArrayRef dims) {
  return permuted(self, permute_dims(self.dim(), dims));
}

void permute_into(const Tensor& self, Tensor& out, IntArrayRef dims) {
  permuted_into(self, out, permute_dims(self.dim(), dims));
}

Tensor meta_permuted(const Tensor& self, IntArrayRef dims) {
  return at::empty_symint(permuted_sizes(self, dims),
                          self.options().memory_format(at::MemoryFormat::Contiguous));
}

Tensor transpose_meta(const Tensor& self, int64_t dim0, int64_t dim1) {
  return meta_permuted(self, transpose_dims(self.dim(), dim0, dim1));
}

void transpose_into_meta(const Tensor& self, Tensor& out, int64_t dim0, int64_t dim1) {
  check_out(self, out, transpose_dims(self.dim(), dim0, dim1));
}

Tensor permute_meta(const Tensor& self, IntArrayRef dims) {
  return meta_permuted(self, permute_dims(self.dim(), dims));
}

void permute_into_meta(const Tensor& self, Tensor& out, IntArrayRef dims) {
  check_out(self, out, permute_dims(self.dim(), dims));
}

// Layouts that have no strides to move. Without this the dispatcher would answer with its table of keys.
void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  for (const c10::IValue& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (!value.isTensor()) continue;
    const Tensor& t = value.toTensor();
    const bool plain = t.layout() == at::kStrided && !t.is_quantized() && !t.is_nested();
    TORCH_CHECK(plain, op.schema().name(), ": takes dense, strided tensors, got ",
                t.is_quantized() ? "a quantized tensor"
                : t.is_nested()  ? "a nested tensor"
                                 : c10::str("layout ", t.layout()),
                ". Convert it first (to_dense, dequantize or int_repr, to_padded_tensor).");
  }
  TORCH_CHECK(false, op.schema().name(), ": not supported for these arguments.");
}

// torch's fallback for tensors with a pending conjugation or negation serves transpose and permute, but needs
// an op that writes to return what it wrote. Here `out` loses its pending bits by passing them on to self.
template <class Run>
void into_without_pending_bits(Tensor self, Tensor out, IntArrayRef dims, Run run) {
  check_out(self, out, dims);
  check_memory(self, out, dims);  // before self is resolved into memory of its own
  if (out.is_conj()) {
    self = self.conj();
    out = out.conj();
  }
  if (out.is_neg()) {
    self = self._neg_view();
    out = out._neg_view();
  }
  run(self.resolve_conj().resolve_neg(), out);
}

void transpose_into_pending(const Tensor& self, Tensor& out, int64_t dim0, int64_t dim1) {
  into_without_pending_bits(self, out, transpose_dims(self.dim(), dim0, dim1),
                            [&](const Tensor& s, Tensor& o) { transpose_into_op().call(s, o, dim0, dim1); });
}

void permute_into_pending(const Tensor& self, Tensor& out, IntArrayRef dims) {
  into_without_pending_bits(self, out, permute_dims(self.dim(), dims),
                            [&](const Tensor& s, Tensor& o) { permute_into_op().call(s, o, dims); });
}

void register_pending(torch::Library& m) {
  m.impl("transpose_into", transpose_into_pending);
  m.impl("permute_into", permute_into_pending);
}

void register_backend(torch::Library& m) {
  m.impl("transpose", transpose);
  m.impl("transpose_into", transpose_into);
  m.impl("permute", permute);
  m.impl("permute_into", permute_into);
}

void register_refusal(torch::Library& m) {
  for (const char* op : {"transpose", "transpose_into", "permute", "permute_into"}) {
    m.impl(op, torch::CppFunction::makeFromBoxedFunction<&refuse>());
  }
}

}  // namespace

TORCH_LIBRARY(tx, m) {
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag, at::Tag::flexible_layout};
  m.def("transpose(Tensor self, int dim0=-2, int dim1=-1) -> Tensor", tags);
  m.def("transpose_into(Tensor self, Tensor(a!) out, int dim0=-2, int dim1=-1) -> ()", tags);
  m.def("permute(Tensor self, int[] dims) -> Tensor", tags);
  m.def("permute_into(Tensor self, Tensor(a!) out, int[] dims) -> ()", tags);
}

TORCH_LIBRARY_IMPL(tx, CPU, m) { register_backend(m); }

#ifdef TX_WITH_CUDA
TORCH_LIBRARY_IMPL(tx, CUDA, m) { register_backend(m); }
#endif

TORCH_LIBRARY_IMPL(tx, Meta, m) {
  m.impl("transpose", transpose_meta);
  m.impl("transpose_into", transpose_into_meta);
  m.impl("permute", permute_meta);
  m.impl("permute_into", permute_into_meta);
}

TORCH_LIBRARY_IMPL(tx, Conjugate, m) { register_pending(m); }
TORCH_LIBRARY_IMPL(tx, Negative, m) { register_pending(m); }

TORCH_LIBRARY_IMPL(tx, SparseCPU, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, SparseCUDA, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, SparseCsrCPU, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, SparseCsrCUDA, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, QuantizedCPU, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, QuantizedCUDA, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, NestedTensorCPU, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, NestedTensorCUDA, m) { register_refusal(m); }
TORCH_LIBRARY_IMPL(tx, MkldnnCPU, m) { register_refusal(m); }

}  // namespace tx::ops
