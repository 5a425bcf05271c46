// A problem as a matrix, and the tile by which each of CUDA's 2-D kernels would move it: pure functions.
#pragma once

#include <cstdint>

#include "core/plan_cuda.h"
#include "core/tuning_cuda.h"

namespace tx {

// A problem as a matrix: its rows are the innermost dims of the output, its columns those of the input.
// Output rows run along the rows, one dim behind the other; rows = 0 where there are not so many such dims.
struct TileMatrix {
  int64_t rows = 0, cols = 0;
  int row_dim_count = 0, col_dim_count = 0;
  int row_dims[kMaxFusedDims], col_dims[kMaxFusedDims];  // fastest first

  bool has_row(int dim) const;
  bool has_col(int dim) const;
  bool has(int dim) const { return has_row(dim) || has_col(dim); }
};
TileMatrix tile_matrix(const Problem& problem, int row_dims, int col_dims, int step = 1);

// A matrix of few rows or few columns: `rows` long rows of `cols` elements lie `pitch` bytes apart in one
// memory; in the other their columns follow one another. rows = 0 where there are no two such dims.
struct NarrowMatrix {
  TileMatrix matrix;
  bool merges = false;  // the long rows are the input's
  int64_t rows = 0, cols = 0, pitch = 0;

  int row_dim() const { return merges ? matrix.row_dims[0] : matrix.col_dims[0]; }
  int col_dim() const { return merges ? matrix.col_dims[0] : matrix.row_dims[0]; }
};
NarrowMatrix narrow_matrix(const Problem& problem);

// Where output rows of a matrix begin, and how far apart input rows do, and where: a power of two divides all
// these addresses if it divides the result.
uint64_t output_row_addresses(const Problem& p, const TileMatrix& m);
uint64_t input_row_pitches(const Problem& p, const TileMatrix& m);
uint64_t input_row_addresses(const Problem& p, const TileMatrix& m);

// Part of the tiles' area that holds data.
double filled(int64_t extent, int64_t tile);
int64_t tile_count(const Problem& p, const int32_t* tile);

// Whether L2 is too small for most of what is read and written.
bool is_beyond_l2(const Problem& p, const DeviceFacts& facts);

// Problems of more bytes: for them the kernels' times are right, and sectors that blocks share cost
// something.
inline constexpr int64_t kManySmallTiles = 12 << 20;

// A row of kSmallVariants or kTileVariants, and what it makes of a matrix. -1: none.
struct TileChoice {
  int variant = -1;
  TileMatrix matrix;
  double time = 0;  // over a copy's
};

// The small tile that takes least time. None where the problem is too large and no tile spans it, or where
// too many dims lie beyond.
TileChoice choose_small(const Problem& p, const DeviceFacts& facts);

// The variant that takes least time and gives every SM work; of those that are nearly as fast, the first,
// whose tiles are larger. None where nothing is aligned.
TileChoice choose_tile(const Problem& p, const DeviceFacts& facts);

// Likewise of kUnalignedVariants, and its tile where that is fitted.
struct UnalignedChoice {
  int variant = -1;
  TileMatrix matrix;
  UnalignedTile tile;
  double time = 0;     // over a copy's
  bool idles = false;  // has no tile for most of the SMs
};

// Of how many dims rows and columns are made, and which tile takes them in the least time. Every element
// width and step has a tile for rows that begin anywhere.
UnalignedChoice choose_unaligned(const Problem& p, const DeviceFacts& facts);

// Likewise of kSpanVariants.
struct SpanChoice {
  int variant = -1;
  TileMatrix matrix;
  SpanTile tile;
};

// The tile whose warps have the most words to put together, and leave the fewest registers of an SM idle.
SpanChoice choose_span(const Problem& p);
// Whether that tile has lanes, banks and SMs busy enough to beat other kernels.
bool span_pays(const Problem& p, const SpanChoice& span, const DeviceFacts& facts);

// The matrix whose input rows follow one another without a gap, and whose output rows begin at vectors: rows
// = 0 where there is none.
TileMatrix gather_matrix(const Problem& p);

}  // namespace tx
