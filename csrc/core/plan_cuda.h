// Chooses the CUDA kernel of a Problem: a pure function of the problem and the facts of a device.
#pragma once

#include <string>
#include <vector>

#include "core/plan.h"

namespace tx {

// What planning needs to know of a GPU. The defaults are an H200's, the one that the tables were measured on.
struct DeviceFacts {
  int sm_count = 132;
  int shared_per_block = 232448;  // bytes a block may opt in to
  int shared_per_sm = 233472;     // bytes
  int l2_bytes = 62914560;
  int arch = 90;  // compute capability, 10 x major + minor
};

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

// A plan depends on addresses only through their alignment to so many bytes.
inline constexpr uint64_t kAddressAlignment = 32;

// `alone`: a launch has this problem only. Else its blocks take turns with those of others, which is not for
// every kernel.
Plan plan_cuda(const Problem& problem, const DeviceFacts& facts, bool alone = true);

// The rule that keeps `kernel` from running a normalised problem, with the value that breaks it; empty if
// none.
std::string why_not_cuda(Kernel kernel, const Problem& normalised, const DeviceFacts& facts);

// The plan with `kernel` in place of the planner's choice. Precondition: why_not_cuda() is empty.
Plan plan_cuda_forced(const Problem& problem, const DeviceFacts& facts, Kernel kernel);

// Every kernel that CUDA has.
const std::vector<Kernel>& kernels_cuda();

}  // namespace tx
