// Choosing and laying out the staged kernel's tile.
#include "core/staged_tile.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/int_math.h"
#include "core/tuning_cuda.h"

namespace tx {
namespace {

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

// Bytes between neighbours of a run: input_step() of the input's, one element of the output's.
int64_t step_of(const Problem& p, int64_t Dim::* stride) {
  return stride == &Dim::in_stride ? input_step(p) : p.element_bytes;
}

// Grows `tile` along `order` until a run holds `target` elements or ends.
void cover(const Problem& p, const Order& order, int64_t Dim::* stride, int64_t target, int32_t* tile) {
  int64_t run = 1;
  int64_t next_stride = step_of(p, stride);
  for (int i = 0; i < std::min(order.count, kMaxStagedChain) && run < target; ++i) {
    const Dim& dim = p.dims[order.dims[i]];
    if (dim.*stride != next_stride) return;
    int64_t take = dim.extent;
    if (run * dim.extent > target) {
      take = ceil_div(target, run);
      // Cut on whole 128-byte lines where the run has several, else into even pieces.
      const int64_t line = kLine / std::gcd(kLine, run * p.element_bytes);
      take = take >= 2 * line ? take / line * line : ceil_div(dim.extent, ceil_div(dim.extent, take));
    }
    int32_t& t = tile[order.dims[i]];
    t = std::max(t, static_cast<int32_t>(take));
    run *= take;
    next_stride = dim.*stride * dim.extent;
    if (take < dim.extent) return;
  }
}

StagedSide side_of(const Problem& p, const Order& order, int64_t Dim::* stride, const int32_t* tile,
                   bool& fits) {
  StagedSide side;
  int64_t next_stride = step_of(p, stride);
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

// Of `step` bytes an element.
int64_t run_bytes(int64_t step, const StagedSide& side, const int32_t* tile) {
  int64_t bytes = step;
  for (int i = 0; i < side.chain_count; ++i) bytes *= tile[side.chain[i]];
  return bytes;
}

// Part of the machine's copy rate that a tile of these runs can hope for: a run of r bytes costs about as
// much as r + c contiguous ones (sectors shared with neighbours, requests that are not full lines).
double score(const Problem& p, const StagedLayout& layout, const int32_t* tile, int64_t bytes,
             int64_t wanted) {
  constexpr double kOutCost = 64, kTileCost = 512, kBeyondWanted = 0.95;
  const int in_last = layout.in.chain[layout.in.chain_count - 1];
  // Where a row is cut, the rest of its last sector and line is fetched again; narrow elements are bound by
  // instructions before it shows.
  const double in_cost = p.element_bytes >= 8 && tile[in_last] < p.dims[in_last].extent ? 48 : 24;
  const auto in = static_cast<double>(run_bytes(p.element_bytes, layout.in, tile));
  const auto out = static_cast<double>(run_bytes(p.element_bytes, layout.out, tile));
  double value = 2 / ((in + in_cost) / in + (out + kOutCost) / out);
  for (int d = 0; d < p.rank; ++d) {
    value *= static_cast<double>(p.dims[d].extent) / static_cast<double>(round_up(p.dims[d].extent, tile[d]));
  }
  const auto size = static_cast<double>(bytes);
  value *= size / (size + kTileCost);
  if (bytes > wanted) value *= kBeyondWanted;
  return value;
}

// Sides and cuts: everything but addresses in fast memory.
StagedLayout staged_sides(const Problem& p, const int32_t* tile) {
  StagedLayout layout;
  layout.fits = true;
  layout.in = side_of(p, input_order(p, tile), &Dim::in_stride, tile, layout.fits);
  layout.out = side_of(p, output_order(p, tile), &Dim::out_stride, tile, layout.fits);
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].extent % tile[d] == 0) continue;
    if (layout.in_cut < 0) {
      layout.in_cut = d;
    } else if (layout.out_cut < 0) {
      layout.out_cut = d;
    } else {
      layout.fits = false;
    }
  }
  return layout;
}

// Places the runs. `spread` more units than needed separate neighbours along the first axis; the unit is a
// granule where runs stay congruent to global memory modulo 16 (layout.vectors), else a word.
void place(const Problem& p, const int32_t* tile, int spread, StagedLayout& layout) {
  const int64_t unit = layout.vectors ? kVector : word_bytes(p.element_bytes);
  int64_t step = input_step(p);
  for (int i = 0; i < layout.in.chain_count; ++i) {
    const int d = layout.in.chain[i];
    layout.shared_stride[d] = static_cast<int32_t>(step);
    step *= tile[d];
  }
  // Every run starts on a granule when the address, the steps between tiles and those between runs keep to
  // granules.
  uint64_t steps = p.in_address;
  for (int d = 0; d < p.rank; ++d) {
    if (tile[d] < p.dims[d].extent) steps |= static_cast<uint64_t>(p.dims[d].in_stride * tile[d]);
  }
  for (int i = 0; i < layout.in.axis_count; ++i)
    steps |= static_cast<uint64_t>(p.dims[layout.in.axes[i]].in_stride);
  const int64_t block_stride = layout.block > 1 ? p.dims[p.rank - 1].in_stride / layout.block : 0;
  const bool runs_aligned = layout.vectors && (steps | static_cast<uint64_t>(block_stride)) % kVector == 0;
  // Runs are widened to whole granules on both ends, which must not meet.
  bool first = true;
  const auto place_axis = [&](int64_t in_stride, int64_t count) {
    const int64_t residue = in_stride % unit;
    const bool aligned = runs_aligned && step % kVector == 0;
    const int64_t apart = layout.vectors ? kVector - 1 : 2 * (kVector - 1);
    const int64_t least = (aligned ? step : step + apart) + (first ? spread * unit : 0);
    const int64_t stride = round_up(std::max<int64_t>(least - residue, 0), unit) + residue;
    first = false;
    step = stride * (count - 1) + step;
    if (step > INT32_MAX / 4) layout.fits = false;
    return static_cast<int32_t>(std::min<int64_t>(stride, INT32_MAX / 4));
  };
  if (layout.block > 1) layout.block_shared = place_axis(block_stride, layout.block);
  for (int i = 0; i < layout.in.axis_count; ++i) {
    const int d = layout.in.axes[i];
    layout.shared_stride[d] = place_axis(p.dims[d].in_stride, tile[d]);
  }
  const auto total =
      static_cast<int32_t>(std::min<int64_t>(round_up(step + 2 * kVector, kVector), INT32_MAX / 4));
  layout.shared_bytes = layout.padded ? staged_padded(total, static_cast<int>(p.element_bytes)) + 16 : total;
}

// Extent of an output dim within one repeat.
int repeated_extent(const StagedLayout& layout, const int32_t* tile, int d) {
  return d == layout.repeat_dim ? layout.repeat_step : tile[d];
}

// Bytes of one run that a repeat holds.
int64_t repeated_run(const Problem& p, const StagedLayout& layout, const int32_t* tile) {
  int64_t run = p.element_bytes;
  for (int i = 0; i < layout.out.chain_count; ++i) run *= repeated_extent(layout, tile, layout.out.chain[i]);
  return run;
}

int64_t gather_slots(const Problem& p, const StagedLayout& layout, const int32_t* tile) {
  int64_t runs = 1;
  for (int i = 0; i < layout.out.axis_count; ++i) runs *= repeated_extent(layout, tile, layout.out.axes[i]);
  return staged_out_words(p, layout, tile) * runs;
}

// Instructions a thread spends on a tile, roughly: finding a word's coordinates costs as much as several
// words, and a warp's store that shares sectors with others as much as two.
double gather_cost(const Problem& p, const StagedLayout& layout, const int32_t* tile, int conflicts) {
  constexpr double kFind = 60, kFindElement = 30, kWord = 3, kElement = 3, kStraddle = 8;
  const double per_word = std::max(1.0, 4.0 / static_cast<double>(p.element_bytes));
  const int64_t repeats = layout.repeat_dim < 0 ? 1 : ceil_div(tile[layout.repeat_dim], layout.repeat_step);
  const int64_t rounds = ceil_div(gather_slots(p, layout, tile), kStagedThreads);
  double straddle = repeated_run(p, layout, tile) % kLine != 0 ? kStraddle : 0;
  if (layout.align == kSector) {
    // Only the run's ends.
    const int64_t store = 32 * word_bytes(p.element_bytes);
    const int64_t run = run_bytes(p.element_bytes, layout.out, tile);
    straddle = kStraddle * std::min(1.0, static_cast<double>(store) / static_cast<double>(run));
  }
  const double word =
      (kWord + kElement * per_word * conflicts + straddle) * static_cast<double>(layout.block);
  return static_cast<double>(rounds) *
         (kFind + kFindElement * per_word + static_cast<double>(repeats) * word);
}

// Sets the repeat with the least cost, or none.
void choose_repeat(const Problem& p, const int32_t* tile, StagedLayout& layout) {
  const int last = layout.out.chain[layout.out.chain_count - 1];
  const int word = word_bytes(p.element_bytes);
  double best = -1;
  int best_dim = -1, best_step = 1, best_align = word;
  const auto consider = [&](int d, int64_t step, int align) {
    layout.repeat_dim = d;
    layout.repeat_step = static_cast<int>(step);
    layout.align = align;
    // Shorter pieces of a run would scatter a warp's stores.
    if (d == last && repeated_run(p, layout, tile) < kLine) return;
    const double cost = gather_cost(p, layout, tile, 1);
    if (best < 0 || cost < best)
      best = cost, best_dim = d, best_step = layout.repeat_step, best_align = align;
  };
  for (const int align : {kSector, word}) {
    // Steps of whole multiples of `align` that give the block's threads one, two, ... words each. Padded
    // addresses are shifted by a constant only when the step is whole 128 bytes of shared memory too.
    const auto consider_steps = [&](int d, int64_t unit) {
      int64_t least = unit / std::gcd(unit, p.dims[d].out_stride);
      if (layout.padded) least = std::lcm(least, kLine / std::gcd<int64_t>(kLine, layout.shared_stride[d]));
      if (least > tile[d]) return;
      layout.repeat_dim = d;
      layout.repeat_step = static_cast<int>(least);
      layout.align = align;
      const int64_t slots = gather_slots(p, layout, tile);
      for (int rounds = 1; rounds <= 4; ++rounds) {
        consider(
            d,
            std::min(std::max<int64_t>(1, rounds * kStagedThreads / slots) * least, tile[d] / least * least),
            align);
      }
    };
    consider(-1, 1, align);
    consider_steps(last, align);
    consider_steps(last, kLine);
    for (int i = 0; i < layout.out.axis_count; ++i) consider_steps(layout.out.axes[i], align);
  }
  layout.repeat_dim = best_dim;
  layout.repeat_step = best_step;
  layout.align = best_align;
}

// How many words of one bank a warp's first gather asks for: 1 is free of conflicts.
int gather_conflicts(const Problem& p, const StagedLayout& layout, const int32_t* tile) {
  const auto element = static_cast<int>(p.element_bytes);
  const int word = word_bytes(element), per_word = word / element, banks = 128 / word;
  const int64_t words = staged_out_words(p, layout, tile);
  int32_t seen[32];
  // All of it fits 32 bits: addresses in fast memory, and 32 words.
  const auto run_words = static_cast<uint32_t>(std::min<int64_t>(words, 32));
  for (int lane = 0; lane < banks; ++lane) {
    uint32_t rest = lane % run_words * per_word, index = lane / run_words, at_word = 0;
    for (int i = 0; i < layout.out.chain_count && rest > 0; ++i) {
      const int d = layout.out.chain[i];
      const auto extent = static_cast<uint32_t>(repeated_extent(layout, tile, d));
      at_word += rest % extent * static_cast<uint32_t>(layout.shared_stride[d]);
      rest /= extent;
    }
    for (int i = 0; i < layout.out.axis_count && index > 0; ++i) {
      const int d = layout.out.axes[i];
      const auto extent = static_cast<uint32_t>(repeated_extent(layout, tile, d));
      at_word += index % extent * static_cast<uint32_t>(layout.shared_stride[d]);
      index /= extent;
    }
    const auto at = static_cast<int32_t>(at_word);
    seen[lane] = (layout.padded ? staged_padded(at, element) : at) / word;
  }
  return bank_conflicts(seen, banks);
}

// Runs that a tile comes in as, rows of a block counted on their own.
int64_t staged_run_count(const StagedLayout& layout, const int32_t* tile) {
  int64_t runs = layout.block;
  for (int i = 0; i < layout.in.axis_count; ++i) runs *= tile[layout.in.axes[i]];
  return runs;
}

}  // namespace

int input_dense_dim(const Problem& p) {
  for (int d = p.rank - 1; d >= 0; --d) {
    if (p.dims[d].in_stride == p.element_bytes) return d;
  }
  return -1;
}

int bank_conflicts(const int32_t* words, int banks) {
  int count[32] = {}, most = 0;
  for (int lane = 0; lane < banks; ++lane) {
    // A word that another lane asks for too costs nothing.
    if (std::find(words, words + lane, words[lane]) == words + lane)
      most = std::max(most, ++count[words[lane] % banks]);
  }
  return most;
}

int64_t staged_shared_bytes(const StagedLayout& layout, const int32_t* tile) {
  return layout.shared_bytes + staged_run_count(layout, tile) * kStagedRunEntryBytes;
}

int64_t staged_out_words(const Problem& p, const StagedLayout& layout, const int32_t* tile) {
  // A repeat of the run itself is whole multiples of `align`; a whole run may begin anywhere in one.
  const bool of_run = layout.repeat_dim == layout.out.chain[layout.out.chain_count - 1];
  const int64_t touched =
      round_up(repeated_run(p, layout, tile) + (of_run ? 0 : layout.align - p.element_bytes), layout.align);
  return touched / word_bytes(p.element_bytes);
}

int64_t input_step(const Problem& p) {
  constexpr int64_t kMostStep = 4;  // elements: of longer ones most of what is read would be for nothing
  int64_t least = INT64_MAX;
  for (int d = 0; d < p.rank; ++d) {
    if (p.dims[d].in_stride > 0) least = std::min(least, p.dims[d].in_stride);
  }
  return least <= kMostStep * p.element_bytes ? least : 0;
}

namespace {

// Instructions a thread spends on a byte, roughly: what decides between tiles of equally long runs.
double staged_cost(const Problem& p, const StagedLayout& layout, const int32_t* tile) {
  constexpr double kPiece = 30;  // instructions to find, load and store 16 bytes
  const int64_t runs = staged_run_count(layout, tile);
  const int64_t run = run_bytes(input_step(p), layout.in, tile);
  const int64_t pieces = runs * ceil_div(run + kVector - p.element_bytes, kVector);
  const double load = kPiece * static_cast<double>(ceil_div(pieces, kStagedThreads));
  return (load + gather_cost(p, layout, tile, gather_conflicts(p, layout, tile))) /
         static_cast<double>(runs * run);
}

// What is lost in the last round of blocks that a device runs at once, as a factor of the time.
double last_round(const Problem& p, const StagedLayout& layout, const int32_t* tile,
                  const FastMemory& memory) {
  // One H200, 47 cases x 5 widths: 0, .3, .6 and 1. 2-byte elements gain as much as they lose.
  const double felt = p.element_bytes == 2 ? 0 : 0.3;
  constexpr int64_t kReserved = 1024;     // bytes of shared memory that a block takes beside its own
  constexpr int64_t kRegisterBlocks = 6;  // of 256 threads and 40 registers on an SM
  int64_t blocks = 1;
  for (int d = 0; d < p.rank; ++d) blocks *= ceil_div(p.dims[d].extent, tile[d]);
  const int64_t shared = staged_shared_bytes(layout, tile) + kReserved;
  const int64_t at_once = std::clamp<int64_t>(memory.per_sm / shared, 1, kRegisterBlocks) * memory.sm_count;
  const double rounds = static_cast<double>(blocks) / static_cast<double>(at_once);
  return 1 + felt * (std::ceil(rounds) / rounds - 1);
}

// The layout of a tile with the cheapest gather that was found. With block > 1, problem and tile count in
// blocks.
StagedLayout staged_layout(const Problem& p, const int32_t* tile, int block) {
  StagedLayout layout = staged_sides(p, tile);
  layout.block = block;
  if (!layout.fits) return layout;
  struct Style {
    bool vectors, padded;
  };
  StagedLayout best;
  double best_cost = -1;
  for (const Style style : {Style{true, false}, Style{false, false}, Style{true, true}}) {
    layout.vectors = style.vectors;
    layout.padded = style.padded;
    const bool axes = layout.in.axis_count > 0 || block > 1;
    for (int spread = 0; spread < (axes ? 8 : 1); ++spread) {
      layout.fits = true;
      place(p, tile, spread, layout);
      // Padding keeps the rows of a block equally far apart only where they are whole lines apart without it.
      if (!layout.fits || (layout.padded && block > 1 && layout.block_shared % kLine != 0)) continue;
      choose_repeat(p, tile, layout);
      const int conflicts = gather_conflicts(p, layout, tile);
      const double cost =
          gather_cost(p, layout, tile, conflicts) * (style.vectors && !style.padded ? 1 : 1.03);
      if (best_cost < 0 || cost < best_cost) best = layout, best_cost = cost;
      if (conflicts == 1) break;
    }
    if (best_cost >= 0 && gather_conflicts(p, best, tile) == 1 && !best.padded) break;
  }
  return best;
}

}  // namespace

int staged_block(const Problem& p) {
  // Bytes of the rows on either side: below these, the loads and stores of many short runs cost more than
  // they save. Input rows that adjoin would otherwise come in as one run.
  constexpr int64_t kWord = 4, kShortestIn = 20, kShortestAdjoining = 64, kShortestOut = 48;
  if (p.element_bytes >= kWord || p.rank < 2) return 1;
  const int row_dim = p.rank - 1, col_dim = input_dense_dim(p);
  if (col_dim < 0 || col_dim == row_dim) return 1;
  uint64_t bits = p.in_address | p.out_address;
  for (int d = 0; d < p.rank; ++d) {
    if (d != col_dim) bits |= static_cast<uint64_t>(p.dims[d].in_stride);
    if (d != row_dim) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  const int64_t row_bytes = p.dims[row_dim].extent * p.element_bytes;
  const int64_t col_bytes = p.dims[col_dim].extent * p.element_bytes;
  bits |= static_cast<uint64_t>(row_bytes | col_bytes);
  const bool adjoin = p.dims[row_dim].in_stride == col_bytes;
  const bool long_rows =
      row_bytes >= kShortestOut && col_bytes >= (adjoin ? kShortestAdjoining : kShortestIn);
  return bits % kWord == 0 && long_rows ? static_cast<int>(kWord / p.element_bytes) : 1;
}

Problem staged_blocks(const Problem& problem, int block) {
  Problem p = problem;
  if (block == 1) return p;
  Dim &row = p.dims[p.rank - 1], &col = p.dims[input_dense_dim(p)];
  p.element_bytes *= block;
  row = {row.extent / block, row.in_stride * block, p.element_bytes};
  col = {col.extent / block, p.element_bytes, col.out_stride * block};
  return p;
}

StagedTile choose_staged_tile(const Problem& p, int block, int64_t bytes, int64_t bytes_most,
                              const FastMemory& memory) {
  bytes /= block;  // as many rows as a block has share a row of words
  bytes_most /= block;
  const Order in = input_order(p, nullptr), out = output_order(p, nullptr);
  struct Candidate {
    double score;
    int32_t tile[kMaxDims];
  };
  // The cost of a gather takes long to find: it is left to the tiles with the best scores.
  constexpr int kFinalists = 12;
  std::vector<Candidate> finalists;
  Candidate next;
  int32_t* const tile = next.tile;
  const auto consider = [&](int64_t in_target, int64_t out_target) {
    std::fill(tile, tile + p.rank, 1);
    cover(p, in, &Dim::in_stride, in_target, tile);
    cover(p, out, &Dim::out_stride, out_target, tile);
    int64_t volume = p.element_bytes;
    for (int d = 0; d < p.rank; ++d) volume *= tile[d];
    if (volume > bytes_most) return false;
    // Short runs that cannot grow: several of them, so that a block has enough to move.
    for (int d = p.rank - 1; d >= 0; --d) {
      const int64_t room = bytes / 2 / volume;
      if (tile[d] > 1 || room < 2) continue;
      const int64_t extent = p.dims[d].extent;
      tile[d] = static_cast<int32_t>(extent <= room ? extent : ceil_div(extent, ceil_div(extent, room)));
      volume *= tile[d];
    }
    StagedLayout layout = staged_sides(p, tile);
    if (!layout.fits || layout.in.axis_count + (block > 1) > kMaxStagedAxes) return true;
    layout.block = block;
    place(p, tile, 0, layout);
    if (!layout.fits || layout.shared_bytes > bytes_most * block * 5 / 4 ||
        staged_shared_bytes(layout, tile) > memory.per_block) {
      return true;
    }
    next.score = score(p, layout, tile, volume, bytes);
    for (const Candidate& c : finalists) {
      if (std::equal(tile, tile + p.rank, c.tile)) return true;
    }
    const auto place_of = std::find_if(finalists.begin(), finalists.end(),
                                       [&](const Candidate& c) { return c.score < next.score; });
    finalists.insert(place_of, next);
    if (finalists.size() > kFinalists) finalists.pop_back();
    return true;
  };
  const int64_t least = std::max<int64_t>(64 / p.element_bytes, 1), most = bytes_most / p.element_bytes;
  for (int64_t in_target = least; in_target <= most; in_target *= 2) {
    for (int64_t out_target = least; out_target <= most; out_target *= 2) {
      if (!consider(in_target, out_target)) break;
    }
  }
  // One H200, 47 cases x 5 widths: what the instructions weigh beside the runs. Narrow elements are bound by
  // them.
  const double cost_weight = p.element_bytes < 4 ? 14 : 3;
  StagedTile best;
  best.why_not = "no tile of it fits the limits of the staged kernel";
  for (const Candidate& c : finalists) {
    if (best.why_not.empty() && 1 / c.score >= best.time) break;  // nor can any that follows be faster
    const StagedLayout layout = staged_layout(p, c.tile, block);
    const double time =
        (1 / c.score + cost_weight * staged_cost(p, layout, c.tile)) * last_round(p, layout, c.tile, memory);
    if (!best.why_not.empty() || time < best.time) {
      best.time = time;
      best.layout = layout;
      std::copy(c.tile, c.tile + p.rank, best.extent);
      best.why_not.clear();
    }
  }
  return best;
}

}  // namespace tx
