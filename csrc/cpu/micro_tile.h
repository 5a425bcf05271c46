// Part of micro_impl.h: square tiles in registers, and matrices in tiles.
//
// A vector is kLanes lanes of 16 bytes. A square tile, kSide = vector bytes / element bytes on a side, is
// read as whole vectors; its lanes are transposed among vectors as 16-byte elements; then each lane's square
// of elements is transposed by log2 rounds of in-lane interleaving:
//     (v0, v1, v2, v3) -> (lo(v0, v2), hi(v0, v2), lo(v1, v3), hi(v1, v3)).
// Reading and writing whole vectors matters where pitches are powers of two: with 64-byte vectors each cache
// line of the input is read once, and a cache set too small for a tile's rows costs nothing. Remainders are
// tiles of one lane on one side or both, that step back over what is written already and write the same bytes
// again. Sides shorter than a lane have kernels of their own.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/tile_order.h"
#include "cpu/micro.h"
#include "cpu/micro_rows.h"

namespace tx::cpu {
namespace {

// One lane, in the compiler's own vector extension: punpck on x86, zip on ARM, and whatever else a target
// has.
struct Lane {
  typedef uint8_t Vec __attribute__((vector_size(16)));
  static constexpr int kLanes = 1;
  static constexpr int kVectors = 1;          // of the machine's that it is
  static constexpr bool kLoadsParts = false;  // has load_part(), store_part()
  static constexpr bool kShuffles = false;    // has shuffle(): any bytes of a lane to any place in it
  template <int e>
  static constexpr bool kPermutes = false;  // has permute<e>(): any elements of two vectors to any places

  TX_INLINE Vec load(const char* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  TX_INLINE void store(char* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  typedef uint64_t Words __attribute__((vector_size(16)));
  TX_INLINE Vec load(Ends<const char> from) {
    Words v;
    std::memcpy(&v, from.first, 8);
    std::memcpy(reinterpret_cast<char*>(&v) + 8, from.last, 8);
    return (Vec)v;
  }
  TX_INLINE Vec load(Four from) { return (Vec)from.load(); }
  TX_INLINE void store(Ends<char> to, Vec v) {
    std::memcpy(to.first, &v, 8);
    std::memcpy(to.last, reinterpret_cast<const char*>(&v) + 8, 8);
  }
  template <class At>
  TX_INLINE Vec load_lanes(At at) {  // lane l from at(l)
    return load(at(0));
  }
  template <class At>
  TX_INLINE void store_lanes(At at, Vec v) {
    store(at(0), v);
  }
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

// Vectors of odd elements: spread out to e bytes each when they are read, closed up when they are written.
template <class I, int e>
struct Spread : I {
  using Vec = typename I::Vec;
  static constexpr int kElements = sizeof(Vec) / e, kLaneElements = 16 / e;
  // Whole vectors at once, and not lane by lane.
  static constexpr bool kWhole = I::kLoadsParts && I::template kPermutes<1>;

  // By an element's bytes: where each byte of a vector, or a lane, comes from.
  template <int size>
  struct Index {
    alignas(size) uint8_t spread[e][size];
    alignas(size) uint8_t close[e][size];
  };
  static constexpr int spread_from(int b, int bytes) { return b % e < bytes ? b / e * bytes + b % e : 0; }
  static constexpr int close_from(int b, int bytes) { return b / bytes * e + b % bytes; }
  static constexpr auto whole_index() {
    Index<sizeof(Vec)> index{};
    for (int bytes = e / 2 + 1; bytes < e; ++bytes) {
      for (int b = 0; b < static_cast<int>(sizeof(Vec)); ++b) {
        index.spread[bytes][b] = static_cast<uint8_t>(spread_from(b, bytes));
        index.close[bytes][b] = static_cast<uint8_t>(b < kElements * bytes ? close_from(b, bytes) : 0);
      }
    }
    return index;
  }
  // A lane's bytes in memory are its Ends.
  static constexpr auto lane_index() {
    Index<16> index{};
    for (int bytes = e / 2 + 1; bytes < e; ++bytes) {
      const int gap = 16 - kLaneElements * bytes;
      for (int b = 0; b < 16; ++b) {
        const int from = spread_from(b, bytes);
        index.spread[bytes][b] = static_cast<uint8_t>(from < 8 ? from : from + gap);
        index.close[bytes][b] = static_cast<uint8_t>(close_from(b < 8 ? b : b - gap, bytes));
      }
    }
    return index;
  }
  static constexpr Index<sizeof(Vec)> kWholeIndex = whole_index();
  static constexpr Index<16> kLaneIndex = lane_index();

  template <class Byte>
  TX_INLINE Ends<Byte> ends(Odd<e, Byte> at) {
    return {at.first, at.first + kLaneElements * at.bytes - 8};
  }
  TX_INLINE Vec index(const uint8_t* bytes) { return I::load(reinterpret_cast<const char*>(bytes)); }

  template <class At>
  TX_INLINE Vec load_lanes(At at) {
    return I::shuffle(I::load_lanes([&](int l) { return ends(at(l)); }), kLaneIndex.spread[at(0).bytes]);
  }
  template <class At>
  TX_INLINE void store_lanes(At at, Vec v) {
    I::store_lanes([&](int l) { return ends(at(l)); }, I::shuffle(v, kLaneIndex.close[at(0).bytes]));
  }
  TX_INLINE Vec load(Odd<e, const char> from) {
    if constexpr (kWhole) {
      const Vec v = I::load_part(from.first, kElements * from.bytes);
      return I::permute_bytes(v, index(kWholeIndex.spread[from.bytes]));
    } else {
      return load_lanes([&](int l) { return from + 16 * l; });
    }
  }
  TX_INLINE void store(Odd<e, char> to, Vec v) {
    if constexpr (kWhole) {
      I::store_part(to.first, kElements * to.bytes, I::permute_bytes(v, index(kWholeIndex.close[to.bytes])));
    } else {
      store_lanes([&](int l) { return to + 16 * l; }, v);
    }
  }
};

// The words of a line, counted from 0 on.
template <class Word>
struct Counting {
  alignas(kLine) Word words[kLine / sizeof(Word)] = {};
  constexpr Counting() {
    for (Word k = 0; k < static_cast<Word>(kLine / sizeof(Word)); ++k) words[k] = k;
  }
};
template <class Word>
inline constexpr Counting<Word> kCounting;

// to_l1: lines that are asked for come into the L1 cache, and else into L2.
template <class I, int e, bool streaming = false, bool to_l1 = false>
struct Tile {
  using Vec = typename I::Vec;
  static constexpr int kLane = 16 / e;             // elements of a lane
  static constexpr int kSide = I::kLanes * kLane;  // elements of a vector
  static constexpr int kBytes = e;

  // What a line has of two that follow one another, from `place` bytes of the first on: an index for permute.
  // (Read from where a longer table has it, 8191 x 8193 in 4 bytes, Zen 5, one thread .70 -> .63 of a copy.)
  TX_INLINE Vec across(int64_t place) {
    constexpr int kWord = e < 8 ? e : 8;
    const auto* const counting = kCounting<typename Unsigned<kWord>::Type>.words;
    return I::template plus<kWord>(I::load(reinterpret_cast<const char*>(counting)), place / kWord);
  }

  TX_INLINE void ask_for(intptr_t line) {
    __builtin_prefetch(reinterpret_cast<const char*>(line), 0, to_l1 ? 3 : 2);
  }

  template <class To>
  TX_INLINE void store(To out, Vec v) {
    if constexpr (std::is_same_v<To, StoredRow>) {
      ask_for(out.later);
      ask_for(reinterpret_cast<intptr_t>(out.to) + out.ahead);
      I::store(out.to, v);
    } else if constexpr (std::is_same_v<To, StreamedRow>) {
      ask_for(out.later);
      I::stream_line(out.to, v);
    } else if constexpr (std::is_same_v<To, CarriedRow<StreamedRow>>) {
      ask_for(out.row.later);
      store(CarriedRow<char*>{out.row.to, out.carried}, v);
    } else if constexpr (std::is_same_v<To, CarriedRow<char*>>) {
      const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.row) % kLine);
      const Vec line = I::template permute<e>(I::load(out.carried), v, across(kLine - place));
      I::stream_line(out.row - place, line);
      I::store(out.carried, v);
    } else if constexpr (streaming) {
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

  // One lane of rows and kSide columns.
  template <class In, class Out>
  TX_INLINE void transpose_lane_of_rows(In in, Out out) {
    Vec v[kLane];
    TX_UNROLL for (int q = 0; q < kLane; ++q) v[q] = I::load_lanes([&](int l) { return in(l * kLane + q); });
    transpose_each_lane(v);
    TX_UNROLL for (int q = 0; q < kLane; ++q) store(out(q), v[q]);
  }

  // kSide rows and one lane of columns.
  template <class In, class Out>
  TX_INLINE void transpose_lane_of_cols(In in, Out out) {
    Vec v[kLane];
    TX_UNROLL for (int q = 0; q < kLane; ++q) v[q] = I::load(in(q));
    transpose_each_lane(v);
    TX_UNROLL for (int q = 0; q < kLane; ++q) I::store_lanes([&](int l) { return out(l * kLane + q); }, v[q]);
  }

  // (16 bytes: a tile that streams takes 26 instructions, and row by row 50.)
  static constexpr bool kMany = kSide > 4;

  // So many tiles side by side, in registers where they suffice, of which each row is written at once: the
  // compiler keeps the rest in memory better than code that says when (Zen 4 with AVX-512, 72 matrices of .06
  // to 8 MB drawn at random, by way of an array 1 byte .90, 2 bytes 1.00; four or eight tiles of 1 byte at a
  // time, with AVX2, .85).
  template <int abreast = 1, class In, class Out>
  TX_INLINE void transpose(In in, Out out) {
    Vec square[abreast][I::kLanes][kLane];
    TX_UNROLL for (int t = 0; t < abreast; ++t) {
      In rows[I::kLanes];
      TX_UNROLL for (int l = 0; l < I::kLanes; ++l) rows[l] = in.from(t * kSide + l * kLane, 0);
      TX_UNROLL for (int q = 0; q < kLane; ++q) {
        Vec lanes[I::kLanes];
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) lanes[l] = I::load(take<kMany>(rows[l], q));
        I::transpose_lanes(lanes);
        TX_UNROLL for (int c = 0; c < I::kLanes; ++c) square[t][c][q] = lanes[c];
      }
    }
    TX_UNROLL for (int c = 0; c < I::kLanes; ++c) {
      TX_UNROLL for (int t = 0; t < abreast; ++t) transpose_each_lane(square[t][c]);
      TX_UNROLL for (int q = 0; q < kLane; ++q) {
        const auto row = take<kMany>(out, c * kLane + q);
        store(row, square[0][c][q]);
        if constexpr (abreast > 1) {
          TX_UNROLL for (int t = 1; t < abreast; ++t) store(row + t * kSide * e, square[t][c][q]);
        }
      }
    }
  }

  // The same, one after the other.
  template <int abreast, class In, class Out>
  TX_INLINE void transpose_each(In in, Out out) {
    TX_UNROLL for (int t = 0; t < abreast; ++t) transpose(in.from(t * kSide, 0), out.from(0, t * kSide * e));
  }

  // Rows [first, last) of so many tiles side by side, of which each row is written that many lines at a time.
  template <int abreast, class In, class Out>
  TX_INLINE void stream_abreast(In in, Out out, int64_t first, int64_t last) {
    constexpr int64_t kBytes = sizeof(Vec);
    in = in.from(0, first * e);
    out = out.from(first, 0);
    for (int64_t i = first; i < last; i += kSide, in = in.from(0, kBytes), out = out.from(kSide, 0)) {
      transpose_each<abreast>(in, out);
    }
  }
};

// Rows [row0, rows) and columns [col0, cols) in squares of one lane. Precondition: rows and cols are at least
// a lane.
template <int e, class In, class Out>
void transpose_by_lane(In in, Out out, int64_t row0, int64_t rows, int64_t col0, int64_t cols) {
  using T = Tile<Lane, e>;
  for (int64_t j0 = col0; j0 < cols; j0 += T::kSide) {
    const int64_t j = j0 + T::kSide > cols ? cols - T::kSide : j0;
    for (int64_t i0 = row0; i0 < rows; i0 += T::kSide) {
      const int64_t i = i0 + T::kSide > rows ? rows - T::kSide : i0;
      T::transpose(in.from(j, i * e), out.from(i, j * e));
    }
  }
}

template <int e>
TX_INLINE void move_element(char* to, const char* from) {
  std::memcpy(to, from, e);
}
template <int e>
TX_INLINE void move_element(Odd<e, char> to, Odd<e, const char> from) {
  constexpr int64_t kPart = e < 256 ? e / 2 : e / 8;  // that the last one may move again
  int64_t b = e / 2;
  std::memcpy(to.first, from.first, e / 2);
  for (; b + kPart < to.bytes; b += kPart) std::memcpy(to.first + b, from.first + b, kPart);
  b = to.bytes - kPart;
  std::memcpy(to.first + b, from.first + b, kPart);
}

template <int e, class In, class Out>
void transpose_by_element(In in, Out out, int64_t rows, int64_t cols) {
  if (rows < cols) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) move_element<e>(out(i) + j * e, in(j) + i * e);
    }
  } else {
    for (int64_t j = 0; j < cols; ++j) {
      for (int64_t i = 0; i < rows; ++i) move_element<e>(out(i) + j * e, in(j) + i * e);
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

  template <class In, class Out>
  static void split(In in, Out out, int64_t rows, int64_t cols) {
    for (int64_t j0 = 0; j0 < cols; j0 += kLane) {
      const int64_t j = j0 + kLane > cols ? cols - kLane : j0;
      Lane::Vec v[kLane];
      TX_UNROLL for (int q = 0; q < kLane; ++q) {
        const char* const from = in(j + q);
        v[q] = (Lane::Vec)Ends{half(from), half(from + (rows - kHalf) * e)};
      }
      Tile<Lane, e>::transpose_each_lane(v);
      TX_UNROLL for (int p = 0; p < kLane; ++p) Lane::store(out(at(p, rows)) + j * e, v[p]);
    }
  }

  template <class In, class Out>
  static void merge(In in, Out out, int64_t rows, int64_t cols) {
    for (int64_t i0 = 0; i0 < rows; i0 += kLane) {
      const int64_t i = i0 + kLane > rows ? rows - kLane : i0;
      Lane::Vec v[kLane];
      TX_UNROLL for (int p = 0; p < kLane; ++p) v[p] = Lane::load(in(at(p, cols)) + i * e);
      Tile<Lane, e>::transpose_each_lane(v);
      TX_UNROLL for (int q = 0; q < kLane; ++q) {
        char* const to = out(i + q);
        const Ends ends = (Ends)v[q];
        for (int h = 0; h < 2; ++h) {
          const uint64_t bytes = ends[h];
          std::memcpy(to + h * (cols - kHalf) * e, &bytes, 8);
        }
      }
    }
  }
};

// Rows, or columns, that are moved as whole vectors: where more than a lane would be left, the last tile
// steps back over what is written already (Zen 5, 300 x 333 in 8 bytes .33 -> .38 of a copy, 40 x 7 x 9 x 11
// x 13 -> 0,1,4,3,2 in 4 .28 -> .40). Past the caches nothing is written twice.
template <class Wide>
int64_t covered_by_tiles(int64_t count, bool streaming) {
  const int64_t left = count % Wide::kSide;
  return left > Wide::kLane && count > Wide::kSide && !streaming ? count : count - left;
}

// Tiles that are moved side by side, by lanes of a vector, one, two and four, and log2 of the element's
// bytes: as many as make a line of the output, so that none waits for its other parts, or two lines, of which
// rows at any pitch have parts. Of a copy, one alone -> so
//   Zen 3, AVX2, 24 matrices a width of .1 to 6 MB, one thread; two, 2 to 16 bytes
//     .69 .80 .82 .90; .63 .70 .76 .87 -> .71 .84 .86 .94; .65 .74 .79 .90
//     portable, 1 to 16 bytes, one            .35 .50 .60 .66 .72 -> .39 .56 .71 .82 .90
//   Xeon, AVX-512, 16 each of .05 to 1 MB, one thread; 16, 8 and 16 bytes
//     whole lines                             .81 .88; .87 .95 -> .88 .93; .91 .98
//     any pitch                               .49 .55; .53 .59 -> .63 .65; .65 .70
//     eight in 4 bytes, any pitch             .40; .42 -> .48; .53
//     but whole lines                         .75; .74 -> .71; .71
//   Xeon, AVX2, 14 of 16 bytes, one line -> two, whole; any pitch    .81; .63 -> .89; .73
//     but portable, 8 bytes, whole                                   .72 -> .59
constexpr int kTilesAbreast[3][5] = {{2, 4, 4, 4, 4}, {1, 2, 2, 2, 4}, {1, 1, 2, 2, 2}};

// Of these, bytes that registers hold at once, for each row to be written whole before the next: more are
// moved one tile after the other (each tile's rows before the other's, Xeon, AVX2, six of whole lines in 8
// and 16 bytes, .87 .94 -> .56 .50; but at once, Zen 3, AVX2, in 2 and 4 bytes, .67 .81 -> .57 .79).
template <int vec_bytes>
constexpr int kBytesAtOnce = vec_bytes == kLine ? 2048 : 256;

// So many tiles side by side, on down the rows, of which the last may step back. (Of places that are computed
// anew for each tile GCC makes code that takes up to a fifth longer: Zen 4, one thread, six problems within
// L2, of a copy, 4 and 8 bytes .83 .89 -> 1.00 .94; two, 72 problems a width drawn at random, 2, 4 and 8
// bytes .69 .62 .71 -> .72 .68 .76.)
template <class Wide, int abreast, class In, class Out>
TX_INLINE void transpose_down(In from, Out to, int64_t rows) {
  constexpr int64_t kSide = Wide::kSide, e = Wide::kBytes;
  constexpr int kVecBytes = sizeof(typename Wide::Vec);
  constexpr bool at_once = abreast * kSide * kVecBytes <= kBytesAtOnce<kVecBytes>;
  for (int64_t left = rows - kSide; left >= 0;) {
    if constexpr (at_once) {
      Wide::template transpose<abreast>(from, to);
    } else {
      Wide::template transpose_each<abreast>(from, to);
    }
    if (left == 0) break;
    const int64_t step = left < kSide ? left : kSide;
    left -= step;
    from = from.from(0, step * e);
    to = to.from(step, 0);
  }
}

// Whether so many rows of the input, read together, meet in an L1 cache: more in a set than it has ways.
TX_INLINE bool input_rows_meet(int rows, int64_t pitch) {
  return rows > kL1Ways && pitch % (2 * kL1Ways * kL1WayBytes / rows) == 0;
}

// In tiles, of which the last may step back: one alone where rows meet, or are whole lines of 4 bytes and so
// are vectors, and of those at places of their own no more than read eight rows of the input. Precondition:
// rows and cols are none, or a tile's side at least.
template <class Wide, class In, class Out>
void transpose_tiles(In in, Out out, int64_t rows, int64_t cols) {
  constexpr int kSide = Wide::kSide, e = Wide::kBytes;
  constexpr int kLanes = sizeof(typename Wide::Vec) / 16,
                kTiles = kTilesAbreast[kLanes / 2][__builtin_ctz(e)];
  constexpr bool pitched = std::is_same_v<In, Pitched<const char>> && std::is_same_v<Out, Pitched<char>>;
  constexpr int kAbreast = pitched || kTiles * kSide <= 8 ? kTiles : 8 / kSide;
  int64_t j = 0;
  if constexpr (kAbreast > 1) {
    bool alone = false;
    if constexpr (pitched) {
      alone =
          input_rows_meet(kAbreast * kSide, in.pitch) || (kLanes == 4 && e == 4 && out.pitch % kLine == 0);
    }
    for (; !alone && j + kAbreast * kSide <= cols; j += kAbreast * kSide)
      transpose_down<Wide, kAbreast>(in.from(j, 0), out.from(0, j * e), rows);
  }
  for (; j < cols; j += kSide) {
    const int64_t at = j + kSide > cols ? cols - kSide : j;
    transpose_down<Wide, 1>(in.from(at, 0), out.from(0, at * e), rows);
  }
}

// Corner k of a square of two by two tiles, whose opposite one is the next of an even k. The square may be
// cut off at `rows` and `cols`.
template <class Wide, class In, class Out>
TX_INLINE void transpose_corner(In in, Out out, int64_t rows, int64_t cols, int64_t row, int64_t col, int k) {
  constexpr int64_t kSide = Wide::kSide, e = Wide::kBytes;
  const int64_t i1 = row + (k == 0 || k == 3 ? kSide : 0), j1 = col + (k % 2 == 1 ? kSide : 0);
  if (i1 >= rows || j1 >= cols) return;
  const int64_t i = i1 + kSide > rows ? rows - kSide : i1, j = j1 + kSide > cols ? cols - kSide : j1;
  Wide::transpose(in.from(j, i * e), out.from(i, j * e));
}

// The same in squares of two by two tiles, corner after opposite corner, so that of lines side by side, each
// a tile's, one is read or written when two tiles have passed since the other.
template <class Wide, class In, class Out>
void cross_tiles(In in, Out out, int64_t rows, int64_t cols) {
  constexpr int64_t kSquare = 2 * Wide::kSide;
  for (int64_t j = 0; j < cols; j += kSquare) {
    for (int64_t i = 0; i < rows; i += kSquare) {
      TX_ROLLED for (int k = 0; k < 4; ++k) transpose_corner<Wide>(in, out, rows, cols, i, j, k);
    }
  }
}

// Such squares along diagonals, one corner of each after the other, so that each tile is of other rows and
// other columns than the last.
template <class Wide, class In, class Out>
void cross_diagonally(In in, Out out, int64_t rows, int64_t cols) {
  constexpr int64_t kSquare = 2 * Wide::kSide, kHigh = 2 * kSquare, kLong = 4 * kSquare;
  for (int64_t col = 0; col < cols; col += kLong) {
    const int64_t right = cols - col < kLong ? cols : col + kLong;
    for (int64_t row = 0; row < rows; row += kHigh) {
      const int64_t below = rows - row < kHigh ? rows : row + kHigh;
      for (int64_t first = row; first < below; first += kSquare) {
        TX_ROLLED for (int k = 0; k < 4; ++k) {
          int64_t i = first;
          for (int64_t j = col; j < right; j += kSquare) {
            transpose_corner<Wide>(in, out, rows, cols, i, j, k);
            i = i + kSquare < below ? i + kSquare : row;
          }
        }
      }
    }
  }
}

// Rows of at most so many bytes are written a lane at a time where they are no tile's: as whole vectors they
// would be read from more places at a time than the machine's prefetchers follow.
constexpr int64_t kLongRowBytes = 512;

// Tiles past the caches to rows that are whole lines. In bands of 32 and 64 rows across all columns, whose
// lines were asked for all at once, and one, two and four abreast down all rows (Zen 4, four matrices, of a
// copy): 4 bytes .81, .75 .89 .85, 8 bytes .88, .76 .89 .87, 16 bytes .84, .74 .88 .87.
template <class Wide>
void stream_tiles(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols) {
  constexpr int e = Wide::kBytes, kSide = Wide::kSide, kAbreast = 2;
  constexpr int64_t kBandRows = e < 8 ? 64 : 32;
  // Few rows are written one line at a time (1000000 x 16 in 8 bytes, two and so, .85 -> .97), and short ones
  // to their ends before others.
  const bool narrow = rows <= kBandRows || out.pitch <= kLongRowBytes;
  const int64_t band = narrow ? kBandRows : rows;
  for (int64_t i = 0; i < rows; i += band) {
    const int64_t last = rows - i < band ? rows : i + band;
    int64_t j = 0;
    const auto stream = [&]<int abreast>() {
      const intptr_t later = reinterpret_cast<intptr_t>(in.first) + (j + abreast * kSide) * in.pitch;
      const StreamedRows<e> to{out.from(0, j * e), later, in.pitch};
      Wide::template stream_abreast<abreast>(in.from(j, 0), to, i, last);
      j += abreast * kSide;
    };
    while (!narrow && j + kAbreast * kSide <= cols) stream.template operator()<kAbreast>();
    while (j < cols) stream.template operator()<1>();
  }
}

}  // namespace
}  // namespace tx::cpu
