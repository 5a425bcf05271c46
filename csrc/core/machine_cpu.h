// A machine with its tuned numbers, how much of its caches a problem fills, and the row of a table that an
// element has.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "core/plan_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {

inline constexpr int64_t kLine = 64;

// What the tables and the micro-kernels know an element by: 1, 2, 4, 8 or 16 bytes, and no run.
inline bool is_plain(int64_t element_bytes) {
  return element_bytes <= 16 && std::has_single_bit(static_cast<uint64_t>(element_bytes));
}

// The row of a table by log2 of the element's bytes: that of the next plain element, or of the widest.
inline int width_row(int64_t element_bytes) {
  return std::min(static_cast<int>(std::bit_width(static_cast<uint64_t>(element_bytes - 1))), 4);
}

// Elements that make whole lines.
inline int64_t line_elements(int64_t element_bytes) { return kLine / std::gcd(element_bytes, kLine); }

// A machine with its tuned numbers.
struct Machine : CpuFacts {
  const CpuTuning& tuned;
  explicit Machine(const CpuFacts& facts) : CpuFacts(facts), tuned(find_tuning(facts)) {}
};

// Whether a vector is a whole line. Tiles of smaller ones read and write lines in parts.
inline bool vectors_are_lines(const CpuFacts& facts) { return facts.line_vectors == 1; }

// Whether direct tiles may be moved crosswise.
inline bool crosses(const Machine& m) { return m.tuned.crossed_until[1] > 0; }

// A near last cache does not make up for cores that move lines in halves: what they write leaves it early.
inline bool leaves_early(const Machine& m) { return m.tuned.near_cache && !m.tuned.moves_lines; }

// Whether what they move in halves is one vector: AVX-512 on Zen 4.
inline bool halves_vectors(const Machine& m) { return leaves_early(m) && vectors_are_lines(m); }

// Whether the lines that are streamed past a near cache are several vectors.
inline bool streams_in_parts(const Machine& m) { return leaves_early(m) && m.line_vectors > 1; }

// Whether L1 has room for what is asked for into it.
inline bool l1_has_room(const Machine& m) { return m.l1_bytes >= kRoomyL1Bytes; }

// The last cache, or what counts as such.
inline int64_t cache_bytes(const Machine& m) {
  return m.tuned.near_cache ? m.l3_bytes : std::max(kFarCacheBytes, m.threads * m.l2_bytes / 4 * 3);
}

// Bytes of the input that a problem reads, each counted once: of what is one again and again, or overlaps, no
// more than it spans.
inline int64_t input_bytes(const Problem& p) {
  int64_t span = p.element_bytes;
  for (int d = 0; d < p.rank; ++d) span += (p.dims[d].extent - 1) * std::abs(p.dims[d].in_stride);
  return std::min(span, element_count(p) * p.element_bytes);
}

// Whether so many bytes are at least so many eighths of the last cache.
inline bool fills(int64_t bytes, const Machine& m, double eighths) {
  return static_cast<double>(bytes) >= static_cast<double>(cache_bytes(m)) / 8 * eighths;
}

// Whether what a problem moves is: of a near cache what is read counts once. By twice what is written -> so,
// one thread; two
//   Zen 4, one dim again and again, 12 to 18 MB, 24 (the last of the output: 11)
//                                        .73 .68 (.69 .68) -> .83 1.26 (1.43 1.92) of a copy
//          26 to 36 MB, of the last dim  .96 .99 -> 1.60 2.00
//   but windows of 16 bytes, Xeon        1.15 1.11 -> .41 .37
inline bool fills(const Problem& p, const Machine& m, double eighths) {
  const int64_t written = element_count(p) * p.element_bytes;
  return fills(written + (m.tuned.near_cache ? input_bytes(p) : written), m, eighths);
}

}  // namespace tx
