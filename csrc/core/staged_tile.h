// The staged kernel's tile: which piece of each dim a block takes, and how that piece lies in fast memory.
#pragma once

#include <cstdint>
#include <string>

#include "core/int_math.h"
#include "core/problem.h"

namespace tx {

inline constexpr int kMaxStagedChain = 3;  // dims that form one contiguous run of a tile
inline constexpr int kMaxStagedAxes = 5;   // further dims of a tile, on either side

// The dim that is contiguous in the input (stride of one element), or -1. Precondition: normalised.
int input_dense_dim(const Problem& problem);

// Bytes between neighbours of the input's runs: an element where a dim is contiguous in the input, a few of
// them where the innermost is stepped (x[..., ::2]), 0 where neighbours are too far apart to be staged.
int64_t input_step(const Problem& problem);

// Elements narrower than a word (4 bytes) are moved in square blocks of 4 / element_bytes where both sides
// allow it: a word then holds neighbours of an input row on the way in and neighbours of an output row on the
// way out, and a thread turns the block in registers. The problem in between has words for elements. These
// are its rules: the two dense dims differ and hold whole blocks, and every other stride and both addresses
// are multiples of a word.
int staged_block(const Problem& problem);  // elements along a side of a block; 1 where it does not apply

// The problem with blocks for elements: both dense dims shortened, their far strides lengthened.
Problem staged_blocks(const Problem& problem, int block);

// How one side of the move walks a tile: a run, contiguous on that side, of up to three dims, and the dims
// that number the runs. Only the run's last dim may be cut short by the tile.
struct StagedSide {
  int chain_count = 0;
  int chain[kMaxStagedChain];  // fastest first
  int axis_count = 0;
  int axes[kMaxStagedAxes];  // fastest first
};

struct StagedLayout {
  StagedSide in;
  StagedSide out;
  int in_cut = -1;  // dim whose last tile is shorter, or -1; there are at most two
  int out_cut = -1;
  int32_t shared_stride[kMaxDims];  // bytes, before padding; only for dims of the tile
  // The gather is the same `repeat_step` indices further along `repeat_dim`, only shifted in both memories: a
  // thread finds the coordinates of a word once and then repeats. `repeat_dim` is the last of the output's
  // run, one of the output's axes, or -1 where nothing repeats.
  int repeat_dim = -1;
  int repeat_step = 1;
  // A run's words are counted from the last multiple of `align` bytes before it: a word, or a sector where
  // repeats can keep to it. Then no sector inside a run is written by two warps.
  int align = 4;
  bool padded = false;  // see staged_padded()
  bool vectors = true;  // runs lie congruent to global memory modulo 16: they are stored whole, else by words
  int block = 1;        // see staged_block()
  int32_t block_shared = 0;  // bytes between the rows of a block, before padding
  int shared_bytes = 0;      // after padding, whatever the input's alignment
  bool fits = false;         // within the limits above
};

struct StagedTile {
  int32_t extent[kMaxDims];  // along each dim; 1 for dims left to the grid
  StagedLayout layout;
  double time = 0;      // that a byte takes, relative to other tiles
  std::string why_not;  // the rule that no tile can satisfy; empty if there is a tile
};

// Shared memory in bytes, and the SMs that have it.
struct FastMemory {
  int64_t per_block;
  int64_t per_sm;
  int64_t sm_count;
};

// A tile whose runs are long on both sides and whose bytes are near `bytes` and never beyond `bytes_most`.
// `memory` is what a device has for it. Precondition: normalised, a dense dim in the output, an input_step().
// With block > 1, the problem counts in blocks.
StagedTile choose_staged_tile(const Problem& problem, int block, int64_t bytes, int64_t bytes_most,
                              const FastMemory& memory);

// Words that one repeat of an output run can touch, counted from an aligned address: whole multiples of it.
int64_t staged_out_words(const Problem& problem, const StagedLayout& layout, const int32_t* tile);

// Bytes of fast memory that a tile takes: its data, and the table that says where its runs lie.
int64_t staged_shared_bytes(const StagedLayout& layout, const int32_t* tile);

// Address in fast memory after padding: every 128 bytes move one word (4 bytes, or an element if wider)
// along, which spreads power-of-two strides over the banks.
TX_HOST_DEVICE constexpr int32_t staged_padded(int32_t address, int element_bytes) {
  return address + (address >> 7) * (element_bytes > 4 ? element_bytes : 4);
}

// How many words of one bank as many lanes as there are banks ask for: 1 is free of conflicts.
int bank_conflicts(const int32_t* words, int banks);

inline constexpr int kStagedThreads = 256;
inline constexpr int kStagedRunEntryBytes = 16;  // of fast memory, to say where a run lies

}  // namespace tx
