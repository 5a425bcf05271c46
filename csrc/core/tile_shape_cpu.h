// The shape of a CPU plan's tile.
#pragma once

#include "core/machine_cpu.h"
#include "core/plan.h"

namespace tx {

// Sets the tile of a plan whose kernel, stores, order, fused dims and threads are chosen.
void set_tile(Plan& plan, const Machine& machine);

}  // namespace tx
