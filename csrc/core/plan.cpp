// Names, comparison and printing of a Plan.
#include "core/plan.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "core/pieces_cpu.h"
#include "core/tiles_cpu.h"

namespace tx {
namespace {

constexpr Kernel kAllKernels[] = {
    Kernel::kNone,       Kernel::kCopy,     Kernel::kRows,   Kernel::kTileSmall,     Kernel::kTile,
    Kernel::kNarrow,     Kernel::kPeriodic, Kernel::kPieces, Kernel::kTileUnaligned, Kernel::kTileSpan,
    Kernel::kTileGather, Kernel::kStaged,   Kernel::kStrided};

}  // namespace

bool operator==(const Plan& a, const Plan& b) {
  if (!(a.problem == b.problem)) return false;
  for (int d = 0; d < a.problem.rank; ++d) {
    if (a.tile[d] != b.tile[d]) return false;
  }
  return a.backend == b.backend && a.kernel == b.kernel && a.grid == b.grid && a.block == b.block &&
         a.shared_bytes == b.shared_bytes && a.group == b.group && a.fused_rows == b.fused_rows &&
         a.fused_cols == b.fused_cols && a.first_beyond == b.first_beyond && a.word_step == b.word_step &&
         a.keep == b.keep && a.release == b.release && a.threads == b.threads && a.stores == b.stores &&
         a.order == b.order && a.carries == b.carries && a.prefetches == b.prefetches &&
         a.prefetches_l1 == b.prefetches_l1 && a.edge_rows == b.edge_rows && std::strcmp(a.isa, b.isa) == 0;
}

const char* name(Backend backend) { return backend == Backend::kCpu ? "cpu" : "cuda"; }

const char* name(Stores stores) { return stores == Stores::kOrdinary ? "ordinary" : "streaming"; }

const char* name(TileOrder order) {
  switch (order) {
    case TileOrder::kInTurn:
      return "in_turn";
    case TileOrder::kCrosswise:
      return "crosswise";
    case TileOrder::kDiagonal:
      return "diagonal";
    case TileOrder::kInBlocks:
      return "in_blocks";
  }
  return "unknown";
}

const char* name(Kernel kernel) {
  switch (kernel) {
    case Kernel::kNone:
      return "none";
    case Kernel::kCopy:
      return "copy";
    case Kernel::kRows:
      return "rows";
    case Kernel::kTileSmall:
      return "tile_small";
    case Kernel::kTile:
      return "tile";
    case Kernel::kNarrow:
      return "narrow";
    case Kernel::kPeriodic:
      return "periodic";
    case Kernel::kPieces:
      return "pieces";
    case Kernel::kTileUnaligned:
      return "tile_unaligned";
    case Kernel::kTileSpan:
      return "tile_span";
    case Kernel::kTileGather:
      return "tile_gather";
    case Kernel::kStaged:
      return "staged";
    case Kernel::kStrided:
      return "strided";
  }
  return "unknown";
}

std::optional<Kernel> kernel_from_name(const std::string& wanted) {
  for (Kernel k : kAllKernels) {
    if (wanted == name(k)) return k;
  }
  return std::nullopt;
}

std::string to_string(const Plan& plan) {
  std::ostringstream s;
  s << "Plan(backend=" << name(plan.backend) << ", kernel=" << name(plan.kernel) << ", "
    << to_string(plan.problem) << ", tile=[";
  for (int d = 0; d < plan.problem.rank; ++d) s << (d ? ", " : "") << plan.tile[d];
  s << "]";
  if (is_fused(plan)) s << ", fused=[" << plan.fused_rows << ", " << plan.fused_cols << "]";
  if (plan.backend == Backend::kCuda) {
    s << ", grid=" << plan.grid << ", block=" << plan.block << ", shared_bytes=" << plan.shared_bytes;
    if (plan.kernel == Kernel::kTile || plan.kernel == Kernel::kTileUnaligned) {
      s << ", group=" << plan.group;
      if (plan.first_beyond >= 0) s << ", first_beyond=" << plan.first_beyond;
    }
    if (plan.keep) s << ", keep=True";
    if (plan.release) s << ", release=True";
  } else {
    // Tiles follow one another in the output's order; within one, its rows and columns are walked.
    s << ", loops=[";
    for (int d = 0; d < plan.problem.rank; ++d) s << (d ? ", " : "") << d;
    s << "], in_tile=[";
    const Problem& p = plan.problem;
    const bool pieces = plan.kernel == Kernel::kPieces;
    int in_tile[kMaxDims], count = 0;
    if (pieces) {
      const PieceDims piece = piece_dims(plan);
      const uint64_t dims = piece_dim_bits(p, piece);
      for (int d = p.rank - 1; d >= 0; --d) {
        if ((dims >> d & 1) != 0) in_tile[count++] = d;
      }
      const BatchDims beyond = batch_dims(p, piece);
      for (int k = 0; k < beyond.count; ++k) {
        if (k == 0 || plan.tile[beyond.dims[k]] > 1) in_tile[count++] = beyond.dims[k];
      }
    } else {
      for (int k = 1; k <= std::min(plan.fused_cols, p.rank); ++k) in_tile[count++] = p.rank - k;
      int row = p.rank == 0 ? -1 : tile_row_dim(plan.kernel, p);
      for (int k = 0; k < plan.fused_rows && row >= 0; ++k, row = next_row_dim(p, row))
        in_tile[count++] = row;
    }
    for (; count > 0; --count) s << in_tile[count - 1] << (count > 1 ? ", " : "");
    s << "], threads=" << plan.threads << ", stores=" << name(plan.stores);
    if (plan.order != TileOrder::kInTurn) s << ", order=" << name(plan.order);
    if (plan.carries) s << ", carries=True";
    if (plan.prefetches) s << ", prefetches=True";
    if (plan.prefetches_l1) s << ", prefetches_l1=True";
    if (plan.edge_rows > 0) s << ", edge_rows=" << plan.edge_rows;
    s << ", isa=" << plan.isa;
  }
  s << ")";
  return s.str();
}

}  // namespace tx
