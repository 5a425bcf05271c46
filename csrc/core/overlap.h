// Whether the two sides of a Problem, or its output alone, can touch one byte twice.
#pragma once

#include "core/problem.h"

namespace tx {

// Both answer "false" only when it is certain; deciding every case exactly is as hard as integer programming.

// True unless each output stride steps past everything that the smaller strides reach.
bool output_may_overlap_itself(const Problem& problem);

// True unless the sides are provably disjoint: apart as address ranges, on different residues of a common
// stride (every other element), or in different columns of a common row pitch (slices of one matrix).
bool sides_may_overlap(const Problem& problem);

}  // namespace tx
