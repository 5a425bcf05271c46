// From torch tensors to a Problem: dim wrapping and argument checks, shared by every op and backend.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/problem.h"

namespace tx::ops {

// `dims[i]` is the input dim that becomes output dim i. Both throw torch's own IndexError for a dim out of
// range.
at::DimVector transpose_dims(int64_t rank, int64_t dim0, int64_t dim1);
at::DimVector permute_dims(int64_t rank, at::IntArrayRef dims);

// Shape of self.permute(dims).
c10::SymDimVector permuted_sizes(const at::Tensor& self, at::IntArrayRef dims);

// Throws unless `out` can receive self.permute(dims): shape, dtype, device, no internal overlap, none with
// self.
void check_out(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims);

// The copy that fills `out` with self.permute(dims); both are strided tensors of one dtype.
Problem make_problem(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims);

}  // namespace tx::ops
