// Which lines are asked for ahead, and into which cache; and which the machine's prefetchers are kept from.
#pragma once

#include "core/machine_cpu.h"
#include "core/plan.h"

namespace tx {

// Whether direct tiles ask for the lines of tiles to come: where a vector is a line, but cores move it in
// halves, from where their own caches do not have them.
bool tiles_ask(const Problem& normalised, const Machine& machine);

// Whether a plan whose tile is chosen asks for lines ahead, as streamed tiles always do.
bool asks(const Plan& plan, const Machine& machine);

// Whether a plan that streams can ask for what is to come into L1: if it asks at all, and of kTile as its
// micro-kernels do.
bool can_ask_into_l1(const Plan& plan, const CpuFacts& facts);

// Whether it does.
bool asks_into_l1(const Plan& plan, const Machine& machine);

// Of how many of a direct tile's last rows each is moved to its end before the next; 0 if of none.
int edge_rows(const Plan& plan, const Machine& machine);

}  // namespace tx
