// Group D: the shared-memory access lab. One block; each thread writes its linear index to shared memory and
// reads one back. Published with int32 and two blocks: square, 32 x 32 threads (32 warps), and rectangular,
// 32 x 16 threads (16 warps; the rungs named _rect). Row order and column order take the same few
// instructions; only the banks they meet differ.
#include "launch.cuh"

namespace ladder {
namespace {

using NoInput = Matrix<const int>;
using Indices = Matrix<int>;

// The thread's place in its block, which is also its place in the output.
template <int kCols>
__device__ int linear_index() {
  return threadIdx.y * kCols + threadIdx.x;
}

// Row order in, row order out, of a tile as wide as the block: a warp meets each bank once, both times.
template <int kRows, int kCols>
__device__ void row_row(Indices out) {
  __shared__ int tile[kRows][kCols];
  tile[threadIdx.y][threadIdx.x] = linear_index<kCols>();
  __syncthreads();
  out.data[linear_index<kCols>()] = tile[threadIdx.y][threadIdx.x];
}

// Column order in, column order out, of a tile that lies across: tile[x][y].
template <int kRows, int kCols>
__device__ void col_col(Indices out) {
  __shared__ int tile[kCols][kRows];
  tile[threadIdx.x][threadIdx.y] = linear_index<kCols>();
  __syncthreads();
  out.data[linear_index<kCols>()] = tile[threadIdx.x][threadIdx.y];
}

// Row order in, column order out. The flat index, split again by the number of rows, walks down the columns
// of the tile.
template <int kRows, int kCols, int kPitch>
__device__ void row_col(Indices out, int* tile) {
  const int flat = linear_index<kCols>();
  tile[threadIdx.y * kPitch + threadIdx.x] = flat;
  __syncthreads();
  out.data[flat] = tile[flat % kRows * kPitch + flat / kRows];
}

template <int kRows, int kCols, int kPad>
__device__ void row_col_static(Indices out) {
  __shared__ int tile[kRows * (kCols + kPad)];
  row_col<kRows, kCols, kCols + kPad>(out, tile);
}

template <int kRows, int kCols, int kPad>
__device__ void row_col_dynamic(Indices out) {
  extern __shared__ int dynamic_tile[];
  row_col<kRows, kCols, kCols + kPad>(out, dynamic_tile);
}

// Stores rows and loads rows: 32 wavefronts each way, one a warp.
// Teaches the best case: 32 neighbouring words are 32 different banks.
__global__ void set_row_read_row(NoInput, Indices out) { row_row<32, 32>(out); }

// Stores columns and loads columns: 1024 wavefronts each way, 32 a warp.
// Teaches the worst case: a column of a 32-word-wide tile lies in one bank.
__global__ void set_col_read_col(NoInput, Indices out) { col_col<32, 32>(out); }

// Stores rows, loads columns: 32 wavefronts in, 1024 out.
// Teaches that a transpose in an unpadded tile pays on exactly one side.
__global__ void set_row_read_col(NoInput, Indices out) { row_col_static<32, 32, 0>(out); }

// set_row_read_col in dynamic shared memory: the same wavefronts.
// Teaches that banks follow from addresses, not from how the array was declared.
__global__ void set_row_read_col_dyn(NoInput, Indices out) { row_col_dynamic<32, 32, 0>(out); }

// set_row_read_col with rows of 33 words: 32 wavefronts each way.
// Teaches padding: one word a row moves each row of a column to the next bank.
__global__ void set_row_read_col_pad(NoInput, Indices out) { row_col_static<32, 32, 1>(out); }

// set_row_read_col_pad in dynamic shared memory: 32 wavefronts each way.
// Teaches that the pitch is then yours to compute, and the lesson the same.
__global__ void set_row_read_col_dyn_pad(NoInput, Indices out) { row_col_dynamic<32, 32, 1>(out); }

// Stores rows and loads rows with 16 warps: 16 wavefronts each way.
// Teaches the best case of the rectangular block.
__global__ void set_row_read_row_rect(NoInput, Indices out) { row_row<16, 32>(out); }

// Stores columns and loads columns of tile[32][16]: 256 wavefronts each way, 16 a warp.
// Teaches that the pitch decides: at 16 words, even lanes share one bank and odd lanes another, 16 deep.
__global__ void set_col_read_col_rect(NoInput, Indices out) { col_col<16, 32>(out); }

// Stores rows, loads columns of tile[16][32]: 16 wavefronts in, 256 out.
// Teaches that a warp here covers two columns of 16, so a conflict is 16 deep, not 32.
__global__ void set_row_read_col_rect(NoInput, Indices out) { row_col_static<16, 32, 0>(out); }

// set_row_read_col_rect in dynamic shared memory: the same wavefronts.
// Teaches once more that the declaration does not matter.
__global__ void set_row_read_col_dyn_rect(NoInput, Indices out) { row_col_dynamic<16, 32, 0>(out); }

// Rows of 33 words: 16 wavefronts in, 32 out.
// Teaches that pad 1 is not always enough: the two columns of a warp start in neighbouring banks and overlap.
__global__ void set_row_read_col_pad1_rect(NoInput, Indices out) { row_col_static<16, 32, 1>(out); }

// Rows of 34 words: 16 wavefronts each way.
// Teaches to pad by the number of columns that a warp reads: one falls on even banks, the other on odd ones.
__global__ void set_row_read_col_pad_rect(NoInput, Indices out) { row_col_static<16, 32, 2>(out); }

// set_row_read_col_pad_rect in dynamic shared memory: 16 wavefronts each way.
// Teaches the same with a pitch computed by hand.
__global__ void set_row_read_col_dyn_pad_rect(NoInput, Indices out) { row_col_dynamic<16, 32, 2>(out); }

constexpr Rung<int> square(const char* name, void (*kernel)(NoInput, Indices), int dynamic_words = 0) {
  return {name, kernel,      32,    32,   32,
          32,   Walk::kCols, false, true, dynamic_words * static_cast<int>(sizeof(int))};
}

constexpr Rung<int> rectangular(const char* name, void (*kernel)(NoInput, Indices), int dynamic_words = 0) {
  return {name, kernel,      32,    16,   32,
          16,   Walk::kCols, false, true, dynamic_words * static_cast<int>(sizeof(int))};
}

const Rung<int> kRungs[] = {
    square("set_row_read_row", set_row_read_row),
    square("set_col_read_col", set_col_read_col),
    square("set_row_read_col", set_row_read_col),
    square("set_row_read_col_dyn", set_row_read_col_dyn, 32 * 32),
    square("set_row_read_col_pad", set_row_read_col_pad),
    square("set_row_read_col_dyn_pad", set_row_read_col_dyn_pad, 32 * 33),
    rectangular("set_row_read_row_rect", set_row_read_row_rect),
    rectangular("set_col_read_col_rect", set_col_read_col_rect),
    rectangular("set_row_read_col_rect", set_row_read_col_rect),
    rectangular("set_row_read_col_dyn_rect", set_row_read_col_dyn_rect, 16 * 32),
    rectangular("set_row_read_col_pad1_rect", set_row_read_col_pad1_rect),
    rectangular("set_row_read_col_pad_rect", set_row_read_col_pad_rect),
    rectangular("set_row_read_col_dyn_pad_rect", set_row_read_col_dyn_pad_rect, 16 * 34),
};

}  // namespace
}  // namespace ladder

LADDER_EXPORT(ladder::kRungs)
