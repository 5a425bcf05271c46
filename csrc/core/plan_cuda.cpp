// Which CUDA kernel runs a problem, and with what tile: legality first, then the choice.
#include "core/plan_cuda.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "core/int_math.h"
#include "core/normalize.h"
#include "core/staged_tile.h"
#include "core/tuning_cuda.h"

namespace tx {
namespace {

constexpr int64_t kVector = 16;
constexpr int64_t kMostBlocks = 2147483647;  // along x, on every architecture
constexpr int kSimpleThreads = 256;
constexpr int64_t kRowsTileVectors = 1024;
constexpr int kMostOuterDims = 8;

int last(const Problem& p) { return p.rank - 1; }

bool one_run(const Problem& p) {
  return p.rank == 0 || (p.rank == 1 && p.dims[0].in_stride == p.element_bytes &&
                         p.dims[0].out_stride == p.element_bytes);
}

bool output_is_dense(const Problem& p) { return p.rank > 0 && p.dims[last(p)].out_stride == p.element_bytes; }

// Every address, pitch and extent that the vectors of a tile touch is a multiple of 16 bytes.
bool tile_is_aligned(const Problem& p, int col_dim) {
  uint64_t bits = p.in_address | p.out_address;
  for (int d = 0; d < p.rank; ++d) {
    if (d != col_dim) bits |= static_cast<uint64_t>(p.dims[d].in_stride);
    if (d != last(p)) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  bits |= static_cast<uint64_t>(p.dims[col_dim].extent * p.element_bytes);
  bits |= static_cast<uint64_t>(p.dims[last(p)].extent * p.element_bytes);
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
  double filled = 0;
};

// The variant whose tiles are best filled, and give every SM work; between equals, the first, which is the faster
// on large problems.
TileChoice choose_tile(const Problem& p, int col_dim, const DeviceFacts& facts) {
  constexpr double kWorthSmaller = 1.1;
  TileChoice best;
  double best_score = 0;
  for (int v = 0; v < static_cast<int>(std::size(kTileVariants)); ++v) {
    const TileVariant& t = kTileVariants[v];
    if (t.element_bytes != p.element_bytes) continue;
    const int64_t rows = t.out_bytes / t.element_bytes, cols = t.in_bytes / t.element_bytes;
    const double full = filled(p.dims[last(p)].extent, rows) * filled(p.dims[col_dim].extent, cols);
    int64_t blocks = ceil_div(p.dims[last(p)].extent, rows) * ceil_div(p.dims[col_dim].extent, cols);
    for (int d = 0; d < p.rank; ++d) {
      if (d != col_dim && d != last(p)) blocks *= p.dims[d].extent;
    }
    const double score = full * std::min(1.0, static_cast<double>(blocks) / (2.0 * facts.sm_count));
    if (best.variant < 0 || score > best_score * kWorthSmaller) best = {v, full}, best_score = score;
  }
  return best;
}

void fill_simple(Plan& plan, int64_t blocks) {
  plan.grid = blocks;
  plan.block = kSimpleThreads;
}

void fill_tile(Plan& plan, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  const int col_dim = input_dense_dim(p);
  plan.variant = choose_tile(p, col_dim, facts).variant;
  const TileVariant& t = kTileVariants[plan.variant];
  plan.tile[last(p)] = t.out_bytes / t.element_bytes;
  plan.tile[col_dim] = t.in_bytes / t.element_bytes;
  plan.grid = tile_count(p, plan.tile);
  plan.block = t.threads;
  plan.shared_bytes = t.in_bytes / t.element_bytes * t.out_bytes;
}

int unaligned_variant(int64_t element_bytes) {
  for (int v = 0; v < static_cast<int>(std::size(kUnalignedVariants)); ++v) {
    if (kUnalignedVariants[v].element_bytes == element_bytes) return v;
  }
  return -1;
}

// Part of the unaligned tiles' area that holds data.
double unaligned_filled(const Problem& p) {
  const UnalignedVariant& v = kUnalignedVariants[unaligned_variant(p.element_bytes)];
  return filled(p.dims[last(p)].extent, v.rows()) * filled(p.dims[input_dense_dim(p)].extent, v.cols());
}

void fill_unaligned(Plan& plan) {
  const Problem& p = plan.problem;
  plan.variant = unaligned_variant(p.element_bytes);
  const UnalignedVariant& v = kUnalignedVariants[plan.variant];
  const int row_dim = last(p), col_dim = input_dense_dim(p);
  plan.tile[row_dim] = v.rows();
  plan.tile[col_dim] = v.cols();
  const int64_t bands = unaligned_bands(p.dims[row_dim].extent * p.element_bytes, v);
  plan.grid = tile_count(p, plan.tile) / ceil_div(p.dims[row_dim].extent, v.rows()) * bands;
  plan.block = v.warps * 32;
  plan.shared_bytes = v.shared_bytes();
}

void fill_rows(Plan& plan) {
  const Problem& p = plan.problem;
  const int64_t run = p.dims[last(p)].extent;
  plan.tile[last(p)] = static_cast<int32_t>(std::min(run, kRowsTileVectors));
  if (p.rank > 1) {
    const int64_t fit = std::max<int64_t>(1, kRowsTileVectors / plan.tile[last(p)]);
    plan.tile[last(p) - 1] = static_cast<int32_t>(std::min(p.dims[last(p) - 1].extent, fit));
  }
  fill_simple(plan, tile_count(p, plan.tile));
}

void fill_staged(Plan& plan) {
  const Problem& p = plan.problem;
  const StagedTile tile = choose_staged_tile(p, kStagedTileBytes, kStagedTileBytesMost);
  std::copy(tile.extent, tile.extent + p.rank, plan.tile);
  plan.grid = tile_count(p, plan.tile);
  plan.block = kStagedThreads;
  plan.layout = staged_layout(p, plan.tile);
  plan.shared_bytes = plan.layout.shared_bytes;
}

void fill(Plan& plan, Kernel kernel, const DeviceFacts& facts) {
  const Problem& p = plan.problem;
  plan.kernel = kernel;
  std::fill(plan.tile, plan.tile + p.rank, 1);
  switch (kernel) {
    case Kernel::kNone:
      return;
    case Kernel::kTileUnaligned:
      return fill_unaligned(plan);
    case Kernel::kCopy:
      // One vector more than the bytes need: the output may start inside one.
      return fill_simple(plan, ceil_div(element_count(p) * p.element_bytes + kVector, kVector * kSimpleThreads));
    case Kernel::kRows:
      return fill_rows(plan);
    case Kernel::kTile:
      return fill_tile(plan, facts);
    case Kernel::kStaged:
      return fill_staged(plan);
    case Kernel::kStrided:
      return fill_simple(plan, ceil_div(element_count(p), kSimpleThreads));
  }
}

Kernel choose(const Problem& p, const DeviceFacts& facts) {
  // Below these, half-empty tiles cost more than the staged kernel.
  constexpr double kWorthTiling = 0.8, kWorthTilingUnaligned = 0.7;
  constexpr int64_t kWorthMovingDirectly = 8;  // bytes a thread; narrower, the staged kernel's vectors win
  if (p.rank > 0 && p.dims[0].extent == 0) return Kernel::kNone;
  if (one_run(p)) return Kernel::kCopy;
  const auto legal = [&](Kernel k) { return why_not_cuda(k, p, facts).empty(); };
  const bool runs_stay_whole = legal(Kernel::kRows);
  if (runs_stay_whole && p.element_bytes >= kWorthMovingDirectly) return Kernel::kRows;
  if (legal(Kernel::kTile) && choose_tile(p, input_dense_dim(p), facts).filled >= kWorthTiling) return Kernel::kTile;
  if (legal(Kernel::kTileUnaligned) && unaligned_filled(p) >= kWorthTilingUnaligned) return Kernel::kTileUnaligned;
  if (legal(Kernel::kStaged)) return Kernel::kStaged;
  if (runs_stay_whole) return Kernel::kRows;
  return Kernel::kStrided;
}

Plan start(const Problem& problem) {
  Plan plan;
  plan.backend = Backend::kCuda;
  plan.problem = normalize(problem);
  return plan;
}

std::string outer_dims_rule(const Problem& p, int inside) {
  if (p.rank - inside <= kMostOuterDims) return "";
  std::ostringstream s;
  s << "it decodes at most " << kMostOuterDims << " dims beyond its tile, and this problem has " << p.rank - inside;
  return s.str();
}

std::string why_not_2d(const Problem& p) {
  if (!output_is_dense(p)) return "it needs a dim that is contiguous in the output";
  const int col_dim = input_dense_dim(p);
  if (col_dim >= 0 && col_dim != last(p)) return "";
  return "it needs a dim, other than the output's innermost, that is contiguous in the input";
}

}  // namespace

std::string why_not_cuda(Kernel kernel, const Problem& p, const DeviceFacts&) {
  const bool empty = p.rank > 0 && p.dims[0].extent == 0;
  if (kernel == Kernel::kNone) return empty ? "" : "it moves nothing, and this problem has elements";
  if (empty) return "this problem has no elements";
  const int col_dim = input_dense_dim(p);
  switch (kernel) {
    case Kernel::kNone:
    case Kernel::kStrided:
      return "";
    case Kernel::kCopy:
      return one_run(p) ? "" : "it needs one run that is contiguous on both sides after normalising";
    case Kernel::kRows:
      if (!output_is_dense(p) || p.dims[last(p)].in_stride != p.element_bytes) {
        return "it needs one innermost dim that is contiguous on both sides";
      }
      return outer_dims_rule(p, 2);
    case Kernel::kTile:
      if (!why_not_2d(p).empty()) return why_not_2d(p);
      if (!tile_is_aligned(p, col_dim)) {
        return "it needs addresses, pitches and both inner extents to be multiples of 16 bytes";
      }
      return outer_dims_rule(p, 2);
    case Kernel::kTileUnaligned:
      if (!why_not_2d(p).empty()) return why_not_2d(p);
      if (unaligned_variant(p.element_bytes) < 0) return "it has no variant for 16-byte elements";
      if (p.dims[last(p)].extent < kVector / p.element_bytes) {
        return "it needs at least " + std::to_string(kVector / p.element_bytes) + " elements along the output row, got " +
               std::to_string(p.dims[last(p)].extent);
      }
      return outer_dims_rule(p, 2);
    case Kernel::kStaged: {
      if (!output_is_dense(p)) return "it needs a dim that is contiguous in the output";
      if (col_dim < 0) return "it needs a dim that is contiguous in the input";
      const StagedTile tile = choose_staged_tile(p, kStagedTileBytes, kStagedTileBytesMost);
      return tile.why_not;
    }
  }
  return "unknown kernel";
}

Plan plan_cuda(const Problem& problem, const DeviceFacts& facts) {
  Plan plan = start(problem);
  fill(plan, choose(plan.problem, facts), facts);
  return plan;
}

Plan plan_cuda_forced(const Problem& problem, const DeviceFacts& facts, Kernel kernel) {
  Plan plan = start(problem);
  fill(plan, kernel, facts);
  return plan;
}

const std::vector<Kernel>& kernels_cuda() {
  static const std::vector<Kernel> kernels = {Kernel::kCopy,          Kernel::kRows,   Kernel::kTile,
                                              Kernel::kTileUnaligned, Kernel::kStaged, Kernel::kStrided};
  return kernels;
}

}  // namespace tx
