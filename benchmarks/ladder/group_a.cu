// Group A: global-memory and shared-memory rungs, from row and column copies to an unrolled, padded tile.
// Published at 4096 x 4096 with blocks of 32 x 16 threads. A "row" access is contiguous over a warp, a
// "column" access has the pitch of the matrix between neighbouring threads. The published kernels guard one
// matrix at most, or assume whole tiles; every access here is guarded.
#include "launch.cuh"

namespace ladder {
namespace {

constexpr int kBlockX = 32, kBlockY = 16;
constexpr int kUnroll = 4;

// Reads rows, writes rows: a warp touches 4 whole sectors on each side.
// Teaches the ceiling: no transpose that goes through memory once can beat a copy of the same bytes.
__global__ void copy_row(In in, Out out) {
  const int col = blockIdx.x * kBlockX + threadIdx.x, row = blockIdx.y * kBlockY + threadIdx.y;
  if (in.has(row, col)) out.at(row, col) = in.at(row, col);
}

// Reads columns, writes columns: a warp touches 32 sectors on each side and uses 4 of the 32 bytes of each.
// Teaches the floor: the same copy, made slow by nothing but the order of its threads.
__global__ void copy_col(In in, Out out) {
  const int row = blockIdx.x * kBlockX + threadIdx.x, col = blockIdx.y * kBlockY + threadIdx.y;
  if (in.has(row, col)) out.at(row, col) = in.at(row, col);
}

// Reads rows (4 sectors a warp), writes columns (32 sectors a warp).
// Teaches that a transpose without staging must be strided on one side; here the writes pay.
__global__ void naive_row(In in, Out out) {
  const int col = blockIdx.x * kBlockX + threadIdx.x, row = blockIdx.y * kBlockY + threadIdx.y;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

// Reads columns (32 sectors a warp), writes rows (4 sectors a warp).
// Teaches that strided reads can be the cheaper side: L1 keeps their sectors for the neighbouring warps.
__global__ void naive_col(In in, Out out) {
  const int row = blockIdx.x * kBlockX + threadIdx.x, col = blockIdx.y * kBlockY + threadIdx.y;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

// naive_row, four elements a thread, 32 columns apart: a quarter of the blocks, the same sectors.
// Teaches that more work a thread does not help where the sectors of the writes are the limit.
__global__ void unroll4_row(In in, Out out) {
  const int first = blockIdx.x * kBlockX * kUnroll + threadIdx.x, row = blockIdx.y * kBlockY + threadIdx.y;
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int col = first + k * kBlockX;
    if (in.has(row, col)) out.at(col, row) = in.at(row, col);
  }
}

// naive_col, four elements a thread, 32 rows apart: a quarter of the blocks, the same sectors.
// Teaches that more loads in flight a thread help where latency of the reads is the limit.
__global__ void unroll4_col(In in, Out out) {
  const int first = blockIdx.x * kBlockX * kUnroll + threadIdx.x, col = blockIdx.y * kBlockY + threadIdx.y;
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int row = first + k * kBlockX;
    if (in.has(row, col)) out.at(col, row) = in.at(row, col);
  }
}

// kTiles tiles of 16 rows x 32 columns, side by side in shared memory, go in by rows. The flat thread index
// is split again by 16, so that the rows that go out are 16 long: each half of a warp reads one column of the
// tile.
template <int kTiles, int kPad>
__device__ void transpose_through_tile(In in, Out out) {
  constexpr int kPitch = kTiles * kBlockX + kPad;
  __shared__ float tile[kBlockY * kPitch];
  const int first_col = blockIdx.x * kTiles * kBlockX, first_row = blockIdx.y * kBlockY;
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const int x = k * kBlockX + threadIdx.x, y = threadIdx.y;
    if (in.has(first_row + y, first_col + x)) tile[y * kPitch + x] = in.at(first_row + y, first_col + x);
  }
  __syncthreads();
  const int flat = threadIdx.y * kBlockX + threadIdx.x;
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const int x = k * kBlockX + flat / kBlockY, y = flat % kBlockY;
    if (out.has(first_col + x, first_row + y)) out.at(first_col + x, first_row + y) = tile[y * kPitch + x];
  }
}

// Rows in, rows out, the turn inside tile[16][32]: reading a column of it, 16 lanes meet in one bank.
// Teaches that shared memory makes both global sides whole, and that bank conflicts are the next price.
__global__ void smem(In in, Out out) { transpose_through_tile<1, 0>(in, out); }

// smem with rows of 34 words: the two columns that a warp reads fall on the even and on the odd banks.
// Teaches that two unused words a row remove every conflict (one would leave two lanes a bank).
__global__ void smem_pad(In in, Out out) { transpose_through_tile<1, 2>(in, out); }

// Two tiles a block in one array of 16 x 64 words: two loads in flight a thread, the conflicts of smem.
// Teaches that more bytes in flight can outweigh conflicts.
__global__ void smem_unroll2(In in, Out out) { transpose_through_tile<2, 0>(in, out); }

// smem_unroll2 with rows of 66 words: two loads in flight and no conflict.
// Teaches where the published ladder ends: both lessons together.
__global__ void smem_unroll2_pad(In in, Out out) { transpose_through_tile<2, 2>(in, out); }

const Rung<float> kRungs[] = {
    {"copy_row", copy_row, 32, 16, 32, 16, Walk::kCols, false, true},
    {"copy_col", copy_col, 32, 16, 32, 16, Walk::kRows, false, true},
    {"naive_row", naive_row, 32, 16, 32, 16},
    {"naive_col", naive_col, 32, 16, 32, 16, Walk::kRows},
    {"unroll4_row", unroll4_row, 32, 16, 128, 16},
    {"unroll4_col", unroll4_col, 32, 16, 128, 16, Walk::kRows},
    {"smem", smem, 32, 16, 32, 16},
    {"smem_pad", smem_pad, 32, 16, 32, 16},
    {"smem_unroll2", smem_unroll2, 32, 16, 64, 16},
    {"smem_unroll2_pad", smem_unroll2_pad, 32, 16, 64, 16},
};

}  // namespace
}  // namespace ladder

LADDER_EXPORT(ladder::kRungs)
