// The CPU's pieces: small permutations, for the planner that chooses them and the loops that run them.
#pragma once

#include <cstdint>

#include "core/plan.h"

namespace tx {

struct Machine;

// What kPieces moves at a time: some dims of a problem, whole. `rows` of them, each of which continues the
// one before, are a run of the input, and the last `cols`, which may be the same, a run of the output; a
// piece has as many runs on either side as its other dims have indices. No piece: no dims.
struct PieceDims {
  int rows = 0;
  int cols = 0;
  int64_t bytes = 0;
};

// Most bytes of a piece. Of several runs, most lines that these begin, of the input and of the output.
inline constexpr int64_t kMostPieceBytes = 1024;
inline constexpr int kMostSources = 8, kMostResults = 16;

// The largest piece of at most so many bytes that is one run on both sides, and does not have all dims.
PieceDims dense_piece(const Problem& normalised, int64_t most_bytes);

// That of a plan.
PieceDims piece_dims(const Plan& plan);

// A piece's dims as bits, and the dims beyond it, the innermost of the output first.
uint64_t piece_dim_bits(const Problem& normalised, const PieceDims& piece);
struct BatchDims {
  int dims[kMaxDims];
  int count = 0;
};
BatchDims batch_dims(const Problem& normalised, const PieceDims& piece);

// Whether a piece is one run on both sides.
bool is_dense(const Problem& normalised, const PieceDims& piece);

// A piece's runs on one side, in bytes from its first.
struct PieceRuns {
  int64_t bytes = 0;
  int count = 0;
  int64_t at[kMostResults];
};

// What a piece moves: its runs, and for each byte of those of the output, one after another, which byte of
// the input's, likewise.
struct PieceMap {
  PieceRuns in;
  PieceRuns out;
  uint16_t source[kMostPieceBytes];
};
PieceMap piece_map(const Plan& plan);

// Pieces that a tile has, about: where they are gathered to be streamed, and else. Streamed 16, 4 and 1 KiB
// at a time, of a copy (Zen 5): 400000 x 3 x 5 -> 0,2,1 in 1 byte .65 .92 .92, in 4 .72 .93 .91, in 8 .75 .89
// .90, 300000 x 5 x 5 in 4 .65 .92 .96, 400000 x 3 x 3 x 3 -> 0,2,1,3 in 4 .66 .91 .77.
inline constexpr int64_t kStreamedPiecesBytes = 4 << 10, kPiecesBytes = 16 << 10;
// Of several runs, from so many eighths of the last cache on and unless gathered, first so many bytes that
// lie together in the input, wherever they go. Not so -> so, times as fast as in tiles, Zen 4, one thread, 56
// x 4 x 48 x 64 x 24 -> 3,0,2,4,1 in 2 bytes .94 -> 2.8, 56 x 4 x 8 x 16 x 16 x 16 -> 4,2,3,0,5,1 in 4 .50
// -> 1.9; but 28 x 96 x 12 x 2 x 8 x 4 -> 2,3,0,5,1,4 in 4, 8 MB, 2.1 -> 1.3.
inline constexpr int64_t kNearBytes = 2 << 10;
inline constexpr int kNearFills = 6;

// Ways to stream: whether all that is written are whole lines; and whether pieces can be gathered, which
// follow one another in the output.
bool writes_whole_lines(const Problem& normalised, const PieceDims& piece);
bool can_gather(const Problem& normalised, const PieceDims& piece);

// ---- For the planner.

// A problem, of which a dim may be made two, and its piece.
struct PieceChoice {
  Problem problem;
  PieceDims piece;
};

// The piece of several runs on a side that takes the fewest instructions a byte; none if all take many. Of
// those, where it is to be streamed, that can be.
PieceChoice piece_of_runs(const Problem& normalised, bool streams);

// The tile of a plan whose stores and piece are chosen.
void set_pieces_tile(Plan& plan, const Machine& machine);

}  // namespace tx
