// Which CUDA kernel runs a problem, and with what tile: legality first, then the choice.
#include "core/plan_cuda.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "core/int_math.h"
#include "core/normalize.h"
#include "core/staged_tile.h"
#include "core/tuning_cuda.h"

namespace tx {
namespace {

constexpr int64_t kVector = 16, kLine = 128;
constexpr int64_t kFetched = 256;  // bytes, at multiples of them, that loads of unaligned tiles bring into L2
static_assert(kAddressAlignment % kVector == 0 && kAddressAlignment % kSector == 0,
              "all that a plan asks for");
constexpr int64_t kMostBlocks = 2147483647;  // along x, on every architecture (y and z stop at 65535)

int last(const Problem& p) { return p.rank - 1; }

bool one_run(const Problem& p) {
  return p.rank == 0 ||
         (p.rank == 1 && p.dims[0].in_stride == p.element_bytes && p.dims[0].out_stride == p.element_bytes);
}

bool output_is_dense(const Problem& p) { return p.rank > 0 && p.dims[last(p)].out_stride == p.element_bytes; }

// Where output rows of a matrix begin: a power of two divides all these addresses if it divides the result.
uint64_t output_row_addresses(const Problem& p, const TileMatrix& m) {
  uint64_t bits = p.out_address;
  for (int d = 0; d < p.rank; ++d) {
    if (!m.has_row(d)) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  return bits;
}

// How far apart input rows begin, likewise, and where.
uint64_t input_row_pitches(const Problem& p, const TileMatrix& m) {
  uint64_t bits = 0;
  for (int d = 0; d < p.rank; ++d) {
    if (!m.has_col(d)) bits |= static_cast<uint64_t>(p.dims[d].in_stride);
  }
  return bits;
}
uint64_t input_row_addresses(const Problem& p, const TileMatrix& m) {
  return input_row_pitches(p, m) | p.in_address;
}

// Every address, pitch and extent that the vectors of a tile touch is a multiple of 16 bytes.
bool tile_is_aligned(const Problem& p, const TileMatrix& m) {
  const uint64_t bits = output_row_addresses(p, m) | input_row_addresses(p, m) |
                        static_cast<uint64_t>((m.rows | m.cols) * p.element_bytes);
  return bits % kVector == 0;
}

// Part of the tiles' area that holds data.
double filled(int64_t extent, int64_t tile) {
  return static_cast<double>(extent) / static_cast<double>(round_up(extent, tile));
}

int64_t tile_count(const Problem& p, const int32_t* tile) {
  int64_t count = 1;
  for (int d = 0; d < p.rank; ++d) count *= ceil_div(p.dims[d].extent, tile[d]);
  return count;
}

struct TileChoice {
  int variant = -1;
  TileMatrix matrix;
  double time = 0;  // over a copy's
};

// Whether L2 is too small for most of what is read and written.
bool is_beyond_l2(const Problem& p, const DeviceFacts& facts) {
  return element_count(p) * p.element_bytes * 3 / 2 > facts.l2_bytes;
}

// Problems of more bytes: for them the kernels' times are right, and sectors that blocks share cost
// something.
constexpr int64_t kManySmallTiles = 12 << 20;

// What it costs small tiles, for each side, that they share sectors with others. H100, 12 to 24 MB of rows of
// whole vectors, geometric means of 6 to 12 problems drawn at random, 1, 2, 4, 8 bytes: .84 .85 .89 .93 (the
// better of tile and unaligned: .91 .94 .94 .97), but from 8 to 12 MB .92 .96 .95 .98 (.91 .93 .96 .97). One
// H200, 8 bytes, 83886 x 2 x 100 -> 2,1,0 .74 (unaligned .93); 257 permutations of 8 and 16 bytes drawn at
// random that it leaves to others, beyond L2, .862 (.905), of smaller problems, 255, .879 (.873).
double split_sectors_of_small(const Problem& p, const TileMatrix& m, bool aligned, bool in_adjoins,
                              bool out_adjoins, const DeviceFacts& facts) {
  constexpr double kShared = 1.1;
  const bool counts = aligned && p.element_bytes < kVector
                          ? element_count(p) * p.element_bytes > kManySmallTiles
                          : is_beyond_l2(p, facts);
  if (!counts) return 1;
  return (!in_adjoins && input_row_addresses(p, m) % kSector != 0 ? kShared : 1) *
         (!out_adjoins && output_row_addresses(p, m) % kSector != 0 ? kShared : 1);
}

// The small tile that takes least time. None where the problem is too large and no tile spans it, or where
// too many dims lie beyond.
TileChoice choose_small(const Problem& p, const DeviceFacts& facts) {
  constexpr int64_t kThreadsOfSm = 2048;
  constexpr int kBytes = 32, kElements = 4;  // of a thread
  TileChoice choice;
  const TileMatrix m = tile_matrix(p, 1, 1);
  if (p.rank - 2 > kMaxSmallOuterDims || m.rows == 0) return choice;
  const int64_t in_pitch = p.dims[m.row_dims[0]].in_stride, out_pitch = p.dims[m.col_dims[0]].out_stride;
  const int64_t in_row = m.cols * p.element_bytes, out_row = m.rows * p.element_bytes;
  if (std::max({in_pitch, out_pitch, in_row, out_row}) >= kFastDivLimit) return choice;
  // What short rows leave of a line is the next row's, or another tile's, which reads or writes it again.
  const bool whole_lines =
      (in_row >= kLine || in_pitch == in_row) && (out_row >= kLine || out_pitch == out_row);
  const bool aligned = tile_is_aligned(p, m);
  const int64_t bytes = element_count(p) * p.element_bytes, matrices = element_count(p) / (m.rows * m.cols);
  if (matrices > kMostAlongY) return choice;
  for (int v = 0; v < static_cast<int>(std::size(kSmallVariants)); ++v) {
    const SmallVariant& t = kSmallVariants[v];
    if (t.element_bytes != p.element_bytes || (t.vectors && !aligned)) continue;
    const bool spanned = (t.rows <= t.cols && m.rows <= t.rows) || (t.cols <= t.rows && m.cols <= t.cols);
    const bool narrow = t.most_bytes == 0;
    if (narrow ? !spanned || !whole_lines : bytes > t.most_bytes) continue;
    const int64_t bands = ceil_div(m.rows, t.rows), strips = ceil_div(m.cols, t.cols);
    if (std::min(bands, strips) > kMostAlongY) continue;
    const double split = split_sectors_of_small(p, m, aligned, in_pitch == in_row && strips == 1,
                                                out_pitch == out_row && bands == 1, facts);
    const int64_t threads = t.rows * t.cols / (t.vectors ? kBytes / t.element_bytes : kElements);
    const bool at_once = bands * strips * matrices * threads <= facts.sm_count * kThreadsOfSm;
    const double time = at_once ? 1 : t.time(filled(m.rows, t.rows) * filled(m.cols, t.cols)) * split;
    if (choice.variant < 0 || time < choice.time) choice = {v, m, time};
  }
  return choice;
}

// What it costs where two blocks of the aligned tile kernel read or write a sector.
double split_sectors(const Problem& p, const TileMatrix& m, const TileVariant& t, const DeviceFacts& facts) {
  constexpr double kRead = 1.08;  // one H200, 16 bytes, 2000 x 120 x 321 -> 2,0,1 .84 (unaligned .93)
  // By bytes of an output row in a tile. H100, 1, 2, 4, 8 bytes: problems drawn at random take, over those
  // whose rows begin at sectors, with 256 bytes 1.10 1.04 1.05 1.03 and with 128 1.36 1.26 1.21 1.18 (20 to
  // 30 of each, beyond L2); less than half of that within L2. Of 1 byte more beyond L2, for what the
  // unaligned kernel is thought to take: 10 matrices of 57 to 117 MB .89 (unaligned: .91).
  constexpr int kWide = 256;
  constexpr double kWritten = 1.25, kWideWritten = 1.05, kOfBytes = 1.12, kWithinL2 = 0.5;
  // Where they write all rows of different matrices, the other block comes much later. One H200, 16 bytes, 13
  // x 5 x 224 x 4096 -> 2,3,1,0 .51 (.99); 2 bytes, 20 x 24 x 56 x 120 x 16 -> 3,4,1,0,2 .64 (.86).
  constexpr double kLater = 1.5;
  const int64_t row_bytes = m.rows * p.element_bytes;
  double cost = 1;
  if (p.element_bytes == kVector && input_row_addresses(p, m) % kSector != 0) cost *= kRead;
  if (output_row_addresses(p, m) % kSector == 0) return cost;
  if (row_bytes > t.out_bytes) {
    const double written = t.out_bytes >= kWide ? kWideWritten : kWritten;
    if (!is_beyond_l2(p, facts)) return cost * (1 + (written - 1) * kWithinL2);
    return cost * written * (p.element_bytes == 1 ? kOfBytes : 1);
  }
  return p.dims[m.col_dims[0]].out_stride == row_bytes ? cost : cost * kLater;
}

// The variant that takes least time and gives every SM work; of those that are nearly as fast, the first,
// whose tiles are larger. None where nothing is aligned.
TileChoice choose_tile(const Problem& p, const DeviceFacts& facts) {
  constexpr double kNearly = 1.03;
  constexpr double kFullEnough = 0.85;  // without fusing
  TileChoice best;
  double best_score = 0, best_filled = 0;
  for (int rows = 1; rows <= kMaxFusedDims; ++rows) {
    for (int cols = 1; cols <= kMaxFusedDims; ++cols) {
      const bool fused = rows + cols > 2;
      if (fused && best_filled >= kFullEnough) continue;
      const TileMatrix m = tile_matrix(p, rows, cols);
      if (m.rows == 0 || !tile_is_aligned(p, m)) continue;
      for (int v = 0; v < static_cast<int>(std::size(kTileVariants)); ++v) {
        const TileVariant& t = kTileVariants[v];
        if (t.element_bytes != p.element_bytes || t.fused != fused) continue;
        const int64_t tile_rows = t.out_bytes / t.element_bytes, tile_cols = t.in_bytes / t.element_bytes;
        const double full = filled(m.rows, tile_rows) * filled(m.cols, tile_cols);
        const int64_t blocks = ceil_div(m.rows, tile_rows) * ceil_div(m.cols, tile_cols) *
                               (element_count(p) / (m.rows * m.cols));
        const double time = t.time(full) * split_sectors(p, m, t, facts);
        const double score = time / std::min(1.0, static_cast<double>(blocks) / (2.0 * facts.sm_count));
        if (best.variant >= 0 && score * kNearly >= best_score) continue;
        best = {v, m, time};
        best_score = score, best_filled = full;
      }
    }
  }
  return best;
}

// The tile of a variant for a matrix. No columns where one that is fitted would have too many, or where 32
// bits do not tell the input's rows apart.
UnalignedTile unaligned_tile(const Problem& p, const TileMatrix& m, const UnalignedVariant& v) {
  if (!v.fitted() && !v.fits_rows) return {v.rows(), v.cols()};
  // Bands of one size.
  const int64_t bands = unaligned_bands(m.rows, v.rows(), v);
  const auto sectors = static_cast<int>(ceil_div(unaligned_touched(m.rows, v), bands * kSector));
  UnalignedTile tile{sectors * v.halo(), 0};
  if (v.fits_rows) {
    if (bands == 1) tile.rows = static_cast<int>(round_up(m.rows, v.block()));
    tile.cols = v.cols();
    return tile;
  }
  int64_t span = m.cols * p.element_bytes;
  for (int i = 0; i < m.row_dim_count; ++i) {
    const Dim& dim = p.dims[m.row_dims[i]];
    span += (dim.extent - 1) * dim.in_stride;
  }
  if (span >= kFastDivLimit) return {};
  const int words = fitted_words_in_flight(v.element_bytes) * fitted_lanes(v) / fitted_groups(tile, v);
  if (m.cols <= (words - fitted_words(0, v)) * v.block()) {
    tile.cols = static_cast<int>(round_up(m.cols, v.block()));
  }
  return tile;
}

// Instructions that a thread of a fitted tile spends on a byte of a matrix of so many bands, roughly.
double fitted_work(const TileMatrix& m, const UnalignedTile& tile, const UnalignedVariant& v, double bands) {
  constexpr double kTile = 300, kColumn = 27, kColumnEnds = 35;
  const double word = 12 + 17.5 * v.block();
  const double column = kColumn + kColumnEnds * std::min(1.0, 2 / bands);
  const double thread = kTile + word * fitted_batches(tile, v) + column * tile.cols / v.warps;
  return thread * v.warps * 32 * bands / static_cast<double>(m.rows * m.cols * v.element_bytes);
}

// Part of the rows that strips' tiles have room for. Where tiles fit, half of their work is of the rows that
// they read, which are the matrix's and halos.
double rows_filled(const TileMatrix& m, const UnalignedVariant& v, int64_t bands) {
  const auto rows = static_cast<double>(m.rows);
  const double room = static_cast<double>(bands * v.rows()) / rows;
  if (!v.fits_rows) return 1 / room;
  const double read = (rows + static_cast<double>((bands - 1) * v.halo())) / rows;
  return 2 / (room + read * v.rows() / (v.rows() + v.halo()));
}

// SMs that get a tile more than others are waited for; meanwhile the others' share of the memory is theirs.
double uneven(int64_t tiles, const DeviceFacts& facts) {
  constexpr double kCost = 0.15;
  constexpr int64_t kMany = 16;  // tiles of an SM
  if (tiles > kMany * facts.sm_count) return 1;
  const double share = static_cast<double>(tiles) / facts.sm_count;
  return 1 + kCost * (std::ceil(share) / share - 1);
}

// A tile that has all of an output row may take one store more, of those that a lane has: 672 x 101 x 1951 ->
// 0,2,1, 1 byte, .63 with rows of 128 bytes (staged: .77).
double one_store_more(const TileMatrix& m, const UnalignedVariant& v) {
  constexpr double kCost = 0.3, kStore = 128;  // bytes
  if (v.fitted() || m.rows * v.element_bytes > v.out_bytes || unaligned_touched(m.rows, v) <= v.out_bytes) {
    return 1;
  }
  const double part = kStore / v.out_bytes;
  return 1 + kCost * part * part;
}

// Whether a dim continues runs of `run` bytes in one memory (`stride`) but follows `dims` of the other side,
// so that L2 has lost what `each` bytes a run take before its neighbours share their lines.
bool continues_far(const Problem& p, int64_t Dim::* stride, int64_t run, const int* dims, int count,
                   int64_t each, const DeviceFacts& facts) {
  constexpr int64_t kPartOfL2 = 3;
  int64_t between = 1;  // runs
  for (int i = 0; i < count; ++i) {
    if (p.dims[dims[i]].*stride == run) break;
    between *= p.dims[dims[i]].extent;
  }
  if (between * each * kPartOfL2 <= facts.l2_bytes) return false;
  return std::any_of(p.dims, p.dims + p.rank, [&](const Dim& d) { return d.*stride == run; });
}

// What it costs that runs share lines with neighbours that come when L2 has lost these. One H200, geometric
// means of permutations drawn at random for which it means another matrix. Read: 36 of 1 to 8 bytes .571
// (.840); 1000 x 577 x 2 x 5 x 20 -> 4,3,2,0,1 in 1 byte, runs of 20 bytes that are three dims of an output
// row, .26. Written: 25 of 1 to 16 bytes .650 (.849); 127 x 4 x 132104 -> 2,1,0 in 2 bytes, runs of 254
// bytes, .42 (.88). Whole sectors lose nothing.
double far_neighbours(const Problem& p, const TileMatrix& m, const DeviceFacts& facts) {
  constexpr double kLostRead = 40, kLostWritten = 200;  // bytes a run
  constexpr int64_t kLongRun = 1024;                    // of which that is little
  const int64_t in_run = m.cols * p.dims[m.col_dims[0]].in_stride, out_run = m.rows * p.element_bytes;
  double cost = 1;
  if (in_run % kFetched != 0 &&
      continues_far(p, &Dim::in_stride, in_run, m.row_dims, m.row_dim_count, kFetched, facts)) {
    cost += kLostRead / static_cast<double>(in_run);
  }
  if (out_run < kLongRun && out_run % kSector != 0 &&
      continues_far(p, &Dim::out_stride, out_run, m.col_dims, m.col_dim_count, 2 * out_run, facts)) {
    cost += kLostWritten / static_cast<double>(out_run);
  }
  return cost;
}

struct UnalignedChoice {
  int variant = -1;
  TileMatrix matrix;
  UnalignedTile tile;
  double time = 0;     // over a copy's
  bool idles = false;  // has no tile for most of the SMs
};

// Of how many dims rows and columns are made, and which tile takes them in the least time. Every element
// width and step has a tile for rows that begin anywhere.
UnalignedChoice choose_unaligned(const Problem& p, const DeviceFacts& facts) {
  // Columns that are not there are loaded, but not stored.
  constexpr double kColumns = 0.8;
  const int64_t step_bytes = input_step(p);
  const int step = static_cast<int>(step_bytes / p.element_bytes);
  const auto in_address = static_cast<int64_t>(p.in_address % kAddressAlignment);
  UnalignedChoice best;
  double best_score = 0;
  for (int rows = 1; rows <= kMaxFusedDims; ++rows) {
    for (int cols = 1; cols <= kMaxFusedDims; ++cols) {
      const TileMatrix m = tile_matrix(p, rows, cols, step);
      if (m.rows == 0) continue;
      const auto in_pitches = static_cast<int64_t>(input_row_pitches(p, m));
      const auto out_rows = static_cast<int64_t>(output_row_addresses(p, m));
      const double far = far_neighbours(p, m, facts);
      for (int i = 0; i < static_cast<int>(std::size(kUnalignedVariants)); ++i) {
        const UnalignedVariant& v = kUnalignedVariants[i];
        if (v.element_bytes != p.element_bytes || v.step != step) continue;
        if (v.many_dims != (std::max(rows, cols) > kFewFusedDims)) continue;
        if (in_pitches % v.in_align != 0 || in_address % v.in_align >= step_bytes) continue;
        if (out_rows % v.out_align != 0) continue;
        const UnalignedTile tile = unaligned_tile(p, m, v);
        if (tile.cols == 0) continue;
        const int64_t bands = unaligned_bands(m.rows, tile.rows, v);
        const double time =
            v.fitted() ? v.time(1 / fitted_work(m, tile, v, static_cast<double>(bands)))
                       : v.time(rows_filled(m, v, bands) * std::pow(filled(m.cols, tile.cols), kColumns)) *
                             one_store_more(m, v);
        const int64_t tiles = bands * ceil_div(m.cols, tile.cols) * (element_count(p) / (m.rows * m.cols));
        const double score = far * time * uneven(tiles, facts);
        if (best.variant < 0 || score < best_score) {
          best = {i, m, tile, far * time, 3 * tiles < facts.sm_count};
          best_score = score;
        }
      }
    }
  }
  return best;
}

// The matrix whose output rows follow one another without a gap: rows = 0 where there is none.
TileMatrix span_matrix(const Problem& p) {
  for (int rows = 1; rows <= kFewFusedDims; ++rows) {
    const TileMatrix m = tile_matrix(p, rows, 1);
    if (m.rows > 0 && p.dims[m.col_dims[0]].out_stride == m.rows * p.element_bytes) return m;
  }
  return TileMatrix();
}

struct SpanChoice {
  int variant = -1;
  TileMatrix matrix;
  SpanTile tile;
};

// The tile whose warps have the most words to put together, and leave the fewest registers of an SM idle.
SpanChoice choose_span(const Problem& p) {
  constexpr int kRegistersOfSm = 65536, kQuarters = 4, kMostWarps = 32;
  constexpr int64_t kMostRows = 1 << 16;  // by far
  SpanChoice best;
  const TileMatrix m = span_matrix(p);
  if (m.rows == 0 || m.rows > kMostRows) return best;
  int64_t extent = 0;
  for (int i = 0; i < m.row_dim_count; ++i) {
    extent += (p.dims[m.row_dims[i]].extent - 1) * p.dims[m.row_dims[i]].in_stride;
  }
  if (extent >= kFastDivLimit) return best;
  const int word = word_bytes(p.element_bytes);
  const bool shifts = input_row_addresses(p, m) % static_cast<uint64_t>(word) != 0;
  const int piece = m.rows * kSpanPieceBytes > kSpanTileBytes ? kSpanPieceBytes / 2 : kSpanPieceBytes;
  double best_busy = 0;
  for (int i = 0; i < static_cast<int>(std::size(kSpanVariants)); ++i) {
    const SpanVariant& v = kSpanVariants[i];
    if (v.element_bytes != p.element_bytes || v.shifts_in != shifts) continue;
    const int64_t most_cols = (piece / v.word() - (shifts ? 1 : 0)) * v.block();
    const int64_t cols = ceil_div(m.cols, ceil_div(m.cols, most_cols));
    SpanTile tile{static_cast<int>(round_up(cols, v.block()))};
    const int words = span_words(m.rows, v), words_of_warp = v.batch * span_parts(tile.cols, v);
    tile.warps = static_cast<int>(ceil_div(words, words_of_warp));
    const int warps_of_sm = kRegistersOfSm / (32 * v.registers) / kQuarters * kQuarters;
    if (tile.warps > kMostWarps) continue;
    const int resident = warps_of_sm / tile.warps * tile.warps;
    const double busy = static_cast<double>(resident) / warps_of_sm * words / (tile.warps * words_of_warp);
    if (best.variant < 0 || busy > best_busy) {
      best = {i, m, tile};
      best_busy = busy;
    }
  }
  return best;
}

// The matrix whose input rows follow one another without a gap, and whose output rows begin at vectors: rows
// = 0 where there is none.
TileMatrix gather_matrix(const Problem& p) {
  if (p.element_bytes > kGatherWidest) return TileMatrix();
  for (int cols = 1; cols <= kFewFusedDims; ++cols) {
    const TileMatrix m = tile_matrix(p, 1, cols);
    if (m.rows == 0 || p.dims[m.row_dims[0]].in_stride != m.cols * p.element_bytes) continue;
    if (m.cols * p.element_bytes > kGatherMostRowBytes[log2_floor(p.element_bytes)]) break;
    if (output_row_addresses(p, m) % static_cast<uint64_t>(kVector) != 0) break;
    return m;
  }
  return TileMatrix();
}

// Where lanes' rows seldom meet in banks of shared memory, and tiles have something to do for every SM.
bool gather_pays(const Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  const TileMatrix m = tile_matrix(p, plan.fused_rows, plan.fused_cols);
  constexpr int64_t kMostMeet = 4, kBanks = 32;
  return std::gcd(m.cols, kBanks) <= kMostMeet &&
         plan.tile[m.row_dims[0]] * m.cols * p.element_bytes >= kGatherLeastBytes &&
         static_cast<double>(plan.grid) >= kGatherLeastTiles * facts.sm_count;
}

// One H200, the kernel against the planner's choice without it, fraction of a copy. Rows that many columns'
// words share banks of shared memory by: 5169 x 112 x 57 -> 0,2,1, 1 byte, 16 of them .65 (.73), 256 x 104 x
// 512, 2 bytes, 8 of them .73 (.90). Lanes without columns: 1053 x 241 x 65, 2 bytes, half of them, .61
// (.68).
bool span_pays(const Problem& p, const SpanChoice& span, const DeviceFacts& facts) {
  if (span.variant < 0) return false;
  const SpanVariant& v = kSpanVariants[span.variant];
  const TileMatrix& m = span.matrix;
  const SpanLimits& limits = kSpanPays[log2_floor(p.element_bytes)];
  const int64_t tile_bytes = m.rows * span.tile.cols * p.element_bytes;
  if (m.rows > limits.most_rows || tile_bytes < limits.least_bytes) return false;
  constexpr int64_t kMostShared = 16;  // bytes
  if (std::gcd(m.rows, int64_t{128 / v.word()}) * v.word() > kMostShared) return false;
  constexpr double kLanes = 0.52;
  const int64_t strips = ceil_div(m.cols, int64_t{span.tile.cols});
  const int64_t lanes = strips * 32 / span_parts(span.tile.cols, v);
  if (static_cast<double>(m.cols) < kLanes * static_cast<double>(lanes * v.block())) return false;
  const int64_t tiles = strips * (element_count(p) / (m.rows * m.cols));
  return static_cast<double>(tiles) >= limits.least_tiles * facts.sm_count;
}

// How far apart words are that the lanes of a warp gather from a piece, and the wavefronts of shared memory
// that 128 bytes of them take.
struct WordOrder {
  int step = 1;
  double wavefronts = 0;
};

// What words are gathered from: pieces of `piece` elements, one behind the other. Their dims, the fastest
// first, are `strides` bytes apart. Words are those of runs of `run` elements; of all pieces, where a run is
// one.
struct Gather {
  int dims;
  const int32_t* extents;
  const int64_t* strides;
  int64_t piece, run;
};

// A mean of warps here and there.
double gather_wavefronts(const Gather& g, int64_t e, int64_t words, int step) {
  constexpr int kWarps = 3;
  const int word = word_bytes(e), lanes = 128 / word;  // that one wavefront can serve
  const int64_t per_word = word / e, run_words = ceil_div(g.run, per_word);
  const bool runs = g.run != g.piece;
  int wavefronts = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    for (int64_t element = 0; element < per_word; ++element) {
      int32_t met[32];
      for (int lane = 0; lane < lanes; ++lane) {
        const int64_t w = (words * warp / kWarps + lane) * step % words;
        int64_t index = w * per_word + element;
        if (runs) index = w / run_words * g.run + std::min(w % run_words * per_word + element, g.run - 1);
        int64_t at = index / g.piece * g.piece * e;
        auto rest = static_cast<uint32_t>(index % g.piece);
        for (int i = 0; i < g.dims; ++i) {
          const auto extent = static_cast<uint32_t>(g.extents[i]);
          at += rest % extent * g.strides[i];
          rest /= extent;
        }
        met[lane] = static_cast<int32_t>(at / word);
      }
      wavefronts += bank_conflicts(met, lanes);
    }
  }
  return static_cast<double>(wavefronts) / kWarps;
}

// Odd steps: what is gathered meets in no banks when it is stored. Every word is someone's, so the step and
// the number of words have no common divisor.
WordOrder choose_word_order(const Gather& gather, int64_t e, int64_t words) {
  constexpr int kMostStep = 65;
  constexpr double kClearly = 0.95;
  const double few = 2.3 * word_bytes(e) / e;  // seldom less
  WordOrder best;
  for (int step = 1; step <= kMostStep; step += 2) {
    if (std::gcd<int64_t>(step, words) != 1) continue;
    const double wavefronts = gather_wavefronts(gather, e, words, step);
    if (step == 1 || wavefronts < kClearly * best.wavefronts) best = {step, wavefronts};
    if (best.wavefronts <= few) break;
  }
  return best;
}

// What each kernel would do with a problem, found once, when it is asked for: the staged kernel's tile takes
// longest.
class Choices {
 public:
  Choices(const Problem& problem, const DeviceFacts& facts) : problem_(problem), facts_(facts) {}

  const DeviceFacts& facts() const { return facts_; }

  const TileChoice& small() {
    if (!small_) small_ = choose_small(problem_, facts_);
    return *small_;
  }
  const TileChoice& tile() {
    if (!tile_) tile_ = choose_tile(problem_, facts_);
    return *tile_;
  }
  const UnalignedChoice& unaligned() {
    if (!unaligned_) unaligned_ = choose_unaligned(problem_, facts_);
    return *unaligned_;
  }
  const SpanChoice& span() {
    if (!span_) span_ = choose_span(problem_);
    return *span_;
  }
  const StagedTile& staged() {
    if (staged_) return *staged_;
    for (int block = staged_block(problem_); block > 0; block = block > 1 ? 1 : 0) {
      StagedTile tile =
          choose_staged_tile(staged_blocks(problem_, block), block, kStagedTileBytes, kStagedTileBytesMost,
                             {facts_.shared_per_block, facts_.shared_per_sm, facts_.sm_count});
      if (!staged_ || !staged_->why_not.empty() || (tile.why_not.empty() && tile.time < staged_->time)) {
        staged_ = std::move(tile);
      }
    }
    return *staged_;
  }

  // Whether the gather kernel can run, and pays.
  bool gather();
  // Whether the narrow kernel can run, and pays against staging; and whether by vectors.
  bool narrow();
  bool narrow_by_vectors() {
    narrow();
    return by_vectors_;
  }
  int64_t narrow_blocks() {
    narrow();
    return narrow_blocks_;
  }
  // Precondition: there is a period, or there are pieces.
  const WordOrder& period_order() {
    if (!period_order_) {
      const Period period = find_period(problem_);
      int32_t tile[kMaxPieceDims];
      int64_t strides[kMaxPieceDims];
      const int dims = problem_.rank - 1;
      for (int i = 0; i < dims; ++i) {
        tile[i] = static_cast<int32_t>(problem_.dims[last(problem_) - i].extent);
        strides[i] = problem_.dims[last(problem_) - i].in_stride;
      }
      const Gather gather{dims, tile, strides, period.piece, period.piece};
      period_order_ = choose_word_order(gather, problem_.element_bytes, period.words);
    }
    return *period_order_;
  }
  const Pieces& pieces() {
    if (!pieces_) pieces_ = find_pieces(problem_);
    return *pieces_;
  }
  const WordOrder& pieces_order() {
    if (!pieces_order_) {
      const Pieces& n = pieces();
      int32_t tile[kMaxPieceDims];
      for (int i = 0; i < n.dims; ++i) tile[i] = n.tile[n.dim[i]];
      const int64_t run = n.out.run_bytes / problem_.element_bytes;
      const Gather gather{n.dims, tile, n.in.shared_stride, n.piece, run};
      pieces_order_ = choose_word_order(gather, problem_.element_bytes, n.words);
    }
    return *pieces_order_;
  }

 private:
  const Problem& problem_;
  const DeviceFacts& facts_;
  std::optional<TileChoice> small_;
  std::optional<TileChoice> tile_;
  std::optional<UnalignedChoice> unaligned_;
  std::optional<SpanChoice> span_;
  std::optional<StagedTile> staged_;
  std::optional<bool> gather_, narrow_;
  bool by_vectors_ = false;  // found with narrow_, as are its blocks
  int64_t narrow_blocks_ = 0;
  std::optional<WordOrder> period_order_, pieces_order_;
  std::optional<Pieces> pieces_;
};

// Each rule below returns why its kernel cannot run the problem, or fills the plan and returns nothing.
using WhyNot = std::string;

constexpr char kNeedsDenseOutput[] = "it needs a dim that is contiguous in the output";

WhyNot needs_both_dense(const Problem& p) {
  if (!output_is_dense(p)) return kNeedsDenseOutput;
  return input_dense_dim(p) >= 0 ? "" : "it needs a dim that is contiguous in the input";
}

WhyNot needs_two_dense_dims(const Problem& p) {
  WhyNot why_not = needs_both_dense(p);
  if (why_not.empty() && input_dense_dim(p) == last(p)) why_not = "one dim is the innermost on both sides";
  return why_not;
}

// The same, but every other element of the input's innermost dim will do.
WhyNot needs_two_inner_dims(const Problem& p) {
  const int64_t step = output_is_dense(p) ? input_step(p) : 0;
  if (step == p.element_bytes) return needs_two_dense_dims(p);
  if (step != 2 * p.element_bytes) return needs_both_dense(p);
  return p.dims[last(p)].in_stride == step ? "one dim is the innermost on both sides" : "";
}

WhyNot needs_few_outer_dims(const Problem& p, int inside, int most = kMaxOuterDims) {
  if (p.rank - inside <= most) return "";
  return "it decodes at most " + std::to_string(most) + " dims beyond its tile, and this problem has " +
         std::to_string(p.rank - inside);
}

// Bytes of the output that the innermost dims fill without a gap, and how many dims they are.
int64_t span_of_runs(const Problem& p, int& dims) {
  int64_t span = p.dims[last(p)].extent * p.element_bytes;
  for (dims = 1; dims < p.rank && dims <= kFewFusedDims; ++dims) {
    const Dim& next = p.dims[last(p) - dims];
    if (next.out_stride != span || span * next.extent >= kFastDivLimit) break;
    span *= next.extent;
  }
  return span;
}

// Runs of whole vectors: how many of these each has, how many runs lie across, and how many such planes.
struct RunsExtent {
  int64_t vectors, across = 1, planes = 1;
  bool repeat = false;        // what lies across is one run of the input
  bool side_by_side = false;  // planes continue runs in the input

  explicit RunsExtent(const Problem& p) : vectors(p.dims[last(p)].extent) {
    if (p.rank < 2) return;
    across = p.dims[last(p) - 1].extent;
    repeat = p.dims[last(p) - 1].in_stride == 0;
    if (p.rank < 3) return;
    planes = p.dims[last(p) - 2].extent;
    side_by_side = !repeat && p.dims[last(p) - 2].in_stride == vectors * kVector;
  }
};

WhyNot fill_copy(Plan& plan) {
  const Problem& p = plan.problem;
  if (!one_run(p)) return "it needs one run that is contiguous on both sides after normalising";
  // One vector more than the bytes need: the output may start inside one.
  plan.grid = ceil_div(element_count(p) * p.element_bytes + kVector, kVector * kSimpleThreads);
  plan.block = kSimpleThreads;
  return "";
}

// About `most` vectors, no more than `longest` of a run: planes of runs, a plane, or a part of one. Of short
// runs that planes continue in the input, as many planes as make long pieces of it.
struct RowsTile {
  int32_t planes, rows, cols;
  double busy;  // part of the turns that threads take, a vector each, in which there is one

  RowsTile(const RunsExtent& runs, int64_t most, int64_t longest) {
    cols = static_cast<int32_t>(std::min(runs.vectors, longest));
    int64_t together = 1;  // planes
    if (runs.side_by_side && cols <= kRowsShortRun) {
      const int64_t pieces =
          std::max<int64_t>(1, std::lround(static_cast<double>(runs.planes * cols) / kRowsPiece));
      together = ceil_div(runs.planes, pieces);
    }
    rows = static_cast<int32_t>(std::clamp<int64_t>(most / (cols * together), 1, runs.across));
    if (cols == runs.vectors && rows == runs.across)
      together = std::max(together, std::clamp<int64_t>(most / (rows * cols), 1, runs.planes));
    planes = static_cast<int32_t>(together);
    busy = filled(runs.vectors, cols) * filled(runs.across, rows) * filled(runs.planes, planes) *
           filled(vectors(), kSimpleThreads);
  }
  int64_t vectors() const { return int64_t{planes} * rows * cols; }
};

RowsTile choose_rows_tile(const Problem& p) {
  const RunsExtent runs(p);
  if (runs.repeat) return {runs, kRowsTileVectorsMost, kRowsRepeatedVectors};
  const RowsTile few(runs, kRowsTileVectors, kRowsTileVectors);
  const RowsTile many(runs, kRowsTileVectorsMost, kRowsTileVectorsMost);
  constexpr double kClearly = 0.95;
  return few.busy < kClearly * many.busy ? many : few;
}

WhyNot fill_rows(Plan& plan) {
  const Problem& p = plan.problem;
  if (!output_is_dense(p) || p.dims[last(p)].in_stride != p.element_bytes) {
    return "it needs an innermost dim that is contiguous on both sides";
  }
  const int64_t run = p.dims[last(p)].extent;
  if (p.element_bytes == kVector) {
    plan.block = kSimpleThreads;
    const RowsTile tile = choose_rows_tile(p);
    plan.tile[last(p)] = tile.cols;
    if (p.rank > 1) plan.tile[last(p) - 1] = tile.rows;
    if (p.rank > 2) plan.tile[last(p) - 2] = tile.planes;
    plan.grid = tile_count(p, plan.tile);
    return needs_few_outer_dims(p, tile.planes > 1 ? 3 : 2);
  }
  const int64_t run_bytes = run * p.element_bytes;
  const int64_t span = span_of_runs(p, plan.fused_rows);
  const int64_t chunk = runs_chunk_bytes(p.element_bytes);
  const bool is_long = p.element_bytes <= 2 && run_bytes >= kLongRunBytes;
  plan.variant = is_long;
  plan.block = runs_threads(is_long);
  plan.tile[last(p)] = static_cast<int32_t>(std::min(run, chunk / p.element_bytes));
  plan.grid = element_count(p) * p.element_bytes / span * runs_chunks(span, p.element_bytes);
  plan.shared_bytes = static_cast<int>(std::min(chunk / run_bytes + 2, span / run_bytes)) * 8;
  return needs_few_outer_dims(p, plan.fused_rows);
}

// How many tiles go along output rows before the next strip of columns does. H200, fraction of a copy: DRAM
// takes what is written sooner where it follows in the output, but strips that share lines of the input
// should come while these are still in L2.
int64_t bands_at_once(const Problem& p, const TileMatrix& m, int64_t tile_cols, int64_t tile_bytes,
                      int64_t bands, const DeviceFacts& facts) {
  // No lines shared: whole output rows. 50257 x 4096 in 8 bytes .93 (in groups of 262: .91).
  const int64_t strip_bytes = tile_cols * p.dims[m.col_dims[0]].in_stride;
  if ((input_row_pitches(p, m) | static_cast<uint64_t>(strip_bytes)) % kFetched == 0) return bands;
  // Few strips: all of them. 57337 x 1021 in 2 bytes .88 (in groups of 64: .86; whole rows: .76), but 12289 x
  // 4099 in 1 byte, 17 strips, .76 (whole rows: .81).
  const int64_t few = p.element_bytes == 1 ? 16 : 20;
  const int64_t strips = ceil_div(m.cols, tile_cols);
  if (strips <= few) return 1;
  // As many as L2 holds the lines of; were that many groups, all strips. 57337 x 4093 in 8 bytes, 64 strips
  // and 4 groups, .895 (.884), but 28657 x 4093, 2 groups, .89 (.90).
  constexpr int64_t kPartOfL2 = 3, kFewGroups = 2, kMostStrips = 64;
  const int64_t in_l2 = std::max<int64_t>(1, facts.l2_bytes / kPartOfL2 / tile_bytes);
  return bands > kFewGroups * in_l2 && strips <= kMostStrips ? 1 : in_l2;
}

// The dim beyond the tile along which tiles go first, or -1 for the output's innermost one: where pieces of
// the input are short, the dim whose indices share lines of it. One H200: 256 x 197 x 12 x 64 -> 2,0,3,1 in 2
// bytes .79 to .86, 7 x 13 x 11 x 9 x 17 x 5 x 33 -> 6,4,2,0,1,3,5 in 16 bytes .875 to .894; but 37 x 41 x 31
// x 29 x 43 -> 2,0,4,1,3 in 4 bytes, pieces of 5 KB, .95 to .91, and 256 x 197 x 16 x 64 -> 2,0,3,1 in 4
// bytes, pieces of 256 bytes, .935 to .92.
int first_beyond(const Problem& p, const TileMatrix& m, int64_t tile_rows) {
  constexpr int64_t kShort = 4096;
  int64_t piece = m.cols * p.dims[m.col_dims[0]].in_stride;
  const Dim& row = p.dims[m.row_dims[0]];
  if (row.in_stride == piece && row.extent <= tile_rows) piece *= row.extent;
  if (piece >= kShort || piece % kFetched == 0) return -1;
  for (int d = last(p), beyond = 0; d >= 0; --d) {
    if (m.has(d)) continue;
    if (p.dims[d].in_stride == piece) return beyond > 0 ? d : -1;
    ++beyond;
  }
  return -1;
}

// The part of a plan that both 2-D kernels share: tiles of rows x cols elements, `bands` of them along an
// output row, each of which takes `tile_bytes` of L2.
WhyNot fill_matrix(Plan& plan, const TileMatrix& m, int64_t rows, int64_t cols, int64_t bands,
                   int64_t tile_bytes, const DeviceFacts& facts) {
  const int64_t groups = ceil_div(bands, bands_at_once(plan.problem, m, cols, tile_bytes, bands, facts));
  plan.fused_rows = m.row_dim_count;
  plan.fused_cols = m.col_dim_count;
  plan.tile[m.row_dims[0]] = static_cast<int32_t>(rows);
  plan.tile[m.col_dims[0]] = static_cast<int32_t>(cols);
  plan.group = ceil_div(bands, groups);
  plan.first_beyond = first_beyond(plan.problem, m, rows);
  plan.grid = element_count(plan.problem) / (m.rows * m.cols) * ceil_div(m.cols, cols) * plan.group * groups;
  return needs_few_outer_dims(plan.problem, m.row_dim_count + m.col_dim_count);
}

WhyNot fill_small(Plan& plan, Choices& choices) {
  const Problem& p = plan.problem;
  WhyNot why_not = needs_two_dense_dims(p);
  if (why_not.empty()) why_not = needs_few_outer_dims(p, 2, kMaxSmallOuterDims);
  if (!why_not.empty()) return why_not;
  const TileChoice& choice = choices.small();
  if (choice.variant < 0) {
    return "it is for less than this problem's " + std::to_string(element_count(p) * p.element_bytes) +
           " bytes, or for narrow matrices; rows less than 2^31 bytes long and apart; at most 65535 matrices";
  }
  plan.variant = choice.variant;
  const SmallVariant& t = kSmallVariants[plan.variant];
  plan.tile[choice.matrix.row_dims[0]] = t.rows;
  plan.tile[choice.matrix.col_dims[0]] = t.cols;
  plan.grid = tile_count(p, plan.tile);
  plan.block = t.threads;
  return "";
}

// Whether a lane of the narrow kernel holds a block of all rows: everything at multiples of 16 bytes, and few
// lanes of a warp without one.
bool fills_lanes(const Problem& p, const NarrowMatrix& n, uint64_t bits) {
  constexpr double kFull = 0.75;
  return n.rows >= 2 && n.rows <= kNarrowVectorRows && bits % kVector == 0 &&
         filled(n.cols * p.element_bytes, kNarrowVectorBytes) >= kFull;
}

WhyNot fill_narrow(Plan& plan) {
  const Problem& p = plan.problem;
  const WhyNot why_not = needs_two_dense_dims(p);
  if (!why_not.empty()) return why_not;
  const NarrowMatrix n = narrow_matrix(p);
  if (p.element_bytes > kNarrowWidest) return "it is for elements of 1 to 8 bytes";
  const int word = word_bytes(p.element_bytes);
  if (n.rows > kNarrowMostRows) {
    return "it needs " + std::to_string(kNarrowMostRows) + " rows or columns at most, got " +
           std::to_string(n.rows);
  }
  const Dim& col = p.dims[n.col_dim()];
  if ((n.merges ? col.out_stride : col.in_stride) != n.rows * p.element_bytes) {
    return "it needs short rows that follow one another without a gap";
  }
  uint64_t bits = p.in_address | p.out_address | static_cast<uint64_t>(n.pitch | n.cols * p.element_bytes);
  for (int d = 0; d < p.rank; ++d) {
    if (!n.matrix.has(d)) bits |= static_cast<uint64_t>(p.dims[d].in_stride | p.dims[d].out_stride);
  }
  if (bits % word != 0) {
    return "it needs addresses, long rows and the strides outside the matrix to be multiples of " +
           std::to_string(word) + " bytes";
  }
  plan.tile[n.row_dim()] = static_cast<int32_t>(n.rows);
  if (fills_lanes(p, n, bits)) {
    constexpr int kWarps = kNarrowThreads / 32;
    plan.tile[n.col_dim()] = static_cast<int32_t>(kNarrowVectorBytes / p.element_bytes);
    const int64_t tiles = tile_count(p, plan.tile);
    if (tiles >= kFastDivLimit) return "it needs less than 2^31 tiles";
    plan.variant = static_cast<int>(n.rows) - 1;
    plan.block = kNarrowThreads;
    plan.shared_bytes = static_cast<int>(n.rows) * kWarps * kNarrowVectorBytes;
    plan.grid = ceil_div(tiles, int64_t{kWarps});
    return needs_few_outer_dims(p, 2);
  }
  const int words = narrow_tile_words(n.rows);
  plan.tile[n.col_dim()] = static_cast<int32_t>(words * word / p.element_bytes);
  plan.block = kNarrowThreads;
  // Rows are gathered a batch at a time, from behind the tile too.
  plan.shared_bytes =
      static_cast<int>(n.rows) * word * words + kNarrowBatch * static_cast<int>(p.element_bytes);
  plan.grid = tile_count(p, plan.tile);
  return needs_few_outer_dims(p, 2);
}

// By words. H200, fraction of a copy (staged). Words that meet in a bank: 16 x 2M, 1 byte, .79 (.88); pairs:
// 2 x 30M, 1 byte, .83 (.92). Batches of small ones, 2 bytes: 3 x 256 .78 (.89), 5 x 128 .81 (.91), 5 x 256
// .94 (.89), 12 x 128 .99 (.87).
bool narrow_pays(const Problem& p, const NarrowMatrix& n) {
  if (n.rows < 2 || n.rows % 16 == 0 || (n.rows == 2 && n.merges && p.element_bytes == 1)) return false;
  constexpr int64_t kLeastRowBytes = 256, kLeastBytes = 2560;
  const int64_t row_bytes = n.cols * p.element_bytes;
  if (row_bytes < kLeastRowBytes || n.rows * row_bytes < kLeastBytes) return false;
  // More rows pay below 4 bytes, where stores of theirs keep to sectors: 4 bytes, 3 x 20M .98 (.97), 5 x
  // 400000 .95 (.86), but 8571428 x 7 .93 (.94), 4285714 x 14 .81 (.92).
  const bool whole_sectors = (static_cast<uint64_t>(n.pitch) | p.out_address) % kSector == 0;
  return n.rows <= kNarrowFewRows || (p.element_bytes < 4 && (n.merges || whole_sectors));
}

WhyNot fill_periodic(Plan& plan, Choices& choices) {
  const Problem& p = plan.problem;
  const Period period = find_period(p);
  if (period.piece == 0) {
    return "it needs a batch of permutations, dense on both sides, of " + std::to_string(kPeriodicMostPiece) +
           " elements each at most";
  }
  const int64_t bytes = element_count(p) * p.element_bytes;
  if ((p.in_address | p.out_address) % kVector != 0 || bytes % 4 != 0) {
    return "it needs addresses that are multiples of 16 bytes, and as a whole to be a multiple of 4 bytes";
  }
  for (int d = 1; d < p.rank; ++d) plan.tile[d] = static_cast<int32_t>(p.dims[d].extent);
  const int64_t pieces = period.chunk_bytes / p.dims[0].out_stride;
  plan.tile[0] = static_cast<int32_t>(std::min(pieces, p.dims[0].extent));
  plan.block = period.threads;
  plan.shared_bytes =
      static_cast<int>(2 * period.chunk_bytes + round_up(2 * period.piece, kVector) + kAsyncAlignment);
  plan.grid = ceil_div(bytes, period.chunk_bytes);
  plan.word_step = choices.period_order().step;
  return "";
}

WhyNot fill_pieces(Plan& plan, const DeviceFacts& facts, Choices& choices) {
  const Problem& p = plan.problem;
  const Pieces& pieces = choices.pieces();
  if (pieces.piece == 0) {
    return "it needs elements of 1 to 8 bytes, and inner dims of either side, a contiguous one of the output "
           "among them, of " +
           std::to_string(kPiecesLeastBytes) + " to " + std::to_string(kPiecesMostBytes) + " bytes";
  }
  if (pieces.count >= kFastDivLimit) return "it needs less than 2^31 pieces";
  const int64_t piece_bytes = pieces.piece * p.element_bytes;
  std::copy(pieces.tile, pieces.tile + p.rank, plan.tile);
  // Small problems need blocks for all SMs rather than few that find their places.
  constexpr int64_t kBlocksOfSm = 4;
  const int64_t wanted =
      std::max<int64_t>(pieces_least(p.element_bytes), ceil_div(kPiecesBlockBytes, piece_bytes));
  const int64_t fit = kPiecesMostShared / pieces.slot_bytes - 1;
  plan.group = std::clamp<int64_t>(pieces.count / (kBlocksOfSm * facts.sm_count), 1, std::min(wanted, fit));
  plan.block = pieces.threads;
  plan.shared_bytes = static_cast<int>((plan.group + 1) * pieces.slot_bytes + plan.group * kPieceEntryBytes);
  plan.grid = ceil_div(pieces.count, plan.group);
  plan.variant = pieces.variant;
  plan.word_step = choices.pieces_order().step;
  const auto whole = [&](int d) { return pieces.tile[d] == p.dims[d].extent; };
  int inside = 0;
  for (int d = 0; d < p.rank; ++d) inside += whole(d);
  return needs_few_outer_dims(p, inside, kMaxPieceOuterDims);
}

WhyNot fill_tile(Plan& plan, const DeviceFacts& facts, Choices& choices) {
  const Problem& p = plan.problem;
  const WhyNot why_not = needs_two_dense_dims(p);
  if (!why_not.empty()) return why_not;
  const TileChoice& choice = choices.tile();
  if (choice.variant < 0) {
    return "it needs addresses, pitches and both inner extents to be multiples of 16 bytes";
  }
  plan.variant = choice.variant;
  const TileVariant& t = kTileVariants[plan.variant];
  const TileMatrix& m = choice.matrix;
  const int64_t rows = t.out_bytes / t.element_bytes, cols = t.in_bytes / t.element_bytes;
  const int64_t bands = ceil_div(m.rows, rows);
  plan.block = t.threads;
  plan.shared_bytes = t.shared_bytes();
  return fill_matrix(plan, m, rows, cols, bands, 2 * rows * cols * p.element_bytes, facts);
}

WhyNot fill_unaligned(Plan& plan, const DeviceFacts& facts, Choices& choices) {
  const Problem& p = plan.problem;
  const WhyNot why_not = needs_two_inner_dims(p);
  if (!why_not.empty()) return why_not;
  const UnalignedChoice& choice = choices.unaligned();
  const TileMatrix& m = choice.matrix;
  plan.variant = choice.variant;
  const UnalignedVariant& v = kUnalignedVariants[plan.variant];
  plan.step = v.step;
  plan.block = v.warps * 32;
  const UnalignedTile& tile = choice.tile;
  plan.shared_bytes = unaligned_shared_bytes(tile, v);
  const int64_t tile_bytes =
      tile.rows * (tile.cols * p.element_bytes + kLine) + tile.cols * (tile.rows * p.element_bytes + kSector);
  return fill_matrix(plan, m, tile.rows, tile.cols, unaligned_bands(m.rows, tile.rows, v), tile_bytes, facts);
}

WhyNot fill_span(Plan& plan, const DeviceFacts& facts, Choices& choices) {
  const Problem& p = plan.problem;
  const WhyNot why_not = needs_two_dense_dims(p);
  if (!why_not.empty()) return why_not;
  const SpanChoice& choice = choices.span();
  if (choice.variant < 0) {
    return "it needs elements of 1 to 8 bytes, short output rows that follow one another without a gap, and "
           "the "
           "input rows of a matrix within 2^31 bytes";
  }
  plan.variant = choice.variant;
  const SpanVariant& v = kSpanVariants[plan.variant];
  const TileMatrix& m = choice.matrix;
  plan.block = 32 * choice.tile.warps;
  plan.shared_bytes = span_data_bytes(m.rows, choice.tile, v);
  if (m.row_dim_count > 1) plan.shared_bytes += span_table_bytes(choice.tile, v);
  const int64_t tile_bytes = 2 * m.rows * choice.tile.cols * p.element_bytes;
  return fill_matrix(plan, m, m.rows, choice.tile.cols, 1, tile_bytes, facts);
}

WhyNot fill_gather(Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  const WhyNot why_not = needs_two_dense_dims(p);
  if (!why_not.empty()) return why_not;
  const TileMatrix m = gather_matrix(p);
  if (m.rows == 0) {
    return "it needs elements of 1 to 4 bytes, input rows that follow one another without a gap and are at "
           "most " +
           std::to_string(kGatherMostRowBytes[log2_floor(std::min(p.element_bytes, kGatherWidest))]) +
           " bytes long, and output rows that begin at multiples of 16 bytes";
  }
  plan.variant = log2_floor(p.element_bytes);
  const GatherVariant& v = kGatherVariants[plan.variant];
  const int64_t row_bytes = m.cols * p.element_bytes, unit = kGatherPieceBytes / p.element_bytes;
  // Bands of one size, nearly.
  const int64_t most = std::max<int64_t>(1, kGatherTileBytes / (row_bytes * unit)) * unit;
  const int64_t bands = ceil_div(m.rows, most);
  const int64_t rows = bands == 1 ? m.rows : round_up(ceil_div(m.rows, bands), kSector / p.element_bytes);
  plan.block = kGatherThreads;
  plan.shared_bytes = gather_shared_bytes(rows, m.cols, m.col_dim_count > 1, v);
  return fill_matrix(plan, m, rows, m.cols, ceil_div(m.rows, rows), 2 * rows * row_bytes, facts);
}

WhyNot fill_staged(Plan& plan, Choices& choices) {
  if (!output_is_dense(plan.problem)) return kNeedsDenseOutput;
  if (input_step(plan.problem) == 0)
    return "it needs a dim whose neighbours are at most 4 elements apart in the input";
  const StagedTile& best = choices.staged();
  if (!best.why_not.empty()) return best.why_not;
  plan.layout = best.layout;
  plan.shared_bytes = static_cast<int>(staged_shared_bytes(best.layout, best.extent));
  std::copy(best.extent, best.extent + plan.problem.rank, plan.tile);
  const Problem& p = plan.problem;
  if (plan.layout.block > 1) {
    plan.tile[last(p)] *= plan.layout.block;
    plan.tile[input_dense_dim(p)] *= plan.layout.block;
  }
  plan.grid = tile_count(p, plan.tile);
  plan.block = kStagedThreads;
  int dims_of_tiles = 0;
  for (int d = 0; d < p.rank; ++d) dims_of_tiles += plan.tile[d] < p.dims[d].extent;
  return needs_few_outer_dims(p, p.rank - dims_of_tiles);
}

WhyNot fill_strided(Plan& plan) {
  // Beyond the grid's limit its threads loop.
  plan.grid = std::min(ceil_div(element_count(plan.problem), kSimpleThreads), kMostBlocks);
  plan.block = kSimpleThreads;
  return "";
}

// Whether L2 is asked to keep lines of the input longer than those of the output.
bool keeps_input(Kernel kernel, const Problem& p, const DeviceFacts& facts) {
  if (kernel == Kernel::kStrided) return false;
  // Tiles share lines, and halos.
  if (kernel == Kernel::kTileUnaligned || kernel == Kernel::kTileSpan) return true;
  int64_t bytes = p.element_bytes;
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].in_stride != 0) bytes *= p.dims[d].extent;
  }
  return static_cast<double>(bytes) >= kKeepTimesL2 * facts.l2_bytes;
}

WhyNot fill(Plan& plan, Kernel kernel, const DeviceFacts& facts, Choices& choices) {
  const Problem& p = plan.problem;
  plan.kernel = kernel;
  plan.variant = plan.block = plan.shared_bytes = 0;
  plan.grid = plan.group = 0;
  plan.first_beyond = -1;
  plan.keep = false;
  plan.fused_rows = plan.fused_cols = plan.step = plan.word_step = 1;
  std::fill(plan.tile, plan.tile + p.rank, 1);
  const bool empty = p.rank > 0 && p.dims[0].extent == 0;
  if (kernel == Kernel::kNone) return empty ? "" : "it moves nothing, and this problem has elements";
  if (empty) return "this problem has no elements";
  const WhyNot why_not = [&]() -> WhyNot {
    switch (kernel) {
      case Kernel::kCopy:
        return fill_copy(plan);
      case Kernel::kRows:
        return fill_rows(plan);
      case Kernel::kTileSmall:
        return fill_small(plan, choices);
      case Kernel::kNarrow:
        return fill_narrow(plan);
      case Kernel::kPeriodic:
        return fill_periodic(plan, choices);
      case Kernel::kPieces:
        return fill_pieces(plan, facts, choices);
      case Kernel::kTile:
        return fill_tile(plan, facts, choices);
      case Kernel::kTileUnaligned:
        return fill_unaligned(plan, facts, choices);
      case Kernel::kTileSpan:
        return fill_span(plan, facts, choices);
      case Kernel::kTileGather:
        return fill_gather(plan, facts);
      case Kernel::kStaged:
        return fill_staged(plan, choices);
      case Kernel::kStrided:
        return fill_strided(plan);
      case Kernel::kNone:
        break;
    }
    return "there is no such kernel";
  }();
  if (!why_not.empty()) return why_not;
  plan.keep = keeps_input(kernel, p, facts);
  if (plan.grid > kMostBlocks)
    return "it needs " + std::to_string(plan.grid) + " blocks, more than a grid holds";
  if (plan.shared_bytes > facts.shared_per_block) {
    return "it needs " + std::to_string(plan.shared_bytes) +
           " bytes of shared memory a block, and the device has " + std::to_string(facts.shared_per_block);
  }
  return "";
}

bool Choices::gather() {
  if (gather_) return *gather_;
  Plan plan;
  plan.problem = problem_;
  gather_ = fill(plan, Kernel::kTileGather, facts_, *this).empty() && gather_pays(plan, facts_);
  return *gather_;
}

bool Choices::narrow() {
  if (narrow_) return *narrow_;
  Plan plan;
  plan.problem = problem_;
  const bool can_run = fill(plan, Kernel::kNarrow, facts_, *this).empty();
  by_vectors_ = can_run && plan.variant > 0;
  narrow_blocks_ = plan.grid;
  narrow_ = by_vectors_ || (can_run && narrow_pays(problem_, narrow_matrix(problem_)));
  return *narrow_;
}

// Whether a kernel that could run is the fastest of those that follow it.
bool worth(Kernel kernel, const Problem& p, Choices& choices) {
  const int64_t e = p.element_bytes;
  const int width = log2_floor(e);
  // Bytes of a run: staging beats moving shorter ones. H200, 42 permutations of runs of 28 to 252 bytes in 4
  // bytes, and 43 of 24 to 264 in 8, geometric mean: .831 and .863; from 80 bytes on .815 and .863.
  const int64_t shortest_run = p.element_bytes < 4 ? 8 : 68;
  constexpr int64_t kShortestSpan = 4096;  // bytes
  // Nearly: half-empty aligned tiles were .05 to .15 slower than unaligned ones. Full ones beat pieces too:
  // 4096 x 64 x 64 -> 0,2,1, 2 and 4 bytes .99 and .97 (.90 and .94), 100000 x 16 x 16 -> 0,2,1, 16
  // bytes 1.01 (.98).
  const auto tile_is_full = [&] {
    constexpr double kFull = 1.06;
    return needs_two_dense_dims(p).empty() && choices.tile().variant >= 0 && choices.tile().time <= kFull;
  };
  // No other kernel takes less by more than noise, and finding out would take longer than all else here.
  constexpr double kSurely = 1.08;
  // The staged kernel's own measure of time is only between its tiles; what it means in copies. One H200, 110
  // problems an element width; 1 and 2 bytes: 411 and 380, most of them of one aligned side, fraction of a
  // copy .718 and .840 (with the better of both kernels for each: .723 and .845). Up to kNotStaged it is not
  // asked: 1 byte, 192 x 10754 x 65 -> 0,2,1 with 1.33, .88 (staged: .60).
  const bool is_narrow = p.element_bytes < 4;
  constexpr double kNotStaged[] = {1.4, 1.33, 1.18, kSurely, kSurely};
  const double of_staged = is_narrow ? 0.75 : 0.95;
  const auto before_staged = [&](double time) {
    if (time <= kNotStaged[width] || input_step(p) == 0 || !choices.staged().why_not.empty()) return true;
    return time <= choices.staged().time * of_staged;
  };
  // Fewer long pieces leave SMs idle: 512 x 4 x 32 x 2 x 32 x 2 -> 0,2,4,1,3,5 in 2 bytes .66 (staged: .98).
  constexpr int64_t kPiecesOfSm = 4;
  const auto dense_pieces_pay = [&] {
    const Pieces& pieces = choices.pieces();
    const int64_t bytes = pieces.piece * e;
    if (!pieces.is_dense() || bytes < kPiecesPayFrom || bytes > kPiecesPayTo[width]) return false;
    if (bytes > kPiecesCutBytes && pieces.count < kPiecesOfSm * choices.facts().sm_count) return false;
    if (choices.pieces_order().wavefronts > kMostWavefronts[width] || tile_is_full()) return false;
    if (!choices.narrow()) return true;
    // Few long rows: 8000 x 5 x 1000 -> 0,2,1, 2 and 4 bytes .99 (pieces .95 and .94).
    constexpr int64_t kLongRowBytes = 2000;
    const NarrowMatrix n = narrow_matrix(p);
    const bool few = n.rows <= kNarrowFewRows || choices.narrow_by_vectors();
    return e > 1 && (!few || n.cols * e < kLongRowBytes);
  };
  switch (kernel) {
    case Kernel::kRows: {
      if (!output_is_dense(p)) return false;
      if (p.element_bytes == kVector) {
        const RowsTile tile = choose_rows_tile(p);
        const int least_run = tile.planes > 1 ? kRowsLeastRunOfPlanes : kRowsLeastRun;
        if (tile.cols < least_run || tile.vectors() < kRowsLeastVectors) return false;
        return tile.cols > kRowsShortRun || !worth(Kernel::kPeriodic, p, choices);
      }
      const int64_t run = p.dims[last(p)].extent * p.element_bytes;
      int dims = 0;
      if (run < shortest_run || span_of_runs(p, dims) < kShortestSpan) return false;
      return p.element_bytes > 2 || run >= kLongRunBytes || !choices.staged().why_not.empty() ||
             choices.staged().time > staged_runs_time(p.element_bytes);
    }
    case Kernel::kTileSmall: {
      if (!needs_two_dense_dims(p).empty() || choices.small().variant < 0) return false;
      const double time = choices.small().time;
      if (choices.tile().variant >= 0 && time > choices.tile().time) return false;
      const SmallVariant& t = kSmallVariants[choices.small().variant];
      const bool of_any_size = t.most_bytes == 0;
      if (of_any_size && choices.narrow_by_vectors()) return false;
      // H100, problems of 1 to 12 MB drawn at random, narrow over these, geometric means: 1 and 2 bytes, with
      // a block of it for every SM 1.16 and 1.03 (20 and 27), with fewer .95 and .74 (10 and 8); 4 and 8
      // bytes 1.01 and 1.04 (11 and 35).
      constexpr int64_t kNarrowFrom = 1 << 20;
      if (!t.vectors && element_count(p) * e > kNarrowFrom && choices.narrow() &&
          (!is_narrow || choices.narrow_blocks() >= choices.facts().sm_count)) {
        return false;
      }
      // 1 byte, 744 x 56 x 48 -> 0,2,1 with a time of 1.32 .67 (pieces .91), but 640 x 5 x 3 x 48 x 160 ->
      // 0,1,2,4,3 with 1.12 .95 (.77); 2 bytes, 91 x 286 x 24 x 64 -> 1,0,3,2 with 1.26 .83 (.88), but 10 x
      // 960 x 128 x 24 with 1.10 .96 (.90); 4 bytes, 41 x 82 x 3 x 100 x 32 -> 1,0,2,4,3 with 1.09 .84 (.93).
      const double sure = is_narrow ? 1.15 : kSurely;
      if (time > sure && (worth(Kernel::kPeriodic, p, choices) || dense_pieces_pay())) {
        return false;
      }
      // The other kernels' times are of large problems. Up to this one of its own, they are no better on
      // small ones; on those of more bytes up to `nearly`. 20 x 30 x 40 x 50 x 12 -> 4,2,0,3,1, 8 bytes,
      // with 1.24, .71 (.89), a tenth of it .87 (.79).
      const double nearly = e < 8 || !is_beyond_l2(p, choices.facts()) ? 1.12 : 1;
      constexpr double kSmall = 1.35;
      if (!of_any_size && element_count(p) * e <= kManySmallTiles) return time <= kSmall;
      return time <= (of_any_size ? kSurely : nearly) ||
             (time <= choices.unaligned().time && before_staged(time));
    }
    case Kernel::kNarrow:
      return choices.narrow();
    case Kernel::kPeriodic: {
      const Period period = find_period(p);
      if (period.piece == 0 || period.piece * e > kPeriodicPays[width]) return false;
      if (choices.period_order().wavefronts > kMostWavefronts[width] || tile_is_full()) return false;
      return e > 1 || !choices.narrow();
    }
    case Kernel::kPieces: {
      const Pieces& pieces = choices.pieces();
      if (pieces.is_dense()) return dense_pieces_pay();
      const int64_t bytes = pieces.piece * e;
      if (pieces.piece == 0 || bytes < kPiecesPayFrom) return false;
      // Few leave SMs idle, and long ones of narrow elements are few blocks with many registers.
      const int64_t few = (is_narrow ? 3 : 1) * kPiecesOfSm * choices.facts().sm_count;
      if (pieces.count < few || (is_narrow && bytes > kPiecesCutBytes)) return false;
      if (pieces.in.runs > 1 && pieces.in.run_bytes < kPiecesInRun) return false;
      if (pieces.out.runs > 1 && pieces.out.run_bytes < kPiecesOutRun) return false;
      if (choices.pieces_order().wavefronts > kMostWavefronts[width]) return false;
      // Parts of dims that leave in several runs: 2 bytes, 64 x 225 x 225 x 3 -> 0,3,1,2 .92 (staged: .96).
      if (is_narrow && pieces.cut >= 0 && (e == 1 || pieces.out.runs > 1)) return false;
      if (e == 1 && worth(Kernel::kRows, p, choices)) return false;
      return !choices.narrow() && !worth(Kernel::kTile, p, choices) &&
             !worth(Kernel::kTileUnaligned, p, choices);
    }
    case Kernel::kTile: {
      if (!needs_two_dense_dims(p).empty() || choices.tile().variant < 0) return false;
      const double time = choices.tile().time;
      // Of 2 bytes the unaligned kernel takes a little more than it is thought to, or this one less: H100, 40
      // problems of 22 to 60 MB drawn at random .90 (with this .92).
      const double nearly = e == 2 ? 1.02 : 1;
      return tile_is_full() || (time <= choices.unaligned().time * nearly && before_staged(time));
    }
    case Kernel::kTileUnaligned: {
      if (!needs_two_inner_dims(p).empty()) return false;
      // One H200, permutations of 60 to 320 KB: .53 to .71 of a copy where the staged kernel's smaller tiles
      // reach .71 to .76.
      if (p.element_bytes == 1 && choices.unaligned().idles && choices.staged().why_not.empty()) return false;
      const UnalignedChoice& choice = choices.unaligned();
      // Fitted tiles of large problems take more than they are thought to. One H200, 2 bytes, 96 x 8 x 577 x
      // 17 -> 1,3,0,2 with 1.33, .75 (staged: .94); 106 permutations drawn at random .720 (.794), but 17 of 4
      // MB .757 (.706).
      constexpr double kFittedTakes = 1.05;
      constexpr int64_t kLarge = 8 << 20;
      const bool fitted = choice.variant >= 0 && kUnalignedVariants[choice.variant].fitted();
      return before_staged(choice.time *
                           (fitted && e == 2 && element_count(p) * e > kLarge ? kFittedTakes : 1));
    }
    case Kernel::kTileGather:
      return choices.gather() && !worth(Kernel::kPeriodic, p, choices) && !choices.narrow() &&
             !tile_is_full();
    case Kernel::kTileSpan: {
      constexpr int64_t kLeastSpanPiece = 32;  // bytes
      constexpr double kSpanAnyway = 1.4;
      if (!span_pays(p, choices.span(), choices.facts()) || worth(Kernel::kPeriodic, p, choices) ||
          choices.narrow_by_vectors() || tile_is_full()) {
        return false;
      }
      // Few columns, of which lanes read pieces here and there: 2 bytes, 4 x 1000 x 87 x 48 x 4 -> 3,1,4,2,0
      // .43 (unaligned with a time of 1.19: .86).
      return choices.span().tile.cols * e >= kLeastSpanPiece || choices.unaligned().time >= kSpanAnyway;
    }
    default:
      return true;
  }
}

Plan start(const Problem& problem) {
  Plan plan;
  plan.backend = Backend::kCuda;
  plan.problem = normalize(problem);
  return plan;
}

// In order of preference. Strided can run anything.
constexpr Kernel kKernels[] = {Kernel::kCopy,          Kernel::kTileSpan, Kernel::kTileGather,
                               Kernel::kTileSmall,     Kernel::kPeriodic, Kernel::kPieces,
                               Kernel::kRows,          Kernel::kNarrow,   Kernel::kTile,
                               Kernel::kTileUnaligned, Kernel::kStaged,   Kernel::kStrided};

}  // namespace

bool TileMatrix::has_row(int dim) const {
  return std::find(row_dims, row_dims + row_dim_count, dim) != row_dims + row_dim_count;
}

bool TileMatrix::has_col(int dim) const {
  return std::find(col_dims, col_dims + col_dim_count, dim) != col_dims + col_dim_count;
}

TileMatrix tile_matrix(const Problem& p, int row_dims, int col_dims, int step) {
  TileMatrix m;
  const auto take = [&](int wanted, int64_t Dim::* stride, int64_t unit, int* dims, int& count) -> int64_t {
    // A side of this many bytes is long enough not to take more dims than that.
    constexpr int64_t kLongEnough = 256;
    int64_t elements = 1;
    while (count < wanted) {
      if (count >= kFewFusedDims && elements * unit >= kLongEnough) return 0;
      int found = -1;
      for (int d = p.rank - 1; d >= 0 && found < 0; --d) {
        if (p.dims[d].*stride == elements * unit && !m.has(d)) found = d;
      }
      if (found < 0) return 0;
      dims[count++] = found;
      elements *= p.dims[found].extent;
    }
    return wanted == 1 || elements < kFastDivLimit ? elements : 0;
  };
  m.rows = take(row_dims, &Dim::out_stride, p.element_bytes, m.row_dims, m.row_dim_count);
  m.cols = take(col_dims, &Dim::in_stride, step * p.element_bytes, m.col_dims, m.col_dim_count);
  if (m.rows == 0 || m.cols == 0) m.rows = m.cols = 0;
  return m;
}

Period find_period(const Problem& p) {
  Period period;
  if (p.rank < 3 || p.rank > 1 + kMaxPieceDims) return period;
  const int64_t e = p.element_bytes, word = word_bytes(e);
  int64_t piece = 1, span = e;
  for (int d = 1; d < p.rank; ++d) {
    piece *= p.dims[d].extent;
    span += (p.dims[d].extent - 1) * p.dims[d].in_stride;
  }
  const int64_t piece_bytes = piece * e;
  if (piece > kPeriodicMostPiece || p.dims[0].in_stride != piece_bytes ||
      p.dims[0].out_stride != piece_bytes || span != piece_bytes) {
    return period;
  }
  int64_t words = std::lcm(piece_bytes, word) / word;
  if (words > kPeriodicMostSlots * kPeriodicMostThreads) return period;
  words *= std::max<int64_t>(1, kPeriodicThreads / words);
  period.piece = piece;
  period.words = words;
  period.threads = static_cast<int>(round_up(ceil_div(words, ceil_div(words, kPeriodicMostThreads)), 32));
  const int64_t least = std::lcm<int64_t>(words * word, kVector);
  const int64_t wanted = std::max<int64_t>({e == 1 ? kPeriodicChunkBytesNarrow : kPeriodicChunkBytes,
                                            32 * period.threads, kPeriodicChunkPiece * piece});
  period.chunk_bytes = std::max<int64_t>(1, wanted / least) * least;
  return period;
}

namespace {

// Puts a piece's runs of one side into shared memory, so far apart that whole words and vectors of them keep
// apart. Returns the bytes that they take.
int64_t place_runs(const Problem& p, const Pieces& n, int64_t Dim::* stride, int64_t apart, int64_t alike,
                   PieceSide& side) {
  // Sectors are read from L2 twice if not all of one lies alike in shared memory; lines matter less.
  constexpr int64_t kLongRun = 400;
  const auto stride_of = [&](int i) { return p.dims[n.dim[i]].*stride; };
  int order[kMaxPieceDims];  // from the least stride
  for (int i = 0; i < n.dims; ++i) {
    int at = i;
    for (; at > 0 && stride_of(order[at - 1]) > stride_of(i); --at) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t size = p.element_bytes;
  bool in_run = true;
  for (const int* i = order; i < order + n.dims; ++i) {
    in_run = in_run && stride_of(*i) == size;
    int64_t shared = size;
    if (in_run) {
      side.run_bytes = size * n.tile[n.dim[*i]];
    } else {
      const int64_t modulus = side.run_bytes >= kLongRun ? kLine : alike;
      shared += apart;
      shared += (stride_of(*i) - shared) & (modulus - 1);
      side.run_dim[side.run_dims++] = *i;
      side.runs *= n.tile[n.dim[*i]];
    }
    side.shared_stride[*i] = shared;
    size += (n.tile[n.dim[*i]] - 1) * shared;
  }
  return size;
}

}  // namespace

Pieces pieces_of(const Problem& p, const int32_t* tile) {
  const int64_t e = p.element_bytes;
  Pieces n;
  std::copy(tile, tile + p.rank, n.tile);
  n.count = 1;
  int64_t piece = 1;
  for (int d = last(p); d >= 0; --d) {
    n.count *= ceil_div(p.dims[d].extent, int64_t{tile[d]});
    if (tile[d] == 1) continue;
    if (n.dims == kMaxPieceDims) return n;
    if (tile[d] < p.dims[d].extent) n.cut = d;
    n.dim[n.dims++] = d;
    piece *= tile[d];
  }
  const int64_t bytes = piece * e;
  if (e > kPiecesWidest || n.dims < 2 || p.dims[n.dim[0]].out_stride != e) return n;
  if (bytes < kPiecesLeastBytes || bytes > kPiecesMostBytes) return n;
  n.in.run_bytes = n.out.run_bytes = e;
  const int64_t in_bytes = place_runs(p, n, &Dim::in_stride, 2 * kVector, kSector, n.in);
  const int64_t out_bytes = place_runs(p, n, &Dim::out_stride, e < 4 ? 8 : 0, kVector, n.out);
  const int64_t slot_bytes = round_up(std::max(in_bytes, out_bytes + kVector), kVector) + kAsyncAlignment;
  if (2 * slot_bytes + kPieceEntryBytes > kPiecesMostShared) return n;
  n.slot_bytes = static_cast<int>(slot_bytes);
  n.words = n.out.runs * ceil_div(n.out.run_bytes, int64_t{word_bytes(e)});
  constexpr int kMostVariant = static_cast<int>(std::size(kPiecesSlots)) - 1;
  while (n.variant < kMostVariant && n.words > int64_t{kPiecesSlots[n.variant]} * kPiecesThreads) ++n.variant;
  n.threads = static_cast<int>(round_up(ceil_div(n.words, int64_t{kPiecesSlots[n.variant]}), 32));
  if (n.threads <= kPiecesMostThreads) n.piece = piece;
  return n;
}

Pieces find_pieces(const Problem& p) {
  const int64_t e = p.element_bytes;
  Pieces best;
  double best_score = 0;
  const auto consider = [&](const int32_t* tile) {
    constexpr double kLongEnough = 4, kWaste = 1.06;
    constexpr int64_t kBest = 8192;  // bytes
    const Pieces n = pieces_of(p, tile);
    // Parts of one run are a copy's, or those of a longer dense piece.
    if (n.piece == 0 || (n.in.runs == 1 && n.out.runs == 1 && n.cut >= 0)) return;
    if (static_cast<double>(n.count * n.piece) > kWaste * static_cast<double>(element_count(p))) return;
    // The longest dense ones: a part of them has less to do for each place that it finds. Else those of the
    // longest runs.
    const auto length = [](const PieceSide& side, int64_t least) {
      return side.runs == 1 ? kLongEnough : static_cast<double>(side.run_bytes) / static_cast<double>(least);
    };
    const int64_t bytes = n.piece * e;
    double score = std::min({length(n.in, kPiecesInRun), length(n.out, kPiecesOutRun), kLongEnough}) -
                   1e-3 * static_cast<double>(std::abs(bytes - kBest)) / kPiecesMostBytes;
    if (n.is_dense()) score = bytes >= kPiecesPayFrom ? static_cast<double>(bytes) : 0;
    if (best.piece == 0 || score > best_score) best = n, best_score = score;
  };
  // The innermost dims of the output, and those of the input: as many as a piece can have, and then a part.
  for (int64_t Dim::* const stride : {&Dim::out_stride, &Dim::in_stride}) {
    int32_t tile[kMaxDims];
    std::fill(tile, tile + p.rank, 1);
    int64_t piece = 1;
    for (bool whole = true; whole;) {
      int next = last(p);
      while (next >= 0 && (tile[next] > 1 || p.dims[next].*stride != piece * e)) --next;
      if (next < 0) break;
      const int64_t extent = p.dims[next].extent;
      whole = piece * extent * e <= kPiecesMostBytes;
      const int64_t room = whole ? extent : kPiecesCutBytes / (piece * e);
      if (room < 2) break;
      tile[next] = static_cast<int32_t>(ceil_div(extent, ceil_div(extent, room)));
      piece *= tile[next];
      consider(tile);
    }
  }
  return best;
}

NarrowMatrix narrow_matrix(const Problem& p) {
  NarrowMatrix n;
  n.matrix = tile_matrix(p, 1, 1);
  if (n.matrix.rows == 0) return n;
  n.merges = n.matrix.rows <= n.matrix.cols;
  n.rows = std::min(n.matrix.rows, n.matrix.cols);
  n.cols = std::max(n.matrix.rows, n.matrix.cols);
  n.pitch = n.merges ? p.dims[n.row_dim()].in_stride : p.dims[n.row_dim()].out_stride;
  return n;
}

std::string why_not_cuda(Kernel kernel, const Problem& normalised, const DeviceFacts& facts) {
  Plan plan;
  plan.problem = normalised;
  Choices choices(plan.problem, facts);
  return fill(plan, kernel, facts, choices);
}

Plan plan_cuda(const Problem& problem, const DeviceFacts& facts, bool alone) {
  Plan plan = start(problem);
  Choices choices(plan.problem, facts);
  if (fill(plan, Kernel::kNone, facts, choices).empty()) return plan;
  for (const bool only_if_worth : {true, false}) {
    for (const Kernel k : kKernels) {
      // Strided is the last resort: a kernel that is not worth it still beats it.
      if (k == Kernel::kTileSmall && !alone) continue;
      if (only_if_worth && (k == Kernel::kStrided || !worth(k, plan.problem, choices))) continue;
      if (fill(plan, k, facts, choices).empty()) return plan;
    }
  }
  return plan;
}

Plan plan_cuda_forced(const Problem& problem, const DeviceFacts& facts, Kernel kernel) {
  Plan plan = start(problem);
  Choices choices(plan.problem, facts);
  fill(plan, kernel, facts, choices);
  return plan;
}

const std::vector<Kernel>& kernels_cuda() {
  static const std::vector<Kernel> kernels(std::begin(kKernels), std::end(kKernels));
  return kernels;
}

}  // namespace tx
