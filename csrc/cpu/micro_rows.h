// Part of micro_impl.h: where the rows of a matrix lie, and what comes with each as it is read or written.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/micro.h"

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

// Asks for the line so far ahead of what is read, whether or not it exists, into L1 or L2.
template <bool to_l1 = true>
TX_INLINE void ask_ahead(const char* from, int64_t bytes) {
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<intptr_t>(from) + bytes), 0,
                     to_l1 ? 3 : 2);
}

// Two words of 8 bytes that may overlap: the ends of what is less than a lane and at least a half.
template <class Byte>
struct Ends {
  Byte *first, *last;
};

// Four elements of 4 bytes, a step apart, as a vector of words.
struct Four {
  const char* first;
  int64_t step;
  typedef uint32_t Words __attribute__((vector_size(16)));
  TX_MEMBER Words load() const {
    const auto word = [this](int k) {
      uint32_t bytes;
      std::memcpy(&bytes, first + k * step, sizeof bytes);
      return bytes;
    };
    return Words{word(0), word(1), word(2), word(3)};
  }
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
// The same, or rows of which nothing is asked for, at any pitch. `carried` has, for each row, the line's
// worth of it that comes before, and is given what was stored instead.
template <class Row>
struct CarriedRow {
  Row row;
  char* carried;
};
template <class Rows>
struct CarriedRows {
  Rows rows;
  char* carried;
  template <bool many>
  TX_MEMBER auto next() {
    char* const line = carried;
    carried += kLine;
    return CarriedRow{rows.template next<many>(), line};
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

}  // namespace
}  // namespace tx::cpu
