// The order in which direct tiles are moved: in turn, crosswise or in blocks.
#pragma once

#include "core/machine_cpu.h"
#include "core/plan.h"

namespace tx {

// Of a plan of kTile that is not fused, whose stores are chosen.
TileOrder tile_order(const Plan& plan, const Machine& machine);

// Whether tiles would go in blocks if they were stored within the caches.
bool stored_in_blocks(const Problem& normalised, const Machine& machine);

}  // namespace tx
