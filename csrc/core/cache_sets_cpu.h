// Where rows of a tile meet in few sets of the caches, whose lines then wait for one another.
#pragma once

#include "core/machine_cpu.h"

namespace tx {

// Whether long rows of either side are whole multiples of so much apart that they meet in few sets of L1, in
// what is past L2.
bool rows_conflict(const Problem& normalised, int row, const Machine& machine);

// Whether they do where what they make is stored within the caches.
bool stored_rows_conflict(const Problem& normalised, const Machine& machine);

// Whether they do where tiles are moved crosswise.
bool crossing_rows_conflict(const Problem& normalised);

// Whether nearly all output rows of a vector's height have their lines in one set of L1, so that staging
// pays.
bool rows_meet(const Problem& normalised, int row, const Machine& machine);

// Whether input rows are whole quarters of a way of L1 apart.
inline bool in_rows_meet(const Problem& normalised) {
  return normalised.dims[normalised.rank - 1].in_stride % (kL1WayBytes / 4) == 0;
}

// Whether so many rows have too many of their lines in one set of L1 for a tile that high.
bool rows_crowd(const Problem& normalised, int row, int64_t rows, const Machine& machine);

// Whether those of a vector's height do in two sets, so that blocks pay.
bool rows_crowd_sets(const Problem& normalised, int row, const Machine& machine);

// Whether rows are so far apart that blocks pay, few or short as they may be.
bool rows_far_apart(const Problem& normalised, const Machine& machine);

// In how many sets of a cache rows so far apart have the lines that they begin in, and those after. A way is
// 64 times `set_bytes`: L1 has ways of 4 KiB, most L2 of 64.
int sets_of_rows(int64_t pitch, int64_t rows, int64_t set_bytes);

// How many of a tile's first output rows, of one dim or several, have their lines in one set of L1, or in two
// side by side.
int64_t rows_in_sets(const Problem& normalised, int row, int row_dims, int64_t tile_rows, int sets);

}  // namespace tx
