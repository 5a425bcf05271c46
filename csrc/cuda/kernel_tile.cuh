// Aligned 2-D tiles: every address, pitch and extent a multiple of 16 bytes. Both sides move 16 bytes a
// thread.
//
//   load      a thread reads a block of rows x 16 bytes, lanes along the input row
//   transpose in registers: what it then holds is one column of the block for each of V output rows (V = 16 /
//             element bytes), 16 bytes each (8 for 1-byte elements, whose blocks have 8 rows)
//   stage     columns go to shared memory, output row by output row. A column's place in it is XORed with its
//             block's number along the input row, so that neither side meets a bank conflict: in any 8 lanes
//             (the unit in which the hardware serves 16-byte accesses; 16 lanes for 8 bytes) the banks differ
//   store     lanes along the output row
//
// Without the stage, columns straight from registers to the output, large problems move at .86 to .96 of a
// copy where the stage makes it .93 to .98 (one H200). Small problems and narrow matrices are better off with
// smaller tiles: kernel_tile_small.cuh.
//
// Blocks are numbered along output rows first: the blocks that run together then write whole DRAM pages.
// Where input rows share lines, that is in groups that stay in L2 until the next strip of columns (400^3 ->
// 2,0,1: 8 bytes .84 to .93, 1 byte .83 to .90).
//
// Fused, the rows or the columns of the matrix are several dims, and where each begins is found by division.
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// InBytes x OutBytes: length of the tile's piece of an input row and of an output row, in bytes.
template <int Element, int InBytes, int OutBytes, int Threads, int MinBlocks, bool Fused>
struct TileConfig {
  static constexpr int kElement = Element;
  static constexpr int kThreads = Threads;
  static constexpr int kMinBlocks = MinBlocks;
  static constexpr bool kFused = Fused;
  static constexpr int kV = kVector / Element;
  static constexpr int kRows = OutBytes / Element;  // input rows
  static constexpr int kCols = InBytes / Element;   // input columns
  static constexpr int kInVectors = InBytes / kVector;
  static constexpr int kOutVectors = OutBytes / kVector;
  static constexpr int kColumnBytes = kBlockRows<Element> * Element;
  static constexpr int kOutColumns = OutBytes / kColumnBytes;
  static constexpr int kUnits = kInVectors * kOutColumns / Threads;  // register blocks a thread
  static constexpr int kSharedBytes = kCols * OutBytes;
  static_assert(OutBytes >= 128, "an output row must fill the banks");
  static_assert(kInVectors * kOutColumns % Threads == 0, "threads must divide the tile");
  static_assert((kOutColumns & (kOutColumns - 1)) == 0, "an XOR must stay in the row");

  struct Block {
    int row, col;
  };
  static __device__ __forceinline__ Block block_of(int unit) {
    return {unit / kInVectors, unit % kInVectors};
  }

  // What a column's place in its output row is XORed with: the blocks along the input row that the banks
  // serve at once get different ones.
  static __device__ __forceinline__ int swizzle(int block_col) {
    constexpr int kPlaces = 128 / kColumnBytes, kApart = kInVectors < kPlaces ? kPlaces / kInVectors : 1;
    return block_col * kApart & (kPlaces - 1);
  }
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, resident_blocks(C::kThreads, C::kMinBlocks))
    tile_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ uint4 staged[];
  constexpr int V = C::kV, kRows = kBlockRows<C::kElement>;
  using Column = ColumnOf<C::kElement>;
  // As many blocks at once as keep about 16 loads in flight a thread (8 of 1-byte elements: registers).
  constexpr int kLoads = C::kElement == 1 ? 8 : 16;
  constexpr int kBatch = C::kUnits * kRows <= kLoads ? C::kUnits : kLoads / kRows;
  static_assert(C::kUnits % kBatch == 0, "whole batches");

  const uint8_t* in;
  uint8_t* out;
  const TileParams::Tile tile = p.tile(blockIdx.x, in, out);
  const int64_t row0 = tile.band * C::kRows, col0 = tile.strip * C::kCols;
  if (row0 >= p.rows) return;  // groups are of one size: the last may end early
  in += (C::kFused ? 0 : row0 * p.in_pitch) + col0 * C::kElement;
  out += (C::kFused ? 0 : col0 * p.out_pitch) + row0 * C::kElement;
  p.outer.advance(tile.matrix, in, out);
  const int rows = static_cast<int>(min(p.rows - row0, int64_t{C::kRows}));
  const int cols = static_cast<int>(min(p.cols - col0, int64_t{C::kCols}));
  // Where a row of the tile begins in the input, if fused, and a column in the output.
  const auto row_begin = [&](int row) { return p.row_offsets.offset<true>(row0 + row); };
  const auto col_begin = [&](int col) -> int64_t {
    return C::kFused ? p.col_offsets.offset<true>(col0 + col) : col * p.out_pitch;
  };

  wait_for_inputs();
#pragma unroll
  for (int first = 0; first < C::kUnits; first += kBatch) {
    uint4 v[kBatch][kRows];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const auto [block_row, block_col] = C::block_of(threadIdx.x + (first + u) * C::kThreads);
      if (block_row * kRows < rows && block_col * V < cols) {
        const uint8_t* from = in + block_col * kVector + (C::kFused ? 0 : block_row * kRows * p.in_pitch);
#pragma unroll
        for (int k = 0; k < kRows; ++k) {
          const uint8_t* vector = from + (C::kFused ? row_begin(block_row * kRows + k) : k * p.in_pitch);
          // A branch here: the usual policy as a hint would cost 4096^2 of 1 byte .04.
          v[u][k] =
              p.keep ? load_by<kVector>(vector, keep_policy()) : *reinterpret_cast<const uint4*>(vector);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const auto [block_row, block_col] = C::block_of(threadIdx.x + (first + u) * C::kThreads);
      Column column[V];
      transpose_in_registers<C::kElement>(v[u], column);
      auto* const to = reinterpret_cast<Column*>(staged);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        to[(block_col * V + j) * C::kOutColumns + (block_row ^ C::swizzle(block_col))] = column[j];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < C::kCols * C::kOutVectors; i += C::kThreads) {
    const int col = i / C::kOutVectors, place = i % C::kOutVectors;
    if (col < cols && place * V < rows) {
      const int swizzle = C::swizzle(col / V), row = col * C::kOutVectors;
      uint4 v;
      if constexpr (C::kColumnBytes == kVector) {
        v = staged[row + (place ^ swizzle)];
      } else {
        // A vector is two columns; an odd swizzle has exchanged them.
        v = staged[row + (place ^ swizzle / 2)];
        if (swizzle & 1) v = make_uint4(v.z, v.w, v.x, v.y);
      }
      store_global(out + col_begin(col) + place * kVector, v);
    }
  }
  if (p.release) {
    release_rows(rows, cols * C::kElement, C::kInVectors * kVector / kLine, C::kThreads,
                 [&](int row) { return in + (C::kFused ? row_begin(row) : row * p.in_pitch); });
  }
}

}  // namespace tx::cuda
