// Part of micro_impl.h: elements that lie apart in the input, and side by side in the output.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/micro.h"
#include "cpu/micro_rows.h"
#include "cpu/micro_tile.h"

namespace tx::cpu {
namespace {

// One by one. Elements have e bytes, or more than half of those, and then go as two halves that overlap.
template <int e>
TX_INLINE void gather_elements(int64_t bytes, const char* in, int64_t step, char* out, int64_t count) {
  if (bytes == e) {
    TX_UNROLL_SOME for (int64_t k = 0; k < count; ++k) std::memcpy(out + k * e, in + k * step, e);
  } else if constexpr (e > 1) {
    constexpr int kHalf = e / 2;
    TX_UNROLL_SOME for (int64_t k = 0; k < count; ++k, in += step, out += bytes) {
      std::memcpy(out, in, kHalf);
      std::memcpy(out + bytes - kHalf, in + bytes - kHalf, kHalf);
    }
  }
}

// A vector of one plain element again and again.
template <class I, int e>
TX_INLINE typename I::Vec all_of(const char* in) {
  if constexpr (e == 16) {
    if constexpr (I::kLanes > 1) return I::load_lanes([&](int) { return in; });
    return I::load(in);
  } else {
    constexpr uint64_t kOneOfEach = UINT64_MAX / (UINT64_MAX >> (64 - 8 * e));
    typedef uint64_t Words __attribute__((vector_size(sizeof(typename I::Vec))));
    uint64_t element = 0;
    std::memcpy(&element, in, e);
    const Words words = Words{} + element * kOneOfEach;
    typename I::Vec vector;
    std::memcpy(&vector, &words, sizeof vector);
    return vector;
  }
}

// One element again and again: whole vectors, the last of which may overlap, or parts of one likewise. Runs
// of other lengths than elements have, some at a time.
template <class I, int e>
TX_INLINE void repeat(int64_t bytes, const char* in, char* out, int64_t count) {
  using Vec = typename I::Vec;
  constexpr int64_t kTimes = 64, kVector = sizeof(Vec), kSome = 4 * kVector, kLane = 16;
  const int64_t all = count * bytes;
  if (bytes == e && all >= kLane) {
    const Vec vector = all_of<I, e>(in);
    if (all < kVector) {
      char lane[kVector];
      I::store(lane, vector);
      for (int64_t b = 0; b < all - kLane; b += kLane) std::memcpy(out + b, lane, kLane);
      std::memcpy(out + all - kLane, lane, kLane);
      return;
    }
    int64_t b = 0;
    for (; b <= all - kSome; b += kSome) {
      TX_UNROLL for (int64_t v = 0; v < kSome; v += kVector) I::store(out + b + v, vector);
    }
    for (; b < all - kVector; b += kVector) I::store(out + b, vector);
    I::store(out + all - kVector, vector);
    return;
  }
  if (e > 1 && count >= kTimes) {
    alignas(kLine) char times[kTimes * e];
    gather_elements<e>(bytes, in, 0, times, kTimes);
    for (; count >= kTimes; count -= kTimes, out += kTimes * bytes)
      std::memcpy(out, times, static_cast<size_t>(kTimes * bytes));
  }
  gather_elements<e>(bytes, in, 0, out, count);
}

// How a vector, or each of its lanes, has several elements that lie a step apart closed up. What it has
// besides is written over by the next.
template <class I>
struct Closing {
  using Vec = typename I::Vec;
  static constexpr bool kWhole = I::kLoadsParts && I::template kPermutes<1>;
  static constexpr int64_t kSize = kWhole ? sizeof(Vec) : 16;
  static constexpr int kParts = kWhole ? 1 : I::kLanes;
  // Of whole vectors most loads and stores are of two lines (Xeon, three at a time of 8 bytes, 1 and 20 MB,
  // one thread; 16, one by one -> so .18 .30; .32 .50 -> .13 .25; .41 .41 of a copy; four .25 .42; .41 .60 ->
  // .27 .54; .77 .67).
  static constexpr int64_t kLeast = kWhole ? 4 : 2;

  static void prepare(Gathered& g) {
    if (!I::kShuffles || g.step < g.bytes || g.step + g.bytes > kSize) return;
    const int64_t together = (kSize - g.bytes) / g.step + 1;
    if (together < kLeast) return;
    g.together = together;
    g.past = (kSize + g.bytes - 1) / g.bytes - 1;  // that is written to; no more is read
    int64_t at = 0, byte = 0;
    for (int64_t b = 0; b < g.together * g.bytes; ++b) {
      g.index[b] = static_cast<uint8_t>(at + byte);
      if (++byte == g.bytes) byte = 0, at += g.step;
    }
  }

  // A part from each in(part) to out(part).
  template <class In, class Out>
  TX_INLINE void move(const uint8_t* index, In in, Out out) {
    if constexpr (kWhole) {
      I::store(out(0), I::permute_bytes(I::load(in(0)), I::load(reinterpret_cast<const char*>(index))));
    } else if constexpr (I::kLanes == 1) {
      I::store(out(0), I::shuffle(I::load(in(0)), index));
    } else {
      I::store_lanes(out, I::shuffle(I::load_lanes(in), index));
    }
  }
};

// A vector of elements of 4 bytes or more, a step apart.
template <class I, int e>
TX_INLINE typename I::Vec load_apart(const char* in, int64_t step) {
  return I::load_lanes([&](int lane) {
    const char* const first = in + lane * (16 / e) * step;
    if constexpr (e == 4) return Four{first, step};
    if constexpr (e == 8) return Ends<const char>{first, first + step};
    if constexpr (e == 16) return first;
  });
}

// Rows of such elements, some columns of each row before the next columns: up to eight or what a vector has,
// lanes, of which the last steps back, and what is less than a lane. (As many as make a line, AVX2, 4 bytes,
// whose input columns are 2 KiB apart, .37 -> .34 of a copy.)
template <class I, int e>
void gather_down(const char* in, int64_t step, int64_t in_pitch, char* out, int64_t out_pitch, int64_t count,
                 int64_t rows) {
  constexpr int64_t kSide = sizeof(typename I::Vec) / e, kLane = 16 / e,
                    kMost = kLine / e < 8 ? kLine / e : 8;
  constexpr int64_t kTogether = kSide < kMost ? kMost / kSide : 1;
  const auto each_row = [=](int64_t column, const auto& move) {
    const char* from = in + column * step;
    char* to = out + column * e;
    for (int64_t r = 0; r < rows; ++r, from += in_pitch, to += out_pitch) move(from, to);
  };
  int64_t done = 0;
  const auto by = [&]<class V, int64_t vectors>() {
    constexpr int64_t kVec = sizeof(typename V::Vec) / e;
    if (input_rows_meet(vectors * kVec, step)) return;
    for (; done + vectors * kVec <= count; done += vectors * kVec) {
      each_row(done, [=](const char* from, char* to) {
        TX_UNROLL for (int64_t k = 0; k < vectors * kVec; k += kVec)
            V::store(to + k * e, load_apart<V, e>(from + k * step, step));
      });
    }
  };
  by.template operator()<I, kTogether>();
  if constexpr (kTogether > 1) by.template operator()<I, 1>();
  for (; done < count && count >= kLane; done += kLane) {
    const int64_t column = done + kLane > count ? count - kLane : done;
    each_row(column, [=](const char* from, char* to) { Lane::store(to, load_apart<Lane, e>(from, step)); });
  }
  for (; done < count; ++done) each_row(done, [](const char* from, char* to) { std::memcpy(to, from, e); });
}

// Rows of elements of which a vector closes up as many as there are. Of 1 byte, 14 to 150 columns of every
// second to fourth, Zen 4 in L1, .03 to .16 of a copy -> .03 to .37, of 2 bytes .10 to .37 -> .10 to .42;
// fewer than kLeastPart, or wider, .5 to .95 times as fast.
constexpr int64_t kLeastPart = 12;
template <class I, int e>
__attribute__((noinline)) void gather_parts(const Gathered& g, const char* in, int64_t in_pitch, char* out,
                                            int64_t out_pitch, int64_t count, int64_t rows) {
  const auto index = I::load(reinterpret_cast<const char*>(g.index));
  const int64_t together = g.together, in_step = together * g.step, out_step = together * g.bytes;
  for (int64_t r = 0; r < rows; ++r, in += in_pitch, out += out_pitch) {
    const char* from = in;
    char* to = out;
    int64_t left = count;
    for (; left > g.past; from += in_step, to += out_step, left -= together)
      I::store(to, I::permute_bytes(I::load(from), index));
    while (left >= kLeastPart) {
      const int64_t some = left < together ? left : together;
      const auto v = I::load_part(from, (some - 1) * g.step + g.bytes);
      I::store_part(to, some * g.bytes, I::permute_bytes(v, index));
      from += in_step, to += out_step, left -= some;
    }
    gather_elements<e>(g.bytes, from, g.step, to, left);
  }
}

// Rows, of several elements at a time where a vector that is loaded has them, as long as neither it nor what
// is written of it ends past the last.
template <class I, int e>
void gather(const Gathered& g, const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t count,
            int64_t rows) {
  if (g.step == 0) {
    for (int64_t r = 0; r < rows; ++r, in += in_pitch, out += out_pitch)
      repeat<I, e>(g.bytes, in, out, count);
    return;
  }
  using Close = Closing<I>;
  // Of its own, which what is written can't change.
  alignas(kLine) uint8_t index[Close::kSize];
  std::memcpy(index, g.index, sizeof index);
  const int64_t together = g.together, in_step = together * g.step, out_step = together * g.bytes;
  const int64_t all = Close::kParts * together;
  if constexpr (Close::kWhole && e <= 2) {
    if (together >= kLeastPart && count >= kLeastPart)
      return gather_parts<I, e>(g, in, in_pitch, out, out_pitch, count, rows);
  }
  if constexpr (e >= 4) {
    if (together == 1 && g.bytes == e && in_pitch < g.step)
      return gather_down<I, e>(in, g.step, in_pitch, out, out_pitch, count, rows);
  }
  for (int64_t r = 0; r < rows; ++r, in += in_pitch, out += out_pitch) {
    int64_t done = 0;
    if constexpr (I::kShuffles && e < 16) {
      const char* from = in;
      char* to = out;
      for (int64_t left = together > 1 ? count - g.past : 0; left > all - together; left -= all) {
        Close::move(
            index, [&](int part) { return from + part * in_step; },
            [&](int part) { return to + part * out_step; });
        from += Close::kParts * in_step, to += Close::kParts * out_step, done += all;
      }
    }
    gather_elements<e>(g.bytes, in + done * g.step, g.step, out + done * g.bytes, count - done);
  }
}

}  // namespace
}  // namespace tx::cpu
