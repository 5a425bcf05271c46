// The tuned numbers of the CUDA kernels, beside the measurements that chose them. benchmarks/tune.py prints
// rows.
//
// DRAM bytes of each kernel against the least that the problem allows (one H200, ncu, caches flushed). When a
// kernel ends, what it wrote last is still in L2: 19 to 29 MB are missing from its writes, whatever they are
// of.
//   copy            16384^2, 4 bytes                             read 1.000, written .976
//   rows            401 x 397 x 409 -> 1,0,2, 2 bytes            read 1.002, written .818 (of 130 MB)
//   tile_small      4096^2, 8 bytes                              read 1.000, written .799 (of 134 MB)
//                   2M x 16, 8 bytes                             read 1.000, written .894 (of 256 MB)
//   tile            16384^2, 1 / 4 bytes                         read 1.000, written .894 / .974
//                   16384^2, 8 / 16 bytes                        read 1.000, written .988 / .994
//   tile_unaligned  16383 x 16385, 1 byte                        read 1.013, written .905
//                   16383 x 16385, 8 / 16 bytes                  read 1.018 / 1.019, written .987 / .994
//                   50257 x 4096, its transpose, 1 byte          read 1.013 / 1.004, written .871 / .861
//                   8192^2 [:, ::2], 2 / 16 bytes                read 1.000 / 1.001, written .658 / .954
//   narrow          12 x 5M, 1 byte                              read 1.000, written .539 (of 60 MB)
//                   3 x 20M, 8 bytes                             read 1.000, written .941 (of 480 MB)
//                   33 x 2M, 2 bytes, by words                   read 1.000, written .784 (of 132 MB)
//   periodic        10M x 3 x 5, 1 byte                          read 1.000, written .820 (of 150 MB)
//                   65536 x 17 x 31, 8 bytes                     read 1.000, written .899 (of 276 MB)
//   pieces          19 x 17 x 23 x 13 x 29 x 11 -> 0,2,1,4,3,5, 1 byte   read 1.001, written .197 (of 31 MB)
//                   the same, 2 bytes                            read 1.000, written .606
//   staged          20M x 3, 16 bytes                            read 1.000, written .971
//                   33 x 2M, 8 bytes                             read 1.000, written .947 (of 528 MB)
#pragma once

#include <cmath>
#include <cstdint>

#include "core/int_math.h"

namespace tx {

// The time a kernel takes, over a copy's: at least that of its memory traffic, 1 / rate, and of its
// instructions, work / what is filled of its tiles. Where both are near, they add up. Fitted to one H200, 110
// problems an element width: within 3 to 7 % (root mean square).
struct TileTime {
  double rate;
  double work;

  double operator()(double filled) const {
    const double memory = 1 / (rate * rate), instructions = work / filled * (work / filled);
    return std::sqrt(std::sqrt(memory * memory + instructions * instructions));
  }
};

// One compiled variant of the small-tile kernel: its tile in elements, threads a block, and the problems it
// is for.
struct SmallVariant {
  int element_bytes;
  int rows, cols;
  int threads;
  bool vectors;        // 16 bytes are read and written at a time, else an element
  int64_t most_bytes;  // of a problem; 0: any
  TileTime time;
  int64_t least_bytes = 0;
  bool spans = most_bytes == 0;  // only for matrices whose shorter side one tile spans

  // Whether it knows how to keep lines in L2: what that takes makes a kernel longer, and costs problems of 1
  // MB .2 to .4 us, in which its instructions are fetched.
  constexpr bool keeps() const { return vectors && (most_bytes == 0 || most_bytes > 24 << 20); }
};

// One H200. us of a call in a CUDA graph, or fraction of a copy with L2 cold (the other kernels). H100: one
// of these, fraction of a copy with L2 cold; matrices and batches drawn at random. Work is from tiles that
// are mostly empty: 8 x 3 x 16 x 64 x 64 reversed in 4 and 8 bytes, a quarter full, .67 .67 (unaligned: .90
// .93), 128 x 3 x 28 x 8 x 28 x 8 -> 0,2,4,1,3,5 in 1 .58 (staged: .93).
inline constexpr SmallVariant kSmallVariants[] = {
    {1, 64, 64, 128, true, 1 << 20, {0.98, 0.37}},     // 512^2 1.51 us (1.81), 1024^2 1.77 (2.12)
    {1, 128, 64, 256, true, 17 << 19, {0.98, 0.37}},   // 64 x 128 x 784 .98 (.84), 8 x 512 x 2048 1.00 (.89)
    {1, 128, 128, 256, true, 20 << 20, {0.98, 0.37}},  // 3072^2 .96 (.84; 128 x 64 .91), 3840^2 1.03 (.97)
    // H100: 4096^2 1.04 times 128 x 128, 23 matrices of 12 to 21 MB 1.02, but 3072^2 .95.
    {1, 256, 128, 512, true, 20 << 20, {0.985, 0.37}, 12 << 20},
    {1, 32, 32, 256, false, 4 << 20, {0.93, 0.75}},  // 127^2 1.51 us (3.15), 1023^2 2.75 (3.73)
    {1, 64, 64, 256, false, 4 << 20, {0.93, 0.60}},  // H100: 29 of 1 to 4 MB .80 (32 x 32: .74)
    {1, 64, 64, 128, true, 0, {0.92, 0.40}},         // 4096 x 64 x 64 .97 (.93)
    {1, 128, 16, 64, true, 0, {0.94, 0.40}},         // 2M x 16 .94 (.84)
    {1, 128, 32, 128, true, 0, {0.92, 0.40}},        // 1M x 32 .92 (.86)
    {1, 256, 64, 256, true, 0, {0.93, 0.40}},        // 500000 x 64 .92 (.86)
    {1, 16, 128, 64, true, 0, {0.95, 0.40}},         // 16 x 2M .95 (.95)
    {1, 32, 128, 128, true, 0, {0.92, 0.40}},        // 32 x 1M .92 (.93)
    {1, 64, 128, 256, true, 0, {0.93, 0.40}},        // 64 x 500000 .91 (.79)
    // All are read before much is written: H100, times those of any size, which win beyond.
    {1, 64, 64, 64, true, 33 << 19, {0.94, 0.60}, 17 << 19, true},    // 4096 x 64 x 64 1.02
    {1, 32, 128, 64, true, 19 << 20, {0.98, 0.37}, 17 << 19, true},   // 32 x 437504 1.11
    {1, 64, 128, 128, true, 19 << 20, {0.98, 0.45}, 17 << 19, true},  // 64 x 218752 1.15
    {2, 64, 64, 256, true, 2 << 20, {0.98, 0.37}},      // 512^2 1.55 us (1.94), 1024^2 2.01 (2.41)
    {2, 64, 128, 256, true, 16 << 20, {0.98, 0.37}},    // 2048^2 1.04 (.95)
    {2, 32, 32, 256, false, 6 << 20, {0.93, 0.80}},     // 255^2 1.54 us (3.91), 1023^2 3.20 (3.88)
    {2, 64, 32, 256, false, 6 << 20, {0.93, 0.73}},     // H100: 7 of 4 to 6 MB .83 (32 x 32: .79)
    {2, 128, 16, 64, true, 0, {0.95, 0.40}},            // 2M x 16 .95 (.90)
    {2, 128, 32, 128, true, 0, {0.92, 0.40}},           // 1M x 32 .92 (.91)
    {2, 128, 64, 256, true, 0, {0.97, 0.40}},           // 500000 x 64 .94 (.90)
    {2, 16, 128, 128, true, 0, {0.96, 0.40}},           // 16 x 2M .96 (.94)
    {2, 32, 128, 128, true, 0, {0.95, 0.40}},           // 32 x 1M .95 (.91)
    {2, 64, 256, 512, true, 0, {0.97, 0.40}},           // 64 x 500000 .94 (.88)
    {4, 32, 32, 128, true, 1 << 20, {0.98, 0.37}},      // 64^2 1.32 us (1.54), 512^2 1.58 (1.95)
    {4, 32, 64, 256, true, 13 << 19, {0.98, 0.37}},     // 1024^2 2.40 us (3.02)
    {4, 64, 32, 128, true, 20 << 20, {0.98, 0.37}},     // H100: 6 of 7 to 21 MB 1.08 (32 x 64: 1.03)
    {4, 32, 32, 256, false, 14 << 20, {0.93, 0.57}},    // 127^2 1.47 us (3.09), 1023^2 3.47 (3.90)
    {4, 64, 32, 256, false, 14 << 20, {0.93, 0.50}},    // H100: 32 of 4 to 14 MB .93 (32 x 32: .90)
    {4, 64, 16, 128, true, 0, {0.96, 0.40}},            // 2M x 16 .95 (.93)
    {4, 64, 32, 128, true, 0, {0.975, 0.40}},           // 1M x 32 .95 (.91)
    {4, 16, 128, 128, true, 0, {0.97, 0.40}},           // 16 x 2M .97 (.93)
    {4, 32, 64, 256, true, 0, {0.975, 0.40}},           // 32 x 1M .97 (.94)
    {8, 32, 16, 128, true, 2 << 20, {0.98, 0.37}},      // 512^2 1.87 us (2.36)
    {8, 64, 16, 256, true, 17 << 19, {0.98, 0.37}},     // H100: 30 of 2 to 9 MB 1.02 times 32 x 16
    {8, 64, 16, 128, true, 20 << 20, {1.00, 0.50}},     // H100: 38 of 9 to 21 MB 1.04 times 32 x 16
    {8, 32, 32, 256, true, 136 << 20, {0.98, 0.37}},    // 2048^2 .96 (.88), 4096^2 .96 (.95)
    {8, 32, 32, 256, false, 72 << 20, {0.93, 0.42}},    // 127^2 1.49 us (2.93), 2047^2 1.01 (.94)
    {8, 64, 32, 256, false, 72 << 20, {0.93, 0.38}},    // H100: 512 threads .92 (32 x 32: .88), these 1.02
                                                        // times that
    {8, 32, 16, 128, true, 0, {0.96, 0.40}},            // 2M x 16 .96 (.93)
    {8, 16, 32, 128, true, 0, {0.97, 0.40}},            // H100: 16 x 2M .98 (.96), 16 x 200000 1.00 (.96)
    {16, 16, 16, 128, true, 2 << 20, {0.98, 0.45}},     // 256^2 1.04 (32 x 16: 1.00)
    {16, 32, 16, 256, true, 17 << 19, {0.985, 0.45}},   // H100: 40 of 2 to 9 MB 1.02 times 16 x 16
    {16, 16, 16, 128, true, 110 << 20, {0.98, 0.45}},   // matrices of 16 rows
    {16, 32, 16, 128, true, 110 << 20, {0.985, 0.45}},  // 1024^2 1.05 (16 x 16: 1.00), 2048^2 .98 (.97)
};

// One compiled variant of the aligned tile kernel: the tile's piece of an input row and of an output row in
// bytes, threads a block, and the blocks an SM that registers are limited for.
struct TileVariant {
  int element_bytes;
  int in_bytes;
  int out_bytes;
  int threads;
  int min_blocks;
  TileTime time;
  bool fused = false;  // rows or columns are several dims

  constexpr int shared_bytes() const { return in_bytes / element_bytes * out_bytes; }
};

// One H200, fraction of the copy kernel at 16384^2, 8192^2, 4096^2, 32768 x 8192 (tune.py, 11 repeats). The
// smaller tiles serve matrices that the larger ones would not fill, and small problems. Permutations:
// (staged).
inline constexpr TileVariant kTileVariants[] = {
    {1, 256, 256, 512, 1, {0.975, 0.50}},       // .956 .923 1.000 .961
    {1, 128, 128, 128, 6, {0.975, 0.50}},       // .912 .929 .992 .923 (64 threads: .847 .859 .936 .854)
    {1, 128, 128, 128, 6, {0.90, 0.70}, true},  // 353 permutations drawn at random .856 (unaligned: .822)
    {2, 256, 256, 256, 3, {0.975, 0.60}},       // .959 .964 .922 .962
    {2, 128, 128, 64, 12, {0.975, 0.60}},       //
    {2, 128, 128, 64, 12, {0.87, 0.60}, true},  // 2x3x8x64x5x7x16x32 -> 7,2,4,0,6,3,1,5 .88 (.60)
    {4, 256, 256, 256, 3, {0.97, 0.50}},        // .963 .964 .950 .964
    {4, 128, 128, 64, 12, {0.985, 0.62}},       // 184 x 32 x 248 x 24 -> 0,3,2,1 .94 (small: .84)
    {8, 256, 256, 256, 4, {0.975, 0.60}},       // .947 .976 .950 .975
    {8, 128, 128, 64, 12, {0.975, 0.60}},       // 100000 x 16 x 16 1.00 (staged: .96)
    {16, 256, 256, 128, 4, {0.975, 0.50}},      // .970 .925 .968 .965
};

// Inputs of so many times L2 and more are kept in L2 longer than outputs: lines that are written leave it
// sooner; DRAM moves the same bytes in less time. One H200 (60 MB of L2), the copy kernel over itself
// without, L2 full of what was read before: 96 MB .98, 160 MB .98, 192 MB .99, 320 MB 1.00, 480 MB 1.01, 1
// GB 1.02; full of what was written before, 1.01 1.00 1.00 1.01 1.01 1.02; 7 x 8M in 4 bytes, 224 MB, 1.01
// and 1.01. The other kernels gain 1.02 to 1.05 from 256 MB on, the strided one, of views drawn at random,
// 1.013 1.016 1.021 in 4, 8 and 16 bytes (101 121 162), but of narrower ones 1.01 and 1.00, and of what is
// repeated .89 to .97. Not where the input is mostly broadcast: 8192^2 in 8 and 16 bytes .93 to .95. Who
// comes next reads the output as fast as before, but has less of L2: 1 us (H200, a sum of 128 MB 100.1 us for
// 99.2, two copies of 14 MB 19.7 for 18.8), 3.5 (H100, the same copies), and once 10, where it goes over 40
// MB again and again; such a problem gains 1 to 5.
inline constexpr double kKeepTimesL2 = 3.5;
// Kernels that release lines again when these are stored do not take L2 from who comes next, and gain from
// here on, up to the above, from where they gain more if they do not: H200, the benchmark's cases, 1.027
// (copies, 13), 1.018 (narrow, 20), 1.016 (periods, 6), 1.007 (tiles, 35), 1.008 (small ones, 2). One H100,
// problems of 20 to 183 MB drawn at random, over none kept: copies 1.02 (25), runs 1.02 (24), periods 1.017
// (20), tiles 1.016 (49), small ones 1.020 (131), narrow 1.009 (21). What tiles share must not be released so
// soon: unaligned ones and spans .96 to .99, and with none kept .93 to .98.
inline constexpr double kKeepReleasedTimesL2 = 0.4;

// Modulo so many bytes, what asynchronous copies bring lies in shared memory as it does in global memory.
inline constexpr int kAsyncAlignment = 128;
inline constexpr int kSector = 32;  // bytes that memory is read and written in
inline constexpr int kVector = 16;  // bytes of the widest load and store
inline constexpr int64_t kLine = 128;
inline constexpr int64_t kFetched = 256;  // at multiples of them, that loads of unaligned tiles bring into L2
inline constexpr int kOutputRowBytes = 16;  // of shared memory, to say where an output row lies

// One compiled variant of the unaligned tile kernel, and how its tile lies in shared memory: see
// kernel_tile_unaligned.cuh.
struct UnalignedVariant {
  int element_bytes;
  int words;      // of an input row, a lane; 0: see fitted()
  int out_bytes;  // piece of an output row
  int warps;
  int min_blocks;
  TileTime time;
  int step = 1;  // elements from one column to the next in the input
  // Bytes: it is for problems whose rows begin at multiples of these. Of stepped inputs they may all begin
  // behind by less than a step.
  int in_align = 1, out_align = 1;
  bool fits_rows = false;  // tiles have as many rows as each matrix wants, up to out_bytes
  bool many_dims = false;  // rows or columns are more dims than kFewFusedDims

  constexpr int word() const { return word_bytes(element_bytes); }
  constexpr int block() const { return word() / element_bytes; }
  // Whether input rows begin anywhere in a word, and output rows in a sector.
  constexpr bool shifts_in() const { return in_align < word() && block() > 1; }
  constexpr bool shifts_out() const { return out_align < kSector; }
  // The last one's columns would need what follows it, where words are shifted.
  constexpr int cols() const { return (32 * words - (shifts_in() ? 1 : 0)) * group_cols(); }
  constexpr int rows() const { return out_bytes / element_bytes; }
  constexpr int halo() const { return shifts_out() ? kSector / element_bytes : 0; }
  // A column of the tile with its halo, and a word more: to shift in, and to be odd.
  constexpr int column_bytes() const { return halo() * element_bytes + out_bytes + word(); }
  // The columns of a lane's word.
  constexpr int group_cols() const { return block() > step ? block() / step : 1; }
  constexpr int group_bytes() const {
    const int bytes = group_cols() * column_bytes();
    return bytes / word() % 2 == 0 ? bytes + word() : bytes;
  }
  constexpr int data_bytes() const { return 32 * words * group_bytes(); }
  // Tables say where each row begins in the input, and in the output.
  constexpr int shared_bytes() const {
    return data_bytes() + (halo() + rows()) * 8 + cols() * kOutputRowBytes;
  }
  // Whether tiles are as large as each matrix wants them, up to out_bytes and to what lanes have in flight.
  constexpr bool fitted() const { return words == 0; }
};

// Bytes of an output row of `rows` elements, counted from its first sector: it may begin up to all but an
// element inside that, unless all begin at sectors. And tiles along it: one that has all rows stores a sector
// more.
constexpr int64_t unaligned_touched(int64_t rows, const UnalignedVariant& v) {
  return v.shifts_out() ? (rows - 1) * v.element_bytes + kSector : rows * v.element_bytes;
}
constexpr int64_t unaligned_bands(int64_t rows, int64_t tile_rows, const UnalignedVariant& v) {
  if (!v.fitted() && rows <= tile_rows) return 1;
  return ceil_div(unaligned_touched(rows, v), tile_rows * v.element_bytes);
}

// A tile of the unaligned kernel, in elements.
struct UnalignedTile {
  int rows = 0, cols = 0;
};

// Words that a lane of a fitted tile has in flight at most, each of block() rows, and lanes of a warp that
// have words of their own.
constexpr int fitted_words_in_flight(int element_bytes) { return element_bytes == 1 ? 10 : 19; }
constexpr int fitted_lanes(const UnalignedVariant& v) { return v.shifts_in() ? 31 : 32; }

// Words of each input row that a fitted tile of `cols` columns reads: where they are shifted, the last has no
// column of its own.
constexpr int fitted_words(int64_t cols, const UnalignedVariant& v) {
  return static_cast<int>(cols / v.block()) + (v.shifts_in() ? 1 : 0);
}
// Bytes of shared memory for its groups of columns.
TX_HOST_DEVICE constexpr int fitted_data_bytes(int groups, int group_bytes) {
  return static_cast<int>(round_up(groups * group_bytes, 16));
}
// Groups of block() rows that a warp of a fitted tile reads.
constexpr int fitted_groups(const UnalignedTile& tile, const UnalignedVariant& v) {
  return (v.halo() + tile.rows) / (v.block() * v.warps);
}
// The words of them that a lane reads.
constexpr int fitted_batches(const UnalignedTile& tile, const UnalignedVariant& v) {
  return static_cast<int>(ceil_div(fitted_groups(tile, v) * fitted_words(tile.cols, v), fitted_lanes(v)));
}

constexpr int unaligned_shared_bytes(const UnalignedTile& tile, const UnalignedVariant& v) {
  if (!v.fitted()) return v.shared_bytes();
  return fitted_data_bytes(tile.cols / v.block(), v.group_bytes()) + (v.halo() + v.rows()) * 4 +
         tile.cols * kOutputRowBytes;
}

// Of the output rows of a fitted tile, at most, and where there are so few columns that lanes have room for
// more. One H200, geometric mean of four problems at 224, 352, 480 and 608 (tune.py): 1 byte .62 .68 .70 .67,
// 2 bytes .71 .76 .78 .78; with 736 beside 480 .72 and .80.
inline constexpr int kFittedOutBytes = 480;
inline constexpr int kFittedOutBytesMost = 736;

// One H200, fraction of the copy kernel at 16383 x 16385, 8191 x 8193, 8190 x 8194, 12289 x 4099 (tune.py).
// Of the tiles of a width, the narrowest is for permutations of few columns: 128 x 31 x 127 x 113 -> 1,3,0,2
// in 1 byte .86 for .68, 1000003 x 5 x 11 -> 2,1,0 in 2 bytes .87 for .75, 37 x 41 x 31 x 29 x 43 ->
// 2,0,4,1,3 in 4 bytes .95 for .67. The largest is for many tiles: 1865 x 2163 in 4 bytes .79 for .84.
inline constexpr UnalignedVariant kUnalignedVariants[] = {
    {1, 2, 128, 8, 4, {0.950, 1.000}},    // .880 .794 .829 .795
    {1, 2, 256, 12, 2, {0.812, 0.720}},   // .867 .783 .806 .766; 2388 x 387 x 173 -> 2,0,1 .82 (.76)
    {1, 1, 256, 9, 4, {0.829, 0.777}},    // .836 .763 .780 .756
    {2, 2, 256, 8, 4, {0.906, 0.667}},    // .920 .881 .890 .858
    {2, 1, 512, 9, 4, {0.878, 0.786}},    // .856 .816 .823 .784
    {4, 4, 384, 8, 2, {0.960, 0.620}},    // .956 .948 .942 .924
    {4, 4, 256, 9, 4, {0.937, 0.484}},    // .943 .943 .936 .916
    {4, 2, 512, 8, 4, {0.933, 0.447}},    // .942 .917 .919 .911
    {8, 2, 512, 6, 4, {0.951, 0.405}},    // .939 .948 .939 .941
    {16, 1, 1024, 6, 4, {0.960, 0.335}},  // .949 .954 .956 .949
    // 2^24 and 3^15 reversed (without: strided, staged).
    {1, 2, 128, 8, 4, {0.950, 1.000}, 1, 1, 1, false, true},    // .59 (.03, aligned tiles) .70 (.13)
    {2, 2, 256, 8, 4, {0.906, 0.667}, 1, 1, 1, false, true},    // .59 (.05, aligned tiles) .58 (.15)
    {4, 2, 512, 8, 4, {0.933, 0.447}, 1, 1, 1, false, true},    // .80 (.08) .70 (.38)
    {8, 2, 512, 6, 4, {0.951, 0.405}, 1, 1, 1, false, true},    // 3^15 .76 (.15)
    {16, 1, 1024, 6, 4, {0.960, 0.335}, 1, 1, 1, false, true},  // 3^15 .73 (.26)
    // Only the output's rows begin anywhere: 16385 x 16384, 8191 x 8192, 50257 x 4096, 50257 x 768 (as
    // above).
    {1, 1, 256, 9, 4, {0.989, 0.945}, 1, 4, 1},  // .94 .85 .93 .85 (.84 .76 .82 .78)
    // Rows that fit: 64 x 257 x 1024, 200 x 150 x 2000, 128 x 145 x 768 -> 0,2,1 (the former).
    {1, 1, 256, 9, 4, {0.92, 1.02}, 1, 4, 1, true},     // .66 .69 .59 (.49 .59 .49)
    {2, 2, 256, 9, 4, {1.00, 0.78}, 1, 4, 1},           // .96 .93 .91 .88 (.93 .89 .89 .83)
    {2, 1, 512, 4, 4, {0.975, 0.663}, 1, kSector, 1},   // .97 .93 .95 .89; at 8190 x 8196 .86, the former .90
    {8, 1, 1024, 8, 4, {0.960, 0.405}, 1, kSector, 1},  // 50257 x 4096 .944, 100003 x 512 .935 (.930 .924)
    // Only the input's: their transposes (as above). 4 to 16 bytes gain 0 to .01.
    {1, 2, 128, 8, 4, {0.946, 0.696}, 1, 1, kSector},  // .94 .86 .93 .87 (.84 .78 .83 .70)
    {2, 2, 256, 8, 4, {0.993, 0.621}, 1, 1, kSector},  // .96 .90 .95 .93 (.94 .88 .93 .85)
    // Fitted to 33 x 17 x 65 x 31 x 63 -> 4,2,0,3,1, 1000003 x 5 x 11 -> 2,1,0, 37 x 41 x 31 x 29 x 43 ->
    // 2,0,4,1,3, 7 x 13 x 11 x 9 x 17 x 5 x 33 -> 6,4,2,0,1,3,5 (the first ones). Their time is of as many
    // instructions a byte as fitted_work() says.
    {1, 0, kFittedOutBytes, 8, 4, {0.79, 0.075}},      // .74 (.60) .82 (.58) .65 (.40) .61 (.34)
    {1, 0, kFittedOutBytesMost, 8, 4, {0.79, 0.075}},  // the last two: .70 .62
    {2, 0, kFittedOutBytes, 8, 4, {0.86, 0.070}},      // .85 (.75) .91 (.90) .71 (.69) .66 (.56)
    {2, 0, kFittedOutBytesMost, 8, 4, {0.86, 0.070}},  // the last two: .78 .71
    // 33 x 17 x 65 x 31 x 64 and the last two with 44 and 32 innermost (the four before).
    {1, 0, kFittedOutBytes, 8, 4, {0.86, 0.069}, 1, 4, 1},       // .80 (.76) .75 (.67) .67 (.61)
    {1, 0, kFittedOutBytesMost, 8, 4, {0.86, 0.069}, 1, 4, 1},   // the last two: .77 (.69) .70 (.62)
    {2, 0, kFittedOutBytes, 8, 4, {0.935, 0.064}, 1, 4, 1},      // .87 (.83) .80 (.73) .75 (.67)
    {2, 0, kFittedOutBytesMost, 8, 4, {0.935, 0.064}, 1, 4, 1},  // the last two: .85 (.77) .77 (.70)
    // Stepped inputs, of which twice as much is read as moved. Their time is over a copy's of all that.
    // 5001 x 8006 [:, ::2], 64 x 700 x 800 [..., ::2] -> 0,2,1, of a copy of what is moved (staged):
    {1, 2, 256, 12, 2, {0.90, 0.71}, 2},   // .59 (.39) .57 (.43)
    {2, 2, 256, 8, 4, {0.93, 0.48}, 2},    // .60 (.45) .63 (.51)
    {4, 2, 512, 8, 4, {0.97, 0.33}, 2},    // .65 (.49) .67 (.54)
    {8, 2, 512, 8, 4, {1.00, 0.27}, 2},    // .66 (.54) .68 (.60)
    {16, 1, 1024, 8, 4, {1.00, 0.27}, 2},  // .66 (.57) .69 (.65)
    // 8192^2 and 16384^2 [:, ::2], 64 x 512 x 2048 [..., ::2] -> 0,2,1 (the ones before). 4 and 8 bytes gain
    // .01.
    {1, 2, 128, 8, 4, {1.04, 0.71}, 2, 4, kSector},  // .70 .67 .69 (.60 .59 .49)
    {2, 2, 256, 8, 4, {1.00, 0.48}, 2, 4, kSector},  // .65 .67 .68 (.58 .60 .60)
};

// One compiled variant of the span kernel: see kernel_tile_span.cuh. Each is compiled twice, for rows of one
// dim and of several.
struct SpanVariant {
  int element_bytes;
  int batch;               // words of a column that a lane puts together
  int registers;           // of a thread
  bool shifts_in = false;  // input rows begin anywhere in a word

  constexpr int word() const { return word_bytes(element_bytes); }
  constexpr int block() const { return word() / element_bytes; }
  // Words of a column that it reads before its own: neighbours are shifted together.
  constexpr int before() const { return block() > 1 ? 1 : 0; }
};
// One H200, fraction of the copy kernel at 256 x 197 x 768, 1227 x 210 x 128, 128 x 333 x 900 -> 0,2,1
// (without spans: 1 byte .73 .76 .72, 2 bytes .87 and .82 at the first and the last).
inline constexpr SpanVariant kSpanVariants[] = {
    {1, 4, 48},         // .92 .85 .67
    {1, 8, 64},         // .89 .90 .85
    {1, 5, 56, true},   // 401 x 397 x 409 -> 1,2,0 .75 (.68), 64 x 257 x 1023 -> 0,2,1 .67 (.56)
    {2, 8, 48},         // .96, .69 at the last
    {2, 10, 56},        // .96, .86
    {2, 8, 48, true},   // 64 x 257 x 1023 -> 0,2,1 .80 (.72), 839 x 401 x 49 .77 (.70)
    {2, 10, 56, true},  // .79 .77
    {4, 20, 56},        // .99 (.94) at the first, 113 x 65 x 1699 -> 0,2,1 .91 (.72)
    {8, 8, 40},         // .99 (.96), 45 x 101 x 1363 .90 (.82)
};
// Bytes of an input row in a tile, and of a tile from which on they are half of that.
inline constexpr int kSpanPieceBytes = 128;
inline constexpr int kSpanTileBytes = 45 * 1024;

// Where the span kernel pays, by element width (1, 2, 4 and 8 bytes): up to so many rows, with tiles of so
// many bytes, and so many of them for an SM. One H200, of a copy, against the planner's choice without it: 48
// x 630 x 1639 -> 0,2,1, 1 byte, .73 (.72), 64 x 577 x 1024, 2 bytes, .87 (.89), 128 x 333 x 900, 4 bytes,
// .90 (.93), 162 x 375 x 103, 8 bytes, .82 (.86); 957 x 23 x 762, 1 byte, .56 (.62), 2000 x 9 x 1000, 4
// bytes, .84 (.95); 8 x 197 x 768, 1 byte, .67 (.74), in 8 bytes .93 (.87).
struct SpanLimits {
  int most_rows, least_bytes;
  double least_tiles;
};
inline constexpr SpanLimits kSpanPays[] = {
    {640, 3000, 0.7}, {400, 1900, 0.7}, {260, 1900, 1}, {360, 1900, 2}};

// A tile of `cols` columns of all rows, and the warps that share the rows.
struct SpanTile {
  int cols = 0, warps = 0;
};
// Words of an output row, wherever in one it begins.
constexpr int span_words(int64_t rows, const SpanVariant& v) {
  return static_cast<int>((rows * v.element_bytes + 2 * v.word() - v.element_bytes - 1) / v.word());
}
// Words that a tile reads of each input row: where they are shifted, the last has no column of its own. A
// warp reads several rows where it has lanes for them.
constexpr int span_row_words(int cols, const SpanVariant& v) {
  return static_cast<int>(ceil_div(cols, v.block())) + (v.shifts_in ? 1 : 0);
}
constexpr int span_parts(int cols, const SpanVariant& v) { return 32 / span_row_words(cols, v); }
// Bytes of shared memory for where rows begin, if they are of several dims, and for the tile.
constexpr int span_table_bytes(const SpanTile& tile, const SpanVariant& v) {
  const int words = tile.warps * span_parts(tile.cols, v) * v.batch + v.before();
  return static_cast<int>(round_up(words * v.block() * 4, 16));
}
constexpr int span_data_bytes(int64_t rows, const SpanTile& tile, const SpanVariant& v) {
  return static_cast<int>(round_up(rows * tile.cols * v.element_bytes + 15, 16));
}

// One compiled variant of the gather kernel: see kernel_tile_gather.cuh. Each is compiled twice, for rows
// that are one dim of the output and several.
struct GatherVariant {
  int element_bytes;
  int batch;  // words of each row that a lane has in registers

  constexpr int block() const { return 4 / element_bytes; }
};
// One H200, fraction of the copy kernel at 248 x 1024 x 99, 256 x 768 x 197, 100000 x 197 -> 0,2,1 (without
// it).
inline constexpr GatherVariant kGatherVariants[] = {
    {1, 4},   // .95 (.66) .96 (.90) .96 (.84)
    {2, 8},   // .95 (.86) .93 (.91) .96 (.86)
    {4, 16},  // .96 (.96) at the second, .95 (.92); 34 x 768 x 159 .91 (.79)
};
inline constexpr int64_t kGatherWidest = 4;  // bytes of an element
inline constexpr int kGatherThreads = 256;
inline constexpr int kGatherMinBlocks = 4;
// Of a tile, where that many rows have 128 bytes of an output row; else so many rows.
inline constexpr int kGatherTileBytes = 24576;
inline constexpr int kGatherPieceBytes = 128;
// Input rows up to which it pays, by element width (1, 2 and 4 bytes), bytes of its tiles, and how many of
// them for an SM. One H200, of a copy, against the planner's choice without it: 309 x 1024 x 423 -> 0,2,1, 1
// byte, .94
// (.945); 10000 x 36 x 33, 4 bytes, .78 (.92); 27 x 192 x 196, 1 byte, .50 (.71), 3 x 1280 x 417, 2 bytes,
// .62
// (.82).
inline constexpr int kGatherMostRowBytes[] = {360, 520, 1304};
inline constexpr int kGatherLeastBytes = 6144;
inline constexpr double kGatherLeastTiles = 1.5;
TX_HOST_DEVICE constexpr int gather_table_bytes(int64_t cols) {
  return static_cast<int>(round_up(cols * 8, 16));
}
// Of shared memory: a table of columns if rows are several dims, and the span anywhere in a line, from which
// a lane reads some words too many.
constexpr int gather_shared_bytes(int64_t rows, int64_t cols, bool fused, const GatherVariant& v) {
  const int64_t read = round_up(rows, v.block()) * cols * v.element_bytes + (v.batch + 1) * 4;
  return static_cast<int>((fused ? gather_table_bytes(cols) : 0) + kAsyncAlignment + round_up(read, 16));
}

// The narrow kernel: threads a block, words of a tile where its rows allow, and rows at most. One H200,
// geometric mean of six problems with tiles of 768, 1024, 1536, 2048 and 3072 words (tune.py): 1 byte .94 .94
// .92 .90 .84, 2 bytes .95 .95 .92 .91 .89.
inline constexpr int kNarrowThreads = 128;
inline constexpr int kNarrowTileWords = 1024;
inline constexpr int kNarrowMostRows = 64;
inline constexpr int64_t kNarrowFewRows = 6;
inline constexpr int64_t kNarrowWidest = 8;  // bytes of an element
// Rows at most of which a lane holds a block, 16 bytes of each; and bytes of a row in a warp's tile. (16 rows
// of 2 and 4 bytes are small tiles: 16 x 2M .97 and .99 of their speed.)
inline constexpr int kNarrowVectorRows = 15;
inline constexpr int kNarrowVectorBytes = 512;
// Words that a thread has in flight, and how many of them are of one row.
inline constexpr int kNarrowBatch = 8;
constexpr int narrow_words_at_once(int64_t rows) { return rows <= kNarrowBatch / 2 ? 2 : 1; }
// Words of each row in a tile: every thread has as many.
constexpr int narrow_tile_words(int64_t rows) {
  const int step = kNarrowThreads * narrow_words_at_once(rows);
  const int steps = kNarrowTileWords / step / static_cast<int>(rows);
  return step * (steps > 1 ? steps : 1);
}

// The periodic kernel: threads a block at most and where small pieces leave the
// choice, words of a thread in a period, elements of a piece, and bytes of a chunk. One H200, geometric mean
// of four problems with chunks of 4, 6, 8, 12 and 16 KiB (tune.py): 1 byte .94 .93 .95 .93 .89, 2 bytes .97
// .96 .96 .96 .96, 4 and 8 bytes .97 .97 .97 .95 .95, 16 bytes .97 .97 .97 .96 .96.
inline constexpr int kPeriodicMostThreads = 512;
inline constexpr int kPeriodicThreads = 128;
inline constexpr int kPeriodicMostSlots = 4;
inline constexpr int kPeriodicMostPiece = 4096;
inline constexpr int kPeriodicChunkBytes = 4096;
inline constexpr int kPeriodicChunkBytesNarrow = 8192;  // of 1 byte
// Bytes of a chunk for each element of a piece, at least: a block finds their places anew. 19054 x 64 x 41,
// 20292 x 32 x 77, 12690 x 197 x 20 in 1 and 2 bytes: .94 .95 .64, .96 .97 .87 (with 6: .82 .82 .53, .91 .91
// .65, with 12: .94 .90 .60, .96 .93 .85).
inline constexpr int kPeriodicChunkPiece = 8;

// The kernel of pieces: words of a piece that a thread has (the fewest with which no more threads than these
// are needed), threads at most, elements and pieces that it takes, those of parts of a dim, and the pieces of
// a block: so many, or so many bytes, while shared memory holds them. One H200, geometric mean of nine
// problems with pieces of .6 to 8 KB with 1, 2, 3, 4, 5, 6, 8 pieces a block: 1 byte .52 .72 .79 .83 .81 .80
// .79, 2 bytes .75 .90 .89 .91 .87 .88 .86, 4 bytes .89 .93 .90 .92 .88 .89 .89.
inline constexpr int kPiecesSlots[] = {2, 3, 4, 6, 8};
inline constexpr int kPiecesThreads = 192;
inline constexpr int kPiecesMostThreads = 640;
inline constexpr int64_t kPiecesWidest = 8;  // bytes of an element
inline constexpr int kPiecesLeastBytes = 64;
inline constexpr int kPiecesMostBytes = 20480;
inline constexpr int kPiecesCutBytes = 10240;
constexpr int pieces_least(int64_t element_bytes) { return element_bytes == 1 ? 4 : 2; }
inline constexpr int kPiecesBlockBytes = 4096;
inline constexpr int kPiecesMostShared = 96 * 1024;
inline constexpr int kPieceEntryBytes = 24;  // of shared memory, to say where a piece lies

// Bytes of pieces that the periodic kernel pays for, by element width (1, 2, 4, 8 and 16 bytes), and from and
// to which that of dense pieces does; wavefronts of shared memory in the gather of 128 bytes up to which both
// do. Best on 171, 159, 153 and 146 problems of 1 to 8 bytes whose pieces are dense: one H200, geometric mean
// .736 .842 .900 .940 without the kernel of pieces and word steps, .821 .920 .952 .956 with them (with the
// best kernel for each: .824 .926 .955 .958). 16 bytes, pieces of 16 to 32 KB (rows or staged): 1024 x 49 x
// 12 x 32 -> 0,2,1,3 in 1 byte .97 (.78), 512 x 64 x 8 x 32 in 2 1.01 (.90), 3000 x 33 x 33 -> 0,2,1 in 16
// .96 (.88); of 37 KB and more, 1024 x 196 x 3 x 32 in 2 .90 (.89), 512 x 64 x 8 x 32 in 4 .90 (.93).
inline constexpr int kPeriodicPays[] = {3000, 9216, 4000, 7000, 32768};
inline constexpr int kPiecesPayFrom = 500;
inline constexpr int kPiecesPayTo[] = {8704, 17408, kPiecesMostBytes, kPiecesMostBytes, 0};
inline constexpr int kMostWavefronts[] = {11, 8, 6, 6, 6};

// Bytes of runs from which pieces pay that have several of the input, or of the output. One H100, 250
// permutations drawn at random that have such pieces, geometric mean in 1, 2, 4 and 8 bytes: .92 .94 .95 .96
// (staged or rows: .88 .91 .91 .94); shorter ones, 139 to 165 problems an element width: as often slower.
inline constexpr int kPiecesInRun = 300;
inline constexpr int kPiecesOutRun = 1200;

// Bytes of a problem from which these kernels take it, and which part of the tiles of small ones is filled at
// least: else its elements go straight from load to store. One H200, permutations and views of .1 to 48 MB
// drawn at random, graphs of launches, times as fast by elements; problems in L2, and not in it
//   rows, 1 to 16 bytes   1.67 1.52 1.38 1.32 1.19 (84 102 140 157 460); 1.33 1.32 1.12 1.13 1.07 (79 to 644)
//   periodic, 8 and 16    1.29 1.49 (7 10); 1.12 1.14 (1 4)
//   pieces, 1 to 8        1.22 1.26 1.19 1.26 (10 6 58 69); 1.04 1.04 1.07 1.11 (2 1 55 59)
//   unaligned             1.28 1.18 1.14 1.08 1.05 (50 23 32 36 53); 1.10 1.17 1.14 1.16 1.08 (33 7 46 48 73)
//   staged                1.28 1.35 1.17 1.12 1.25 (123 115 97 65 20); 1.26 1.40 1.17 1.14 1.17 (116 to 51)
//   small, less filled    1.23 1.27 1.22 1.20 1.18 (34 67 136 187 166); 2 to 16 .96 1.13 1.17 1.20 (3 to 81)
// and of up to four times as many bytes
//   rows, 1 and 2 bytes   .89 .92 (61 56)
//   unaligned             .71 .79 .78 .87 .84 (190 139 151 123 160)
//   staged                .87 .80 .87 .83 .87 (227 192 141 105 70)
inline constexpr int kWidths = 5;  // of elements: 1, 2, 4, 8 and 16 bytes
inline constexpr int64_t kStagedFrom[kWidths] = {1536 << 10, 3 << 20, 6 << 20, 14 << 20, 20 << 20};
inline constexpr int64_t kUnalignedFrom[kWidths] = {640 << 10, 640 << 10, 1536 << 10, 3 << 20, 12 << 20};
inline constexpr int64_t kRowsFrom[kWidths] = {3 << 20, 8 << 20, 0, 0, 0};
inline constexpr int64_t kPiecesFrom[kWidths] = {1 << 20, 3 << 20, 48 << 20, 48 << 20, 0};
inline constexpr int64_t kPeriodicFrom[kWidths] = {512 << 10, 1 << 20, 2 << 20, 5 << 20, 15 << 20};
inline constexpr double kSmallLeastFilled = 0.3;

// Threads a block of the kernels that move elements straight from load to store.
inline constexpr int kSimpleThreads = 256;

// The strided kernel: bytes of a word, and words that a thread reads before it writes any.
struct StridedVariant {
  int word_bytes;
  int words;
};
// An element, where the device holds as many threads at once; several; a word of several, of up to so wide
// ones.
inline constexpr int kStridedOne = 0, kStridedSeveral = 1, kStridedWord = 2;
inline constexpr int kStridedWordsWidest = 4;  // bytes
constexpr StridedVariant strided_variant(int element_bytes, int variant) {
  if (variant == kStridedSeveral) return {element_bytes, element_bytes < 8 ? 4 : element_bytes == 8 ? 2 : 1};
  if (variant == kStridedWord && element_bytes <= kStridedWordsWidest) return {element_bytes < 4 ? 8 : 16, 1};
  return {element_bytes, 1};
}
// Whether it can ask L2 to keep what it reads.
constexpr bool strided_keeps(int element_bytes, int variant) {
  return element_bytes >= 4 && variant == kStridedSeveral;
}

// Of up to so many dims it is compiled for each rank.
inline constexpr int kStridedRanks = 8;

// Vectors that a thread of a short copy reads before it writes any, threads a block, and of which parts of L2
// a copy is short: then most or all of it is read before the first byte is written. One H100 (50 MB of L2),
// us with L2 full of dirty lines, a vector a thread and so: 8 MB 9.7 9.5, 10 MB 11.2 10.6, 12 MB 12.8 11.6,
// 16 MB 15.7 14.1, 20 MB 18.7 16.8, 24 MB 21.4 21.0, 32 MB 26.9 26.4, 40 MB 32.3 31.7, 48 MB 37.8 37.9, 128
// MB 93.2 94.3; copied before, 8 MB 5.6 5.7, 12 MB 6.8 7.1, 16 MB 10.0 8.7, 20 MB 14.4 13.0, 24 MB 18.3 18.9.
inline constexpr int kShortCopyVectors = 8;
inline constexpr int kShortCopyThreads = 128;
inline constexpr double kShortCopyFrom = 1 / 6.0, kShortCopyTo = 0.8;

// Bytes of the widest elements that the kernel of runs takes, those of the output that a block of it fills
// (one H200, tune.py; 401 x 397 x 409 -> 1,0,2 at 4, 8, 16 and 32 KB: 1 byte .63 .69 .75 .74, 2 bytes .69 .75
// .83 .84), and how many such chunks a span of it takes, wherever in a line it begins.
inline constexpr int kRunsWidest = 2;
inline constexpr int kRunsChunkBytes = 16384;
constexpr int64_t runs_chunks(int64_t span_bytes) {
  return (span_bytes + 127 + kRunsChunkBytes - 1) / kRunsChunkBytes;
}

// From here on runs are long: vectors within them and those in which they meet have
// warps of their own. One H200 (staged): 1 byte, runs of 129, 151, 199, 257 .74 .76 .83 .80 (.65 .69 .73
// .64); 2 bytes, of 194, 258, 302, 398, 514 bytes .78 .86 .85 .89 .89 (.66 .79 .74 .91 .86).
inline constexpr int kLongRunBytes = 128;
// Threads of a block for those in which they meet. With 32, 64, 128: 1 byte, runs of 129 .53 .66 .74, of 409
// .83 .86 .86, of 3001 .93 .94 .94.
inline constexpr int kRunsMeetThreads = 128;
TX_HOST_DEVICE constexpr int runs_threads(bool is_long) {
  return kSimpleThreads + (is_long ? kRunsMeetThreads : 0);
}
// Shorter runs are rather staged, unless the staged kernel takes longer than this over a copy by its own
// measure: one H200, 123 permutations with runs of 9 to 394 bytes, geometric mean in 1 byte .58 to .63, in 2
// bytes .66 to .74.
constexpr double staged_runs_time(int64_t element_bytes) { return element_bytes == 1 ? 2.5 : 1.9; }

// Staged tiles: bytes of a tile (several blocks share an SM's memory, and small problems need many blocks).
// One H200, geometric mean of five narrow, batched and N-d problems at 10, 14, 16, 20, 24 and 32 KiB
// (tune.py): 1 byte .72 .72 .73 .73 .73 .73, 4 bytes .85 .87 .86 .87 .87 .86, 8 bytes .88 .90 .90 .90 .89
// .89.
inline constexpr int kStagedTileBytes = 20480;
inline constexpr int kStagedTileBytesMost = 40960;

}  // namespace tx
