// Where rows of a tile meet in few sets of the caches, whose lines then wait for one another.
#include "core/cache_sets_cpu.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "core/prefetch_cpu.h"
#include "core/tiles_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

// Rows of either side that are multiples of so much apart have lines that wait for each other.
int64_t conflicting_pitch(int64_t element_bytes, const Machine& m) {
  return kConflictingPitch[width_row(element_bytes)] * m.tuned.conflicting_pitches;
}

}  // namespace

int64_t rows_in_sets(const Problem& p, int row, int row_dims, int64_t tile_rows, int sets) {
  constexpr int64_t kSets = kL1WayBytes / kLine;
  int64_t lines[kSets] = {}, most = 0, index[kMaxDims] = {}, out = 0, before = -1;
  for (int64_t r = 0; r < tile_rows; ++r) {
    const int64_t line = out / kLine;
    if (line != before) {
      const int64_t here = ++lines[line % kSets];
      const int64_t beside = std::max(lines[(line + 1) % kSets], lines[(line + kSets - 1) % kSets]);
      most = std::max(most, sets > 1 ? here + beside : here);
    }
    before = line;
    int k = 0;
    for (int d = row; k < row_dims; ++k, d = next_row_dim(p, d)) {
      out += p.dims[d].out_stride;
      if (++index[k] < p.dims[d].extent) break;
      out -= p.dims[d].extent * p.dims[d].out_stride;
      index[k] = 0;
    }
    if (k == row_dims) break;
  }
  return most;
}

bool rows_conflict(const Problem& p, int row, const Machine& m) {
  const int64_t e = p.element_bytes;
  if (e > 8 || element_count(p) * e < kBeyondL2Bytes) return false;
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t pitch = kConflictingPitch[width_row(e)], apart = conflicting_pitch(e, m);
  return rows.extent * e >= pitch && cols.extent * e >= pitch &&
         (rows.out_stride % apart == 0 || cols.in_stride % apart == 0);
}

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

// Whether a quarter of some rows, and as many as it has ways, are in one set: pitches next to multiples of a
// way, of its halves and of its thirds. In L1 itself none does harm. Wide elements may fill the ways where
// cores move lines in halves: low -> high, output rows odd KiB apart, 48 each of .2 to 9 MB, one thread; two
//   Zen 4, 8 and 16 bytes    .75 .86; .78 .94 -> .89 .96; .86 1.00
//     AVX2, 16; but 8        .87; .91, .82; .84 -> .99; 1.03, .77; .72
//   Xeon, 16 (32)            .86; .80 -> .88; .75
// Where tiles are crossed, whether more than a quarter are in two sets side by side, as crosses are (Zen 5,
// 511 x 513 in 4 bytes, one thread, .35 -> .45 of a copy, 257 x 300 in 16, two, .37 -> .67), or a quarter of
// rows that are no whole lines, of which each has two (513 x 4500 and 1537 x 1800 in 2 bytes .33 .33 -> .54
// .62).
bool rows_crowd(const Problem& p, int row, int64_t rows, const Machine& m) {
  constexpr int64_t kNearBytes = 32 << 10;
  if (element_count(p) * p.element_bytes < kNearBytes) return false;
  if (crosses(m)) {
    const bool whole_lines = p.dims[row].out_stride % kLine == 0;
    return rows_in_sets(p, row, 1, rows, 2) >= std::max(kL1Ways, rows / 4 + whole_lines);
  }
  const bool wide = p.element_bytes == 16 || (p.element_bytes == 8 && vectors_are_lines(m));
  return rows_in_sets(p, row, 1, rows, 1) >= std::max(kL1Ways, rows / 4) + (wide && leaves_early(m));
}

// Whether output rows of a vector's height, of 1 and 2 bytes, have too many lines in two sets of the L1 cache
// side by side, whatever their pitch (kCrowdedInBlocks has what that is worth). Rows that meet are staged.
bool rows_crowd_sets(const Problem& p, int row, const Machine& m) {
  const int64_t e = p.element_bytes, side = std::min(p.dims[row].extent, p.dims[p.rank - 1].extent) * e;
  if (!crosses(m) || e > 2 || element_count(p) * e < kCrowdedInBlocksBytes || side < 4 * kLine) return false;
  return rows_in_sets(p, row, 1, kLine / e, 2) > kCrowdedInBlocks[width_row(e)] && !rows_meet(p, row, m);
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

}  // namespace tx
