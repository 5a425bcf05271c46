// Argument checks of the ops, and the Problem that a pair of tensors stands for.
#include "ops/tensor_problem.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/WrapDimUtils.h>
#include <c10/util/irange.h>

#include <numeric>

namespace tx::ops {

namespace {

void check_rank(int64_t rank) {
  TORCH_CHECK(rank <= kMaxDims, "tx: at most ", kMaxDims, " dimensions, got ", rank,
              ". Flatten some of them first.");
}

}  // namespace

at::DimVector transpose_dims(int64_t rank, int64_t dim0, int64_t dim1) {
  check_rank(rank);
  // Below rank 2 a default dim is out of range, so torch's own check reports it.
  dim0 = at::maybe_wrap_dim(dim0, rank);
  dim1 = at::maybe_wrap_dim(dim1, rank);
  at::DimVector dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  if (rank > 0) std::swap(dims[dim0], dims[dim1]);
  return dims;
}

at::DimVector permute_dims(int64_t rank, at::IntArrayRef dims) {
  check_rank(rank);
  TORCH_CHECK(static_cast<int64_t>(dims.size()) == rank,
              "tx::permute: dims must name every dimension of self once; self has ", rank,
              " dimensions, dims has ", dims.size(), " entries ", dims, ". Pass a permutation of 0..",
              rank - 1, ".");
  at::DimVector wrapped(rank);
  uint64_t seen = 0;
  static_assert(kMaxDims <= 64, "one bit a dim");
  for (const auto i : c10::irange(rank)) {
    const int64_t d = at::maybe_wrap_dim(dims[i], rank);
    TORCH_CHECK(!(seen >> d & 1), "tx::permute: dims must not repeat; dimension ", d, " appears twice in ",
                dims, ". Name each dimension once.");
    seen |= uint64_t{1} << d;
    wrapped[i] = d;
  }
  return wrapped;
}

c10::SymDimVector permuted_sizes(const at::Tensor& self, at::IntArrayRef dims) {
  const auto sizes = self.sym_sizes();
  c10::SymDimVector permuted;
  permuted.reserve(dims.size());
  for (const int64_t d : dims) permuted.push_back(sizes[d]);
  return permuted;
}

void check_out(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims) {
  TORCH_CHECK(out.layout() == at::kStrided, "tx: out must be a strided tensor, got layout ", out.layout(),
              ". Pass a dense tensor.");
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "tx: out must have self's dtype ", self.scalar_type(),
              ", got ", out.scalar_type(), ". Bytes are moved, never converted: convert self first.");
  TORCH_CHECK(out.device() == self.device(), "tx: out must be on self's device ", self.device(), ", got ",
              out.device(), ". Move one of them first.");
  const auto want = permuted_sizes(self, dims);
  const auto got = out.sym_sizes();
  bool same = want.size() == got.size();
  for (size_t d = 0; same && d < want.size(); ++d) same = want[d] == got[d];
  TORCH_CHECK(same, "tx: out must have shape ", c10::SymIntArrayRef(want), ", got ", got,
              ". out is never resized: allocate it with that shape.");
}

Problem make_problem(const at::Tensor& self, const at::Tensor& out, at::IntArrayRef dims) {
  Problem p;
  p.element_bytes = static_cast<int64_t>(self.element_size());
  p.rank = static_cast<int>(dims.size());
  p.in_address = reinterpret_cast<uint64_t>(self.const_data_ptr());
  p.out_address = reinterpret_cast<uint64_t>(out.const_data_ptr());
  const auto sizes = self.sizes(), in = self.strides(), to = out.strides();
  for (int d = 0; d < p.rank; ++d) {
    p.dims[d] = {sizes[dims[d]], in[dims[d]] * p.element_bytes, to[d] * p.element_bytes};
  }
  return p;
}

}  // namespace tx::ops
