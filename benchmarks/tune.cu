// Times compiled variants of a 2-D kernel against a plain copy, after checking every byte. Driven by tune.py,
// which writes the variants to time into variants.inc and prints the rows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/tuning_cuda.h"
#include "cuda/kernel_simple.cuh"
#include "cuda/kernel_tile.cuh"
#include "cuda/kernel_tile_small.cuh"
#include "cuda/kernel_tile_unaligned.cuh"

namespace {

using namespace tx;
using namespace tx::cuda;

#define CHECK(call)                                                                         \
  do {                                                                                      \
    const cudaError_t status_ = (call);                                                     \
    if (status_ != cudaSuccess) {                                                           \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (0)

__device__ uint8_t hash_byte(uint64_t i) {
  uint64_t z = i * 0x9E3779B97F4A7C15ull;
  z ^= z >> 29;
  z *= 0xBF58476D1CE4E5B9ull;
  return static_cast<uint8_t>(z >> 56);
}

__global__ void fill(uint8_t* p, int64_t n) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) p[i] = hash_byte(i);
}

__global__ void count_wrong(const uint8_t* out, int64_t rows, int64_t cols, int element,
                            unsigned long long* wrong) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < rows * cols; i += gridDim.x * 256ll) {
    const int64_t col = i / rows, row = i % rows;
    for (int b = 0; b < element; ++b) {
      if (out[i * element + b] != hash_byte((row * cols + col) * element + b)) atomicAdd(wrong, 1ull);
    }
  }
}

struct Matrix {
  const uint8_t* in;
  uint8_t* out;
  int64_t rows, cols;
};

struct Variant {
  int element;
  std::string name;
  std::function<cudaError_t(const Matrix&)> run;
};

template <class Kernel, class Params>
cudaError_t launch(Kernel kernel, const Params& params, int64_t grid, int threads, int shared) {
  if (shared > 48 * 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (status != cudaSuccess) return status;
  }
  kernel<<<static_cast<unsigned>(grid), threads, shared>>>(params);
  return cudaGetLastError();
}

template <class C>
cudaError_t run_2d(void (*kernel)(TileParams), const Matrix& m, int64_t bands, int64_t strips, int shared) {
  TileParams p;
  p.batch.places[0] = {m.in, m.out};
  p.rows = m.rows;
  p.cols = m.cols;
  p.in_pitch = m.cols * C::kElement;
  p.out_pitch = m.rows * C::kElement;
  p.row_offsets.count = p.col_offsets.count = 1;
  p.row_offsets.stride[0] = p.in_pitch;
  p.col_offsets.stride[0] = p.out_pitch;
  p.bands = FastDiv(bands);
  p.groups = FastDiv(1);
  p.strips = FastDiv(strips);
  return launch(kernel, p, bands * strips, C::kThreads, shared);
}

template <class C>
cudaError_t run_tile(const Matrix& m) {
  constexpr TileVariant v{C::kElement, C::kInVectors * 16, C::kOutVectors * 16, 0, 0, false};
  return run_2d<C>(tile_kernel<C>, m, ceil_div(m.rows, C::kRows), ceil_div(m.cols, C::kCols),
                   v.shared_bytes());
}

template <class C>
cudaError_t run_small(const Matrix& m) {
  SmallParams p;
  p.place = {m.in, m.out};
  p.rows = static_cast<uint32_t>(m.rows);
  p.cols = static_cast<uint32_t>(m.cols);
  p.in_pitch = p.cols * C::kElement;
  p.out_pitch = p.rows * C::kElement;
  const dim3 grid(static_cast<unsigned>(ceil_div(m.rows, C::kRows)),
                  static_cast<unsigned>(ceil_div(m.cols, C::kCols)));
  small_kernel<C><<<grid, C::kThreads>>>(p);
  return cudaGetLastError();
}

template <class C>
cudaError_t run_unaligned(const Matrix& m) {
  return run_2d<C>(unaligned_kernel<C>, m, unaligned_bands(m.rows * C::kElement, C::kVariant),
                   ceil_div(m.cols, C::kCols), C::kVariant.shared_bytes());
}

std::vector<Variant> variants() {
  return {
#include "variants.inc"
  };
}

double median(std::vector<float> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

// Arguments: repeats, then pairs of rows and cols. Prints "element rows cols ceiling_gbps variant of_copy".
int main(int argc, char** argv) {
  const int repeats = std::atoi(argv[1]);
  const int64_t capacity = int64_t{5} << 30, flush_bytes = 256 << 20;
  uint8_t *in, *out, *flush;
  unsigned long long* wrong;
  CHECK(cudaMalloc(&in, capacity));
  CHECK(cudaMalloc(&out, capacity));
  CHECK(cudaMalloc(&flush, flush_bytes));
  CHECK(cudaMalloc(&wrong, sizeof *wrong));
  fill<<<2048, 256>>>(in, capacity);
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  const auto all = variants();
  // An idle GPU lowers its clocks: half a second of copies first.
  for (int i = 0; i < 250; ++i)
    CHECK(launch(copy_kernel, CopyParams{in, out, capacity}, capacity / 4096 + 1, 256, 0));
  for (int element : {1, 2, 4, 8, 16}) {
    for (int a = 2; a + 1 < argc; a += 2) {
      const Matrix m{in, out, std::atoll(argv[a]), std::atoll(argv[a + 1])};
      const int64_t bytes = m.rows * m.cols * element;
      if (bytes > capacity) continue;
      std::vector<const Variant*> mine;
      for (const Variant& v : all) {
        if (v.element != element) continue;
        CHECK(cudaMemset(out, 0xA5, bytes));
        CHECK(cudaMemset(wrong, 0, sizeof *wrong));
        const cudaError_t status = v.run(m);
        if (status != cudaSuccess) {
          std::printf("%d %ld %ld 0 %s refused:%s\n", element, m.rows, m.cols, v.name.c_str(),
                      cudaGetErrorName(status));
          cudaGetLastError();
          continue;
        }
        count_wrong<<<2048, 256>>>(out, m.rows, m.cols, element, wrong);
        unsigned long long bad = 0;
        CHECK(cudaMemcpy(&bad, wrong, sizeof bad, cudaMemcpyDeviceToHost));
        if (bad > 0) {
          std::printf("%d %ld %ld 0 %s WRONG:%llu\n", element, m.rows, m.cols, v.name.c_str(), bad);
        } else {
          mine.push_back(&v);
        }
      }
      if (mine.empty()) continue;
      std::vector<std::vector<float>> times(mine.size() + 1);
      const auto time = [&](auto run, std::vector<float>& into) {
        CHECK(cudaMemsetAsync(flush, 1, flush_bytes));
        CHECK(cudaEventRecord(begin));
        CHECK(run());
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        into.push_back(ms);
      };
      for (int r = 0; r < repeats; ++r) {
        time([&] { return launch(copy_kernel, CopyParams{in, out, bytes}, bytes / 4096 + 1, 256, 0); },
             times.back());
        for (size_t v = 0; v < mine.size(); ++v) time([&] { return mine[v]->run(m); }, times[v]);
      }
      const double copy = median(times.back());
      for (size_t v = 0; v < mine.size(); ++v) {
        std::printf("%d %ld %ld %.0f %s %.3f\n", element, m.rows, m.cols, 2e-6 * bytes / copy,
                    mine[v]->name.c_str(), copy / median(times[v]));
      }
      std::fflush(stdout);
    }
  }
}
