// The one door to the CUDA kernels: runs a plan on a stream and reports what failed. Never throws.
#pragma once

#include <cuda_runtime_api.h>

#include "core/plan.h"
#include "core/plan_cuda.h"

namespace tx::cuda {

// Enqueues the plan for each place; its alignments hold for all of them. `device` is the current device and
// the stream's. No allocation, no synchronisation: legal during stream capture.
cudaError_t run(const Plan& plan, const Place* places, int count, int device, cudaStream_t stream);

// Facts of a device, read once and kept. `device` is a CUDA ordinal.
cudaError_t device_facts(int device, DeviceFacts& facts);

}  // namespace tx::cuda
