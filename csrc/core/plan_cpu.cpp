// Legality of each CPU kernel, the choice among them, and their tiles.
#include "core/plan_cpu.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include "core/int_math.h"
#include "core/narrow.h"
#include "core/normalize.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kL1WayBytes = 4096;  // of every machine measured
static_assert(kCpuAddressAlignment % kLine == 0, "all that a plan asks for");

// A run that is contiguous on both sides.
bool ends_in_common_run(const Problem& p) {
  if (p.rank == 0) return false;
  const Dim& last = p.dims[p.rank - 1];
  return last.in_stride == p.element_bytes && last.out_stride == p.element_bytes;
}

// What the tables below and the micro-kernels know an element by: 1, 2, 4, 8 or 16 bytes, and no run.
bool is_plain(int64_t element_bytes) {
  return element_bytes <= 16 && std::has_single_bit(static_cast<uint64_t>(element_bytes));
}

// The row of a table by log2 of the element's bytes: that of the next plain element, or of the widest.
int width_row(int64_t element_bytes) {
  return std::min(static_cast<int>(std::bit_width(static_cast<uint64_t>(element_bytes - 1))), 4);
}

// Elements that make whole lines.
int64_t line_elements(int64_t element_bytes) { return kLine / std::gcd(element_bytes, kLine); }

// The dim, other than the last, along which the input moves least; -1 if there is none.
int smallest_input_step(const Problem& p) {
  int best = -1;
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (best < 0 || p.dims[d].in_stride < p.dims[best].in_stride) best = d;
  }
  return best;
}

// The first dim, other than the last, that is contiguous in the input; -1 if there is none.
int input_run_dim(const Problem& p) {
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (p.dims[d].in_stride == p.element_bytes) return d;
  }
  return -1;
}

// Bytes that lie together in the output when one index along `row` is fixed.
int64_t output_run_bytes(const Problem& p, int row) {
  int64_t run = p.element_bytes;
  for (int d = p.rank - 1; d > row && p.dims[d].out_stride == run; --d) run *= p.dims[d].extent;
  return run;
}

// Whether the micro-kernels split a few rows that lie side by side in the input, or merge a few columns that
// lie so in the output.
bool splits(const Problem& p, int row) {
  const int64_t rows = p.dims[row].extent;
  return is_narrow(rows, p.element_bytes) && p.dims[p.rank - 1].in_stride == rows * p.element_bytes;
}
bool merges(const Problem& p, int row) {
  const int64_t cols = p.dims[p.rank - 1].extent;
  return is_narrow(cols, p.element_bytes) && p.dims[row].out_stride == cols * p.element_bytes;
}

// A machine with its tuned numbers.
struct Machine : CpuFacts {
  const CpuTuning& tuned;
  explicit Machine(const CpuFacts& facts) : CpuFacts(facts), tuned(find_tuning(facts)) {}
};

// A near last cache does not make up for cores that move lines in halves: what they write leaves it early.
bool leaves_early(const Machine& m) { return m.tuned.near_cache && !m.tuned.moves_lines; }

// How many dims each side of a tile is made of.
struct Sides {
  int row_dims = 1;
  int col_dims = 1;

  bool fuse() const { return row_dims > 1 || col_dims > 1; }
};

// Short sides would leave the micro-kernels little to do, and each line that is written alone opens a DRAM
// page: dims that continue them, where there are any, are joined to the shorter side until both are long. A
// table says where each row and column lies.
Sides fuse_sides(const Problem& p, int row, const Machine& m) {
  Sides sides;
  const int64_t e = p.element_bytes;
  int64_t rows = p.dims[row].extent, cols = p.dims[p.rank - 1].extent;
  if (std::min(rows, cols) * e >= m.tuned.short_side_bytes[width_row(e)]) return sides;
  // What is split or merged in registers needs no longer a side than this.
  constexpr int64_t kNarrowSideBytes = 32;
  if ((splits(p, row) && cols * e >= kNarrowSideBytes) || (merges(p, row) && rows * e >= kNarrowSideBytes))
    return sides;
  uint64_t in_rows = uint64_t{1} << row;
  for (;;) {
    const int next_row = next_row_dim(p, row);
    const int next_col = p.rank - 1 - sides.col_dims;
    const bool more_rows = rows * e < kFusedSideBytes && next_row >= 0 && next_row <= next_col;
    const bool more_cols = cols * e < kFusedSideBytes && next_col >= 0 && !(in_rows >> next_col & 1) &&
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

// The last cache, or what counts as such.
int64_t cache_bytes(const Machine& m) {
  return m.tuned.near_cache ? m.l3_bytes : std::max(kFarCacheBytes, m.threads * m.l2_bytes / 4 * 3);
}

// Whether a problem moves at least so many eighths of the last cache.
bool fills(const Problem& p, const Machine& m, double eighths) {
  return static_cast<double>(2 * element_count(p) * p.element_bytes) >=
         static_cast<double>(cache_bytes(m)) / 8 * eighths;
}

// Whether rows of either side are so far apart that their lines wait for each other (kConflictingPitch).
bool rows_conflict(const Problem& p, int row, const Machine& m) {
  const int64_t e = p.element_bytes;
  if (e > 8 || element_count(p) * e < kBeyondL2Bytes) return false;
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t pitch = kConflictingPitch[width_row(e)], apart = pitch * m.tuned.conflicting_pitches;
  return rows.extent * e >= pitch && cols.extent * e >= pitch &&
         (rows.out_stride % apart == 0 || cols.in_stride % apart == 0);
}

// How many of a tile's first output rows, of one dim or several, have their lines in one set of the L1 cache,
// or in two side by side.
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

// Whether a quarter of some rows, and too many for the ways that it has, are in one set: pitches next to
// multiples of a way, of its halves and of its thirds. In L1 itself none does harm. Where tiles are crossed,
// whether more than a quarter are in two sets side by side, as crosses are (Zen 5, 511 x 513 in 4 bytes, one
// thread, .35 -> .45 of a copy, 257 x 300 in 16, two, .37 -> .67).
bool rows_crowd(const Problem& p, int row, int64_t rows, const Machine& m) {
  constexpr int64_t kMany = 8, kNearBytes = 32 << 10;
  if (element_count(p) * p.element_bytes < kNearBytes) return false;
  if (m.tuned.crosses) return rows_in_sets(p, row, 1, rows, 2) >= std::max(kMany, rows / 4 + 1);
  return rows_in_sets(p, row, 1, rows, 1) >= std::max(kMany, rows / 4);
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

// Whether direct tiles ask for the lines of tiles to come: where a vector is a line, but cores move it in
// halves, from where their own caches do not have them. (On a Xeon with AVX-512 asking costs what is in its
// larger L2, 16; 4 threads, 1 to 16 bytes .80 .92 .88 1.05 1.05; .61 .80 .82 .86 .98 -> .68 .87 .76 .86 .88;
// .57 .73 .68 .80 .80, and wins beyond it with two threads alone; with AVX2 on Zen 4 it wins 1 and 2 bytes,
// .53 .58 -> .54 .61, and costs wider ones as much, .68 .75 .65 -> .64 .65 .65.)
bool tiles_ask(const Problem& p, const Machine& m) {
  const int64_t e = p.element_bytes;
  const int64_t rows = p.dims[tile_row_dim(Kernel::kTile, p)].extent, cols = p.dims[p.rank - 1].extent;
  return m.line_vectors == 1 && leaves_early(m) && is_plain(e) && std::min(rows, cols) * e >= kLine &&
         fills(p, m, kTilesAsk[width_row(e)]);
}

// Whether rows conflict where they are stored: of 4 bytes not where they are asked for (12 matrices of 18 to
// 28 MB whose rows conflict or crowd, streamed, or in low tiles, and so, .57 -> .72 of a copy; ten in 8 bytes
// .62 -> .49).
bool stored_rows_conflict(const Problem& p, const Machine& m) {
  return rows_conflict(p, tile_row_dim(Kernel::kTile, p), m) && !(p.element_bytes == 4 && tiles_ask(p, m));
}

double conflicts_leave(const Problem& p, const Machine& m) {
  return m.tuned.conflicts_leave[width_row(p.element_bytes)];
}

// Whether a problem fills so much of the last cache, or as much as what conflicts leaves it at, whatever it
// asks for.
bool fills_or_conflicts(const Problem& p, const Machine& m, double eighths) {
  if (stored_rows_conflict(p, m)) eighths = std::min(eighths, conflicts_leave(p, m));
  return fills(p, m, eighths);
}

bool tiles_beyond_caches(const Problem& p, const Machine& m) {
  return fills_or_conflicts(
      p, m, tiles_ask(p, m) ? kAskingTilesLeave : m.tuned.tiles_leave[width_row(p.element_bytes)]);
}

// Whether all that is written, to rows or, merged, to rows that adjoin, are whole lines.
bool writes_whole_lines(const Problem& p, int row, bool merged) {
  const Dim& along = p.dims[merged ? row : p.rank - 1];
  uint64_t bits = p.out_address | static_cast<uint64_t>(along.extent * p.element_bytes);
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (!merged || d != row) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  return bits % kLine == 0;
}

// Whether direct tiles are moved crosswise: on some machines, as long as little of the last cache is filled.
bool tiles_cross(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const int64_t e = p.element_bytes, side = std::min(p.dims[row].extent, p.dims[p.rank - 1].extent) * e;
  if (!m.tuned.crosses || !is_plain(e) || side < kLine) return false;
  return !fills(p, m, kTilesCross[writes_whole_lines(p, row, false) || rows_conflict(p, row, m)]);
}

// Whether what would be moved crosswise is better in blocks, as rows_conflict() has it for other orders:
// where output rows of a vector's height find no room in their sets of the L1 cache, or input rows of 1 and 2
// bytes none in a quarter of a way (kCrossedInBlocks has what that is worth). Rows that meet are staged,
// unless large and at whole multiples.
bool crossing_rows_conflict(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kTile, p);
  const Dim& rows = p.dims[row];
  const Dim& cols = p.dims[p.rank - 1];
  const int64_t e = p.element_bytes, bytes = element_count(p) * e;
  const int64_t side = std::min(rows.extent, cols.extent) * e;
  if (e > 4 || bytes < kCrossedInBlocksBytes || side < 4 * kLine) return false;
  if (bytes >= kBeyondL2Bytes && side >= kL1WayBytes / 4) {
    if (rows.out_stride % (kL1WayBytes / 4 * e) == 0) return true;
    if (e <= 2 && cols.in_stride % (kL1WayBytes / 2 * e) == 0) return true;
  }
  return e <= 2 && rows_in_sets(p, row, 1, kLine / e, 2) > kCrossedInBlocks[width_row(e)] &&
         !rows_meet(p, row, m);
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

bool stages_beyond_caches(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kStaged, p);
  const int64_t e = p.element_bytes, rows = p.dims[row].extent, cols = p.dims[p.rank - 1].extent;
  if (fills(p, m, conflicts_leave(p, m)) && rows_meet(p, row, m)) return true;
  if (splits(p, row) || merges(p, row)) return fills(p, m, m.tuned.narrow_staged_leave);
  if (leaves_early(m) && e >= kWideStaged) return fills(p, m, kWideStagedLeave);
  if (std::min(rows, cols) * e >= kStagedSideBytes)
    return fills_or_conflicts(p, m, m.tuned.staged_leave[width_row(e)]);
  return fills(p, m, kShortSidesLeave);
}

// Of what is streamed, 2 bytes, 8 and 16 being better off one vector's height at a time; 1 too, but without
// conflicts where cores move lines in halves; 4 with conflicts and a near cache, where cores move lines in
// halves of input rows alone. Of what is stored, what conflicts, but not where cores move lines and share a
// far cache. In tiles -> in blocks:
//   streamed, Xeon, 16 threads; 4, 8192^2 in 4 bytes                                   .52 .40 -> .74 .71
//   Zen 4, 20 in 1 byte, one or both pitches multiples of 1 KiB                        .66 -> .73
//          8192^2 and 4096^2 in 2                                                      .79 -> .86
//          nine in 4 whose input rows lie at multiples of 4 KiB, and 16 others         .84 .89 -> .87 .84
//   stored, Zen 4, three in 8, staged -> so                                            .53 -> .70
//   stored, Xeon, 23 whose rows conflict, 1 to 8 bytes, in blocks -> in tiles
//          one thread    .40 .32 .36 .54 -> .44 .36 .40 .57
//          two           .38 .30 .35 .50 -> .47 .39 .44 .59
//          four          .35 .27 .37 .54 -> .54 .41 .48 .68
//          16            .49 .37 .41 .59 -> .55 .46 .50 .68
bool tile_in_blocks(const Problem& p, const Machine& m, bool streaming) {
  const int64_t e = p.element_bytes;
  if (!is_plain(e) || e > (streaming ? 4 : 8)) return false;
  if (!streaming && m.tuned.moves_lines && !m.tuned.near_cache) return false;
  if (!streaming) return tiles_cross(p, m) ? crossing_rows_conflict(p, m) : stored_rows_conflict(p, m);
  const bool conflict = rows_conflict(p, tile_row_dim(Kernel::kTile, p), m);
  if (e == 2) return true;
  if (!leaves_early(m)) return e == 1 || (conflict && m.tuned.near_cache);
  return conflict && (e == 1 || p.dims[p.rank - 1].in_stride % kL1WayBytes == 0);
}

// Of what is carried: where the input rows of a vector share sets of L1, up to 4 bytes, and output rows sets
// of L2, wider elements; these not where cores move lines. In tiles -> in blocks:
//   Zen 4, input rows next to multiples of 4 KiB, 2 and 4 bytes (six, three)   .37 .36 -> .43 .54
//                         next to odd ones of 2 KiB, 1 to 4 bytes (two each)   .64 .79 .94 -> .69 .79 .92
//                         next to odd ones of 1 KiB                            .60 .86 .96 -> .59 .81 .94
//          output rows next to multiples of 64 KiB, 8 and 16 bytes (two)       .35 .74 -> .73 .83
//          neither (four)                             .63 .83 .86 .87 .86 -> .61 .85 .84 .84 .82
//   Xeon, 8191 x 8193 and 4095 x 4097, 16 threads     .49 .55 .61 .77 .82 -> .53 .59 .68 .71 .80
//                                      4              .40 .47 .56 .70 .84 -> .44 .54 .59 .72 .76
bool carries_blocks(const Problem& p, const Machine& m) {
  constexpr int kFewL1Sets = 6, kFewL2Sets = 4;
  constexpr int64_t kRows = 8, kL2SetBytes = 1024;
  const int64_t e = p.element_bytes;
  if (e > 4) {
    if (m.tuned.moves_lines) return false;
    const Dim& rows = p.dims[tile_row_dim(Kernel::kTile, p)];
    return sets_of_rows(rows.out_stride, kRows, kL2SetBytes) <= kFewL2Sets;
  }
  return sets_of_rows(p.dims[p.rank - 1].in_stride, line_elements(e), kLine) <= kFewL1Sets;
}

// Whether they pay, and only whole lines of the output are written. What is split or merged is as good as
// copied.
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
  const bool any_pitch = m.line_vectors == 1 || (m.tuned.near_cache && e == 1);
  const bool near =
      whole && rows.extent * e >= kLine && (any_pitch || rows.out_stride <= kStreamedPitch[width_row(e)]);
  if (splits(p, row) || merged ? !fills(p, m, m.tuned.narrow_lines_leave) : !few && !near) return false;
  return writes_whole_lines(p, row, merged);
}

// Whether tiles are streamed to rows at any pitch, which takes vectors of whole lines: each line is then
// written from registers, where staging moves it through the core's caches twice. Staged -> so:
//   Zen 5, 23 problems; Xeon, 2 and 6 threads      .61 .55 .53 -> .73 .68 .66
//   Zen 5; Xeon, 8191 x 8193 in 4 and 16 bytes     .71 .72, .51 .54 -> .81 .84, .53 .69
//                2047 x 2049 in 4                  .61, .34 -> .84, .47
//                3001 x 3003 in 2                  .71, .42 -> .90, .52
//                37 x 301 x 403 -> 0,2,1 in 8      .57, .39 -> .78, .52
//            but 8191 x 8193 in 2                  .70, .50 -> .67, .45 (Zen 5 in 1 .60 -> .43)
//   Zen 5, shorter: 1401^2 to 1601^2 in 4, 601 x 30001 in 2, 200001 x 20 in 4   .50 .47 .53 -> .41 .42 .32
//   bytes, with AVX-512 VBMI
//     Zen 4, 6 to 140 MB, in huge pages (58, none slower); of 4 KB (39, none)  .51 .46 -> .67 .63
//     Zen 5, seven of 25 to 98 MB, two threads; one                            .65 .52 -> .77 .61
//            8191 x 8193                                                       .62 -> .72
//     Xeon, eight of 9 to 81 MB, 16, 4 and 2 threads                           .50 .40 .41 -> .60 .48 .53
// Nor whole lines where tiles are crossed, as long as they are stored within the cache (Zen 5, ten of 12 to
// 27 MB, 2 and 4 bytes .66 .66 -> .75 .72).
bool carries_rows(const Problem& p, const Machine& m) {
  constexpr int64_t kInputRunBytes = 128;
  if (!can_carry_rows(p, m) || keeps_lines(p, m)) return false;
  const int64_t e = p.element_bytes;
  if (!fills(p, m, m.tuned.carried_from[width_row(e)])) return false;
  const int row = tile_row_dim(Kernel::kTile, p);
  if (m.tuned.crosses && writes_whole_lines(p, row, false) && !tiles_beyond_caches(p, m)) return false;
  if (p.dims[row].extent * e < kInputRunBytes) return false;
  if (p.dims[p.rank - 1].extent * e < m.tuned.carried_row_bytes[width_row(e)]) return false;
  return !fuse_sides(p, row, m).fuse();
}

// Rows that a plan's micro-kernel takes at a time. Where it carries blocks, whole ones count: of 496 rows,
// and of 512 (Zen 4, 8191 x 8193 in 4 bytes), .72 and .77 of a copy.
int64_t step_rows(const Plan& plan) {
  const int64_t line = line_elements(plan.problem.element_bytes);
  return plan.carries && plan.order == TileOrder::kInBlocks ? 2 * line : line;
}

// Rows of bands of one size, of which as few as that takes have at most `most`, rounded up to whole steps.
int64_t even_band(int64_t rows, int64_t most, int64_t step) {
  return round_up(ceil_div(rows, ceil_div(rows, most)), step);
}

// The first of a tile's blocks is read with none to write meanwhile (Zen 4, three matrices, 512 and 2048
// bytes of their rows, 1 byte .66 .67, 2 bytes .76 .77).
TileShape carried_shape(const Plan& plan, int64_t rows, int64_t cols, const Machine& m) {
  const int64_t bytes = plan.order == TileOrder::kInBlocks ? 2048 : 512;  // of an output row
  const int64_t e = plan.problem.element_bytes;
  const int64_t most = plan.order == TileOrder::kInBlocks ? kCarriedRows : m.tuned.carried_rows[width_row(e)];
  return {even_band(rows, most, step_rows(plan)), std::min(cols, bytes / e)};
}

TileShape shape_of_runs(const TileShape* shapes, int64_t element_bytes) {
  const TileShape shape = shapes[std::bit_width(static_cast<uint64_t>(element_bytes - 1)) - 2];
  // Threads are to share no line: columns are whole lines, unless these are so long that tiles would not fit
  // in L1.
  constexpr int64_t kLongRowBytes = 2048;
  const int64_t whole = round_up(shape.cols, line_elements(element_bytes));
  return {shape.rows, whole * element_bytes <= kLongRowBytes ? whole : shape.cols};
}

// Whether a direct tile is as high as its thread's share, so that each input row is read to its end. Not
// where vectors are less than lines, of which some would then wait too long for their other halves (AVX2, one
// thread, 4 bytes .94), nor for 1 and 2 bytes where several cores hold dirty lines: the prefetchers of one,
// past the end of its share of a row, take them from another (Zen 4, 448 x 512 in 2 bytes, high and of 64
// rows, 31 and 8 us; of short pieces they do not go that far). Nor, of any
// width, on a Zen 5 (kNearCache.direct).
bool reads_on(const Plan& plan, const Machine& m) {
  const int64_t e = plan.problem.element_bytes;
  if (m.line_vectors != 1) return false;
  if (m.tuned.crosses) return e > 2 && plan.threads == 1;
  return e > 2 || plan.threads == 1 || (e == 2 && !leaves_early(m));
}

TileShape direct_shape(const Plan& plan, int row, const Machine& m) {
  const Problem& p = plan.problem;
  const int width = width_row(p.element_bytes);
  if (!is_plain(p.element_bytes)) return shape_of_runs(kRunsShape, p.element_bytes);
  const auto crowd = [&](int64_t rows) {
    return rows_crowd(p, row, rows, m) && !(p.element_bytes == 4 && tiles_ask(p, m));
  };
  const auto [rows, cols] = m.tuned.direct[width];
  if (plan.order == TileOrder::kDiagonal) return {kDiagonalBytes / p.element_bytes, cols};
  if (crowd(rows)) {
    // No more rows for want of columns.
    const auto [few, many] = m.tuned.crowded[width];
    return {few, std::clamp(p.dims[p.rank - 1].extent, kTileShape[width].cols, many)};
  }
  return reads_on(plan, m) && !crowd(kTileShape[width].rows) ? TileShape{kHighRows, kTileShape[width].cols}
                                                             : TileShape{rows, cols};
}

TileShape staged_shape(int64_t element_bytes) {
  return is_plain(element_bytes) ? kStagedShape[width_row(element_bytes)]
                                 : shape_of_runs(kStagedRunsShape, element_bytes);
}

TileShape streamed_shape(TileShape most, int64_t rows, int64_t cols, int64_t element_bytes) {
  // Whole lines: 13 problems on that Xeon, 64 x 8 1.00 of a copy, 16 x 8 .96, 16 x 1 .85.
  if (element_bytes >= kLine) return {std::min<int64_t>(rows, 64), std::min<int64_t>(cols, 8)};
  const auto whole_lines = [&](int64_t other) {
    const int64_t line = line_elements(element_bytes);
    return std::max(kStreamedTileBytes / (other * element_bytes) / line, int64_t{1}) * line;
  };
  if (cols * element_bytes <= kStreamedRowBytes) {
    most = {whole_lines(cols), cols};
  } else if (rows < std::min(most.rows, kLine)) {
    most = {rows, whole_lines(rows)};
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
int64_t even_rows(const Plan& plan, int64_t least, int64_t most) {
  const Problem& p = plan.problem;
  const int64_t rows = p.dims[tile_row_dim(plan.kernel, p)].extent, threads = plan.threads;
  const int64_t step = step_rows(plan), share = rows / threads;
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
int64_t direct_rows(const Plan& plan, int64_t most) {
  constexpr int64_t kLeast = 32;
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p);
  const int64_t rows = p.dims[row].extent, line = line_elements(p.element_bytes);
  most =
      std::min(most, std::max(kLeast, round_up(ceil_div(matrix_count(p, row) * rows, plan.threads), line)));
  return even_rows(plan, line, std::min(most, even_band(rows, most, line)));
}

// All of each side's dims but its outermost are whole in a tile.
void set_fused_tile(Plan& plan) {
  const Problem& p = plan.problem;
  const TileShape wanted = plan.kernel == Kernel::kStaged ? staged_shape(p.element_bytes)
                                                          : kFusedShape[width_row(p.element_bytes)];
  // In pieces of one size, of `whole` steps where they have so many.
  const auto cut = [&](int d, int64_t inner, int64_t most, int64_t whole) {
    const int64_t pieces = ceil_div(p.dims[d].extent, std::max<int64_t>(most / inner, 1));
    const int64_t piece = ceil_div(p.dims[d].extent, pieces);
    const bool rounds = pieces > 1 && piece >= whole;
    plan.tile[d] = static_cast<int32_t>(rounds ? piece / whole * whole : piece);
  };
  int row = tile_row_dim(plan.kernel, p);
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
  cut(first_col, cols, wanted.cols, kLine / std::gcd(cols * p.element_bytes, kLine));
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

void set_pieces_tile(Plan& plan) {
  const Problem& p = plan.problem;
  const int first = p.rank - piece_dims(p);
  for (int d = first; d < p.rank; ++d) plan.tile[d] = static_cast<int32_t>(p.dims[d].extent);
  const int64_t pieces = p.dims[first - 1].extent;
  const int64_t most = plan.stores == Stores::kStreaming ? kStreamedPiecesBytes : kPiecesBytes;
  plan.tile[first - 1] = static_cast<int32_t>(std::min(pieces, ceil_div(most, piece_bytes(p))));
}

// Of a tile of one dim or two.
TileShape tile_shape(const Plan& plan, int row, const Machine& m) {
  const Problem& p = plan.problem;
  const int64_t e = p.element_bytes, cols = p.dims[p.rank - 1].extent;
  const int64_t rows = row < 0 ? 1 : p.dims[row].extent;
  const int width = width_row(e);
  if (plan.kernel == Kernel::kCopy) return {1, std::min(cols, kCopiedBytes / e)};
  if (plan.kernel == Kernel::kStrided) return fit(kStridedShape[width], rows, cols, e);
  if (plan.kernel == Kernel::kStaged) return fit(staged_shape(e), rows, cols, e);
  if (plan.carries) return carried_shape(plan, rows, cols, m);
  const bool streaming = plan.stores == Stores::kStreaming;
  TileShape wanted;
  if (plan.order == TileOrder::kInBlocks) {
    wanted = streaming ? m.tuned.streamed_blocks[width] : kStoredBlocksShape[width];
  } else {
    wanted = streaming ? m.tuned.streamed[width] : direct_shape(plan, row, m);
  }
  return (streaming ? streamed_shape : fit)(wanted, rows, cols, e);
}

void set_tile(Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  std::fill(plan.tile, plan.tile + p.rank, 1);
  if (element_count(p) == 0 || p.rank == 0) return;
  if (plan.kernel == Kernel::kRows) return set_rows_tile(plan);
  if (plan.kernel == Kernel::kPieces) return set_pieces_tile(plan);
  if (is_fused(plan)) return set_fused_tile(plan);
  const int row = tile_row_dim(plan.kernel, p);
  auto [rows, cols] = tile_shape(plan, row, m);
  plan.tile[p.rank - 1] = static_cast<int32_t>(std::min<int64_t>(cols, INT32_MAX));
  if (plan.kernel == Kernel::kStaged) {
    const bool adjoin = first_adjoining_dim(plan) == row;
    rows = std::min(rows,
                    kStagingBytes / (adjoin ? cols * p.element_bytes : staged_pitch(staged_row_bytes(plan))));
  }
  if (plan.kernel == Kernel::kStaged || plan.carries) rows = even_rows(plan, kLeastBandRows, rows);
  if (plan.kernel == Kernel::kTile && plan.stores == Stores::kOrdinary) rows = direct_rows(plan, rows);
  if (row >= 0) plan.tile[row] = static_cast<int32_t>(rows);
}

// Whether both sides have a dim that is contiguous, and not the same.
bool has_tiles(const Problem& p) {
  return p.rank > 1 && input_run_dim(p) >= 0 && p.dims[p.rank - 1].out_stride == p.element_bytes;
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
// 3000 x 4000 pixels, gathered .50, not streamed .75; three bfloat16 .92 and .84).
bool streams_runs(const Problem& p, const Machine& m) {
  constexpr int64_t kRunBytes = 4;
  return fills(p, m, m.tuned.runs_leave) && p.rank > 0 &&
         p.dims[p.rank - 1].extent * p.element_bytes >= kRunBytes;
}

// Whether they follow one another in the output.
bool pieces_adjoin(const Problem& p) {
  return p.dims[p.rank - 1 - piece_dims(p)].out_stride == piece_bytes(p);
}

// Whether what is staged is asked for, tiles ahead: not in pieces so long that the machine's prefetchers
// follow them, nor in whole blocks.
bool stages_ask(const Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  const int64_t piece = tile_rows(plan) * p.element_bytes;
  return piece < m.tuned.followed_bytes && (piece != p.dims[p.rank - 1].in_stride || piece >= kLine);
}

// A vector's height, of which a direct tile's last rows are moved one after the other where another thread
// writes those that follow: the machine's prefetchers run on from row to row, and take lines there from the
// core that writes them. Of a copy, two threads, Zen 4 with AVX-512; AVX2, 28 matrices and batches of .08 to
// 1.8 MB drawn at random, 4, 8 and 16 bytes .64 .83 .84 -> .71 .82 .89; .58 .78 .83 -> .62 .79 .85, 300 x 300
// in 4 bytes .60 -> .79, and .32 -> .61 while lines took longer from core to core. Elements of other sizes
// are not helped, nor is a Xeon.
int edge_rows(const Plan& plan, const Machine& m) {
  constexpr int kLeast = 4;
  const int64_t bytes = plan.problem.element_bytes;
  const bool direct = plan.kernel == Kernel::kTile && plan.stores == Stores::kOrdinary &&
                      plan.order == TileOrder::kInTurn && !plan.prefetches && !is_fused(plan);
  if (!direct || plan.threads == 1 || !leaves_early(m)) return 0;
  if (!is_plain(bytes) || bytes < 4) return 0;
  return std::max(static_cast<int>(line_elements(bytes)) / std::max(m.line_vectors, 1), kLeast);
}

Plan finish(const Problem& problem, const Machine& m, Kernel kernel) {
  Plan plan;
  plan.problem = problem;
  const Problem& normalised = plan.problem;
  if ((kernel == Kernel::kTile || kernel == Kernel::kStaged) && !has_tiles(problem))
    plan.problem = with_runs_as_elements(problem).value();
  plan.backend = Backend::kCpu;
  plan.kernel = kernel;
  plan.isa = m.isa;
  const int64_t bytes = element_count(normalised) * normalised.element_bytes;
  bool stream = false;
  if (kernel == Kernel::kCopy || kernel == Kernel::kRows) stream = streams_runs(normalised, m);
  if (kernel == Kernel::kPieces)
    stream = pieces_adjoin(normalised) && fills(normalised, m, m.tuned.runs_leave);
  if (kernel == Kernel::kStaged) stream = stages_beyond_caches(normalised, m);
  if (kernel == Kernel::kTile) {
    stream = streams_tiles(normalised, m);
    plan.carries = !stream && carries_rows(normalised, m);
    stream |= plan.carries;
    if (plan.carries ? carries_blocks(normalised, m) : tile_in_blocks(normalised, m, stream)) {
      plan.order = TileOrder::kInBlocks;
    } else if (!stream && tiles_cross(normalised, m)) {
      plan.order = crosses_lie_diagonally(normalised) ? TileOrder::kDiagonal : TileOrder::kCrosswise;
    }
  }
  plan.stores = stream ? Stores::kStreaming : Stores::kOrdinary;
  if (kernel == Kernel::kStaged || (kernel == Kernel::kTile && !stream)) {
    const Sides sides = fuse_sides(normalised, tile_row_dim(kernel, normalised), m);
    plan.fused_rows = sides.row_dims;
    plan.fused_cols = sides.col_dims;
    if (is_fused(plan)) plan.order = TileOrder::kInTurn;
  }
  if (kernel == Kernel::kRows && stream && gathers_runs(normalised)) plan.fused_cols = 2;
  plan.threads = static_cast<int>(std::clamp<int64_t>(bytes / kBytesPerThread, 1, std::max(m.threads, 1)));
  set_tile(plan, m);
  if (kernel == Kernel::kTile)
    plan.prefetches =
        !stream && plan.order == TileOrder::kInTurn && !is_fused(plan) && tiles_ask(normalised, m);
  if (kernel == Kernel::kStaged) plan.prefetches = stream && stages_ask(plan, m);
  plan.prefetches_l1 = m.tuned.asks_into_l1 && can_ask_into_l1(plan, m);
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
      return !empty && piece_dims(p) > 0;
    case Kernel::kTile:
    case Kernel::kStaged:
      return !empty && (has_tiles(p) || with_runs_as_elements(p).has_value());
    default:
      return false;
  }
}

// Whether small permutations are moved in registers. Of a copy, else and so (Zen 5; Xeon, both with AVX-512):
// batches of 4 x 4 in 1 byte .03 -> .94; .06 -> .82, in 4 bytes .11 -> .92; .23 -> .77, 8 x 8 x 3 -> 0,2,1,3
// in 1 byte .03 -> .98; .02 -> .68, 3 x 3 x 3 -> 0,3,2,1 in 4 bytes .07 -> .93; .10 -> .59. AVX2, up to 128
// bytes: 4 x 4 in 1 byte .03 -> .85, in 4 bytes .11 -> .52. Beyond six vectors of AVX-512 tiles are faster.
// Pieces side by side share vectors, others need some bytes.
bool permutes_pieces(const Problem& p, const Machine& m) {
  constexpr int64_t kPieceAlone = 32;
  const int dims = piece_dims(p);
  if (dims == 0) return false;
  const int64_t bytes = piece_bytes(p);
  const bool adjoin = pieces_adjoin(p) && p.dims[p.rank - 1 - dims].in_stride == bytes;
  return bytes <= m.piece_bytes[p.element_bytes > 1] && (adjoin || bytes >= kPieceAlone);
}

Kernel choose_tile(const Problem& p, const Machine& m) {
  const int row = tile_row_dim(Kernel::kStaged, p);
  const Dim& cols = p.dims[p.rank - 1];
  const bool rows_adjoin = row == p.rank - 2 && p.dims[row].out_stride == cols.extent * p.element_bytes;
  const int64_t row_bytes = cols.extent * p.element_bytes;
  if (rows_adjoin && p.dims[row].extent * row_bytes <= m.tuned.tiny_matrix_bytes) return Kernel::kTile;
  if (rows_adjoin && row_bytes < kLine && !fills(p, m, m.tuned.runs_leave)) return Kernel::kTile;
  if (streams_tiles(p, m) && !fuse_sides(p, row, m).fuse()) return Kernel::kTile;
  if (carries_rows(p, m) || (keeps_lines(p, m) && !fuse_sides(p, row, m).fuse())) return Kernel::kTile;
  // Of a copy, straight to the output and through staging (Zen 5; the same with AVX2): 64^3 reversed in 4
  // bytes .22 -> .45; .12 -> .41, 1023 x 1025 .24 -> .38; .16 -> .35, 128^3 in 1 byte .13 -> .26; .08 -> .30,
  // 16^5 .21 -> .33; .11 -> .27, 64^3 in 1 .07 -> .15; .04 -> .10, 32^3 in 4 .13 -> .21; but of half the rows
  // in one set, 60 x 1023 x 100 -> 0,2,1 in 2 .37 -> .24.
  constexpr int64_t kStagedMeetingBytes = 128 << 10;
  if (p.element_bytes <= 4 && element_count(p) * p.element_bytes >= kStagedMeetingBytes &&
      !tile_in_blocks(p, m, false) && rows_meet(p, row, m))
    return Kernel::kStaged;
  const int64_t run = output_run_bytes(p, row);
  const bool lines_are_whole = run >= kStagedRunBytes || p.dims[row].out_stride == run;
  return stages_beyond_caches(p, m) && lines_are_whole ? Kernel::kStaged : Kernel::kTile;
}

// Whether runs that would be staged, not being whole lines, are better streamed one by one. Zen 4 with
// AVX-512, 2 threads, 1197 permutations of 24 MB and more drawn at random, geometric means, of a copy: runs
// of 257 to 512 bytes .45 -> .55 (430 faster by a twentieth, 107 slower), of 513 to 1024 .45 -> .65 (533,
// 36); of 129 to 256 .66 -> .48; 257 to 1024 bytes in 8 to 16 MB .57 -> .43.
bool streams_long_runs(const Problem& of_runs, const Machine& m) {
  constexpr int64_t kLongRun = 256;
  constexpr int kLongRunsLeave = 12;  // eighths of the last cache
  return leaves_early(m) && of_runs.element_bytes > kLongRun && fills(of_runs, m, kLongRunsLeave);
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

int tile_row_dim(Kernel kernel, const Problem& p) {
  if (kernel == Kernel::kTile || kernel == Kernel::kStaged) return input_run_dim(p);
  return smallest_input_step(p);
}

int piece_dims(const Problem& p) {
  int64_t bytes = p.element_bytes;
  int most = 0;
  for (int dims = 1; dims < p.rank; ++dims) {
    const Dim& last = p.dims[p.rank - dims];
    if (last.out_stride != bytes) break;
    bytes *= last.extent;
    if (bytes > kMostPieceBytes) break;
    // Dense in the input if its dims can be put in an order in which each continues the one before.
    int64_t run = p.element_bytes;
    for (int found = p.rank - dims; run < bytes && found < p.rank;) {
      for (found = p.rank - dims; found < p.rank && p.dims[found].in_stride != run; ++found) {
      }
      if (found < p.rank) run *= p.dims[found].extent;
    }
    if (dims > 1 && run == bytes) most = dims;
  }
  return most;
}

int64_t piece_bytes(const Problem& p) {
  int64_t bytes = p.element_bytes;
  for (int dims = piece_dims(p); dims > 0; --dims) bytes *= p.dims[p.rank - dims].extent;
  return bytes;
}

int next_row_dim(const Problem& p, int row) {
  for (int d = 0; d + 1 < p.rank; ++d) {
    if (d != row && p.dims[d].in_stride == p.dims[row].in_stride * p.dims[row].extent) return d;
  }
  return -1;
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

bool can_carry_rows(const Problem& p, const CpuFacts& facts) {
  const int64_t e = p.element_bytes;
  if (facts.line_vectors != 1 || !is_plain(e) || (e == 1 && !facts.carries_bytes)) return false;
  uint64_t bits = p.out_address;
  for (int d = 0; d + 1 < p.rank; ++d) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  return bits % std::min<int64_t>(e, 8) == 0;
}

// Where that wins. Of a copy, into L2 and so, Zen 5, two threads; one: six matrices of 30 to 100 MB drawn
// at random, at any pitch, 2 to 16 bytes .68 .84 .88 .92; .65 .82 .93 .81 -> .72 .87 .91 .94; .69 .86 .96
// .84, of whole lines in 2 and 4 .94 1.02; .79 .83 -> .93 1.03; .91 .95; while a round trip between the
// cores took 400 ns, in blocks, two threads, seven in 2 bytes .54 -> .68, 5001 x 4096 and 3001 x 4096 in 4
// .43 .43 -> .69 .68; but of whole lines five in 4 in blocks .83 -> .78, eight in 8 and in 16 .89 .97 ->
// .87 .95, 8192^2 in 1 byte .76 -> .70. Not on other machines: Xeon, 16 threads; 4, seven of whole lines,
// 2 to 16 bytes .83 .97 .90 .97; .75 .80 .90 .96 -> .77 .89 .90 1.00; .66 .76 .83 .90. Zen 4, 256 x 128 x
// 128 in 2 .75 -> .66.
bool can_ask_into_l1(const Plan& plan, const CpuFacts& facts) {
  const int64_t e = plan.problem.element_bytes;
  if (plan.kernel != Kernel::kTile || plan.stores != Stores::kStreaming) return false;
  if (facts.line_vectors != 1 || !is_plain(e) || e == 1) return false;
  return plan.carries || e == 2 || (e == 4 && plan.order == TileOrder::kInTurn);
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
             " bytes, dense in both, and a dim of them, but got " + to_string(p);
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
