// Group C: copy, naive, shared memory, shared memory without bank conflicts; builds with nvcc and, through
// gpu.h, with hipcc. Published as an exercise for the AMD MI250X with one element a thread and a square tile;
// there sizes are multiples of the tile, here every access is guarded. On AMD a wavefront has 64 lanes: two
// rows of the tile at a time.
#include "launch.cuh"

namespace ladder {
namespace {

constexpr int kTile = 32;

// Reads rows, writes rows, one element a thread; published as "copy".
// Teaches the bandwidth that this launch shape can reach at all.
__global__ void copy_kernel(In in, Out out) {
  const int col = blockIdx.x * kTile + threadIdx.x, row = blockIdx.y * kTile + threadIdx.y;
  if (in.has(row, col)) out.at(row, col) = in.at(row, col);
}

// Reads rows, writes columns: as many read requests as the copy, and eight times the sectors written.
// Teaches to look for the loss in the requests between L1, L2 and memory.
__global__ void naive(In in, Out out) {
  const int col = blockIdx.x * kTile + threadIdx.x, row = blockIdx.y * kTile + threadIdx.y;
  if (in.has(row, col)) out.at(col, row) = in.at(row, col);
}

template <int kPad>
__device__ void transpose_through_square(In in, Out out) {
  __shared__ float tile[kTile][kTile + kPad];
  const int first_col = blockIdx.x * kTile, first_row = blockIdx.y * kTile;
  const int x = threadIdx.x, y = threadIdx.y;
  if (in.has(first_row + y, first_col + x)) tile[y][x] = in.at(first_row + y, first_col + x);
  __syncthreads();
  if (out.has(first_col + y, first_row + x)) out.at(first_col + y, first_row + x) = tile[x][y];
}

// Rows in, rows out through tile[32][32]: reading a column of it, all 32 lanes meet in one bank.
// Teaches that requests to memory are now those of the copy, and that the remaining loss is inside the tile.
__global__ void sm(In in, Out out) { transpose_through_square<0>(in, out); }

// sm with rows of 33 words: a column of the tile lies across all 32 banks.
// Teaches how much of the time the conflicts had cost, by taking away nothing else.
__global__ void sm_nobc(In in, Out out) { transpose_through_square<1>(in, out); }

const Rung<float> kRungs[] = {
    {"copy_kernel", copy_kernel, 32, 32, 32, 32, Walk::kCols, false, true},
    {"naive", naive, 32, 32, 32, 32},
    {"sm", sm, 32, 32, 32, 32},
    {"sm_nobc", sm_nobc, 32, 32, 32, 32},
};

}  // namespace
}  // namespace ladder

LADDER_EXPORT(ladder::kRungs)
