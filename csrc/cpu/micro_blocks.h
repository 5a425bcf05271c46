// Part of micro_impl.h: matrices in blocks of several tiles, one being read while another is written.
#pragma once

#include <cstdint>

#include "cpu/micro.h"
#include "cpu/micro_rows.h"
#include "cpu/micro_tile.h"

namespace tx::cpu {
namespace {

// Tiles of a block, down and across, in lines' worths, and how many lines of an input row are asked for
// together. By log2 of the element's bytes; down and across the best of one to four. Of a copy, Zen 4; Xeon
// of 16 threads; 4, all with AVX-512: within the caches, three or four matrices whose rows conflict, in the
// shapes of two and four lines before and these, .53 .44 .51; .53 .44 .66; .49 .44 .55 -> .58 .46 .54; .57
// .46 .66; .54 .44 .52. Past them 8192^2, 8000^2 and 4096^2, 2 bytes with two lines down, with one and in the
// shape before .87 .89 .84; .76 .73 .67; .71 .61 .64.
//
// One line of each row after the other is slow to come: the machine's prefetchers follow from the second or
// third on (lines of 8191 x 8193 in 1 byte merely moved, one, two and four asked for together 3.8, 3.1
// and 3.0 ms, and 3.5 without the line that a row's piece ends in). As many as are read at once, and so,
// streamed, four matrices, Zen 4; three, Xeon: 1 byte .77 -> .82; .59 .50 -> .68 .60, 2 bytes .84 -> .86; .75
// .66 -> .76 .65, 4 bytes, which had {4, 2}, .91 -> .91, 2048^2 .60 -> .74; to rows at any pitch, three and
// two, 1 to 16 bytes .58 .68 .77 .66 .79 -> .66 .78 .85 .68 .81; 1 to 4 bytes .51 .56 .61, .41 .47 .50 -> .53
// .59 .68, .44 .54 .59. Within the caches it makes no difference.
struct BlockShape {
  int down, across, together;
};
constexpr BlockShape kStoredBlock[5] = {{1, 4, 1}, {2, 4, 2}, {2, 4, 2}, {4, 4, 4}};
constexpr BlockShape kStreamedBlock[5] = {{1, 2, 4}, {2, 2, 4}, {2, 4, 4}};
constexpr BlockShape kCarriedBlock[5] = {{2, 1, 4}, {2, 2, 4}, {2, 4, 4}, {2, 4, 4}, {2, 4, 8}};

// Tiles in blocks, the next one being read while the last is written, some rows of each by turns: a core that
// reads for long has nothing to write meanwhile (Zen 4, lines of 8191 x 8193 in 4 bytes merely moved, so many
// read and then written: 1 to 4 .97 to .88 of a copy, 8 .88, 16 .71). And of rows that meet in few sets of
// the L1 cache, which fills one set only every few cycles, some lines are read and written at a time, which
// lie in as many sets. carries: to rows at any pitch.
template <class I, int e, bool streaming, bool carries, bool to_l1>
struct Blocks {
  using Wide = Tile<I, e, streaming, to_l1>;
  using Vec = typename I::Vec;
  static constexpr int kSide = Wide::kSide, kLane = Wide::kLane, kLanes = I::kLanes;
  static constexpr int64_t kBytes = sizeof(Vec);
  static constexpr BlockShape kShape = (carries     ? kCarriedBlock
                                        : streaming ? kStreamedBlock
                                                    : kStoredBlock)[__builtin_ctz(e)];
  static constexpr int kDown = kShape.down * kLine / kBytes, kAcross = kShape.across * kLine / kBytes;
  static constexpr int kRows = kDown * kSide, kCols = kAcross * kSide;

  // A block that is read: [t][c] is lane c of the columns of the tile t down, in input order.
  struct Lanes {
    alignas(64) Vec at[kDown][kLanes][kAcross * kLane];
  };

  struct Reader {
    static constexpr int kRead = kLanes * kBytes;  // bytes at a time
    const int64_t pitch;
    Lanes* to = nullptr;
    const char* from = nullptr;
    int tile = 0, row = 0;  // the next, of those down, and of the rows of a lane
    intptr_t asked = 0;     // the row of which lines are asked for, whether or not it exists
    int line = 0;           // the next of them

    TX_MEMBER void begin(const char* block, Lanes& lanes) {
      to = &lanes;
      from = block;
      tile = row = 0;
    }

    // Asks for as many lines as are read meanwhile. At any pitch, what a row has of so many ends in one more.
    TX_MEMBER void ask() {
      constexpr int kLines = kRead < kLine ? 1 : kRead / kLine;
      constexpr bool kWholeRows = kLines % kShape.together == 0;
      if (tile * kRead % kLine != 0) return;
      TX_UNROLL for (int k = 0; k < kLines; ++k) {
        const int now = kWholeRows ? k % kShape.together : line;
        Wide::ask_for(asked + now * kLine);
        line = now + 1;
        if (line < kShape.together) continue;
        if constexpr (carries) Wide::ask_for(asked + line * kLine);
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
    constexpr int kTogether = kLane < kLanes ? kLanes / kLane : 1;  // tiles across that take turns with reads
    constexpr bool kKept = kLane <= 4;  // what is carried stays in registers across the block
    static_assert(kAcross % kTogether == 0);
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
            if (q % kLanes == 0 && reader != nullptr) reader->next();
            char* const row = rows.template next<(kLane > 4)>();
            if constexpr (carries) {
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

  // rows and cols are whole blocks. What streams goes down before it goes across.
  static void transpose(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols,
                        char* carried) {
    if (rows == 0 || cols == 0) return;
    constexpr int64_t kRowsTogether = kShape.together * kLine / e;
    Lanes lanes[2];
    Reader reader{in.pitch};
    int64_t i = 0, j = 0;
    // Asks for the lines that follow those of the blocks from here on down.
    const auto ask = [&] {
      const bool down = streaming && i + kRowsTogether < rows;
      const int64_t row = down ? i + kRowsTogether : streaming ? 0 : i;
      reader.asked = reinterpret_cast<intptr_t>(in.first) + (down ? j : j + kCols) * in.pitch + row * e;
    };
    ask();
    reader.begin(in.first, lanes[0]);
    for (int k = 0; k < kDown * kAcross * kLane; ++k) reader.next();
    for (int now = 0;; now ^= 1) {
      const Pitched<char> to = out.from(i, j * e);
      char* const to_carry = carries ? carried + i * kLine : nullptr;
      const bool last_rows = i + kRows == rows;
      if constexpr (streaming) {
        i += kRows;
        if (i == rows) i = 0, j += kCols;
      } else {
        j += kCols;
        if (j == cols) j = 0, i += kRows;
      }
      if (i == rows || j == cols) return write(lanes[now], to, to_carry, nullptr, last_rows);
      if (i % kRowsTogether == 0) ask();
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
  transpose_in<Block>(in, out, rows, cols, nullptr, tiles);
}

}  // namespace
}  // namespace tx::cpu
