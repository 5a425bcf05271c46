// Kernels with one planted bug each, to show that each tool of compute-sanitizer would find it.
#include <cstdio>
#include <cstring>

__global__ void out_of_bounds(int* x) { x[threadIdx.x + 1024] = 1; }  // the allocation has 64

__global__ void race(int* x) {
  __shared__ int shared[64];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  x[threadIdx.x] = shared[63 - threadIdx.x];  // another warp's element, and no barrier
}

__global__ void uninitialised(int* x) { x[threadIdx.x] = x[threadIdx.x + 32] + 1; }

__global__ void divergent_barrier(int* x) {
  if (threadIdx.x < 16) __syncthreads();  // half a warp
  x[threadIdx.x] = 1;
}

int main(int argc, char** argv) {
  const char* tool = argc > 1 ? argv[1] : "";
  int* x = nullptr;
  if (cudaMalloc(&x, 64 * sizeof(int)) != cudaSuccess) return 2;
  if (std::strcmp(tool, "memcheck") == 0) out_of_bounds<<<1, 32>>>(x);
  if (std::strcmp(tool, "racecheck") == 0) race<<<1, 64>>>(x);
  if (std::strcmp(tool, "initcheck") == 0) uninitialised<<<1, 32>>>(x);
  if (std::strcmp(tool, "synccheck") == 0) divergent_barrier<<<1, 32>>>(x);
  cudaDeviceSynchronize();
  std::puts("ran");
  return 0;
}
