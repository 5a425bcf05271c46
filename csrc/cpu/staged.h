// Output rows gathered in fast memory and written past the caches, one whole line at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "core/int_math.h"
#include "cpu/micro.h"

namespace tx::cpu {

// `rows` output rows, `out_stride` bytes apart, that grow at the same pace. What is new of a row starts on a
// line of the staging memory. When the rows are flushed, the end of each that is less than a line is carried
// to just before that place, so that every store but the first and last of a row is one whole line of the
// output, whatever its pitch.
class StagedRows {
 public:
  static constexpr int64_t kBytes = 512 << 10;

  // `row_bytes`: the most that a row holds between flushes.
  StagedRows(const MicroKernels& micro, char* memory, int64_t out_stride, int64_t row_bytes)
      : micro_(micro), start_(memory + kLine), out_stride_(out_stride), pitch_(pitch_for(row_bytes)) {}

  // Bytes of memory that `rows` rows need.
  static int64_t bytes_needed(int64_t rows, int64_t row_bytes) { return rows * pitch_for(row_bytes) + kLine; }

  // Rows that start at `out` and beyond; those before must be finished.
  void begin(char* out, int64_t rows) {
    out_ = out;
    rows_ = rows;
    filled_ = 0;
    carried_ = false;
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
    for (int64_t k = 0; k < rows_; ++k) {
      char* const start = start_ + k * pitch_;
      char* const end = start + filled_;
      char* from = start;
      char* to = out_ + k * out_stride_;
      const int64_t place_in_line = reinterpret_cast<intptr_t>(to) % kLine;
      if (carried_) {
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
      if (rows_end) {
        from += lines * kLine;
        std::memcpy(to + lines * kLine, from, static_cast<size_t>(end - from));
      } else {
        std::memcpy(start - kLine, end - kLine, kLine);
      }
      between_rows(k);
    }
    out_ += filled_;
    filled_ = 0;
    carried_ = true;
  }

 private:
  // Room for the carried line, and an odd count of lines, lest the rows share few cache sets.
  static int64_t pitch_for(int64_t row_bytes) { return round_up(row_bytes, 2 * kLine) + kLine; }

  const MicroKernels& micro_;
  char* const start_;
  const int64_t out_stride_;
  const int64_t pitch_;
  char* out_ = nullptr;  // row 0's next byte in the output
  int64_t rows_ = 0;
  int64_t filled_ = 0;    // bytes of each row that are not in the output, without those carried
  bool carried_ = false;  // the line before `start_` ends in the bytes that begin the output's next line
};

}  // namespace tx::cpu
