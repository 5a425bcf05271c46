// Chooses the CPU kernel, its tile, stores and threads: a pure function of the problem and of facts about the
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/plan.h"

namespace tx {

// What planning may know about the machine. Filled by tx::cpu::facts(), or by a test.
struct CpuFacts {
  int threads = 1;               // most threads a call may use
  const char* isa = "portable";  // name of the micro-kernels in use
  int line_vectors = 0;          // of theirs that make a line they write past the caches; 0: they write none
  bool carries_bytes = false;    // whether they put lines together of bytes, too
  int64_t piece_bytes[2] = {0, 0};  // up to which they permute pieces: elements of one byte, and of more
  int64_t l1_bytes = 48 << 10;      // first data cache, of a core
  int64_t l2_bytes = 1 << 20;       // second cache, of a core
  int64_t l3_bytes = 32 << 20;      // last cache, shared by all cores
};

// A plan depends on addresses only through their places in lines of so many bytes.
inline constexpr uint64_t kCpuAddressAlignment = 64;

Plan plan_cpu(const Problem& problem, const CpuFacts& facts);

// The rule that keeps `kernel` from running a normalised problem, with the value that breaks it; empty if
// none.
std::string why_not_cpu(Kernel kernel, const Problem& normalised);

// The plan with `kernel` in place of the planner's choice. Precondition: why_not_cpu() is empty.
Plan plan_cpu_forced(const Problem& problem, const CpuFacts& facts, Kernel kernel);

// Every kernel the CPU has.
const std::vector<Kernel>& kernels_cpu();

// A tile spans the last dim and at most one other, which is this function of the kernel and the problem; -1
// if none. For kTile and kStaged it is the dim that is contiguous in the input: a tile's rows. A fused tile
// spans plan.fused_cols last dims, and plan.fused_rows dims from this one on.
int tile_row_dim(Kernel kernel, const Problem& normalised);

// The dim that continues `row` in the input, which a fused tile's rows are numbered by too; -1 if none.
int next_row_dim(const Problem& normalised, int row);

// Runs of so many bytes at most are elements to tiles, where these would else be none.
inline constexpr int64_t kMostElementBytes = 1024;

// Most rows, and most columns, of a tile whose sides are several dims.
inline constexpr int64_t kMostFused = 1024;

// kPieces: how many of the last dims, but not all, make the largest piece: a permutation of at most
// kMostPieceBytes that is dense on both sides; 0 if none do.
int piece_dims(const Problem& normalised);
int64_t piece_bytes(const Problem& normalised);
inline constexpr int64_t kMostPieceBytes = 384;

// Pieces that a tile has, about: where they are gathered to be streamed, and else. Streamed 16, 4 and 1 KiB
// at a time, of a copy (Zen 5): 400000 x 3 x 5 -> 0,2,1 in 1 byte .65 .92 .92, in 4 .72 .93 .91, in 8 .75 .89
// .90, 300000 x 5 x 5 in 4 .65 .92 .96, 400000 x 3 x 3 x 3 -> 0,2,1,3 in 4 .66 .91 .77.
inline constexpr int64_t kStreamedPiecesBytes = 4 << 10, kPiecesBytes = 16 << 10;

// kRows: short runs that follow one another in the output, as plan.fused_cols = 2 says, are gathered about so
// many bytes at a time for each of so many rows at most, and streamed as whole lines.
inline constexpr int64_t kGatheredBytes = 1024, kGatheredRows = 64;

// Rows and columns of a whole tile.
int64_t tile_rows(const Plan& plan);
int64_t tile_cols(const Plan& plan);

// kTile: whether its micro-kernels can stream to the problem's rows, at any pitch; and most rows of a tile
// that does.
bool can_carry_rows(const Problem& normalised, const CpuFacts& facts);
inline constexpr int64_t kCarriedRows = 1024;

// Whether a plan's micro-kernels, of kTile that streams, can ask for lines of tiles to come into L1.
bool can_ask_into_l1(const Plan& plan, const CpuFacts& facts);

// The first of the last dims whose part in a tile is one piece of the output, without a gap: its first column
// dim, or a row dim before that. Rows that differ in those alone are one row to kStaged, of which a whole
// tile has so many bytes.
int first_adjoining_dim(const Plan& plan);
int64_t adjoining_bytes(const Plan& plan);

// kStaged writes an output row when it has at least this much of it: whole lines, enough for a DRAM page to
// be opened.
inline constexpr int64_t kStagedRunBytes = 256;

// What kStaged may keep of all rows of a tile, kept small enough for a thread's stack and its L2 cache.
inline constexpr int64_t kStagingBytes = 256 << 10;

// Bytes that kStaged keeps of one row between two writes, and what that takes of the staging memory.
int64_t staged_row_bytes(const Plan& plan);
int64_t staged_pitch(int64_t row_bytes);

}  // namespace tx
