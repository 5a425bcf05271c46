// The sufficient conditions behind the overlap checks.
#include "core/overlap.h"

#include <algorithm>
#include <numeric>

namespace tx {
namespace {

// span_bytes() of the dims whose stride is no multiple of `pitch`.
int64_t span_within(const Problem& p, int64_t Dim::* stride, int64_t pitch) {
  int64_t bytes = p.element_bytes;
  for (int d = 0; d < p.rank; ++d) {
    const int64_t s = p.dims[d].*stride;
    if (s % pitch != 0) bytes += (p.dims[d].extent - 1) * s;
  }
  return bytes;
}

// Intervals [a, a + a_bytes) and [b, b + b_bytes), each repeated every `pitch` bytes, do not meet.
bool disjoint_modulo(uint64_t a, int64_t a_bytes, uint64_t b, int64_t b_bytes, int64_t pitch) {
  const auto p = static_cast<uint64_t>(pitch);
  const auto gap =
      static_cast<int64_t>(b >= a ? (b - a) % p : (p - (a - b) % p) % p);  // from a up to the next b
  return gap >= a_bytes && pitch - gap >= b_bytes;
}

}  // namespace

bool output_may_overlap_itself(const Problem& p) {
  if (element_count(p) <= 1) return false;
  int order[kMaxDims];
  int count = 0;
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].extent > 1) order[count++] = d;
  }
  std::sort(order, order + count, [&](int x, int y) { return p.dims[x].out_stride < p.dims[y].out_stride; });
  int64_t reach = p.element_bytes;
  for (int i = 0; i < count; ++i) {
    const Dim& dim = p.dims[order[i]];
    if (dim.out_stride < reach) return true;
    reach += (dim.extent - 1) * dim.out_stride;
  }
  return false;
}

bool sides_may_overlap(const Problem& p) {
  if (element_count(p) == 0) return false;
  const uint64_t in = p.in_address, out = p.out_address;
  const auto end = [&](uint64_t base, int64_t Dim::* s) {
    return base + static_cast<uint64_t>(span_bytes(p, s));
  };
  if (end(in, &Dim::in_stride) <= out || end(out, &Dim::out_stride) <= in) return false;

  int64_t common = 0;
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].extent > 1) common = std::gcd(common, std::gcd(p.dims[d].in_stride, p.dims[d].out_stride));
  }
  if (common > 0 && disjoint_modulo(in, p.element_bytes, out, p.element_bytes, common)) return false;

  for (int d = 0; d < p.rank; ++d) {
    for (const int64_t pitch : {p.dims[d].in_stride, p.dims[d].out_stride}) {
      if (p.dims[d].extent < 2 || pitch == 0) continue;
      if (disjoint_modulo(in, span_within(p, &Dim::in_stride, pitch), out,
                          span_within(p, &Dim::out_stride, pitch), pitch)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace tx
