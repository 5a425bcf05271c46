// The runtime names that a group needs, for either compiler: CUDA's nvcc or HIP's hipcc.
#pragma once

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define LADDER_GPU(name) hip##name
#else
#include <cuda_runtime.h>
#define LADDER_GPU(name) cuda##name
#endif

namespace ladder {

using Stream = LADDER_GPU(Stream_t);
using Error = LADDER_GPU(Error_t);

constexpr Error kSuccess = LADDER_GPU(Success);

inline Error last_error() { return LADDER_GPU(GetLastError)(); }
inline const char* error_text(Error error) { return LADDER_GPU(GetErrorString)(error); }
inline Error get_device(int* device) { return LADDER_GPU(GetDevice)(device); }
inline Error set_device(int device) { return LADDER_GPU(SetDevice)(device); }

}  // namespace ladder
