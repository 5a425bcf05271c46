// The rewriting steps of normalize().
#include "core/normalize.h"

namespace tx {
namespace {

constexpr int64_t kWidestElement = 16;

// Memory from elsewhere may be aligned less than its element: such an element becomes a dim of narrower ones.
void narrow_element(Problem& p) {
  uint64_t bits = p.in_address | p.out_address;
  for (int d = 0; d < p.rank; ++d) bits |= static_cast<uint64_t>(p.dims[d].in_stride | p.dims[d].out_stride);
  int64_t width = p.element_bytes;
  while (bits % static_cast<uint64_t>(width) != 0) width /= 2;
  if (width == p.element_bytes || p.rank == kMaxDims) return;
  p.dims[p.rank++] = {p.element_bytes / width, width, width};
  p.element_bytes = width;
}

void drop_unit_dims(Problem& p) {
  int kept = 0;
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].extent == 0) {
      p.dims[0] = {0, p.element_bytes, p.element_bytes};
      p.rank = 1;
      return;
    }
    if (p.dims[d].extent != 1) p.dims[kept++] = p.dims[d];
  }
  p.rank = kept;
}

// Stable insertion sort: rank is small, and an output in canonical order is already sorted.
void sort_by_output(Problem& p) {
  for (int d = 1; d < p.rank; ++d) {
    const Dim moving = p.dims[d];
    int at = d;
    for (; at > 0 && p.dims[at - 1].out_stride < moving.out_stride; --at) p.dims[at] = p.dims[at - 1];
    p.dims[at] = moving;
  }
}

void fuse_neighbours(Problem& p) {
  int last = 0;
  for (int d = 1; d < p.rank; ++d) {
    Dim& outer = p.dims[last];
    const Dim& inner = p.dims[d];
    const bool one_dim_in_input = outer.in_stride == inner.in_stride * inner.extent;
    const bool one_dim_in_output = outer.out_stride == inner.out_stride * inner.extent;
    if (one_dim_in_input && one_dim_in_output) {
      outer = {outer.extent * inner.extent, inner.in_stride, inner.out_stride};
    } else {
      p.dims[++last] = inner;
    }
  }
  if (p.rank > 0) p.rank = last + 1;
}

void widen_element(Problem& p) {
  if (p.rank == 0) return;
  Dim& run = p.dims[p.rank - 1];
  if (run.extent == 0 || run.in_stride != p.element_bytes || run.out_stride != p.element_bytes) return;
  // A power of two divides every one of these values exactly when it divides their bitwise or.
  uint64_t bits = static_cast<uint64_t>(run.extent * p.element_bytes) | p.in_address | p.out_address;
  for (int d = 0; d + 1 < p.rank; ++d)
    bits |= static_cast<uint64_t>(p.dims[d].in_stride | p.dims[d].out_stride);
  int64_t width = kWidestElement;
  while (width > p.element_bytes && bits % static_cast<uint64_t>(width) != 0) width /= 2;
  run = {run.extent * p.element_bytes / width, width, width};
  p.element_bytes = width;
  if (run.extent == 1) --p.rank;
}

}  // namespace

Problem normalize(const Problem& problem) {
  Problem p = problem;
  drop_unit_dims(p);
  narrow_element(p);
  sort_by_output(p);
  fuse_neighbours(p);
  widen_element(p);
  return p;
}

}  // namespace tx
