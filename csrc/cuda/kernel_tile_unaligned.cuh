// 2-D tiles at any pitch and any address, for 1-, 2-, 4- and 8-byte elements: alignment lives in addresses,
// so that no register is ever shifted.
//
//   load   A warp reads rows that are congruent modulo V = 16 / element bytes. Their addresses are congruent
//          modulo 16, so how far a row starts inside its first 16-byte granule is one constant of the warp.
//          Each lane loads whole granules of the widened row: element m of lane l is tile column
//          V * l + m - skew.
//   stage  Elements go one by one to shared memory, column by column. Groups of V columns lie an odd number
//          of words apart, so the lanes of a store meet no bank conflict. A column begins at its output
//          row's residue modulo 4: shared words ARE output words.
//   store  A warp writes one output row, a lane one word, lined up with 128-byte lines.
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
// Needs at least V rows. Between fused dims, short ones, it costs the narrow elements .15 to .25 of a copy
// (H200, of .75 and .87), the wide ones .05 to .1: where the pages of a tile's rows lie far apart, and for
// the shifts.
//
// 1-byte elements are bound by their shared stores, one an element (H200: mio_throttle first among the
// stalls, DRAM at 52 %). Tried and slower: 4 x 4 blocks cut from two granules by funnel shifts, so that a
// word is stored at a time (.51 to .63 of a copy where this has .73 to .83; 19 instructions an element
// against 10); several tiles a block, one after another, to find the places of the columns once (1 byte .50
// to .57, 8 bytes .78 to .82: two barriers a tile, and fewer blocks to hide them).
#pragma once

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Lanes: 16-byte granules of an input row (16 or 32). OutBytes: piece of an output row. Batch: rows in
// flight a thread.
template <int Element, int Lanes, int OutBytes, int Cut, int Warps, int MinBlocks, int Batch>
struct UnalignedConfig {
  static constexpr int kElement = Element;
  static constexpr int kLanes = Lanes;
  static constexpr int kOutBytes = OutBytes;
  static constexpr int kCut = Cut;
  static constexpr int kWarps = Warps;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kMinBlocks = MinBlocks;
  static constexpr int kBatch = Batch;
  static constexpr int kV = kVector / Element;
  static constexpr int kRows = OutBytes / Element;
  static constexpr int kHalo = Cut / Element;
  static constexpr int kCols = (Lanes - 1) * kV;  // the last group collects what lies left of the tile
  static constexpr int kWord = Element == 8 ? 8 : 4;
  static constexpr int kColumnBytes = OutBytes + Cut + (Element < 4 ? 4 : 0);
  static constexpr int kGroupBytes = kV * kColumnBytes + kWord;
  static constexpr int kSharedBytes = Lanes * kGroupBytes;
  // With 16 lanes a row a warp takes two rows, 64 bytes of a column apart: the other half of the banks.
  static constexpr int kRowsAtOnce = 32 / Lanes;
  static constexpr int kApart = kRowsAtOnce == 1 ? Warps : 64 / Element;
  static constexpr int kSteps =
      kRows / kRowsAtOnce;  // rows a half-warp's series has, before dividing by warps
  static_assert(OutBytes % Cut == 0 && Warps % kV == 0, "whole cuts, and warps of one residue");
  static_assert(kSharedBytes % 8 == 0, "where output rows begin lies behind");
  static_assert(kGroupBytes / kWord % 2 == 1 && kColumnBytes % kWord == 0, "odd distance in words");
  static_assert(kRowsAtOnce == 1 || (Element == 1 && kApart % Warps == 0 && kRows % (2 * kApart) == 0),
                "two rows at once are dealt in whole blocks");

  // Tile row of the q-th step, for the first of the rows taken at once.
  TX_HOST_DEVICE static constexpr int row_of(int q) {
    return kRowsAtOnce == 1 ? q : q / kApart * 2 * kApart + q % kApart;
  }
};

// kFused: rows or columns are several dims.
template <class C, bool kFused>
__global__ void __launch_bounds__(C::kThreads, resident_blocks(C::kThreads, C::kMinBlocks))
    unaligned_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(16) uint8_t columns[];
  constexpr int E = C::kElement, V = C::kV, kWord = C::kWord, kLanes = C::kLanes;
  using Element = Word<E>;
  using OutWord = Word<kWord>;
  const uint64_t keep = keep_policy();

  const QuotRem band = p.bands.divmod(blockIdx.x);
  const QuotRem strip = p.strips.divmod(band.quot);
  const QuotRem group = p.groups.divmod(strip.quot);
  const int64_t row0 = (static_cast<int64_t>(group.rem) * p.bands.divisor + band.rem) * C::kRows;
  const int64_t col0 = static_cast<int64_t>(strip.rem) * C::kCols;
  if (row0 * E >= p.rows * E + C::kCut) return;  // groups are of one size: the last may end early
  const uint8_t* in = p.in + col0 * E;
  uint8_t* out = p.out;  // start of the tile's first output row
  if constexpr (!kFused) out += col0 * p.out_pitch;
  p.outer.advance(group.quot, in, out);
  // Where rows begin: those of the tile in the input, then the output's, spread over the banks.
  auto* const begins = reinterpret_cast<int64_t*>(columns + C::kSharedBytes);
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

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int granule = lane % kLanes, part = lane / kLanes;
  {
    // A lane's first row is part of where its elements go, so that further rows are constants away.
    const int first = C::row_of(warp) + part * C::kApart;
    // Where element m of a lane's granule goes. What sticks out of it on its left belongs to the group
    // before.
    uint32_t at[V];
    const uint32_t first_column = shared_address(columns) + C::kCut + first * E;
    const auto out_low = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(out));
    const auto place = [&](int skew) {
      const int own_group = granule * C::kGroupBytes;
      const int group_before = (granule == 0 ? kLanes - 1 : granule - 1) * C::kGroupBytes;
#pragma unroll
      for (int m = 0; m < V; ++m) {
        const int in_group = (m - skew) & (V - 1);
        uint32_t begin = 0;
        if constexpr (E < 4 && kFused) {
          begin = static_cast<uint32_t>(begin_of(min(granule * V + m, C::kCols - 1)));
        } else if constexpr (E < 4) {
          begin = in_group * static_cast<uint32_t>(p.out_pitch);
        }
        const uint32_t residue_out = E < 4 ? (out_low + begin) & 3 : 0;
        at[m] =
            first_column + (m < skew ? group_before : own_group) + in_group * C::kColumnBytes + residue_out;
        pin(at[m]);
      }
    };
    // Granules past the row's end are replaced by its last one.
    const auto room = static_cast<int>(min((p.cols - col0) * E - 1, int64_t{C::kCols * E + kVector}));
    const auto reach = [&](int residue) {
      return kVector * min((room + residue) / kVector, granule) - residue;
    };

    // Rows count from the tile's first here. Those outside the matrix are replaced by the nearest row of this
    // warp's residue: they are never stored.
    const uint8_t* from_tile = nullptr;
    int low_row = 0, high_row = 0;
    if constexpr (kFused) {
      place(0);
    } else {
      const int64_t least = warp % V;
      const int64_t most = p.rows - 1 - (p.rows - 1 - least) % V;
      low_row = static_cast<int>(max(least - row0, -int64_t{C::kHalo}));
      high_row = static_cast<int>(min(most - row0, int64_t{C::kRows}));
      const auto residue =
          static_cast<int>(reinterpret_cast<uintptr_t>(in + least * p.in_pitch) & (kVector - 1));
      place(residue / E);
      from_tile = in + row0 * p.in_pitch + reach(residue);
    }
    const auto fetch = [&](int row, uint4& v, int& residue) {
      if constexpr (kFused) {
        const uint8_t* const source = in + begins[C::kHalo + row];
        residue = static_cast<int>(reinterpret_cast<uintptr_t>(source) & (kVector - 1));
        v = load_keep(source + reach(residue), keep);
      } else {
        v = load_keep(from_tile + min(max(row, low_row), high_row) * p.in_pitch, keep);
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

    for (int h = warp; h < C::kHalo; h += C::kWarps * C::kRowsAtOnce) {
      const int row = h + part * C::kWarps - C::kHalo;
      uint4 v = {};
      int residue = 0;
      if (row < 0) fetch(row, v, residue);
      stage((row - first) * E, v, residue, row < 0);
    }
#pragma unroll
    for (int q0 = 0; q0 < C::kSteps; q0 += C::kWarps * C::kBatch) {
      uint4 v[C::kBatch];
      int residue[C::kBatch] = {};
#pragma unroll
      for (int b = 0; b < C::kBatch; ++b) {
        const int q = q0 + b * C::kWarps;
        if (q + C::kWarps <= C::kSteps || q + warp < C::kSteps) fetch(first + C::row_of(q), v[b], residue[b]);
      }
#pragma unroll
      for (int b = 0; b < C::kBatch; ++b) {
        const int q = q0 + b * C::kWarps;
        if (q + C::kWarps <= C::kSteps || q + warp < C::kSteps)
          stage(C::row_of(q) * E, v[b], residue[b], true);
      }
    }
  }
  __syncthreads();

  // Output row c: bytes [tile_begin - lead, tile_begin - lead + kOutBytes), lead = what its address has
  // beyond a cut.
  const int cols = static_cast<int>(min(p.cols - col0, int64_t{C::kCols}));
  const int64_t row_bytes = p.rows * E, tile_begin = row0 * E;
  constexpr int kLine = 128, kStep = 32 * kWord;
  constexpr bool kLineUp = C::kCut < kLine;
  constexpr int kStores = (C::kOutBytes + (kLineUp ? kLine - C::kCut : 0) + kStep - 1) / kStep;
  out += tile_begin;
  const uint8_t* from =
      columns + warp / V * C::kGroupBytes + warp % V * C::kColumnBytes + C::kCut + lane * kWord;
  uint8_t* next = out + (kFused ? 0 : warp * p.out_pitch);
  const int64_t to_step = kFused ? 0 : C::kWarps * p.out_pitch;
  constexpr int kFromStep = C::kWarps / V * C::kGroupBytes;
  const bool inside =
      tile_begin > 0 && tile_begin + C::kOutBytes <= row_bytes;  // no output row begins or ends here
  if (inside) {
#pragma unroll 2
    for (int c = warp; c < cols; c += C::kWarps, next += to_step, from += kFromStep) {
      uint8_t* const to = kFused ? out + begin_of(c) : next;
      const auto low = static_cast<int>(reinterpret_cast<uintptr_t>(to) & (kLine - 1));
      const int lead = low & (C::kCut - 1);
      const int back = kLineUp ? (low - lead) & (kLine - 1) : 0;  // from the cut back to its line
      const int y = lane * kWord - back;
      const uint8_t* source = from - (lead & ~(kWord - 1)) - back;
      uint8_t* target = to + (y - lead);
      OutWord v[kStores];
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        const bool mine = (i > 0 || !kLineUp || y >= 0) &&
                          ((i + 1) * kStep <= C::kOutBytes || y < C::kOutBytes - i * kStep);
        if (mine) v[i] = *reinterpret_cast<const OutWord*>(source + i * kStep);
      }
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        const bool mine = (i > 0 || !kLineUp || y >= 0) &&
                          ((i + 1) * kStep <= C::kOutBytes || y < C::kOutBytes - i * kStep);
        if (mine) store_past_l1(target + i * kStep, v[i]);
      }
    }
  } else {
    for (int c = warp; c < cols; c += C::kWarps, next += to_step, from += kFromStep) {
      uint8_t* const to = kFused ? out + begin_of(c) : next;
      const int lead = static_cast<int>(reinterpret_cast<uintptr_t>(to) & (C::kCut - 1));
      for (int y = 0; y < C::kOutBytes; y += kStep) {
        const int64_t begin = tile_begin - lead + lane * kWord + y;  // of this word, in the output row
        const uint8_t* source = from - (lead & ~(kWord - 1)) + y;
        uint8_t* target = to + (begin - tile_begin);
        if (lane * kWord + y >= C::kOutBytes) continue;
        if (begin >= 0 && begin + kWord <= row_bytes) {
          store_past_l1(target, *reinterpret_cast<const OutWord*>(source));
        } else {
          for (int e = 0; e < kWord; e += E) {
            if (begin + e >= 0 && begin + e < row_bytes) {
              *reinterpret_cast<Element*>(target + e) = *reinterpret_cast<const Element*>(source + e);
            }
          }
        }
      }
    }
  }
}

}  // namespace tx::cuda
