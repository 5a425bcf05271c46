// Part of micro_impl.h: permutations in registers, of a few columns side by side and of small pieces.
#pragma once

#include <cstdint>
#include <utility>

#include "core/narrow.h"
#include "cpu/micro.h"
#include "cpu/micro_rows.h"
#include "cpu/micro_tile.h"

namespace tx::cpu {
namespace {

// k columns that lie element by element in the input and apart in the output, or the other way round: a fixed
// permutation of k vectors, which takes k - 1 permutations of two for each, or else of each lane's k x 16
// bytes, byte by byte. Of a copy, in tiles or staged -> so, one thread:
//   merged, 60 MB   Zen 5, 4, 5 and 7 columns of 4 bytes      .46 .48 .51 -> 1.05 1.05 1.00
//                          2, 4, 5 and 7 of 8 bytes           .76 .44 .57 .59 -> 1.12 1.12 1.10 1.04
//                          2, 5 and 7 of 16 bytes             .84 .68 .65 -> 1.17 1.10 1.06
//                   AVX2, 4 and 5 of 4 bytes, 4, 5, 7 of 8    .58 .52, .60 .59 .56 -> 1.05 .99, 1.07 1.01 .98
//   split, 6 MB     Zen 5, 4, 5 and 7 of 4 bytes              .70 .54 .61 -> .89 .88 .82
//                          2, 4, 5 and 7 of 8 bytes           .66 .60 .49 .44 -> .94 .91 .90 .82
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
  template <class Out>
  static void split(const char* in, Out out, int64_t count) {
    for (int64_t n0 = 0; n0 < count; n0 += kSide) {
      const int64_t n = n0 + kSide > count ? count - kSide : n0;
      Vec from[k];
      TX_UNROLL for (int m = 0; m < k; ++m) {
        if constexpr (streaming) ask_ahead(in + n * k * e + m * sizeof(Vec), kAskedAhead);
        from[m] = load(in + n * k * e, m);
      }
      Out to = out.from(0, n * e);
      TX_UNROLL for (int c = 0; c < k; ++c)
          Tile<I, e, streaming>::store(take<(k > 4)>(to, c), result<true>(from, c));
    }
  }
  static void merge(const char* in, int64_t in_pitch, char* out, int64_t count) {
    for (int64_t n0 = 0; n0 < count; n0 += kSide) {
      const int64_t n = n0 + kSide > count ? count - kSide : n0;
      Vec from[k];
      TX_UNROLL for (int c = 0; c < k; ++c) {
        if constexpr (streaming) ask_ahead(in + c * in_pitch + n * e, kAskedAhead / k);
        from[c] = I::load(in + c * in_pitch + n * e);
      }
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

  // Byte by byte, more columns that are a lane and more are stored faster in tiles (AVX2 on Zen 5, four and
  // five of 4 and 8 bytes, in tiles -> so, split .66 .50 .82 .66 of a copy -> .71 .57 .80 .71, merged .78 .58
  // .81 .69 -> .69 .56 .77 .71, seven in tiles and so .73 .74 and .49 .59).
  static constexpr int kFewShuffled = 5;

  static constexpr bool kTakes =
      is_narrow(k, e) && (kPermutes || streaming || k * e < 16 || k <= kFewShuffled);

  // Whether it took the block.
  template <class Out>
  static bool split(const char* in, int64_t in_pitch, Out out, int64_t rows, int64_t cols) {
    if constexpr (kTakes) {
      if (rows != k || in_pitch != k * e) return false;
      if (cols >= kSide) return split(in, out, cols), true;
      if constexpr (kParts) return split_part(in, out.first, out.pitch, cols), true;
    }
    return false;
  }
  static bool merge(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                    int64_t cols) {
    if constexpr (kTakes) {
      if (cols != k || out_pitch != k * e) return false;
      if (rows >= kSide || streaming) return merge(in, in_pitch, out, rows), true;
      if constexpr (kParts) return merge_part(in, in_pitch, out, rows), true;
    }
    return false;
  }
};

// The same of columns that make `lanes` lanes side by side, or more than half as many: from vectors of those,
// which hold as many rows as they have room for, to one of each column it takes lanes transposed among
// vectors, and the square of elements of each lane. Rows that are less than their lanes are spread out to
// those when they are read, and closed up when they are written, a vector after the other, of which each ends
// in bytes that the next one writes again; the last ones go by way of memory of their own, lest bytes outside
// be read or written. Of a copy, Zen 5, in tiles or staged -> so, one thread:
//   16 and 32 columns of 1 byte, 8 and 16 of 2, 8 of 4
//     merged, 60 MB          .62 .59 .55 .57 .56 -> 1.11 .95 1.06 1.05 1.04
//             6 MB           .60 .53 .65 .64 .66 -> .84 .68 .80 .84 .85
//     split, 6 MB            .67 .66 .73 .58 .60 -> .76 .85 .81 .85 .85
//     32 of 1 byte, 60 MB    .43 -> .72
//   less than whole lanes
//     12 columns of 1 byte, 12 and 24 of 2, 12 of 4
//       merged, 6 MB         .28 .50 .58 .60 -> .80 .75 .80 .83
//       split                .40 .50 .45 .46 -> .70 .76 .65 .80
//       merged, 60 MB        .44 .43 .59 .54 -> .85 .61 .74 .67
//       split, at any pitch  .56 .46 .50 .51 -> 1.07 .92 1.03 1.06
//     60 of 1 byte, 6 MB, merged and split      .39 .38 -> .52 .52; 40 of 1 byte level
template <class I, int e, int lanes, bool whole, bool streaming>
struct InLanes {
  using Vec = typename I::Vec;
  using Square = Tile<I, e, streaming>;
  static constexpr int kLane = Square::kLane, kSide = Square::kSide;
  static constexpr int kBytes = 16 * lanes;        // of a row, in lanes
  static constexpr int kRows = I::kLanes / lanes;  // of a vector
  static constexpr bool kPermutes = kRows > 1 && I::template kPermutes<1>;
  static constexpr bool kPartLast = I::kLoadsParts && (kPermutes || kRows == 1);

  struct Index {
    alignas(64) uint8_t spread[kBytes][sizeof(Vec)];
    alignas(64) uint8_t close[kBytes][sizeof(Vec)];
  };
  static constexpr Index index() {
    Index index{};
    for (int bytes = kBytes / 2 + 1; bytes < kBytes; ++bytes) {
      for (int b = 0; b < static_cast<int>(sizeof(Vec)); ++b) {
        const int row = b / kBytes, at = b % kBytes;
        index.spread[bytes][b] = static_cast<uint8_t>(at < bytes ? row * bytes + at : 0);
        index.close[bytes][b] = static_cast<uint8_t>(b < kRows * bytes ? b / bytes * kBytes + b % bytes : 0);
      }
    }
    return index;
  }
  static constexpr Index kIndex = index();

  // A vector of rows of `bytes` each. (Not of parts of vectors: while stores that stream are on their way,
  // loads with masks wait for them, Zen 5, 12 columns of 4 bytes .97 -> .36 of a copy.)
  TX_INLINE Vec load(const char* in, int64_t bytes) {
    if constexpr (whole || kRows == 1) {
      return I::load(in);
    } else if constexpr (kPermutes) {
      return I::permute_bytes(I::load(in), I::load(reinterpret_cast<const char*>(kIndex.spread[bytes])));
    } else {
      return I::load_lanes([&](int l) { return in + l / lanes * bytes + l % lanes * 16; });
    }
  }
  TX_INLINE void store(char* out, int64_t bytes, Vec v, bool last) {
    if constexpr (whole) {
      Square::store(out, v);
    } else if constexpr (kPermutes || kRows == 1) {
      if constexpr (kPermutes)
        v = I::permute_bytes(v, I::load(reinterpret_cast<const char*>(kIndex.close[bytes])));
      if constexpr (kPartLast) {
        if (last) return I::store_part(out, kRows * bytes, v);
      }
      I::store(out, v);
    } else {
      I::store_lanes([&](int l) { return out + l / lanes * bytes + l % lanes * 16; }, v);
    }
  }

  // Of what is less than whole lanes, steps that others do not follow by a vector's bytes go by way of this,
  // which has room for as many more.
  struct Last {
    alignas(64) char bytes[whole ? 1 : kSide * kBytes + sizeof(Vec)];
  };
  TX_INLINE bool is_apart(int64_t n, int64_t count, int64_t bytes) {
    return !whole && (count - kSide - n) * bytes < static_cast<int64_t>(sizeof(Vec));
  }

  // The last step goes back over what is written already.
  template <class Out>
  static void split_all(const char* in, Out out, int64_t cols, int64_t count) {
    const int64_t bytes = whole ? kBytes : cols * e;
    Last last;
    for (int64_t n0 = 0; n0 < count; n0 += kSide) {
      const int64_t n = n0 + kSide > count ? count - kSide : n0;
      const char* from = in + n * bytes;
      if (is_apart(n, count, bytes)) {
        std::memcpy(last.bytes, from, static_cast<size_t>(kSide * bytes));
        from = last.bytes;
      }
      Vec square[lanes][kLane];
      TX_UNROLL for (int q = 0; q < kLane; q += kRows) {
        Vec rows[I::kLanes];
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) {
          const char* const row = from + (l * kLane + q) * bytes;
          if constexpr (streaming) ask_ahead(row, kAskedAhead);
          rows[l] = load(row, bytes);
        }
        I::transpose_lanes(rows);
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) square[l % lanes][q + l / lanes] = rows[l];
      }
      Out to = out.from(0, n * e);
      TX_UNROLL for (int c = 0; c < lanes; ++c) {
        Square::transpose_each_lane(square[c]);
        TX_UNROLL for (int q = 0; q < kLane; ++q) {
          const auto row = take<false>(to, c * kLane + q);
          if (whole || c * kLane + q < cols) Square::store(row, square[c][q]);
        }
      }
    }
  }
  static void merge_all(Pitched<const char> in, char* out, int64_t cols, int64_t count) {
    const int64_t bytes = whole ? kBytes : cols * e;
    Last last;
    for (int64_t n0 = 0; n0 < count; n0 += kSide) {
      const int64_t n = n0 + kSide > count ? count - kSide : n0;
      const bool apart = !kPartLast && is_apart(n, count, bytes);
      Pitched<const char> from = in.from(0, n * e);
      Vec square[lanes][kLane];
      TX_UNROLL for (int c = 0; c < lanes; ++c) {
        TX_UNROLL for (int q = 0; q < kLane; ++q) {
          const char* const row = from.next<true>();
          square[c][q] = whole || c * kLane + q < cols ? I::load(row) : Vec{};
        }
        Square::transpose_each_lane(square[c]);
      }
      TX_UNROLL for (int q = 0; q < kLane; q += kRows) {
        Vec rows[I::kLanes];
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) rows[l] = square[l % lanes][q + l / lanes];
        I::transpose_lanes(rows);
        TX_UNROLL for (int l = 0; l < I::kLanes; ++l) square[l % lanes][q + l / lanes] = rows[l];
      }
      char* const to = apart ? last.bytes : out + n * bytes;
      TX_UNROLL for (int l = 0; l < I::kLanes; ++l) {
        TX_UNROLL for (int q = 0; q < kLane; q += kRows)
            store(to + (l * kLane + q) * bytes, bytes, square[l % lanes][q + l / lanes],
                  (l + 1) * kLane == kSide && q + kRows == kLane);
      }
      if (apart) std::memcpy(out + n * bytes, last.bytes, static_cast<size_t>(kSide * bytes));
    }
  }

  // AVX2 has registers for half as many whole ones (stored, 32 bytes merged .80 of a copy in tiles, so .63).
  static constexpr bool kFits =
      e <= 4 && kRows > 0 && kLane >= kRows && (streaming || !whole || kBytes / e <= 8 * I::kLanes);
  static bool takes(int64_t count) {
    if (whole) return count * e == kBytes && is_narrow_in_lanes(count, e);
    return is_short_of_lanes(count, e) && count * e > kBytes / 2 && count * e < kBytes;
  }

  // Whether it took the block. (Streamed, 16 bytes by tiles that ask for lines, and so: Zen 5 .93 .83 of a
  // copy, AVX2 .85 .64.)
  template <class Out>
  static bool split(const char* in, int64_t in_pitch, Out out, int64_t rows, int64_t cols) {
    if constexpr (kFits && !(whole && streaming && lanes == 1 && std::is_same_v<Out, Pitched<char>>)) {
      if (takes(rows) && in_pitch == rows * e && cols >= kSide) return split_all(in, out, rows, cols), true;
    }
    return false;
  }
  static bool merge(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                    int64_t cols) {
    if constexpr (kFits && (whole || !streaming)) {
      if (takes(cols) && out_pitch == cols * e && (rows >= kSide || streaming))
        return merge_all({in, in_pitch}, out, cols, rows), true;
    }
    return false;
  }
};

// Calls work(kernel) with each kernel of a few columns that may take so many, until one says that it did.
template <class I, int e, bool streaming, class F>
TX_INLINE bool any_narrow(int64_t columns, const F& work) {
  const auto few = [&]<int... k>() { return (work(Narrow<I, e, k, streaming>()) || ...); };
  if (columns <= 8 && few.template operator()<2, 3, 4, 5, 6, 7, 8>()) return true;
  if (columns * e > kLine) return false;
  return work(InLanes<I, e, 1, true, streaming>()) || work(InLanes<I, e, 2, true, streaming>()) ||
         work(InLanes<I, e, 1, false, streaming>()) || work(InLanes<I, e, 2, false, streaming>()) ||
         work(InLanes<I, e, 4, false, streaming>());
}

// Whether kernels of a few columns took the block.
template <class I, int e, bool streaming, class Out>
TX_INLINE bool split_narrow(const char* in, int64_t in_pitch, Out out, int64_t rows, int64_t cols) {
  return any_narrow<I, e, streaming>(
      rows, [&](auto kernel) { return kernel.split(in, in_pitch, out, rows, cols); });
}
template <class I, int e, bool streaming>
TX_INLINE bool merge_narrow(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                            int64_t cols) {
  return any_narrow<I, e, streaming>(
      cols, [&](auto kernel) { return kernel.merge(in, in_pitch, out, out_pitch, rows, cols); });
}

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
    int64_t ahead;  // of what is read, where lines are asked for, or 0
    TX_MEMBER void advance(int64_t by) { in += by * in_step, out += by * out_step, pieces -= by; }
  };

  static void by_byte(const Piece& piece, Work w) {
    const auto& [in, out, source] = *piece.map;
    for (; w.pieces > 0; w.advance(1)) {
      const uint16_t* from = source;
      for (int r = 0; r < out.count; ++r) {
        char* const to = w.out + out.at[r];
        for (int64_t b = 0; b < out.bytes; ++b, ++from)
          to[b] = in.count == 1 ? w.in[*from] : w.in[in.at[*from / in.bytes] + *from % in.bytes];
      }
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
      return {0, used ? b / piece.bytes * piece.bytes + piece.map->source[b % piece.bytes] : 0};
    }
    const int64_t last = (vectors - 1) * size, source = piece.map->source[begin(r, size, piece.bytes) + b];
    const int64_t place = source < last ? source : source + vectors * size - piece.bytes;
    return {place / size, place % size};
  }

  // By permutations of two vectors in units of kUnit bytes: a result draws from each two sources with one and
  // the same index, and keeps the bytes that come from these two. Of a copy, one thread; two or four, batches
  // of matrices of 257 to 384 bytes, and in one permutation for each source but the first, as Narrow; and
  // larger ones, and in tiles:
  //   Zen 5, 3 MB, 257 to 384 bytes, 1 byte; 4 bytes        .83 .64, .81 .66 -> .84 .70, .84 .73
  //                385 to 512                               .20 .18, .30 .26 -> .82 .63, .84 .70
  //                513 to 640                               .21 .24, .39 .33 -> .74 .72, .76 .62
  //                769 to 832                               .24 .20, .45 .37 -> .46 .33, .48 .40
  //          80 MB, asked for, 385 to 512                   .41 .62, .60 .75 -> .78 .84, .82 .88
  //   Xeon,  80 MB, 257 to 384                              .60 .61, .69 .63 -> .75 .69, .87 .76
  //                385 to 640                               .25 .20, .40 .32 -> .64 .56, .72 .69
  // Where bits of a mask register say what is kept, up to .04 better to 512 bytes, and that much worse
  // beyond.
  template <int kUnit, int vectors>
  struct Permute {
    static constexpr bool kStreams = true;
    static constexpr int64_t kSize = sizeof(Vec);
    static constexpr int kUnits = kSize / kUnit, kPairs = (vectors + 1) / 2;
    struct Table {
      alignas(kSize) typename Unsigned<kUnit>::Type index[vectors][kUnits];
      // 0xff where a byte comes from those two; not for the first two, whose bytes are there to be replaced.
      alignas(kSize) uint8_t kept[vectors][kPairs][kSize];
    };
    static_assert(sizeof(Table) <= sizeof(Piece::index));

    static void index(Piece& piece) {
      auto& table = reinterpret_cast<Table&>(piece.index);
      for (int r = 0; r < vectors; ++r) {
        uint8_t pair[kSize];
        for (int b = 0; b < kSize; ++b) {
          const From f = from(piece, vectors, kSize, r, b);
          pair[b] = static_cast<uint8_t>(f.m / 2);
          if (b % kUnit == 0)
            table.index[r][b / kUnit] =
                static_cast<typename Unsigned<kUnit>::Type>(f.m % 2 * kUnits + f.byte / kUnit);
        }
        for (int m = 1; m < kPairs; ++m) {
          for (int b = 0; b < kSize; ++b) table.kept[r][m][b] = pair[b] == m ? 0xff : 0;
        }
      }
    }

    template <bool streaming = false>
    static void run(const Piece& piece, Work w) {
      using Stores = Tile<I, kUnit, streaming>;
      const auto& table = reinterpret_cast<const Table&>(piece.index);
      const int64_t ahead = w.ahead;
      const auto load = [](const auto& bytes) { return I::load(reinterpret_cast<const char*>(bytes)); };
      if constexpr (vectors == 1) {
        const Vec index = load(table.index[0]);
        if (!streaming && !piece.adjoin) {
          for (; w.pieces > 0; w.advance(1)) {
            const Vec v = I::load_part(w.in, piece.bytes);
            I::store_part(w.out, piece.bytes, I::template permute<kUnit>(v, v, index));
          }
          return;
        }
        const int64_t step = at_once(piece, kSize);
        for (; w.pieces * piece.bytes >= kSize; w.advance(step)) {
          if (ahead != 0) ask_ahead(w.in, ahead);
          const Vec v = I::load(w.in);
          Stores::store(w.out, I::template permute<kUnit>(v, v, index));
        }
        by_byte(piece, w);
      } else {
        int64_t begins[vectors];
        for (int m = 0; m < vectors; ++m) begins[m] = begin(m, kSize, piece.bytes);
        // The table, in registers as far as they suffice: else it would be read anew for each piece.
        Vec index[vectors], kept[vectors][kPairs];
        TX_UNROLL for (int r = 0; r < vectors; ++r) {
          index[r] = load(table.index[r]);
          TX_UNROLL for (int m = 1; m < kPairs; ++m) kept[r][m] = load(table.kept[r][m]);
        }
        for (; w.pieces > 0; w.advance(1)) {
          Vec from[2 * kPairs];
          TX_UNROLL for (int m = 0; m < vectors; ++m) {
            if (ahead != 0) ask_ahead(w.in + begins[m], ahead);
            from[m] = I::load(w.in + begins[m]);
          }
          if constexpr (vectors % 2 == 1) from[vectors] = from[vectors - 1];
          TX_UNROLL for (int r = 0; r < vectors; ++r) {
            Vec v = I::template permute<kUnit>(from[0], from[1], index[r]);
            TX_UNROLL for (int m = 1; m < kPairs; ++m) {
              v = I::replace(v, I::template permute<kUnit>(from[2 * m], from[2 * m + 1], index[r]),
                             kept[r][m]);
            }
            Stores::store(w.out + begins[r], v);
          }
        }
      }
    }
  };

  // The same where a piece is several runs, of which the last vector of each ends with it, or has part of
  // one.
  template <int kUnit, int kPairs>
  struct PermuteRuns {
    static constexpr bool kStreams = true;
    static constexpr int64_t kSize = sizeof(Vec);
    static constexpr int kUnits = kSize / kUnit, kSources = 2 * kPairs;
    struct Result {
      alignas(kSize) typename Unsigned<kUnit>::Type index[kUnits];
      alignas(kSize) uint8_t kept[kPairs][kSize];
    };
    static_assert(kSize == kLine && sizeof(Result[kMostResults]) <= sizeof(Piece::index));

    // Calls work(place among the bytes of all runs, bytes, place in memory) for each vector of them.
    template <class F>
    static void for_vectors(const PieceRuns& runs, const F& work) {
      for (int r = 0; r < runs.count; ++r) {
        for (int64_t b = 0; b < runs.bytes; b += kSize) {
          const int64_t from = runs.bytes < kSize ? 0 : b + kSize <= runs.bytes ? b : runs.bytes - kSize;
          work(r * runs.bytes + from, runs.bytes < kSize ? runs.bytes : kSize, runs.at[r] + from);
        }
      }
    }

    static void index(Piece& piece) {
      const auto& [in, out, source] = *piece.map;
      uint8_t vector[kMostPieceBytes], place[kMostPieceBytes];  // of each byte of the input's runs
      int n = 0;
      for_vectors(in, [&](int64_t first, int64_t bytes, int64_t at) {
        piece.sources[n] = {at, I::first(bytes)};
        for (int64_t b = 0; b < bytes; ++b) {
          vector[first + b] = static_cast<uint8_t>(n);
          place[first + b] = static_cast<uint8_t>(b);
        }
        ++n;
      });
      if (n % 2 == 1) piece.sources[n] = piece.sources[n - 1];  // of a pair that is one
      auto* const table = reinterpret_cast<Result*>(&piece.index);
      n = 0;
      for_vectors(out, [&](int64_t first, int64_t bytes, int64_t at) {
        piece.results[n] = {at, I::first(bytes)};
        Result& result = table[n++];
        uint8_t pair[kSize] = {};
        for (int64_t b = 0; b < bytes; ++b) pair[b] = vector[source[first + b]] / 2;
        for (int m = 1; m < kPairs; ++m) {
          for (int64_t b = 0; b < kSize; ++b) result.kept[m][b] = pair[b] == m ? 0xff : 0;
        }
        for (int unit = 0; unit < kUnits; ++unit) {
          const int64_t b = unit * kUnit, from = source[first + (b < bytes ? b : 0)];
          result.index[unit] =
              static_cast<typename Unsigned<kUnit>::Type>(vector[from] % 2 * kUnits + place[from] / kUnit);
        }
      });
      piece.result_count = n;
    }

    template <bool streaming = false>
    static void run(const Piece& piece, Work w) {
      const auto* const table = reinterpret_cast<const Result*>(&piece.index);
      const auto load = [](const auto& bytes) { return I::load(reinterpret_cast<const char*>(bytes)); };
      Piece::Part sources[kSources];
      for (int m = 0; m < kSources; ++m) sources[m] = piece.sources[m];
      const int results = piece.result_count;
      const bool whole = piece.map->in.bytes >= kSize;
      const int64_t ahead = w.ahead;
      for (; w.pieces > 0; w.advance(1)) {
        Vec from[kSources];
        TX_UNROLL for (int m = 0; m < kSources; ++m) {
          if (ahead != 0) ask_ahead<false>(w.in + sources[m].at, ahead);
          from[m] =
              whole ? I::load(w.in + sources[m].at) : I::load_masked(w.in + sources[m].at, sources[m].mask);
        }
        for (int r = 0; r < results; ++r) {
          const Vec index = load(table[r].index);
          Vec v = I::template permute<kUnit>(from[0], from[1], index);
          TX_UNROLL for (int m = 1; m < kPairs; ++m) {
            v = I::replace(v, I::template permute<kUnit>(from[2 * m], from[2 * m + 1], index),
                           load(table[r].kept[m]));
          }
          char* const to = w.out + piece.results[r].at;
          if constexpr (streaming) {
            I::stream_line(to, v);
          } else {
            I::store_masked(to, piece.results[r].mask, v);
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

  static constexpr int64_t kMostLanes = 8;
  // The units of permutations, for elements of one byte and of more; 0 if there are none.
  static constexpr int unit(bool bytes) {
    return I::template kPermutes<1> ? 1 : I::template kPermutes<2> && !bytes ? 2 : 0;
  }
  static constexpr int64_t most(bool bytes) {
    return unit(bytes) > 0 ? kMostPieceVectors * static_cast<int64_t>(sizeof(Vec))
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
    const auto permute = [&]<int kUnit, int... before>(std::integer_sequence<int, before...>) {
      return first(sizeof(Vec), Permute<kUnit, before + 1>()...);
    };
    const auto permute_runs = [&]<int kUnit, int... before>(std::integer_sequence<int, before...>) {
      const PieceRuns& runs = piece.map->in;
      int64_t left = (runs.count * ((runs.bytes + sizeof(Vec) - 1) / sizeof(Vec)) + 1) / 2;
      return ((--left == 0 ? (work(PermuteRuns<kUnit, before + 1>()), true) : false) || ...);
    };
    constexpr auto kPairs = std::make_integer_sequence<int, kMostSources / 2>();
    if (piece.map->in.count > 1 || piece.map->out.count > 1) {
      if constexpr (unit(false) > 0) {
        if (piece.element_bytes >= 4) return permute_runs.template operator()<4>(kPairs);
        if (unit(piece.element_bytes == 1) > 0) return permute_runs.template operator()<unit(false)>(kPairs);
      }
      return false;
    }
    // (Units of four bytes: the Xeon, which permutes narrower ones with three instructions, one thread; four,
    // 4 bytes .70 .58 -> .77 .64; Zen 5 level.)
    constexpr auto kVectors = std::make_integer_sequence<int, kMostPieceVectors>();
    if constexpr (unit(false) > 0) {
      if (piece.element_bytes >= 4) return permute.template operator()<4>(kVectors);
      if (unit(piece.element_bytes == 1) > 0) return permute.template operator()<unit(false)>(kVectors);
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
                  int64_t pieces, int64_t ahead) {
    const Work w = {in, in_step, out, out_step, pieces, ahead};
    if (!in_registers(piece, [&](auto way) { way.run(piece, w); })) by_byte(piece, w);
  }
  static void stream(const Piece& piece, const char* in, int64_t in_step, char* out, int64_t out_step,
                     int64_t pieces, int64_t ahead) {
    in_registers(piece, [&](auto way) {
      if constexpr (way.kStreams) way.template run<true>(piece, {in, in_step, out, out_step, pieces, ahead});
    });
  }
};

}  // namespace
}  // namespace tx::cpu
