// Aligned 2-D tiles: every address, pitch and extent a multiple of 16 bytes. Both sides move 16 bytes a thread.
//
//   load      a thread reads a block of V rows x 16 bytes (V = 16 / element bytes), lanes along the input row
//   transpose V x V in registers, so that each vector now belongs to one output row
//   stage     vectors go to shared memory, output row by output row; the vector's place in its row is XORed with
//             its column block, so that neither side meets a bank conflict: in any 8 lanes (the unit in which the
//             hardware serves 16-byte accesses) the 8 vectors lie in 8 different bank groups
//   store     lanes along the output row
//
// Blocks are numbered along output rows first: the blocks that run together then write whole DRAM pages.
#pragma once

#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// InBytes x OutBytes: length of the tile's piece of an input row and of an output row, in bytes.
template <int Element, int InBytes, int OutBytes, int Threads, int MinBlocks, int Keep = 1>
struct TileConfig {
  static constexpr int kElement = Element;
  static constexpr int kThreads = Threads;
  static constexpr int kMinBlocks = MinBlocks;
  static constexpr int kKeep = Keep;
  static constexpr int kV = kVector / Element;
  static constexpr int kRows = OutBytes / Element;  // input rows
  static constexpr int kCols = InBytes / Element;   // input columns
  static constexpr int kInVectors = InBytes / kVector;
  static constexpr int kOutVectors = OutBytes / kVector;
  static constexpr int kUnits = kInVectors * kOutVectors / Threads;  // V-row blocks a thread
  static constexpr int kSharedBytes = kCols * OutBytes;
  static_assert(kInVectors * kOutVectors % Threads == 0, "threads must divide the tile");
  static_assert(kInVectors >= 8 && kOutVectors >= 8, "the swizzle needs 8 vectors a row on both sides");
};

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kMinBlocks) tile_kernel(const __grid_constant__ TileParams p) {
  extern __shared__ uint4 staged[];
  constexpr int V = C::kV;
  // As many units at once as keep about 16 vectors in flight a thread.
  constexpr int kBatch = C::kUnits * V <= 16 ? C::kUnits : (V >= 16 ? 1 : 16 / V);
  static_assert(C::kUnits % kBatch == 0, "whole batches");
  const uint64_t keep = keep_policy();

  const QuotRem band = p.bands.divmod(blockIdx.x);
  const QuotRem strip = p.strips.divmod(band.quot);
  const int64_t row0 = static_cast<int64_t>(band.rem) * C::kRows;
  const int64_t col0 = static_cast<int64_t>(strip.rem) * C::kCols;
  const uint8_t* in = p.in + row0 * p.in_pitch + col0 * C::kElement;
  uint8_t* out = p.out + col0 * p.out_pitch + row0 * C::kElement;
  p.outer.advance(strip.quot, in, out);
  const int rows = static_cast<int>(min(p.rows - row0, int64_t{C::kRows}));
  const int cols = static_cast<int>(min(p.cols - col0, int64_t{C::kCols}));

#pragma unroll
  for (int first = 0; first < C::kUnits; first += kBatch) {
    uint4 v[kBatch][V];
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int unit = threadIdx.x + (first + u) * C::kThreads;
      const int block_col = unit % C::kInVectors, block_row = unit / C::kInVectors;
      if (block_row * V < rows && block_col * V < cols) {
        const uint8_t* from = in + block_row * V * p.in_pitch + block_col * kVector;
#pragma unroll
        for (int k = 0; k < V; ++k) v[u][k] = C::kKeep == 1 ? load_keep(from + k * p.in_pitch, keep) : C::kKeep == 2 ? load_256(from + k * p.in_pitch) : *reinterpret_cast<const uint4*>(from + k * p.in_pitch);
      }
    }
#pragma unroll
    for (int u = 0; u < kBatch; ++u) {
      const int unit = threadIdx.x + (first + u) * C::kThreads;
      const int block_col = unit % C::kInVectors, block_row = unit / C::kInVectors;
      transpose_in_registers<C::kElement>(v[u]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        staged[(block_col * V + j) * C::kOutVectors + (block_row ^ (block_col & 7))] = v[u][j];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x; i < C::kCols * C::kOutVectors; i += C::kThreads) {
    const int col = i / C::kOutVectors, block_row = i % C::kOutVectors;
    if (col < cols && block_row * V < rows) {
      const uint4 v = staged[col * C::kOutVectors + (block_row ^ (col / V & 7))];
      store_past_l1(out + col * p.out_pitch + block_row * kVector, v);
    }
  }
}

}  // namespace tx::cuda
