// Plans and runs one Problem on the backend its tensors live on.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "core/plan.h"

namespace tx::ops {

// The plan that a call on these tensors runs. `forced` names a kernel for tests; throws if it cannot run
// this.
Plan make_plan(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims,
               std::optional<Kernel> forced = std::nullopt);

// Fills `out` with self.permute(dims) on the current stream (CUDA) or torch's thread pool (CPU).
void run(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims,
         std::optional<Kernel> forced = std::nullopt);

// Fills each of `outs` with its self: problems that differ only in where they lie run in one launch, taking
// turns on the SMs. All are on one device; their bytes must not overlap.
void run_each(at::TensorList selves, at::TensorList outs, at::IntArrayRef dims);

// An uninitialised tensor of self.permute(dims)'s shape, contiguous, with self's options.
at::Tensor empty_permuted(const at::Tensor& self, at::IntArrayRef dims);

}  // namespace tx::ops
