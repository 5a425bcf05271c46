// Output rows gathered in fast memory and written past the caches, one whole line at a time.
#pragma once

#include <cstdint>
#include <algorithm>
#include <cstring>

#include "core/int_math.h"
#include "cpu/micro.h"

namespace tx::cpu {

// `rows` output rows, `out_stride` bytes apart, that grow at the same pace. Each has a staging row with the same
// place in its line as the output has: then staged lines are output lines, whatever the output's pitch.
// A line that is only partly there when the rows are flushed is carried to their start, so every store but the first
// and last of a row is one whole line.
class StagedRows {
 public:
  static constexpr int64_t kBytes = 512 << 10;  // staging memory: with the tile's input, about an L2's share

  StagedRows(const MicroKernels& micro, char* memory, int64_t out_stride, int64_t row_bytes)
      : micro_(micro), memory_(memory), out_stride_(out_stride) {
    // Same place in a line as the output; room for a carried line and a last one; and an odd count of lines between
    // rows, lest they share few cache sets.
    pitch_ = round_up(row_bytes + 2 * kLine, 2 * kLine) + kLine + out_stride % kLine;
  }

  // Bytes of memory that `rows` rows of up to `row_bytes` bytes need.
  static int64_t bytes_needed(int64_t rows, int64_t row_bytes) { return rows * (row_bytes + 6 * kLine); }

  // Rows that start at `out` and beyond; those before must be finished.
  void begin(char* out, int64_t rows) {
    out_ = out;
    rows_ = rows;
    filled_ = 0;
    whole_start_ = false;
    place();
  }

  bool continues(const char* out, int64_t rows) const { return out == out_ + filled_ && rows == rows_; }
  int64_t filled() const { return filled_; }
  int64_t pitch() const { return pitch_; }
  char* next() const { return start_ + filled_; }  // row 0's next byte in the staging memory
  void add(int64_t bytes) { filled_ += bytes; }

  // Writes what is there. Unless the rows end here, at least a line must be there, and part of one stays.
  // Calls between_rows(k) after row k.
  template <class F>
  void flush(bool rows_end, const F& between_rows) {
    char* const old_start = start_;
    char* const old_out = out_;
    out_ += filled_;
    place();
    for (int64_t k = 0; k < rows_; ++k) {
      char* from = old_start + k * pitch_;
      char* to = old_out + k * out_stride_;
      char* const end = from + filled_;
      const int64_t place_in_line = reinterpret_cast<intptr_t>(from) % kLine;
      if (whole_start_) {
        from -= place_in_line;
        to -= place_in_line;
      } else if (place_in_line != 0) {
        const int64_t head = std::min(kLine - place_in_line, filled_);
        std::memcpy(to, from, static_cast<size_t>(head));
        from += head;
        to += head;
      }
      const int64_t lines = (end - from) / kLine;
      micro_.stream(to, from, lines);
      from += lines * kLine;
      to += lines * kLine;
      if (rows_end) {
        std::memcpy(to, from, static_cast<size_t>(end - from));
      } else {
        char* const start = start_ + k * pitch_;
        std::memcpy(start - reinterpret_cast<intptr_t>(start) % kLine, from, kLine);
      }
      between_rows(k);
    }
    whole_start_ = true;
    filled_ = 0;
  }

 private:
  void place() { start_ = memory_ + kLine + reinterpret_cast<intptr_t>(out_) % kLine; }

  const MicroKernels& micro_;
  char* const memory_;
  const int64_t out_stride_;
  int64_t pitch_;
  char* out_ = nullptr;    // row 0's first byte that is not in the output yet (but for a carried line)
  char* start_ = nullptr;  // its place in the staging memory
  int64_t rows_ = 0;
  int64_t filled_ = 0;
  bool whole_start_ = false;  // the bytes before start_, back to the line's own, are there: carried
};

}  // namespace tx::cpu
