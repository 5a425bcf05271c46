// Legality of each CPU kernel, and the choice among them: of kernel, stores, order and threads.
#include "core/plan_cpu.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <optional>

#include "core/machine_cpu.h"
#include "core/normalize.h"
#include "core/pieces_cpu.h"
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

// Bytes that lie together in the output when one index along `row` is fixed.
int64_t output_run_bytes(const Problem& p, int row) {
  int64_t run = p.element_bytes;
  for (int d = p.rank - 1; d > row && p.dims[d].out_stride == run; --d) run *= p.dims[d].extent;
  return run;
}

// Rows of either side that are multiples of so much apart have lines that wait for each other.
int64_t conflicting_pitch(int64_t element_bytes, const Machine& m) {
  return kConflictingPitch[width_row(element_bytes)] * m.tuned.conflicting_pitches;
}

// Whether they are, and enough to matter.
bool rows_conflict(const Problem& p, int row, const Machine& m) {
  const int64_t e = p.element_bytes;
  if (e > 8 || element_count(p) * e < kBeyondL2Bytes) return false;
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t pitch = kConflictingPitch[width_row(e)], apart = conflicting_pitch(e, m);
  return rows.extent * e >= pitch && cols.extent * e >= pitch &&
         (rows.out_stride % apart == 0 || cols.in_stride % apart == 0);
}

// Whether nearly all output rows of a vector's height have their lines in one set of the L1 cache, which
// takes a line only every few cycles; where staging has them in all sets. Short rows gain nothing.
bool rows_meet(const Problem& p, int row, const Machine& m) {
  const int64_t e = p.element_bytes;
  if (!is_plain(e) || e > 8) return false;
  const Sides sides = fuse_sides(p, row, m);
  if (!sides.fuse() && p.dims[p.rank - 1].extent * e < 2 * kLine) return false;
  const int64_t rows = kLine / e;
  return rows_in_sets(p, row, sides.row_dims, rows, 1) >= rows / 4 * 3;
}

// In how many sets of a cache rows so far apart have the lines that they begin in, and those after. A way is
// 64 times `set_bytes`: L1 has ways of 4 KiB, most L2 of 64.
int sets_of_rows(int64_t pitch, int64_t rows, int64_t set_bytes) {
  uint64_t sets = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t set = std::abs(r * pitch) / set_bytes;
    sets |= uint64_t{1} << set % 64 | uint64_t{1} << (set + 1) % 64;
  }
  return std::popcount(sets);
}

// Whether rows conflict where they are stored: of 4 bytes not where they are asked for (12 matrices of 18 to
// 28 MB whose rows conflict or crowd, streamed, or in low tiles, and so, .57 -> .72 of a copy; ten in 8 bytes
// .62 -> .49), nor rows of the input alone, of 2 to 8 bytes, where vectors are less than lines (Zen 3, ten
// each of 3 to 9 MB, 2, 4 and 8 bytes, one thread; two, in blocks -> so .39 .51 .64; .31 .41 .55 -> .54 .76
// .89; .45 .57 .74).
bool stored_rows_conflict(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const int64_t e = p.element_bytes;
  if (!rows_conflict(p, row, m) || (e == 4 && tiles_ask(p, m))) return false;
  return vectors_are_lines(m) || e == 1 || p.dims[row].out_stride % conflicting_pitch(e, m) == 0;
}

// Whether a problem fills so much of the last cache, or, where rows conflict, as much as that leaves it at,
// whatever it asks for.
bool fills_or_conflicts(const Problem& p, const Machine& m, double eighths) {
  if (stored_rows_conflict(p, m)) eighths = m.tuned.conflicts_leave[width_row(p.element_bytes)];
  return fills(p, m, eighths);
}

bool tiles_beyond_caches(const Problem& p, const Machine& m) {
  return fills_or_conflicts(
      p, m, tiles_ask(p, m) ? kAskingTilesLeave : m.tuned.tiles_leave[width_row(p.element_bytes)]);
}

// Whether all that is written are whole lines; merged, of rows that adjoin, but for the end of the last.
bool writes_whole_lines(const Problem& p, int row, bool merged) {
  uint64_t bits = p.out_address;
  if (!merged) bits |= static_cast<uint64_t>(p.dims[p.rank - 1].extent * p.element_bytes);
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (!merged || d != row) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  return bits % kLine == 0;
}

// Whether direct tiles are moved crosswise: on some machines, as long as little of the last cache is filled.
bool tiles_cross(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const int64_t e = p.element_bytes, side = std::min(p.dims[row].extent, p.dims[p.rank - 1].extent) * e;
  if (!crosses(m) || !is_plain(e) || side < kLine) return false;
  return !fills(p, m, m.tuned.crossed_until[writes_whole_lines(p, row, false) || rows_conflict(p, row, m)]);
}

// Whether output rows of a vector's height, of 1 and 2 bytes, have too many lines in two sets of the L1 cache
// side by side, whatever their pitch (kCrowdedInBlocks has what that is worth). Rows that meet are staged.
bool rows_crowd_sets(const Problem& p, int row, const Machine& m) {
  const int64_t e = p.element_bytes, side = std::min(p.dims[row].extent, p.dims[p.rank - 1].extent) * e;
  if (!crosses(m) || e > 2 || element_count(p) * e < kCrowdedInBlocksBytes || side < 4 * kLine) return false;
  return rows_in_sets(p, row, 1, kLine / e, 2) > kCrowdedInBlocks[width_row(e)] && !rows_meet(p, row, m);
}

// Whether rows conflict, as rows_conflict() has it for other orders, of what would be moved crosswise: where
// output rows of a vector's height find no room in their sets of the L1 cache, or input rows of 1 and 2 bytes
// none in a quarter of a way.
bool crossing_rows_conflict(const Problem& p) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t e = p.element_bytes, side = std::min(rows.extent, cols.extent) * e;
  if (e > 4 || element_count(p) * e < kBeyondL2Bytes || side < kL1WayBytes / 4) return false;
  return rows.out_stride % (kL1WayBytes / 4 * e) == 0 ||
         (e <= 2 && cols.in_stride % (kL1WayBytes / 2 * e) == 0);
}

// Whether crosses lie along diagonals: where output rows are whole multiples so far apart that eight lines or
// more of a vector's height are in one set of the L1 cache.
bool crosses_lie_diagonally(const Problem& p) {
  const int64_t e = p.element_bytes;
  return (e == 4 || e == 8) && p.dims[tile_row_dim(Kernel::kTile, p)].out_stride % (kL1WayBytes / 8 * e) == 0;
}

// Whether tiles write whole lines, asked for before, that stay within the caches: then they are neither
// staged nor carried (kAskingTilesLeave has what that is worth).
bool keeps_lines(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  return tiles_ask(p, m) && writes_whole_lines(p, row, false) && !tiles_beyond_caches(p, m);
}

// Whether rows are so far apart that, few or short as they may be, what is stored in parts of lines goes in
// blocks: output rows, and, in 1 byte, input rows, unless vectors are mere lanes; in 4 bytes not if both are.
// In tiles -> so, Zen 3, 30 each of one long side and one up to 1 KiB, one thread; two
//   output rows, 1, 2 and 4 bytes    .28 .31 .36; .28 .30 .34 -> .35 .44 .47; .30 .37 .46
//     portable                       .19 .22 .33; .18 .22 .28 -> .24 .27 .44; .18 .24 .34
//   input rows, 1 byte               .30; .29 -> .35; .34
//     but 2 bytes                    .41; .38 -> .43; .37
//     portable, 201 and 917 x 2048   .47 .43; .36 .31 -> .32 .28; .24 .26
//   both, 64 x 32 x 64 and 64^3 -> 2,1,0 in 4 bytes    .38 .35; .26 .26 -> .27 .24; .26 .26
bool rows_far_apart(const Problem& p, const Machine& m) {
  constexpr int64_t kRowBytes[] = {256, 128, 64};
  const int64_t e = p.element_bytes;
  if (vectors_are_lines(m) || e > 4 || fills(p, m, m.tuned.meeting_rows_leave)) return false;
  const Dim& rows = p.dims[tile_row_dim(Kernel::kTile, p)];
  const Dim& cols = p.dims[p.rank - 1];
  const int w = width_row(e);
  if (rows.extent * e < kRowBytes[w] || cols.extent * e < kStoredBlock[0][w].across * kLine) return false;
  const bool out_rows = rows.out_stride % (kL1WayBytes / 4 * e) == 0;
  if (e == 1) return out_rows || (m.line_vectors > 1 && cols.in_stride % (kL1WayBytes / 2) == 0);
  return out_rows && (e == 2 || cols.in_stride % kL1WayBytes != 0);
}

// Of what is stored, what conflicts, but not where cores move lines and share a far cache. In tiles -> in
// blocks:
//   Zen 4, three in 8, staged -> so                                         .53 -> .70
//   Xeon, 23 whose rows conflict, 1 to 8 bytes, in blocks -> in tiles
//             one thread    .40 .32 .36 .54 -> .44 .36 .40 .57
//             two           .38 .30 .35 .50 -> .47 .39 .44 .59
//             four          .35 .27 .37 .54 -> .54 .41 .48 .68
//             16            .49 .37 .41 .59 -> .55 .46 .50 .68
bool stored_in_blocks(const Problem& p, const Machine& m) {
  const int64_t e = p.element_bytes;
  if (!is_plain(e) || e > 8 || (m.tuned.moves_lines && !m.tuned.near_cache)) return false;
  if (rows_far_apart(p, m)) return true;
  if (tiles_cross(p, m) ? crossing_rows_conflict(p) : stored_rows_conflict(p, m)) return true;
  return rows_crowd_sets(p, tile_row_dim(Kernel::kTile, p), m);
}

// Rows that are many to be streamed in blocks.
constexpr int64_t kManyRows = 1024;

// Whether what is streamed of 1 and 4 bytes is in blocks where cores move lines in halves: long rows where
// those of either side meet in few sets of L1; short ones if many, 1 byte, or whole blocks, in whole parts of
// what these ask for together, 4 bytes two abreast, and 1 byte where input rows meet. In tiles -> in blocks,
// Zen 4, one thread; two, by the bytes of which pitches are odd multiples:
//   1 byte, five each of 48 MB, both of 512           .60; .67 -> .86; .84
//                               input's of 512, 256   .66 .85; .69 .82 -> .87 .89; .77 .95
//                               output's of 512, 256  .66 .87; .77 .86 -> .83 .81; .87 .85
//   4 bytes, six each of 64 MB, input's of 2 KiB, 1   .85 .94; .93 .94 -> .92 .87; .97 .96
//                               output's of 4 KiB, 2  .83 .92; .97 .92 -> .88 .91; .95 .90
//   short rows, 600 x 256 x 512, 400 x 512 x 512 and 600 x 256 x 768 -> 0,2,1 in 1 byte
//                                                     .61 .61 .67; .82 .79 .88 -> .80 .71 .91; .90 .87 .94
//     1024 x 128 x 128, 300 x 128 x 512 and 30 x 128 x 4000 in 4
//                                                     .59 .60 .59; .84 .81 .78 -> .74 .85 .88; .86 .88 .90
//     but 1000 x 448 x 256 in 1 byte, 2000 x 64 x 128 and 1500 x 128 x 96 in 4
//                                                     .68 .71 .56; .82 .93 .80 -> .54 .63 .51; .72 .84 .71
bool streamed_in_blocks_by_halves(const Problem& p) {
  const Dim& rows = p.dims[tile_row_dim(Kernel::kTile, p)];
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t e = p.element_bytes, in_row_bytes = rows.extent * e, row_bytes = cols.extent * e;
  const int64_t part_bytes = kStreamedBlock[0][width_row(e)].together * kLine;
  const bool short_rows = row_bytes <= kStreamedRowBytes;
  const bool whole = in_row_bytes % part_bytes == 0 && kStreamedRowBytes % row_bytes == 0;
  if (e == 1) {
    const bool in_rows_meet = cols.in_stride % 256 == 0;
    if (short_rows) return row_bytes >= 2 * kLine && (rows.extent >= kManyRows || (whole && in_rows_meet));
    return in_row_bytes >= 512 && (in_rows_meet || rows.out_stride % 512 == 0);
  }
  if (short_rows) return whole && row_bytes == kStreamedRowBytes;
  return std::min(in_row_bytes, row_bytes) >= 1024 &&
         (cols.in_stride % 2048 == 0 || rows.out_stride % 4096 == 0);
}

// Whether what is streamed of 8 and 16 bytes is in blocks where a line is several vectors: where rows of
// either side have their lines in few sets of L1. In tiles -> in blocks, Zen 3, one thread; two
//   8 bytes   output rows, odd multiples of 512 bytes apart, 1 KiB, 2, 4    .79 .82 .61 .62; .73 .72 .64 .69
//                                                                        -> .85 1.02 .82 .82; .92 .94 .89 .94
//             input rows of 12 KiB; neither (two)           .97, 1.05 1.01; .94, .97 1.05
//                                                        -> 1.12, .91 .80; .98, .91 .87
//   16 bytes  output rows, five, odd multiples of 1 KiB, and four, of 2 and more
//                                                           .77 .45; .84 .55 -> .88 .86; .93 .88
//             3424 x 2304; ten whose output rows are odd multiples of 64 and 256 bytes apart
//                                                           .88, 1.06; .84, .97 -> 1.03, .90; .96, .94
bool wide_streamed_in_blocks(const Problem& p) {
  const int64_t in_pitch = p.dims[p.rank - 1].in_stride;
  const int64_t out_pitch = p.dims[tile_row_dim(Kernel::kTile, p)].out_stride;
  if (p.element_bytes == 8) return out_pitch % 512 == 0 || in_pitch % kL1WayBytes == 0;
  return out_pitch % 1024 == 0 || (out_pitch % 512 == 0 && in_pitch % 2048 == 0);
}

// Of what is streamed: 2 bytes; 8 and 16 where lines are asked for into L1 (kStreamedBlock has what that is
// worth; but 1000000 x 16 in 8 .89 -> .80); 1 and 4, where cores do not move lines in halves, with conflicts,
// and without them short rows, of two lines and more, if many or asked for into L1, and other bytes, but from
// a near cache no few rows, unless whole parts of what blocks ask for together. In tiles -> in blocks:
//   Zen 4, 8192^2 and 4096^2 in 2                                       .79 -> .86
//   Xeon, six in 4 whose rows conflict, 16 threads; 4; 2    .70 .59 .64 -> .77 .80 .90
//         seven others                                      .90 .83 .82 -> .85 .91 .84
//         four of short rows in 4, 16 threads; 4            .81 .68 -> .84 .81
//   Zen 5, three of short rows in 4, two threads; one       .89 .70 -> .92 .78
//          the same three planned as on Zen 4, two          .87 -> .81
//          three in 1, planned so, two; one                 .69, .43 -> .83, .70
//            but batches of 128 and 192 rows                .78, .69 -> .67, .49
//          64 and 128 rows of bytes, in blocks -> in tiles  .42 .49, .45 .46 -> .61 .79, .65 .75
//          five of 576 to 960 rows                          .79, .66 -> .86, .76
//          512 and 1024 rows                                .89 .89, .74 .74 -> .82 .84, .62 .62
//   Zen 3, AVX2, both sides some lines, 1 and 4 bytes, eight each of 32 to 90 MB, two; one
//                                                           .65 .86, .61 .76 -> .73 .95, .67 .89
//          100000 x 64 x 64 in 1, 2000 x 64 x 128 in 4, two .91 .87 -> .86 .77
//   few rows far apart, of 64 and 128 bytes of the input, three in 1 byte, two in 4
//                                                    one .48 .42, .53 .54 -> .74 .84, .90 1.08
//                                                    two .45 .38, .53 .56 -> .84 .98, .95 1.12
bool streamed_in_blocks(const Problem& p, const Machine& m) {
  constexpr int64_t kWholeParts = 512, kFewBytes = 192, kFewWordBytes = 512;
  const int64_t e = p.element_bytes;
  if (!is_plain(e)) return false;
  if (e == 2) return true;
  const int row = tile_row_dim(Kernel::kTile, p);
  const int64_t rows = p.dims[row].extent, row_bytes = p.dims[p.rank - 1].extent * e;
  if (e > 4 && streams_in_parts(m)) return wide_streamed_in_blocks(p);
  if (e > 4) return m.tuned.asks_into_l1 && rows * e >= 4 * kLine;
  if (streams_in_parts(m)) {
    const bool far_rows =
        rows * e >= kLine && row_bytes > kStreamedRowBytes && streams_by_memory(e, p.dims[row].out_stride);
    return far_rows || std::min(rows * e, row_bytes) >= (e == 1 ? kFewBytes : kFewWordBytes);
  }
  if (leaves_early(m)) return streamed_in_blocks_by_halves(p);
  const bool short_rows =
      row_bytes >= 2 * kLine && row_bytes <= kStreamedRowBytes && (rows >= kManyRows || m.tuned.asks_into_l1);
  if (rows_conflict(p, row, m) || short_rows) return true;
  return e == 1 && (!m.tuned.near_cache || rows >= kManyRows || rows % kWholeParts == 0);
}

// What is moved in runs is staged as early as other short sides: 24 each of 5, 9, 12 and 20 MB, straight ->
// so, Zen 4, one thread; two, .43 .25 .26 .27 -> .34 .32 .32 .45; .41 .28 .32 .39 -> .29 .26 .34 .59.
bool stages_beyond_caches(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kStaged, p);
  const int64_t e = p.element_bytes, rows = p.dims[row].extent, cols = p.dims[p.rank - 1].extent;
  if (fills(p, m, m.tuned.meeting_rows_leave) && rows_meet(p, row, m) && !stored_in_blocks(p, m)) return true;
  if ((splits(p, row) || merges(p, row)) && !fuse_sides(p, row, m).fuse())
    return fills(p, m, m.tuned.narrow_staged_leave);
  if (leaves_early(m) && e >= kWideStaged) return fills(p, m, kWideStagedLeave);
  if (std::min(rows, cols) * e >= kStagedSideBytes)
    return fills_or_conflicts(p, m, m.tuned.staged_leave[width_row(e)]);
  return fills(p, m, kShortSidesLeave);
}

// Of what is carried: where the input rows of a vector share sets of L1, up to 4 bytes, and output rows sets
// of L2, wider elements; these not where cores move lines, but 8 bytes by input rows where lines are asked
// for into L1 (kCarriedBlock). In tiles -> in blocks:
//   Zen 4, input rows next to multiples of 4 KiB, 2 and 4 bytes (six, three)   .37 .36 -> .43 .54
//                         next to odd ones of 2 KiB, 1 to 4 bytes (two each)   .64 .79 .94 -> .69 .79 .92
//                         next to odd ones of 1 KiB                            .60 .86 .96 -> .59 .81 .94
//          output rows next to multiples of 64 KiB, 8 and 16 bytes (two)       .35 .74 -> .73 .83
//          neither (four)                             .63 .83 .86 .87 .86 -> .61 .85 .84 .84 .82
//   Zen 3, AVX2, all, as kCarriedBlock has it
//   Xeon, 8191 x 8193 and 4095 x 4097, 16 threads     .49 .55 .61 .77 .82 -> .53 .59 .68 .71 .80
//                                      4              .40 .47 .56 .70 .84 -> .44 .54 .59 .72 .76
bool carries_blocks(const Problem& p, const Machine& m) {
  if (!vectors_are_lines(m)) return true;
  if (splits(p, tile_row_dim(Kernel::kTile, p))) return false;
  constexpr int kFewL1Sets = 6, kFewL2Sets = 4;
  constexpr int64_t kRows = 8, kL2SetBytes = 1024;
  const int64_t e = p.element_bytes;
  if (e <= 4 || (e == 8 && m.tuned.asks_into_l1))
    return sets_of_rows(p.dims[p.rank - 1].in_stride, line_elements(e), kLine) <= kFewL1Sets;
  if (m.tuned.moves_lines) return false;
  const Dim& rows = p.dims[tile_row_dim(Kernel::kTile, p)];
  return sets_of_rows(rows.out_stride, kRows, kL2SetBytes) <= kFewL2Sets;
}

// Whether direct tiles are streamed: where that pays, only whole lines of the output are written, and no dims
// are joined. What is split or merged is as good as copied.
bool streams_tiles(const Problem& p, const Machine& m) {
  const int64_t e = p.element_bytes;
  const int row = tile_row_dim(Kernel::kTile, p);
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const bool can = e % kLine == 0 || (is_plain(e) && m.line_vectors > 0);
  if (!can || !tiles_beyond_caches(p, m)) return false;
  const bool merged = merges(p, row);
  const bool few =
      rows.extent <= kStreamedFew && rows.extent * e >= kLaneBytes && cols.extent * e > kStreamedRowBytes;
  const bool whole = e > 2 || rows.extent * e % kLine == 0 || rows.extent * e >= kStagedSideBytes;
  const bool near_rows =
      e > 1 || vectors_are_lines(m) || m.tuned.near_cache || rows.out_stride <= kBytesPitch;
  const bool near = whole && rows.extent * e >= kLine && near_rows;
  if (splits(p, row) || merged ? !fills(p, m, m.tuned.narrow_lines_leave) : !few && !near) return false;
  return writes_whole_lines(p, row, merged) && !fuse_sides(p, row, m).fuse();
}

// Whether tiles are streamed to rows at any pitch: each line is then written from registers, or from L1,
// where staging moves it through the core's caches twice. Staged -> so:
//   Zen 5, 23 problems; Xeon, 2 and 6 threads      .61 .55 .53 -> .73 .68 .66
//   Zen 5; Xeon, 8191 x 8193 in 4 and 16 bytes     .71 .72, .51 .54 -> .81 .84, .53 .69
//                2047 x 2049 in 4                  .61, .34 -> .84, .47
//                3001 x 3003 in 2                  .71, .42 -> .90, .52
//                37 x 301 x 403 -> 0,2,1 in 8      .57, .39 -> .78, .52
//            but 8191 x 8193 in 2                  .70, .50 -> .67, .45 (Zen 5 in 1 .60 -> .43)
//   Zen 3, eight a width of 32 to 90 MB, one thread; two
//     .37 .45 .49 .53 .61; .46 .45 .55 .61 .79 -> .41 .49 .53 .69 .89; .52 .56 .69 .77 1.01
//   Xeon, AVX2, six, 16 threads    .37 .46 .45 .46 .62 -> .38 .50 .52 .65 .60
//   Zen 5, shorter: 1401^2 to 1601^2 in 4, 601 x 30001 in 2, 200001 x 20 in 4   .50 .47 .53 -> .41 .42 .32
//   bytes, with AVX-512 VBMI
//     Zen 4, 6 to 140 MB, in huge pages (58, none slower); of 4 KB (39, none)  .51 .46 -> .67 .63
//     Zen 5, seven of 25 to 98 MB, two threads; one                            .65 .52 -> .77 .61
//            8191 x 8193                                                       .62 -> .72
//     Xeon, eight of 9 to 81 MB, 16, 4 and 2 threads                           .50 .40 .41 -> .60 .48 .53
// What is split is carried as soon as it leaves the caches. Staged -> so, one thread; two or four:
//   three columns of 1, 4 and 8 bytes, seven of 4
//     Zen 5             .71 .67 .70 .65, .82 .76 .74 .75 -> 1.14 1.10 1.12 .88, 1.02 1.00 1.03 1.01
//     Xeon              .61 .71 .73 .63, .68 .82 .81 .60 -> .93 .97 .97 .92, .87 .91 .94 .69
//   31 of 1 and 24 of 2
//     Zen 5; Xeon       .42 .52, .65 .73; .59 .56, .58 .58 -> 1.02 1.02, .97 1.02; .78 .79, .78 .72
//   16 of 1, Xeon       .62, .66 -> .57, .56
// Nor whole lines where tiles are crossed, or vectors are less than lines, as long as they are stored within
// the cache (Zen 5, ten of 12 to 27 MB, 2 and 4 bytes .66 .66 -> .75 .72).
bool carries_rows(const Problem& p, const Machine& m) {
  constexpr int64_t kInputRunBytes = 128, kSplitCarriedBytes = 1024;
  if (!can_carry_rows(p, m) || keeps_lines(p, m)) return false;
  const int64_t e = p.element_bytes;
  const int row = tile_row_dim(Kernel::kTile, p);
  if (splits(p, row)) {
    return vectors_are_lines(m) && p.dims[p.rank - 1].extent * e >= kSplitCarriedBytes &&
           fills(p, m, m.tuned.narrow_lines_leave);
  }
  if (!fills(p, m, m.tuned.carried_from[width_row(e)])) return false;
  const bool keeps = crosses(m) || !vectors_are_lines(m);
  if (keeps && writes_whole_lines(p, row, false) && !tiles_beyond_caches(p, m)) return false;
  if (p.dims[row].extent * e < kInputRunBytes) return false;
  if (p.dims[p.rank - 1].extent * e < m.tuned.carried_row_bytes[width_row(e)]) return false;
  return !fuse_sides(p, row, m).fuse();
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
  const int64_t bytes = p.dims[p.rank - 1].extent * p.element_bytes;
  if (bytes > kMostElementBytes) return std::nullopt;
  Problem of_runs = p;
  of_runs.element_bytes = bytes;
  of_runs.rank = p.rank - 1;
  if (!has_tiles(of_runs)) return std::nullopt;
  return of_runs;
}

// Whether runs are shorter than lines, and follow one another in the output. Streamed one by one, and
// gathered (Zen 5): 19 x 17 x 23 x 13 x 29 x 11 -> 0,2,1,4,3,5, 4 bytes .20 -> .31 of a copy, 4000 x 4000 x 3
// -> 1,0,2 in 1 byte .03 -> .10; runs of a line and more .91 -> .49.
bool gathers_runs(const Problem& p) {
  const Dim& run = p.dims[p.rank - 1];
  const int64_t bytes = run.extent * p.element_bytes;
  return p.rank > 1 && bytes < kLine && p.dims[p.rank - 2].out_stride == bytes;
}

// What is shorter than this costs more to gather than it saves (Zen 5, of a copy: three bytes out of four,
// 3000 x 4000 pixels, gathered .50, not streamed .75; three bfloat16 .92 and .84). Short runs that follow one
// another on both sides are neither gathered nor streamed from a near cache into a small L1. Streamed -> so,
// Zen 4, one thread; two:
//                          64 to 128 bytes (10)    129 to 256           257 to 512
//   rows at any pitch      .41 .35 -> .54 .48      .47 .39 -> .57 .51   .54 .58 -> .54 .58
//   AVX2                   .53 .60 -> .62 .66      .66 .75 -> .68 .73   .74 .80 -> .66 .74
//   but 200 of 204 bytes, 1000 x 200 x 200 -> 1,0,2                     .65 .97 -> .44 .65
bool streams_runs(const Problem& p, const Machine& m) {
  constexpr int64_t kRunBytes = 4, kStoredRunBytes = 256;
  if (p.rank == 0 || !fills(p, m, m.tuned.runs_leave)) return false;
  const int64_t bytes = p.dims[p.rank - 1].extent * p.element_bytes;
  const bool in_turn = p.rank > 1 && tile_row_dim(Kernel::kRows, p) == p.rank - 2;
  const bool small_l1 = m.tuned.near_cache && !l1_has_room(m);
  if (small_l1 && in_turn && !gathers_runs(p) && bytes < kStoredRunBytes) return false;
  return bytes >= kRunBytes;
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

// Whether they are written past the caches.
bool streams_pieces(const Problem& p, const PieceDims& piece, const Machine& m) {
  if (!fills(p, m, m.tuned.runs_leave)) return false;
  return can_gather(p, piece) || (m.permutes_runs[p.element_bytes > 1] && writes_whole_lines(p, piece));
}

// Whether a plan's tiles, of two dims, follow one another in the input, one stretch each.
bool reads_in_turn(const Plan& plan) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  int64_t stretch = tile_rows(plan) * p.element_bytes;
  if (is_fused(plan) || p.dims[col].in_stride != stretch) return false;
  if (plan.tile[col] < p.dims[col].extent) return true;
  stretch *= p.dims[col].extent;
  const int next = row == col - 1 ? row - 1 : col - 1;
  return next < 0 || p.dims[next].in_stride == stretch;
}

// Whether what is staged is asked for, tiles ahead: not in pieces so long that the machine's prefetchers
// follow them, unless runs are merged of them (Zen 4, 36 of 25 MB, one thread; two, .42 -> .46; .50 -> .55),
// nor in short ones that make long stretches. Not asked for -> asked for, 14 x 17 x 14 x 9 x 29
// x 19 x 28 -> 3,2,6,0,4,1,5 in 1 byte, Zen 5, one thread; two, .26 .42 -> .53 .77 of a copy; Xeon, one .33
// -> .38. Smaller vectors go through a piece several times: in long stretches, too, 64 x 224 x 224 x 3 ->
// 0,3,1,2 in 4, 8 and 16 bytes, Zen 3, one thread .51 .57 .63 -> .70 .73 .76, two .71 .66 .68 -> .96 .86 .84,
// and six of 3 to 23 columns in 1 to 8 bytes .55, .60 -> .67, .73.
bool stages_ask(const Plan& plan, const Machine& m) {
  const int64_t piece = tile_rows(plan) * plan.problem.element_bytes;
  if (moved_runs(plan) == Runs::kMerged) return true;
  return piece < m.tuned.followed_bytes && (!vectors_are_lines(m) || piece >= kLine || !reads_in_turn(plan));
}

// A vector's height, of which a direct tile's last rows are moved one after the other where another thread
// writes those that follow: the machine's prefetchers run on from row to row, and take lines there from the
// core that writes them. Of a copy, two threads, Zen 4 with AVX-512; AVX2, 28 matrices and batches of .08 to
// 1.8 MB drawn at random, 4, 8 and 16 bytes .64 .83 .84 -> .71 .82 .89; .58 .78 .83 -> .62 .79 .85, 300 x 300
// in 4 bytes .60 -> .79, and .32 -> .61 while lines took longer from core to core. Low tiles, too, of three
// to six vectors: 42 of .3 to 1 MB of whole lines .73 -> .82, AVX2 at any pitch .52 -> .64, 556 x 177 and 560
// x 192 in 4 bytes .30 .55 -> .60 .87. Elements of other sizes are not helped, nor is a Xeon.
int edge_rows(const Plan& plan, const Machine& m) {
  constexpr int kLeast = 4;
  const int64_t bytes = plan.problem.element_bytes;
  const bool direct = plan.kernel == Kernel::kTile && plan.stores == Stores::kOrdinary &&
                      plan.order == TileOrder::kInTurn && !plan.prefetches && !is_fused(plan);
  if (!direct || plan.threads == 1 || !leaves_early(m)) return 0;
  if (!is_plain(bytes) || bytes < 4) return 0;
  return std::max(static_cast<int>(line_elements(bytes)) / std::max(m.line_vectors, 1), kLeast);
}

// Whether what is streamed is asked for into L1: all but plain tiles from a near cache if L1 has room, plain
// tiles where they are tuned so, and 4 bytes in blocks to whole lines only beyond so many eighths of the last
// cache.
//   into L1 -> into L2, Zen 4, one thread; two
//     14 a width of 3 to 6 dims, 4 to 60 MB      .33 .42 .52 .59 .62; .29 .42 .59 .55 .65
//                                             -> .36 .50 .59 .62 .65; .31 .47 .67 .60 .71
//     elements of whole lines, seven             .73; .83 -> .89; .94
//     runs of 513 to 2047 bytes, 20              .52; .59 -> .63; .73
//     AVX2, 40 of 3 to 6 dims                    .47; .40 -> .54; .45
//   into L2 -> into L1, Zen 5, two threads; one, 2048^2 .81 .94 -> .57 .66, 2048 x 3072 .97 .62 -> .77 .79,
//   3072^2 .85 .55 -> .85 .85, 4096 x 3072 .71 .61 -> .81 .87
bool asks_into_l1(const Plan& plan, const Machine& m) {
  constexpr int kWordBlocks = 16;
  const Problem& p = plan.problem;
  if (!can_ask_into_l1(plan, m)) return false;
  if (plan.kernel != Kernel::kTile || p.element_bytes % kLine == 0)
    return m.tuned.near_cache && l1_has_room(m);
  const bool words = p.element_bytes == 4 && plan.order == TileOrder::kInBlocks && !plan.carries;
  return m.tuned.asks_into_l1 && (!words || fills(p, m, kWordBlocks));
}

// Whether runs that are streamed are asked for ahead: long ones, and from a near cache those of a line and
// more. Not asked for -> asked for, times as fast, Zen 5:
//                64 bytes of each 128   128 of 512   200 of 1024   300 of 304   100 of 128
//   one thread   2.0                    4.1          2.2           1.3          .94
//   two          2.0                    3.1          1.6           1.1          .96
bool runs_ask(const Problem& p, const Machine& m) {
  const int64_t bytes = (p.rank > 0 ? p.dims[p.rank - 1].extent : 1) * p.element_bytes;
  return bytes >= (m.tuned.near_cache ? kLine : kLongRunBytes);
}

// Whether what a kernel writes is streamed, tiles also where their lines are carried.
bool streams(const Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  switch (plan.kernel) {
    case Kernel::kCopy:
    case Kernel::kRows:
      return streams_runs(p, m);
    case Kernel::kPieces:
      return streams_pieces(p, piece_dims(plan), m);
    case Kernel::kTile:
      return streams_tiles(p, m) || carries_rows(p, m);
    case Kernel::kStaged:
      return stages_beyond_caches(p, m);
    default:
      return false;
  }
}

// Of direct tiles that are not fused.
TileOrder tile_order(const Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  const bool streaming = plan.stores == Stores::kStreaming;
  const bool in_blocks = plan.carries ? carries_blocks(p, m)
                         : streaming  ? streamed_in_blocks(p, m)
                                      : stored_in_blocks(p, m);
  if (in_blocks) return TileOrder::kInBlocks;
  if (streaming || !tiles_cross(p, m)) return TileOrder::kInTurn;
  return crosses_lie_diagonally(p) ? TileOrder::kDiagonal : TileOrder::kCrosswise;
}

// Whether lines are asked for ahead, as streamed tiles always do.
bool asks(const Plan& plan, const Machine& m) {
  const bool streaming = plan.stores == Stores::kStreaming;
  switch (plan.kernel) {
    case Kernel::kCopy:
    case Kernel::kRows:
      return streaming && runs_ask(plan.problem, m);
    case Kernel::kTile:
      return !streaming && plan.order == TileOrder::kInTurn && !is_fused(plan) &&
             (tiles_ask(plan.problem, m) || batches_ask(plan.problem, m));
    case Kernel::kStaged:
      return streaming && stages_ask(plan, m);
    default:
      return false;
  }
}

Plan finish(const Problem& problem, const Machine& m, Kernel kernel) {
  Plan plan;
  plan.problem = problem;
  const Problem& p = plan.problem;
  const bool tiles = kernel == Kernel::kTile || kernel == Kernel::kStaged;
  if (tiles && !has_tiles(problem)) plan.problem = with_runs_as_elements(problem).value();
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
  // Of a copy, straight to the output and through staging (Zen 5; the same with AVX2): 64^3 reversed in 4
  // bytes .22 -> .45; .12 -> .41, 1023 x 1025 .24 -> .38; .16 -> .35, 128^3 in 1 byte .13 -> .26; .08 -> .30,
  // 16^5 .21 -> .33; .11 -> .27, 64^3 in 1 .07 -> .15; .04 -> .10, 32^3 in 4 .13 -> .21; but of half the rows
  // in one set, 60 x 1023 x 100 -> 0,2,1 in 2 .37 -> .24.
  constexpr int64_t kStagedMeetingBytes = 128 << 10;
  if (p.element_bytes <= 4 && element_count(p) * p.element_bytes >= kStagedMeetingBytes &&
      !stored_in_blocks(p, m) && rows_meet(p, row, m))
    return Kernel::kStaged;
  const int64_t run = output_run_bytes(p, row);
  const bool lines_are_whole = run >= kStagedRunBytes || p.dims[row].out_stride == run;
  return stages_beyond_caches(p, m) && lines_are_whole ? Kernel::kStaged : Kernel::kTile;
}

// Whether runs that would be staged, not being whole lines, are better streamed one by one: from a near
// cache, and where cores move lines in halves only beyond so many eighths of it. Of a copy, staged -> so:
//                                   129 to 256 bytes   257 to 512     513 to 1023
//   Zen 4, two threads (1197)       .66 -> .48         .45 -> .55     .45 -> .65
//          of 8 to 16 MB                               .57 -> .43
//   Zen 5, one thread (20)          .57 -> .35         .42 -> .58     .44 -> .72
//          two                      .74 -> .56         .65 -> .82     .66 -> .86
//   Xeon, four                      .59 -> .25         .58 -> .42     .55 -> .57
bool streams_long_runs(const Problem& of_runs, const Machine& m) {
  constexpr int64_t kLongRun = 256;
  constexpr int kHalvesLeave = 12;
  return m.tuned.near_cache && of_runs.element_bytes > kLongRun &&
         fills(of_runs, m, leaves_early(m) ? kHalvesLeave : m.tuned.runs_leave);
}

Kernel choose(const Problem& p, const Machine& m) {
  for (Kernel kernel : {Kernel::kNone, Kernel::kCopy}) {
    if (takes(kernel, p)) return kernel;
  }
  if (permutes_pieces(p, m)) return Kernel::kPieces;
  if (has_tiles(p)) return choose_tile(p, m);
  if (!takes(Kernel::kRows, p)) return Kernel::kStrided;
  const std::optional<Problem> of_runs = with_runs_as_elements(p);
  if (!of_runs) return Kernel::kRows;
  const Kernel tiles = choose_tile(*of_runs, m);
  return tiles == Kernel::kStaged && streams_long_runs(*of_runs, m) ? Kernel::kRows : tiles;
}

}  // namespace

bool can_carry_rows(const Problem& p, const CpuFacts& facts) {
  const int64_t e = p.element_bytes;
  if (facts.line_vectors == 0 || !is_plain(e) || (e == 1 && !facts.carries_bytes)) return false;
  uint64_t bits = p.out_address;
  for (int d = 0; d + 1 < p.rank; ++d) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  return bits % std::min<int64_t>(e, 8) == 0;
}

// Where that wins. Into L2 -> into L1, 2 to 16 bytes:
//   Zen 5, six of 30 to 100 MB at any pitch, two threads      .68 .84 .88 .92 -> .72 .87 .91 .94
//                                            one              .65 .82 .93 .81 -> .69 .86 .96 .84
//          of whole lines, 2 and 4 bytes, two; one            .94 1.02, .79 .83 -> .93 1.03, .91 .95
//          in blocks, 400 ns apart, seven in 2 bytes          .54 -> .68
//                                   5001 and 3001 x 4096 in 4 .43 .43 -> .69 .68
//     three each in blocks of one shape, at any pitch, 1 byte .53 .71 -> .54 .74
//     but eight of whole lines in 8 and in 16                 .89 .97 -> .87 .95
//         8192^2 in 1                                         .76 -> .70
//   Xeon, seven of whole lines, 16 threads                    .83 .97 .90 .97 -> .77 .89 .90 1.00
//                               four                          .75 .80 .90 .96 -> .66 .76 .83 .90
//   Zen 4, 256 x 128 x 128 in 2                               .75 -> .66
bool can_ask_into_l1(const Plan& plan, const CpuFacts& facts) {
  const int64_t e = plan.problem.element_bytes;
  if (plan.kernel != Kernel::kTile) return plan.prefetches;
  if (plan.stores != Stores::kStreaming) return false;
  if (e % kLine == 0) return true;
  if (!vectors_are_lines(facts) || !is_plain(e)) return false;
  if (plan.order == TileOrder::kInBlocks)
    return plan.carries ? e <= 8 && (e > 1 || facts.carries_bytes) : e > 1;
  return plan.carries ? e > 1 : e == 4;
}

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
