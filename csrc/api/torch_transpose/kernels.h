// Permutations of raw memory for C++ programs without torch: pointers, strides, and a thread count or a CUDA
// stream.
#pragma once

#include <cstdint>
#include <vector>

struct CUstream_st;  // cudaStream_t is a pointer to it, so that no CUDA header is needed here

namespace tx {

// out[i0, i1, ...] = in[...], where index `i[k]` of the output is index `dims[k]` of the input.
struct Permutation {
  int64_t element_bytes;             // 1, 2, 4, 8 or 16
  std::vector<int64_t> sizes;        // of the input; at most 64 dims
  std::vector<int64_t> dims;         // output dim k is input dim dims[k]
  std::vector<int64_t> in_strides;   // of the input's dims, in elements, not negative; empty: contiguous
  std::vector<int64_t> out_strides;  // of the output's dims, likewise
};

// Both throw std::invalid_argument, with nothing written, unless `dims` is a permutation, every field is as
// said above, sizes and strides reach fewer than 2^63 bytes, and the output's elements overlap neither one
// another nor the input. The pointers may have any alignment.

// On the calling thread and, where it pays, on up to `threads` in all; 0: as many as OpenMP gives.
void permute_cpu(const Permutation& permutation, const void* in, void* out, int threads = 0);

// Enqueued on `stream` of the current device; neither waits nor allocates. Throws std::runtime_error if the
// launch fails or the library was built without CUDA. The input must be readable from the first byte of its
// first element's aligned 16-byte granule to the last byte of its last element's: kernels load whole
// granules, and what lies between elements, and ignore what is not asked for. Memory of cudaMalloc always is;
// writes keep to the elements of the output.
void permute_cuda(const Permutation& permutation, const void* in, void* out, CUstream_st* stream);

}  // namespace tx
