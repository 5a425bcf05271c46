// Asking for what later tiles read while earlier ones are written.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/int_math.h"
#include "core/plan.h"
#include "cpu/micro.h"
#include "cpu/tiles.h"

namespace tx::cpu {

// Asks for lines into the L1 cache, or into L2, whether or not they exist.
inline void ask_for(const char* from, int64_t ahead, int64_t lines, bool into_l1) {
  const intptr_t first = reinterpret_cast<intptr_t>(from) + ahead;
  for (int64_t k = 0; k < lines; ++k) {
    const auto* const line = reinterpret_cast<const char*>(first + k * kLine);
    into_l1 ? __builtin_prefetch(line, 0, 3) : __builtin_prefetch(line, 0, 2);
  }
}

// Likewise for those that a stretch of so many bytes has part of. Returns how many they are.
inline int64_t ask_for_stretch(const char* from, int64_t ahead, int64_t bytes, bool into_l1) {
  const intptr_t first = reinterpret_cast<intptr_t>(from) + ahead;
  const int64_t place = first % kLine, lines = ceil_div(place + bytes, kLine);
  ask_for(from, ahead - place, lines, into_l1);
  return lines;
}

// Asks for the input of tiles of kStaged, a few lines at a time. What a tile reads are pieces, each one
// stretch of the input: its rows, and the columns that continue them.
class Prefetcher {
 public:
  // Of the tiles from `first` on that lie before `last`; of none if the plan does not ask. `row_dims` are
  // those of a tile, plan.fused_rows of them.
  Prefetcher(const Plan& plan, const int* row_dims, const char* in, int64_t first, int64_t last)
      : plan_(plan),
        row_dims_(row_dims),
        in_(in),
        last_(plan.prefetches ? last : first),
        tile_(first),
        at_(plan, first) {
    enter();
  }

  // About how many lines are still to be asked for in the tiles before `until`.
  int64_t lines_before(int64_t until) const {
    return std::max<int64_t>((std::min(until, last_) - tile_) * tile_lines_ - asked_, 0);
  }

  // Asks for so many, or some more: whole pieces, or large parts of them. Returns for how many.
  int64_t ask(int64_t lines) {
    int64_t asked = 0;
    while (asked < lines) {
      const int64_t count = ask_for_stretch(from_, 0, bytes_, plan_.prefetches_l1);
      asked += count;
      asked_ += count;
      advance();
    }
    return asked;
  }

 private:
  // What is asked for together at most: single lines here and there are slow (64 x 16 x 13 x 64 x 29 reversed
  // in 4 bytes, pieces of 464 bytes, Zen 5, one thread, line by line .43 of a copy, so .51), and more at a
  // time than the core can queue are dropped.
  static constexpr int64_t kTogether = 16 * kLine;

  void add(int64_t count, int64_t step) {
    done_[levels_] = 0;
    count_[levels_] = count;
    step_[levels_++] = step;
  }

  // The pieces of the tile at hand.
  void enter() {
    const Problem& p = plan_.problem;
    bytes_ = p.element_bytes;
    for (int k = 0; k < plan_.fused_rows; ++k) bytes_ *= at_.extent[row_dims_[k]];
    int dims[kMaxDims], count = 0;  // of the columns, innermost first, that the pieces do not have
    for (int k = 1; k <= plan_.fused_cols; ++k) dims[count++] = p.rank - k;
    for (int k = 0; k < count;) {
      const int d = dims[k++];
      if (p.dims[d].in_stride != bytes_) continue;
      bytes_ *= at_.extent[d];
      std::copy(dims + k, dims + count--, dims + k - 1);
      k = 0;
    }
    int64_t pieces = 1;
    for (int k = 0; k < count; ++k) pieces *= at_.extent[dims[k]];
    tile_lines_ = ceil_div(pieces * bytes_, kLine) + pieces;
    asked_ = 0;
    levels_ = 0;
    if (bytes_ > kTogether) {
      const int64_t parts = ceil_div(bytes_, kTogether);
      bytes_ = round_up(ceil_div(bytes_, parts), kLine);
      add(parts, bytes_);
    }
    for (int k = 0; k < count; ++k) add(at_.extent[dims[k]], p.dims[dims[k]].in_stride);
    from_ = in_ + at_.in;
  }

  void advance() {
    for (int k = 0; k < levels_; ++k) {
      from_ += step_[k];
      if (++done_[k] < count_[k]) return;
      from_ -= done_[k] * step_[k];
      done_[k] = 0;
    }
    ++tile_;
    at_.next();
    enter();
  }

  const Plan& plan_;
  const int* const row_dims_;
  const char* const in_;
  const int64_t last_;
  int64_t tile_;  // the tile at hand
  TileWalk at_;
  int64_t tile_lines_;  // that it has, about
  int64_t asked_;       // of these
  const char* from_;    // the piece, or part of one, that comes next
  int64_t bytes_;       // of it
  int levels_;          // of a nest of loops over them, innermost first
  int64_t count_[kMaxDims];
  int64_t step_[kMaxDims];
  int64_t done_[kMaxDims];
};

}  // namespace tx::cpu
