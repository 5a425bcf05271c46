// The shape of a CPU plan's tile.
#include "core/tile_shape_cpu.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>

#include "core/cache_sets_cpu.h"
#include "core/int_math.h"
#include "core/pieces_cpu.h"
#include "core/prefetch_cpu.h"
#include "core/tiles_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

// The wanted shape, with one side lengthened where the other dim is shorter than wanted; sides stay whole
// lines.
TileShape fit(TileShape wanted, int64_t rows, int64_t cols, int64_t element_bytes) {
  const int64_t line = line_elements(element_bytes);
  const auto lengthen = [&](int64_t side, int64_t other_wanted, int64_t other) {
    const int64_t thin = round_up(kThinTileBytes / (other * element_bytes), line);
    return other >= other_wanted ? side : std::max(side, thin);
  };
  return {std::min(rows, lengthen(wanted.rows, wanted.cols, cols)),
          std::min(cols, lengthen(wanted.cols, wanted.rows, rows))};
}

// Rows that a plan's micro-kernel takes at a time. Where it streams blocks, whole ones count (Zen 4, 8191 x
// 8193 in 4 bytes, of 496 rows, and of 512, .72 and .77 of a copy), and all whose lines are asked for
// together (Zen 5, one thread, 5003 x 1025 in 4, of 640, and of 1024, .56 and .73).
int64_t step_rows(const Plan& plan, const Machine& m) {
  const int64_t e = plan.problem.element_bytes, line = line_elements(e);
  if (plan.stores == Stores::kOrdinary || plan.order != TileOrder::kInBlocks) return line;
  const BlockShape& block =
      (plan.carries ? carried_block : streamed_block)(m.line_vectors, plan.prefetches_l1, width_row(e));
  return (plan.carries && plan.prefetches_l1 ? block.together : block.down) * line;
}

// As many elements as make whole lines, at least one.
int64_t whole_lines(int64_t elements, int64_t element_bytes) {
  const int64_t line = line_elements(element_bytes);
  return std::max(elements / line, int64_t{1}) * line;
}

// Rows of bands of one size, of which as few as that takes have at most `most`, rounded up to whole steps.
int64_t even_band(int64_t rows, int64_t most, int64_t step) {
  return round_up(ceil_div(rows, ceil_div(rows, most)), step);
}

// Whether rows are so short that a tile that streams has them whole.
bool streams_short_rows(const Plan& plan) {
  const Problem& p = plan.problem;
  return plan.kernel == Kernel::kTile && plan.stores == Stores::kStreaming && !plan.carries &&
         p.dims[p.rank - 1].extent * p.element_bytes <= kStreamedRowBytes;
}

// The first of a tile's blocks is read with none to write meanwhile (Zen 4, three matrices, 512 and 2048
// bytes of their rows, 1 byte .66 .67, 2 bytes .76 .77), and the last step of what is split, less than whole
// lanes, goes by way of memory of its own (Zen 5, 512 and 16384 bytes, 12 and 24 columns of 1 byte and 24 of
// 2 .66 .78 .75 -> 1.09 1.03 .99).
TileShape carried_shape(const Plan& plan, int64_t rows, int64_t cols, const Machine& m) {
  const int64_t e = plan.problem.element_bytes;
  const bool in_blocks = plan.order == TileOrder::kInBlocks;
  if (splits(plan.problem, tile_row_dim(plan.kernel, plan.problem)))
    return {rows, std::min(cols, kSplitRowBytes / e)};
  const int64_t bytes = in_blocks ? 2048 : 512;  // of an output row
  const int64_t most = (in_blocks ? m.tuned.carried_block_rows : m.tuned.carried_rows)[width_row(e)];
  return {even_band(rows, most, step_rows(plan, m)), std::min(cols, bytes / e)};
}

TileShape shape_of_runs(const TileShape* shapes, int64_t element_bytes) {
  const TileShape shape = shapes[std::bit_width(static_cast<uint64_t>(element_bytes - 1)) - 2];
  // Threads are to share no line: columns are whole lines, unless these are so long that tiles would not fit
  // in L1.
  constexpr int64_t kLongRowBytes = 2048;
  const int64_t whole = round_up(shape.cols, line_elements(element_bytes));
  return {shape.rows, whole * element_bytes <= kLongRowBytes ? whole : shape.cols};
}

// Whether a direct tile is as high as its thread's share, so that each input row is read to its end. Not for
// 1 and 2 bytes where several cores hold dirty lines: the prefetchers of one, past the end of its share of a
// row, take them from another (Zen 4, 448 x 512 in 2 bytes, high and of 64 rows, 31 and 8 us; of short pieces
// they do not go that far). Where vectors are less than lines, nor bytes, of whose lines some would wait too
// long for their other parts, nor up to 8 bytes where input rows meet; low -> so, Zen 3, one thread; two
//   24 each of .1 to 6 MB, 4, 8 and 16 bytes    .84 .86 .94; .74 .79 .90 -> .86 .89 .97; .76 .79 .88
//   portable                                    .71 .82 .90; .64 .74 .84 -> .74 .87 .98; .68 .77 .85
//   16 of 6 to 12 MB                            .77 .76 .87; .68 .69 .80 -> .78 .85 .94; .69 .76 .82
//   but pitches of whole KiB, five of .7 MB in 8 bytes, one                   .90 -> .79
// Past the cores' own caches, where so much of the last one is filled, 1 and 2 bytes, too: low -> so, Zen 3,
// 24 each of 11 to 17 MB, one thread; two
//   AVX2        .31 .44; .21 .25 -> .38 .45; .36 .42
//   portable    .16 .30; .16 .18 -> .24 .28; .24 .28
//   but 16 each of 5 to 8 MB .39 .51; .40 .48 -> .40 .52; .34 .46, of 8 to 10 .39 .53; .37 .41 -> .43 .54;
//   .34 .41
// Where tiles may be crossed, in bands if they are not (kNearCache.direct), and crosswise only alone (Zen 5,
// 12 each of whole lines in 2 bytes, of .2 to 1, to 4, and to 12 MB, bands -> so .72 .73 .79 -> .74 .77 .81).
bool reads_on(const Plan& plan, const Machine& m) {
  constexpr double kFar = 2.5;  // eighths of the last cache
  const Problem& p = plan.problem;
  const int64_t e = p.element_bytes;
  const bool in_parts = !vectors_are_lines(m);
  const bool far = in_parts && fills(p, m, kFar);
  if (in_parts && ((e == 1 && !far) || (e <= 8 && in_rows_meet(p)))) return false;
  if (crosses(m)) return plan.order == TileOrder::kCrosswise && e > 1 && plan.threads == 1;
  return e > 2 || far || plan.threads == 1 || (e == 2 && !leaves_early(m));
}

TileShape direct_shape(const Plan& plan, int row, const Machine& m) {
  const Problem& p = plan.problem;
  const int width = width_row(p.element_bytes);
  if (!is_plain(p.element_bytes)) return shape_of_runs(kRunsShape, p.element_bytes);
  const auto crowd = [&](int64_t rows) {
    return rows_crowd(p, row, rows, m) && !(p.element_bytes == 4 && tiles_ask(p, m));
  };
  // Of bytes that are written in parts of lines, those of one column of tiles should be in L1 yet when the
  // next comes. High -> so, Zen 3, eight of 1 to 6 MB each whose output rows are multiples of 256 bytes, or 2
  // KiB, apart, one thread; two, .38 .27; .36 .25 -> .42 .32; .40 .29, but of 6 to 14 MB .34 .30; .32 .30 ->
  // .32 .31; .29 .30.
  constexpr int64_t kNearBytes = 3 << 20;
  const bool bytes_in_parts = p.element_bytes == 1 && !vectors_are_lines(m) && element_count(p) < kNearBytes;
  auto [rows, cols] = (plan.order == TileOrder::kCrosswise ? m.tuned.crossed : m.tuned.direct)[width];
  if (bytes_in_parts && rows_in_sets(p, row, 1, rows, 1) > kL1Ways) rows = kLine;
  if (plan.order == TileOrder::kDiagonal) return {kDiagonalBytes / p.element_bytes, cols};
  if (crowd(rows)) {
    // No more rows for want of columns.
    const auto [few, many] = m.tuned.crowded[width];
    return {std::min(few, rows), std::clamp(p.dims[p.rank - 1].extent, kTileShape[width].cols, many)};
  }
  return reads_on(plan, m) && !crowd(kTileShape[width].rows) ? TileShape{kHighRows, kTileShape[width].cols}
                                                             : TileShape{rows, cols};
}

TileShape staged_shape(int64_t element_bytes) {
  return is_plain(element_bytes) ? kStagedShape[width_row(element_bytes)]
                                 : shape_of_runs(kStagedRunsShape, element_bytes);
}

// Short rows that adjoin: whole, and some that are written as one. As many as are whole lines of the input,
// unless all fit, or few would be left over (Zen 5, one thread, 1452 x 196 x 17 -> 0,2,1 in 4 bytes, of 16
// rows and one .32 of a copy, so .69; x 30, of 16 and 14 .55, so .86; 3000 x 100 x 97 in 2, of 96 and one
// .57, so .82).
TileShape adjoining_shape(int64_t rows, int64_t cols, int64_t element_bytes) {
  const int64_t most = std::min(kAdjoiningBytes / cols, kAdjoiningPieceBytes) / element_bytes;
  const int64_t whole = whole_lines(most, element_bytes), left = rows % whole;
  if (rows <= std::max(most, whole)) return {rows, cols};
  const bool few_left = left > 0 && left * 2 < whole && rows <= 4 * most;
  return {few_left ? even_band(rows, most, 1) : whole, cols};
}

// Tiles are lower where L2 has less room for a strip of them, and for the next, which is asked for: 1024 to
// 2048 rows -> 512, Zen 3, twelve each of 30 to 200 MB, 8 and 16 bytes, one thread; two, .76 1.03; .79 .91 ->
// .91 1.01; .91 .96 of a copy.
//
// Blocks where vectors are less than lines, Zen 3, one thread; two. 1 and 2 bytes to rows whole ways of L1
// apart, of 1024 rows -> high, 38 of 25 to 150 MB in 1 byte .60; .69 -> .66; .73, 48 in 2 .69; .82 -> .71;
// .85. Few rows, as wide as others -> of as many bytes, three each of 128, 192 and 256 bytes of the input in
// 2 bytes, whose output rows conflict, .86 .86 .85; .95 .92 .88 -> 1.03 .92 .93; 1.10 .97 .92.
TileShape streamed_shape(const Plan& plan, TileShape most, int64_t rows, int64_t cols, const Machine& m) {
  constexpr int64_t kRoomyL2Bytes = 1 << 20, kLowRows = 512, kCols = 64, kHigh = 8192, kTilesEach = 8;
  const int64_t e = plan.problem.element_bytes;
  if (m.l2_bytes < kRoomyL2Bytes && plan.order != TileOrder::kInBlocks) {
    most.rows = std::min(most.rows, kLowRows);
    most.cols = std::max(most.cols, kCols);
  }
  if (plan.order == TileOrder::kInBlocks && streams_in_parts(m)) {
    const int64_t out_pitch = plan.problem.dims[tile_row_dim(plan.kernel, plan.problem)].out_stride;
    if (e <= 2 && out_pitch % kL1WayBytes == 0) {
      const int64_t share = element_count(plan.problem) / plan.threads / kTilesEach;
      most.rows = std::clamp(share / most.cols / kLine * kLine, most.rows, kHigh);
    }
    if (rows < most.rows) most.cols *= most.rows / rows;
  }
  // Whole lines. Not asked for, 13 problems on that Xeon, 64 x 8 1.00 of a copy, 16 x 8 .96, 16 x 1 .85.
  if (e >= kLine) return {std::min<int64_t>(rows, 64), std::min<int64_t>(cols, plan.prefetches_l1 ? 2 : 8)};
  if (streams_short_rows(plan)) {
    const bool in_blocks = plan.order == TileOrder::kInBlocks && cols * e >= 2 * kLine;
    most = {whole_lines((in_blocks ? kStreamedBlocksBytes : kStreamedTileBytes) / (cols * e), e), cols};
  } else if (rows < std::min(most.rows, kLine)) {
    most = {rows, whole_lines(kStreamedTileBytes / (rows * e), e)};
  }
  return {std::min(rows, most.rows), std::min(cols, most.cols)};
}

// Two-dimensional parts of a problem, of `row` and the last dim.
int64_t matrix_count(const Problem& p, int row) {
  return element_count(p) / (p.dims[row].extent * p.dims[p.rank - 1].extent);
}

// Rows of a tile, whole vectors from `least` to `most`, of which no thread gets an eighth more than its
// share: shares end with tiles, unless matrices are many or rows few (of a copy, two threads, 200 x 200 in 4
// bytes .33 -> .40, 300 x 180 .34 -> .42; Xeon, 16 threads, 8191 x 8193 in 1, 448 rows and 256, .45 -> .55).
int64_t even_rows(const Plan& plan, int64_t least, int64_t most, const Machine& m) {
  const Problem& p = plan.problem;
  const int64_t rows = p.dims[tile_row_dim(plan.kernel, p)].extent, threads = plan.threads;
  const int64_t step = step_rows(plan, m), share = rows / threads;
  const int64_t matrices = matrix_count(p, tile_row_dim(plan.kernel, p));
  if (threads == 1 || matrices >= 4 * threads || share < 2 * least) return most;
  if (matrices > 1) {
    int64_t bands = ceil_div(rows, most);
    while (ceil_div(matrices * bands, threads) * threads * 8 > matrices * bands * 9) ++bands;
    return std::min(most, round_up(ceil_div(rows, bands), step));
  }
  const int64_t even = even_band(share, most, step);
  if (even <= most && (ceil_div(share, most) * even - share) * 8 <= share) return even;
  for (int64_t height = most / step * step; height > least; height -= step) {
    const int64_t past = share % height;
    const int64_t excess = std::min(height - past, std::min(past, height - past) * (threads - 1));
    if (excess * 8 <= share) return height;
  }
  return std::min(least, most);
}

// Rows of a tile that is moved straight: even, and not more than a thread's share.
int64_t direct_rows(const Plan& plan, int64_t most, const Machine& m) {
  constexpr int64_t kLeast = 32;
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p);
  const int64_t rows = p.dims[row].extent, line = line_elements(p.element_bytes);
  most =
      std::min(most, std::max(kLeast, round_up(ceil_div(matrix_count(p, row) * rows, plan.threads), line)));
  return even_rows(plan, line, std::min(most, even_band(rows, most, line)), m);
}

// Of the staging memory, what a fused tile takes.
int64_t staged_bytes(const Plan& plan) {
  const int64_t tile = tile_rows(plan) * tile_cols(plan) * plan.problem.element_bytes;
  return tile / adjoining_bytes(plan) * staged_pitch(staged_row_bytes(plan));
}

// All of each side's dims but its outermost are whole in a tile.
void set_fused_tile(Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t e = p.element_bytes;
  const bool stages = plan.kernel == Kernel::kStaged;
  TileShape wanted = stages ? staged_shape(e) : kFusedShape[width_row(e)];
  int row = tile_row_dim(plan.kernel, p);
  const int64_t first_rows = p.dims[row].extent, first_cols = p.dims[p.rank - 1].extent;  // of a run, or few
  const int64_t share = element_count(p) * e / plan.threads;
  const int64_t runs_bytes = std::min(stages ? kStagedRunsBytes : kRunsBytes, share);
  const Runs runs = moved_runs(plan);
  if (runs == Runs::kMerged) wanted.rows = std::min(runs_bytes / (first_cols * e), kMostFused * first_rows);
  if (runs == Runs::kSplit) wanted.cols = std::min(runs_bytes / (first_rows * e), kMostFused * first_cols);
  // In pieces of one size, of `whole` steps where they may have so many.
  const auto cut = [&](int d, int64_t inner, int64_t most, int64_t whole) {
    const int64_t longest = std::max<int64_t>(most / inner, 1);
    const int64_t pieces = ceil_div(p.dims[d].extent, longest);
    const int64_t piece = ceil_div(p.dims[d].extent, pieces);
    const bool rounds = pieces > 1 && longest >= whole;
    plan.tile[d] = static_cast<int32_t>(rounds ? std::max(piece / whole, int64_t{1}) * whole : piece);
  };
  int64_t rows = 1, cols = 1;
  for (int k = 1; k < plan.fused_rows; ++k, row = next_row_dim(p, row)) {
    plan.tile[row] = static_cast<int32_t>(p.dims[row].extent);
    rows *= p.dims[row].extent;
  }
  cut(row, rows, wanted.rows, 1);
  const int first_col = p.rank - plan.fused_cols;
  for (int d = first_col + 1; d < p.rank; ++d) {
    plan.tile[d] = static_cast<int32_t>(p.dims[d].extent);
    cols *= p.dims[d].extent;
  }
  // Threads are to share no line: columns are whole lines where that can be.
  cut(first_col, cols, wanted.cols, kLine / std::gcd(cols * e, kLine));
  if (!stages || runs != Runs::kMerged) return;
  // The outermost dim that is more than one has parts, until the staging memory holds the rows.
  while (staged_bytes(plan) > kStagingBytes) {
    int outermost = -1;
    for (int k = 0, d = tile_row_dim(plan.kernel, p); k < plan.fused_rows; ++k, d = next_row_dim(p, d)) {
      if (plan.tile[d] > 1) outermost = d;
    }
    plan.tile[outermost] = (plan.tile[outermost] + 1) / 2;
  }
}

void set_rows_tile(Plan& plan) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const int64_t run = p.dims[col].extent * p.element_bytes;
  int64_t runs = 1;
  if (plan.fused_cols > 1) {
    runs = std::clamp<int64_t>(kGatheredBytes / run, 1, p.dims[col - 1].extent);
    plan.tile[col - 1] = static_cast<int32_t>(runs);
  }
  plan.tile[col] = static_cast<int32_t>(std::min<int64_t>(p.dims[col].extent, INT32_MAX));
  if (row >= 0 && (plan.fused_cols == 1 || row != col - 1)) {
    int64_t most = kRowsTileBytes / (run * runs);
    if (plan.fused_cols > 1) most = std::min(most, kGatheredRows);
    plan.tile[row] = static_cast<int32_t>(std::clamp<int64_t>(most, 1, p.dims[row].extent));
  }
}

// Of elements that lie apart in the input.
TileShape strided_shape(const Plan& plan, int64_t rows, int64_t cols, const Machine& m) {
  const Problem& p = plan.problem;
  const int64_t e = p.element_bytes;
  const Dim& last = p.dims[p.rank - 1];
  const Strided way = strided_way(p);
  if (way == Strided::kPacked) {
    // Threads are to share no line: so high that columns make whole lines, unless the tile has them all.
    const int64_t most = kPackedBytes / std::min(cols, line_elements(e));
    const int64_t column = std::min(std::max(kPackedColumnBytes, kThinTileBytes / cols), most);
    rows = std::min(rows, whole_lines(column / e, e));
    return {rows, std::min(cols, whole_lines(kPackedBytes / (rows * e), e))};
  }
  if (way == Strided::kScattered) return fit(kScatteredShape[width_row(e)], rows, cols, e);
  if (way == Strided::kVectors) {
    const TileShape shape = fit(kVectorsShape, rows, cols, e);
    return {direct_rows(plan, shape.rows, m), shape.cols};
  }
  const int64_t step = std::max(std::abs(last.in_stride), e);
  cols = std::min(cols, whole_lines(kStridedBytes / step, e));
  return {std::clamp<int64_t>(kStridedBytes / (cols * step), 1, rows), cols};
}

// Of a tile of one dim or two.
TileShape tile_shape(const Plan& plan, int row, const Machine& m) {
  const Problem& p = plan.problem;
  const int64_t e = p.element_bytes, cols = p.dims[p.rank - 1].extent;
  const int64_t rows = row < 0 ? 1 : p.dims[row].extent;
  const int width = width_row(e);
  if (plan.kernel == Kernel::kCopy) return {1, std::min(cols, kCopiedBytes / e)};
  if (plan.kernel == Kernel::kStrided) return strided_shape(plan, rows, cols, m);
  if (plan.kernel == Kernel::kStaged) {
    const bool adjoin = rows_adjoin(p, row) && cols >= kAdjoiningCols && cols * e <= kAdjoiningRowBytes;
    return adjoin ? adjoining_shape(rows, cols, e) : fit(staged_shape(e), rows, cols, e);
  }
  if (plan.carries) return carried_shape(plan, rows, cols, m);
  const bool streaming = plan.stores == Stores::kStreaming;
  TileShape wanted;
  if (plan.order == TileOrder::kInBlocks) {
    wanted = streaming ? m.tuned.streamed_blocks[width] : kStoredBlocksShape[width];
  } else {
    wanted = streaming ? m.tuned.streamed[width] : direct_shape(plan, row, m);
  }
  return streaming ? streamed_shape(plan, wanted, rows, cols, m) : fit(wanted, rows, cols, e);
}

}  // namespace

void set_tile(Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  std::fill(plan.tile, plan.tile + p.rank, 1);
  if (element_count(p) == 0 || p.rank == 0) return;
  if (plan.kernel == Kernel::kRows) return set_rows_tile(plan);
  if (plan.kernel == Kernel::kPieces) return set_pieces_tile(plan, m);
  if (is_fused(plan)) return set_fused_tile(plan);
  const int row = tile_row_dim(plan.kernel, p);
  auto [rows, cols] = tile_shape(plan, row, m);
  plan.tile[p.rank - 1] = static_cast<int32_t>(std::min<int64_t>(cols, INT32_MAX));
  if (plan.kernel == Kernel::kStaged) {
    const bool adjoin = first_adjoining_dim(plan) == row;
    rows = std::min(rows,
                    kStagingBytes / (adjoin ? cols * p.element_bytes : staged_pitch(staged_row_bytes(plan))));
  }
  if (plan.kernel == Kernel::kStaged || plan.carries || streams_short_rows(plan))
    rows = even_rows(plan, kLeastBandRows, rows, m);
  if (plan.kernel == Kernel::kTile && plan.stores == Stores::kOrdinary) rows = direct_rows(plan, rows, m);
  if (row >= 0) plan.tile[row] = static_cast<int32_t>(rows);
}

}  // namespace tx
