// Typed handles of the registered ops, found once each.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace tx::ops {

template <class Signature>
auto typed_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

inline auto& transpose_op() {
  static auto op = typed_op<at::Tensor(const at::Tensor&, int64_t, int64_t)>("tx::transpose");
  return op;
}

inline auto& permute_op() {
  static auto op = typed_op<at::Tensor(const at::Tensor&, at::IntArrayRef)>("tx::permute");
  return op;
}

inline auto& transpose_into_op() {
  static auto op = typed_op<void(const at::Tensor&, at::Tensor&, int64_t, int64_t)>("tx::transpose_into");
  return op;
}

inline auto& permute_into_op() {
  static auto op = typed_op<void(const at::Tensor&, at::Tensor&, at::IntArrayRef)>("tx::permute_into");
  return op;
}

}  // namespace tx::ops
