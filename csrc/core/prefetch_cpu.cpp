// Which lines are asked for ahead, and into which cache; and which the machine's prefetchers are kept from.
#include "core/prefetch_cpu.h"

#include <algorithm>

#include "core/tiles_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

// Of whole vectors, and no larger than L1 has room for. Not asked for -> asked for, Zen 3, 12 each of 24 to
// 200 elements a side, 1 to 4 bytes, one thread; two
//   3 to 8 MB, 2 and 4 bytes    .65 .72; .63 .70 -> .72 .75; .70 .74
//   8 to 13 MB                  .53 .60 .60; .54 .64 .70 -> .67 .85 .74; .57 .75 .76
//   13 to 18 MB                 .51 .44 .50; .54 .51 .63 -> .92 .72 .66; .80 .87 .83
// but not of whole vectors, 8 to 13 MB .37 .47 .69; .35 .54 .72 -> .37 .51 .68; .33 .51 .67, nor 270 x 112 x
// 24 and 445 x 60 x 28 in 8 bytes .98 .80; .84 .75 -> .87 .61; .66 .67, nor one matrix, ten each of whole
// lines of 1 to 6 MB in 2 and 4 .77 .90; .56 .68 -> .58 .62; .61 .56 (of 13 to 18 MB where other guests use
// the cache .43 .60; .47 .57 -> .65 .73; .51 .57, and where they do not, in 2, .54; .61 -> .58; .55).
bool batches_ask(const Problem& p, const Machine& m) {
  constexpr int64_t kInRowBytes = 512, kOutRowBytes = 1024;
  const int64_t e = p.element_bytes;
  if (!streams_in_parts(m) || !is_plain(e) || e > 4 || p.rank != 3) return false;
  const Dim &matrices = p.dims[0], &rows = p.dims[1], &cols = p.dims[2];
  const int64_t in_row = rows.extent * e, out_row = cols.extent * e, matrix = in_row * cols.extent;
  const bool dense = rows.in_stride == e && cols.in_stride == in_row && rows.out_stride == out_row &&
                     matrices.in_stride == matrix && matrices.out_stride == matrix;
  const bool whole_vectors = (in_row | out_row) % (kLine / m.line_vectors) == 0;
  return dense && whole_vectors && in_row <= kInRowBytes && out_row <= kOutRowBytes &&
         fills(p, m, kBatchesAsk[width_row(e)]);
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

// Whether runs that are streamed are asked for ahead: long ones, and from a near cache those of a line and
// more. Not asked for -> asked for, times as fast, Zen 5:
//                64 bytes of each 128   128 of 512   200 of 1024   300 of 304   100 of 128
//   one thread   2.0                    4.1          2.2           1.3          .94
//   two          2.0                    3.1          1.6           1.1          .96
bool runs_ask(const Problem& p, const Machine& m) {
  const int64_t bytes = (p.rank > 0 ? p.dims[p.rank - 1].extent : 1) * p.element_bytes;
  return bytes >= (m.tuned.near_cache ? kLine : kLongRunBytes);
}

}  // namespace

// Elsewhere it loses. Not asked for -> asked for:
//   Xeon, 1 to 16 bytes, what is in its larger L2
//     16 threads    .80 .92 .88 1.05 1.05 -> .68 .87 .76 .86 .88
//     four          .61 .80 .82 .86 .98 -> .57 .73 .68 .80 .80
//     beyond it it wins with two threads alone
//   AVX2 on Zen 4   .53 .58 .68 .75 .65 -> .54 .61 .64 .65 .65
bool tiles_ask(const Problem& p, const Machine& m) {
  const int64_t e = p.element_bytes;
  const int64_t rows = p.dims[tile_row_dim(Kernel::kTile, p)].extent, cols = p.dims[p.rank - 1].extent;
  return halves_vectors(m) && is_plain(e) && std::min(rows, cols) * e >= kLine &&
         fills(p, m, kTilesAsk[width_row(e)]);
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

}  // namespace tx
