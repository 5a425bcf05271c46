// Chooses the CUDA kernel of a Problem: a pure function of the problem and the facts of a device.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"

namespace tx {

// What planning needs to know of a GPU. The defaults are an H200's, the one that the tables were measured on.
struct DeviceFacts {
  int sm_count = 132;
  int shared_per_block = 232448;  // bytes a block may opt in to
  int shared_per_sm = 233472;     // bytes
  int l2_bytes = 62914560;
  int arch = 90;  // compute capability, 10 x major + minor
};

// A plan depends on addresses only through their alignment to so many bytes.
inline constexpr uint64_t kAddressAlignment = 32;

// `alone`: a launch has this problem only. Else its blocks take turns with those of others, which is not for
// every kernel.
Plan plan_cuda(const Problem& problem, const DeviceFacts& facts, bool alone = true);

// The rule that keeps `kernel` from running a normalised problem, with the value that breaks it; empty if
// none.
std::string why_not_cuda(Kernel kernel, const Problem& normalised, const DeviceFacts& facts);

// The plan with `kernel` in place of the planner's choice. Precondition: why_not_cuda() is empty.
Plan plan_cuda_forced(const Problem& problem, const DeviceFacts& facts, Kernel kernel);

// Every kernel that CUDA has.
const std::vector<Kernel>& kernels_cuda();

}  // namespace tx
