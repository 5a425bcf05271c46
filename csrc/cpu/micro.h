// What an instruction set must offer the loops of run.cpp: one table of functions a set, chosen once at run
// time.
#pragma once

#include <cstdint>

#include "core/pieces_cpu.h"

// Loops that are unrolled, all or four times, or not.
#ifdef __clang__
#define TX_UNROLL _Pragma("unroll")
#define TX_UNROLL_SOME _Pragma("unroll 4")
#define TX_ROLLED _Pragma("nounroll")
#else
#define TX_UNROLL _Pragma("GCC unroll 64")
#define TX_UNROLL_SOME _Pragma("GCC unroll 4")
#define TX_ROLLED _Pragma("GCC unroll 1")
#endif

namespace tx::cpu {

inline constexpr int64_t kLine = 64;  // bytes of a cache line: what a streaming store should fill

// How far ahead of what is read in one stretch, past the caches, lines are asked for into L1, in all: many
// more at a time than the machine's own prefetchers do. Zen 5, one thread, columns split, of a copy:
//                              not at all   1 KiB    2     4     8    12    2 and 4 into L2
//   12 of 4 bytes                  .92       .89    .81   .89  1.06  1.12   .70 .90
//   12 of 1 byte                   .82       .71    .73   .87   .97   .94   .73 .78
//   24 of 2 bytes                  .32       .43    .49   .70   .94  1.00   .48 .75
inline constexpr int64_t kAskedAhead = 8 << 10;

// A permutation of a few runs on either side, of at most so many vectors where it is in registers.
inline constexpr int kMostPieceVectors = 16;
struct Piece {
  int64_t bytes;
  int64_t element_bytes;
  bool adjoin;  // pieces are one run on both sides, and follow one another there
  const PieceMap* map;
  // The micro-kernel's own: where vectors of several runs lie, and which of their bytes are the piece's; for
  // each vector that is written where its bytes come from, and which of them come from each two.
  struct Part {
    int64_t at;
    uint64_t mask;
  };
  Part sources[kMostSources];
  Part results[kMostResults];
  int result_count;
  alignas(kLine) uint8_t index[kMostPieceVectors * (1 + kMostPieceVectors / 2) * kLine];
};

// Elements of up to 16 bytes that lie side by side in the output, and a step apart in the input, or are all
// one.
struct Gathered {
  int64_t bytes;
  int64_t step;
  // The micro-kernel's own: how many a vector closes up, from the bytes of `index`, and how many that are
  // past those it may touch.
  int64_t together = 1;
  int64_t past = 0;
  alignas(kLine) uint8_t index[kLine] = {};
};

// Runs that the instruction sets copy themselves, instead of the C library. Of a copy, 80 problems of .1 to 6
// MB each, of 34 to 64 bytes, to 130, to 500 and to 4000, the C library -> so (longer ones by up to .05)
//   Zen 4         .63 .72 .86 .88 -> .60 .76 .90 .95
//   AVX2 on it    .57 .65 .80 .89 -> .54 .70 .84 .96
inline constexpr int64_t kLeastRun = 64, kMostRun = 4096;

struct MicroKernels {
  const char* name;

  // out[i][j] = in[j][i] for i < rows, j < cols: `rows` counts output rows, along which the input is
  // contiguous. Pitches are the bytes from one input row (one j) and one output row (one i) to the next. Any
  // extents, any pitches, any alignment; touches only the rows x cols elements. Indexed by log2 of the
  // element's bytes, rounded up: an element has any number of bytes up to kMostElementBytes.
  using Transpose = void (*)(int64_t element_bytes, const char* in, int64_t in_pitch, char* out,
                             int64_t out_pitch, int64_t rows, int64_t cols);
  Transpose transpose[11];

  // The same in blocks of several vectors on each side, one read while another is written, for elements of 1
  // to 8 bytes.
  Transpose transpose_blocks[4];

  // The same in other orders (core/tile_order.h), for elements of 1 to 16 bytes, and of 4 and 8 alone,
  // indexed likewise.
  Transpose transpose_crosswise[5];
  Transpose transpose_diagonal[4];

  // The same, asking for lines of what comes next: steps are the bytes from this tile's first element to the
  // next one's. For elements of 1 to 16 bytes, indexed likewise; null where vectors are mere lanes.
  using TransposeAsking = void (*)(const char* in, int64_t in_pitch, char* out, int64_t out_pitch,
                                   int64_t rows, int64_t cols, int64_t in_step, int64_t out_step);
  TransposeAsking transpose_asking[5];

  // The same of rows at places of their own: input row j is in_places[j] bytes from `in`, output row i
  // out_places[i] bytes from `out`.
  using TransposePlaced = void (*)(int64_t element_bytes, const char* in, const int64_t* in_places, char* out,
                                   const int64_t* out_places, int64_t rows, int64_t cols);
  TransposePlaced transpose_placed[11];

  // The same of few columns whose rows follow one another in the output, and of few rows whose columns do in
  // the input, in runs of so many: run k is places[k] bytes from `out`, or `in`, and has at most 8 KiB. For
  // elements of 1 to 4 bytes, indexed likewise.
  using MergeRuns = void (*)(const char* in, int64_t in_pitch, char* out, const int64_t* places, int64_t runs,
                             int64_t run_rows, int64_t cols);
  using SplitRuns = void (*)(const char* in, const int64_t* places, char* out, int64_t out_pitch,
                             int64_t runs, int64_t run_cols, int64_t rows);
  MergeRuns merge_runs[3];
  SplitRuns split_runs[3];

  // Elements that lie apart, or are one again and again: fills in what it needs to know, once, and moves rows
  // of them, out[k] = in[k] for k < count. Pitches are the bytes from one row to the next. Touches only
  // these. Indexed as `transpose` is.
  void (*prepare_gather)(Gathered& gathered);
  using Gather = void (*)(const Gathered& gathered, const char* in, int64_t in_pitch, char* out,
                          int64_t out_pitch, int64_t count, int64_t rows);
  Gather gather[5];

  // Copies runs of kLeastRun bytes and more; strides are the bytes from one to the next. Null where vectors
  // are mere lanes: the C library has wider ones.
  using CopyRuns = void (*)(const char* in, int64_t in_stride, char* out, int64_t out_stride, int64_t bytes,
                            int64_t runs);
  CopyRuns copy_runs;

  // Small permutations: fills a piece's index, once, and moves pieces; steps are the bytes from one to the
  // next.
  void (*index_piece)(Piece& piece);
  using PermutePieces = void (*)(const Piece& piece, const char* in, int64_t in_step, char* out,
                                 int64_t out_step, int64_t pieces, int64_t ahead);
  PermutePieces permute_pieces;
  int64_t piece_bytes[2];  // up to which it does so in registers: elements of one byte, and of more; or 0
  bool permutes_runs[2];   // whether it does so of several runs; likewise

  // The same past the caches, of pieces that follow one another in the output and are whole lines, or adjoin
  // and are a part of one that is a power of two; `out` is aligned to a line. For elements of one byte, and
  // of more; null where a line is not one vector. The caller fences.
  PermutePieces stream_pieces[2];

  // Vectors that make a line, or 0: then nothing is streamed but elements of whole lines.
  int line_vectors;

  // Past the caches, with lines of the tiles to come asked for. Null where line_vectors is 0, but for
  // elements of whole lines. The caller fences.
  using StreamCarried = void (*)(const char* in, int64_t in_pitch, char* out, int64_t out_pitch, int64_t rows,
                                 int64_t cols, char* carried);
  struct Streaming {
    // For elements of 1, 2, 4, 8 and 16 bytes, and of whole lines, in tiles, and in blocks. The caller sees
    // to it that only whole lines are written: `out`, its pitch and `cols` are whole lines, or, where cols
    // are narrow (core/narrow.h) and rows adjoin, `out` and `rows` are.
    Transpose transpose[11];
    Transpose blocks[5];  // wider than 4 bytes not those into L2 where a line is one vector

    // To rows at any pitch: each line is put together of what `carried` has, kLine bytes a row, which come
    // before, and of what is new. What is new last stays there. `cols` are whole lines; their addresses are
    // multiples of 8 bytes, or of the element's if fewer. For elements of 1 to 16 bytes, indexed likewise;
    // null where line_vectors is 0, for bytes also where vectors are lines but bytes are not permuted. In
    // tiles, and in blocks, these null where a line is not one vector.
    StreamCarried carried[5];
    StreamCarried carried_blocks[5];
  };
  // Lines are asked for into the L2 cache; into L1, null but where can_ask_into_l1() in core/prefetch_cpu.h
  // is true.
  Streaming streaming[2];

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
