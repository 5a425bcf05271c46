// Integer helpers shared by planners and kernels: ceiling division, words, division by a run-time constant.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TX_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TX_HOST_DEVICE inline
#endif

namespace tx {

TX_HOST_DEVICE constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

TX_HOST_DEVICE constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// What lanes move at a time where they cannot move vectors: words of 4 bytes, or an element if wider.
TX_HOST_DEVICE constexpr int word_bytes(int64_t element_bytes) {
  return element_bytes > 4 ? static_cast<int>(element_bytes) : 4;
}

// The row of a table by element width, among others.
TX_HOST_DEVICE constexpr int log2_floor(int64_t n) {
  int log = 0;
  while (n >>= 1) ++log;
  return log;
}

struct QuotRem {
  uint32_t quot;
  uint32_t rem;
};

inline constexpr int64_t kFastDivLimit = int64_t{1} << 31;

// Division by a divisor known at launch, as one multiply-high and a shift.
// Invariant: dividends and divisors are below kFastDivLimit (every grid and tile count here is).
// Method: Granlund and Montgomery, "Division by invariant integers using multiplication" (1994): with
// s = ceil(log2 d) and m = ceil(2^(31 + s) / d) < 2^32, n / d == (n * m) >> (31 + s) for every n < 2^31;
// doubling n first makes the shift 32 + s, which is a multiply-high.
struct FastDiv {
  uint32_t divisor = 1;
  uint32_t magic = 1u << 31;
  uint32_t shift = 0;

  FastDiv() = default;
  explicit FastDiv(int64_t d) : divisor(static_cast<uint32_t>(d)) {
    while ((uint64_t{1} << shift) < static_cast<uint64_t>(d)) ++shift;
    magic = static_cast<uint32_t>(((uint64_t{1} << (31 + shift)) + static_cast<uint64_t>(d) - 1) /
                                  static_cast<uint64_t>(d));
  }

  TX_HOST_DEVICE QuotRem divmod(uint32_t n) const {
    const auto quot = static_cast<uint32_t>((static_cast<uint64_t>(2 * n) * magic) >> 32) >> shift;
    return {quot, n - quot * divisor};
  }
};

}  // namespace tx
