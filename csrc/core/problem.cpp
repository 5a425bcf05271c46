// Comparing, counting, measuring and printing a Problem.
#include "core/problem.h"

#include <sstream>

namespace tx {

bool operator==(const Problem& a, const Problem& b) {
  if (a.element_bytes != b.element_bytes || a.rank != b.rank || a.in_address != b.in_address ||
      a.out_address != b.out_address) {
    return false;
  }
  for (int d = 0; d < a.rank; ++d) {
    const Dim &x = a.dims[d], &y = b.dims[d];
    if (x.extent != y.extent || x.in_stride != y.in_stride || x.out_stride != y.out_stride) return false;
  }
  return true;
}

int64_t element_count(const Problem& p) {
  int64_t count = 1;
  for (int d = 0; d < p.rank; ++d) count *= p.dims[d].extent;
  return count;
}

int64_t span_bytes(const Problem& p, int64_t Dim::* stride) {
  int64_t bytes = p.element_bytes;
  for (int d = 0; d < p.rank; ++d) bytes += (p.dims[d].extent - 1) * (p.dims[d].*stride);
  return bytes;
}

std::string to_string(const Problem& p) {
  std::ostringstream s;
  const auto list = [&](const char* name, int64_t Dim::* field) {
    s << ", " << name << "=[";
    for (int d = 0; d < p.rank; ++d) s << (d ? ", " : "") << p.dims[d].*field;
    s << "]";
  };
  s << "element_bytes=" << p.element_bytes;
  list("extents", &Dim::extent);
  list("in_strides", &Dim::in_stride);
  list("out_strides", &Dim::out_stride);
  return s.str();
}

}  // namespace tx
