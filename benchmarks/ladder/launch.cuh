// What every group shares: bounded matrices for the kernels, one checked launch, and the C interface of a
// group's library.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "gpu.h"

namespace ladder {

// A row-major matrix of 4-byte elements. Every access of a kernel is written `if (m.has(r, c)) ... m.at(r,
// c)`, so that no rung reads or writes outside its matrix. Offsets are 64-bit: 32768 x 32768 elements are 4
// GiB.
template <typename T>
struct Matrix {
  T* data;
  int rows;
  int cols;

  __device__ bool has(int row, int col) const { return row < rows && col < cols; }
  __device__ T& at(int row, int col) const { return data[static_cast<int64_t>(row) * cols + col]; }
};

using In = Matrix<const float>;  // what a rung reads
using Out = Matrix<float>;       // what it writes: the transpose, or the same shape for a rung that copies

enum class Walk { kCols, kRows };  // what blockIdx.x and threadIdx.x count: columns or rows of the input

// How a rung is launched. A block covers span_x by span_y elements of the input.
template <typename T>
struct Rung {
  const char* name;
  void (*kernel)(Matrix<const T>, Matrix<T>);
  int block_x, block_y;
  int span_x, span_y;
  Walk walk = Walk::kCols;
  bool flat = false;       // a one-dimensional grid: blockIdx.x counts pieces along x first, then along y
  bool copies = false;     // the output has the input's shape
  int dynamic_shared = 0;  // bytes
};

struct Launch {
  int64_t grid_x, grid_y;
};

// Where a failure is described: rule, value, remedy.
struct Message {
  char* text;
  int bytes;

  template <typename... Args>
  int fail(const char* format, Args... args) const {
    std::snprintf(text, static_cast<size_t>(bytes), format, args...);
    return 1;
  }
};

template <typename T, size_t kCount>
const Rung<T>* find(const Rung<T> (&rungs)[kCount], const char* name) {
  for (const Rung<T>& rung : rungs) {
    if (std::strcmp(rung.name, name) == 0) return &rung;
  }
  return nullptr;
}

template <typename T>
int plan(const Rung<T>& rung, int64_t rows, int64_t cols, Launch& launch, Message message) {
  constexpr int64_t kMaxExtent =
      INT32_MAX - 65536;  // leaves room for the coordinates of a last, partial block
  constexpr int64_t kMaxGridX = INT32_MAX, kMaxGridY = 65535;
  if (rows < 1 || cols < 1 || rows > kMaxExtent || cols > kMaxExtent) {
    return message.fail("%s: rows and columns must lie in 1 .. %lld, got %lld x %lld; use a smaller matrix",
                        rung.name, static_cast<long long>(kMaxExtent), static_cast<long long>(rows),
                        static_cast<long long>(cols));
  }
  const int64_t extent_x = rung.walk == Walk::kRows ? rows : cols;
  const int64_t extent_y = rung.walk == Walk::kRows ? cols : rows;
  launch.grid_x = (extent_x + rung.span_x - 1) / rung.span_x;
  launch.grid_y = (extent_y + rung.span_y - 1) / rung.span_y;
  if (rung.flat) {
    launch.grid_x *= launch.grid_y;
    launch.grid_y = 1;
  }
  if (launch.grid_x > kMaxGridX || launch.grid_y > kMaxGridY) {
    return message.fail("%s: the grid must fit %lld x %lld blocks, got %lld x %lld; use a smaller matrix",
                        rung.name, static_cast<long long>(kMaxGridX), static_cast<long long>(kMaxGridY),
                        static_cast<long long>(launch.grid_x), static_cast<long long>(launch.grid_y));
  }
  return 0;
}

// The one place that launches a kernel. The caller's current device is left as it was found.
template <typename T>
int run(const Rung<T>& rung, const void* in, void* out, int64_t rows, int64_t cols, int device, void* stream,
        Message message) {
  Launch launch;
  if (plan(rung, rows, cols, launch, message) != 0) return 1;
  int previous = device;
  Error error = get_device(&previous);
  if (error == kSuccess && previous != device) error = set_device(device);
  if (error != kSuccess) return message.fail("%s: device %d: %s", rung.name, device, error_text(error));

  const int in_rows = static_cast<int>(rows), in_cols = static_cast<int>(cols);
  const Matrix<const T> input{static_cast<const T*>(in), in_rows, in_cols};
  const Matrix<T> output{static_cast<T*>(out), rung.copies ? in_rows : in_cols,
                         rung.copies ? in_cols : in_rows};
  const dim3 grid(static_cast<unsigned>(launch.grid_x), static_cast<unsigned>(launch.grid_y));
  const dim3 block(static_cast<unsigned>(rung.block_x), static_cast<unsigned>(rung.block_y));
  rung.kernel<<<grid, block, static_cast<size_t>(rung.dynamic_shared), static_cast<Stream>(stream)>>>(input,
                                                                                                      output);
  error = last_error();
  if (previous != device) {
    const Error restored = set_device(previous);
    if (error == kSuccess) error = restored;
  }
  if (error != kSuccess) {
    return message.fail("%s: launch of %u x %u blocks of %u x %u threads: %s", rung.name, grid.x, grid.y,
                        block.x, block.y, error_text(error));
  }
  return 0;
}

}  // namespace ladder

// The C interface of a group's library, over its table of rungs. Each call returns 0, or 1 with `text` filled
// in. ladder_name returns null past the last rung; ladder_describe fills grid x, y, block x, y and the
// dynamic shared bytes.
#define LADDER_EXPORT(rungs)                                                                                \
  extern "C" const char* ladder_name(int index) {                                                           \
    return index < static_cast<int>(sizeof(rungs) / sizeof(rungs[0])) ? rungs[index].name : nullptr;        \
  }                                                                                                         \
  extern "C" int ladder_describe(const char* name, int64_t rows, int64_t cols, int64_t* launch, char* text, \
                                 int bytes) {                                                               \
    const ladder::Message message{text, bytes};                                                             \
    const auto* rung = ladder::find(rungs, name);                                                           \
    if (rung == nullptr) return message.fail("%s: this library has no such rung", name);                    \
    ladder::Launch planned;                                                                                 \
    if (ladder::plan(*rung, rows, cols, planned, message) != 0) return 1;                                   \
    const int64_t values[] = {planned.grid_x, planned.grid_y, rung->block_x, rung->block_y,                 \
                              rung->dynamic_shared};                                                        \
    std::memcpy(launch, values, sizeof(values));                                                            \
    return 0;                                                                                               \
  }                                                                                                         \
  extern "C" int ladder_run(const char* name, const void* in, void* out, int64_t rows, int64_t cols,        \
                            int device, void* stream, char* text, int bytes) {                              \
    const ladder::Message message{text, bytes};                                                             \
    const auto* rung = ladder::find(rungs, name);                                                           \
    if (rung == nullptr) return message.fail("%s: this library has no such rung", name);                    \
    return ladder::run(*rung, in, out, rows, cols, device, stream, message);                                \
  }
