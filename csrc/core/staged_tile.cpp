// Choosing and laying out the staged kernel's tile.
#include "core/staged_tile.h"

#include <algorithm>
#include <numeric>

#include "core/int_math.h"

namespace tx {
namespace {

constexpr int64_t kVector = 16;

struct Order {
  int count = 0;
  int dims[kMaxDims];  // fastest first
};

// Dims of more than one index by growing input stride, starting with the dense one; expanded dims come last.
Order input_order(const Problem& p, const int32_t* tile) {
  Order order;
  for (int d = p.rank - 1; d >= 0; --d) {
    if (tile == nullptr || tile[d] > 1) order.dims[order.count++] = d;
  }
  std::stable_sort(order.dims, order.dims + order.count, [&](int x, int y) {
    const int64_t a = p.dims[x].in_stride, b = p.dims[y].in_stride;
    return (a == 0 ? INT64_MAX : a) < (b == 0 ? INT64_MAX : b);
  });
  return order;
}

Order output_order(const Problem& p, const int32_t* tile) {
  Order order;
  for (int d = p.rank - 1; d >= 0; --d) {
    if (tile == nullptr || tile[d] > 1) order.dims[order.count++] = d;
  }
  return order;
}

// Grows `tile` along `order` until a run holds `target` elements or ends.
void cover(const Problem& p, const Order& order, int64_t Dim::* stride, int64_t target, int32_t* tile) {
  int64_t run = 1;
  int64_t next_stride = p.element_bytes;
  for (int i = 0; i < std::min(order.count, kMaxStagedChain) && run < target; ++i) {
    const Dim& dim = p.dims[order.dims[i]];
    if (dim.*stride != next_stride) return;
    int64_t take = dim.extent;
    if (run * dim.extent > target) {
      take = ceil_div(target, run);
      // Cut on whole 128-byte lines where the run has several, else into even pieces.
      const int64_t line = 128 / std::gcd<int64_t>(128, run * p.element_bytes);
      take = take >= 2 * line ? take / line * line : ceil_div(dim.extent, ceil_div(dim.extent, take));
    }
    int32_t& t = tile[order.dims[i]];
    t = std::max(t, static_cast<int32_t>(take));
    run *= take;
    next_stride = dim.*stride * dim.extent;
    if (take < dim.extent) return;
  }
}

StagedSide side_of(const Problem& p, const Order& order, int64_t Dim::* stride, const int32_t* tile, bool& fits) {
  StagedSide side;
  int64_t next_stride = p.element_bytes;
  int i = 0;
  for (; i < order.count && side.chain_count < kMaxStagedChain; ++i) {
    const int d = order.dims[i];
    if (p.dims[d].*stride != next_stride) break;
    side.chain[side.chain_count++] = d;
    next_stride = p.dims[d].*stride * p.dims[d].extent;
    if (tile[d] < p.dims[d].extent) {
      ++i;
      break;
    }
  }
  for (; i < order.count; ++i) {
    if (side.axis_count == kMaxStagedAxes) {
      fits = false;
      break;
    }
    side.axes[side.axis_count++] = order.dims[i];
  }
  if (side.chain_count == 0) fits = false;
  return side;
}

int64_t run_bytes(const Problem& p, const StagedSide& side, const int32_t* tile) {
  int64_t bytes = p.element_bytes;
  for (int i = 0; i < side.chain_count; ++i) bytes *= tile[side.chain[i]];
  return bytes;
}

// Part of the machine's copy rate that a tile of these runs can hope for: a run of r bytes costs about as much
// as r + c contiguous ones (sectors shared with neighbours, requests that are not full lines).
double score(const Problem& p, const StagedLayout& layout, const int32_t* tile, int64_t bytes, int64_t wanted) {
  constexpr double kInCost = 24, kOutCost = 40, kTileCost = 1024;
  const auto in = static_cast<double>(run_bytes(p, layout.in, tile));
  const auto out = static_cast<double>(run_bytes(p, layout.out, tile));
  double value = 2 / ((in + kInCost) / in + (out + kOutCost) / out);
  for (int d = 0; d < p.rank; ++d) {
    value *= static_cast<double>(p.dims[d].extent) / static_cast<double>(round_up(p.dims[d].extent, tile[d]));
  }
  const auto size = static_cast<double>(bytes);
  value *= size / (size + kTileCost);
  if (bytes > wanted) value *= 0.97;
  return value;
}

}  // namespace

int input_dense_dim(const Problem& p) {
  for (int d = p.rank - 1; d >= 0; --d) {
    if (p.dims[d].in_stride == p.element_bytes) return d;
  }
  return -1;
}

StagedLayout staged_layout(const Problem& p, const int32_t* tile) {
  StagedLayout layout;
  layout.fits = true;
  layout.in = side_of(p, input_order(p, tile), &Dim::in_stride, tile, layout.fits);
  layout.out = side_of(p, output_order(p, tile), &Dim::out_stride, tile, layout.fits);
  if (!layout.fits) return layout;

  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].extent % tile[d] == 0) continue;
    if (layout.in_cut < 0) {
      layout.in_cut = d;
    } else if (layout.out_cut < 0) {
      layout.out_cut = d;
    } else {
      layout.fits = false;
      return layout;
    }
  }
  int64_t step = p.element_bytes;
  for (int i = 0; i < layout.in.chain_count; ++i) {
    const int d = layout.in.chain[i];
    layout.shared_stride[d] = static_cast<int32_t>(step);
    step *= tile[d];
  }
  // Runs start at the input's residue modulo 16 and are widened to whole granules, which must not meet.
  for (int i = 0; i < layout.in.axis_count; ++i) {
    const int d = layout.in.axes[i];
    const int64_t residue = p.dims[d].in_stride % kVector;
    const bool aligned = residue == 0 && step % kVector == 0 && p.in_address % kVector == 0;
    const int64_t least = aligned ? step : step + kVector - 1;
    const int64_t stride = round_up(std::max<int64_t>(least - residue, 0), kVector) + residue;
    layout.shared_stride[d] = static_cast<int32_t>(stride);
    step = stride * (tile[d] - 1) + step;
  }
  const int64_t total = round_up(step + 2 * kVector, kVector);
  if (total > INT32_MAX / 2) {
    layout.fits = false;
    return layout;
  }
  layout.shared_bytes = staged_padded(static_cast<int32_t>(total), static_cast<int>(p.element_bytes)) + 16;
  return layout;
}

StagedTile choose_staged_tile(const Problem& p, int64_t bytes, int64_t bytes_most) {
  const Order in = input_order(p, nullptr), out = output_order(p, nullptr);
  StagedTile best;
  best.why_not = "no tile of it fits the limits of the staged kernel";
  double best_score = -1;
  int32_t tile[kMaxDims];
  const int64_t least = std::max<int64_t>(64 / p.element_bytes, 1), most = bytes_most / p.element_bytes;
  for (int64_t in_target = least; in_target <= most; in_target *= 2) {
    for (int64_t out_target = least; out_target <= most; out_target *= 2) {
      std::fill(tile, tile + p.rank, 1);
      cover(p, in, &Dim::in_stride, in_target, tile);
      cover(p, out, &Dim::out_stride, out_target, tile);
      int64_t volume = p.element_bytes;
      for (int d = 0; d < p.rank; ++d) volume *= tile[d];
      if (volume > bytes_most) break;
      // Short runs that cannot grow: several of them, so that a block has enough to move.
      for (int d = p.rank - 1; d >= 0; --d) {
        if (tile[d] == 1 && volume * p.dims[d].extent <= bytes / 2) {
          tile[d] = static_cast<int32_t>(p.dims[d].extent);
          volume *= tile[d];
        }
      }
      const StagedLayout layout = staged_layout(p, tile);
      if (!layout.fits || layout.shared_bytes > bytes_most * 5 / 4) continue;
      const double value = score(p, layout, tile, volume, bytes);
      if (value > best_score) {
        best_score = value;
        std::copy(tile, tile + p.rank, best.extent);
        best.why_not.clear();
      }
    }
  }
  int outer = 0;
  for (int d = 0; d < p.rank && best.why_not.empty(); ++d) outer += best.extent[d] < p.dims[d].extent;
  if (outer > 8) best.why_not = "it decodes at most 8 dims of tiles";
  return best;
}

}  // namespace tx
