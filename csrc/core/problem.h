// The value every stage passes on: an out-of-place strided copy between two N-d layouts, measured in bytes.
#pragma once

#include <cstdint>
#include <string>

namespace tx {

inline constexpr int kMaxDims = 64;  // torch's own limit on rank

struct Dim {
  int64_t extent;
  int64_t in_stride;   // bytes; 0 for an expanded dim
  int64_t out_stride;  // bytes
};

// out[i0, i1, ...] = in[i0, i1, ...] for every index below the extents: dims are numbered as the output has
// them, outermost first, and a permutation shows only in the input strides. Addresses are carried for their
// alignment; planning never dereferences them.
struct Problem {
  int64_t element_bytes = 1;  // 1, 2, 4, 8 or 16
  int rank = 0;               // 0: a single element
  uint64_t in_address = 0;
  uint64_t out_address = 0;
  Dim dims[kMaxDims];  // entries at and past `rank` are unspecified
};

// Where a problem begins in both memories.
struct Place {
  const void* in;
  void* out;
};

bool operator==(const Problem& a, const Problem& b);

int64_t element_count(const Problem& p);  // 0 when any extent is 0

// Bytes from the first to the last one that is touched in one memory, of a problem that has elements.
int64_t span_bytes(const Problem& p, int64_t Dim::* stride);

// The output's innermost dim, where there is one.
inline int last(const Problem& p) { return p.rank - 1; }

std::string to_string(const Problem& p);

}  // namespace tx
