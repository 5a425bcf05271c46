// Group E: against cuBLAS, from one-dimensional blocks to tiles of 64 x 64 (cublasSgeam itself is called from
// device.py). Published at 32768 x 32768, where every size is a multiple of every tile. Published notes:
// shared16 and naive64 bound the wrong extent, x4 and shared32_x4 read float4s that are misaligned unless
// columns are a multiple of 4, and shared32_async copies past the end of a partial row. Here every access is
// guarded, and vectors are used only where rows are aligned.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>

#include "launch.cuh"

namespace ladder {
namespace {

constexpr int kVector = 4;
constexpr int kTile = 32, kTileRows = 8;  // a block of 32 x 8 threads covers 32 x 32 elements
constexpr int kBlock1d = 256;

// True where every row of the matrix starts on a float4.
__device__ bool rows_hold_vectors(In in) {
  return in.cols % kVector == 0 && reinterpret_cast<uintptr_t>(in.data) % sizeof(float4) == 0;
}

__device__ float4 load_vector(In in, int row, int col) {
  return *reinterpret_cast<const float4*>(&in.at(row, col));
}

// Reads columns, writes rows, blocks of 16 x 16: a warp reads 16 rows x 2 columns, writes two pieces of 16.
// Teaches the simplest kernel with coalesced writes.
__global__ void naive_2d(In in, Out out) {
  const int row = blockIdx.x * 16 + threadIdx.x, col = blockIdx.y * 16 + threadIdx.y;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

// Reads rows, writes columns, blocks of 16 x 16: naive_2d turned round.
// Teaches which side deserves to be coalesced first, beside naive_2d.
__global__ void naive_2d_v2(In in, Out out) {
  const int col = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

// One-dimensional blocks: 256 threads read a piece of one column and write a piece of one row.
// Teaches that such a block reads 32 bytes for each 4 it needs and leaves the rest to luck in cache.
__global__ void naive_1d(In in, Out out) {
  const int pieces = (in.rows + kBlock1d - 1) / kBlock1d;
  const int row = blockIdx.x % pieces * kBlock1d + threadIdx.x, col = blockIdx.x / pieces;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

// One-dimensional blocks: 256 threads read a piece of one row and write a piece of one column.
// Teaches the same on the other side: sectors leave the cache before their neighbours are written.
__global__ void naive_1d_v2(In in, Out out) {
  const int pieces = (in.cols + kBlock1d - 1) / kBlock1d;
  const int row = blockIdx.x / pieces, col = blockIdx.x % pieces * kBlock1d + threadIdx.x;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

// A thread loads a float4 of a row, stores 4 elements of a column; neighbouring threads lie down a column.
// Teaches that 16 bytes a thread repair strided reads; unaligned rows go element by element.
__global__ void x4(In in, Out out) {
  const int row = blockIdx.x * 16 + threadIdx.x, col = (blockIdx.y * 16 + threadIdx.y) * kVector;
  if (!in.has(row, col)) return;
  if (rows_hold_vectors(in)) {
    const float4 v = load_vector(in, row, col);
    out.at(col, row) = v.x;
    out.at(col + 1, row) = v.y;
    out.at(col + 2, row) = v.z;
    out.at(col + 3, row) = v.w;
  } else {
    for (int k = 0; k < kVector; ++k) {
      if (in.has(row, col + k)) out.at(col + k, row) = in.at(row, col + k);
    }
  }
}

// A tile of 16 x 17: rows of 16 in, rows of 16 out, two rows a warp.
// Teaches that padding by one suits rows of 32 only: here words 0 and 32 of the tile still meet in bank 0.
__global__ void shared16(In in, Out out) {
  __shared__ float tile[16][17];
  const int first_col = blockIdx.x * 16, first_row = blockIdx.y * 16;
  const int x = threadIdx.x, y = threadIdx.y;
  if (in.has(first_row + y, first_col + x)) tile[y][x] = in.at(first_row + y, first_col + x);
  __syncthreads();
  if (out.has(first_col + y, first_row + x)) out.at(first_col + y, first_row + x) = tile[x][y];
}

// A tile of kTile x kTile, padded by one, written to memory by 32 x 8 threads: rows out, 4 a thread.
__device__ void write_tile(Out out, const float (&tile)[kTile][kTile + 1], int x, int y) {
  const int first_row = blockIdx.x * kTile, first_col = blockIdx.y * kTile;
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    if (out.has(first_row + y + i, first_col + x)) out.at(first_row + y + i, first_col + x) = tile[x][y + i];
  }
}

// A tile of 32 x 33, block 32 x 8, 4 rows a thread: rows in, rows out, no bank conflict.
// Teaches the textbook transpose: everything is coalesced, and several loads a thread are in flight.
__global__ void shared32(In in, Out out) {
  __shared__ float tile[kTile][kTile + 1];
  const int first_col = blockIdx.x * kTile, first_row = blockIdx.y * kTile;
  const int x = threadIdx.x, y = threadIdx.y;
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    if (in.has(first_row + y + i, first_col + x)) tile[y + i][x] = in.at(first_row + y + i, first_col + x);
  }
  __syncthreads();
  write_tile(out, tile, x, y);
}

// shared32 with blocks of 8 x 32 that load the tile as float4s, 8 threads a row, or element by element.
// Teaches that wider loads save instructions, not bytes: reads that were whole before gain little.
__global__ void shared32_x4(In in, Out out) {
  __shared__ float tile[kTile][kTile + 1];
  const int first_col = blockIdx.x * kTile, first_row = blockIdx.y * kTile;
  const int y = threadIdx.y, x = threadIdx.x * kVector;
  if (in.has(first_row + y, first_col + x)) {
    if (rows_hold_vectors(in)) {
      const float4 v = load_vector(in, first_row + y, first_col + x);
      tile[y][x] = v.x;
      tile[y][x + 1] = v.y;
      tile[y][x + 2] = v.z;
      tile[y][x + 3] = v.w;
    } else {
      for (int k = 0; k < kVector; ++k) {
        if (in.has(first_row + y, first_col + x + k))
          tile[y][x + k] = in.at(first_row + y, first_col + x + k);
      }
    }
  }
  __syncthreads();
  const int flat =
      threadIdx.y * (kTile / kVector) + threadIdx.x;  // split again by 32, so that rows go out whole
  write_tile(out, tile, flat % kTile, flat / kTile);
}

// shared32 whose rows come in through memcpy_async, one warp a row, past the registers; cut to the row.
// Teaches that asynchronous copies help where there is other work to do meanwhile, and here is none.
__global__ void shared32_async(In in, Out out) {
  namespace cg = cooperative_groups;
  __shared__ float tile[kTile][kTile + 1];
  const cg::thread_block block = cg::this_thread_block();
  const cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  const int first_col = blockIdx.x * kTile, first_row = blockIdx.y * kTile;
  const int x = threadIdx.x, y = threadIdx.y;
  const int length = min(kTile, in.cols - first_col);
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    if (first_row + y + i < in.rows) {  // the same for the whole warp
      cg::memcpy_async(warp, tile[y + i], &in.at(first_row + y + i, first_col), sizeof(float) * length);
    }
  }
  cg::wait(block);
  write_tile(out, tile, x, y);
}

// A tile of 64 x 65, block 32 x 8, 16 elements a thread: rows in, rows out, no bank conflict.
// Teaches that 16 loads in flight a thread, and a quarter of the blocks, close the gap to the library.
__global__ void shared64(In in, Out out) {
  __shared__ float tile[64][65];
  const int first_col = blockIdx.x * 64, first_row = blockIdx.y * 64;
#pragma unroll
  for (int i = 0; i < 64; i += kTileRows) {
#pragma unroll
    for (int j = 0; j < 64; j += 32) {
      const int y = threadIdx.y + i, x = threadIdx.x + j;
      if (in.has(first_row + y, first_col + x)) tile[y][x] = in.at(first_row + y, first_col + x);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i += kTileRows) {
#pragma unroll
    for (int j = 0; j < 64; j += 32) {
      const int y = threadIdx.y + i, x = threadIdx.x + j;
      if (out.has(first_col + y, first_row + x)) out.at(first_col + y, first_row + x) = tile[x][y];
    }
  }
}

// 64 x 64 elements a block of 32 x 8 threads without a tile: columns in, rows out, 16 elements a thread.
// Teaches that the amount of work a thread is not what makes shared64 fast; the tile is.
__global__ void naive64(In in, Out out) {
  const int first_row = blockIdx.x * 64 + threadIdx.x, first_col = blockIdx.y * 64 + threadIdx.y;
#pragma unroll
  for (int i = 0; i < 64; i += kTileRows) {
#pragma unroll
    for (int j = 0; j < 64; j += 32) {
      const int row = first_row + j, col = first_col + i;
      if (in.has(row, col)) out.at(col, row) = in.at(row, col);
    }
  }
}

const Rung<float> kRungs[] = {
    {"naive_2d", naive_2d, 16, 16, 16, 16, Walk::kRows},
    {"naive_2d_v2", naive_2d_v2, 16, 16, 16, 16},
    {"naive_1d", naive_1d, 256, 1, 256, 1, Walk::kRows, true},
    {"naive_1d_v2", naive_1d_v2, 256, 1, 256, 1, Walk::kCols, true},
    {"x4", x4, 16, 16, 16, 64, Walk::kRows},
    {"shared16", shared16, 16, 16, 16, 16},
    {"shared32", shared32, 32, 8, 32, 32},
    {"shared32_x4", shared32_x4, 8, 32, 32, 32},
    {"shared32_async", shared32_async, 32, 8, 32, 32},
    {"shared64", shared64, 32, 8, 64, 64},
    {"naive64", naive64, 32, 8, 64, 64, Walk::kRows},
};

}  // namespace
}  // namespace ladder

LADDER_EXPORT(ladder::kRungs)
