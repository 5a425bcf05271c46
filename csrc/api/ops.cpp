// Calls of the registered ops through the dispatcher.
#include "api/torch_transpose/ops.h"

#include "ops/typed_ops.h"

namespace tx {

at::Tensor transpose(const at::Tensor& self, int64_t dim0, int64_t dim1) {
  return ops::transpose_op().call(self, dim0, dim1);
}

at::Tensor permute(const at::Tensor& self, at::IntArrayRef dims) {
  return ops::permute_op().call(self, dims);
}

void transpose_into(const at::Tensor& self, at::Tensor& out, int64_t dim0, int64_t dim1) {
  ops::transpose_into_op().call(self, out, dim0, dim1);
}

void permute_into(const at::Tensor& self, at::Tensor& out, at::IntArrayRef dims) {
  ops::permute_into_op().call(self, out, dims);
}

}  // namespace tx
