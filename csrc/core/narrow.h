// The narrow sides that the CPU's micro-kernels move in registers: told to the planner and to them alike.
#pragma once

#include <cstdint>

namespace tx {

// Whether `count` columns are split apart, or merged side by side, by kernels of their own: up to seven of
// any width, and eight bytes. Elements of other sizes (runs that stand for elements) never are.
constexpr bool is_narrow(int64_t count, int64_t element_bytes) {
  const bool plain = element_bytes <= 16 && (element_bytes & (element_bytes - 1)) == 0;
  return plain && count >= 2 && (count < 8 || (count == 8 && element_bytes == 1));
}

// Whether they make one or two lanes of 16 bytes, of eight elements and more: likewise.
constexpr bool is_narrow_in_lanes(int64_t count, int64_t element_bytes) {
  return count >= 8 && (count * element_bytes == 16 || count * element_bytes == 32);
}

// Whether they make somewhat less than one, two or four lanes: likewise.
constexpr bool is_short_of_lanes(int64_t count, int64_t element_bytes) {
  const int64_t bytes = count * element_bytes;
  return element_bytes <= 4 && count > 8 && bytes < 64 && bytes != 16 && bytes != 32;
}

}  // namespace tx
