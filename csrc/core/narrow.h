// The narrow sides that the CPU's micro-kernels move in registers: told to the planner and to them alike.
#pragma once

#include <cstdint>

namespace tx {

// Whether `count` columns are split apart, or merged side by side, by kernels of their own: up to eight of
// less than a vector lane of 16 bytes, and the three channels of an image in any width.
// Elements of other sizes (runs that stand for elements) never are.
constexpr bool is_narrow(int64_t count, int64_t element_bytes) {
  const bool plain = element_bytes <= 16 && (element_bytes & (element_bytes - 1)) == 0;
  return plain && count >= 2 && (count * element_bytes < 16 ? count <= 8 : count == 3);
}

}  // namespace tx
