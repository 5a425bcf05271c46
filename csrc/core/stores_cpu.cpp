// What is written past the caches, and from when on.
#include "core/stores_cpu.h"

#include <algorithm>

#include "core/cache_sets_cpu.h"
#include "core/order_cpu.h"
#include "core/pieces_cpu.h"
#include "core/prefetch_cpu.h"
#include "core/tiles_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

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

// What is shorter than this costs more to gather than it saves (Zen 5, of a copy: three bytes out of four,
// 3000 x 4000 pixels, gathered .50, not streamed .75; three bfloat16 .92 and .84). Short runs that follow one
// another on both sides, or are moved as they are written (tile_row_dim), are neither gathered nor streamed
// from a near cache into a small L1. Streamed -> so,
// Zen 4, one thread; two:
//                          64 to 128 bytes (10)    129 to 256           257 to 512
//   rows at any pitch      .41 .35 -> .54 .48      .47 .39 -> .57 .51   .54 .58 -> .54 .58
//   AVX2                   .53 .60 -> .62 .66      .66 .75 -> .68 .73   .74 .80 -> .66 .74
//   but 200 of 204 bytes, 1000 x 200 x 200 -> 1,0,2                     .65 .97 -> .44 .65
// One thread gains nothing by what it reads being in the cache yet (rows again and again, 18 to 26 MB, 26 to
// 36, as if all were read -> as it is, Zen 4, one thread 1.23 1.17 -> 1.02 .89, but two 1.07 1.13
// -> 1.65 1.02).
bool streams_runs(const Problem& p, const Machine& m) {
  constexpr int64_t kRunBytes = 4, kStoredRunBytes = 256;
  if (p.rank == 0) return false;
  const bool alone = m.threads <= 1 && fills(2 * element_count(p) * p.element_bytes, m, m.tuned.runs_leave);
  if (!alone && !fills(p, m, m.tuned.runs_leave)) return false;
  const int64_t bytes = p.dims[p.rank - 1].extent * p.element_bytes;
  const bool in_turn = p.rank > 1 && tile_row_dim(Kernel::kRows, p) == p.rank - 2;
  const bool small_l1 = m.tuned.near_cache && !l1_has_room(m);
  if (small_l1 && in_turn && !gathers_runs(p) && bytes < kStoredRunBytes) return false;
  return bytes >= kRunBytes;
}

// Whether they are written past the caches.
bool streams_pieces(const Problem& p, const PieceDims& piece, const Machine& m) {
  if (!fills(p, m, m.tuned.runs_leave)) return false;
  return can_gather(p, piece) || (m.permutes_runs[p.element_bytes > 1] && writes_whole_lines(p, piece));
}

// One element again and again, unless cores move lines in halves: they write what they read nothing for
// faster than past the caches. Stored, and streamed, rows of 130 to 250 bytes, to 2000, to 60000, 1, 4 and 16
// bytes, one thread; two
//   Zen 4, 38 to 60 MB    1.42 1.46 1.46; 1.35 1.32 1.40, .96 1.01 1.27; 1.07 1.06 1.16
//     60 to 200           1.24 1.33 1.33; 1.13 1.16 1.25, 1.02 .97 1.27; 1.04 1.05 1.21
//   Xeon, 20 to 60         .83 .74 .67; .79 .71 .68, 1.23 1.47 1.53; 1.10 1.37 1.40
// Others gain nothing by it (every second and third, 20 and 60 MB, Zen 3, two threads, 1 to 16 bytes, stored
// -> staged and streamed .39 .42 .39 .38 .39 -> .38 .42 .37 .38 .40).
bool streams_strided(const Problem& p, const Machine& m) {
  if (p.rank == 0 || leaves_early(m)) return false;
  const Dim& cols = p.dims[p.rank - 1];
  return cols.in_stride == 0 && cols.out_stride == p.element_bytes &&
         cols.extent * p.element_bytes >= kLine && fills(p, m, m.tuned.runs_leave);
}

}  // namespace

// Whether runs are shorter than lines, and follow one another in the output. Streamed one by one, and
// gathered (Zen 5): 19 x 17 x 23 x 13 x 29 x 11 -> 0,2,1,4,3,5, 4 bytes .20 -> .31 of a copy, 4000 x 4000 x 3
// -> 1,0,2 in 1 byte .03 -> .10; runs of a line and more .91 -> .49.
bool gathers_runs(const Problem& p) {
  const Dim& run = p.dims[p.rank - 1];
  const int64_t bytes = run.extent * p.element_bytes;
  return p.rank > 1 && bytes < kLine && p.dims[p.rank - 2].out_stride == bytes;
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

// Whether tiles write whole lines, asked for before, that stay within the caches: then they are neither
// staged nor carried (kAskingTilesLeave has what that is worth).
bool keeps_lines(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  return tiles_ask(p, m) && writes_whole_lines(p, row, false) && !tiles_beyond_caches(p, m);
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

bool can_carry_rows(const Problem& p, const CpuFacts& facts) {
  const int64_t e = p.element_bytes;
  if (facts.line_vectors == 0 || !is_plain(e) || (e == 1 && !facts.carries_bytes)) return false;
  uint64_t bits = p.out_address;
  for (int d = 0; d + 1 < p.rank; ++d) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  return bits % std::min<int64_t>(e, 8) == 0;
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

// What is moved in runs is staged as early as other short sides: 24 each of 5, 9, 12 and 20 MB, straight ->
// so, Zen 4, one thread; two, .43 .25 .26 .27 -> .34 .32 .32 .45; .41 .28 .32 .39 -> .29 .26 .34 .59.
bool stages_beyond_caches(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kStaged, p);
  const int64_t e = p.element_bytes, rows = p.dims[row].extent, cols = p.dims[p.rank - 1].extent;
  if (fills(p, m, m.tuned.meeting_rows_leave) && rows_meet(p, row, m) && !tiles_avoid_conflicts(p, m))
    return true;
  if ((splits(p, row) || merges(p, row)) && !fuse_sides(p, row, m).fuse())
    return fills(p, m, m.tuned.narrow_staged_leave);
  if (leaves_early(m) && e >= kWideStaged) return fills(p, m, kWideStagedLeave);
  if (std::min(rows, cols) * e >= kStagedSideBytes)
    return fills_or_conflicts(p, m, m.tuned.staged_leave[width_row(e)]);
  return fills(p, m, kShortSidesLeave);
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
    case Kernel::kStrided:
      return streams_strided(p, m);
    default:
      return false;
  }
}

}  // namespace tx
