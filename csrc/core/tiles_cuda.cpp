// The matrices of a CUDA problem and its best tiles: how well each is filled, and what else a tile costs.
#include "core/tiles_cuda.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/int_math.h"

namespace tx {

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

uint64_t output_row_addresses(const Problem& p, const TileMatrix& m) {
  uint64_t bits = p.out_address;
  for (int d = 0; d < p.rank; ++d) {
    if (!m.has_row(d)) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  return bits;
}

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

double filled(int64_t extent, int64_t tile) {
  return static_cast<double>(extent) / static_cast<double>(round_up(extent, tile));
}

int64_t tile_count(const Problem& p, const int32_t* tile) {
  int64_t count = 1;
  for (int d = 0; d < p.rank; ++d) count *= ceil_div(p.dims[d].extent, tile[d]);
  return count;
}

bool is_beyond_l2(const Problem& p, const DeviceFacts& facts) {
  return element_count(p) * p.element_bytes * 3 / 2 > facts.l2_bytes;
}

namespace {

// Every address, pitch and extent that the vectors of a tile touch is a multiple of 16 bytes.
bool tile_is_aligned(const Problem& p, const TileMatrix& m) {
  const uint64_t bits = output_row_addresses(p, m) | input_row_addresses(p, m) |
                        static_cast<uint64_t>((m.rows | m.cols) * p.element_bytes);
  return bits % kVector == 0;
}

// What it costs small tiles, for each side, that they share sectors with others. H100, 12 to 24 MB of rows of
// whole vectors, geometric means of 6 to 12 problems drawn at random, 1, 2, 4, 8 bytes: .84 .85 .89 .93 (the
// better of tile and unaligned: .91 .94 .94 .97), but from 8 to 12 MB .92 .96 .95 .98 (.91 .93 .96 .97). Read
// in 8 bytes they cost nothing within L2: 46 of 12 to 33 MB that went to tile and unaligned 1.04 and 1.01.
// One H200, 8 bytes, 83886 x 2 x 100 -> 2,1,0 .74 (unaligned .93); 257 permutations of 8 and 16 bytes drawn
// at random that it leaves to others, beyond L2, .862 (.905), of smaller problems, 255, .879 (.873).
double split_sectors_of_small(const Problem& p, const TileMatrix& m, bool aligned, bool in_adjoins,
                              bool out_adjoins, const DeviceFacts& facts) {
  constexpr double kShared = 1.1;
  const bool beyond_l2 = is_beyond_l2(p, facts), many = element_count(p) * p.element_bytes > kManySmallTiles;
  const bool reads_count = aligned && p.element_bytes < 8 ? many : beyond_l2;
  const bool writes_count = aligned && p.element_bytes < kVector ? many : beyond_l2;
  return (reads_count && !in_adjoins && input_row_addresses(p, m) % kSector != 0 ? kShared : 1) *
         (writes_count && !out_adjoins && output_row_addresses(p, m) % kSector != 0 ? kShared : 1);
}

}  // namespace

TileChoice choose_small(const Problem& p, const DeviceFacts& facts) {
  constexpr int64_t kThreadsOfSm = 2048;
  constexpr int kBytes = 32, kElements = 4;  // of a thread
  // Of tiles that all run at once the first is taken, or one so much fuller. H100, 2 to 4 MB drawn at random:
  // 1, 2, 4 bytes 1.02 1.03 1.05 (10, 12, 13); of half of that .97 .95 .97, and tiles of so few rows .96 (5).
  constexpr double kFuller = 1.5;
  constexpr int64_t kFullerFrom = 2 << 20;
  constexpr int kFullerRows = 32;
  TileChoice choice;
  double choice_full = 0;
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
    if (t.spans && (!spanned || !whole_lines)) continue;
    if (bytes < t.least_bytes || (t.most_bytes != 0 && bytes > t.most_bytes)) continue;
    const int64_t bands = ceil_div(m.rows, t.rows), strips = ceil_div(m.cols, t.cols);
    if (std::min(bands, strips) > kMostAlongY) continue;
    const double split = split_sectors_of_small(p, m, aligned, in_pitch == in_row && strips == 1,
                                                out_pitch == out_row && bands == 1, facts);
    const int64_t threads = t.rows * t.cols / (t.vectors ? kBytes / t.element_bytes : kElements);
    const bool at_once = bands * strips * matrices * threads <= facts.sm_count * kThreadsOfSm;
    const double full = filled(m.rows, t.rows) * filled(m.cols, t.cols);
    const double time = at_once ? 1 : t.time(full) * split;
    const bool fuller = bytes > kFullerFrom && t.vectors && t.rows >= kFullerRows && time == choice.time &&
                        full > kFuller * choice_full;
    if (choice.variant < 0 || time < choice.time || fuller) {
      choice = {v, m, time};
      choice_full = full;
    }
  }
  return choice;
}

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

// The matrix whose output rows follow one another without a gap: rows = 0 where there is none.
TileMatrix span_matrix(const Problem& p) {
  for (int rows = 1; rows <= kFewFusedDims; ++rows) {
    const TileMatrix m = tile_matrix(p, rows, 1);
    if (m.rows > 0 && p.dims[m.col_dims[0]].out_stride == m.rows * p.element_bytes) return m;
  }
  return TileMatrix();
}

}  // namespace

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

}  // namespace tx
