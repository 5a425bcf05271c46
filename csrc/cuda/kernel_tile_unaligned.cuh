// 2-D tiles at any address and any pitch, of matrices whose rows or columns may be several dims, one behind
// the other in memory: a permutation of many short dims is such a matrix too.
//
//   load   A warp reads input rows in aligned words (4 bytes, or an element if wider), lane by lane. All rows
//          of a warp are in flight before the first is staged. Elements narrower than a word may begin
//          anywhere in one: a lane shifts its word and its neighbour's together, and the last lane's columns
//          are left to the next tile.
//          Of stepped inputs (x[..., ::2]) lanes read their own elements, or the words that hold them.
//          Where there are fewer columns than that, tiles are fitted to them: a warp's lanes read one row
//          behind the other, and rows are as many as make bands of one size.
//   turn   K rows make square blocks of K x K elements, K = elements of a word: transposed in registers, a
//          word holds K neighbours of an output row.
//   stage  Words go to shared memory, column by column. Columns of neighbouring lanes lie an odd number of
//          words apart: no bank is asked twice.
//   store  A warp writes one output row at a time, lane by lane, from the sector that holds its first byte.
//          The output's words lie anywhere in the column's: each is shifted together from two.
//
// Where one block ends along an output row the next one begins at a sector of the output's address, so that
// no sector has two writers; the price is halo rows, a sector of them, read twice. A tile that has all rows
// stores a sector more, for which there would be another (231 rows, 1 byte: .51 to .61).
//
// Rows that the matrix does not have are read as its nearest one and not stored: to leave them out is a
// branch a group of rows, .01 on all that has them. Where rows are few it pays, and a variant does (257 rows,
// 1 byte: .49 to .66); its tiles are of one size, too.
//
// Often one side is aligned though the other is not: a matrix of 50257 x 4096. Variants for outputs whose
// rows all begin at sectors have no halo and shift nothing on the way out; variants for inputs whose rows all
// begin at words shift nothing on the way in and leave no lane's columns, so that where rows begin at sectors
// a warp reads 4 of them, not 5. One H200, 1 byte: .82 to .93, its transpose .83 to .93.
//
// Where a row begins in the input is found by the warp that reads it, before it does; where one begins in the
// output by one thread, while the rows are on their way. So the loops have next to nothing to compute.
//
// In which order tiles go is the planner's choice. DRAM takes pieces of 512 bytes, written anywhere in
// memory, at .97 of a copy's speed, and where they begin at other than multiples of 256 bytes at .92, unless
// what follows them in the output is written soon after: .96.
//
// Reads the whole words that hold the first and last bytes of a row: they lie on the pages of those bytes.
//
// What bounds it (H200, ncu): the fabric between the two halves of L2, busy 92 to 96 % of the time as it is
// in a copy (89 to 93 %); at 1 byte where one side is aligned (50257 x 4096) 91 to 94 %. Time follows the
// sectors that SMs read and write: here 1.1 to 1.25 times a copy's, for the halo and for rows that begin
// inside a sector. Larger tiles have fewer, but what shared memory they take is L1 that loads in flight need:
// beyond some 190 KB an SM, rates fall. At 1 and 2 bytes instructions come next: half of what a column costs
// to store went when the table said all of it (2 bytes, permutations with half-empty tiles: .50 to .55).
// Below some 40 us tiles are few: an SM reads all it holds, then writes all. The ends of output rows, a lane
// an element, are stored several rows at a time (1 byte, 301 x 302000: .60 to .64). Fitted tiles are bound by
// instructions (62 to 79 % of issue slots at 1 byte, 11 to 19 a byte) and shared memory (65 to 70 %).
//
// Tried and slower: 16 bytes a lane, whose elements go one by one to shared memory (1 byte: .35 to .61 on
// permutations where this has .44 to .77; 2 bytes: .01 better on plain matrices, .05 worse on permutations);
// 8 bytes a lane and word (1 byte .02); more threads with fewer loads in flight each (1 byte .05, 2 bytes
// .01); blocks that read their next tile while they store one (.1 to .15: what waits in registers is fewer
// warps); blocks that take 2 to 8 tiles of an output row and carry what is left of 256 bytes from one to the
// next (8 bytes .79 to .92 for .87 to .95). 32 problems an element width, geometric means in 1, 2, 4 and 8
// bytes, .840 .892 .926 .935: stores of 16 bytes a lane, 4 rows a warp, .832 .887 .919 .933 (8191 x 8193 in 1
// byte: 13.5 M instructions for 17.4 M, shared memory 34 % for 46 %, and the same time, so that neither
// bounds it); with those, rows read from their first byte's sector on, so that a warp's pieces share none: by
// lanes that load what is theirs .826 .881 .903 .930, by shuffles .817 .876 .888 .926 (sectors fall by a
// tenth, but tiles have an eighth fewer columns); and twice as wide, of half as many blocks, .811 .868 .897
// .920. For fitted tiles: where a row begins in 64 bits, or with its last word beside it (shared memory 86 %,
// .70 for .73 and .76 for .82); columns as far apart as each tile needs (.03 to .04); places kept from load
// to store (1 byte, 43 columns .73 for .69, but in 2 bytes spilled: .65 for .77). In their place: staging
// with the places of a tile's elements in tables (1 byte .54 for .73 and .57 for .65, 12 to 19 instructions a
// byte and twice the wavefronts of shared memory); asynchronous copies of whole runs, of which each word's
// elements are gathered one by one, by tables of rows (1 byte .46 to .60 for .62 to .77, 17 to 21
// instructions a byte; 2 bytes .87 for .77 and .74 for .70 where columns are few and rows follow one another
// in the input, else .57 to .82 for .74 to .89).
#pragma once

#include <type_traits>

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// As UnalignedVariant's members.
template <int Element, int Words, int OutBytes, int Warps, int MinBlocks, int Step = 1, int InAlign = 1,
          int OutAlign = 1, bool FitsRows = false, bool ManyDims = false>
struct UnalignedConfig {
  static constexpr UnalignedVariant kVariant{Element, Words,   OutBytes, Warps,    MinBlocks, {},
                                             Step,    InAlign, OutAlign, FitsRows, ManyDims};
  static constexpr bool kShiftsIn = kVariant.shifts_in();
  static constexpr int kStep = Step, kGroupCols = kVariant.group_cols();
  static constexpr int kElement = Element;
  static constexpr int kWords = Words;
  static constexpr int kOutBytes = OutBytes;
  static constexpr int kWarps = Warps;
  static constexpr int kMinBlocks = MinBlocks;
  static constexpr int kThreads = Warps * 32;
  static constexpr int kWord = kVariant.word();
  static constexpr int kBlock = kVariant.block();
  static constexpr int kRows = kVariant.rows(), kHalo = kVariant.halo(), kCols = kVariant.cols();
  static constexpr int kColumnBytes = kVariant.column_bytes();
  static constexpr int kGroupBytes = kVariant.group_bytes();
  static constexpr int kDataBytes = kVariant.data_bytes();
  static constexpr int kHaloBytes = kHalo * Element;
  static constexpr int kStore = 32 * kWord;  // bytes that a warp stores at a time
  // Rows are read in groups of as many as a block has.
  static constexpr int kGroups = (kHalo + kRows) / kBlock;
  static constexpr int kBatch = static_cast<int>(ceil_div(kGroups, Warps));  // groups of a warp
  static constexpr bool kFitted = Words == 0, kFitsRows = FitsRows, kManyDims = ManyDims;
  static constexpr int kFittedBatch = fitted_words_in_flight(Element);  // words of a lane, in each row
  static constexpr int kFittedLanes = fitted_lanes(kVariant);
  static constexpr int kStores = static_cast<int>(ceil_div(OutBytes, kStore));
  static_assert(Step <= 2, "what a word begins with is a column or not");
  static_assert(kFitted || OutBytes % kStore == 0, "every lane stores equally many words");
  static_assert(kGroupBytes / kWord % 2 == 1, "odd distance in words");
  static_assert(kDataBytes % 16 == 0 && (kHalo + kRows) % 2 == 0, "alignment of the tables behind");
  static_assert(!kFitted || kSector / kWord % Warps == 0, "every warp reads as many rows of a sector");
};

// What a tile stores of one output row.
struct alignas(16) OutputRow {
  uint8_t* to;    // the sector that holds the first byte
  uint32_t from;  // the word of shared memory that holds the first byte of that sector, or would
  int32_t lead;   // bytes of the sector before the first one
};
static_assert(sizeof(OutputRow) == kOutputRowBytes, "the planner counts the table into shared memory");

// Brings the rows of a fitted tile to shared memory, turned. A warp has `groups` groups of rows from `first`
// on, whose words it takes one row behind the other: lanes have what follows one another, and where words are
// shifted the last one has what the first has next. Between its loads and its stores it does what `meanwhile`
// is.
template <class C, class Meanwhile>
__device__ __forceinline__ void stage_fitted(const FastDiv& words, const uint8_t* in, uint32_t last_byte,
                                             int first, int groups, const uint32_t* row_begins,
                                             uint32_t columns, uint64_t policy, Meanwhile meanwhile) {
  constexpr int K = C::kBlock, kWord = C::kWord, kBatch = C::kFittedBatch, kLanes = C::kFittedLanes;
  const int lane = threadIdx.x % 32, count = groups * static_cast<int>(words.divisor);
  struct Place {
    int group, word;
    uint32_t begin[K];  // of the group's rows
  };
  const auto find = [&](int b) {
    const QuotRem at = words.divmod(min(b * kLanes + lane, count - 1));
    Place place{first + static_cast<int>(at.quot), static_cast<int>(at.rem)};
    const uint32_t from = shared_address(row_begins + place.group * K);
    if constexpr (K == 4) {
      const uint4 begin = load_shared<16>(from);
      place.begin[0] = begin.x, place.begin[1] = begin.y, place.begin[2] = begin.z, place.begin[3] = begin.w;
    } else {
      const uint2 begin = load_shared<8>(from);
      place.begin[0] = begin.x, place.begin[1] = begin.y;
    }
    return place;
  };
  uint32_t v[kBatch][K];
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    if (b * kLanes >= count) break;
    const Place place = find(b);
#pragma unroll
    for (int j = 0; j < K; ++j) {
      // Words past the row's end are replaced by its last one.
      const uint32_t byte = min(place.begin[j] + place.word * kWord, place.begin[j] + last_byte);
      v[b][j] = load_far<kWord>(in + (byte & ~(kWord - 1)), policy);
    }
  }
  meanwhile();
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    if (b * kLanes >= count) break;
    const Place place = find(b);
    uint32_t block[K];
#pragma unroll
    for (int j = 0; j < K; ++j) {
      block[j] = v[b][j];
      if constexpr (C::kShiftsIn) {
        block[j] = __funnelshift_r(block[j], __shfl_down_sync(~0u, block[j], 1), place.begin[j] * 8);
      }
    }
    transpose_words(block);
    const bool has_columns = !C::kShiftsIn || place.word + 1 < static_cast<int>(words.divisor);
    if (lane < kLanes && b * kLanes + lane < count && has_columns) {
      const uint32_t to = columns + place.word * C::kGroupBytes + place.group * kWord;
#pragma unroll
      for (int m = 0; m < K; ++m) store_shared<kWord>(to + m * C::kColumnBytes, block[m]);
    }
  }
}

// The same of a strip of many columns, every kWarps-th group from `first` to `end` a warp. `elements`: of an
// input row, from the tile's first on. `phase`: elements of a word before a column's, where rows of a stepped
// input begin alike.
template <class C, class Meanwhile>
__device__ __forceinline__ void stage_strip(const uint8_t* in, int64_t elements, int phase, int first,
                                            int end, const int64_t* row_begins, uint32_t columns,
                                            uint64_t policy, Meanwhile meanwhile) {
  constexpr int E = C::kElement, K = C::kBlock, kWords = C::kWords, kWord = C::kWord, kStep = C::kStep;
  constexpr int kLaneBytes = K == 1 ? kStep * E : kWord;  // from a lane's word to its neighbour's
  using Register = Word<kWord>;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto group_of = [&](int b) { return first + warp + b * C::kWarps; };
  const auto is_group = [&](int b) {
    return (!C::kFitsRows && C::kGroups % C::kWarps == 0) || group_of(b) < end;
  };
  Register v[C::kBatch][K][kWords];
  const auto load = [&](auto whole) {  // input rows reach the last lane's last word
    constexpr bool kWhole = decltype(whole)::value;
    const uint8_t* const lane_in = in + (kWhole ? lane * kLaneBytes : 0);
    const auto room = static_cast<int>(min(elements * E - 1, int64_t{32 * kWords * kLaneBytes}));
#pragma unroll
    for (int b = 0; b < C::kBatch; ++b) {
      if (!is_group(b)) break;
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const int64_t begin = row_begins[group_of(b) * K + j];
        const uint8_t* const from = lane_in + (begin & ~int64_t{kWord - 1});
        // Words past the row's end are replaced by its last one.
        const int last = (room + static_cast<int>(begin & (kWord - 1))) / kLaneBytes;
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          const int word = kWhole ? w * 32 : min(lane + w * 32, last);
          v[b][j][w] = load_far<kWord>(from + word * kLaneBytes, policy);
        }
      }
    }
  };
  if (elements * E > (32 * kWords - 1) * kLaneBytes) {
    load(std::true_type());
  } else {
    load(std::false_type());
  }
  meanwhile();
  const uint32_t to = columns + lane * C::kGroupBytes;
#pragma unroll
  for (int b = 0; b < C::kBatch; ++b) {
    if (!is_group(b)) break;
    Register block[kWords][K];
#pragma unroll
    for (int j = 0; j < K; ++j) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) block[w][j] = v[b][j][w];
      if constexpr (C::kShiftsIn) {
        const auto shift = static_cast<uint32_t>(row_begins[group_of(b) * K + j]) * 8;
        uint32_t next[kWords];  // what follows the lane's words: behind the last lane's, the first lane's
#pragma unroll
        for (int w = 0; w < kWords; ++w) next[w] = __shfl_sync(~0u, block[w][j], (lane + 1) & 31);
#pragma unroll
        for (int w = 0; w + 1 < kWords; ++w) next[w] = lane == 31 ? next[w + 1] : next[w];
#pragma unroll
        for (int w = 0; w < kWords; ++w) block[w][j] = __funnelshift_r(block[w][j], next[w], shift);
      }
    }
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      if constexpr (K > 1) transpose_words(block[w]);
#pragma unroll
      for (int m = 0; m < K; m += kStep) {
        Register word = block[w][m];
        if constexpr (kStep > 1 && K > 1 && !C::kShiftsIn) word = phase == 0 ? word : block[w][m + 1];
        store_shared<kWord>(to + w * 32 * C::kGroupBytes + m / kStep * C::kColumnBytes + group_of(b) * kWord,
                            word);
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, resident_blocks(C::kThreads, C::kMinBlocks))
    unaligned_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ __align__(16) uint8_t columns[];
  constexpr int E = C::kElement, K = C::kBlock, kWords = C::kWords, kWord = C::kWord, kStore = C::kStore;
  constexpr int kStep = C::kStep, kGroupCols = C::kGroupCols;
  using Register = Word<kWord>;

  const uint8_t* in;
  uint8_t* out;  // start of the tile's first output row
  const TileParams::Tile tile = p.tile(blockIdx.x, in, out);
  const int tile_words = C::kFitted ? static_cast<int>(p.tile_words.divisor) : kWords * 32;
  const int tile_cols = C::kFitted ? (tile_words - (C::kShiftsIn ? 1 : 0)) * K : C::kCols;
  const int tile_rows = C::kFitted || C::kFitsRows ? p.tile_rows : C::kRows;
  const int64_t row0 = tile.band * tile_rows, col0 = tile.strip * tile_cols;
  // What it stores of an output row. Where tiles fit and there is one, as much as there can be.
  const int out_bytes = C::kFitsRows && tile_rows >= p.rows ? C::kOutBytes : tile_rows * E;
  if (row0 * E >= p.rows * E + C::kHaloBytes) return;  // groups are of one size: the last may end early
  in += col0 * kStep * E;
  out += row0 * E;
  p.outer.advance(tile.matrix, in, out);
  // Where input rows begin, counted from a whole word.
  using RowBegin = std::conditional_t<C::kFitted, uint32_t, int64_t>;
  auto* const row_begins = reinterpret_cast<RowBegin*>(
      columns + (C::kFitted ? fitted_data_bytes(tile_cols / K, C::kGroupBytes) : C::kDataBytes));
  auto* const output_rows = reinterpret_cast<OutputRow*>(row_begins + C::kHalo + C::kRows);
  const auto in_low = static_cast<int>(reinterpret_cast<uintptr_t>(in) & (kWord - 1));
  in -= in_low;
  // Column c of the tile in shared memory, from its first row after the halo.
  const auto column = [&](int c) {
    return shared_address(columns) + c / kGroupCols * C::kGroupBytes + c % kGroupCols * C::kColumnBytes +
           C::kHaloBytes;
  };

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Groups of the warp: every kWarps-th from `first` to `end`, or where tiles are fitted those that follow
  // one another. The first tile of an output row needs no halo, the last no rows behind the matrix: where
  // tiles fit, they are not read.
  const int groups = C::kFitted ? (C::kHalo + tile_rows) / (K * C::kWarps) : C::kBatch;
  const int first = C::kFitsRows && tile.band == 0 ? C::kHalo / K : 0;
  const int64_t rows = C::kFitsRows ? min(int64_t{tile_rows}, p.rows - row0) : C::kRows;
  const int end = static_cast<int>(ceil_div(C::kHalo + rows, K));
  const auto group_of = [&](int b) { return C::kFitted ? warp * groups + b : first + warp + b * C::kWarps; };
  // Rows outside the matrix are replaced by its nearest one: they are never stored.
#pragma unroll
  for (int i = lane; i < groups * K; i += 32) {
    if (!C::kFitted && (C::kFitsRows || C::kGroups % C::kWarps != 0) && group_of(i / K) >= end) break;
    const int row = group_of(i / K) * K + i % K;
    const int64_t nearest = min(max(row0 + row - C::kHalo, int64_t{0}), p.rows - 1);
    row_begins[row] = static_cast<RowBegin>(in_low + p.row_offsets.offset<C::kManyDims>(nearest));
  }
  __syncwarp();
  wait_for_inputs();
  const auto find_columns = [&] {
    for (int c = threadIdx.x; c < tile_cols; c += C::kThreads) {
      uint8_t* const begin = out + p.col_offsets.offset<C::kManyDims>(min(col0 + c, p.cols - 1));
      const auto lead = static_cast<int>(reinterpret_cast<uintptr_t>(begin) & (kSector - 1));
      output_rows[c] = {begin - lead, column(c) - ((lead + kWord - 1) & ~(kWord - 1)), lead};
    }
  };
  const uint64_t policy = keep_policy();
  if constexpr (C::kFitted) {
    stage_fitted<C>(p.tile_words, in, static_cast<uint32_t>(p.cols * E - 1), group_of(0), groups, row_begins,
                    shared_address(columns), policy, find_columns);
  } else {
    stage_strip<C>(in, (p.cols - 1 - col0) * kStep + 1, in_low / E, first, end, row_begins,
                   shared_address(columns), policy, find_columns);
  }
  __syncthreads();

  const int cols = static_cast<int>(min(p.cols - col0, int64_t{tile_cols}));
  const int64_t row_bytes = p.rows * E, tile_begin = row0 * E;
  // kWhole: no output row begins or ends in the tile. kAll: the tile has all rows, and stores a sector more.
  const auto store_rows = [&](auto whole, auto all) {
    constexpr bool kWhole = decltype(whole)::value, kAll = decltype(all)::value;
    constexpr int kStores = C::kStores + (kAll ? 1 : 0);
    const int window = out_bytes + (kAll ? C::kHaloBytes : 0);  // that it stores of an output row
    // What there is of an output row, in bytes from the tile's first one.
    const int low = tile_begin == 0 ? 0 : -C::kHaloBytes;
    const auto high = static_cast<int>(min(row_bytes - tile_begin, int64_t{out_bytes}));
#pragma unroll 2
    for (int c = warp; c < cols; c += C::kWarps) {
      const OutputRow row = output_rows[c];
      const int lead = C::kHalo == 0 ? 0 : row.lead;
      Register v[kStores];
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        const uint32_t from = row.from + lane * kWord + i * kStore;
        v[i] = load_shared<kWord>(from);
        if constexpr (K > 1 && C::kHalo > 0) {
          v[i] = __funnelshift_r(v[i], load_shared<kWord>(from + kWord), -lead * 8);
        }
      }
      uint8_t* to = row.to + lane * kWord;
      pin(to);
      // From where on, and for how many bytes, words of it begin that are the tile's and the row's.
      const int begin = kWhole ? 0 : max(low + lead, 0);
      const int span = kWhole ? window : max(min(high + lead, window) - kWord + 1 - begin, 0);
      constexpr bool kAllWords = kWhole && !C::kFitted && !C::kFitsRows;
#pragma unroll
      for (int i = 0; i < kStores; ++i) {
        const auto at = static_cast<uint32_t>(lane * kWord - begin + i * kStore);
        if (kAllWords || at < static_cast<uint32_t>(span)) store_past_l1(to + i * kStore, v[i]);
      }
    }
    if constexpr (K > 1 && !kWhole) {
      // What rows have of their first word and of their last one: a lane an element, several rows a warp.
      constexpr int kLanes = 2 * K;
      for (int i = threadIdx.x; i < cols * kLanes; i += C::kThreads) {
        const OutputRow row = output_rows[i / kLanes];
        const int lead = C::kHalo == 0 ? 0 : row.lead;
        const int begin = max(low, -lead), end = min(high, window - lead);
        const int head_end = min(begin + (-(lead + begin) & (kWord - 1)), end);
        const int tail = max(end - ((end + lead) & (kWord - 1)), head_end);
        const bool is_tail = i % kLanes >= K;
        const int at = (is_tail ? tail : begin) + i % K * E;
        if (at < (is_tail ? end : head_end)) {
          *reinterpret_cast<Word<E>*>(row.to + lead + at) = load_shared<E>(column(i / kLanes) + at);
        }
      }
    }
  };
  constexpr bool kCanHaveAll = !C::kFitted && C::kHalo > 0;
  if ((C::kHalo == 0 || tile_begin > 0) && tile_begin + out_bytes <= row_bytes) {
    store_rows(std::true_type(), std::false_type());
  } else if (kCanHaveAll && row_bytes <= out_bytes && row_bytes - E + kSector > out_bytes) {
    store_rows(std::false_type(), std::bool_constant<kCanHaveAll>());
  } else {
    store_rows(std::false_type(), std::false_type());
  }
}

}  // namespace tx::cuda
