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
#include <type_traits>

#include "core/narrow.h"
#include "cpu/micro.h"

#ifdef __clang__
#define TX_UNROLL _Pragma("unroll")
#else
#define TX_UNROLL _Pragma("GCC unroll 64")
#endif
#define TX_MEMBER __attribute__((always_inline)) inline
#define TX_INLINE static TX_MEMBER
// An address that lies a pitch behind the last one. Left to itself, GCC keeps multiples of the pitch in
// memory, one for each row: a tile of 2 bytes that carries took 966 instructions and takes 719, of 4 bytes
// 456 and 347 (Zen 4, rows that are carried, 36 matrices drawn at random, of a copy: 2 bytes .64 -> .72, 4
// bytes .80 -> .87, 8 bytes .83 -> .88).
#define TX_NEXT_ROW(address) asm("" : "+r"(address))

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

// Two words of 8 bytes that may overlap: the ends of what is less than a lane and at least a half.
template <class Byte>
struct Ends {
  Byte *first, *last;
};

// Where an element lies that has more than half of e bytes, and less than e.
template <int e, class Byte>
struct Odd {
  Byte* first;
  int64_t bytes;
  // `n` is counted as if it had e bytes.
  TX_MEMBER Odd operator+(int64_t n) const { return {first + n / e * bytes, bytes}; }
};

// Where a matrix's rows lie: `pitch` bytes apart, or wherever a table says. next() takes them one by
// one.
template <class Byte>
struct Pitched {
  Byte* first;
  int64_t pitch;
  TX_MEMBER Byte* operator()(int64_t row) const { return first + row * pitch; }
  template <bool many>
  TX_MEMBER Byte* next() {
    Byte* const row = first;
    first += pitch;
    if constexpr (many) TX_NEXT_ROW(first);
    return row;
  }
  TX_MEMBER Pitched from(int64_t row, int64_t bytes) const { return {first + row * pitch + bytes, pitch}; }
};
template <class Byte>
struct Placed {
  Byte* first;
  const int64_t* places;  // bytes from `first` to each row
  TX_MEMBER Byte* operator()(int64_t row) const { return first + places[row]; }
  TX_MEMBER Placed from(int64_t row, int64_t bytes) const { return {first + bytes, places + row}; }
};
// The next row, number `row`, of those that are taken one by one; or that row of others. many: of a tile's
// rows, more than there are registers for multiples of their pitch.
template <bool many, class Rows>
TX_INLINE auto take(Rows& rows, int64_t row) {
  if constexpr (requires { rows.template next<many>(); }) {
    return rows.template next<many>();
  } else {
    return rows(row);
  }
}

// Rows of which whole lines are streamed. With each a line of the input is asked for, that of a row of the
// tile to come, whether or not it exists: all at once are more than a core can queue (six matrices, of a
// copy, all at once and so, Zen 4, 1 to 16 bytes .56 .63 .66 .81 .85 -> .62 .64 .71 .80 .86; Xeon, 16
// threads, 2 and 4 bytes .62 .65 -> .64 .66).
struct StreamedRow {
  char* to;
  intptr_t later;
};
template <int e>
struct StreamedRows {
  Pitched<char> to;
  intptr_t later;
  int64_t later_pitch;
  template <bool many>
  TX_MEMBER StreamedRow next() {
    const StreamedRow row{to.next<many>(), later};
    later += later_pitch;
    if constexpr (many) TX_NEXT_ROW(later);
    return row;
  }
  TX_MEMBER StreamedRows from(int64_t row, int64_t bytes) const {
    return {to.from(row, bytes), later + bytes / e * later_pitch + row * e, later_pitch};
  }
};
// The same at any pitch. `carried` has, for each row, the line's worth of it that comes before, and is given
// what was stored instead.
struct CarriedRow {
  StreamedRow row;
  char* carried;
};
template <int e>
struct CarriedRows {
  StreamedRows<e> rows;
  char* carried;
  template <bool many>
  TX_MEMBER CarriedRow next() {
    char* const line = carried;
    carried += kLine;
    return {rows.template next<many>(), line};
  }
  TX_MEMBER CarriedRows from(int64_t row, int64_t bytes) const {
    return {rows.from(row, bytes), carried + row * kLine};
  }
};
// Rows that are stored within the caches. With each, two lines of tiles to come are asked for, whether or not
// they exist: that of an input row, and the output row's own, `ahead` bytes from here.
struct StoredRow {
  char* to;
  intptr_t later;
  int64_t ahead;
};
struct StoredRows {
  Pitched<char> to;
  intptr_t later;
  int64_t later_pitch;
  int64_t ahead;
  template <bool many>
  TX_MEMBER StoredRow next() {
    const StoredRow row{to.next<many>(), later, ahead};
    later += later_pitch;
    if constexpr (many) TX_NEXT_ROW(later);
    return row;
  }
};
// Words that count from 0 on, two lines of them: one from any of them on says what a line holds that begins
// there in two others.
template <class Word>
struct Counting {
  alignas(kLine) Word words[2 * kLine / sizeof(Word)] = {};
  constexpr Counting() {
    for (Word k = 0; k < static_cast<Word>(2 * kLine / sizeof(Word)); ++k) words[k] = k;
  }
};
template <class Word>
inline constexpr Counting<Word> kCounting;

// Rows of odd elements, to be used as if these had e bytes.
template <int e, class Rows>
struct OddRows {
  Rows rows;
  int64_t bytes;
  TX_MEMBER auto operator()(int64_t row) const { return odd(rows(row)); }
  TX_MEMBER OddRows from(int64_t row, int64_t n) const { return {rows.from(row, n / e * bytes), bytes}; }

 private:
  template <class Byte>
  TX_MEMBER Odd<e, Byte> odd(Byte* at) const {
    return {at, bytes};
  }
};
template <class Rows>
inline constexpr bool kOddRows = false;
template <int e, class Rows>
inline constexpr bool kOddRows<OddRows<e, Rows>> = true;

// One lane, in the compiler's own vector extension: punpck on x86, zip on ARM, and whatever else a target
// has.
struct Lane {
  typedef uint8_t Vec __attribute__((vector_size(16)));
  static constexpr int kLanes = 1;
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

template <class I, int e, bool streaming = false>
struct Tile {
  using Vec = typename I::Vec;
  static constexpr int kLane = 16 / e;             // elements of a lane
  static constexpr int kSide = I::kLanes * kLane;  // elements of a vector
  static constexpr int kBytes = e;

  // What a line has of two that follow one another, from `place` bytes of the first on: an index for permute.
  TX_INLINE Vec across(int64_t place) {
    const auto* const counting = kCounting<typename Unsigned<(e < 8 ? e : 8)>::Type>.words;
    return I::load(reinterpret_cast<const char*>(counting) + place);
  }

  TX_INLINE void ask_for(intptr_t line) { __builtin_prefetch(reinterpret_cast<const char*>(line), 0, 2); }

  template <class To>
  TX_INLINE void store(To out, Vec v) {
    if constexpr (std::is_same_v<To, StoredRow>) {
      ask_for(out.later);
      ask_for(reinterpret_cast<intptr_t>(out.to) + out.ahead);
      I::store(out.to, v);
    } else if constexpr (std::is_same_v<To, StreamedRow>) {
      ask_for(out.later);
      I::stream_line(out.to, v);
    } else if constexpr (std::is_same_v<To, CarriedRow>) {
      const auto place = static_cast<int64_t>(reinterpret_cast<uintptr_t>(out.row.to) % kLine);
      const Vec line = I::template permute<e>(I::load(out.carried), v, across(kLine - place));
      store(StreamedRow{out.row.to - place, out.row.later}, line);
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

  // One tile, in registers where they suffice: the compiler keeps the rest in memory better than code that
  // says when (Zen 4 with AVX-512, 72 matrices of .06 to 8 MB drawn at random, by way of an array 1 byte .90,
  // 2 bytes 1.00; four or eight tiles of 1 byte at a time, with AVX2, .85).
  template <class In, class Out>
  TX_INLINE void transpose(In in, Out out) {
    Vec square[I::kLanes][kLane];
    In rows[I::kLanes];
    TX_UNROLL for (int l = 0; l < I::kLanes; ++l) rows[l] = in.from(l * kLane, 0);
    TX_UNROLL for (int q = 0; q < kLane; ++q) {
      Vec lanes[I::kLanes];
      TX_UNROLL for (int l = 0; l < I::kLanes; ++l) lanes[l] = I::load(take<kMany>(rows[l], q));
      I::transpose_lanes(lanes);
      TX_UNROLL for (int c = 0; c < I::kLanes; ++c) square[c][q] = lanes[c];
    }
    TX_UNROLL for (int c = 0; c < I::kLanes; ++c) {
      transpose_each_lane(square[c]);
      TX_UNROLL for (int q = 0; q < kLane; ++q) store(take<kMany>(out, c * kLane + q), square[c][q]);
    }
  }

  // Rows [first, last) of so many tiles side by side, of which each row is written that many lines at a time.
  template <int abreast, class In, class Out>
  TX_INLINE void stream_abreast(In in, Out out, int64_t first, int64_t last) {
    constexpr int64_t kBytes = sizeof(Vec);
    in = in.from(0, first * e);
    out = out.from(first, 0);
    for (int64_t i = first; i < last; i += kSide, in = in.from(0, kBytes), out = out.from(kSide, 0)) {
      TX_UNROLL for (int t = 0; t < abreast; ++t) transpose(in.from(t * kSide, 0), out.from(0, t * kBytes));
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
  const int64_t last = to.bytes - e / 2;
  std::memcpy(to.first, from.first, e / 2);
  std::memcpy(to.first + last, from.first + last, e / 2);
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
      return I::load_lanes([&](int l) { return in + 16 * (m + l * k); });
    }
  }
  TX_INLINE void store(char* out, int m, Vec v) {
    if constexpr (kPermutes) {
      Tile<I, e, streaming>::store(out + m * sizeof(Vec), v);
    } else if constexpr (streaming) {
      I::stream_lanes([&](int l) { return out + 16 * (m + l * k); }, v);
    } else {
      I::store_lanes([&](int l) { return out + 16 * (m + l * k); }, v);
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

  // The same of less than a vector's elements of each column.
  static constexpr bool kParts = I::kLoadsParts && kPermutes && !streaming;
  static int64_t part(int64_t bytes, int m) {  // of vector m
    const int64_t left = bytes - m * static_cast<int64_t>(sizeof(Vec));
    return left < 0 ? 0 : left < static_cast<int64_t>(sizeof(Vec)) ? left : sizeof(Vec);
  }
  static void split_part(const char* in, char* out, int64_t out_pitch, int64_t count) {
    Vec from[k];
    TX_UNROLL for (int m = 0; m < k; ++m) from[m] =
        I::load_part(in + m * sizeof(Vec), part(count * k * e, m));
    TX_UNROLL for (int c = 0; c < k; ++c)
        I::store_part(out + c * out_pitch, count * e, result<true>(from, c));
  }
  static void merge_part(const char* in, int64_t in_pitch, char* out, int64_t count) {
    Vec from[k];
    TX_UNROLL for (int c = 0; c < k; ++c) from[c] = I::load_part(in + c * in_pitch, count * e);
    TX_UNROLL for (int m = 0; m < k; ++m)
        I::store_part(out + m * sizeof(Vec), part(count * k * e, m), result<false>(from, m));
  }

  // Whether it took the block.
  static bool transpose(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                        int64_t cols) {
    if constexpr (is_narrow(k, e)) {
      if (rows == k && in_pitch == k * e && cols >= kSide) return split(in, out, out_pitch, cols), true;
      if (cols == k && out_pitch == k * e && rows >= kSide) return merge(in, in_pitch, out, rows), true;
      if constexpr (kParts) {
        if (rows == k && in_pitch == k * e) return split_part(in, out, out_pitch, cols), true;
        if (cols == k && out_pitch == k * e) return merge_part(in, in_pitch, out, rows), true;
      }
    }
    return false;
  }
};

// Small permutations by tables made at run time, in vectors of which each draws from all of its piece. The
// last vector of a piece ends with it, and begins within the one before.
template <class I>
struct Pieces {
  using Vec = typename I::Vec;

  struct Work {
    const char* in;
    int64_t in_step;
    char* out;
    int64_t out_step;
    int64_t pieces;
    TX_MEMBER void advance(int64_t by) { in += by * in_step, out += by * out_step, pieces -= by; }
  };

  static void by_byte(const Piece& piece, Work w) {
    for (; w.pieces > 0; w.advance(1)) {
      for (int64_t b = 0; b < piece.bytes; ++b) w.out[b] = w.in[piece.source[b]];
    }
  }

  // Where vector m of a piece begins, when there are several of `size` bytes.
  static int64_t begin(int64_t m, int64_t size, int64_t bytes) {
    return (m + 1) * size <= bytes ? m * size : bytes - size;
  }

  // How many pieces share a vector of `size` bytes: of those side by side, as many as fit. What follows them
  // in it is written again by the next step.
  static int64_t at_once(const Piece& piece, int64_t size) {
    return piece.adjoin && piece.bytes < size ? size / piece.bytes : 1;
  }

  // Byte b of vector r of `vectors`, as a byte of source vector m.
  struct From {
    int64_t m, byte;
  };
  static From from(const Piece& piece, int vectors, int64_t size, int64_t r, int64_t b) {
    if (vectors == 1) {
      const bool used = b < at_once(piece, size) * piece.bytes;
      return {0, used ? b / piece.bytes * piece.bytes + piece.source[b % piece.bytes] : 0};
    }
    const int64_t source = piece.source[begin(r, size, piece.bytes) + b], m = source / size;
    return {m, source - begin(m, size, piece.bytes)};
  }

  // By permutations of two vectors in units of kUnit bytes, as Narrow: what is made so far, and source m,
  // become what is made of the sources up to m.
  template <int kUnit, int vectors>
  struct Permute {
    static constexpr bool kStreams = true;
    static constexpr int64_t kSize = sizeof(Vec);
    static constexpr int kUnits = kSize / kUnit, kSteps = vectors > 1 ? vectors - 1 : 1;
    using Index = typename Unsigned<kUnit>::Type[vectors][kSteps][kUnits];
    static_assert(sizeof(Index) <= sizeof(Piece::index));

    static void index(Piece& piece) {
      auto& table = reinterpret_cast<Index&>(piece.index);
      for (int r = 0; r < vectors; ++r) {
        for (int unit = 0; unit < kUnits; ++unit) {
          const From f = from(piece, vectors, kSize, r, unit * kUnit);
          for (int m = 1; m <= kSteps; ++m) {
            const int64_t kept = m == 1 ? f.byte / kUnit : unit;
            table[r][m - 1][unit] =
                static_cast<typename Unsigned<kUnit>::Type>(f.m == m ? kUnits + f.byte / kUnit : kept);
          }
        }
      }
    }

    template <bool streaming = false>
    static void run(const Piece& piece, Work w) {
      using Stores = Tile<I, kUnit, streaming>;
      const auto table = [&](int r, int k) {
        return I::load(reinterpret_cast<const char*>(reinterpret_cast<const Index&>(piece.index)[r][k]));
      };
      if constexpr (vectors == 1) {
        const Vec index = table(0, 0);
        if (!streaming && !piece.adjoin) {
          for (; w.pieces > 0; w.advance(1)) {
            const Vec v = I::load_part(w.in, piece.bytes);
            I::store_part(w.out, piece.bytes, I::template permute<kUnit>(v, v, index));
          }
          return;
        }
        const int64_t step = at_once(piece, kSize);
        for (; w.pieces * piece.bytes >= kSize; w.advance(step)) {
          const Vec v = I::load(w.in);
          Stores::store(w.out, I::template permute<kUnit>(v, v, index));
        }
        by_byte(piece, w);
      } else {
        int64_t begins[vectors];
        for (int m = 0; m < vectors; ++m) begins[m] = begin(m, kSize, piece.bytes);
        for (; w.pieces > 0; w.advance(1)) {
          Vec from[vectors];
          TX_UNROLL for (int m = 0; m < vectors; ++m) from[m] = I::load(w.in + begins[m]);
          TX_UNROLL for (int r = 0; r < vectors; ++r) {
            Vec v = I::template permute<kUnit>(from[0], from[1], table(r, 0));
            TX_UNROLL for (int m = 2; m < vectors; ++m) v =
                I::template permute<kUnit>(v, from[m], table(r, m - 1));
            Stores::store(w.out + begins[r], v);
          }
        }
      }
    }
  };

  // Lane by lane, each lane of a vector another piece: byte shuffles of the piece's lanes, put together.
  template <int lanes>
  struct Shuffle {
    static constexpr bool kStreams = false;
    static constexpr int64_t kSize = 16;
    using Index = uint8_t[lanes][lanes][kSize];  // 0x80 where the byte is of another source
    static_assert(sizeof(Index) <= sizeof(Piece::index));

    static void index(Piece& piece) {
      auto& table = reinterpret_cast<Index&>(piece.index);
      for (int r = 0; r < lanes; ++r) {
        for (int m = 0; m < lanes; ++m) {
          for (int b = 0; b < kSize; ++b) {
            const From f = from(piece, lanes, kSize, r, b);
            table[r][m][b] = f.m == m ? static_cast<uint8_t>(f.byte) : 0x80;
          }
        }
      }
    }

    static void run(const Piece& piece, Work w) {
      const auto& table = reinterpret_cast<const Index&>(piece.index);
      if (lanes == 1 && !piece.adjoin && piece.bytes < kSize) return by_byte(piece, w);
      int64_t begins[lanes];
      for (int m = 0; m < lanes; ++m) begins[m] = lanes > 1 ? begin(m, kSize, piece.bytes) : 0;
      const int64_t step = at_once(piece, kSize);
      // What the last lane of a vector reaches beyond its own pieces must be there.
      const int64_t spare = lanes == 1 ? kSize / piece.bytes + 1 : 0;
      for (; w.pieces >= I::kLanes * step + spare; w.advance(I::kLanes * step)) {
        Vec from[lanes];
        TX_UNROLL for (int m = 0; m < lanes; ++m) {
          from[m] = I::load_lanes([&](int l) { return w.in + l * step * w.in_step + begins[m]; });
        }
        TX_UNROLL for (int r = 0; r < lanes; ++r) {
          Vec v = I::shuffle(from[0], table[r][0]);
          TX_UNROLL for (int m = 1; m < lanes; ++m) v = I::either(v, I::shuffle(from[m], table[r][m]));
          I::store_lanes([&](int l) { return w.out + l * step * w.out_step + begins[r]; }, v);
        }
      }
      by_byte(piece, w);
    }
  };

  static constexpr int64_t kMostVectors = 6, kMostLanes = 8;
  // The units of permutations, for elements of one byte and of more; 0 if there are none.
  static constexpr int unit(bool bytes) {
    return I::template kPermutes<1> ? 1 : I::template kPermutes<2> && !bytes ? 2 : 0;
  }
  static constexpr int64_t most(bool bytes) {
    return unit(bytes) > 0 ? kMostVectors * static_cast<int64_t>(sizeof(Vec))
           : I::kShuffles  ? kMostLanes * 16
                           : 0;
  }

  // Calls work(way) with the way in which this piece is moved, if it is in registers.
  template <class F>
  static bool in_registers(const Piece& piece, const F& work) {
    const auto first = [&]<class... Way>(int64_t size, Way... way) {
      int64_t left = (piece.bytes + size - 1) / size;
      return ((--left == 0 ? (work(way), true) : false) || ...);
    };
    constexpr int kUnit = unit(false);
    if constexpr (kUnit > 0) {
      if (unit(piece.element_bytes == 1) > 0) {
        return first(sizeof(Vec), Permute<kUnit, 1>(), Permute<kUnit, 2>(), Permute<kUnit, 3>(),
                     Permute<kUnit, 4>(), Permute<kUnit, 5>(), Permute<kUnit, 6>());
      }
    }
    if constexpr (I::kShuffles && unit(true) == 0) {
      return first(16, Shuffle<1>(), Shuffle<2>(), Shuffle<3>(), Shuffle<4>(), Shuffle<5>(), Shuffle<6>(),
                   Shuffle<7>(), Shuffle<8>());
    }
    return false;
  }

  static void index(Piece& piece) {
    in_registers(piece, [&](auto way) { way.index(piece); });
  }
  static void run(const Piece& piece, const char* in, int64_t in_step, char* out, int64_t out_step,
                  int64_t pieces) {
    const Work w = {in, in_step, out, out_step, pieces};
    if (!in_registers(piece, [&](auto way) { way.run(piece, w); })) by_byte(piece, w);
  }
  static void stream(const Piece& piece, const char* in, int64_t in_step, char* out, int64_t out_step,
                     int64_t pieces) {
    in_registers(piece, [&](auto way) {
      if constexpr (way.kStreams) way.template run<true>(piece, {in, in_step, out, out_step, pieces});
    });
  }
};

// Whether one of the widths k took the block.
template <class I, int e, bool streaming, int... k>
TX_INLINE bool transpose_narrow(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                                int64_t cols) {
  return (Narrow<I, e, k, streaming>::transpose(in, in_pitch, out, out_pitch, rows, cols) || ...);
}

// Rows, or columns, that are moved as whole vectors: where more than a lane would be left, the last tile
// steps back over what is written already (Zen 5, 300 x 333 in 8 bytes .33 -> .38 of a copy, 40 x 7 x 9 x 11
// x 13 -> 0,1,4,3,2 in 4 .28 -> .40). Past the caches nothing is written twice.
template <class Wide>
int64_t covered_by_tiles(int64_t count, bool streaming) {
  const int64_t left = count % Wide::kSide;
  return left > Wide::kLane && count > Wide::kSide && !streaming ? count : count - left;
}

// In tiles, of which the last may step back. Precondition: rows and cols are none, or a tile's side at least.
// (Of places that are computed anew for each tile GCC makes code that takes up to a fifth longer: Zen 4, one
// thread, six problems within L2, of a copy, 4 and 8 bytes .83 .89 -> 1.00 .94; two, 72 problems a width
// drawn at random, 2, 4 and 8 bytes .69 .62 .71 -> .72 .68 .76.)
template <class Wide, class In, class Out>
void transpose_tiles(In in, Out out, int64_t rows, int64_t cols) {
  constexpr int64_t kSide = Wide::kSide, e = Wide::kBytes;
  for (int64_t j0 = 0; j0 < cols; j0 += kSide) {
    const int64_t j = j0 + kSide > cols ? cols - kSide : j0;
    In from = in.from(j, 0);
    Out to = out.from(0, j * e);
    for (int64_t left = rows - kSide; left >= 0;) {
      Wide::transpose(from, to);
      if (left == 0) break;
      const int64_t step = left < kSide ? left : kSide;
      left -= step;
      from = from.from(0, step * e);
      to = to.from(step, 0);
    }
  }
}

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
template <class I, int e, bool streaming, bool carries>
struct Blocks {
  using Wide = Tile<I, e, streaming>;
  using Vec = typename I::Vec;
  static constexpr int kSide = Wide::kSide, kLane = Wide::kLane, kLanes = I::kLanes;
  static constexpr int64_t kBytes = sizeof(Vec);
  static constexpr BlockShape kShape = (carries     ? kCarriedBlock
                                        : streaming ? kStreamedBlock
                                                    : kStoredBlock)[__builtin_ctz(e)];
  static constexpr int kDown = kShape.down * kLine / kBytes, kAcross = kShape.across * kLine / kBytes;
  static constexpr int kRows = kDown * kSide, kCols = kAcross * kSide;
  static constexpr int kRead = kLanes * kBytes;  // bytes at a time

  // A block that is read: [t][c] is lane c of the columns of the tile t down, in input order.
  struct Lanes {
    alignas(64) Vec at[kDown][kLanes][kAcross * kLane];
  };

  struct Reader {
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

// In blocks, and in tiles what no block has. Precondition: rows and cols are whole tiles.
template <class I, int e, bool streaming>
void transpose_blocks(Pitched<const char> in, Pitched<char> out, int64_t rows, int64_t cols) {
  using Block = Blocks<I, e, streaming, false>;
  const int64_t i = rows - rows % Block::kRows, j = cols - cols % Block::kCols;
  Block::transpose(in, out, i, j, nullptr);
  const auto tiles = [](Pitched<const char> from, Pitched<char> to, int64_t rows_left, int64_t cols_left) {
    if constexpr (streaming) {
      stream_tiles<typename Block::Wide>(from, to, rows_left, cols_left);
    } else {
      transpose_tiles<typename Block::Wide>(from, to, rows_left, cols_left);
    }
  };
  tiles(in.from(0, i * e), out.from(i, 0), rows - i, j);
  tiles(in.from(j, 0), out.from(0, j * e), rows, cols - j);
}

template <class I, int e, bool streaming, bool in_blocks, class In, class Out>
TX_INLINE void transpose_matrix(In in, Out out, int64_t rows, int64_t cols) {
  using Wide = Tile<I, e, streaming>;
  constexpr int kLane = Tile<Lane, e>::kSide;
  constexpr bool pitched = std::is_same_v<In, Pitched<const char>>;
  constexpr bool odd = kOddRows<In>;
  if constexpr (pitched && I::kShuffles && e >= 8) {
    if (transpose_narrow<I, e, streaming, 3>(in.first, in.pitch, out.first, out.pitch, rows, cols)) return;
  }
  if (rows < kLane || cols < kLane) {
    if constexpr (pitched && I::kShuffles && e < 8) {
      if (transpose_narrow<I, e, streaming, 2, 3, 4, 5, 6, 7, 8>(in.first, in.pitch, out.first, out.pitch,
                                                                 rows, cols))
        return;
    }
    if constexpr (e < 8 && !odd) {
      using Two = Halves<e>;
      if (Two::take(rows) && cols >= kLane) return Two::split(in, out, rows, cols);
      if (Two::take(cols) && rows >= kLane) return Two::merge(in, out, rows, cols);
    }
    return transpose_by_element<e>(in, out, rows, cols);
  }
  const int64_t wide_rows = covered_by_tiles<Wide>(rows, streaming || in_blocks);
  const int64_t wide_cols = covered_by_tiles<Wide>(cols, streaming || in_blocks);
  if constexpr (in_blocks) {
    transpose_blocks<I, e, streaming>(in, out, wide_rows, wide_cols);
  } else if constexpr (pitched && streaming) {
    stream_tiles<Wide>(in, out, wide_rows, wide_cols);
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
    transpose_matrix<Spread<I, e>, e, false, false>(from, to, rows, cols);
  } else {
    transpose_by_element<e>(from, to, rows, cols);
  }
}

template <class I, int e, bool streaming = false, bool in_blocks = false>
void transpose(int64_t bytes, const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
               int64_t cols) {
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  if constexpr (e > 2 && !streaming && !in_blocks) {
    if (e > 16 || bytes < e) return transpose_odd<I, e>(bytes, from, to, rows, cols);
  }
  if constexpr (e <= 16) transpose_matrix<I, e, streaming, in_blocks>(from, to, rows, cols);
}

template <class I, int e>
void transpose_placed(int64_t bytes, const char* in, const int64_t* in_places, char* out,
                      const int64_t* out_places, int64_t rows, int64_t cols) {
  const Placed<const char> from{in, in_places};
  const Placed<char> to{out, out_places};
  if constexpr (e > 2) {
    if (e > 16 || bytes < e) return transpose_odd<I, e>(bytes, from, to, rows, cols);
  }
  if constexpr (e <= 16) transpose_matrix<I, e, false, false>(from, to, rows, cols);
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
template <class I, int e>
TX_INLINE void carry_tiles(Pitched<const char> in, Pitched<char> out, int64_t rows, char* carried) {
  using Wide = Tile<I, e, true>;
  constexpr int kSide = Wide::kSide;
  const int64_t whole = rows / kSide * kSide;
  const intptr_t later = reinterpret_cast<intptr_t>(in.first) + kSide * in.pitch;
  const CarriedRows<e> to{{out, later, in.pitch}, carried};
  Wide::template stream_abreast<1>(in, to, 0, whole);
  if (whole < rows) {
    alignas(kLine) char rest[kSide * kLine];  // of the rows that no tile has
    const Pitched<const char> from = in.from(0, whole * e);
    transpose<I, e>(e, from.first, in.pitch, rest, kLine, rows - whole, kSide);
    CarriedRows<e> at = to.from(whole, 0);
    for (int64_t r = 0; r < rows - whole; ++r)
      Wide::store(at.template next<false>(), I::load(rest + r * kLine));
    for (int q = 0; q < kSide; ++q) Wide::ask_for(later + q * in.pitch + whole * e);
  }
  for (int q = 0; q < kSide; ++q) Wide::ask_for(later + q * in.pitch + rows * e - 1);
}

template <class I, int e>
void stream_carried(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                    int64_t cols, char* carried) {
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  for (int64_t j = 0; j < cols; j += Tile<I, e, true>::kSide)
    carry_tiles<I, e>(from.from(j, 0), to.from(0, j * e), rows, carried);
}

// In blocks, and in tiles what no block has.
template <class I, int e>
void stream_carried_blocks(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                           int64_t cols, char* carried) {
  using Block = Blocks<I, e, true, true>;
  const Pitched<const char> from{in, in_pitch};
  const Pitched<char> to{out, out_pitch};
  const int64_t i = rows - rows % Block::kRows, j = cols - cols % Block::kCols;
  Block::transpose(from, to, i, j, carried);
  const auto tiles = [&](int64_t row, int64_t col, int64_t rows_left, int64_t cols_left) {
    if (rows_left == 0 || cols_left == 0) return;
    stream_carried<I, e>(from(col) + row * e, in_pitch, to(row) + col * e, out_pitch, rows_left, cols_left,
                         carried + row * kLine);
  };
  tiles(i, 0, rows - i, j);
  tiles(0, j, rows, cols - j);
}

// Elements of whole lines, past the caches.
template <class I>
void stream_lines(int64_t bytes, const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                  int64_t cols) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j)
      I::stream(out + i * out_pitch + j * bytes, in + j * in_pitch + i * bytes, bytes / kLine);
  }
}

// The streaming kernels are made of Line's vectors, where those are whole lines: I's own, or several as one.
template <class I, class Line = I>
constexpr MicroKernels micro_kernels(const char* name) {
  MicroKernels k{
      name,
      {transpose<I, 1>, transpose<I, 2>, transpose<I, 4>, transpose<I, 8>, transpose<I, 16>, transpose<I, 32>,
       transpose<I, 64>, transpose<I, 128>, transpose<I, 256>, transpose<I, 512>, transpose<I, 1024>},
      {transpose<I, 1, false, true>, transpose<I, 2, false, true>, transpose<I, 4, false, true>,
       transpose<I, 8, false, true>},
      {},
      {transpose_placed<I, 1>, transpose_placed<I, 2>, transpose_placed<I, 4>, transpose_placed<I, 8>,
       transpose_placed<I, 16>, transpose_placed<I, 32>, transpose_placed<I, 64>, transpose_placed<I, 128>,
       transpose_placed<I, 256>, transpose_placed<I, 512>, transpose_placed<I, 1024>},
      Pieces<I>::index,
      Pieces<I>::run,
      {Pieces<I>::most(true), Pieces<I>::most(false)},
      {},
      0,
      {},
      {},
      {},
      {},
      I::stream,
      I::fence};
  for (int width = 6; width <= 10; ++width) k.stream_transpose[width] = stream_lines<I>;
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
  if constexpr (sizeof(typename I::Vec) == kLine) {
    k.transpose_asking[0] = transpose_asking<I, 1>;
    k.transpose_asking[1] = transpose_asking<I, 2>;
    k.transpose_asking[2] = transpose_asking<I, 4>;
    k.transpose_asking[3] = transpose_asking<I, 8>;
    k.transpose_asking[4] = transpose_asking<I, 16>;
    if constexpr (I::template kPermutes<1>) {
      k.stream_carried[0] = stream_carried<I, 1>;
      k.stream_carried_blocks[0] = stream_carried_blocks<I, 1>;
    }
    k.stream_carried[1] = stream_carried<I, 2>;
    k.stream_carried[2] = stream_carried<I, 4>;
    k.stream_carried[3] = stream_carried<I, 8>;
    k.stream_carried[4] = stream_carried<I, 16>;
    k.stream_carried_blocks[1] = stream_carried_blocks<I, 2>;
    k.stream_carried_blocks[2] = stream_carried_blocks<I, 4>;
    k.stream_carried_blocks[3] = stream_carried_blocks<I, 8>;
    k.stream_carried_blocks[4] = stream_carried_blocks<I, 16>;
    if (Pieces<I>::unit(true) > 0) k.stream_pieces[0] = Pieces<I>::stream;
    if (Pieces<I>::unit(false) > 0) k.stream_pieces[1] = Pieces<I>::stream;
  }
  return k;
}

}  // namespace
}  // namespace tx::cpu
