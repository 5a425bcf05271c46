// Derivatives: the gradient of a permutation is the inverse permutation, of a transpose the same transpose.
//
// A hand-written Node in a kernel at the Autograd key, because the two easier ways fall short: a C++
// torch::autograd::Function is an error under functorch and has no forward mode, and Python's
// register_autograd breaks jacrev and costs some 25 us a call.
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include "ops/tensor_problem.h"
#include "ops/typed_ops.h"

namespace tx::ops {
namespace {

using at::IntArrayRef;
using at::Tensor;
using torch::autograd::variable_list;

using torch::dynamo::autograd::CompiledNodeArgs;
using torch::dynamo::autograd::PackedArgs;
using torch::dynamo::autograd::SwapSavedVariables;

// A node of one gradient in and one out. `Rule` holds the forward's dims, applies them to a gradient, and
// packs itself as one IValue for compiled autograd.
template <class Rule>
struct UnaryBackward final : torch::autograd::Node {
  explicit UnaryBackward(Rule rule) : rule(std::move(rule)) {}

  std::string name() const override { return Rule::kName; }

  variable_list apply(variable_list&& grads) override {
    variable_list result(1);
    if (grads[0].defined() && task_should_compute_output(0)) result[0] = rule(grads[0]);
    return result;
  }

  void compiled_args(CompiledNodeArgs& args) const override { args.collect(rule.dims); }

  // Compiled autograd traces with gradients of no particular shape, so the op must not run here: a call to a
  // function goes into the graph instead, as torch's own CppNode does.
  variable_list apply_with_saved(const variable_list& grads, SwapSavedVariables& saved) override {
    PackedArgs packed;
    packed.pack(rule.dims);
    const auto& compiler = torch::dynamo::autograd::getPyCompilerInterface();
    const auto backward = [](const variable_list& inputs,
                             const std::vector<at::IValue>& values) -> variable_list {
      PackedArgs unpack(values);
      const Rule rule{unpack.unpack<std::vector<int64_t>>()};
      return {inputs[0].defined() ? rule(inputs[0]) : Tensor()};
    };
    const std::string function =
        compiler->bind_function(saved.get_py_compiler(), name(), backward,
                                {at::ListType::create(at::IntType::get())}, /*is_custom_function=*/true,
                                /*is_traceable=*/true);
    const auto metadata =
        torch::dynamo::autograd::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::
            pack(torch::dynamo::autograd::get_input_metadata(next_edges()));
    return compiler->call_function(saved.get_py_compiler(), "apply_functional", function, grads, packed.vec(),
                                   metadata);
  }

  Rule rule;
};

struct TransposeRule {
  static constexpr const char* kName = "TransposeBackward";
  Tensor operator()(const Tensor& grad) const { return transpose_op().call(grad, dims[0], dims[1]); }
  std::vector<int64_t> dims;  // the two
};

struct PermuteRule {
  static constexpr const char* kName = "PermuteBackward";
  Tensor operator()(const Tensor& grad) const { return permute_op().call(grad, dims); }
  std::vector<int64_t> dims;  // the inverse permutation
};

// Node is held by shared_ptr up to some release of torch and by intrusive_ptr after it.
using NodePtr = decltype(torch::autograd::Edge::function);

template <class Rule>
NodePtr make_node(Rule rule) {
  using NodeType = UnaryBackward<Rule>;
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return NodePtr(new NodeType(std::move(rule)), [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::move(rule));
  }
}

// `forward` runs the op below autograd, `again` runs it whole on a tangent, `make_backward` makes the node.
template <class Forward, class Again, class MakeBackward>
Tensor differentiable(const Tensor& self, Forward forward, Again again, MakeBackward make_backward) {
  NodePtr grad_fn;
  if (torch::autograd::compute_requires_grad(self)) {
    grad_fn = make_backward();
    grad_fn->set_next_edges(torch::autograd::collect_next_edges(self));
  }
  Tensor result;
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    result = forward();
  }
  if (grad_fn) torch::autograd::set_history(torch::autograd::flatten_tensor_args(result), grad_fn);
  if (torch::autograd::isFwGradDefined(self)) {
    result._set_fw_grad(again(self._fw_grad(/*level=*/0)), /*level=*/0, /*is_inplace_op=*/false);
  }
  return result;
}

Tensor transpose(c10::DispatchKeySet keys, const Tensor& self, int64_t dim0, int64_t dim1) {
  return differentiable(
      self, [&] { return transpose_op().redispatch(keys & c10::after_autograd_keyset, self, dim0, dim1); },
      [&](const Tensor& tangent) { return transpose_op().call(tangent, dim0, dim1); },
      [&] { return make_node(TransposeRule{{dim0, dim1}}); });
}

std::vector<int64_t> inverse_of(const Tensor& self, IntArrayRef dims) {
  const at::DimVector wrapped = permute_dims(self.dim(), dims);
  std::vector<int64_t> inverse(wrapped.size());
  for (size_t d = 0; d < wrapped.size(); ++d) inverse[wrapped[d]] = static_cast<int64_t>(d);
  return inverse;
}

Tensor permute(c10::DispatchKeySet keys, const Tensor& self, IntArrayRef dims) {
  return differentiable(
      self, [&] { return permute_op().redispatch(keys & c10::after_autograd_keyset, self, dims); },
      [&](const Tensor& tangent) { return permute_op().call(tangent, dims); },
      [&] { return make_node(PermuteRule{inverse_of(self, dims)}); });
}

// Torch's rule for every out= function.
template <class Run>
void without_derivative(const char* op, const Tensor& self, const Tensor& out, Run run) {
  for (const Tensor* t : {&self, &out}) {
    TORCH_CHECK(
        !torch::autograd::compute_requires_grad(*t), op,
        "(): functions with out=... arguments don't support automatic differentiation, but one of the "
        "arguments requires grad. Call it without out, or under torch.no_grad().");
    TORCH_CHECK(
        !torch::autograd::isFwGradDefined(*t), op,
        "(): functions with out=... arguments don't support forward-mode differentiation, but one of the "
        "arguments has a tangent. Call it without out.");
  }
  TORCH_CHECK(!out.is_inference() || c10::InferenceMode::is_enabled(), op,
              "(): writing to an inference tensor outside InferenceMode is not allowed, and out is one. Pass "
              "out.clone() "
              "or call it under torch.inference_mode().");
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    run();
  }
  torch::autograd::increment_version(out);
}

void transpose_into(c10::DispatchKeySet keys, const Tensor& self, Tensor& out, int64_t dim0, int64_t dim1) {
  without_derivative("tx::transpose_into", self, out, [&] {
    transpose_into_op().redispatch(keys & c10::after_autograd_keyset, self, out, dim0, dim1);
  });
}

void permute_into(c10::DispatchKeySet keys, const Tensor& self, Tensor& out, IntArrayRef dims) {
  without_derivative("tx::permute_into", self, out, [&] {
    permute_into_op().redispatch(keys & c10::after_autograd_keyset, self, out, dims);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(tx, Autograd, m) {
  m.impl("transpose", transpose);
  m.impl("transpose_into", transpose_into);
  m.impl("permute", permute);
  m.impl("permute_into", permute_into);
}

}  // namespace tx::ops
