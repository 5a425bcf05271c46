// The order in which direct tiles are moved: in turn, crosswise or in blocks.
#include "core/order_cpu.h"

#include <algorithm>

#include "core/cache_sets_cpu.h"
#include "core/tiles_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

// Whether direct tiles are moved crosswise: on some machines, as long as little of the last cache is filled.
bool tiles_cross(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const int64_t e = p.element_bytes, side = std::min(p.dims[row].extent, p.dims[p.rank - 1].extent) * e;
  if (!crosses(m) || !is_plain(e) || side < kLine) return false;
  return !fills(p, m, m.tuned.crossed_until[writes_whole_lines(p, row, false) || rows_conflict(p, row, m)]);
}

// Whether crosses lie along diagonals: where output rows are whole multiples so far apart that eight lines or
// more of a vector's height are in one set of the L1 cache.
bool crosses_lie_diagonally(const Problem& p) {
  const int64_t e = p.element_bytes;
  return (e == 4 || e == 8) && p.dims[tile_row_dim(Kernel::kTile, p)].out_stride % (kL1WayBytes / 8 * e) == 0;
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
    const bool in_rows_share_sets = cols.in_stride % 256 == 0;
    if (short_rows)
      return row_bytes >= 2 * kLine && (rows.extent >= kManyRows || (whole && in_rows_share_sets));
    return in_row_bytes >= 512 && (in_rows_share_sets || rows.out_stride % 512 == 0);
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

// Whether what conflicts is stored in blocks, and not in turn, low or with its lines asked for. Where cores
// move lines in halves only what does so on both sides, and in 4 and 8 bytes on that of the output. Zen 4, 1
// to 15 MB, one thread; two:
//   others, 25 to 68, 1 to 8 bytes, in blocks -> in turn
//                                  .54 .52 .65 .70; .53 .37 .61 .65 -> .70 .65 .75 .78; .63 .59 .64 .75
//   those, 11, 4, 75 and 21, in turn -> in blocks
//                                  .60 .61 .54 .60; .57 .53 .51 .58 -> .65 .71 .64 .68; .65 .61 .62 .66
bool stored_in_blocks(const Problem& p, const Machine& m) {
  if (!halves_vectors(m)) return true;
  const int64_t e = p.element_bytes, in_pitch = p.dims[p.rank - 1].in_stride;
  const int64_t out_pitch = p.dims[tile_row_dim(Kernel::kTile, p)].out_stride;
  if (e == 8) return out_pitch % kL1WayBytes == 0;
  return out_pitch % (kL1WayBytes / 4) == 0 && (e == 4 || in_pitch % (kL1WayBytes / 2 * e) == 0);
}

}  // namespace

// Of what is stored, what conflicts, but not where cores move lines and share a far cache. In turn -> in
// blocks:
//   Zen 4, three in 8, staged -> so                                         .53 -> .70
//   Xeon, 23 whose rows conflict, 1 to 8 bytes, in blocks -> in tiles
//             one thread    .40 .32 .36 .54 -> .44 .36 .40 .57
//             two           .38 .30 .35 .50 -> .47 .39 .44 .59
//             four          .35 .27 .37 .54 -> .54 .41 .48 .68
//             16            .49 .37 .41 .59 -> .55 .46 .50 .68
bool tiles_avoid_conflicts(const Problem& p, const Machine& m) {
  const int64_t e = p.element_bytes;
  if (!is_plain(e) || e > 8 || (m.tuned.moves_lines && !m.tuned.near_cache)) return false;
  if (rows_far_apart(p, m)) return true;
  if (tiles_cross(p, m) ? crossing_rows_conflict(p) : stored_rows_conflict(p, m)) return true;
  return rows_crowd_sets(p, tile_row_dim(Kernel::kTile, p), m);
}

// Of direct tiles that are not fused.
TileOrder tile_order(const Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  const bool streaming = plan.stores == Stores::kStreaming;
  const bool in_blocks = plan.carries ? carries_blocks(p, m)
                         : streaming  ? streamed_in_blocks(p, m)
                                      : tiles_avoid_conflicts(p, m) && stored_in_blocks(p, m);
  if (in_blocks) return TileOrder::kInBlocks;
  if (streaming || !tiles_cross(p, m)) return TileOrder::kInTurn;
  return crosses_lie_diagonally(p) ? TileOrder::kDiagonal : TileOrder::kCrosswise;
}

}  // namespace tx
