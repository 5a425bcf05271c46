// The choice of a kernel and its parameters, as a value that prints, compares and can be forced.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/staged_tile.h"
#include "core/tile_order.h"

namespace tx {

// Dims beyond a kernel's tile that a block's number is decoded into.
inline constexpr int kMaxOuterDims = 16;
// The same of the kernel of small tiles.
inline constexpr int kMaxSmallOuterDims = 4;
// Blocks of a grid along y, and along z; along x 2^31 - 1.
inline constexpr int64_t kMostAlongY = 65535;
// Dims that the 2-D kernels take as one, on either side: so many where fewer make a short side, else few.
inline constexpr int kMaxFusedDims = 7;
inline constexpr int kFewFusedDims = 3;

// Dims of a small permutation that the periodic kernel takes, and that of pieces; and dims beyond pieces.
inline constexpr int kMaxPieceDims = 6;
inline constexpr int kMaxPieceOuterDims = 8;

enum class Backend : uint8_t { kCpu, kCuda };
enum class Stores : uint8_t { kOrdinary, kStreaming };

// One name a kernel family, shared by both backends.
enum class Kernel : uint8_t {
  kNone,           // nothing to move
  kCopy,           // one run, contiguous on both sides
  kRows,           // many runs, each contiguous on both sides: no element changes its neighbour
  kTile,           // 2-D tiles between two different innermost dims; on CUDA aligned ones
  kTileSmall,      // small ones: small problems, narrow matrices
  kNarrow,         // few long rows, or columns, that lie side by side in one memory, element by element
  kPeriodic,       // many small permutations, one behind the other on both sides
  kPieces,         // larger ones of long runs, wherever each lies; on the CPU the smaller ones too
  kTileUnaligned,  // at any pitch and address, where rows or columns are several dims too
  kTileSpan,       // of whole output rows, which are short and follow one another
  kTileGather,     // of whole input rows, likewise; output rows begin at vectors
  kStaged,         // tiles over the innermost dims of both sides, moved through fast memory as runs
  kStrided,        // any strides at all
};

struct Plan {
  Backend backend = Backend::kCpu;
  Kernel kernel = Kernel::kNone;
  Problem problem;         // normalised; CPU, tile and staged: elements may be runs; pieces: one dim may be
                           // two
  int32_t tile[kMaxDims];  // extent of one tile along each dim; entries at and past rank unspecified
  StagedLayout layout;     // of the staged kernel's tile
  int variant = 0;         // CUDA: row of the kernel's table in tuning_cuda.h; narrow: 0 by words, else one
                           // less than the rows that go by vectors; rows: 1 where runs are long; copy: 1
                           // if it is short; strided: strided_variant()
  int64_t grid = 0;        // CUDA: blocks, all along x
  int block = 0;           // CUDA: threads a block
  int shared_bytes = 0;    // CUDA: dynamic shared memory a block
  int64_t group = 0;       // CUDA, 2-D tiles: tiles along an output row before the next strip of columns;
                           // pieces: of a block
  int first_beyond = -1;   // CUDA, 2-D tiles: dim beyond a tile that its neighbours go along first; -1: the
                           // innermost of the output
  int fused_rows = 1;      // CUDA, rows and tiles: dims, from the innermost on, that are one in the output;
                           // CPU, tile and staged: dims that number a tile's rows, contiguous in the input;
                           // pieces: dims of a run of the input
  int fused_cols = 1;      // likewise in the input; its columns, contiguous in the output; CPU, rows: 2 where
                           // several short runs are gathered for a row, pieces: dims of a run of the output
  int step = 1;            // CUDA, tile_unaligned: elements between neighbours of an input row
  int word_step = 1;       // CUDA, periodic, pieces: words between the lanes of a warp
  bool keep = false;       // CUDA: L2 is asked to keep lines of the input longer than those of the output
  bool release = false;    // CUDA: and no longer, once what was read of them is stored
  int threads = 0;         // CPU: most threads that take part
  Stores stores = Stores::kOrdinary;     // CPU
  TileOrder order = TileOrder::kInTurn;  // CPU, tile
  bool carries = false;  // CPU, tile: streamed to rows at any pitch, of lines that two tiles have a part in
  bool prefetches = false;     // CPU: asks for the tiles, or runs, to come, of long runs for lines
  bool prefetches_l1 = false;  // CPU, streaming: asks for them into the L1 cache, and else into L2
  int edge_rows = 0;           // CPU, tile: how many of a tile's last rows are moved at a time, where another
                               // thread writes those that follow; 0: all its rows are moved together
  const char* isa = "";        // CPU: instruction set of the micro-kernels
};

bool operator==(const Plan& a, const Plan& b);

inline bool is_fused(const Plan& plan) { return plan.fused_rows > 1 || plan.fused_cols > 1; }

const char* name(Backend backend);
const char* name(Kernel kernel);
const char* name(Stores stores);
const char* name(TileOrder order);
std::optional<Kernel> kernel_from_name(const std::string& name);

std::string to_string(const Plan& plan);

}  // namespace tx
