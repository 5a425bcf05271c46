// 2-D tiles at any pitch and any address, for 1-, 2-, 4- and 8-byte elements: alignment lives in addresses,
// so that no register is ever shifted.
//
//   load   A warp, or half of it, reads rows that are congruent modulo V = 16 / element bytes. Their
//          addresses are congruent modulo 16, so how far a row starts inside its first 16-byte granule is one
//          constant. Each lane loads whole granules of the widened row: element m of lane l is tile column
//          V * l + m - skew. All rows of a thread are in flight before the first is staged.
//   stage  Elements go one by one to shared memory, column by column. A column begins at its output row's
//          residue modulo a word: shared words ARE output words. Groups of V columns lie an odd number of
//          words apart; with words of 8 bytes that leaves half of the banks to the other half of the warp,
//          whose rows, or columns, are 4 bytes off.
//   store  A warp writes one output row at a time, a lane one word of it, in windows of whole words: lanes
//          follow the lines of the output, so that the first ones may store the window's end.
//
// Where one block ends along an output row the next one begins at a multiple of kCut bytes of the output's
// address, so that no 32-byte sector has two writers; the price is kCut / element bytes halo rows read twice.
//
// Fused, the matrix's rows are several dims, one behind the other in the output, or its columns are, in the
// input: a permutation of many short dims becomes a large matrix. What is a pitch elsewhere is then a table
// in shared memory, of where each row begins in either memory. Rows need not be congruent: a lane takes what
// its group lacks from the next lane's granule and shifts both by the row's residue. (Shifting places
// instead, when a row's residue is not the last one's, cost 1-byte elements half their rate.)
//
// Reads the whole granules that hold the first and last bytes of a row: they lie on the pages of those bytes.
// Needs at least V rows.
//
// What bounds it (H200, ncu): the fabric between the two halves of L2, busy 92 to 96 % of the time at 2 to 8
// bytes as it is in a copy (89 to 93 %). Time follows the sectors that SMs read and write: here 1.1 times a
// copy's, for the halo and for rows that begin inside a sector. Larger tiles have fewer, but what shared
// memory they take is L1 that loads in flight need: of more than some 160 KB an SM, rates fall (4 bytes .94
// to .84). 1-byte elements, one shared store each, wait for those and for loads as well (fabric 84 % at
// 8191^2). Tried and slower at 1 byte: 4 x 4 blocks cut from two granules by funnel shifts, so that a word is
// stored at a time (.51 to .63 of a copy where this has .73 to .83); several tiles a block, one after
// another, to find the places of the columns once (.50 to .57: two barriers a tile, and fewer blocks to hide
// them); half the threads with twice the rows (.70).
#pragma once

#include <type_traits>

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Lanes: 16-byte granules of an input row (16 or 32). OutBytes: piece of an output row. WordBytes: what a
// thread stores at a time. Fused: rows or columns are several dims.
template <int Element, bool Fused, int Lanes, int OutBytes, int Cut, int WordBytes, int Warps, int MinBlocks>
struct UnalignedConfig {
  static constexpr int kElement = Element;
  static constexpr bool kFused = Fused;
  static constexpr int kLanes = Lanes;
  static constexpr int kOutBytes = OutBytes;
  static constexpr int kCut = Cut;
  static constexpr int kWord = WordBytes;
  static constexpr int kStore = 32 * kWord;  // window that a warp stores at a time
  static constexpr int kWarps = Warps;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kMinBlocks = MinBlocks;
  static constexpr int kV = kVector / Element;
  static constexpr int kRows = OutBytes / Element;
  static constexpr int kHalo = Cut / Element;
  static constexpr int kCols = (Lanes - 1) * kV;  // the last group collects what lies left of the tile
  static constexpr int kColumnBytes = OutBytes + Cut + (Element < kWord ? kWord : 0);
  static constexpr int kGroupBytes = kV * kColumnBytes + kWord;
  static constexpr int kDataBytes = Lanes * kGroupBytes;
  // Fused: where the rows of the tile begin in the input, then the output's, spread over the banks.
  static constexpr int kBegins = Fused ? kHalo + kRows + kCols + Lanes : 0;
  static constexpr int kSharedBytes = kDataBytes + kBegins * 8;
  // Each part of a warp takes rows of its own.
  static constexpr int kParts = 32 / Lanes;
  static constexpr int kRowStep = Warps * kParts;
  static constexpr int kBatch = kRows / kRowStep;  // rows of a thread
  static_assert(OutBytes % kStore == 0 && OutBytes % Cut == 0, "whole windows, and cuts");
  static_assert(kRowStep % kV == 0 && Warps % (kV / kParts) == 0, "a part of a warp has rows of one residue");
  static_assert(kGroupBytes / kWord % 2 == 1, "odd distance in words");
  static_assert(kDataBytes % 8 == 0, "the table lies behind");
  static_assert(kParts == 1 || kWord == 8, "words of 4 bytes leave no banks to the other half of a warp");
  static_assert(kRows % kRowStep == 0, "threads have equally many rows");

  // First tile row of a part of a warp; further ones are kRowStep away.
  TX_HOST_DEVICE static constexpr int first_row(int warp, int part, int apart) {
    constexpr int kRound = Warps < kV ? Warps : kV;
    return part == 0 ? warp : Warps + warp / kRound * kRound + (warp + apart) % kRound;
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, resident_blocks(C::kThreads, C::kMinBlocks))
    unaligned_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(16) uint8_t columns[];
  constexpr bool kFused = C::kFused;
  constexpr int E = C::kElement, V = C::kV, kLanes = C::kLanes, kWord = C::kWord, kStore = C::kStore;
  using Element = Word<E>;
  const uint64_t keep = keep_policy();

  const uint8_t* in;
  uint8_t* out;  // start of the tile's first output row
  const TileParams::Tile tile = p.tile(blockIdx.x, in, out);
  const int64_t row0 = tile.band * C::kRows, col0 = tile.strip * C::kCols;
  if (row0 * E >= p.rows * E + C::kCut) return;  // groups are of one size: the last may end early
  in += col0 * E;
  if constexpr (!kFused) out += col0 * p.out_pitch;
  p.outer.advance(tile.matrix, in, out);
  // Where rows begin: those of the tile in the input, then the output's, spread over the banks.
  auto* const begins = reinterpret_cast<int64_t*>(columns + C::kDataBytes);
  const auto begin_of = [&](int c) -> int64_t& { return begins[C::kHalo + C::kRows + c + c / V]; };
  if constexpr (kFused) {
    for (int i = threadIdx.x; i < C::kHalo + C::kRows + C::kCols; i += C::kThreads) {
      const int c = i - C::kHalo - C::kRows;
      if (c < 0) {
        const int64_t row = min(max(row0 + i - C::kHalo, int64_t{0}), p.rows - 1);
        begins[i] = p.fused_rows.offset(static_cast<uint32_t>(row));
      } else {
        begin_of(c) = p.fused_cols.offset(static_cast<uint32_t>(min(col0 + c, p.cols - 1)));
      }
    }
    __syncthreads();
  }
  const auto out_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out));
  // Distance between the columns of a group. Where output rows have a pitch, it is congruent to it: so are
  // the residues of all columns to those of their output rows.
  const int column =
      kFused
          ? C::kColumnBytes
          : C::kOutBytes + C::kCut +
                static_cast<int>((static_cast<uint32_t>(p.out_pitch) - C::kOutBytes - C::kCut) & (kWord - 1));
  const int column0 = C::kCut + (kFused ? 0 : static_cast<int>(out_low & (kWord - 1)));

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  {
    const int granule = lane % kLanes, part = lane / kLanes;
    // The parts' stores meet no bank twice if they are half a word of the output apart: by their rows, or, if
    // columns lie an odd number of elements apart, by the column that they begin with.
    constexpr int kTurn = C::kParts > 1 ? kWord / 2 / E : 0;
    const bool odd = !kFused && kTurn > 0 && (static_cast<uint32_t>(p.out_pitch) / E & 1);
    const bool turned = odd && part > 0;
    // A lane's first row is part of where its elements go, so that further rows are constants away.
    const int first = C::first_row(warp, part, odd ? 0 : kTurn);
    // Where element m of a lane's granule goes. What sticks out of it on its left belongs to the group
    // before.
    uint32_t at[V];
    const auto place = [&](int skew) {
      const uint32_t base = shared_address(columns) + column0 + first * E;
      const uint32_t own = base + granule * C::kGroupBytes - skew * column;
      const uint32_t before =
          base + (granule == 0 ? kLanes - 1 : granule - 1) * C::kGroupBytes + (V - skew) * column;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const int m = kTurn > 0 && !kFused && turned ? (i + kTurn) % V : i;
        at[i] = (m < skew ? before : own) + m * column;
        if constexpr (kFused && E < kWord) {
          at[i] +=
              (out_low + static_cast<uint32_t>(begin_of(min(granule * V + m, C::kCols - 1)))) & (kWord - 1);
        }
        pin(at[i]);
      }
    };
    // Granules past the row's end are replaced by its last one.
    const auto room = static_cast<int>(min((p.cols - col0) * E - 1, int64_t{C::kCols * E + kVector}));
    const auto reach = [&](int residue) {
      return kVector * min((room + residue) / kVector, granule) - residue;
    };

    // Rows outside the matrix are replaced by the nearest row of this part's residue: they are never stored.
    // Counted from V rows before the halo, none of them is negative.
    constexpr int kBefore = V + C::kHalo;
    const uint8_t* from_before = nullptr;
    int low_row = 0, high_row = 0;
    if constexpr (kFused) {
      place(0);
    } else {
      const int64_t before = row0 - kBefore;
      const int64_t least = first % V;
      const int64_t most = p.rows - 1 - (p.rows - 1 - least) % V;
      low_row = static_cast<int>(max(least - before, int64_t{0}));
      high_row = static_cast<int>(min(most - before, int64_t{kBefore + C::kRows}));
      const auto residue =
          static_cast<int>(reinterpret_cast<uintptr_t>(in + least * p.in_pitch) & (kVector - 1));
      place(residue / E);
      from_before = in + before * p.in_pitch + reach(residue);
    }
    // `row` counts from the tile's first.
    const auto fetch = [&](int row, uint4& v, int& residue) {
      if constexpr (kFused) {
        const uint8_t* const source = in + begins[C::kHalo + row];
        residue = static_cast<int>(reinterpret_cast<uintptr_t>(source) & (kVector - 1));
        v = load_keep(source + reach(residue), keep);
      } else {
        const auto nearest = static_cast<uint32_t>(min(max(row + kBefore, low_row), high_row));
        v = load_keep(from_before + uint64_t{nearest} * static_cast<uint32_t>(p.in_pitch), keep);
      }
    };
    const auto stage = [&](int offset, const uint4& v, int residue, bool mine) {
      uint32_t w[8] = {v.x, v.y, v.z, v.w};
      if constexpr (kFused) {
        // The lane's group: from `residue` bytes inside its own granule on.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (i * 4 < kVector - E || E < 4) w[4 + i] = __shfl_down_sync(~0u, w[i], 1, kLanes);
        }
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = residue & 8 ? w[i + 2] : w[i];
        if constexpr (E < 8) {
#pragma unroll
          for (int i = 0; i < 5; ++i) w[i] = residue & 4 ? w[i + 1] : w[i];
        }
        if constexpr (E < 4) {
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], 8 * (residue & 3));
        }
      }
      if constexpr (kTurn > 0 && !kFused) {
        const uint32_t w0 = w[0];
#pragma unroll
        for (int i = 0; i < 3; ++i) w[i] = turned ? w[i + 1] : w[i];
        w[3] = turned ? w0 : w[3];
      }
      if (!mine) return;
#pragma unroll
      for (int m = 0; m < V; ++m) {
        if constexpr (E == 8) {
          store_shared<E>(at[m] + offset, make_uint2(w[2 * m], w[2 * m + 1]));
        } else {
          store_shared<E>(at[m] + offset, static_cast<Element>(w[m * E / 4] >> (8 * (m * E % 4))));
        }
      }
    };

    for (int step = 0; step < C::kHalo; step += C::kRowStep) {
      uint4 v = {};
      int residue = 0;
      const int h = step + first;
      const bool mine = h < C::kHalo;
      if (mine) fetch(h - C::kHalo, v, residue);
      stage((h - C::kHalo - first) * E, v, residue, mine);
    }
    uint4 v[C::kBatch];
    int residue[C::kBatch] = {};
#pragma unroll
    for (int b = 0; b < C::kBatch; ++b) fetch(first + b * C::kRowStep, v[b], residue[b]);
#pragma unroll
    for (int b = 0; b < C::kBatch; ++b) stage(b * C::kRowStep * E, v[b], residue[b], true);
  }
  __syncthreads();

  // Output row c: bytes [tile_begin - lead, tile_begin - lead + kOutBytes), lead = what its address has
  // beyond a cut.
  const int cols = static_cast<int>(min(p.cols - col0, int64_t{C::kCols}));
  const int64_t row_bytes = p.rows * E, tile_begin = row0 * E;
  out += tile_begin;
  const auto store_rows = [&](auto whole) {  // no output row begins or ends in a whole tile
    const int group_gap = C::kGroupBytes - V * column;
    uint8_t* next = out + (kFused ? 0 : warp * p.out_pitch);
    const int64_t to_step = kFused ? 0 : C::kWarps * p.out_pitch;
    const bool begins_here = tile_begin == 0;
    const auto high_byte = static_cast<int>(min(row_bytes - tile_begin, int64_t{C::kOutBytes + C::kCut}));
#pragma unroll 2
    for (int c = warp; c < cols; c += C::kWarps, next += to_step) {
      const uint8_t* from = columns + column0 + c * column + c / V * group_gap;
      uint8_t* const to = kFused ? out + begin_of(c) : next;
      const auto low = static_cast<int>(reinterpret_cast<uintptr_t>(to) & (kStore - 1));
      const int lead = low & (C::kCut - 1);
      // Lanes lie along the lines of the output, so the first ones store the row's end.
      const int at = ((lane * kWord - (low - lead)) & (kStore - 1)) - lead;
      const uint8_t* source = from + (kFused ? low & (kWord - 1) : 0) + at;
      uint8_t* target = to + at;
      Word<kWord> v[C::kOutBytes / kStore];
#pragma unroll
      for (int i = 0; i < C::kOutBytes; i += kStore) {
        v[i / kStore] = *reinterpret_cast<const Word<kWord>*>(source + i);
      }
#pragma unroll
      for (int i = 0; i < C::kOutBytes; i += kStore) {
        if (decltype(whole)::value || ((!begins_here || at + i >= 0) && at + i + kWord <= high_byte)) {
          store_past_l1(target + i, v[i / kStore]);
        } else {
          for (int e = 0; e < kWord; e += E) {
            if ((!begins_here || at + i + e >= 0) && at + i + e < high_byte) {
              *reinterpret_cast<Element*>(target + i + e) = *reinterpret_cast<const Element*>(source + i + e);
            }
          }
        }
      }
    }
  };
  if (tile_begin > 0 && tile_begin + C::kOutBytes <= row_bytes) {
    store_rows(std::true_type());
  } else {
    store_rows(std::false_type());
  }
}

}  // namespace tx::cuda
