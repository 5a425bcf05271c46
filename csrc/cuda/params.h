// What a launch hands to its kernel: pointers, strides and divisors, in plain structs. Strides are in bytes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/int_math.h"
#include "core/plan.h"
#include "core/staged_tile.h"

namespace tx::cuda {

// One dim beyond a kernel's tile. Each block works on one index of each, decoded once from its block number.
struct OuterDim {
  FastDiv extent;
  int64_t in_stride;
  int64_t out_stride;
};

template <int kMost>
struct OuterDimsOf {
  int count = 0;
  OuterDim dims[kMost];  // fastest first

  // Moves the two pointers to the element that `index` stands for: 0, where there are no dims.
  TX_HOST_DEVICE void advance(uint32_t index, const uint8_t*& in, uint8_t*& out) const {
    for (int d = 0; index > 0; ++d) {
      const QuotRem at = dims[d].extent.divmod(index);
      in += at.rem * dims[d].in_stride;
      out += at.rem * dims[d].out_stride;
      index = at.quot;
    }
  }
};

using OuterDims = OuterDimsOf<kMaxOuterDims>;

// Which of the two dims that a staged tile may cut short bounds a coordinate.
enum class Cut : int32_t { kNone, kIn, kOut };

// One dim of a staged tile, as one side of the move walks it.
struct StagedAxis {
  FastDiv extent;         // of the tile
  int32_t shared_stride;  // between neighbours in shared memory
  Cut cut;
  int64_t stride;  // between neighbours on this side, in global memory
};

// A tile is a set of runs on each side; see kernel_staged.cuh.
struct StagedParams {
  const uint8_t* in;
  uint8_t* out;
  // Grid: how many tiles along each dim that has more than one, fastest first.
  OuterDims grid;                         // strides are from one tile to the next
  int32_t in_cut_dim;                     // entry of `grid` that is cut by kIn, or -1
  int32_t out_cut_dim;                    // likewise for kOut
  int32_t in_cut_tile, out_cut_tile;      // the tile's extent along that dim
  int64_t in_cut_extent, out_cut_extent;  // the problem's
  // Input side.
  int32_t in_prefix_bytes;  // one step of the run's last dim
  int32_t in_slack_bytes;   // of a run, past its last element
  int32_t in_last;          // the tile's extent along that dim
  Cut in_last_cut;
  int32_t in_run_count;
  FastDiv in_pieces;  // 16-byte pieces that a run can touch
  int32_t in_axis_count;
  StagedAxis in_axes[kMaxStagedAxes];
  // Output side: the words of one repeat, then how a word moves from one repeat to the next.
  int32_t out_prefix;  // elements in one step of the run's last dim
  int32_t out_last;
  Cut out_last_cut;
  int32_t out_run_count;  // runs of one repeat
  FastDiv out_words;      // words that a run can touch in one repeat
  StagedAxis chain[kMaxStagedChain];
  int32_t out_axis_count;
  StagedAxis out_axes[kMaxStagedAxes];  // extents of one repeat
  int32_t align;                        // bytes: from a multiple of it a run's words are counted
  int32_t repeat_axis;    // entry of out_axes that repeats, or -1: the run's last dim, or nothing
  int32_t repeat_step;    // indices of that dim
  int32_t repeat_extent;  // of the tile along that dim
  Cut repeat_cut;
  int32_t repeat_elements;  // of the run; 0 where it does not repeat
  int32_t repeat_shared;    // bytes, after padding
  int64_t repeat_out;       // bytes
  // Square blocks: from one of the input's rows to the next in shared memory, and between output rows.
  int32_t block_shared;
  int64_t block_out;
  bool padded;
  bool vectors;
  bool keep;  // here and in the other structs: loads ask L2 to keep input lines longer than output lines
};

struct CopyParams {
  const uint8_t* in;
  uint8_t* out;
  int64_t bytes;
  bool keep;
  bool release;  // here and in the other structs: lines that were kept, when what was read of them is stored
};

// Dims that are one run of elements in one memory, one dim behind the other, but not in the other memory.
struct FusedDims {
  int count = 0;
  FastDiv extent[kMaxFusedDims];  // fastest first; the last is not divided by
  int64_t stride[kMaxFusedDims];  // in the other memory

  // Bytes from the first element to element `index` in the other memory. Only one dim may have more elements
  // than kFastDivLimit. kMany: of more dims than kFewFusedDims, which takes registers.
  template <bool kMany = false>
  TX_HOST_DEVICE int64_t offset(int64_t index) const {
    constexpr int kMost = kMany ? kMaxFusedDims : kFewFusedDims;
    int64_t at = 0;
    for (int d = 0; d + 1 < kMost; ++d) {
      if (d + 1 >= count) break;
      const QuotRem c = extent[d].divmod(static_cast<uint32_t>(index));
      at += c.rem * stride[d];
      index = c.quot;
    }
    return count == 0 ? 0 : at + index * stride[count - 1];
  }
};

// Problems that one launch takes: as many as a usual host has GPUs.
inline constexpr int kMaxBatch = 8;

// Problems of one plan in one launch. Blocks take turns among them, so that what waits for a link and what
// does not are on every SM at any time.
struct Batch {
  FastDiv count;
  Place places[kMaxBatch];

  // The number of block `index` within its problem, and where that problem begins.
  TX_HOST_DEVICE uint32_t turn(uint32_t index, const uint8_t*& in, uint8_t*& out) const {
    in = static_cast<const uint8_t*>(places[0].in);
    out = static_cast<uint8_t*>(places[0].out);
    if (count.divisor == 1) return index;
    const QuotRem at = count.divmod(index);
    in = static_cast<const uint8_t*>(places[at.rem].in);
    out = static_cast<uint8_t*>(places[at.rem].out);
    return at.quot;
  }
};

// A matrix of `rows` x `cols` elements: input rows run along cols, output rows run along rows.
struct TileParams {
  int64_t rows;
  int64_t cols;
  int64_t in_pitch;   // from one input row to the next
  int64_t out_pitch;  // from one output row (an input column) to the next
  FastDiv bands;      // tiles along an output row, of one group
  FastDiv strips;     // tiles along an input row
  FastDiv groups;     // of bands: all strips of one come before the next group
  bool keep;
  bool release;
  // Of a fitted tile: its rows, and the words that it reads of each.
  int32_t tile_rows;
  FastDiv tile_words;
  Batch batch;
  OuterDims outer;
  // Where each begins in the other memory. Of one dim, a multiple of its pitch.
  FusedDims row_offsets, col_offsets;

  // Of which matrix block `index` has a tile, and how many tiles come before it along either side.
  struct Tile {
    int64_t band, strip;
    uint32_t matrix;
  };
  TX_HOST_DEVICE Tile tile(uint32_t index, const uint8_t*& in, uint8_t*& out) const {
    const QuotRem band = bands.divmod(batch.turn(index, in, out));
    const QuotRem at = strips.divmod(band.quot);
    const QuotRem group = groups.divmod(at.quot);
    return {static_cast<int64_t>(group.rem) * bands.divisor + band.rem, at.rem, group.quot};
  }
};

// The same, with output rows that follow one another; tiles have all rows.
struct SpanParams {
  int32_t rows;
  int32_t pitch;          // from one input row to the next, where rows are of one dim
  FastDiv strips;         // tiles of a matrix
  FastDiv tile_words;     // that a tile reads of a row
  int32_t parts;          // of a warp, each of which reads a row
  uint32_t table_bytes;   // of shared memory, for where the rows begin, if they are of several dims
  FusedDims row_offsets;  // where
  int64_t cols;
  Batch batch;
  OuterDims outer;
};

// The same, with input rows that follow one another; tiles have all of some rows.
struct GatherParams {
  int64_t rows;
  int32_t tile_rows;
  uint32_t cols, row_bytes;
  FastDiv parts;      // of a row, which warps take in turns
  FastDiv bands;      // tiles of a matrix
  int64_t out_pitch;  // from one output row to the next, where columns are of one dim
  FusedDims col_offsets;
  Batch batch;
  OuterDims outer;
  bool keep;
};

// TileParams, smaller: rows and pitches below 2^31 bytes, and few dims beyond the matrix, whose number is the
// block's along z. What all problems read comes first, in 48 bytes: so much the first line of the constant
// cache holds of a kernel's parameters, and a second one would be waited for.
struct SmallParams {
  Place place;
  uint32_t rows, cols;
  uint32_t in_pitch, out_pitch;
  bool bands_first = false;  // tiles are numbered along x by bands, and by strips along y, which holds fewer
  bool keep = false;
  bool release = false;
  OuterDimsOf<kMaxSmallOuterDims> outer;
};

// A narrow matrix: `rows` rows of `words` words, `pitch` bytes apart in one memory; in the other, columns of
// `rows` elements follow one another. Where a lane has a block of all rows, words are vectors of 16 bytes.
struct NarrowParams {
  const uint8_t* in;
  uint8_t* out;
  uint32_t rows;
  uint32_t tile_words;  // of a row
  int64_t words;        // of a row
  int64_t pitch;
  uint32_t log_spread;  // of words whose columns begin in different banks of shared memory
  bool wide;            // columns are at multiples of 16 bytes
  bool keep;
  bool release;
  FastDiv tiles;
  uint32_t warps;  // all tiles, where each is a warp's
  OuterDims outer;
};

// Dims of a piece, fastest in the output first. Strides are of the piece as shared memory has it.
struct PieceDims {
  int32_t count = 0;
  struct {
    FastDiv extent;
    uint32_t stride;
  } dims[kMaxPieceDims];

  // Bytes from a piece's begin to its element `index`.
  TX_HOST_DEVICE uint32_t place(uint32_t index) const {
    uint32_t at = 0;
    for (int d = 0; d < count; ++d) {
      const QuotRem c = dims[d].extent.divmod(index);
      at += c.rem * dims[d].stride;
      index = c.quot;
    }
    return at;
  }
};

// Pieces of `piece` elements, one behind the other on both sides.
struct PeriodicParams {
  const uint8_t* in;
  uint8_t* out;
  int64_t bytes;
  uint32_t chunk_bytes;  // whole periods
  FastDiv period;        // words of the output: whole pieces
  uint32_t word_step;    // of them between lanes
  FastDiv piece;
  PieceDims dims;
  bool keep;
  bool release;
};

// Dims along which one run of a piece follows another: in the tensor, and in shared memory.
struct PieceRunDims {
  int32_t count = 0;
  struct {
    FastDiv extent;
    uint32_t shared_stride;
    int64_t stride;
  } dims[kMaxPieceDims];

  // Moves both to the run `index`.
  template <class Tensor>
  TX_HOST_DEVICE void advance(uint32_t index, Tensor& at, uint32_t& shared) const {
    for (int d = 0; index > 0; ++d) {
      const QuotRem c = dims[d].extent.divmod(index);
      at += c.rem * dims[d].stride;
      shared += c.rem * dims[d].shared_stride;
      index = c.quot;
    }
  }
};

// `count` pieces, `at_once` a block, and how one lies on both sides. What loads wait for comes first: see
// SmallParams.
struct PiecesParams {
  const uint8_t* in;
  uint8_t* out;
  uint32_t count, at_once;
  uint32_t slot_bytes;
  uint32_t in_run_bytes;
  uint32_t log_lanes;  // of a warp, that load a run
  bool keep;
  OuterDimsOf<kMaxPieceOuterDims> outer;  // the one that pieces cut, if there is one, comes first
  uint32_t out_run_bytes, run_elements;
  FastDiv words;       // of the output's runs
  uint32_t word_step;  // of them between lanes
  // The innermost dim in the output, and the others.
  FastDiv row;
  uint32_t row_stride;
  uint32_t rows;
  PieceDims row_dims;
  // Of pieces that are not dense.
  int64_t in_back, out_back;  // bytes that the last along the cut dim begins earlier
  FastDiv in_runs;
  PieceRunDims in_run_dims;
  uint32_t out_runs, runs_at_once;
  FastDiv run_words;
  FastDiv run_threads;  // that store a run
  PieceRunDims out_run_dims;
};

// `runs` runs of `run_bytes` each, which follow one another in the output: a span of it.
struct RunsParams {
  const uint8_t* in;
  uint8_t* out;
  int64_t runs;
  int64_t run_bytes;
  int64_t span_bytes;
  FastDiv run;      // by run_bytes, where there are several
  FastDiv chunks;   // of a span
  FusedDims fused;  // where a run begins in the input
  OuterDims outer;
  bool keep;
};

inline constexpr int kMaxStridedDims = 40;  // 2^40 elements of two or more each are beyond any memory

// Strides in elements: of 32 bits where all of both sides lie so near, which a multiplication of half the
// length takes.
template <class Offset>
struct StridedDim {
  FastDiv extent;
  Offset in_stride;
  Offset out_stride;
};

// kRank 0: of any number of dims, and any distance.
template <int kRank>
struct StridedParams {
  using Offset = std::conditional_t<kRank == 0, int64_t, int32_t>;
  const uint8_t* in;
  uint8_t* out;
  uint32_t count;  // elements
  int rank;
  StridedDim<Offset> dims[kRank == 0 ? kMaxStridedDims : kRank];  // fastest first
};

// Of 2^31 elements or more.
struct StridedWideParams {
  const uint8_t* in;
  uint8_t* out;
  int64_t count;
  int rank;
  Dim dims[kMaxStridedDims];  // fastest first
};

}  // namespace tx::cuda
