// The order in which direct tiles are moved: in turn, crosswise or in blocks.
#pragma once

#include "core/machine_cpu.h"
#include "core/plan.h"

namespace tx {

// Of a plan of kTile that is not fused, whose stores are chosen.
TileOrder tile_order(const Plan& plan, const Machine& machine);

// Whether tiles that are stored within the caches go in blocks, or low ones in turn, lest their rows
// conflict.
bool tiles_avoid_conflicts(const Problem& normalised, const Machine& machine);

}  // namespace tx
