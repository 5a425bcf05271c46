// The orders in which a direct tile's squares of vectors are moved.
#pragma once

#include <cstdint>

namespace tx {

enum class TileOrder : uint8_t {
  kInTurn,     // down, then across
  kCrosswise,  // two by two, corner after opposite corner
  kDiagonal,   // the same of several such, along diagonals
  kInBlocks    // several vectors on each side, one block read as another is written
};

}  // namespace tx
