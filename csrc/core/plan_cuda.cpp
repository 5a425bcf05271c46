// Which CUDA kernel runs a problem: legality first, then the choice.
#include "core/plan_cuda.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "core/int_math.h"
#include "core/normalize.h"
#include "core/pieces_cuda.h"
#include "core/staged_tile.h"
#include "core/tiles_cuda.h"
#include "core/tuning_cuda.h"

namespace tx {
namespace {

static_assert(kAddressAlignment % kVector == 0 && kAddressAlignment % kSector == 0,
              "all that a plan asks for");
constexpr int64_t kMostBlocks = 2147483647;  // along x, on every architecture (y and z stop at 65535)

bool one_run(const Problem& p) {
  return p.rank == 0 ||
         (p.rank == 1 && p.dims[0].in_stride == p.element_bytes && p.dims[0].out_stride == p.element_bytes);
}

bool output_is_dense(const Problem& p) { return p.rank > 0 && p.dims[last(p)].out_stride == p.element_bytes; }

// Where lanes' rows seldom meet in banks of shared memory, and tiles have something to do for every SM.
bool gather_pays(const Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  const TileMatrix m = tile_matrix(p, plan.fused_rows, plan.fused_cols);
  constexpr int64_t kMostMeet = 4, kBanks = 32;
  return std::gcd(m.cols, kBanks) <= kMostMeet &&
         plan.tile[m.row_dims[0]] * m.cols * p.element_bytes >= kGatherLeastBytes &&
         static_cast<double>(plan.grid) >= kGatherLeastTiles * facts.sm_count;
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

WhyNot fill_copy(Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  if (!one_run(p)) return "it needs one run that is contiguous on both sides after normalising";
  const int64_t bytes = element_count(p) * p.element_bytes;
  const bool aligned = (p.in_address | p.out_address) % kVector == 0;
  const double part = static_cast<double>(bytes) / facts.l2_bytes;
  plan.variant = aligned && part > kShortCopyFrom && part <= kShortCopyTo;
  if (plan.variant > 0) {
    plan.grid = ceil_div(bytes, kVector * kShortCopyThreads * kShortCopyVectors);
    plan.block = kShortCopyThreads;
  } else {
    // One vector more than the bytes need: the output may start inside one.
    plan.grid = ceil_div(bytes + kVector, kVector * kSimpleThreads);
    plan.block = kSimpleThreads;
  }
  return "";
}

WhyNot fill_rows(Plan& plan) {
  const Problem& p = plan.problem;
  if (!output_is_dense(p) || p.dims[last(p)].in_stride != p.element_bytes) {
    return "it needs an innermost dim that is contiguous on both sides";
  }
  if (p.element_bytes > kRunsWidest) {
    return "it moves elements of 1 or 2 bytes, got " + std::to_string(p.element_bytes) +
           ", which go straight from load to store";
  }
  const int64_t run = p.dims[last(p)].extent, run_bytes = run * p.element_bytes;
  const int64_t span = span_of_runs(p, plan.fused_rows);
  plan.variant = run_bytes >= kLongRunBytes;
  plan.block = runs_threads(plan.variant > 0);
  plan.tile[last(p)] = static_cast<int32_t>(std::min(run, int64_t{kRunsChunkBytes} / p.element_bytes));
  plan.grid = element_count(p) * p.element_bytes / span * runs_chunks(span);
  plan.shared_bytes = static_cast<int>(std::min(kRunsChunkBytes / run_bytes + 2, span / run_bytes)) * 8;
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

// Elements of the input so far apart still are neighbours, of which a sector has some.
constexpr int kStridedNear = 4;

bool has_repeats(const Problem& p) {
  return std::any_of(p.dims, p.dims + p.rank, [](const Dim& dim) { return dim.in_stride == 0; });
}

// Whether the strided kernel writes words of several elements: where the output is one run of whole words,
// and neighbours lie near in the input, in runs that fill words, or are long. It pays in 1 byte, and where
// elements are repeated. H200, problems of more elements than threads, by words over several elements a
// thread, 1 to 8 bytes
//   elements repeated                             1.40 1.17 1.24 1.03 (59 61 20 28)
//   rows of elements, of every second and third   1.31 1.14 1.03 1.00 (110 127 63 73)
//   nothing repeated                              1.08 .98 1.01 .99 (454 542 294 279)
bool writes_words(const Problem& p) {
  const int64_t e = p.element_bytes;
  if (p.rank == 0 || e > kStridedWordsWidest || (e > 1 && !has_repeats(p))) return false;
  const Dim& inner = p.dims[last(p)];
  if (inner.in_stride > kStridedNear * e) return false;
  constexpr int64_t kLong = 64;
  const int64_t word = strided_variant(static_cast<int>(e), kStridedWord).word_bytes, elements = word / e;
  if (inner.extent < elements || (e >= 4 && inner.extent < kLong && inner.extent % elements != 0))
    return false;
  int64_t span = e;
  for (int d = last(p); d >= 0 && p.dims[d].out_stride == span; --d) span *= p.dims[d].extent;
  return span == element_count(p) * e && p.out_address % word == 0;
}

WhyNot fill_strided(Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  const int64_t count = element_count(p);
  plan.block = kSimpleThreads;
  if (count >= kFastDivLimit) {
    plan.grid = std::min(ceil_div(count, kSimpleThreads), kMostBlocks);  // beyond it threads loop
    return "";
  }
  constexpr int64_t kThreadsOfSm = 2048;
  if (count > kThreadsOfSm * facts.sm_count) plan.variant = writes_words(p) ? kStridedWord : kStridedSeveral;
  const StridedVariant v = strided_variant(static_cast<int>(p.element_bytes), plan.variant);
  plan.grid = ceil_div(count * p.element_bytes, v.word_bytes * v.words * kSimpleThreads);
  return "";
}

// Whether L2 is asked to keep lines of the input longer than those of the output, and how long.
void keep_input(Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  bool releases = true;  // knows how to
  switch (plan.kernel) {
    case Kernel::kStrided:
      if (!strided_keeps(static_cast<int>(p.element_bytes), plan.variant) || has_repeats(p)) return;
      releases = false;
      break;
    case Kernel::kTileUnaligned:
    case Kernel::kTileSpan:  // tiles share lines, and halos
      plan.keep = true;
      return;
    case Kernel::kCopy:
      if (plan.variant > 0) return;
      break;
    case Kernel::kTileSmall:
      if (!kSmallVariants[plan.variant].keeps()) return;
      break;
    case Kernel::kTile:
    case Kernel::kNarrow:
    case Kernel::kPeriodic:
      break;
    default:
      releases = false;
  }
  int64_t bytes = p.element_bytes;
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].in_stride != 0) bytes *= p.dims[d].extent;
  }
  const double times_l2 = static_cast<double>(bytes) / facts.l2_bytes;
  plan.keep = times_l2 >= (releases ? kKeepReleasedTimesL2 : kKeepTimesL2);
  plan.release = plan.keep && releases && times_l2 < kKeepTimesL2;
}

WhyNot fill(Plan& plan, Kernel kernel, const DeviceFacts& facts, Choices& choices) {
  const Problem& p = plan.problem;
  plan.kernel = kernel;
  plan.variant = plan.block = plan.shared_bytes = 0;
  plan.grid = plan.group = 0;
  plan.first_beyond = -1;
  plan.keep = plan.release = false;
  plan.fused_rows = plan.fused_cols = plan.step = plan.word_step = 1;
  std::fill(plan.tile, plan.tile + p.rank, 1);
  const bool empty = p.rank > 0 && p.dims[0].extent == 0;
  if (kernel == Kernel::kNone) return empty ? "" : "it moves nothing, and this problem has elements";
  if (empty) return "this problem has no elements";
  const WhyNot why_not = [&]() -> WhyNot {
    switch (kernel) {
      case Kernel::kCopy:
        return fill_copy(plan, facts);
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
        return fill_strided(plan, facts);
      case Kernel::kNone:
        break;
    }
    return "there is no such kernel";
  }();
  if (!why_not.empty()) return why_not;
  keep_input(plan, facts);
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

// Whether two neighbours of some, side by side in the input, go to planes: two channels of more.
bool has_two_planes(const Problem& p) {
  constexpr int kNear = 8;  // elements
  if (p.element_bytes > 4 || !needs_two_dense_dims(p).empty()) return false;
  const int64_t step = p.dims[last(p)].in_stride;
  return p.dims[input_dense_dim(p)].extent == 2 && step > 2 * p.element_bytes &&
         step <= kNear * p.element_bytes;
}

constexpr int64_t kLanes = 32;  // of a warp

// Sectors of the input that a warp touches whose lanes have an element each.
int warp_sectors(const Problem& p) {
  int64_t sector[kLanes];
  const int64_t lanes = std::min(kLanes, element_count(p));
  for (int64_t lane = 0; lane < lanes; ++lane) {
    int64_t rest = lane, offset = 0;
    for (int d = last(p); d >= 0 && rest > 0; --d) {
      offset += rest % p.dims[d].extent * p.dims[d].in_stride;
      rest /= p.dims[d].extent;
    }
    sector[lane] = offset / kSector;
  }
  std::sort(sector, sector + lanes);
  return static_cast<int>(std::unique(sector, sector + lanes) - sector);
}

// Whether elements go faster from load to store than by way of shared memory, however many: those one again
// and again, every second to fourth, and slices, where lanes touch few sectors, or staging takes long. Staged
// -> so, H200, 1182 problems of 12 to 64 MB drawn at random, of which it had 522
//   one again and again, 1, 4 and 16 bytes      .52 .77 1.76 -> .90 1.74 2.41 (5 2 4)
//   every second to fourth, 1 to 16 bytes       .65 .61 .66 .76 .72 -> .75 .71 .78 .89 .85 (11 30 48 58 35)
//   of few sectors, two planes, 1 to 16 bytes   .23 .39 .55 .82 .97 -> .32 .60 .76 1.00 1.09 (2 6 12 15 11)
// What has no gaps on either side, of few sectors, 16 bytes 1.13 -> 1.16 (31), but 5 x 12000000 1.58 -> 1.53.
// What is repeated, others of more than some MB, times as fast so: 4 bytes of fewer than 16 sectors 1.28
// (37), of up to 31 1.39 (6), 8 bytes 1.84 1.15 (5 5), 16 bytes 1.22 (19); of 32 in 4 and 8 bytes .81 .94 (42
// 32).
bool elements_beat_staging(const Problem& p, Choices& choices) {
  if (!output_is_dense(p) || input_step(p) == 0 || !choices.staged().why_not.empty()) return false;
  constexpr int64_t kRepeatedFrom[] = {64, 8, 1, 1, 1}, kSteppedFrom = 256;  // elements of a row
  constexpr int kFewSectors[] = {12, 12, 16, 24, 29};
  constexpr double kStagedLong[] = {6.3, 3, 1.6, 0, 0};
  constexpr int64_t kNoGaps = 64 << 20;  // bytes
  const int64_t e = p.element_bytes, extent = p.dims[last(p)].extent;
  const int64_t step = p.dims[last(p)].in_stride, bytes = element_count(p) * e;
  const int width = log2_floor(e);
  const bool repeated = has_repeats(p);
  const bool nearest = std::all_of(
      p.dims, p.dims + p.rank, [&](const Dim& dim) { return dim.in_stride == 0 || dim.in_stride >= step; });
  if (step == 0) return (writes_words(p) || e >= 4) && extent >= kRepeatedFrom[width];
  // Of 1 byte short rows are staged, and every second byte.
  const bool steps_pay = e > 1 || (extent >= kSteppedFrom && (repeated || step > 2 * e));
  if (step > e && step <= kStridedNear * e && nearest && steps_pay) return true;
  if (has_two_planes(p)) return true;
  if (repeated && e >= 4) return e == 16 || warp_sectors(p) < kLanes;
  return (span_bytes(p, &Dim::in_stride) > bytes || (e == 16 && bytes <= kNoGaps)) && !repeated &&
         choices.staged().time >= kStagedLong[width] && warp_sectors(p) <= kFewSectors[width];
}

// Whether unaligned tiles beat small ones that move an element at a time: these take as long as they are
// many, however empty, where not all of them run at once. One H200, 5700 problems drawn at random that had
// small tiles, by the MiB that these cover, times as fast by unaligned ones that are thought to fit, in L2
// and not
//   1 byte, 32 x 32    2 to 2.5 1.14 1.12, 3 to 3.5 1.37 1.30, 4 to 5 1.61 1.48 (168 448 516)
//           64 x 64    2 to 2.5 .91 .90, 3 to 3.5 1.05 1.00, 5 to 6 1.31 1.18 (85 114 15)
//   2 bytes, 32 x 32   2.5 to 3 .92 .91, 4 to 5 1.10 1.04, 6 to 8 1.27 1.27 (31 38 47)
//            64 x 32   4 to 5 .97 .90, 5 to 6 1.07 1.00, 6 to 8 1.13 1.04 (214 187 111)
//   4 bytes, 32 x 32   6 to 8 1.05 .94, 8 to 11 1.13 1.07, 15 to 20 1.47 1.23 (47 82 68)
//            64 x 32   11 to 15 1.00 .98, 15 to 20 1.09 1.01, 20 to 40 1.34 1.12 (340 109 23)
// and of 8 bytes .91 .98 (587).
bool unaligned_beats_small(const Problem& p, Choices& choices) {
  constexpr int64_t kCovered[3][2] = {{2 << 20, 3 << 20}, {7 << 19, 5 << 20}, {8 << 20, 15 << 20}};
  constexpr double kFits[3] = {2.2, 1.4, 1.2};
  const SmallVariant& t = kSmallVariants[choices.small().variant];
  const TileMatrix& m = choices.small().matrix;
  if (t.vectors || p.element_bytes > 4) return false;
  const int width = log2_floor(p.element_bytes);
  const double whole = filled(m.rows, t.rows) * filled(m.cols, t.cols);
  const double covered = static_cast<double>(element_count(p) * p.element_bytes) / whole;
  return covered > static_cast<double>(kCovered[width][t.rows > 32]) &&
         choices.unaligned().time <= kFits[width];
}

// Whether a kernel that could run is the fastest of those that follow it.
bool worth(Kernel kernel, const Problem& p, Choices& choices) {
  const int64_t e = p.element_bytes, problem_bytes = element_count(p) * e;
  const int width = log2_floor(e);
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
  // Tiles of a few elements, where the staged kernel has none. H200, slices drawn at random, by how many
  // times as long as a copy they are thought to take: how many they take, and the strided kernel
  //   3 to 5 (11)     3.1   5.0
  //   5 to 8 (12)     3.3   3.9
  //   9 and 12 (2)    3.3   3.3
  //   13 to 100 (9)   14    3.2
  //   more (19)       154   3.9
  const auto tiles_are_tiny = [&] {
    constexpr double kStridedTakes = 10;
    return needs_two_inner_dims(p).empty() && choices.unaligned().time > kStridedTakes &&
           !choices.staged().why_not.empty();
  };
  // Runs of 4-byte elements and more: shorter ones of large problems are staged sooner (H200, 2000 x 1500 x 3
  // -> 1,0,2 in 4, 8 and 16 bytes 1.16 1.31 1.38, by elements .92 1.16 1.35).
  const auto moves_runs = [&] {
    constexpr int64_t kShortestRun = 68;  // bytes
    return e >= 4 && p.rank > 0 && p.dims[last(p)].in_stride == e &&
           p.dims[last(p)].extent * e >= kShortestRun;
  };
  const auto goes_by_elements = [&] { return moves_runs() || elements_beat_staging(p, choices); };
  switch (kernel) {
    case Kernel::kRows: {
      constexpr int64_t kShortestRun = 8;  // bytes: staging beats moving shorter ones
      if (e > kRunsWidest || !output_is_dense(p)) return false;
      const int64_t run = p.dims[last(p)].extent * e;
      int dims = 0;
      if (run < kShortestRun || span_of_runs(p, dims) < kShortestSpan) return false;
      return run >= kLongRunBytes || !choices.staged().why_not.empty() ||
             choices.staged().time > staged_runs_time(e);
    }
    case Kernel::kTileSmall: {
      if (!needs_two_dense_dims(p).empty() || choices.small().variant < 0) return false;
      const double time = choices.small().time;
      if (choices.tile().variant >= 0 && time > choices.tile().time) return false;
      const SmallVariant& t = kSmallVariants[choices.small().variant];
      if ((t.spans || time > kSurely) && choices.narrow_by_vectors()) return false;
      if (unaligned_beats_small(p, choices)) return false;
      // H100, problems of 1 to 12 MB drawn at random, narrow over these, geometric means: 1 and 2 bytes, with
      // a block of it for every SM 1.16 and 1.03 (20 and 27), with fewer .95 and .74 (10 and 8); 4 and 8
      // bytes 1.01 and 1.04 (11 and 35).
      constexpr int64_t kNarrowFrom = 1 << 20;
      if (!t.vectors && problem_bytes > kNarrowFrom && choices.narrow() &&
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
      if (!t.spans && problem_bytes <= kManySmallTiles) return time <= kSmall;
      return time <= (t.spans ? kSurely : nearly) ||
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
      if (moves_runs() && p.rank > 1 && p.dims[last(p) - 1].in_stride == 0) return false;
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
      // Two channels of 4 and 6 in 1 byte .34 .26 -> .61 .38, of 6 in 2 bytes .42 -> .52.
      if (!needs_two_inner_dims(p).empty() || tiles_are_tiny() || (e <= 2 && has_two_planes(p))) return false;
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
      return before_staged(choice.time * (fitted && e == 2 && problem_bytes > kLarge ? kFittedTakes : 1));
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
    case Kernel::kStaged:
      return !goes_by_elements();
    case Kernel::kStrided:
      return tiles_are_tiny() || goes_by_elements();
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

// Whether elements go faster from load to store than by the kernel of the plan, which is what the problem
// would else run.
bool beaten_by_elements(const Plan& plan) {
  const Problem& p = plan.problem;
  const int width = log2_floor(p.element_bytes);
  const auto is_up_to = [&](const int64_t (&bytes)[kWidths]) {
    return element_count(p) * p.element_bytes <= bytes[width];
  };
  const auto tile_filled = [&](int d) { return filled(p.dims[d].extent, plan.tile[d]); };
  switch (plan.kernel) {
    case Kernel::kTileSmall:
      return tile_filled(last(p)) * tile_filled(input_dense_dim(p)) < kSmallLeastFilled;
    case Kernel::kRows:
      return is_up_to(kRowsFrom);
    case Kernel::kPeriodic:
      return is_up_to(kPeriodicFrom);
    case Kernel::kPieces:
      return is_up_to(kPiecesFrom);
    case Kernel::kTileUnaligned:
      return is_up_to(kUnalignedFrom);
    case Kernel::kStaged:
      return is_up_to(kStagedFrom);
    default:
      return false;
  }
}

// In order of preference. Strided can run anything.
constexpr Kernel kKernels[] = {Kernel::kCopy,          Kernel::kTileSpan, Kernel::kTileGather,
                               Kernel::kTileSmall,     Kernel::kPeriodic, Kernel::kPieces,
                               Kernel::kRows,          Kernel::kNarrow,   Kernel::kTile,
                               Kernel::kTileUnaligned, Kernel::kStaged,   Kernel::kStrided};

}  // namespace

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
      // Where strided is not worth it, a kernel that is not either still beats it, but for pieces (H200, 27
      // views of 1 byte drawn at random, twice as fast by elements).
      if (k == Kernel::kTileSmall && !alone) continue;
      if (k == Kernel::kPieces && !only_if_worth) continue;
      if (only_if_worth && !worth(k, plan.problem, choices)) continue;
      if (!fill(plan, k, facts, choices).empty()) continue;
      if (alone && beaten_by_elements(plan)) fill(plan, Kernel::kStrided, facts, choices);
      return plan;
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
