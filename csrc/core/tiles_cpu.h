// The CPU kernels' tiles, for the planner that chooses them and the loops that run them: their sides, and
// what of them lies together in memory.
#pragma once

#include <cstdint>

#include "core/plan.h"

namespace tx {

struct Machine;

// A tile spans the last dim and at most one other, which is this function of the kernel and the problem; -1
// if none. For kTile and kStaged it is the dim that is contiguous in the input: a tile's rows. A fused tile
// spans plan.fused_cols last dims, and plan.fused_rows dims from this one on.
int tile_row_dim(Kernel kernel, const Problem& normalised);

// The dim that continues `row` in the input, which a fused tile's rows are numbered by too; -1 if none.
int next_row_dim(const Problem& normalised, int row);

// Most rows, and most columns, of a tile whose sides are several dims; runs, where they are merged or split.
inline constexpr int64_t kMostFused = 1024;

// Fused tiles of a few columns, less than a lane together, whose rows follow one another in the output: runs
// of them, as long as the first row dim, are merged of the columns. Or of a few rows whose columns follow one
// another in the input, where runs are split into rows. Neither what is dense on both sides.
enum class Runs : uint8_t { kNone, kMerged, kSplit };
Runs moved_runs(const Problem& normalised, int row);
Runs moved_runs(const Plan& plan);

// kRows: short runs that follow one another in the output, as plan.fused_cols = 2 says, are gathered about so
// many bytes at a time for each of so many rows at most, and streamed as whole lines.
inline constexpr int64_t kGatheredBytes = 1024, kGatheredRows = 64;

// Rows and columns of a whole tile.
int64_t tile_rows(const Plan& plan);
int64_t tile_cols(const Plan& plan);

// kTile: most rows of a tile that carries.
inline constexpr int64_t kCarriedRows = 4096;

// The first of the last dims whose part in a tile is one piece of the output, without a gap: its first column
// dim, or a row dim before that. Rows that differ in those alone are one row to kStaged, of which a whole
// tile has so many bytes.
int first_adjoining_dim(const Plan& plan);
int64_t adjoining_bytes(const Plan& plan);

// kStaged writes an output row when it has at least this much of it: whole lines, enough for a DRAM page to
// be opened.
inline constexpr int64_t kStagedRunBytes = 256;

// Of runs so long that are streamed, lines are asked for ahead; of shorter ones, the runs that come so many
// bytes later, or as many lines. (The lines of those of 64 x 197 x 12 x 72 -> 0,2,1,3, 4 bytes, .86 -> .50 of
// a copy.)
inline constexpr int64_t kLongRunBytes = 2048, kRunsAskedAhead = 4096;

// What kStaged may keep of all rows of a tile, kept small enough for a thread's stack and its L2 cache.
inline constexpr int64_t kStagingBytes = 256 << 10;

// Bytes that kStaged keeps of one row between two writes, and what that takes of the staging memory.
int64_t staged_row_bytes(const Plan& plan);
int64_t staged_pitch(int64_t row_bytes);

// How kStrided moves elements: gathered into rows of the output, one after the other; or, where they lie
// nearer to one another along input columns, a vector of each row, down all rows of a tile, from kApartBytes
// on; narrower ones, and few of those, by columns that are packed, into tiles of so many bytes at most, of
// which rows are made. Else one by one.
enum class Strided : uint8_t { kRows, kVectors, kPacked, kScattered };
Strided strided_way(const Problem& normalised);
inline constexpr int64_t kApartBytes = 4, kPackedBytes = 32 << 10;

// ---- For the planner.

// Whether rows, as long as the last dim, follow one another in the output.
bool rows_adjoin(const Problem& normalised, int row);

// Whether the micro-kernels split a few rows that lie side by side in the input, or merge a few columns that
// lie so in the output.
bool splits(const Problem& normalised, int row);
bool merges(const Problem& normalised, int row);

// How many dims each side of a tile is made of.
struct Sides {
  int row_dims = 1;
  int col_dims = 1;

  bool fuse() const { return row_dims > 1 || col_dims > 1; }
};
Sides fuse_sides(const Problem& normalised, int row, const Machine& machine);

// Whether all that is written are whole lines; merged, of rows that adjoin, but for the end of the last.
bool writes_whole_lines(const Problem& normalised, int row, bool merged);

}  // namespace tx
