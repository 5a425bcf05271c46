// What an instruction set must offer the loops of run.cpp: one table of functions a set, chosen once at run
// time.
#pragma once

#include <cstdint>

namespace tx::cpu {

inline constexpr int64_t kLine = 64;  // bytes of a cache line: what a streaming store should fill

struct MicroKernels {
  const char* name;

  // out[i][j] = in[j][i] for i < rows, j < cols: `rows` counts output rows, along which the input is
  // contiguous. Pitches are the bytes from one input row (one j) and one output row (one i) to the next. Any
  // extents, any pitches, any alignment; touches only the rows x cols elements. Indexed by log2 of the
  // element's bytes.
  using Transpose = void (*)(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                             int64_t cols);
  Transpose transpose[5];

  // The same in blocks of several vectors on each side, for elements of at most 4 bytes.
  Transpose transpose_blocks[3];

  // Both past the caches; null where line_vectors, the vectors that make a line, is 0. The caller fences, and
  // sees to it that only whole lines are written: `out`, its pitch and `cols` are whole lines, or, where cols
  // are narrow (core/narrow.h) and rows adjoin, `out` and `rows` are.
  int line_vectors;
  Transpose stream_transpose[5];
  Transpose stream_blocks[3];

  // Copies whole lines past the caches. `out` is aligned to a line. The caller fences when its last line is
  // written.
  void (*stream)(char* out, const char* in, int64_t lines);
  void (*fence)();
};

// Defined in micro_<isa>.cpp, each compiled with its own flags; null where the compiler or its target lacks
// the set.
extern const MicroKernels* const kPortable;
extern const MicroKernels* const kAvx2;
extern const MicroKernels* const kAvx512;
extern const MicroKernels* const kAvx512Vbmi;
extern const MicroKernels* const kNeon;

}  // namespace tx::cpu
