// What is written past the caches, and from when on.
#pragma once

#include "core/machine_cpu.h"
#include "core/plan.h"

namespace tx {

// Whether what a plan writes, whose kernel is chosen, is streamed; tiles also where their lines are carried.
bool streams(const Plan& plan, const Machine& machine);

// Whether direct tiles are streamed as whole lines.
bool streams_tiles(const Problem& normalised, const Machine& machine);

// kTile: whether its micro-kernels can stream to the problem's rows, at any pitch.
bool can_carry_rows(const Problem& normalised, const CpuFacts& facts);

// Whether that pays.
bool carries_rows(const Problem& normalised, const Machine& machine);

// Whether tiles write whole lines, asked for before, that stay within the caches.
bool keeps_lines(const Problem& normalised, const Machine& machine);

// Whether what is staged is streamed.
bool stages_beyond_caches(const Problem& normalised, const Machine& machine);

// Whether runs are shorter than lines, and follow one another in the output, so that they are gathered.
bool gathers_runs(const Problem& normalised);

// Whether runs that would be staged as elements are better streamed one by one.
bool streams_long_runs(const Problem& of_runs, const Machine& machine);

}  // namespace tx
