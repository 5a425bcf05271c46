// Permutations that are gathered from pieces in shared memory: which pieces, and in what order of words.
#pragma once

#include <cstdint>

#include "core/plan.h"
#include "core/tuning_cuda.h"

namespace tx {

// A batch of small permutations, dense on both sides: pieces of the output that are the same pieces of the
// input in another order.
struct Period {
  int64_t piece = 0;  // elements; 0 where the problem is none
  int64_t words = 0;  // of whole pieces, which are gathered by as many threads at once or in a few turns
  int64_t chunk_bytes = 0;  // whole periods and whole vectors, for a block
  int threads = 0;
};
Period find_period(const Problem& problem);

// A piece on one side: runs of consecutive bytes.
struct PieceSide {
  int64_t run_bytes = 0;
  int64_t runs = 1;
  int run_dims = 0;                      // along which one run follows another
  int run_dim[kMaxPieceDims];            // entries of Pieces::dim, of the least stride first
  int64_t shared_stride[kMaxPieceDims];  // bytes in shared memory between neighbours along each Pieces::dim
};

// Equal parts of a problem, of so many elements along each dim, for whatever lies in long runs on both sides.
struct Pieces {
  int64_t piece = 0;  // elements; 0 where the kernel cannot take it
  int64_t count = 0;
  int32_t tile[kMaxDims];
  int dims = 0;            // of which it has several elements
  int dim[kMaxPieceDims];  // the innermost of the output first
  PieceSide in, out;
  int64_t words = 0;   // of the output's runs, the last one of each perhaps in part
  int variant = 0;     // row of kPiecesSlots, the words of a thread
  int threads = 0;     // of a block
  int slot_bytes = 0;  // of shared memory, for a piece

  int cut = -1;  // the dim of which it has several elements, but not all, if there is one

  bool is_dense() const { return in.runs == 1 && out.runs == 1 && cut < 0; }
};
Pieces pieces_of(const Problem& problem, const int32_t* tile);
// Those that the planner chooses.
Pieces find_pieces(const Problem& problem);

// How far apart words are that the lanes of a warp gather from a piece, and the wavefronts of shared memory
// that 128 bytes of them take.
struct WordOrder {
  int step = 1;
  double wavefronts = 0;
};

// What words are gathered from: pieces of `piece` elements, one behind the other. Their dims, the fastest
// first, are `strides` bytes apart. Words are those of runs of `run` elements; of all pieces, where a run is
// one.
struct Gather {
  int dims;
  const int32_t* extents;
  const int64_t* strides;
  int64_t piece, run;
};

WordOrder choose_word_order(const Gather& gather, int64_t element_bytes, int64_t words);

}  // namespace tx
