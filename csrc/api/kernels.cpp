// Checks a Permutation, plans it, and runs it with OpenMP's threads or on a CUDA stream.
#include "api/torch_transpose/kernels.h"

#include <omp.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "core/int_math.h"
#include "core/overlap.h"
#include "core/plan_cpu.h"
#include "cpu/run.h"

#ifdef TX_WITH_CUDA
#include "core/plan_cuda.h"
#include "cuda/run.h"
#endif

namespace tx {
namespace {

using Ints = std::vector<int64_t>;

template <class... Parts>
void check(bool holds, const Parts&... parts) {
  if (holds) return;
  std::ostringstream text;
  (text << "tx: " << ... << parts);
  throw std::invalid_argument(text.str());
}

Ints contiguous_strides(const Ints& sizes) {
  Ints strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0; step *= std::max<int64_t>(sizes[d], 1)) strides[d] = step;
  return strides;
}

// Throws unless the bytes from the first to the last element of a layout can be counted.
void check_reach(const Ints& sizes, const Ints& strides, int64_t element_bytes, const char* side) {
  int64_t reach = element_bytes;
  bool fits = true;
  for (size_t d = 0; d < sizes.size(); ++d) {
    check(strides[d] >= 0, side, "_strides must not be negative, got ", strides[d], " for dim ", d,
          ". Start from the last element's address and reverse that dim in the consumer instead.");
    int64_t bytes = 0;
    fits = fits && !__builtin_mul_overflow(std::max<int64_t>(sizes[d] - 1, 0), strides[d], &bytes) &&
           !__builtin_mul_overflow(bytes, element_bytes, &bytes) &&
           !__builtin_add_overflow(reach, bytes, &reach);
  }
  check(fits, side, "_strides and sizes must reach fewer than 2^63 bytes. Check them for garbage.");
}

Problem checked_problem(const Permutation& m, const void* in, void* out) {
  const size_t rank = m.sizes.size();
  const int64_t e = m.element_bytes;
  check(e == 1 || e == 2 || e == 4 || e == 8 || e == 16, "element_bytes must be 1, 2, 4, 8 or 16, got ", e,
        ". Describe wider elements by one more innermost dim.");
  check(rank <= static_cast<size_t>(kMaxDims), "at most ", kMaxDims, " dims, got ", rank,
        ". Fuse some of them first.");
  check(m.dims.size() == rank, "dims must name each of the ", rank, " dims once, got ", m.dims.size(),
        " entries.");
  int64_t count = e;
  for (size_t d = 0; d < rank; ++d) {
    check(m.sizes[d] >= 0, "sizes must not be negative, got ", m.sizes[d], " for dim ", d, ".");
    check(!__builtin_mul_overflow(count, std::max<int64_t>(m.sizes[d], 1), &count),
          "sizes must make fewer than 2^63 bytes. Check them for garbage.");
  }
  Ints out_sizes(rank);
  uint64_t seen = 0;
  for (size_t d = 0; d < rank; ++d) {
    const int64_t from = m.dims[d];
    check(from >= 0 && from < static_cast<int64_t>(rank), "dims must lie in 0..", rank, "-1, got ", from,
          ".");
    check(!(seen >> from & 1), "dims must not repeat, got ", from, " twice. Name each dim once.");
    seen |= uint64_t{1} << from;
    out_sizes[d] = m.sizes[from];
  }
  const Ints in_strides = m.in_strides.empty() ? contiguous_strides(m.sizes) : m.in_strides;
  const Ints out_strides = m.out_strides.empty() ? contiguous_strides(out_sizes) : m.out_strides;
  check(in_strides.size() == rank && out_strides.size() == rank,
        "in_strides and out_strides must be empty or have ", rank, " entries, got ", in_strides.size(),
        " and ", out_strides.size(), ".");
  check_reach(m.sizes, in_strides, e, "in");
  check_reach(out_sizes, out_strides, e, "out");

  Problem p;
  p.element_bytes = e;
  p.rank = static_cast<int>(rank);
  p.in_address = reinterpret_cast<uint64_t>(in);
  p.out_address = reinterpret_cast<uint64_t>(out);
  for (size_t d = 0; d < rank; ++d) p.dims[d] = {out_sizes[d], in_strides[m.dims[d]] * e, out_strides[d] * e};
  if (element_count(p) == 0) return p;
  check(in != nullptr && out != nullptr, "in and out must not be null unless a size is 0. Pass memory.");
  check(!output_may_overlap_itself(p),
        "out must not overlap itself: two of its elements may share memory. "
        "Pass out_strides under which all elements are distinct.");
  check(!sides_may_overlap(p),
        "out must not overlap in: both may reach into the same bytes. Give out memory of "
        "its own.");
  return p;
}

void with_openmp(int64_t begin, int64_t end, int64_t grain, cpu::RangeBody body) {
  const int64_t pieces = std::clamp<int64_t>(ceil_div(end - begin, grain), 1, omp_get_max_threads());
  const int64_t step = ceil_div(end - begin, pieces);
#pragma omp parallel for num_threads(static_cast<int>(pieces)) schedule(static, 1)
  for (int64_t piece = 0; piece < pieces; ++piece) {
    const int64_t first = begin + piece * step, last = std::min(end, first + step);
    if (first < last) body(first, last);
  }
}

}  // namespace

void permute_cpu(const Permutation& permutation, const void* in, void* out, int threads) {
  const Problem problem = checked_problem(permutation, in, out);
  check(threads >= 0, "threads must not be negative, got ", threads, ". 0 takes OpenMP's number.");
  check(cpu::isa_error().empty(), cpu::isa_error());
  const int most = omp_in_parallel() ? 1 : omp_get_max_threads();
  const Plan plan = plan_cpu(problem, cpu::facts(threads == 0 ? most : std::min(threads, most)));
  if (plan.kernel != Kernel::kNone) cpu::run(plan, in, out, with_openmp);
}

void permute_cuda(const Permutation& permutation, const void* in, void* out, CUstream_st* stream) {
  const Problem problem = checked_problem(permutation, in, out);
#ifdef TX_WITH_CUDA
  int device = 0;
  DeviceFacts facts;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) status = cuda::device_facts(device, facts);
  std::string what = "reading the properties of the current device";
  if (status == cudaSuccess) {
    const Plan plan = plan_cuda(problem, facts);
    if (plan.kernel == Kernel::kNone) return;
    const Place place{in, out};
    status = cuda::run(plan, &place, 1, device, stream);
    if (status == cudaSuccess) return;
    what = "launching " + to_string(plan);
  }
  throw std::runtime_error("tx: " + what + " failed: " + cudaGetErrorString(status));
#else
  static_cast<void>(problem);
  static_cast<void>(stream);
  throw std::runtime_error("tx: built without CUDA. Build it with TX_WITH_CUDA=1, or call permute_cpu.");
#endif
}

}  // namespace tx
