// Times compiled variants of a kernel against a plain copy, after checking every byte. Driven by tune.py,
// which writes the variants to time into variants.inc and prints the rows.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/plan_cuda.h"
#include "core/tuning_cuda.h"
#include "cuda/kernel_tile.cuh"
#include "cuda/kernel_tile_small.cuh"
#include "cuda/kernel_tile_unaligned.cuh"
#include "cuda/run.h"

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

__global__ void count_wrong(const uint8_t* out, const __grid_constant__ Problem p, int64_t count,
                            unsigned long long* wrong) {
  for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    int64_t rest = i, from = 0, to = 0;
    for (int d = p.rank - 1; d >= 0; --d) {
      from += rest % p.dims[d].extent * p.dims[d].in_stride;
      to += rest % p.dims[d].extent * p.dims[d].out_stride;
      rest /= p.dims[d].extent;
    }
    for (int b = 0; b < p.element_bytes; ++b) {
      if (out[to + b] != hash_byte(from + b)) atomicAdd(wrong, 1ull);
    }
  }
}

using Run = std::function<cudaError_t()>;

struct Variant {
  std::string name;
  Run (*prepare)(const Problem&);  // all that is not to be timed
};

[[maybe_unused]] Run refused() {
  return [] { return cudaErrorNotSupported; };
}

// What the library launches when `kernel` is forced, with the numbers of tuning_cuda.h that this program has.
template <Kernel kernel>
Run run_planned(const Problem& p) {
  DeviceFacts facts;
  CHECK(device_facts(0, facts));
  const Plan plan = plan_cuda_forced(p, facts, kernel);
  if (!why_not_cuda(kernel, plan.problem, facts).empty()) return refused();
  const Place place{reinterpret_cast<const void*>(p.in_address), reinterpret_cast<void*>(p.out_address)};
  return [=] { return run(plan, &place, 1, 0, nullptr); };
}

struct Matrix {
  const uint8_t* in;
  uint8_t* out;
  int64_t rows, cols;

  explicit Matrix(const Problem& p)
      : in(reinterpret_cast<const uint8_t*>(p.in_address)),
        out(reinterpret_cast<uint8_t*>(p.out_address)),
        rows(p.dims[1].extent),
        cols(p.dims[0].extent) {}
};

[[maybe_unused]] bool is_transpose(const Problem& p) {
  return p.rank == 2 && p.dims[0].in_stride == p.element_bytes;
}

template <class Kernel, class Params>
cudaError_t launch(Kernel kernel, const Params& params, dim3 grid, int threads, int shared) {
  if (shared > 48 * 1024) {
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (status != cudaSuccess) return status;
  }
  kernel<<<grid, threads, shared>>>(params);
  return cudaGetLastError();
}

template <class C>
Run run_2d(void (*kernel)(TileParams), const Matrix& m, int64_t bands, int64_t strips, int shared) {
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
  const dim3 grid(static_cast<unsigned>(bands * strips));
  return [=] { return launch(kernel, p, grid, C::kThreads, shared); };
}

template <class C>
Run run_tile(const Problem& p) {
  if (!is_transpose(p)) return refused();
  const Matrix m(p);
  constexpr TileVariant v{C::kElement, C::kInVectors * 16, C::kOutVectors * 16, 0, 0, false};
  return run_2d<C>(tile_kernel<C>, m, ceil_div(m.rows, C::kRows), ceil_div(m.cols, C::kCols),
                   v.shared_bytes());
}

// A tile of small problems as it is compiled for those that keep nothing in L2: what a sweep times.
template <int Element, int Rows, int Cols, int Threads, bool Vectors>
using SweptSmall = SmallConfig<Element, Rows, Cols, Threads, Vectors, false>;

template <class C>
Run run_small(const Problem& problem) {
  if (!is_transpose(problem)) return refused();
  const Matrix m(problem);
  SmallParams p;
  p.place = {m.in, m.out};
  p.rows = static_cast<uint32_t>(m.rows);
  p.cols = static_cast<uint32_t>(m.cols);
  p.in_pitch = p.cols * C::kElement;
  p.out_pitch = p.rows * C::kElement;
  const dim3 grid(static_cast<unsigned>(ceil_div(m.rows, C::kRows)),
                  static_cast<unsigned>(ceil_div(m.cols, C::kCols)));
  return [=] { return launch(small_kernel<C>, p, grid, C::kThreads, 0); };
}

template <class C>
Run run_unaligned(const Problem& p) {
  if (!is_transpose(p)) return refused();
  const Matrix m(p);
  constexpr UnalignedVariant v = C::kVariant;
  if (m.cols * C::kElement % v.in_align != 0 || m.rows * C::kElement % v.out_align != 0) return refused();
  return run_2d<C>(unaligned_kernel<C>, m, unaligned_bands(m.rows, C::kRows, v), ceil_div(m.cols, C::kCols),
                   v.shared_bytes());
}

std::vector<Variant> variants() {
  return {
#include "variants.inc"
  };
}

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> found;
  for (const char* at = text.c_str(); *at != 0;) {
    char* end = nullptr;
    found.push_back(std::strtoll(at, &end, 10));
    at = *end == 0 ? end : end + 1;
  }
  return found;
}

// "2x3x5:2,0,1": the extents of a contiguous input, and the input's dim that each dim of the output is.
Problem problem_of(const std::string& text, int element, const void* in, void* out) {
  const std::vector<int64_t> extents = numbers(text.substr(0, text.find(':')));
  const std::vector<int64_t> dims = numbers(text.substr(text.find(':') + 1));
  Problem p;
  p.element_bytes = element;
  p.rank = static_cast<int>(extents.size());
  p.in_address = reinterpret_cast<uintptr_t>(in);
  p.out_address = reinterpret_cast<uintptr_t>(out);
  std::vector<int64_t> in_stride(extents.size());
  int64_t stride = element;
  for (int d = p.rank - 1; d >= 0; --d) in_stride[d] = stride, stride *= extents[d];
  stride = element;
  for (int d = p.rank - 1; d >= 0; --d) {
    p.dims[d] = {extents[dims[d]], in_stride[dims[d]], stride};
    stride *= p.dims[d].extent;
  }
  return p;
}

double median(std::vector<float> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

}  // namespace

// Arguments: repeats, bytes of an element, "kernel" or "memcpy" (the copy to compare with), problems. Prints
// "problem variant of_copy".
int main(int argc, char** argv) {
  const int repeats = std::atoi(argv[1]), element = std::atoi(argv[2]);
  const bool by_kernel = argv[3] == std::string("kernel");
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
  // An idle GPU lowers its clocks: half a second of copies first.
  for (int i = 0; i < 250; ++i) CHECK(cudaMemcpyAsync(out, in, capacity, cudaMemcpyDeviceToDevice));
  for (int a = 4; a < argc; ++a) {
    const Problem problem = problem_of(argv[a], element, in, out);
    const int64_t count = element_count(problem), bytes = count * element;
    if (bytes > capacity) {
      std::fprintf(stderr, "%s of %d bytes: left out, it needs %ld bytes\n", argv[a], element, bytes);
      continue;
    }
    const Problem bare = problem_of(std::to_string(count) + ":0", element, in, out);
    std::vector<Run> runs = {by_kernel ? run_planned<Kernel::kCopy>(bare) : Run([=] {
      return cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice);
    })};
    std::vector<std::string> names = {""};
    for (const Variant& v : variants()) {
      const Run run = v.prepare(problem);
      CHECK(cudaMemset(out, 0xA5, bytes));
      CHECK(cudaMemset(wrong, 0, sizeof *wrong));
      const cudaError_t status = run();
      if (status != cudaSuccess) {
        std::printf("%s %s refused:%s\n", argv[a], v.name.c_str(), cudaGetErrorName(status));
        cudaGetLastError();
        continue;
      }
      count_wrong<<<2048, 256>>>(out, problem, count, wrong);
      unsigned long long bad = 0;
      CHECK(cudaMemcpy(&bad, wrong, sizeof bad, cudaMemcpyDeviceToHost));
      if (bad > 0) {
        std::printf("%s %s WRONG:%llu\n", argv[a], v.name.c_str(), bad);
      } else {
        runs.push_back(run);
        names.push_back(v.name);
      }
    }
    std::vector<std::vector<float>> times(runs.size());
    for (int r = 0; r < repeats; ++r) {
      for (size_t v = 0; v < runs.size(); ++v) {
        CHECK(cudaMemsetAsync(flush, 1, flush_bytes));
        CHECK(cudaEventRecord(begin));
        CHECK(runs[v]());
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        times[v].push_back(ms);
      }
    }
    for (size_t v = 1; v < runs.size(); ++v) {
      std::printf("%s %s %.3f\n", argv[a], names[v].c_str(), median(times[0]) / median(times[v]));
    }
    std::fflush(stdout);
  }
}
