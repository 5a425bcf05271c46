// Rewrites a Problem into the simplest one that moves the same bytes to the same places.
#pragma once

#include "core/problem.h"

namespace tx {

// In this order:
//   1. a zero extent leaves one dim of extent 0; size-1 dims are dropped; an element that its address or
//   strides
//      do not align becomes a dim of narrower ones;
//   2. dims are sorted by output stride, largest first, so the last dim is the output's innermost;
//   3. neighbours that are one dim in both layouts are fused;
//   4. the element is widened, up to 16 bytes, when an innermost run is contiguous on both sides and the
//      run's length, every other stride and both addresses are multiples of the wider element.
Problem normalize(const Problem& problem);

}  // namespace tx
