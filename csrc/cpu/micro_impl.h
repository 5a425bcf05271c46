// The micro-kernels, written once over the few operations of a vector type. Included by each micro_<isa>.cpp.
//
// All of it is in an anonymous namespace, and calls no std:: function: if two files compiled with different
// flags shared a definition, the linker could keep the one that this machine cannot run.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/tile_order.h"
#include "cpu/micro.h"
#include "cpu/micro_blocks.h"
#include "cpu/micro_permute.h"
#include "cpu/micro_rows.h"
#include "cpu/micro_strided.h"
#include "cpu/micro_tile.h"

namespace tx::cpu {
namespace {

// Whether it took the block: one side is less than a lane.
template <int e, class In, class Out>
TX_INLINE bool transpose_short(In in, Out out, int64_t rows, int64_t cols) {
  constexpr int kLane = Tile<Lane, e>::kSide;
  if (rows >= kLane && cols >= kLane) return false;
  if constexpr (e < 8 && !kOddRows<In>) {
    using Two = Halves<e>;
    if (Two::take(rows) && cols >= kLane) return Two::split(in, out, rows, cols), true;
    if (Two::take(cols) && rows >= kLane) return Two::merge(in, out, rows, cols), true;
  }
  transpose_by_element<e>(in, out, rows, cols);
  return true;
}

// Whether kernels of a few columns took the block. Past the caches, what is split are whole lines; and of
// what is merged the end is less than a line, and stored.
template <class I, int e, bool streaming>
TX_INLINE bool transpose_narrow(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols) {
  const bool splits = !streaming || cols * e % kLine == 0;
  if (splits && split_narrow<I, e, streaming>(in.first, in.pitch, out, rows, cols)) return true;
  const int64_t end = streaming ? rows % Tile<I, e>::kSide : 0, whole = rows - end;
  if (!merge_narrow<I, e, streaming>(in.first, in.pitch, out.first, out.pitch, whole, cols)) return false;
  if (end > 0) {
    in = in.from(0, whole * e), out = out.from(whole, 0);
    if (!transpose_short<e>(in, out, end, cols)) transpose_by_lane<e>(in, out, 0, end, 0, cols);
  }
  return true;
}

template <class I, int e, bool streaming, TileOrder order, bool to_l1, class In, class Out>
TX_INLINE void transpose_matrix(In in, Out out, int64_t rows, int64_t cols) {
  using Wide = Tile<I, e, streaming, to_l1>;
  constexpr int kLane = Tile<Lane, e>::kSide;
  constexpr bool pitched = std::is_same_v<In, Pitched<const char>>;
  constexpr bool odd = kOddRows<In>;
  if constexpr (pitched && I::kShuffles) {
    if (transpose_narrow<I, e, streaming>(in, out, rows, cols)) return;
  }
  if (transpose_short<e>(in, out, rows, cols)) return;
  const int64_t wide_rows = covered_by_tiles<Wide>(rows, streaming || order == TileOrder::kInBlocks);
  const int64_t wide_cols = covered_by_tiles<Wide>(cols, streaming || order == TileOrder::kInBlocks);
  if constexpr (order == TileOrder::kInBlocks) {
    transpose_blocks<I, e, streaming, to_l1>(in, out, wide_rows, wide_cols);
  } else if constexpr (pitched && streaming) {
    stream_tiles<Wide>(in, out, wide_rows, wide_cols);
  } else if constexpr (order == TileOrder::kCrosswise) {
    cross_tiles<Wide>(in, out, wide_rows, wide_cols);
  } else if constexpr (order == TileOrder::kDiagonal) {
    cross_diagonally<Wide>(in, out, wide_rows, wide_cols);
  } else {
    transpose_tiles<Wide>(in, out, wide_rows, wide_cols);
  }
  const auto each_lane = [](int64_t from, int64_t to, auto&& work) {
    for (int64_t k = from; k < to; k += kLane) work(k + kLane > to ? to - kLane : k);
  };
  each_lane(wide_rows, rows, [&](int64_t i) {
    for (int64_t j = 0; j < wide_cols; j += Wide::kSide) {
      const int64_t at = j + Wide::kSide > wide_cols ? wide_cols - Wide::kSide : j;
      Wide::transpose_lane_of_rows(in.from(at, i * e), out.from(i, at * e));
    }
  });
  if constexpr (!streaming) {
    each_lane(wide_cols, cols, [&](int64_t j) {
      for (int64_t i = 0; i < wide_rows; i += Wide::kSide) {
        const int64_t at = i + Wide::kSide > wide_rows ? wide_rows - Wide::kSide : i;
        Wide::transpose_lane_of_cols(in.from(j, at * e), out.from(at, j * e));
      }
    });
  }
  if constexpr (odd) {
    transpose_by_element<e>(in.from(wide_cols, wide_rows * e), out.from(wide_rows, wide_cols * e),
                            rows - wide_rows, cols - wide_cols);
  } else {
    transpose_by_lane<e>(in, out, wide_rows, rows, wide_cols, cols);
  }
}

// Odd elements, in registers where a lane has room for several, or whole vectors can be spread (12 bytes,
// AVX2 with lanes of one: .26 of a copy, by element .35).
template <class I, int e, class In, class Out>
TX_INLINE void transpose_odd(int64_t bytes, In in, Out out, int64_t rows, int64_t cols) {
  const OddRows<e, In> from{in, bytes};
  const OddRows<e, Out> to{out, bytes};
  if constexpr (I::kShuffles && (e <= 8 || (e == 16 && Spread<I, e>::kWhole))) {
    transpose_matrix<Spread<I, e>, e, false, TileOrder::kInTurn, false>(from, to, rows, cols);
  } else {
    transpose_by_element<e>(from, to, rows, cols);
  }
}

template <class I, int e, bool streaming = false, TileOrder order = TileOrder::kInTurn, bool to_l1 = false>
void transpose(int64_t bytes, const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
               int64_t cols) {
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  if constexpr (e > 2 && !streaming && order == TileOrder::kInTurn) {
    if (e > 16 || bytes < e) return transpose_odd<I, e>(bytes, from, to, rows, cols);
  }
  if constexpr (e <= 16) transpose_matrix<I, e, streaming, order, to_l1>(from, to, rows, cols);
}

// What is merged or split in runs at a time: 2 and 4 KiB .41 and .43 of a copy, so .44 (Zen 4, 36 problems).
constexpr int64_t kRunsAtOnce = 8192;

// From n to 2 n bytes, in two moves that may overlap.
template <int n>
TX_INLINE void copy_ends(char* out, const char* in, int64_t bytes) {
  struct {
    char byte[n];
  } first, last;
  std::memcpy(&first, in, n);
  std::memcpy(&last, in + bytes - n, n);
  std::memcpy(out, &first, n);
  std::memcpy(out + bytes - n, &last, n);
}

// Some vectors' worth of bytes and more.
template <class I>
TX_INLINE void copy_vectors(char* out, const char* in, int64_t bytes) {
  constexpr int64_t kVec = sizeof(typename I::Vec);
  for (int64_t b = 0; b + kVec < bytes; b += kVec) {
    I::store(out + b, I::load(in + b));
    TX_NEXT_ROW(b);  // or GCC calls memmove()
  }
  I::store(out + bytes - kVec, I::load(in + bytes - kVec));
}

// Runs of kLeastRun bytes and more, by half lines, aligned in the output but for the ends, where moves
// overlap (whole vectors of AVX-512, 8852 bytes at odd places, Zen 4, in L2 and beyond it .91 and .97 times
// as fast).
template <class I>
void copy_runs(const char* in, int64_t in_stride, char* out, int64_t out_stride, int64_t bytes,
               int64_t runs) {
  constexpr int64_t kPart = kLine / 2, kTogether = 4;
  typedef char Part __attribute__((vector_size(kPart)));
  const auto load = [](const char* from) {
    Part part;
    std::memcpy(&part, from, sizeof part);
    return part;
  };
  const auto store = [](char* to, Part part) { std::memcpy(to, &part, sizeof part); };
  for (int64_t r = 0; r < runs; ++r, in += in_stride, out += out_stride) {
    const Part first = load(in), last = load(in + bytes - kPart);
    int64_t b = kPart - reinterpret_cast<intptr_t>(out) % kPart;
    store(out, first);
    for (; b + kTogether * kPart <= bytes; b += kTogether * kPart) {
      Part part[kTogether];
      TX_UNROLL for (int64_t k = 0; k < kTogether; ++k) part[k] = load(in + b + k * kPart);
      TX_UNROLL for (int64_t k = 0; k < kTogether; ++k) store(out + b + k * kPart, part[k]);
    }
    for (; b + kPart <= bytes; b += kPart) {
      store(out + b, load(in + b));
      TX_NEXT_ROW(b);  // or GCC calls memmove()
    }
    store(out + bytes - kPart, last);
  }
}

// Calls work(copy) with what copies runs of so many bytes.
template <class I, class F>
TX_INLINE void with_copy(int64_t bytes, const F& work) {
  constexpr int kVec = sizeof(typename I::Vec);
  const auto fits = [&]<int n>(std::integral_constant<int, n>) {
    if (n > kVec || bytes < n || bytes > 2 * n) return false;
    work([](char* out, const char* in, int64_t size) { copy_ends<n>(out, in, size); });
    return true;
  };
  if (bytes > 2 * kVec)
    return work([](char* out, const char* in, int64_t size) { copy_vectors<I>(out, in, size); });
  [&]<int... log>(std::integer_sequence<int, log...>) {
    (fits(std::integral_constant<int, 1 << log>()) || ...);
  }(std::make_integer_sequence<int, 7>());
}

// Of rows at places of their own: whether they are `pitch` bytes apart.
TX_INLINE bool are_pitched(const int64_t* places, int64_t rows, int64_t pitch) {
  for (int64_t k = 1; k < rows; ++k) {
    if (places[k] - places[k - 1] != pitch) return false;
  }
  return true;
}

// Calls work(first, count) for some KiB of runs at a time.
template <class F>
TX_INLINE void for_some_runs(int64_t runs, int64_t run_bytes, const F& work) {
  const int64_t most = kRunsAtOnce / run_bytes;
  for (int64_t k = 0; k < runs; k += most) work(k, most < runs - k ? most : runs - k);
}

// By way of memory that has the columns, or rows, side by side: there, or from there, runs are moved whole.
template <class I, int e>
void merge_runs(const char* in, int64_t in_pitch, char* out, const int64_t* places, int64_t runs,
                int64_t run_rows, int64_t cols) {
  const int64_t bytes = cols * e, run = run_rows * bytes;
  alignas(kLine) char merged[kRunsAtOnce];
  for_some_runs(runs, run, [=, &merged](int64_t first, int64_t count) {
    const int64_t* const to = places + first;
    transpose<I, e>(e, in + first * run_rows * e, in_pitch, merged, bytes, count * run_rows, cols);
    with_copy<I>(run, [=, &merged](const auto& copy) {
      for (int64_t r = 0; r < count; ++r) copy(out + to[r], merged + r * run, run);
    });
  });
}

template <class I, int e>
void split_runs(const char* in, const int64_t* places, char* out, int64_t out_pitch, int64_t runs,
                int64_t run_cols, int64_t rows) {
  const int64_t bytes = rows * e, run = run_cols * bytes;
  alignas(kLine) char together[kRunsAtOnce];
  for_some_runs(runs, run, [=, &together](int64_t first, int64_t count) {
    const int64_t* const from = places + first;
    with_copy<I>(run, [=, &together](const auto& copy) {
      for (int64_t r = 0; r < count; ++r) copy(together + r * run, in + from[r], run);
    });
    transpose<I, e>(e, together, bytes, out + first * run_cols * e, out_pitch, rows, count * run_cols);
  });
}

// Columns, or rows, of less than half a lane, that would else be moved by element.
template <int e>
TX_INLINE bool are_less_than_half_a_lane(const int64_t* places, int64_t count) {
  return count >= 2 && count < 8 / e && are_pitched(places, count, places[1] - places[0]);
}

template <class I, int e>
void transpose_placed(int64_t bytes, const char* in, const int64_t* in_places, char* out,
                      const int64_t* out_places, int64_t rows, int64_t cols) {
  const Placed<const char> from{in, in_places};
  const Placed<char> to{out, out_places};
  if constexpr (e > 2) {
    if (e > 16 || bytes < e) return transpose_odd<I, e>(bytes, from, to, rows, cols);
  }
  if constexpr (e <= 2 && I::kShuffles) {
    if (are_less_than_half_a_lane<e>(in_places, cols))
      return merge_runs<I, e>(in, in_places[1] - in_places[0], out, out_places, rows, 1, cols);
    if (are_less_than_half_a_lane<e>(out_places, rows))
      return split_runs<I, e>(in, in_places, out, out_places[1] - out_places[0], cols, 1, rows);
  }
  if constexpr (e <= 16) transpose_matrix<I, e, false, TileOrder::kInTurn, false>(from, to, rows, cols);
}

// A tile, asking for the input's lines a vector's columns ahead, here or in the next tile, and for those that
// are written kRowsAhead rows later. (A vector's columns ahead for both, where tiles are high and do not fit
// the last cache, four matrices each, 4 to 16 bytes .84 .82 .86, and so .95 1.02 .97.)
template <class I, int e>
void transpose_asking(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                      int64_t cols, int64_t in_step, int64_t out_step) {
  using Wide = Tile<I, e>;
  constexpr int64_t kSide = Wide::kSide, kLane = Wide::kLane, kRowsAhead = 128;
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  const int64_t whole_rows = rows - rows % kSide, whole_cols = cols - cols % kSide;
  if (whole_rows == 0 || whole_cols == 0) return transpose<I, e>(e, in, in_pitch, out, out_pitch, rows, cols);
  const int64_t turn = whole_rows > kRowsAhead ? whole_rows - kRowsAhead : 0;
  for (int64_t j = 0; j < whole_cols; j += kSide) {
    const bool last = j + kSide == whole_cols;
    const int64_t later = last ? in_step - j * in_pitch : kSide * in_pitch;
    const int64_t across = last ? out_step - j * e : kSide * e;
    for (int64_t i = 0; i < whole_rows;) {
      const int64_t until = i < turn ? turn : whole_rows;
      const int64_t ahead = i < turn ? kRowsAhead * out_pitch : across - turn * out_pitch;
      for (; i < until; i += kSide) {
        const Pitched<const char> tile = from.from(j, i * e);
        const intptr_t asked = reinterpret_cast<intptr_t>(tile.first) + later;
        Wide::transpose(tile, StoredRows{to.from(i, j * e), asked, in_pitch, ahead});
      }
    }
  }
  // What is left, stepping back to a whole tile's side or a lane's.
  const auto begin = [](int64_t count, int64_t left) {
    return left == 0 ? count : count - (left > kLane ? kSide : kLane);
  };
  const int64_t i = begin(rows, rows - whole_rows), j = begin(cols, cols - whole_cols);
  if (i < rows) transpose<I, e>(e, in + i * e, in_pitch, to(i), out_pitch, rows - i, cols);
  if (j < cols) transpose<I, e>(e, from(j), in_pitch, out + j * e, out_pitch, whole_rows, cols - j);
}

// A tile's columns past the caches, to rows at any pitch. Tiles are best in registers (2 bytes, 8191 x 8193
// .64 of a copy in strips, .69), and rows long: of the lines that a piece of the input begins and ends in,
// others have a part.
template <class I, int e, bool to_l1, int abreast>
TX_INLINE void carry_tiles(Pitched<const char> in, Pitched<char> out, int64_t rows, char* carried) {
  using Wide = Tile<I, e, true, to_l1>;
  constexpr int kSide = Wide::kSide, kCols = abreast * kSide;
  const int64_t whole = rows / kSide * kSide;
  const intptr_t later = reinterpret_cast<intptr_t>(in.first) + kCols * in.pitch;
  const CarriedRows<StreamedRows<e>> to{{out, later, in.pitch}, carried};
  Wide::template stream_abreast<abreast>(in, to, 0, whole);
  if (whole < rows) {
    alignas(kLine) char rest[kSide * kLine];  // of the rows that no tile has
    TX_UNROLL for (int t = 0; t < abreast; ++t) {
      const Pitched<const char> from = in.from(t * kSide, whole * e);
      transpose<I, e>(e, from.first, in.pitch, rest, kLine, rows - whole, kSide);
      CarriedRows<StreamedRows<e>> at = to.from(whole, t * kLine);
      for (int64_t r = 0; r < rows - whole; ++r)
        Wide::store(at.template next<false>(), I::load(rest + r * kLine));
    }
    for (int q = 0; q < kCols; ++q) Wide::ask_for(later + q * in.pitch + whole * e);
  }
  for (int q = 0; q < kCols; ++q) Wide::ask_for(later + q * in.pitch + rows * e - 1);
}

// (16 bytes two abreast where lines are asked for into L1, Zen 5, seven matrices, one thread; two, .76 .94 ->
// .88 .95; narrower elements are level or lose.)
template <class I, int e, bool to_l1>
void stream_carried(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                    int64_t cols, char* carried) {
  constexpr int kSide = Tile<I, e, true>::kSide, kAbreast = to_l1 && e == 16 ? 2 : 1;
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  if (split_narrow<I, e, true>(in, in_pitch, CarriedRows<Pitched<char>>{to, carried}, rows, cols)) return;
  int64_t j = 0;
  if constexpr (kAbreast > 1) {
    for (; j + kAbreast * kSide <= cols; j += kAbreast * kSide)
      carry_tiles<I, e, to_l1, kAbreast>(from.from(j, 0), to.from(0, j * e), rows, carried);
  }
  for (; j < cols; j += kSide) carry_tiles<I, e, to_l1, 1>(from.from(j, 0), to.from(0, j * e), rows, carried);
}

// The same where vectors are less than lines, of what no block has: of each row, what is carried lies beside
// what is new in memory, and lines are loaded from any place there.
template <class I, int e>
void stream_carried_by_memory(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                              int64_t cols, char* carried) {
  constexpr int64_t kRows = kLine / e, kMost = 4 * kLine / e;
  const auto copy_line = [](char* to, const char* from) {
    TX_UNROLL for (int64_t b = 0; b < kLine; b += sizeof(typename I::Vec))
        I::store(to + b, I::load(from + b));
  };
  alignas(kLine) char lines[kRows * (kLine + kMost * e)];
  for (int64_t j = 0, width; j < cols; j += width) {
    width = cols - j < kMost ? cols - j : kMost;
    const int64_t bytes = width * e, row_bytes = kLine + bytes;
    for (int64_t i = 0; i < rows; i += kRows) {
      const int64_t count = rows - i < kRows ? rows - i : kRows;
      for (int64_t r = 0; r < count; ++r) copy_line(lines + r * row_bytes, carried + (i + r) * kLine);
      transpose<I, e>(e, in + j * in_pitch + i * e, in_pitch, lines + kLine, row_bytes, count, width);
      for (int64_t r = 0; r < count; ++r) {
        char* const row = out + (i + r) * out_pitch + j * e;
        const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kLine);
        const char* const from = lines + r * row_bytes;
        I::stream(row - place, from + kLine - place, bytes / kLine);
        copy_line(carried + (i + r) * kLine, from + bytes);
      }
    }
  }
}

// In blocks, of Line's vectors.
template <class I, int e, bool to_l1, class Line = I>
void stream_carried_blocks(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                           int64_t cols, char* carried) {
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  const auto tiles = [&](int64_t i, int64_t j, int64_t tile_rows, int64_t tile_cols) {
    if (tile_rows == 0 || tile_cols == 0) return;
    const char* const tile = from(j) + i * e;
    char* const at = to(i) + j * e;
    if constexpr (sizeof(typename I::Vec) == kLine) {
      stream_carried<I, e, to_l1>(tile, in_pitch, at, out_pitch, tile_rows, tile_cols, carried + i * kLine);
    } else {
      stream_carried_by_memory<I, e>(tile, in_pitch, at, out_pitch, tile_rows, tile_cols,
                                     carried + i * kLine);
    }
  };
  transpose_in<Blocks<Line, e, true, true, to_l1>>(from, to, rows, cols, carried, tiles);
}

// Elements of whole lines, past the caches. asks: for those of some columns later, whether or not they exist.
// Of a copy, not asked for, in tiles of 64 x 8 -> asked for, of 64 x 2, Zen 5, two threads; one:
//   heads of 128 bytes, 64 x 512 x 12 -> 0,2,1       .90 .68 -> .99 1.07
//            512 bytes, 8 x 1024 x 32                .88 .72 -> 1.00 1.01
//            256 bytes, 8 x 32 x 4096                .88 .69 -> .98 .93
//   2000 x 2000 of 64 bytes -> 1,0                   .77 .56 -> .88 .87
// Xeon, six, four threads; one                       1.04 1.07 -> .94 .95
template <class I, bool asks>
void stream_lines(int64_t bytes, const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                  int64_t cols) {
  const int64_t tile = rows * cols * bytes;
  const int64_t ahead = (kAskedAhead + tile - 1) / tile * cols * in_pitch;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const char* const from = in + j * in_pitch + i * bytes;
      for (int64_t b = 0; asks && b < bytes; b += kLine) ask_ahead(from + b, ahead);
      I::stream(out + i * out_pitch + j * bytes, from, bytes / kLine);
    }
  }
}

// The kernels that stream at any pitch, as far as I permutes bytes.
template <class I, bool to_l1>
constexpr void add_carried(MicroKernels::Streaming& k) {
  k.carried[1] = stream_carried<I, 2, to_l1>;
  k.carried[2] = stream_carried<I, 4, to_l1>;
  k.carried[3] = stream_carried<I, 8, to_l1>;
  k.carried[4] = stream_carried<I, 16, to_l1>;
  if constexpr (I::template kPermutes<1>) k.carried_blocks[0] = stream_carried_blocks<I, 1, to_l1>;
  k.carried_blocks[1] = stream_carried_blocks<I, 2, to_l1>;
  k.carried_blocks[2] = stream_carried_blocks<I, 4, to_l1>;
  k.carried_blocks[3] = stream_carried_blocks<I, 8, to_l1>;
}

// The streaming kernels, made of Line's vectors, where those are whole lines: I's own, or several as one.
template <class I, class Line>
constexpr MicroKernels::Streaming streaming_kernels() {
  MicroKernels::Streaming k{};
  for (int width = 6; width <= 10; ++width) k.transpose[width] = stream_lines<I, false>;
  if constexpr (sizeof(typename Line::Vec) == kLine) {
    k.transpose[0] = transpose<Line, 1, true>;
    k.transpose[1] = transpose<Line, 2, true>;
    k.transpose[2] = transpose<Line, 4, true>;
    k.transpose[3] = transpose<Line, 8, true>;
    k.transpose[4] = transpose<Line, 16, true>;
    k.blocks[0] = transpose<Line, 1, true, TileOrder::kInBlocks>;
    k.blocks[1] = transpose<Line, 2, true, TileOrder::kInBlocks>;
    k.blocks[2] = transpose<Line, 4, true, TileOrder::kInBlocks>;
  }
  if constexpr (sizeof(typename I::Vec) < kLine && sizeof(typename Line::Vec) == kLine) {
    k.blocks[3] = transpose<Line, 8, true, TileOrder::kInBlocks>;
    k.blocks[4] = transpose<Line, 16, true, TileOrder::kInBlocks>;
    k.carried[0] = stream_carried_by_memory<I, 1>;
    k.carried[1] = stream_carried_by_memory<I, 2>;
    k.carried[2] = stream_carried_by_memory<I, 4>;
    k.carried[3] = stream_carried_by_memory<I, 8>;
    k.carried[4] = stream_carried_by_memory<I, 16>;
    k.carried_blocks[0] = stream_carried_blocks<I, 1, false, Line>;
    k.carried_blocks[1] = stream_carried_blocks<I, 2, false, Line>;
    k.carried_blocks[2] = stream_carried_blocks<I, 4, false, Line>;
    k.carried_blocks[3] = stream_carried_blocks<I, 8, false, Line>;
    k.carried_blocks[4] = stream_carried_blocks<I, 16, false, Line>;
  }
  if constexpr (sizeof(typename I::Vec) == kLine) {
    add_carried<I, false>(k);
    if constexpr (I::template kPermutes<1>) k.carried[0] = stream_carried<I, 1, false>;
    k.carried_blocks[4] = stream_carried_blocks<I, 16, false>;
  }
  return k;
}

// Those that ask for lines into L1, as can_ask_into_l1() in core/prefetch_cpu.h says.
template <class I>
constexpr MicroKernels::Streaming streaming_kernels_to_l1() {
  MicroKernels::Streaming k{};
  for (int width = 6; width <= 10; ++width) k.transpose[width] = stream_lines<I, true>;
  if constexpr (sizeof(typename I::Vec) == kLine) {
    k.transpose[2] = transpose<I, 4, true, TileOrder::kInTurn, true>;
    k.blocks[1] = transpose<I, 2, true, TileOrder::kInBlocks, true>;
    k.blocks[2] = transpose<I, 4, true, TileOrder::kInBlocks, true>;
    k.blocks[3] = transpose<I, 8, true, TileOrder::kInBlocks, true>;
    k.blocks[4] = transpose<I, 16, true, TileOrder::kInBlocks, true>;
    add_carried<I, true>(k);
  }
  return k;
}

template <class I, class Line = I>
constexpr MicroKernels micro_kernels(const char* name) {
  MicroKernels k{
      name,
      {transpose<I, 1>, transpose<I, 2>, transpose<I, 4>, transpose<I, 8>, transpose<I, 16>, transpose<I, 32>,
       transpose<I, 64>, transpose<I, 128>, transpose<I, 256>, transpose<I, 512>, transpose<I, 1024>},
      {transpose<I, 1, false, TileOrder::kInBlocks>, transpose<I, 2, false, TileOrder::kInBlocks>,
       transpose<I, 4, false, TileOrder::kInBlocks>, transpose<I, 8, false, TileOrder::kInBlocks>},
      {transpose<I, 1, false, TileOrder::kCrosswise>, transpose<I, 2, false, TileOrder::kCrosswise>,
       transpose<I, 4, false, TileOrder::kCrosswise>, transpose<I, 8, false, TileOrder::kCrosswise>,
       transpose<I, 16, false, TileOrder::kCrosswise>},
      {nullptr, nullptr, transpose<I, 4, false, TileOrder::kDiagonal>,
       transpose<I, 8, false, TileOrder::kDiagonal>},
      {},
      {transpose_placed<I, 1>, transpose_placed<I, 2>, transpose_placed<I, 4>, transpose_placed<I, 8>,
       transpose_placed<I, 16>, transpose_placed<I, 32>, transpose_placed<I, 64>, transpose_placed<I, 128>,
       transpose_placed<I, 256>, transpose_placed<I, 512>, transpose_placed<I, 1024>},
      {merge_runs<I, 1>, merge_runs<I, 2>, merge_runs<I, 4>},
      {split_runs<I, 1>, split_runs<I, 2>, split_runs<I, 4>},
      Closing<I>::prepare,
      {gather<I, 1>, gather<I, 2>, gather<I, 4>, gather<I, 8>, gather<I, 16>},
      {},
      Pieces<I>::index,
      Pieces<I>::run,
      {Pieces<I>::most(true), Pieces<I>::most(false)},
      {Pieces<I>::unit(true) > 0, Pieces<I>::unit(false) > 0},
      {},
      0,
      {streaming_kernels<I, Line>(), streaming_kernels_to_l1<I>()},
      I::stream,
      I::fence};
  if constexpr (sizeof(typename Line::Vec) == kLine) k.line_vectors = Line::kVectors;
  if constexpr (I::kLanes > 1) {
    k.copy_runs = copy_runs<I>;
    k.transpose_asking[0] = transpose_asking<I, 1>;
    k.transpose_asking[1] = transpose_asking<I, 2>;
    k.transpose_asking[2] = transpose_asking<I, 4>;
    k.transpose_asking[3] = transpose_asking<I, 8>;
    k.transpose_asking[4] = transpose_asking<I, 16>;
  }
  if constexpr (sizeof(typename I::Vec) == kLine) {
    if (Pieces<I>::unit(true) > 0) k.stream_pieces[0] = Pieces<I>::stream;
    if (Pieces<I>::unit(false) > 0) k.stream_pieces[1] = Pieces<I>::stream;
  }
  return k;
}

}  // namespace
}  // namespace tx::cpu
