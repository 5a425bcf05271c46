// Small 2-D tiles: of problems that L2 holds, or nearly, which are over in microseconds and wait for latency;
// and of matrices so narrow that a tile spans them, of any size.
//
//   load      a thread reads units of 16 bytes: one row of 4-, 8- and 16-byte elements; square blocks of the
//             narrower ones (2 rows x 8 bytes, 4 rows x 4 bytes), which it turns in registers. So the lanes
//             of a warp read few lines, of narrow matrices too. What is not aligned comes by elements
//   stage     words go to shared memory, output row by output row, an odd number of words apart
//   store     lanes along the output row, 16 bytes each, or an element
//
// Small in all that a launch has to wait for (one H200, 64^2 to 1024^2): parameters (of 1 KB, up to .6 us
// more where L2 is cold), the block's number (three grid dims: nothing is divided), the tile. It begins while
// what was queued before ends. Tried and slower: columns straight from registers to the output (.1 to .3 us,
// though without a barrier); fewer threads with more units; code that keeps and releases lines, in tiles of
// problems of a few MB.
// Blocks are numbered along the input's rows, where those can be: DRAM is read in its order (one H100,
// problems drawn at random of 4 MB and more, along the output's and so, 4, 8 and 16 bytes .955 .969 1.002 ->
// .972 .990 1.019).
#pragma once

#include "core/tuning_cuda.h"
#include "cuda/access.cuh"
#include "cuda/params.h"

namespace tx::cuda {

// Vectors: 16 bytes at a time, else an element, which may lie anywhere.
// Keeps: its plan may ask L2 to keep input lines.
template <int Element, int Rows, int Cols, int Threads, bool Vectors, bool Keeps>
struct SmallConfig {
  static constexpr int kElement = Element;
  static constexpr int kRows = Rows;
  static constexpr int kCols = Cols;
  static constexpr int kThreads = Threads;
  static constexpr bool kVectors = Vectors;
  static constexpr bool kKeeps = Keeps;
  static constexpr int kWord = Element > 4 ? Element : 4;
  static constexpr int kUnitRows = kWord / Element;
  static constexpr int kUnitCols = Vectors ? kVector / kWord : 1;
  static constexpr int kLoad = kUnitCols * Element;
  static constexpr int kStore = Vectors ? kVector : Element;
  static constexpr int kUnitsAcross = Cols / kUnitCols;
  static constexpr int kUnits = Rows / kUnitRows * kUnitsAcross / Threads;  // of a thread
  static constexpr int kPitch =
      Rows * Element + kWord;  // bytes of shared memory from one output row to the next
  static constexpr int kStoresDown = Rows * Element / kStore;  // of an output row
  static constexpr int kStores = kStoresDown * Cols / Threads;
  static_assert(Rows * Cols == kUnits * Threads * kUnitRows * kUnitCols, "threads divide the tile's loads");
  static_assert(Rows * Cols * Element == kStores * Threads * kStore, "and its stores");
  static_assert(kPitch / kWord % 2 == 1, "odd distance in words");
};

// Rows of a unit, as read, to its columns: words of kRows elements.
template <int kElement, int kRows, int kCols>
__device__ __forceinline__ void turn_unit(const Word<kCols * kElement> (&row)[kRows],
                                          Word<kRows * kElement> (&col)[kCols]) {
  if constexpr (kRows == 1 && kCols == 1) {
    col[0] = row[0];
  } else if constexpr (kCols == 1) {
    uint32_t elements[kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) elements[k] = row[k];
    col[0] = pack_word(elements);
  } else if constexpr (kElement == 1) {
#pragma unroll
    for (int k = 0; k < kRows; ++k) col[k] = row[k];
    transpose_words(col);
  } else if constexpr (kElement == 2) {
    uint32_t left[2] = {row[0].x, row[1].x}, right[2] = {row[0].y, row[1].y};
    transpose_words(left);
    transpose_words(right);
    col[0] = left[0], col[1] = left[1], col[2] = right[0], col[3] = right[1];
  } else if constexpr (kElement == 4) {
    col[0] = row[0].x, col[1] = row[0].y, col[2] = row[0].z, col[3] = row[0].w;
  } else {
    col[0] = make_uint2(row[0].x, row[0].y), col[1] = make_uint2(row[0].z, row[0].w);
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads) small_kernel(const __grid_constant__ SmallParams p) {
  __shared__ __align__(16) uint8_t columns[C::kCols * C::kPitch];
  constexpr uint32_t E = C::kElement, K = C::kUnitRows;
  const uint32_t row0 = (p.bands_first ? blockIdx.x : blockIdx.y) * C::kRows;
  const uint32_t col0 = (p.bands_first ? blockIdx.y : blockIdx.x) * C::kCols;
  const uint32_t rows = p.rows - row0, cols = p.cols - col0;
  const uint8_t* in = static_cast<const uint8_t*>(p.place.in) + uint64_t{row0} * p.in_pitch + col0 * E;
  uint8_t* out = static_cast<uint8_t*>(p.place.out) + uint64_t{col0} * p.out_pitch + row0 * E;
  p.outer.advance(blockIdx.z, in, out);
  using Load = Word<C::kLoad>;

  [[maybe_unused]] uint64_t policy = 0;
  if constexpr (C::kKeeps) policy = load_policy(p.keep);
  wait_for_inputs();
  Load v[C::kUnits][K];
#pragma unroll
  for (uint32_t u = 0; u < C::kUnits; ++u) {
    const uint32_t unit = threadIdx.x + u * C::kThreads;
    const uint32_t row = unit / C::kUnitsAcross * K, col = unit % C::kUnitsAcross * C::kUnitCols;
    const uint8_t* const from = in + uint64_t{row} * p.in_pitch + col * E;
#pragma unroll
    for (uint32_t k = 0; k < K; ++k) {
      // Vectors: all rows of a unit are there, or none.
      if (row + (C::kVectors ? 0 : k) < rows && col < cols) {
        const uint8_t* const unit_row = from + uint64_t{k} * p.in_pitch;
        if constexpr (C::kKeeps) {
          v[u][k] = load_by<C::kLoad>(unit_row, policy);
        } else {
          v[u][k] = *reinterpret_cast<const Load*>(unit_row);
        }
      }
    }
  }
  const uint32_t shared = shared_address(columns);
#pragma unroll
  for (uint32_t u = 0; u < C::kUnits; ++u) {
    const uint32_t unit = threadIdx.x + u * C::kThreads;
    const uint32_t row = unit / C::kUnitsAcross * K, col = unit % C::kUnitsAcross * C::kUnitCols;
    Word<C::kWord> column[C::kUnitCols];
    turn_unit<E>(v[u], column);
#pragma unroll
    for (uint32_t j = 0; j < C::kUnitCols; ++j) {
      store_shared<C::kWord>(shared + (col + j) * C::kPitch + row * E, column[j]);
    }
  }
  __syncthreads();
#pragma unroll
  for (uint32_t i = 0; i < C::kStores; ++i) {
    const uint32_t piece = threadIdx.x + i * C::kThreads;
    const uint32_t col = piece / C::kStoresDown, at = piece % C::kStoresDown * C::kStore;  // bytes
    if (at < rows * E && col < cols) {
      const uint32_t from = shared + col * C::kPitch + at;
      uint8_t* const to = out + uint64_t{col} * p.out_pitch + at;
      if constexpr (C::kVectors) {
        store_global(to, load_shared_vector<C::kWord>(from));
      } else {
        *reinterpret_cast<Word<E>*>(to) = load_shared<E>(from);
      }
    }
  }
  if constexpr (C::kKeeps) {
    if (!p.release) return;
    constexpr int kLines = ceil_div(C::kCols * C::kElement, kLine);
    release_rows(min(rows, uint32_t{C::kRows}), cols * E, kLines, C::kThreads,
                 [&](int row) { return in + uint64_t(row) * p.in_pitch; });
  }
}

}  // namespace tx::cuda
