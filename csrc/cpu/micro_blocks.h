// Part of micro_impl.h: matrices in blocks of several tiles, one being read while another is written.
#pragma once

#include <cstdint>

#include "core/tile_order.h"
#include "cpu/micro.h"
#include "cpu/micro_rows.h"
#include "cpu/micro_tile.h"

namespace tx::cpu {
namespace {

// Tiles in blocks, the next one being read while the last is written, some rows of each by turns: a core that
// reads for long has nothing to write meanwhile (Zen 4, lines of 8191 x 8193 in 4 bytes merely moved, so many
// read and then written: 1 to 4 .97 to .88 of a copy, 8 .88, 16 .71). And of rows that meet in few sets of
// the L1 cache, which fills one set only every few cycles, some lines are read and written at a time, which
// lie in as many sets. carries: to rows at any pitch, of which lines are put together by permute(), or,
// without it, by memory. by_memory: several of a row, that are then written one after the other.
template <class I, int e, bool streaming, bool carries, bool to_l1, bool by_memory = false>
struct Blocks {
  using Wide = Tile<I, e, streaming, to_l1>;
  using Vec = typename I::Vec;
  static constexpr int kSide = Wide::kSide, kLane = Wide::kLane, kLanes = I::kLanes;
  static constexpr int64_t kBytes = sizeof(Vec);
  static constexpr int kWidth = __builtin_ctz(e);
  static constexpr bool kByMemory = by_memory || (carries && !I::template kPermutes<e>);
  static constexpr BlockShape kShape = kByMemory   ? kByMemoryBlock
                                       : carries   ? carried_block(I::kVectors, to_l1, kWidth)
                                       : streaming ? streamed_block(I::kVectors, to_l1, kWidth)
                                                   : kStoredBlock[kBytes == kLine][kWidth];
  static constexpr int kDown = kShape.down * kLine / kBytes, kAcross = kShape.across * kLine / kBytes;
  static constexpr int kRows = kDown * kSide, kCols = kAcross * kSide;

  // A block that is read: [t][c] is lane c of the columns of the tile t down, in input order.
  struct Lanes {
    alignas(64) Vec at[kDown][kLanes][kAcross * kLane];
  };

  struct Reader {
    static constexpr int kRead = kLanes * kBytes;  // bytes at a time
    static constexpr int kLines = kRead < kLine ? 1 : kRead / kLine;
    // What is asked for of a row. (Where a line is several vectors, so, at any pitch, rows fewer than a part
    // has, 41 in 4 bytes and 21 in 8, Zen 3, 1.16 1.02 -> .86 .75; 1 byte, whole lines, fifteen .53 -> .51.)
    static constexpr bool kAtOnce = kLines % kShape.together == 0 && I::kVectors == 1;
    const int64_t pitch;
    Lanes* to = nullptr;
    const char* from = nullptr;
    int tile = 0, row = 0;     // the next, of those down, and of the rows of a lane
    intptr_t asked = 0;        // the row of which lines are asked for, whether or not it exists
    int line = 0;              // the next of them
    int read = 0, wanted = 0;  // lines of a row that are read meanwhile, and that are asked for

    TX_MEMBER void begin(const char* block, Lanes& lanes) {
      to = &lanes;
      from = block;
      tile = row = 0;
    }

    // Asks for as many rows' lines as are read meanwhile. At any pitch, what a row has of so many ends in one
    // more.
    TX_MEMBER void ask() {
      if (tile * kRead % kLine != 0) return;
      TX_UNROLL for (int k = 0; k < kLines; ++k) {
        if constexpr (kAtOnce) {
          line = k % kShape.together;
          Wide::ask_for(asked + line * kLine);
          if (++line < kShape.together) continue;
          if constexpr (carries) Wide::ask_for(asked + line * kLine);
        } else {
          if (line < wanted) Wide::ask_for(asked + line * kLine);
          if (++line < read) continue;
          for (; line < wanted; ++line) Wide::ask_for(asked + line * kLine);
        }
        line = 0;
        asked += pitch;
      }
    }

    // Reads a vector of a row in each lane.
    TX_MEMBER void next() {
      ask();
      Vec v[kLanes];
      TX_UNROLL for (int l = 0; l < kLanes; ++l) v[l] = I::load(from + tile * kBytes + l * kLane * pitch);
      I::transpose_lanes(v);
      TX_UNROLL for (int c = 0; c < kLanes; ++c) to->at[tile][c][row] = v[c];
      if (++tile < kDown) return;
      tile = 0;
      from += pitch;
      if (++row % kLane == 0) from += (kSide - kLane) * pitch;
    }
  };

  // Writes a block while another is read, if one is; its last rows first, where they are a tile's last: the
  // machine's prefetchers run on from row to row, and would take the lines after them from the core that
  // writes those (Zen 4, two threads, three to eight matrices whose rows conflict, 1 to 8 bytes .50 .53 .48
  // .62 of a copy -> .52 .55 .61 .66; 512 x 512 in 4 .50 -> .67).
  static void write(const Lanes& lanes, Pitched<char> out, char* carried, Reader* reader, bool last_rows) {
    // Tiles across that take turns with reads: as many as make a line, or more, so that it is written at
    // once.
    constexpr int kTogether = kShape.at_once * (kLane < kLanes ? kLanes / kLane : kLine / kBytes);
    constexpr int kEvery = kTogether < kLanes ? kLanes / kTogether : 1;  // rows to a turn, or turns to a row
    constexpr int kTurns = kTogether < kLanes ? 1 : kTogether / kLanes;
    constexpr bool kKept = kLane <= 4;  // what is carried stays in registers across the block
    static_assert(kByMemory || kAcross % kTogether == 0);
    if constexpr (kByMemory) return write_by_memory(lanes, out, carried, reader);
    const bool up = !streaming && last_rows;
    const int64_t step = up ? -kLane : kLane;
    if (up) out = out.from(kRows - kLane, 0);
    for (int down = 0; down < kDown; ++down) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const int t = up ? kDown - 1 - down : down, c = up ? kLanes - 1 - lane : lane;
        [[maybe_unused]] Vec last[kLane];
        if constexpr (carries && kKept) {
          TX_UNROLL for (int q = 0; q < kLane; ++q) last[q] = I::load(carried + q * kLine);
        }
        TX_UNROLL for (int a = 0; a < kAcross; a += kTogether) {
          Vec v[kTogether][kLane];
          TX_UNROLL for (int k = 0; k < kTogether; ++k) {
            TX_UNROLL for (int q = 0; q < kLane; ++q) v[k][q] = lanes.at[t][c][(a + k) * kLane + q];
            Wide::transpose_each_lane(v[k]);
          }
          Pitched<char> rows = out.from(0, a * kBytes);
          TX_UNROLL for (int q = 0; q < kLane; ++q) {
            if (q % kEvery == 0 && reader != nullptr) {
              TX_UNROLL for (int r = 0; r < kTurns; ++r) reader->next();
            }
            char* const row = rows.template next<(kLane > 4)>();
            if constexpr (carries && !kByMemory) {
              const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kLine);
              const Vec across = Wide::across(kLine - place);
              if (!kKept) last[q] = I::load(carried + q * kLine);
              TX_UNROLL for (int k = 0; k < kTogether; ++k) {
                I::stream_line(row - place + k * kLine, I::template permute<e>(last[q], v[k][q], across));
                last[q] = v[k][q];
              }
              if (!kKept) I::store(carried + q * kLine, last[q]);
            } else {
              TX_UNROLL for (int k = 0; k < kTogether; ++k) Wide::store(row + k * kBytes, v[k][q]);
            }
          }
        }
        if constexpr (carries && kKept) {
          TX_UNROLL for (int q = 0; q < kLane; ++q) I::store(carried + q * kLine, last[q]);
        }
        out = out.from(step, 0);
        if constexpr (carries) carried += kLane * kLine;
      }
    }
  }

  // Of each row what is carried, if anything, lies beside what is new, and lines are loaded from any place
  // there: of as many rows at a time as keeps loads far enough behind stores that they are in the cache by
  // then.
  static void write_by_memory(const Lanes& lanes, Pitched<char> out, char* carried, Reader* reader) {
    constexpr int kTogether = e < kLanes ? e : kLanes;  // lanes
    constexpr int kRowsTogether = kTogether * kLane;
    constexpr int kEvery = kAcross < kLanes ? kLanes / kAcross : 1;  // rows to a turn, or turns to a row
    constexpr int kTurns = kAcross < kLanes ? 1 : kAcross / kLanes;
    constexpr int64_t kRowBytes = (1 + kAcross) * kLine;
    static_assert(streaming && kBytes == kLine && kRowsTogether % kEvery == 0);
    alignas(kLine) char lines[kRowsTogether * kRowBytes];
    for (int t = 0; t < kDown; ++t) {
      for (int first = 0; first < kLanes; first += kTogether) {
        if constexpr (carries) {
          for (int r = 0; r < kRowsTogether; ++r)
            I::store(lines + r * kRowBytes, I::load(carried + r * kLine));
        }
        for (int c = 0; c < kTogether; ++c) {
          TX_ROLLED for (int a = 0; a < kAcross; ++a) {
            Vec v[kLane];
            TX_UNROLL for (int q = 0; q < kLane; ++q) v[q] = lanes.at[t][first + c][a * kLane + q];
            Wide::transpose_each_lane(v);
            char* const to = lines + c * kLane * kRowBytes + (1 + a) * kLine;
            TX_UNROLL for (int q = 0; q < kLane; ++q) I::store(to + q * kRowBytes, v[q]);
          }
        }
        for (int r = 0; r < kRowsTogether; ++r) {
          if (r % kEvery == 0 && reader != nullptr) {
            TX_UNROLL for (int k = 0; k < kTurns; ++k) reader->next();
          }
          char* const row = out.template next<true>();
          const auto place = carries ? static_cast<int64_t>(reinterpret_cast<uintptr_t>(row) % kLine) : 0;
          const char* const from = lines + r * kRowBytes + kLine;
          TX_UNROLL for (int a = 0; a < kAcross; ++a)
              I::stream_line(row - place + a * kLine, I::load(from - place + a * kLine));
          if constexpr (carries) I::store(carried + r * kLine, I::load(from + (kAcross - 1) * kLine));
        }
        if constexpr (carries) carried += kRowsTogether * kLine;
      }
    }
  }

  // rows and cols are whole blocks. Goes down before it goes across, for the machine's prefetchers to follow.
  // Stored, across first -> so, four or five whose rows conflict, 1 to 8 bytes (Zen 5; with AVX2):
  //   one thread   .51 .48 .46 .50 -> .52 .53 .52 .52; .38 .39 .45 .48 -> .42 .40 .43 .52
  //   two          .42 .50 .42 .52 -> .54 .53 .50 .51; .35 .37 .44 .50 -> .39 .40 .42 .50
  static void transpose(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols,
                        char* carried) {
    if (rows == 0 || cols == 0) return;
    Lanes lanes[2];
    Reader reader{in.pitch};
    // Rows whose lines are asked for together: parts of one size, about, where a row takes more than one
    // read.
    const int64_t most = kShape.together * kLine / e, parts = (rows + most - 1) / most;
    const int64_t part = Reader::kAtOnce ? most : (rows / kRows + parts - 1) / parts * kRows;
    int64_t i = 0, j = 0;
    // Asks for the lines that follow those of the part that begins here, on down.
    const auto ask = [&] {
      const bool down = i + part < rows;
      const int64_t row = down ? i + part : 0;
      const auto lines = [&](int64_t from) {
        return static_cast<int>((rows - from < part ? rows - from : part) * e / kLine);
      };
      reader.read = lines(i);
      reader.wanted = lines(row) + (carries ? 1 : 0);
      reader.asked = reinterpret_cast<intptr_t>(in.first) + (down ? j : j + kCols) * in.pitch + row * e;
    };
    ask();
    reader.begin(in.first, lanes[0]);
    for (int k = 0; k < kDown * kAcross * kLane; ++k) reader.next();
    for (int now = 0;; now ^= 1) {
      const Pitched<char> to = out.from(i, j * e);
      char* const to_carry = carries ? carried + i * kLine : nullptr;
      const bool last_rows = i + kRows == rows;
      i += kRows;
      if (i == rows) i = 0, j += kCols;
      if (j == cols) return write(lanes[now], to, to_carry, nullptr, last_rows);
      if (i % part == 0) ask();
      reader.begin(in(j) + i * e, lanes[now ^ 1]);
      write(lanes[now], to, to_carry, &reader, last_rows);
    }
  }
};

// In blocks, and by tiles(row, col, rows, cols) what no block has.
template <class Block, class Tiles>
TX_INLINE void transpose_in(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols,
                            char* carried, const Tiles& tiles) {
  const int64_t i = rows - rows % Block::kRows, j = cols - cols % Block::kCols;
  Block::transpose(in, out, i, j, carried);
  tiles(i, 0, rows - i, j);
  tiles(0, j, rows, cols - j);
}

// Precondition: rows and cols are whole tiles.
template <class I, int e, bool streaming, bool to_l1>
void transpose_blocks(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols) {
  using Block = Blocks<I, e, streaming, false, to_l1>;
  const auto tiles = [&](int64_t i, int64_t j, int64_t tile_rows, int64_t tile_cols) {
    const Pitched<const char> from = in.from(j, i * e);
    const Pitched<char> to = out.from(i, j * e);
    if constexpr (streaming) {
      stream_tiles<typename Block::Wide>(from, to, tile_rows, tile_cols);
    } else {
      transpose_tiles<typename Block::Wide>(from, to, tile_rows, tile_cols);
    }
  };
  if constexpr (streaming && I::kVectors > 1 && e <= 4) {
    if (streams_by_memory(e, out.pitch))
      return transpose_in<Blocks<I, e, true, false, to_l1, true>>(in, out, rows, cols, nullptr, tiles);
  }
  transpose_in<Block>(in, out, rows, cols, nullptr, tiles);
}

}  // namespace
}  // namespace tx::cpu
