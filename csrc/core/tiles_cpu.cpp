// The CPU kernels' tiles: their sides, and what of them lies together in memory.
#include "core/tiles_cpu.h"

#include <algorithm>

#include "core/int_math.h"
#include "core/machine_cpu.h"
#include "core/narrow.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

// The first dim, other than the last, that is contiguous in the input; -1 if there is none.
int input_run_dim(const Problem& p) {
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (p.dims[d].in_stride == p.element_bytes) return d;
  }
  return -1;
}

bool moves_narrow(int64_t count, int64_t element_bytes) {
  return is_narrow(count, element_bytes) || is_narrow_in_lanes(count, element_bytes);
}

// The dim, other than the last, along which the input moves least; -1 if there is none.
int smallest_input_step(const Problem& p) {
  int best = -1;
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (best < 0 || p.dims[d].in_stride < p.dims[best].in_stride) best = d;
  }
  return best;
}

}  // namespace

int tile_row_dim(Kernel kernel, const Problem& p) {
  if (kernel == Kernel::kTile || kernel == Kernel::kStaged) return input_run_dim(p);
  // Rows of one element each: as they are written.
  const bool strided = kernel == Kernel::kStrided && p.rank > 1;
  if (strided && p.dims[p.rank - 1].in_stride == 0) return p.rank - 2;
  const int nearest = smallest_input_step(p);
  const bool gathers = strided && strided_way(p) == Strided::kRows;
  if ((kernel != Kernel::kRows && !gathers) || p.rank < 3) return nearest;
  // Short rows as they are written where few lie near to one another: each tile takes as long as many of
  // them. In few -> so, windows of 3 x 3 to 7 x 7, Zen 4, runs of up to 256 bytes, one thread; two, 1 to 16
  // bytes .41 .60 .80 .76 1.40; .43 .55 .76 .78 1.11 -> .99 1.19 1.28 1.25 2.82; .97 1.12 1.25 1.26 1.90 of a
  // copy; every second of rows of 28 to 112, 1 to 4 bytes .20 .29 .46 -> .26 .35 .53.
  // Of small problems, where threads that write parts of each run of rows share its lines: odd heads, 8 to
  // 31, of .12 to .5 MB, one thread; two, 1 to 16 bytes .72 .64 .74 .90 .79; .47 .41 .49 .43 .67 -> .73 .65
  // .73 .93 .80; .68 .66 .74 .74 .85, but of 2 MB .78; .68 -> .71; .66.
  constexpr int64_t kShortBytes = 256, kFew = 8, kFewOfSmall = 32, kSmallBytes = 512 << 10;
  const bool is_small = kernel == Kernel::kRows && element_count(p) * p.element_bytes <= kSmallBytes;
  const int64_t few = std::min(is_small ? kFewOfSmall : kFew, p.dims[p.rank - 2].extent);
  const bool is_short = p.dims[p.rank - 1].extent * p.element_bytes <= kShortBytes;
  return is_short && p.dims[nearest].extent < few ? p.rank - 2 : nearest;
}

int next_row_dim(const Problem& p, int row) {
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (d != row && p.dims[d].in_stride == p.dims[row].in_stride * p.dims[row].extent) return d;
  }
  return -1;
}

// Of a copy, by element, in lanes, or in pieces that registers permute -> in runs, patches of images and back
// in 1, 2 and 4 bytes, drawn at random, Zen 4, one thread; two
//   .1 to 5 MB (120)         .21 .33 .47 -> .36 .46 .51; .22 .31 .45 -> .37 .43 .48
//   9 to 40 MB (100)         .21 .29 .40 -> .40 .49 .45; .24 .35 .45 -> .45 .55 .52
//   AVX2, .1 to 5 MB (60)    .11 .19 .30 -> .28 .31 .41; .10 .20 .28 -> .25 .31 .35
//         9 to 40 MB (60)    .18 .27 .35 -> .39 .40 .43; .22 .35 .46 -> .44 .50 .51
//   Xeon, 16 threads; four, .2 to 8 MB (50)    .17 .23 .38 -> .29 .38 .42; .12 .19 .32 -> .24 .33 .35
//                           12 to 100 MB (30)  .20 .37 .54 -> .46 .59 .55; .16 .29 .38 -> .38 .45 .42
// 32 x 3 x 37 x 14 x 37 x 14 -> 0,2,4,3,5,1 in 1 byte .15 -> .38, back .11 -> .34. What is a lane and more is
// moved in lanes: 16 to 64 bytes (57), so .97 and .93 times as fast.
Runs moved_runs(const Problem& p, int row) {
  const int64_t e = p.element_bytes;
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const bool out_adjoin = rows.out_stride == cols.extent * e, in_adjoin = cols.in_stride == rows.extent * e;
  if (out_adjoin && !in_adjoin && merges(p, row) && cols.extent * e < kLaneBytes) return Runs::kMerged;
  if (in_adjoin && !out_adjoin && splits(p, row) && rows.extent * e < kLaneBytes) return Runs::kSplit;
  return Runs::kNone;
}

Runs moved_runs(const Plan& plan) {
  return is_fused(plan) ? moved_runs(plan.problem, tile_row_dim(plan.kernel, plan.problem)) : Runs::kNone;
}

int64_t tile_rows(const Plan& plan) {
  int64_t rows = 1;
  int d = tile_row_dim(plan.kernel, plan.problem);
  for (int k = 0; k < plan.fused_rows; ++k, d = next_row_dim(plan.problem, d)) rows *= plan.tile[d];
  return rows;
}

int64_t tile_cols(const Plan& plan) {
  int64_t cols = 1;
  for (int k = 1; k <= plan.fused_cols; ++k) cols *= plan.tile[plan.problem.rank - k];
  return cols;
}

int first_adjoining_dim(const Plan& plan) {
  const Problem& p = plan.problem;
  uint64_t row_dims = 0;
  for (int k = 0, d = tile_row_dim(plan.kernel, p); k < plan.fused_rows; ++k, d = next_row_dim(p, d))
    row_dims |= uint64_t{1} << d;
  int first = p.rank - plan.fused_cols;
  int64_t bytes = p.element_bytes;
  for (int d = p.rank - 1; d > 0; --d) {
    bytes *= p.dims[d].extent;
    const bool next_adjoins = plan.tile[d] == p.dims[d].extent && p.dims[d - 1].out_stride == bytes;
    if (!next_adjoins || (d <= first && !(row_dims >> (d - 1) & 1))) break;
    first = std::min(first, d - 1);
  }
  return first;
}

int64_t adjoining_bytes(const Plan& plan) {
  int64_t bytes = plan.problem.element_bytes;
  for (int d = first_adjoining_dim(plan); d < plan.problem.rank; ++d) bytes *= plan.tile[d];
  return bytes;
}

int64_t staged_row_bytes(const Plan& plan) {
  return std::max(adjoining_bytes(plan), kStagedRunBytes) + kLine;
}

// Room for a line carried over, and an odd count of lines, lest the rows share few cache sets.
int64_t staged_pitch(int64_t row_bytes) { return round_up(row_bytes, 2 * kLine) + kLine; }

// By element -> in rows, every second to fourth, Zen 4, one thread
//   4 to 7 columns, 2 to 16 bytes     .105 .122 .24 .43 -> .071 .15 .28 .49
//   8 to 15                           .063 .138 .32 .44 -> .109 .20 .38 .50
//   16 to 30, 1 to 16 bytes           .030 .076 .20 .38 .52 -> .093 .155 .29 .44 .54
// Of one again and again, what a lane has.
//
// By element -> packed, 1 and 2 bytes, one thread, 1 MB; 20
//   Zen 3   every second of a row, transposed             .05 .10; .06 .06 -> .25 .23; .12 .12
//           every third                                   .05 .09; .03 .04 -> .16 .19; .09 .10
//           every second, of 3 planes to 3 columns        .03 .07; .10 .15 -> .12 .19; .21 .21
//   Xeon    every second of a row, transposed             .04 .07; .04 .05 -> .14 .13; .10 .11
//   Zen 4, in L1   every second or third, 32 to 63          .071 .142 -> .10 .19
//                  16 to 31, AVX-512 with VBMI              .078 .146 -> .072 .105
//
// Packed, or by element -> in vectors, every second to fourth of a row transposed, Zen 4, 16 each of .1 to 20
// MB, one thread; two, 4, 8 and 16 bytes
//   any pitch                     .22 .22 .34; .22 .23 .42 -> .33 .41 .47; .36 .43 .55
//   columns whole pages apart     .25 .08 .26; .27 .08 .29 -> .31 .43 .50; .37 .45 .53
//   AVX2, any pitch               .20 .23 .36; .19 .24 .40 -> .33 .44 .43; .38 .47 .55
//   portable                      .16 .21 .35; .17 .24 .40 -> .33 .43 .46; .35 .47 .46
//   Xeon, 10 each, one thread; four
//     any pitch                   .19 .23 .33; .18 .20 .39 -> .25 .27 .32; .24 .27 .59
//     columns whole pages apart   .19 .15 .32; .21 .16 .33 -> .19 .29 .38; .22 .27 .35
Strided strided_way(const Problem& p) {
  constexpr int64_t kFew = 4, kColumn = 32;
  const int64_t e = p.element_bytes;
  const Dim& cols = p.dims[p.rank - 1];
  if (cols.out_stride != e) return Strided::kScattered;
  if (cols.in_stride == 0 && is_plain(e))
    return cols.extent * e >= kLaneBytes ? Strided::kRows : Strided::kScattered;
  const bool enough = cols.extent >= std::max<int64_t>(kFew, kLaneBytes / e);
  const int row = smallest_input_step(p);
  const bool nearer = row >= 0 && p.dims[row].in_stride < cols.in_stride && cols.in_stride >= kLaneBytes;
  if (nearer && is_plain(e) && e >= kApartBytes && cols.extent * e >= kLaneBytes) return Strided::kVectors;
  if (nearer && e <= kApartBytes && p.dims[row].extent >= kColumn) return Strided::kPacked;
  return !is_plain(e) || (enough && !nearer) ? Strided::kRows : Strided::kScattered;
}

bool rows_adjoin(const Problem& p, int row) {
  const Dim& cols = p.dims[p.rank - 1];
  return row == p.rank - 2 && p.dims[row].out_stride == cols.extent * p.element_bytes;
}

bool splits(const Problem& p, int row) {
  const int64_t rows = p.dims[row].extent, e = p.element_bytes;
  const Dim& cols = p.dims[p.rank - 1];
  const bool narrow =
      moves_narrow(rows, e) || (is_short_of_lanes(rows, e) && cols.extent >= line_elements(e));
  return narrow && cols.in_stride == rows * e;
}

bool merges(const Problem& p, int row) {
  const int64_t cols = p.dims[p.rank - 1].extent;
  return moves_narrow(cols, p.element_bytes) && p.dims[row].out_stride == cols * p.element_bytes;
}

// Short sides would leave the micro-kernels little to do, and each line that is written alone opens a DRAM
// page: dims that continue them, where there are any, are joined to the shorter side until both are long. A
// table says where each row and column lies.
Sides fuse_sides(const Problem& p, int row, const Machine& m) {
  Sides sides;
  const int64_t e = p.element_bytes;
  int64_t rows = p.dims[row].extent, cols = p.dims[p.rank - 1].extent;
  if (std::min(rows, cols) * e >= m.tuned.short_side_bytes[width_row(e)]) return sides;
  // What is split or merged in registers needs no longer a side than this, if it is dense on the other side.
  // Else, Zen 5, one thread, so long -> as others, 300 x 7 x 700 x 8 -> 2,0,3,1 in 4 bytes .06 -> .56 of a
  // copy, 300 x 5 x 700 x 6 in 8 .09 -> .53.
  constexpr int64_t kNarrowSideBytes = 32;
  const auto long_enough = [&](int64_t side, bool dense) {
    return side * e >= (dense ? kNarrowSideBytes : kFusedSideBytes);
  };
  if (splits(p, row) && long_enough(cols, rows_adjoin(p, row))) return sides;
  if (merges(p, row) && long_enough(rows, p.dims[p.rank - 1].in_stride == rows * e)) return sides;
  // Runs are joined up to kRunsBytes, and no more than a table holds; each is shorter than the kernels take.
  static_assert(kFusedSideBytes * kLaneBytes <= 8 << 10);
  const Runs runs = moved_runs(p, row);
  const int64_t run = rows * cols;
  const auto is_short = [&](int64_t side, Runs moved) {
    if (runs == Runs::kNone) return side * e < kFusedSideBytes;
    return runs == moved && rows * cols * e < kRunsBytes && rows * cols <= run * kMostFused;
  };
  uint64_t in_rows = uint64_t{1} << row;
  for (;;) {
    const int next_row = next_row_dim(p, row);
    const int next_col = p.rank - 1 - sides.col_dims;
    const bool more_rows = is_short(rows, Runs::kMerged) && next_row >= 0 && next_row <= next_col;
    const bool more_cols = is_short(cols, Runs::kSplit) && next_col >= 0 && !(in_rows >> next_col & 1) &&
                           p.dims[next_col].out_stride == cols * e;
    if (more_rows && (!more_cols || rows <= cols)) {
      row = next_row;
      in_rows |= uint64_t{1} << row;
      rows *= p.dims[row].extent;
      ++sides.row_dims;
    } else if (more_cols) {
      cols *= p.dims[next_col].extent;
      ++sides.col_dims;
    } else {
      return sides;
    }
  }
}

bool writes_whole_lines(const Problem& p, int row, bool merged) {
  uint64_t bits = p.out_address;
  if (!merged) bits |= static_cast<uint64_t>(p.dims[p.rank - 1].extent * p.element_bytes);
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (!merged || d != row) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  return bits % kLine == 0;
}

}  // namespace tx
