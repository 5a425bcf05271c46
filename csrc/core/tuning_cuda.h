// The tuned numbers of the CUDA kernels, beside the measurements that chose them. benchmarks/tune.py prints
// rows.
//
// DRAM bytes of each kernel against the least that the problem allows (one H200, ncu; writes end with some 28
// MB still in L2, which is what is missing from them):
//   rows            8 x 4096 x 32 x 128 -> 0,2,1,3, 16 bytes     read 1.000, written .988
//   tile            16384^2, 1 / 8 / 16 bytes                    read 1.000, written .893 / .987 / .993
//   tile_unaligned  8191 x 8193, 4 bytes (16 warps a block)       read 1.008, written .912
//   staged          20M x 3, 16 bytes                            read 1.000, written .972
//                   33 x 17 x 65 x 31 x 63 -> 4,2,0,3,1, 16 bytes  read 1.001, written .978
#pragma once

#include <cstdint>

namespace tx {

// One compiled variant of the aligned tile kernel: the tile's piece of an input row and of an output row in
// bytes, threads a block, and the blocks an SM that registers are limited for.
struct TileVariant {
  int element_bytes;
  int in_bytes;
  int out_bytes;
  int threads;
  int min_blocks;
  bool keep;  // load through load_keep()
  // 0: through shared memory. Else straight from registers, for problems of at most so many bytes.
  int64_t direct_most;
  bool fused = false;  // rows or columns are several dims

  // Output rows of less than a line have one unused after every 16 bytes of an input row.
  constexpr int shared_bytes() const {
    return direct_most > 0 ? 0
                           : (in_bytes / element_bytes + (out_bytes < 128 ? in_bytes / 16 : 0)) * out_bytes;
  }
};

// One H200, fraction of the copy kernel at 16384^2, 8192^2, 4096^2, 32768 x 8192 (tune.py, 11 repeats). The
// smaller tiles serve matrices that the larger ones would not fill, and small problems. Keeping lines in L2
// costs the narrow elements .01 to .05 at 64 MiB and gains the wide ones .01 to .02.
inline constexpr TileVariant kTileVariants[] = {
    {1, 256, 256, 512, 1, false, 0},        // .956 .923 1.000 .961
    {1, 128, 128, 64, 6, false, 0},         //
    {1, 64, 64, 32, 16, false, 0},          // 1024^2 .82 (128 x 128: .74), 4096 x 64 x 64 .99 (staged: .69)
    {1, 64, 64, 32, 16, false, 4 << 20},    // 1440^2 .94 (staged: .86), 2048^2 .90 (.79)
    {1, 128, 128, 64, 6, false, 0, true},   // 2x3x8x64x5x7x16x32 -> 7,2,4,0,6,3,1,5 .78 (staged: .49)
    {1, 32, 1024, 256, 3, false, 0},        // 1M x 32
    {1, 1024, 32, 256, 3, false, 0},        // 32 x 1M
    {1, 16, 2048, 256, 3, false, 0},        // 2M x 16 .84 (staged: .77)
    {1, 2048, 16, 256, 3, false, 0},        // 16 x 2M .95 (staged: .72)
    {2, 256, 256, 256, 3, false, 0},        // .959 .964 .922 .962
    {2, 128, 128, 64, 12, false, 0},        //
    {2, 128, 128, 64, 12, false, 2 << 20},  // 1024^2 .96 (staged: .93)
    {2, 128, 128, 64, 12, false, 0, true},  // the same .88 (staged .60, unaligned .78; 4 bytes: unaligned)
    {2, 64, 128, 32, 16, false, 0},         // 1M x 32
    {2, 128, 64, 32, 16, false, 0},         // 32 x 1M .92 (staged: .85)
    {2, 32, 1024, 128, 6, false, 0},        // 2M x 16 .90 (staged: .87)
    {2, 1024, 32, 128, 6, false, 0},        // 16 x 2M .95 (staged: .85)
    {4, 256, 256, 256, 3, false, 0},        // .963 .964 .950 .964
    {4, 128, 128, 64, 12, false, 0},        //
    {4, 128, 128, 64, 12, false, 5 << 19},  // 512^2 in a CUDA graph 1.55 us (staged: 1.65), 768^2 2.04 (2.09)
    {8, 256, 256, 256, 4, true, 0},         // .947 .976 .950 .975
    {8, 128, 128, 64, 12, true, 1 << 19},   // 64^2 in a CUDA graph 1.15 us (staged: 1.23), 256^2 1.38 (1.43)
    {8, 128, 128, 64, 12, true, 0},         //
    {16, 256, 256, 128, 4, true, 0},        // .970 .925 .968 .965
    {16, 128, 128, 64, 12, true, 0},        //
};

// One compiled variant of the unaligned tile kernel: see UnalignedConfig.
struct UnalignedVariant {
  int element_bytes;
  bool fused;  // rows or columns are several dims
  int lanes;
  int out_bytes;
  int cut;
  int word;  // bytes
  int warps;
  int min_blocks;
  double rate;  // of full tiles, fraction of the copy kernel

  constexpr int cols() const { return (lanes - 1) * 16 / element_bytes; }
  constexpr int rows() const { return out_bytes / element_bytes; }
  // Where rows or columns are several dims, a table says where each row begins in either memory.
  constexpr int shared_bytes() const {
    const int column = out_bytes + cut + (element_bytes < word ? word : 0);
    return lanes * (16 / element_bytes * column + word) +
           (fused ? (rows() + cut / element_bytes + cols() + lanes) * 8 : 0);
  }
};

// Tiles along an output row of `bytes`: the first cut may fall up to cut - element_bytes inside the row.
constexpr int64_t unaligned_bands(int64_t bytes, const UnalignedVariant& v) {
  return (bytes + v.cut - v.element_bytes + v.out_bytes - 1) / v.out_bytes;
}

// One H200, fraction of the copy kernel at 16383 x 16385, 8191 x 8193, 8190 x 8194, 12289 x 4099 (tune.py);
// fused at 89 x 83 x 97 x 79 and 37 x 41 x 31 x 29 x 43 reversed. Rates: 30 N-d problems an element width.
inline constexpr UnalignedVariant kUnalignedVariants[] = {
    {1, false, 16, 256, 16, 8, 16, 2, 0.72},  // .852 .749 .755 .759
    {1, true, 16, 256, 16, 8, 16, 2, 0.57},   // .619 .565
    {2, false, 16, 256, 32, 8, 8, 4, 0.92},   // .930 .902 .900 .883
    {2, true, 16, 256, 32, 8, 8, 4, 0.80},    // .811 .755
    {4, false, 32, 256, 32, 4, 8, 4, 0.96},   // .944 .930 .938 .926
    {4, true, 32, 256, 32, 4, 8, 4, 0.89},    // .861 .853
    {4, true, 16, 512, 32, 8, 8, 4, 0.87},    // 1000003 x 5 x 11 -> 2,1,0 .91 (wider tiles: .77)
    {8, false, 32, 512, 32, 8, 8, 4, 0.97},   // .940 .961 .924 .950
    {8, true, 32, 512, 32, 8, 8, 4, 0.94},    // .882 .877
};

// Vectors of 16 bytes that a block of the rows kernel moves.
inline constexpr int kRowsTileVectors = 1024;

// Bytes of the output that a block of the runs kernel fills (of 4, 8, 16 and 32 KB the best), and how many
// such chunks a span of it takes, wherever in a line it begins.
inline constexpr int kRunsChunk = 8192;
constexpr int64_t runs_chunks(int64_t span_bytes) { return (span_bytes + 127 + kRunsChunk - 1) / kRunsChunk; }

// Staged tiles: bytes of a tile (several blocks share an SM's memory, and small problems need many blocks).
// Of 14, 16 and 20 KiB, the last is best on 4096 x 64 x 64, 65536 x 17 x 31 and N-d problems of 2 to 8 bytes.
inline constexpr int kStagedTileBytes = 20480;
inline constexpr int kStagedTileBytesMost = 40960;

}  // namespace tx
