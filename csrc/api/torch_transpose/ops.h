// The ops for C++ programs with LibTorch: what torch.ops.tx is to Python, gradients included.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tx {

// self.transpose(dim0, dim1), or self.permute(dims), as a new contiguous tensor.
at::Tensor transpose(const at::Tensor& self, int64_t dim0 = -2, int64_t dim1 = -1);
at::Tensor permute(const at::Tensor& self, at::IntArrayRef dims);

// The same into `out`: the result's shape, self's dtype and device, no memory shared with self. Not
// differentiable.
void transpose_into(const at::Tensor& self, at::Tensor& out, int64_t dim0 = -2, int64_t dim1 = -1);
void permute_into(const at::Tensor& self, at::Tensor& out, at::IntArrayRef dims);

}  // namespace tx
