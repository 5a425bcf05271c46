// Legality of each CPU kernel, and the choice among them.
#include "core/plan_cpu.h"

#include <algorithm>
#include <optional>

#include "core/cache_sets_cpu.h"
#include "core/machine_cpu.h"
#include "core/normalize.h"
#include "core/order_cpu.h"
#include "core/pieces_cpu.h"
#include "core/prefetch_cpu.h"
#include "core/stores_cpu.h"
#include "core/tile_shape_cpu.h"
#include "core/tiles_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

static_assert(kCpuAddressAlignment % kLine == 0, "all that a plan asks for");

// A run that is contiguous on both sides.
bool ends_in_common_run(const Problem& p) {
  if (p.rank == 0) return false;
  const Dim& last = p.dims[p.rank - 1];
  return last.in_stride == p.element_bytes && last.out_stride == p.element_bytes;
}

// The problem whose elements they are.
Problem runs_as_elements(const Problem& p) {
  Problem of_runs = p;
  of_runs.element_bytes *= p.dims[p.rank - 1].extent;
  --of_runs.rank;
  return of_runs;
}

// Bytes that lie together in the output when one index along `row` is fixed.
int64_t output_run_bytes(const Problem& p, int row) {
  int64_t run = p.element_bytes;
  for (int d = p.rank - 1; d > row && p.dims[d].out_stride == run; --d) run *= p.dims[d].extent;
  return run;
}

// Whether both sides have a dim that is contiguous, and not the same.
bool has_tiles(const Problem& p) {
  return p.rank > 1 && tile_row_dim(Kernel::kTile, p) >= 0 &&
         p.dims[p.rank - 1].out_stride == p.element_bytes;
}

// The problem whose elements are the runs of this one, if it has tiles: they are read and written whole,
// where single runs went to as many places. Of a copy, runs one by one or gathered, and as elements (Xeon
// with AVX-512 VBMI): 2000 x 1500 x 3 -> 1,0,2 in 1 byte .15 -> .49, in 4 .42 -> .66, 500 x 400 x 3 in 1 byte
// .08 -> .42, 8 x 512 x 12 x 20 -> 0,2,1,3 in 4 .46 -> .76, 4 x 128 x 12 x 64 in 2 .68 -> .89; of whole
// lines, 8 x 4096 x 16 x 64 in 2 .81 -> 1.00, 8 x 1024 x 32 x 128 in 4 .92 -> 1.05, 2000 x 2000 x 32 -> 1,0,2
// in 4 .65 -> 1.01; but 64 x 197 x 12 x 72 -> 0,2,1,3 in 4 .92 -> .82.
std::optional<Problem> with_runs_as_elements(const Problem& p) {
  if (!ends_in_common_run(p)) return std::nullopt;
  const Problem of_runs = runs_as_elements(p);
  if (of_runs.element_bytes > kMostElementBytes || !has_tiles(of_runs)) return std::nullopt;
  return of_runs;
}

// Of one run on both sides, that are moved in registers.
PieceDims registers_piece(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const bool narrow = row >= 0 && (splits(p, row) || merges(p, row));
  const PieceBytes& bytes = fills(p, m, m.tuned.runs_leave) ? m.tuned.streamed_pieces : m.tuned.stored_pieces;
  const int64_t most = narrow ? bytes.narrow : p.element_bytes <= 2 ? bytes.up_to_two : bytes.wider;
  return dense_piece(p, std::min(m.piece_bytes[p.element_bytes > 1], most));
}

// Of kPieces, which moves by byte what registers do not.
PieceChoice any_piece(const Problem& p, const Machine& m) {
  PieceChoice choice{p, registers_piece(p, m)};
  if (choice.piece.cols == 0) choice = piece_of_runs(p, fills(p, m, m.tuned.runs_leave));
  if (choice.piece.cols == 0) choice.piece = dense_piece(p, kMostPieceBytes);
  return choice;
}

// The problem whose elements are the runs of this one, if they are so short, and so near to one another in
// the input, and side by side in the output, that a vector has several. Of a copy, one by one, or gathered
// and streamed -> so, Zen 3, .3 and 20 MB, one thread:
//   two and three bytes of three and four    .07 .10, .28 .42 -> .42 .55, .58 .68
//   as many of 2 bytes                       .16 .29, .37 .40 -> .55 .77, .62 .60
//   rows of 32 x 3 of 4, 1 and 2 bytes       .12 .27, .32 .53 -> .63 .70, .68 .67
//   but 5 of 8 in 1 byte                     .21, .45 -> .49, .54
std::optional<Problem> with_gathered_runs(const Problem& p) {
  constexpr int64_t kRowBytes = 64, kRepeatedBytes = 512;
  if (p.rank < 2 || !ends_in_common_run(p)) return std::nullopt;
  const Dim& runs = p.dims[p.rank - 2];
  const Problem of_runs = runs_as_elements(p);
  const int64_t bytes = of_runs.element_bytes, step = runs.in_stride;
  const bool near = step == 0 || (step >= bytes && step + bytes <= kLaneBytes);
  if (runs.out_stride != bytes || bytes > kLaneBytes || !near) return std::nullopt;
  if (runs.extent * bytes < (step == 0 ? kRepeatedBytes : kRowBytes)) return std::nullopt;
  return of_runs;
}

// Whether rows of windows that overlap, at a step of some elements, are gathered: long ones, and all that are
// beyond the caches and would be staged. In tiles, or staged -> so, windows of 3 x 3, 5 x 5 and 7 x 7 at
// every second place, 7 to 160 columns, Zen 4, one thread; two, 1 to 16 bytes
//   2 MB, 14 to 27 each
//            .12 .22 .41 .58 .91; .12 .24 .43 .58 .97 -> .30 .39 .57 .69 1.11; .32 .43 .59 .70 1.16
//     AVX2   .11 .21 .32 .67 .87; .12 .24 .34 .70 .81 -> .21 .30 .36 .76 1.06; .22 .34 .39 .83 1.01
//   25 MB, 4 to 16 each
//            .07 .12 .21 .31 .75; .10 .17 .25 .44 1.02 -> .45 .50 .56 .51 1.00; .57 .64 .66 .65 1.31
//     AVX2   .07 .12 .17 .29 .42; .09 .16 .23 .39 .61 -> .37 .45 .48 .59 .60; .45 .63 .67 .87 .83
//     Xeon, 24 to 33 each, one thread; four, 1 to 8 bytes
//            .05 .12 .17 .29; .05 .10 .17 .25 -> .28 .38 .44 .54; .27 .38 .50 .55
// but within the caches five rows and more of 4 bytes, AVX2, .38 .48 -> .31 .33, and three, AVX-512 that
// permutes no bytes, .38 -> .31.
bool gathers_windows(const Problem& p, const Machine& m) {
  constexpr int64_t kTimes = 9, kTimesInLanes = 4, kTimesBeyond = 2, kFew = 3;
  const int64_t e = p.element_bytes;
  const Dim &rows = p.dims[tile_row_dim(Kernel::kTile, p)], &cols = p.dims[p.rank - 1];
  if (rows.extent * e > 2 * kLine || cols.in_stride <= e || cols.in_stride >= rows.extent * e) return false;
  if (streams_tiles(p, m) || carries_rows(p, m)) return false;
  if (fills(p, m, m.tuned.runs_leave)) return e < kLaneBytes && cols.extent > kTimesBeyond * rows.extent;
  const bool permutes_bytes = vectors_are_lines(m) && m.carries_bytes;
  if (e == 4 && !permutes_bytes && (rows.extent > kFew || vectors_are_lines(m))) return false;
  return cols.extent >= (e < kLaneBytes ? kTimes : kTimesInLanes) * rows.extent;
}

// Whether elements, or runs, are better gathered into rows of the output than moved in tiles: what a vector
// has several of in the input, of few rows, or what is one again and again. In tiles -> so, Zen 3, two and
// three rows of matrices of 3 and 4, .3 and 20 MB, one thread:
//   1, 2 and 4 bytes    .06 .16 .65, .05 .18 .52; .06 .10 .23, .08 .12 .27
//                    -> .26 .26 .75, .18 .24 .58; .30 .32 .37, .26 .22 .28
//   batches of 3 x 128 and 3 x 512 in 1 byte    .06 .07; .19 .19 -> .09 .16; .32 .36
//   but 7 x 64 in 1, 5 x 128 in 2               .06 .28; .27 .56 -> .04 .13; .20 .41
// What is one again and again, from 64 bytes in 1 byte, and else 128; in tiles -> so, .1 to 6 MB, one thread;
// two
//   Zen 4, rows of 64 to 128, 1 byte       .62; .59 -> .93; .95
//     128 to 256, 1 to 16 bytes            .68 .89 1.05 1.06 1.27; .62 .78 .85 .79 .92
//                                       -> 1.35 1.28 1.33 1.32 1.29; 1.25 1.18 1.21 1.14 1.17
//     AVX2, 128 to 192                     .43 .86 .92 .93 1.14; .42 .86 .87 .83 1.06
//                                       -> 1.21 1.23 1.26 1.32 1.31; 1.17 1.30 1.24 1.21 1.23
//   Xeon, 128 to 256                       .63 .87 .91 .92 .98; .50 .75 .70 .78 .78
//                                       -> 1.12 1.07 1.12 1.07 1.02; .89 1.14 .73 .89 .75
bool prefers_gathering(const Problem& p, const Machine& m) {
  constexpr int64_t kRowBytes = 128, kColumnBytes = 8;
  if (p.rank == 0) return false;
  if (with_gathered_runs(p)) return true;
  const int64_t e = p.element_bytes;
  const Dim& cols = p.dims[p.rank - 1];
  if (cols.out_stride != e || cols.in_stride < 0) return false;
  if (cols.in_stride == 0) return cols.extent * e >= (e == 1 ? kLine : 2 * kLine);
  const int row = tile_row_dim(Kernel::kTile, p);
  if (row < 0) return false;
  if (gathers_windows(p, m)) return true;
  if (cols.in_stride + e > kLaneBytes) return false;
  if (p.dims[row].extent * e >= kColumnBytes || cols.extent * e < kRowBytes) return false;
  return !splits(p, row) && !fuse_sides(p, row, m).fuse();
}

Plan finish(const Problem& problem, const Machine& m, Kernel kernel) {
  Plan plan;
  plan.problem = problem;
  const Problem& p = plan.problem;
  const bool tiles = kernel == Kernel::kTile || kernel == Kernel::kStaged;
  if (tiles && !has_tiles(problem)) plan.problem = with_runs_as_elements(problem).value();
  if (kernel == Kernel::kStrided) plan.problem = with_gathered_runs(problem).value_or(problem);
  if (kernel == Kernel::kPieces) {
    const PieceChoice choice = any_piece(problem, m);
    plan.problem = choice.problem;
    plan.fused_rows = choice.piece.rows;
    plan.fused_cols = choice.piece.cols;
  }
  plan.backend = Backend::kCpu;
  plan.kernel = kernel;
  plan.isa = m.isa;
  const bool streaming = streams(plan, m), direct = kernel == Kernel::kTile;
  plan.stores = streaming ? Stores::kStreaming : Stores::kOrdinary;
  plan.carries = direct && streaming && !streams_tiles(p, m);
  if (tiles && !(direct && streaming)) {
    const Sides sides = fuse_sides(p, tile_row_dim(kernel, p), m);
    plan.fused_rows = sides.row_dims;
    plan.fused_cols = sides.col_dims;
  }
  if (kernel == Kernel::kRows && streaming && gathers_runs(p)) plan.fused_cols = 2;
  if (direct && !is_fused(plan)) plan.order = tile_order(plan, m);
  const int64_t bytes = element_count(p) * p.element_bytes;
  plan.threads = static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1, std::max(m.threads, 1)));
  // Direct tiles are shaped by where their lines are asked into, others ask by their shape.
  if (direct) plan.prefetches_l1 = asks_into_l1(plan, m);
  set_tile(plan, m);
  plan.prefetches = asks(plan, m);
  if (!direct) plan.prefetches_l1 = asks_into_l1(plan, m);
  plan.edge_rows = edge_rows(plan, m);
  return plan;
}

// Whether a kernel can run a problem. Apart from why_not_cpu(), whose sentences take longer than a small
// call.
bool takes(Kernel kernel, const Problem& p) {
  const bool empty = element_count(p) == 0;
  switch (kernel) {
    case Kernel::kNone:
      return empty;
    case Kernel::kStrided:
      return true;
    case Kernel::kCopy:
      return !empty && (p.rank == 0 || (p.rank == 1 && ends_in_common_run(p)));
    case Kernel::kRows:
      return !empty && ends_in_common_run(p);
    case Kernel::kPieces:
      return !empty && (dense_piece(p, kMostPieceBytes).cols > 0 || piece_of_runs(p, false).piece.cols > 0);
    case Kernel::kTile:
    case Kernel::kStaged:
      return !empty && (has_tiles(p) || with_runs_as_elements(p).has_value());
    default:
      return false;
  }
}

// Whether pieces of several runs are moved in registers: of tiles with a short side that would else be joined
// with other dims, or that are small, if there are enough of them for the table of where their bytes go. In
// tiles, or staged -> so, problems of patches drawn at random, Zen 4, times as fast, 1, 2, 4 and 8 bytes:
//   .02 to 1 MB, one thread (163); .3 to 6 MB, two (125)    3.7 2.5 2.1 1.5; 3.3 2.9 2.1 1.4
//   1 to 6 MB, one (111); AVX-512 without VBMI, two (51)    3.8 3.0 2.0 1.4; -  2.8 1.7 1.3
//   8 to 40 MB, one (202); two (202)                        2.7 2.1 1.7 1.7; 3.1 2.2 1.8 1.7
// Where sides of 16 bytes and more, 32 of wider elements, would be joined, so .4 to 1.3; of 1 and 2 bytes in
// tiles of 257 to 512 bytes within the caches 1.0 to 1.3, past them .5 to .8. Nor what tiles merge or split
// in runs of some bytes, unless whole lines are written: 61 of 2 to 19 MB, one thread; two, pieces -> in runs
// .37 .40 .44 -> .42 .40 .46; .38 .39 .42 -> .43 .38 .45, 44 of whole lines, in runs -> pieces .40 .52 .65 ->
// .55 .56 .63; .42 .49 .63 -> .51 .55 .63, and runs of 6 to 12 bytes .47 .39 .51 -> .17 .14 .21.
bool permutes_runs(const Problem& p, const Machine& m) {
  constexpr int64_t kFewTimes = 2, kRunBytes = 24;
  if (!m.permutes_runs[p.element_bytes > 1]) return false;
  const std::optional<Problem> tiles = has_tiles(p) ? p : with_runs_as_elements(p);
  if (!tiles || tiles->element_bytes >= kLaneBytes) return false;
  const int row = tile_row_dim(Kernel::kTile, *tiles);
  const int64_t e = tiles->element_bytes, small = e <= 2 ? 256 : 512,
                side = e <= 2 ? kLaneBytes : 2 * kLaneBytes;
  const int64_t rows = tiles->dims[row].extent, cols = tiles->dims[tiles->rank - 1].extent;
  if (std::min(rows, cols) * e >= side) return false;
  const bool fuses = fuse_sides(*tiles, row, m).fuse();
  if (is_plain(e) && rows * cols * e > small && !fuses) return false;
  const auto [of_pieces, piece] = piece_of_runs(p, fills(p, m, m.tuned.runs_leave));
  if (piece.cols == 0) return false;
  const bool in_runs = fuses && moved_runs(*tiles, row) != Runs::kNone && rows * cols * e >= kRunBytes;
  if (in_runs && !writes_whole_lines(of_pieces, piece)) return false;
  return element_count(p) * p.element_bytes * kFewTimes >= piece.bytes * piece.bytes;
}

// Whether small permutations are moved in registers. Of a copy, else and so (Zen 5; Xeon, both with AVX-512):
// batches of 4 x 4 in 1 byte .03 -> .94; .06 -> .82, in 4 bytes .11 -> .92; .23 -> .77, 8 x 8 x 3 -> 0,2,1,3
// in 1 byte .03 -> .98; .02 -> .68, 3 x 3 x 3 -> 0,3,2,1 in 4 bytes .07 -> .93; .10 -> .59. AVX2, up to 128
// bytes: 4 x 4 in 1 byte .03 -> .85, in 4 bytes .11 -> .52. Pieces side by side share vectors, others need
// some bytes, and all to be twice as many as one has lines, for the table of where its bytes go (two of 20 x
// 33 in 1 byte .17 -> .04, eight .10 -> .08, 32 .07 -> .15).
bool permutes_pieces(const Problem& p, const Machine& m) {
  constexpr int64_t kPieceAlone = 32;
  const PieceDims piece = registers_piece(p, m);
  if (piece.cols == 0) return permutes_runs(p, m);
  const Dim& pieces = p.dims[batch_dims(p, piece).dims[0]];
  const bool adjoin = pieces.in_stride == piece.bytes && pieces.out_stride == piece.bytes;
  const int64_t count = element_count(p) * p.element_bytes / piece.bytes;
  return (adjoin || piece.bytes >= kPieceAlone) && count * kLine >= 2 * piece.bytes;
}

// Whether output rows whose lines meet are staged though they stay within the caches. Of a copy, straight to
// the output and through staging (Zen 5; the same with AVX2): 64^3 reversed in 4 bytes .22 -> .45; .12 ->
// .41, 1023 x 1025 .24 -> .38; .16 -> .35, 128^3 in 1 byte .13 -> .26; .08 -> .30, 16^5 .21 -> .33; .11 ->
// .27, 64^3 in 1 .07 -> .15; .04 -> .10, 32^3 in 4 .13 -> .21; but of half the rows in one set, 60 x 1023 x
// 100 -> 0,2,1 in 2 .37 -> .24. Where cores move lines in halves, rows that are no whole lines, and others if
// input rows meet, too, in 4 bytes or if no dims are joined. Staged -> straight, Zen 4, 31 to 59 each of .13
// to 14 MB, 1 to 4 bytes, one thread; two
//   others                        .30 .34 .41; .28 .34 .44 -> .33 .42 .49; .32 .42 .51
//   but 2049 x 1025 in 2 bytes and 1025 x 513 in 4    .23 .32; .21 .34 -> .17 .22; .16 .23
//       128^3, 64^3 and 64^3 reversed                 .24 .24 .34; .24 .25 .35 -> .21 .18 .28; .22 .17 .27
bool stages_meeting_rows(const Problem& p, int row, bool fuses, const Machine& m) {
  constexpr int64_t kStagedBytes = 128 << 10;
  const int64_t e = p.element_bytes;
  if (e > 4 || element_count(p) * e < kStagedBytes || tiles_avoid_conflicts(p, m) || !rows_meet(p, row, m))
    return false;
  if (!halves_vectors(m) || p.dims[row].out_stride % kLine != 0) return true;
  return in_rows_meet(p) && (e == 4 || !fuses);
}

Kernel choose_tile(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kStaged, p);
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t row_bytes = cols.extent * p.element_bytes;
  const bool fuses = fuse_sides(p, row, m).fuse();
  if (rows_adjoin(p, row) && !(fuses && moved_runs(p, row) == Runs::kMerged)) {
    const bool dense = cols.in_stride == p.dims[row].extent * p.element_bytes;
    if (dense && p.dims[row].extent * row_bytes <= m.tuned.tiny_matrix_bytes) return Kernel::kTile;
    if (row_bytes < kLine && !fills(p, m, m.tuned.runs_leave)) return Kernel::kTile;
  }
  if (streams_tiles(p, m) || carries_rows(p, m)) return Kernel::kTile;
  if (keeps_lines(p, m) && !fuses) return Kernel::kTile;
  if (stages_meeting_rows(p, row, fuses, m)) return Kernel::kStaged;
  const int64_t run = output_run_bytes(p, row);
  const bool lines_are_whole = run >= kStagedRunBytes || p.dims[row].out_stride == run;
  return stages_beyond_caches(p, m) && lines_are_whole ? Kernel::kStaged : Kernel::kTile;
}

// Whether what has tiles goes in runs: of windows that overlap in the input, whose dims are contiguous there,
// too, if the runs are long. In tiles, or staged -> so, windows of 2 x 2 to 7 x 7 and 14 to 126 columns, 11
// to 16 each of .2 to 14 MB, one thread; two, 1 to 16 bytes
//   Zen 4    .10 .19 .41 .53 .87; .11 .20 .40 .51 .80 -> .39 .53 .73 .92 1.31; .43 .50 .70 .88 1.22
//   Xeon     .06 .14 .91 .54 .63; .06 .13 .30 .43 .63 -> .74 .80 1.83 1.40 1.23; .78 .69 .93 1.43 1.25
//   but seven columns, Zen 4    .06 .10 .26 .46 .80; .06 .11 .27 .44 .80 -> .06 .10 .23 .38 .67; .06 .12 .24
//   .37 .66
bool prefers_runs(const Problem& p) {
  constexpr int64_t kFew = 12, kTimes = 3;
  if (!ends_in_common_run(p)) return false;
  const int64_t rows = p.dims[tile_row_dim(Kernel::kTile, p)].extent;
  return p.dims[p.rank - 1].extent >= std::max(kFew, kTimes * rows);
}

Kernel choose(const Problem& p, const Machine& m) {
  for (Kernel kernel : {Kernel::kNone, Kernel::kCopy}) {
    if (takes(kernel, p)) return kernel;
  }
  if (permutes_pieces(p, m)) return Kernel::kPieces;
  if (prefers_gathering(p, m)) return Kernel::kStrided;
  if (has_tiles(p) && !prefers_runs(p)) return choose_tile(p, m);
  if (!takes(Kernel::kRows, p)) return Kernel::kStrided;
  const std::optional<Problem> of_runs = with_runs_as_elements(p);
  if (!of_runs) return Kernel::kRows;
  const Kernel tiles = choose_tile(*of_runs, m);
  return tiles == Kernel::kStaged && streams_long_runs(*of_runs, m) ? Kernel::kRows : tiles;
}

}  // namespace

std::string why_not_cpu(Kernel kernel, const Problem& p) {
  if (takes(kernel, p)) return "";
  const bool empty = element_count(p) == 0;
  switch (kernel) {
    case Kernel::kNone:
      return "it moves nothing, but there are " + std::to_string(element_count(p)) + " elements";
    case Kernel::kCopy:
      if (empty) break;
      return "it needs one run, contiguous on both sides, but got " + to_string(p);
    case Kernel::kRows:
      if (empty) break;
      return "it needs runs that are contiguous on both sides, but got " + to_string(p);
    case Kernel::kPieces:
      if (empty) break;
      return "it needs pieces of at most " + std::to_string(kMostPieceBytes) +
             " bytes, dense in both or of a few runs in either, and a dim of them, but got " + to_string(p);
    case Kernel::kTile:
    case Kernel::kStaged:
      if (empty) break;
      return "it needs one dim contiguous in the input and another, the last, contiguous in the output, of "
             "elements or of runs of at most " +
             std::to_string(kMostElementBytes) + " bytes, but got " + to_string(p);
    default:
      return std::string("the CPU has no kernel '") + name(kernel) + "'";
  }
  return "it needs at least one element, but an extent is 0";
}

const std::vector<Kernel>& kernels_cpu() {
  static const std::vector<Kernel> kernels = {Kernel::kNone, Kernel::kCopy,   Kernel::kPieces, Kernel::kRows,
                                              Kernel::kTile, Kernel::kStaged, Kernel::kStrided};
  return kernels;
}

Plan plan_cpu(const Problem& problem, const CpuFacts& facts) {
  const Problem p = normalize(problem);
  const Machine m(facts);
  return finish(p, m, choose(p, m));
}

Plan plan_cpu_forced(const Problem& problem, const CpuFacts& facts, Kernel kernel) {
  return finish(normalize(problem), Machine(facts), kernel);
}

}  // namespace tx
