// Group B: one padded tile, two ways to write it.
// Published at 4000 x 4000 with blocks of 32 x 32 threads and a tile of 32 x 33; there the size is a multiple
// of the tile, here every access is guarded.
#include "launch.cuh"

namespace ladder {
namespace {

constexpr int kTile = 32;

// Rows into the tile; then each thread writes its own element to its transposed place: columns out.
// Teaches that a tile alone does nothing: unless threads exchange elements, the writes stay strided.
__global__ void tile33_uncoalesced(In in, Out out) {
  __shared__ float tile[kTile][kTile + 1];
  const int col = blockIdx.x * kTile + threadIdx.x, row = blockIdx.y * kTile + threadIdx.y;
  if (in.has(row, col)) tile[threadIdx.y][threadIdx.x] = in.at(row, col);
  __syncthreads();
  if (out.has(col, row)) out.at(col, row) = tile[threadIdx.y][threadIdx.x];
}

// Rows in; block indices swapped, thread indices kept: the tile is read by columns and rows go out.
// Teaches the exchange: each thread writes what another one read, so both sides are whole rows.
__global__ void tile33_coalesced(In in, Out out) {
  __shared__ float tile[kTile][kTile + 1];
  const int first_col = blockIdx.x * kTile, first_row = blockIdx.y * kTile;
  const int x = threadIdx.x, y = threadIdx.y;
  if (in.has(first_row + y, first_col + x)) tile[y][x] = in.at(first_row + y, first_col + x);
  __syncthreads();
  if (out.has(first_col + y, first_row + x)) out.at(first_col + y, first_row + x) = tile[x][y];
}

const Rung<float> kRungs[] = {
    {"tile33_uncoalesced", tile33_uncoalesced, 32, 32, 32, 32},
    {"tile33_coalesced", tile33_coalesced, 32, 32, 32, 32},
};

}  // namespace
}  // namespace ladder

LADDER_EXPORT(ladder::kRungs)
