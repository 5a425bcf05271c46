// The tuned numbers of the CUDA kernels, beside the measurements that chose them. benchmarks/tune.py prints rows.
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
};

inline constexpr TileVariant kTileVariants[] = {
    {1, 256, 256, 256, 2}, {1, 128, 128, 64, 6},   //
    {2, 256, 256, 256, 4}, {2, 128, 128, 64, 12},  //
    {4, 256, 256, 256, 4}, {4, 128, 128, 64, 12},  //
    {8, 256, 256, 256, 4}, {8, 128, 128, 64, 12},  //
    {16, 256, 512, 256, 4}, {16, 128, 128, 64, 12},
};

// One compiled variant of the unaligned tile kernel: see UnalignedConfig.
struct UnalignedVariant {
  int element_bytes;
  int lanes;
  int out_bytes;
  int cut;
  int warps;
  int min_blocks;
  int batch;

  constexpr int cols() const { return (lanes - 1) * 16 / element_bytes; }
  constexpr int rows() const { return out_bytes / element_bytes; }
  constexpr int shared_bytes() const {
    const int column = out_bytes + cut + (element_bytes < 4 ? 4 : 0);
    return lanes * (16 / element_bytes * column + (element_bytes == 8 ? 8 : 4));
  }
};

// Tiles along an output row of `bytes`: the first cut may fall up to cut - element_bytes inside the row.
constexpr int64_t unaligned_bands(int64_t bytes, const UnalignedVariant& v) {
  return (bytes + v.cut - v.element_bytes + v.out_bytes - 1) / v.out_bytes;
}

inline constexpr UnalignedVariant kUnalignedVariants[] = {
    {1, 16, 256, 32, 16, 3, 2},
    {2, 32, 320, 32, 16, 2, 4},
    {4, 32, 256, 32, 16, 4, 4},
    {8, 32, 320, 32, 8, 8, 4},
};

// Staged tiles: bytes of a tile (several blocks share an SM's memory, and small problems need many blocks).
inline constexpr int kStagedTileBytes = 20480;
inline constexpr int kStagedTileBytesMost = 40960;

}  // namespace tx
