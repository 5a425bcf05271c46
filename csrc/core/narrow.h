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

}  // namespace tx
