// Output rows gathered in fast memory and written a few whole lines at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/micro.h"

namespace tx::cpu {

// `rows` output rows that grow at the same pace, `out_stride` bytes apart or at the places of a table. What
// is new of a row starts on a line of the staging memory. When the rows are written, the end of each that is
// less than a line is carried to just before that place, so that every store but the first and last of a row
// is one whole line of the output, whatever its pitch.
class StagedRows {
 public:
  // `memory` is aligned to a line; rows are `pitch` bytes apart in it, and hold at most `row_bytes` between
  // writes.
  StagedRows(void (*copy_lines)(char*, const char*, int64_t), char* memory, int64_t pitch, int64_t out_stride,
             const int64_t* places = nullptr)
      : copy_lines_(copy_lines),
        start_(memory + kLine),
        pitch_(pitch),
        out_stride_(out_stride),
        places_(places) {}

  // Rows that start at `out` and beyond. Those before, at first none, must have been written to their end.
  void begin(char* out, int64_t rows) {
    out_ = out;
    rows_ = rows;
    filled_ = 0;
    carried_ = false;
  }

  bool continues(const char* out, int64_t rows) const { return out == out_ + filled_ && rows == rows_; }

  // Makes room for what comes next at `out`: writes what is there, if rows end or have so much, and begins
  // rows.
  void make_room(char* out, int64_t rows, int64_t most) {
    const bool ends = !continues(out, rows);
    if (ends || filled_ >= most) write(ends, [](int64_t, int64_t) {});
    if (ends) begin(out, rows);
  }

  char* next() const { return start_ + filled_; }  // where row 0's next byte belongs in the staging memory
  int64_t pitch() const { return pitch_; }
  int64_t filled() const { return filled_; }
  void add(int64_t bytes) { filled_ += bytes; }

  // Writes what is there, and after every few lines, and last, calls written(bytes, of_bytes). Unless the
  // rows end here, at least a line must be there.
  template <class F>
  void write(bool rows_end, const F& written) {
    constexpr int64_t kLines = 4;
    const int64_t bytes = rows_ * filled_;
    for (int64_t k = 0; k < rows_; ++k) {
      char* const start = start_ + k * pitch_;
      char* const end = start + filled_;
      char* from = start;
      char* to = out_ + (places_ == nullptr ? k * out_stride_ : places_[k]);
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
      for (int64_t lines = (end - from) / kLine; lines > 0;) {
        const int64_t count = std::min(lines, kLines);
        copy_lines_(to, from, count);
        from += count * kLine, to += count * kLine, lines -= count;
        if (lines > 0) written(k * filled_ + (from - start), bytes);
      }
      if (rows_end) {
        std::memcpy(to, from, static_cast<size_t>(end - from));
      } else {
        std::memcpy(start - kLine, end - kLine, kLine);
      }
      written((k + 1) * filled_, bytes);
    }
    out_ += filled_;
    filled_ = 0;
    carried_ = true;
  }

 private:
  void (*const copy_lines_)(char*, const char*, int64_t);
  char* const start_;
  const int64_t pitch_;
  const int64_t out_stride_;
  const int64_t* const places_;
  char* out_ = nullptr;  // row 0's next byte in the output
  int64_t rows_ = 0;
  int64_t filled_ = 0;    // bytes of each row that are not in the output, without those carried
  bool carried_ = false;  // the bytes before `start_` are those that the output's line at hand begins with
};

}  // namespace tx::cpu
