// The micro-kernels, written once over the few operations of a vector type. Included by each micro_<isa>.cpp.
//
// A vector is kLanes lanes of 16 bytes. A square tile, kSide = vector bytes / element bytes on a side, is
// read as whole vectors; its lanes are transposed among vectors as 16-byte elements; then each lane's square
// of elements is transposed by log2 rounds of in-lane interleaving:
//     (v0, v1, v2, v3) -> (lo(v0, v2), hi(v0, v2), lo(v1, v3), hi(v1, v3)).
// Reading and writing whole vectors matters where pitches are powers of two: with 64-byte vectors each cache
// line of the input is read once, and a cache set too small for a tile's rows costs nothing. Remainders are
// tiles of one lane on one side or both, that step back over what is written already and write the same bytes
// again. Sides shorter than a lane have kernels of their own.
//
// All of it is in an anonymous namespace, and calls no std:: function: if two files compiled with different
// flags shared a definition, the linker could keep the one that this machine cannot run.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/narrow.h"
#include "cpu/micro.h"

#ifdef __clang__
#define TX_UNROLL _Pragma("unroll")
#else
#define TX_UNROLL _Pragma("GCC unroll 64")
#endif
#define TX_INLINE __attribute__((always_inline)) static inline

namespace tx::cpu {
namespace {

template <int bytes>
struct Unsigned;
template <>
struct Unsigned<1> {
  using Type = uint8_t;
};
template <>
struct Unsigned<2> {
  using Type = uint16_t;
};
template <>
struct Unsigned<4> {
  using Type = uint32_t;
};
template <>
struct Unsigned<8> {
  using Type = uint64_t;
};

// One lane, in the compiler's own vector extension: punpck on x86, zip on ARM, and whatever else a target
// has.
struct Lane {
  typedef uint8_t Vec __attribute__((vector_size(16)));
  static constexpr int kLanes = 1;
  static constexpr bool kShuffles = false;  // has shuffle(): any bytes of a lane to any place in it
  template <int e>
  static constexpr bool kPermutes = false;  // has permute<e>(): any elements of two vectors to any places

  TX_INLINE Vec load(const char* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  TX_INLINE void store(char* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  TX_INLINE Vec load_lanes(const char* p, int64_t) { return load(p); }
  TX_INLINE void transpose_lanes(Vec*) {}

  template <int e, int first>
  TX_INLINE Vec zip_from(Vec a, Vec b) {
    using T = typename Unsigned<e>::Type;
    typedef T Elements __attribute__((vector_size(16)));
    constexpr int n = 16 / e;
    constexpr auto at = [](int k) { return static_cast<T>(first + k / 2 + k % 2 * n); };
#ifdef __clang__
#define TX_SHUFFLE(...) __builtin_shufflevector((Elements)a, (Elements)b, __VA_ARGS__)
#else
#define TX_SHUFFLE(...) __builtin_shuffle((Elements)a, (Elements)b, Elements{__VA_ARGS__})
#endif
    if constexpr (n == 16) {
      return (Vec)TX_SHUFFLE(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8), at(9), at(10),
                             at(11), at(12), at(13), at(14), at(15));
    } else if constexpr (n == 8) {
      return (Vec)TX_SHUFFLE(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7));
    } else if constexpr (n == 4) {
      return (Vec)TX_SHUFFLE(at(0), at(1), at(2), at(3));
    } else {
      return (Vec)TX_SHUFFLE(at(0), at(1));
    }
#undef TX_SHUFFLE
  }
  template <int e>
  TX_INLINE Vec zip_lo(Vec a, Vec b) {
    return zip_from<e, 0>(a, b);
  }
  template <int e>
  TX_INLINE Vec zip_hi(Vec a, Vec b) {
    return zip_from<e, 8 / e>(a, b);
  }
};

template <class I, int e, bool streaming = false>
struct Tile {
  using Vec = typename I::Vec;
  static constexpr int kLane = 16 / e;             // elements of a lane
  static constexpr int kSide = I::kLanes * kLane;  // elements of a vector
  static constexpr int kBytes = e;
  // Tiles read together, a strip; 4 bytes are faster in registers where their stores leave the caches alone.
  static constexpr int kTiles = e <= (streaming ? 2 : 4) ? 256 / sizeof(Vec) : 1;
  static constexpr int kAhead = 4;

  // Tiles of a block, down and across. The L1 cache fills one set only every few cycles, so rows that meet in
  // few sets are read and written some lines at a time, which lie in as many sets. The best of 64 to 1024
  // bytes on either side, on Zen 5: within the caches at 1024^2 to 3072^2, past them at 2048^2 to 8192^2.
  static constexpr int kDown = (streaming || e == 4 ? 256 : 128) / sizeof(Vec);
  static constexpr int kAcross = (streaming ? 128 : 256) / sizeof(Vec);

  TX_INLINE void store(char* out, Vec v) {
    if constexpr (streaming) {
      I::stream_line(out, v);
    } else {
      I::store(out, v);
    }
  }

  TX_INLINE void transpose_each_lane(Vec* v) {
    if constexpr (kLane > 1) {
      TX_UNROLL for (int done = 1; done < kLane; done *= 2) {
        Vec next[kLane];
        TX_UNROLL for (int r = 0; r < kLane / 2; ++r) {
          next[2 * r] = I::template zip_lo<e>(v[r], v[r + kLane / 2]);
          next[2 * r + 1] = I::template zip_hi<e>(v[r], v[r + kLane / 2]);
        }
        TX_UNROLL for (int r = 0; r < kLane; ++r) v[r] = next[r];
      }
    }
  }

  // A strip: kSide columns and `tiles` x kSide rows. All of an input row's share is read before the next
  // row's, so no cache line is read twice, even where all rows fall in one cache set (pitches near a power of
  // two).
  static void transpose_strip(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int tiles) {
    alignas(64) Vec square[kTiles][I::kLanes][kLane];  // [tile][c][q]: in lane l, lane c of row l * kLane + q
    for (int q = 0; q < kLane; ++q) {
      for (int t = 0; t < tiles; ++t) {
        Vec lanes[I::kLanes];
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) {
          lanes[l] = I::load(in + (l * kLane + q) * in_pitch + t * kSide * e);
        }
        I::transpose_lanes(lanes);
        TX_UNROLL for (int c = 0; c < I::kLanes; ++c) square[t][c][q] = lanes[c];
      }
    }
    for (int t = 0; t < tiles; ++t) {
      for (int c = 0; c < I::kLanes; ++c) {
        Vec v[kLane];
        TX_UNROLL for (int q = 0; q < kLane; ++q) v[q] = square[t][c][q];
        transpose_each_lane(v);
        TX_UNROLL for (int q = 0; q < kLane; ++q)
            store(out + ((t * I::kLanes + c) * kLane + q) * out_pitch, v[q]);
      }
    }
  }

  // A block between its two halves of work: lane c of the rows of tile t, in input order, is at
  // lanes[t * I::kLanes + c]. The odd vector lets these begin in different cache sets.
  struct Block {
    alignas(64) Vec lanes[kDown * I::kLanes][kAcross * kLane + 1];
    char* out = nullptr;
    int down = 0, across = 0;  // tiles
    int row = 0, col = 0;      // the next lane of rows, and of tiles along it, to be stored

    int left() const { return (down * I::kLanes - row) * across - col; }

    // Reads lane by lane kLanes rows of the block. What streams past the caches is read from beyond them: the
    // block `ahead` bytes on is asked for, whether or not it exists.
    TX_INLINE void load(Block& b, const char* in, int64_t in_pitch, int64_t ahead, int n) {
      const int first = n / kLane * kSide + n % kLane;
      for (int t = 0; t < b.down; ++t) {
        Vec v[I::kLanes];
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) {
          const char* const from = in + (first + l * kLane) * in_pitch + t * kSide * e;
          if constexpr (streaming)
            __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<intptr_t>(from) + ahead), 0, 2);
          v[l] = I::load(from);
        }
        I::transpose_lanes(v);
        TX_UNROLL for (int c = 0; c < I::kLanes; ++c) b.lanes[t * I::kLanes + c][n] = v[c];
      }
    }

    // Writes the next kLane rows' part of one tile.
    TX_INLINE void store_next(Block& b, int64_t out_pitch) {
      Vec v[kLane];
      TX_UNROLL for (int q = 0; q < kLane; ++q) v[q] = b.lanes[b.row][b.col * kLane + q];
      transpose_each_lane(v);
      char* const to = b.out + b.row * kLane * out_pitch + b.col * sizeof(Vec);
      TX_UNROLL for (int q = 0; q < kLane; ++q) Tile::store(to + q * out_pitch, v[q]);
      if (++b.col == b.across) b.col = 0, ++b.row;
    }
  };

  // One lane of rows and kSide columns.
  TX_INLINE void transpose_lane_of_rows(const char* in, int64_t in_pitch, char* out, int64_t out_pitch) {
    Vec v[kLane];
    TX_UNROLL for (int q = 0; q < kLane; ++q) v[q] = I::load_lanes(in + q * in_pitch, kLane * in_pitch);
    transpose_each_lane(v);
    TX_UNROLL for (int q = 0; q < kLane; ++q) store(out + q * out_pitch, v[q]);
  }

  // One tile, in registers where they suffice. With `ahead`, the input of the tile kAhead tiles of columns
  // later is asked for, whether or not it exists.
  template <bool ahead = false>
  TX_INLINE void transpose(const char* in, int64_t in_pitch, char* out, int64_t out_pitch) {
    if constexpr (ahead) {
      const intptr_t later = reinterpret_cast<intptr_t>(in) + kAhead * kSide * in_pitch;
      TX_UNROLL for (int q = 0; q < kSide; ++q)
          __builtin_prefetch(reinterpret_cast<const char*>(later + q * in_pitch), 0, 2);
    }
    Vec square[I::kLanes][kLane];
    TX_UNROLL for (int q = 0; q < kLane; ++q) {
      Vec lanes[I::kLanes];
      TX_UNROLL for (int l = 0; l < I::kLanes; ++l) lanes[l] = I::load(in + (l * kLane + q) * in_pitch);
      I::transpose_lanes(lanes);
      TX_UNROLL for (int c = 0; c < I::kLanes; ++c) square[c][q] = lanes[c];
    }
    TX_UNROLL for (int c = 0; c < I::kLanes; ++c) {
      transpose_each_lane(square[c]);
      TX_UNROLL for (int q = 0; q < kLane; ++q) store(out + (c * kLane + q) * out_pitch, square[c][q]);
    }
  }
};

// Rows [row0, rows) and columns [col0, cols) in squares of one lane. Precondition: rows and cols are at least
// a lane.
template <int e>
void transpose_by_lane(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t row0,
                       int64_t rows, int64_t col0, int64_t cols) {
  using T = Tile<Lane, e>;
  for (int64_t j0 = col0; j0 < cols; j0 += T::kSide) {
    const int64_t j = j0 + T::kSide > cols ? cols - T::kSide : j0;
    for (int64_t i0 = row0; i0 < rows; i0 += T::kSide) {
      const int64_t i = i0 + T::kSide > rows ? rows - T::kSide : i0;
      T::transpose(in + i * e + j * in_pitch, in_pitch, out + i * out_pitch + j * e, out_pitch);
    }
  }
}

template <int e>
void transpose_by_element(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                          int64_t cols) {
  if (rows < cols) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j)
        std::memcpy(out + i * out_pitch + j * e, in + i * e + j * in_pitch, e);
    }
  } else {
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < rows; ++i)
        std::memcpy(out + i * out_pitch + j * e, in + i * e + j * in_pitch, e);
    }
  }
}

// One side is from half a lane to less than a lane: its two ends of half a lane overlap, and what is of both
// is moved twice. The other side is at least a lane.
template <int e>
struct Halves {
  static constexpr int kLane = 16 / e, kHalf = 8 / e;  // elements
  typedef uint64_t Ends __attribute__((vector_size(16)));

  TX_INLINE uint64_t half(const char* p) {
    uint64_t bytes;
    std::memcpy(&bytes, p, sizeof bytes);
    return bytes;
  }

  // Which element of the `count` lane element `p` is.
  static int at(int p, int64_t count) { return p < kHalf ? p : p + static_cast<int>(count) - kLane; }

  static bool take(int64_t count) { return kHalf > 1 && count >= kHalf && count < kLane; }

  static void split(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                    int64_t cols) {
    for (int64_t j0 = 0; j0 < cols; j0 += kLane) {
      const int64_t j = j0 + kLane > cols ? cols - kLane : j0;
      Lane::Vec v[kLane];
      TX_UNROLL for (int q = 0; q < kLane; ++q) {
        const char* const from = in + (j + q) * in_pitch;
        v[q] = (Lane::Vec)Ends{half(from), half(from + (rows - kHalf) * e)};
      }
      Tile<Lane, e>::transpose_each_lane(v);
      TX_UNROLL for (int p = 0; p < kLane; ++p) Lane::store(out + at(p, rows) * out_pitch + j * e, v[p]);
    }
  }

  static void merge(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                    int64_t cols) {
    for (int64_t i0 = 0; i0 < rows; i0 += kLane) {
      const int64_t i = i0 + kLane > rows ? rows - kLane : i0;
      Lane::Vec v[kLane];
      TX_UNROLL for (int p = 0; p < kLane; ++p) v[p] = Lane::load(in + i * e + at(p, cols) * in_pitch);
      Tile<Lane, e>::transpose_each_lane(v);
      TX_UNROLL for (int q = 0; q < kLane; ++q) {
        char* const to = out + (i + q) * out_pitch;
        const Ends ends = (Ends)v[q];
        for (int h = 0; h < 2; ++h) {
          const uint64_t bytes = ends[h];
          std::memcpy(to + h * (cols - kHalf) * e, &bytes, 8);
        }
      }
    }
  }
};

// k columns that lie element by element in the input and apart in the output, or the other way round, where k
// elements are less than a lane: a fixed permutation of k vectors, which takes k - 1 permutations of two for
// each, or else of each lane's k x 16 bytes, byte by byte.
template <class I, int e, int k, bool streaming>
struct Narrow {
  using Vec = typename I::Vec;
  static constexpr int kSide = I::kLanes * 16 / e;  // elements of each column in one step

  // Byte b of the separate column c is byte at(c, b) of the k x 16 bytes that hold the elements side by side.
  static constexpr int at(int c, int b) { return (b / e * k + c) * e + b % e; }

  struct Table {
    alignas(16) uint8_t index[k][k][16];  // [result][source][byte]; 0x80 where the byte is of another source
  };
  static constexpr Table split_table() {
    Table t{};
    for (int c = 0; c < k; ++c) {
      for (int m = 0; m < k; ++m) {
        for (int b = 0; b < 16; ++b) t.index[c][m][b] = at(c, b) / 16 == m ? at(c, b) % 16 : 0x80;
      }
    }
    return t;
  }
  static constexpr Table merge_table() {
    Table t{};
    for (int m = 0; m < k; ++m) {
      for (int c = 0; c < k; ++c) {
        for (int b = 0; b < 16; ++b) t.index[m][c][b] = 0x80;
      }
    }
    for (int c = 0; c < k; ++c) {
      for (int b = 0; b < 16; ++b) t.index[at(c, b) / 16][c][at(c, b) % 16] = b;
    }
    return t;
  }
  static constexpr Table kSplit = split_table();
  static constexpr Table kMerge = merge_table();

  // The permutations of two vectors, in units of at most 8 bytes: what is made so far, and source m, become
  // what is made of the sources up to m.
  static constexpr bool kPermutes = I::template kPermutes<e>;
  static constexpr int kUnit = e < 8 ? e : 8;
  static constexpr int kUnits = I::kLanes * 16 / kUnit;
  struct Steps {
    alignas(64) typename Unsigned<kUnit>::Type index[k][k - 1][kUnits];  // [result][m - 1][unit]
  };
  static constexpr Steps steps(bool split) {
    Steps s{};
    for (int r = 0; r < k; ++r) {
      for (int unit = 0; unit < kUnits; ++unit) {
        const int place = r * kSide + unit / (e / kUnit);  // of an element among the k results
        const int from = split ? place % kSide * k + r : place % k * kSide + place / k;
        const int at = from % kSide * (e / kUnit) + unit % (e / kUnit);
        for (int m = 1; m < k; ++m)
          s.index[r][m - 1][unit] = from / kSide == m ? kUnits + at : m == 1 ? at : unit;
      }
    }
    return s;
  }
  static constexpr Steps kSplitSteps = steps(true);
  static constexpr Steps kMergeSteps = steps(false);

  template <bool split>
  TX_INLINE Vec result(const Vec* from, int r) {
    if constexpr (kPermutes) {
      const auto& index = (split ? kSplitSteps : kMergeSteps).index[r];
      Vec v = from[0];
      TX_UNROLL for (int m = 1; m < k; ++m) {
        v = I::template permute<e>(v, from[m], I::load(reinterpret_cast<const char*>(index[m - 1])));
      }
      return v;
    } else {
      const auto& index = (split ? kSplit : kMerge).index[r];
      Vec v = I::shuffle(from[0], index[0]);
      TX_UNROLL for (int m = 1; m < k; ++m) v = I::either(v, I::shuffle(from[m], index[m]));
      return v;
    }
  }

  // Vector m of those that lie side by side.
  TX_INLINE Vec load(const char* in, int m) {
    if constexpr (kPermutes) {
      return I::load(in + m * sizeof(Vec));
    } else {
      return I::load_lanes(in + 16 * m, 16 * k);
    }
  }
  TX_INLINE void store(char* out, int m, Vec v) {
    if constexpr (kPermutes) {
      Tile<I, e, streaming>::store(out + m * sizeof(Vec), v);
    } else if constexpr (streaming) {
      I::stream_lanes(out + 16 * m, 16 * k, v);
    } else {
      I::store_lanes(out + 16 * m, 16 * k, v);
    }
  }

  // count >= kSide elements of each column; the last step goes back over what is written already
  static void split(const char* in, char* out, int64_t out_pitch, int64_t count) {
    for (int64_t n0 = 0; n0 < count; n0 += kSide) {
      const int64_t n = n0 + kSide > count ? count - kSide : n0;
      Vec from[k];
      TX_UNROLL for (int m = 0; m < k; ++m) from[m] = load(in + n * k * e, m);
      TX_UNROLL for (int c = 0; c < k; ++c)
          Tile<I, e, streaming>::store(out + c * out_pitch + n * e, result<true>(from, c));
    }
  }
  static void merge(const char* in, int64_t in_pitch, char* out, int64_t count) {
    for (int64_t n0 = 0; n0 < count; n0 += kSide) {
      const int64_t n = n0 + kSide > count ? count - kSide : n0;
      Vec from[k];
      TX_UNROLL for (int c = 0; c < k; ++c) from[c] = I::load(in + c * in_pitch + n * e);
      TX_UNROLL for (int m = 0; m < k; ++m) store(out + n * k * e, m, result<false>(from, m));
    }
  }

  // Whether it took the block.
  static bool transpose(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                        int64_t cols) {
    if constexpr (is_narrow(k, e)) {
      if (rows == k && in_pitch == k * e && cols >= kSide) return split(in, out, out_pitch, cols), true;
      if (cols == k && out_pitch == k * e && rows >= kSide) return merge(in, in_pitch, out, rows), true;
    }
    return false;
  }
};

// Whether one of the widths k took the block.
template <class I, int e, bool streaming, int... k>
TX_INLINE bool transpose_narrow(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                                int64_t cols) {
  return (Narrow<I, e, k, streaming>::transpose(in, in_pitch, out, out_pitch, rows, cols) || ...);
}

// Whole tiles. Precondition: rows and cols are multiples of the tile's side.
template <class Wide, bool ahead>
void transpose_tiles(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                     int64_t cols) {
  for (int64_t j = 0; j < cols; j += Wide::kSide) {
    for (int64_t i = 0; i < rows; i += Wide::kTiles * Wide::kSide) {
      const int64_t left = (rows - i) / Wide::kSide;
      const char* const from = in + i * Wide::kBytes + j * in_pitch;
      char* const to = out + i * out_pitch + j * Wide::kBytes;
      if constexpr (Wide::kTiles > 1) {
        Wide::transpose_strip(from, in_pitch, to, out_pitch,
                              left < Wide::kTiles ? static_cast<int>(left) : Wide::kTiles);
      } else {
        Wide::template transpose<ahead>(from, in_pitch, to, out_pitch);
      }
    }
  }
}

// The same in blocks, the next one being read while the last is written: neither waits for the other.
template <class Wide>
void transpose_blocks(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                      int64_t cols) {
  using Block = typename Wide::Block;
  const auto tiles = [](int64_t left, int most) {
    return left / Wide::kSide < most ? static_cast<int>(left / Wide::kSide) : most;
  };
  Block blocks[2];
  int now = 0;
  for (int64_t i = 0; i < rows; i += Wide::kDown * Wide::kSide) {
    for (int64_t j = 0; j < cols; j += Wide::kAcross * Wide::kSide) {
      Block &block = blocks[now], &last = blocks[now ^= 1];
      block.out = out + i * out_pitch + j * Wide::kBytes;
      block.down = tiles(rows - i, Wide::kDown);
      block.across = tiles(cols - j, Wide::kAcross);
      block.row = block.col = 0;
      const int steps = block.across * Wide::kLane, stores = last.left() / steps;
      for (int n = 0; n < steps; ++n) {
        Block::load(block, in + i * Wide::kBytes + j * in_pitch, in_pitch,
                    Wide::kAcross * Wide::kSide * in_pitch, n);
        for (int k = 0; k < stores; ++k) Block::store_next(last, out_pitch);
      }
      while (last.left() > 0) Block::store_next(last, out_pitch);
    }
  }
  while (blocks[now ^ 1].left() > 0) Block::store_next(blocks[now ^ 1], out_pitch);
}

// Rows of at most so many bytes are written a lane at a time where they are no tile's: as whole vectors they
// would be read from more places at a time than the machine's prefetchers follow.
constexpr int64_t kLongRowBytes = 512;

template <class I, int e, bool streaming = false, bool in_blocks = false>
void transpose(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows, int64_t cols) {
  using Wide = Tile<I, e, streaming>;
  constexpr int kLane = Tile<Lane, e>::kSide;
  if constexpr (I::kShuffles && e >= 8) {
    if (transpose_narrow<I, e, streaming, 3>(in, in_pitch, out, out_pitch, rows, cols)) return;
  }
  if (rows < kLane || cols < kLane) {
    if constexpr (I::kShuffles && e < 8) {
      if (transpose_narrow<I, e, streaming, 2, 3, 4, 5, 6, 7, 8>(in, in_pitch, out, out_pitch, rows, cols))
        return;
    }
    if constexpr (e < 8) {
      using Two = Halves<e>;
      if (Two::take(rows) && cols >= kLane) return Two::split(in, in_pitch, out, out_pitch, rows, cols);
      if (Two::take(cols) && rows >= kLane) return Two::merge(in, in_pitch, out, out_pitch, rows, cols);
    }
    return transpose_by_element<e>(in, in_pitch, out, out_pitch, rows, cols);
  }
  int64_t wide_rows = rows - rows % Wide::kSide;
  const int64_t wide_cols = cols - cols % Wide::kSide;
  // What streams past the caches is read from beyond them.
  constexpr bool ahead = streaming && Wide::kTiles == 1;
  if constexpr (in_blocks) {
    transpose_blocks<Wide>(in, in_pitch, out, out_pitch, wide_rows, wide_cols);
  } else if (ahead && cols >= Wide::kAhead * Wide::kSide) {
    transpose_tiles<Wide, ahead>(in, in_pitch, out, out_pitch, wide_rows, wide_cols);
  } else {
    transpose_tiles<Wide, false>(in, in_pitch, out, out_pitch, wide_rows, wide_cols);
  }
  if (wide_rows < rows && cols * e > kLongRowBytes) {
    for (int64_t j = 0; j < wide_cols; j += Wide::kSide) {
      for (int64_t i0 = wide_rows; i0 < rows; i0 += kLane) {
        const int64_t i = i0 + kLane > rows ? rows - kLane : i0;
        Wide::transpose_lane_of_rows(in + i * e + j * in_pitch, in_pitch, out + i * out_pitch + j * e,
                                     out_pitch);
      }
    }
    wide_rows = rows;
  }
  transpose_by_lane<e>(in, in_pitch, out, out_pitch, 0, wide_rows, wide_cols, cols);
  transpose_by_lane<e>(in, in_pitch, out, out_pitch, wide_rows, rows, 0, cols);
}

// The streaming kernels are made of Line's vectors, where those are whole lines: I's own, or several as one.
template <class I, class Line = I>
constexpr MicroKernels micro_kernels(const char* name) {
  MicroKernels k{name,
                 {transpose<I, 1>, transpose<I, 2>, transpose<I, 4>, transpose<I, 8>, transpose<I, 16>},
                 {transpose<I, 1, false, true>, transpose<I, 2, false, true>, transpose<I, 4, false, true>},
                 0,
                 {},
                 {},
                 I::stream,
                 I::fence};
  if constexpr (sizeof(typename Line::Vec) == kLine) {
    k.line_vectors = kLine / sizeof(typename I::Vec);
    k.stream_transpose[0] = transpose<Line, 1, true>;
    k.stream_transpose[1] = transpose<Line, 2, true>;
    k.stream_transpose[2] = transpose<Line, 4, true>;
    k.stream_transpose[3] = transpose<Line, 8, true>;
    k.stream_transpose[4] = transpose<Line, 16, true>;
    k.stream_blocks[0] = transpose<Line, 1, true, true>;
    k.stream_blocks[1] = transpose<Line, 2, true, true>;
    k.stream_blocks[2] = transpose<Line, 4, true, true>;
  }
  return k;
}

}  // namespace
}  // namespace tx::cpu
