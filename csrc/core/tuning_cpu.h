// The tuned numbers of the CPU planner, beside the measurements that chose them: first those of every
// machine, then, in CpuTuning, a value for each kind of machine. Limits that the run knows too are in
// tiles_cpu.h.
//
// How the measurements read: parts of the speed of a copy of as many bytes, "before -> with this". Problems
// are named, or drawn at random and then summed up by their geometric mean; in rows, by bytes of an element.
// Zen 4 and Zen 5 are two cores, Xeon 16, all with AVX-512 unless it says AVX2, and Zen 3 two that have AVX2
// alone; all their threads take part unless it says how many.
#pragma once

#include <array>
#include <cstdint>

#include "core/plan_cpu.h"
#include "core/tiles_cpu.h"

namespace tx {

struct TileShape {
  int64_t rows;
  int64_t cols;
};

// By log2 of the element's bytes: 1, 2, 4, 8 and 16.
template <class T>
using ByWidth = std::array<T, 5>;

// ---- Threads and what they take at a time.

// A second thread brings less than its start costs when there is less than this for each.
inline constexpr int64_t kBytesPerThread = 64 << 10;

// Of a copy.
inline constexpr int64_t kCopiedBytes = 64 << 10;

// Runs that lie together in the input are moved together, to as many places: the machine's prefetchers
// follow.
inline constexpr int64_t kRowsTileBytes = 64 << 10;

// What is staged or carried has at least so many rows for the threads' sake.
inline constexpr int64_t kLeastBandRows = 64;

// ---- Shapes of tiles.

// Direct ones, in turn. Two vectors down, but one where output rows crowd; 1 KiB across, but 2 bytes, which
// gain nothing by it.
//   one vector down -> two, Zen 5     400^2 and 1000^2, 4 bytes  .58 .69 -> .61 .78
//                                     450^2, 8 bytes             .64 -> .70
//                                     40 x 197 x 64 -> 0,2,1, 8  .74 -> .78
//                                     300 x 333, 16 bytes        .59 -> .65
//   where rows crowd, two -> one      511 x 513, 4 and 8 bytes   .47 .26 -> .55 .39
//                                     512^2, 16 bytes            .22 -> .68
//   a quarter as wide and one vector down in 1 byte, half as wide in 4 and wider -> so, 1, 4, 8 and 16 bytes
//     Zen 4, 48 of .06 to 6 MB        .496 .692 .791 .875 -> .523 .701 .800 .891
//     AVX2, 24                        .445 .590 .811 .888 -> .447 .617 .836 .909
//     Xeon, 22, 1 to 16 threads       .97 to 1.10 times as fast, 1 byte of a few tiles a thread .89 to 1.07
inline constexpr ByWidth<TileShape> kTileShape = {{{128, 1024}, {64, 256}, {64, 256}, {32, 128}, {32, 64}}};

// Most rows of a direct tile that is as high as its thread's share.
//   times as fast as kTileShape has it, 2, 4, 8 and 16 bytes, 72 of .1 to 12 MB (Xeon 36)
//     Zen 4, one thread               1.08 1.13 1.14 1.09
//     Zen 4, two                           1.10 1.11 1.12
//     Xeon, one, four, 16             1.08 1.06 1.03 .96, 1.06 1.04 1.04 1.01, 1.03 1.03 .97 .99
//   1 byte: Zen 4, one thread 1.10, several .95; Xeon .85 to 1.01
//   512, 1024 and 2048 rows, Zen 4, six of 4 to 13 MB, 4 and 8 bytes: .69 .71 .70, .79 .81 .82
inline constexpr int64_t kHighRows = 1024;

// Bytes of a column where crosses lie along diagonals. As high as two crosses (four times that .72 .78, .77
// .71), and four across (two, eight: 4 bytes .69 .63, 8 bytes .56 .74).
//   Zen 5, five whose output rows are multiples of 2 and 4 KiB apart, one thread; two, in blocks -> so
//     4 bytes   .56 .46 -> .73 .62   crosses in turn .60 .51
//     8 bytes   .57 .51 -> .76 .68                   .38 .36
//     2 bytes   level
inline constexpr int64_t kDiagonalBytes = 256;

// Staged: 256 to 512 bytes on each side; of bytes, long pieces of the input count more than long rows of the
// output.
inline constexpr ByWidth<TileShape> kStagedShape = {{{448, 256}, {224, 128}, {128, 128}, {64, 64}, {32, 32}}};

// But output rows of so many columns and more, and at most so many bytes, that adjoin are staged whole,
// together about half of L1, of pieces of input rows at most so long. As kStagedShape has them -> so, one
// thread, 100 columns of 1 and 2 bytes, 150 of 2, 100 and 250 of 4:
//   Zen 5                                   .62 .68 .33 .68 .64 -> .72 .79 .80 .69 .80
//   Xeon, and asked for as lines are written    .43 .47 .21 .51 .38 -> .52 .56 .58 .59 .48
//   AVX2 on Zen 5, eight each, 1 to 8 bytes     .43 .46 .61 .73 -> .43 .56 .67 .79
//   but three columns, 3000 x 3 x 1001 -> 0,2,1 in 4        .78 -> .42
// Zen 5, 16, 24, 32, 40 and 56 KiB, 16 of 64 to 200 bytes       .69 .72 .70 .69 .64
//        pieces of 256, 512 and 1024 bytes, 16 of 12 to 64      .56 .64 .60
//        rows of 600 to 1000 and of 1000 to 1500 bytes, 20 each     .51 .53 -> .67 .56
inline constexpr int64_t kAdjoiningCols = 8, kAdjoiningRowBytes = 1024;
inline constexpr int64_t kAdjoiningBytes = 24 << 10, kAdjoiningPieceBytes = 512;

// Of what is split and carried, bytes of an output row.
inline constexpr int64_t kSplitRowBytes = 16 << 10;

// In blocks, stored: as high as some blocks, and long, because its first block is read and its last written
// with nothing beside (Zen 5, 1024^2 to 4096^2). Of 1 to 8 bytes.
inline constexpr TileShape kStoredBlocksShape[] = {{256, 2048}, {128, 2048}, {1024, 1024}, {1024, 512}};

// Of a fused tile that merges or splits runs, bytes; and of one that does and is staged. Zen 4, one thread;
// two, 36 problems each
//   of .6 MB, 4, 8, 16, 32 and 64 KiB       .37 .42 .42 .44 .44; .36 .40 .41 .43 .43
//   of 25 MB, staged, 8, 16, 32 and 128     .33 .36 .38 .38; .40 .44 (16 and 128)
inline constexpr int64_t kRunsBytes = 32 << 10, kStagedRunsBytes = 128 << 10;

// A side that is joined with other dims is made so long.
inline constexpr int64_t kFusedSideBytes = 256;

// Of fused tiles, those of kStaged are wanted as kStagedShape says: with its inner dims whole, a side has
// less than kFusedSideBytes or that many elements, which the staging memory holds.
inline constexpr ByWidth<TileShape> kFusedShape = {{{256, 256}, {128, 128}, {64, 128}, {32, 64}, {32, 32}}};

// Of elements that are runs, of 3, and of up to 8, 16, 32, ... 1024 bytes.
//   Xeon, 28 of up to 64 bytes, with the tables above -> these   .52 -> .55
//   Zen 5, direct, 900 x 700 x 3 -> 1,0,2 in 2 bytes .55 -> .66, 500 x 400 x 3 in 4 .47 -> .63
inline constexpr TileShape kRunsShape[] = {{64, 128}, {64, 128}, {64, 128}, {8, 64}, {8, 64},
                                           {8, 16},   {8, 16},   {4, 8},    {4, 8}};
inline constexpr TileShape kStagedRunsShape[] = {{64, 128}, {64, 64}, {32, 64}, {32, 16}, {32, 16},
                                                 {16, 8},   {16, 4},  {16, 4},  {8, 4}};

// Elements that go one by one; and by a vector of each row.
inline constexpr ByWidth<TileShape> kScatteredShape = {{{64, 64}, {64, 64}, {64, 64}, {32, 32}, {16, 16}}};
inline constexpr TileShape kVectorsShape = {1024, 64};

// Bytes of rows that are gathered straight, in either memory; and of the columns of a packed tile: high ones
// read on.
//   256, 512 and 1024 bytes, every second, third and eighth of a row transposed, Zen 3, two threads, 1 MB; 20
//     2 bytes   .14 .14 .16; .08 .10 .11
inline constexpr int64_t kStridedBytes = 16 << 10, kPackedColumnBytes = 1 << 10;

// A tile that is thin because its problem is has this many bytes: they stay in L1 on both sides.
inline constexpr int64_t kThinTileBytes = 12 << 10;

// ---- Rows that meet in few sets of the caches.

// Rows so far apart, by whole multiples of this, meet in so few sets of the L1 cache, four of 1 to 4 bytes
// and two of 8, that a tile's lines wait for each other. Whole vectors of 16 bytes never won by heeding it.
inline constexpr int64_t kConflictingPitch[] = {1024, 1024, 1024, 2048};

// From so many bytes on, a problem is hardly in the L2 cache any more (Zen 5, 512^2 to 3072^2).
inline constexpr int64_t kBeyondL2Bytes = 1 << 20;

// Of what may be moved crosswise, lines in two sets of L1 side by side that are too many, of 1 and 2 bytes,
// and from where on.
//   Zen 5, one thread; two    2049 x 700, 1 byte                 .21 .17 -> .44 .34
//                             2049 x 1500, 2047 x 2000           .20 .23, .20 .23 -> .45 .37, .42 .37
//                             1025 x 900, 2 bytes                .22 .21 -> .50 .35
//                             1023 and 1026 x 2500, 2052 x 1300  .29 .25 .26, .30 .25 .27
//                                                                -> .42 .51 .42, .40 .49 .43
//   but next to multiples of 1 KiB, 1023 x 700 in 1              .35 -> .30
inline constexpr int64_t kCrowdedInBlocks[2] = {24, 12}, kCrowdedInBlocksBytes = 128 << 10;

// ---- Eighths of the last cache from which on, or up to which, something pays. Both sides count.

// Tiles ask for the lines of tiles to come, and those of whole lines leave the cache as late as
// kAskingTilesLeave. Neither the rows of a tile nor what it stores is in an order that the machine's
// prefetchers follow, and a line that is stored comes from the last cache, or from memory, before it can be
// written. Below, both sides being in the cores' caches, asking costs 4 bytes and wider up to a tenth.
//   Zen 4, 256 x 128 x 128 in 2 bytes, asking for neither side, the input, the output, both   .54 .75 .64 .89
//     into L1                                                                                  .66
//   Zen 4, eight of whole lines, 12 to 18 MB   .60 .64 .64 .73 .76 -> .66 .74 .77 .78 .78
//                                18 to 24 MB   .50 .45 .55 .56 .56 -> .61 .65 .77 .81 .78
//                                24 to 28 MB   .60 .62 .65 .60 .66 -> .63 .65 .78 .78 .79
//                                28 to 34 MB   1 and 2 bytes .64 .69 -> .58 .67
//   to rows at any pitch,        18 to 24 MB   .31 .37 .43 .46 .57 -> .31 .37 .50 .54 .60
inline constexpr ByWidth<double> kTilesAsk = {1.5, 1.5, 3, 3, 3};
inline constexpr double kAskingTilesLeave = 7;

// Likewise of dense matrices, in 1 to 4 bytes, where a line is several vectors.
inline constexpr double kBatchesAsk[] = {1.5, .25, .25};

// Staged tiles with shorter sides than kStagedSideBytes, fused ones too, leave the last cache here, which
// neighbours share.
//   Zen 5, stored -> streamed   40 x 41 x 39 x 40 reversed, 4 bytes            .24 -> .46
//                               299 x 251 x 203, 1 byte                        .14 -> .36
//                               200 x 150 x 200, 2 bytes                       .20 -> .43
//                               20^5, 4 bytes; 18^5, 8                         .58 .35 -> .68 .54
//                               5 x 9 x 7 x 11 x 3 x 13 x 9 x 15, 1 byte; AVX2 .31 .27 -> .50 .59
//   but at three eighths        33 x 35 x 37 x 39, 4 bytes                     .43 -> .35
inline constexpr int64_t kStagedSideBytes = 1024;
inline constexpr int kShortSidesLeave = 5;

// Where cores do not move lines, staged elements of so many bytes are moved from register to output as long
// as the last cache has room, whatever the sides: staging them takes longer than streaming whole tiles.
//   Zen 4, 649 permutations, 4, 8 and 16 bytes
//     a third to half of the cache, streamed -> stored      .27 .28 .32 -> .46 .49 .58
//     up to three quarters                                  .35 .39 .43 -> .40 .45 .55
//   AVX2, 347 of both                                       .32 .36 .38 -> .43 .46 .53
//   but rows that meet: 16 x 12 x 8 x 14 x 16 x 8 reversed, 4 bytes   .35 -> .09
inline constexpr int64_t kWideStaged = 4;
inline constexpr int kWideStagedLeave = 6;

// ---- Streaming stores straight from registers.

// To rows at any distance; but bytes, where vectors are less than lines and the last cache is far, to rows at
// most so many bytes apart.
//   Xeon, 16 threads; 4, 8192^2, 8000^2, 4096^2 in 1 byte    staged .54 .48, in blocks .66 .62
//   Zen 5, not in blocks, 8192^2 in 1 byte                   .61 -> .70
//   AVX2 on Zen 4, 8192^2 in 1 byte                          .29 -> .50
//     but 2048^2 and 4096^2 in 8 bytes                       .82 .72 -> .70 .61
//   Zen 3, eight of 32 to 90 MB in 8 bytes, one thread; two  .53; .54 -> .79; .81
//   Xeon, AVX2, six in 8, four threads; 16                   .49; .59 -> .91; .93
inline constexpr int64_t kBytesPitch = 5 << 10;

// Few rows, of a vector lane or more, grow side by side at any distance.
inline constexpr int64_t kStreamedFew = 16;
inline constexpr int64_t kLaneBytes = 16;

// Short rows are streamed whole, as long columns as make so many bytes, in tiles and in blocks: the machine's
// prefetchers follow those. So are long parts of few rows.
//   16 KiB -> so, in blocks, of 128 to 512 bytes a row
//     Zen 5, two threads; one, 2 bytes (three)    .59, .38 -> .83, .74
//            8 bytes (three)                      .78, .60 -> .89, .88
//            16 bytes (two)                       .70, .52 -> .95, .89
//            AVX2, 2 bytes (three)                .55, .35 -> .88, .79
//     Xeon, 16, 4 and one, 2 bytes (three)        .82 .65 .66 -> .96 .87 .91
//   in tiles, Zen 5, 4 bytes (two)                .78, .63 -> .88, .77
//   few rows, 1000000 x 16 in 2 bytes; 500000 x 32 in 8
//     Zen 5, two threads                          .89; .90 -> .97; 1.01
//     Xeon, 16 and 4                              .93 .80; .87 .66 -> .88 .74; .86 .68
inline constexpr int64_t kStreamedRowBytes = 512;
inline constexpr int64_t kStreamedTileBytes = 128 << 10, kStreamedBlocksBytes = 1 << 20;

// ---- Kinds of machines.

// A last cache that is larger than kNearCacheBytes is so because more cores share it, and further away: it
// counts as kFarCacheBytes, or as three quarters of the second caches of the cores that take part, if that is
// more.
//   Xeon of 300 MiB, 2 and 6 threads, as 32 MiB -> as 8   1472^2 in 4 bytes            .13 -> .57
//                                                         900^2 in 8, 3000^2 in 1      .12 .06 -> .49 .34
//                                                         3 x 400000 in 4              .52 -> .79
//                                                         20 x 256 x 256 in 4          .32 -> .71
//   five of whole lines, as 8 MiB -> so
//     4 to 8 MB, 16 threads    .82 .77 1.01 1.08 .99 -> 1.18 1.23 1.70 1.78 1.59
//                8             .70 .69 .87 1.06 1.03 -> .92 .94 1.15 1.62 1.42
//     8 to 14 MB, 16 threads   .90 .83 .97 .90 1.02 -> 1.14 1.61 1.95 1.24 1.92
//                 8            .74 .73 .87 .89 .94 -> .82 .79 .80 .83 .99
//     copies of 6 and 10 MB there are 2.0 and 2.7, 2.0 and 1.0 times as fast
//   as all of their second caches, rows at any pitch, 14 to 20 MB, 16 threads, 8 bytes   .77 -> .70
inline constexpr int64_t kNearCacheBytes = 32 << 20, kFarCacheBytes = 8 << 20;

// Instructions for each byte of a piece of several runs, up to which it is moved as such. In tiles, or staged
// -> so, Zen 4, one thread, 500 problems of 1 to 6 MB drawn at random, by instructions, times as fast
//   1 byte    to .13 4.0    to .16 3.2    to .20 4.5    to .25 3.3    to .30 1.1    to .40 .7
//   2 bytes   to .10 3.5    to .13 2.9    to .16 1.6    to .20 1.0    to .25 1.1    to .30 .4
//   4         to .08 3.3    to .10 2.0    to .13 1.3    to .16  .9    to .20 1.0    to .25 .6
//   8         to .08 1.2    to .10 1.6    to .13 1.2    to .16  .6    to .20  .4
inline constexpr ByWidth<double> kMostInstructions = {.25, .15, .11, .1, .1};

// Bytes of pieces, by what they are of: matrices of few columns, which tiles split or merge in registers, and
// else elements of one and two bytes, and of more.
struct PieceBytes {
  int64_t narrow;
  int64_t up_to_two;
  int64_t wider;
};

// What differs by machine.
struct CpuTuning {
  bool near_cache;   // the last cache is at most kNearCacheBytes
  bool moves_lines;  // a core moves a line at once, and not in halves
  // Eighths of the last cache up to which direct tiles are moved crosswise, by whether they write whole
  // lines, or rows would conflict; 0 if never.
  double crossed_until[2];
  bool asks_into_l1;  // what streams asks for its input into L1, and not into L2

  // Sides shorter than this are joined with other dims.
  ByWidth<int64_t> short_side_bytes;
  // Rows of either side conflict where they are multiples of so many times kConflictingPitch apart.
  int64_t conflicting_pitches;
  // Batches of matrices of up to so many bytes move straight to the output whatever is beyond them: staging
  // costs some instructions a tile, which a matrix must be worth.
  int64_t tiny_matrix_bytes;
  // Up to which pieces are permuted in registers, which takes permutations that grow with the square of their
  // bytes. In tiles and so:
  //   16 x 64 in 1 byte, 8 x 64 in 2, of up to 4 MB; of 80
  //     Zen 5, one thread                .69 .70; .82 .71 -> .47 .47; .84 .89
  //     Xeon, four                       .54 .54          -> .25 .26
  //   4, 8 and 16 bytes, one thread; two or four
  //     Zen 5, 769 to 832 bytes, 5 MB    .34 .49 .59, .33 .47 .59 -> .52 .54 .55, .49 .51 .55
  //                              80 MB   .44 .52 .44, .65 .66 .67 -> .62 .77 .74, .80 .80 .89
  //            833 to 896 bytes, 5 MB    .50 .46 .64, .49 .47 .61 -> .46 .47 .53, .45 .45 .49
  //                              80 MB   .50 .61 .73, .67 .78 .96 -> .75 .83 .77, .85 .84 .89
  //     Xeon, 769 to 1024 bytes, 80 MB   .39 .46 .61, .40 .38 .50 -> .51 .47 .58, .57 .53 .61
  //   1, 2, 4 and 8 bytes, one thread
  //     Zen 4, 513 to 640 bytes, 5 MB    .21 .26 .39 .48 -> .53 .51 .53 .53
  //                              80 MB   .45 .54 .63 .66 -> .54 .61 .66 .65
  //            641 to 768 bytes, 5 MB    .24 .26 .36 .54 -> .43 .44 .43 .43
  //                              80 MB   .50 .50 .65 .66 -> .46 .49 .53 .54
  //            897 to 1024 bytes, 5 MB   .30 .30 .38 .53 -> .34 .33 .38 .47
  //     of two to seven columns or rows, 1 and 4 bytes, 5 MB; 80
  //            385 to 512 bytes          .35 .33; .65 .54 -> .64 .65; .57 .71
  //            513 to 640                .39 .41; .61 .63 -> .51 .52; .56 .53
  //            641 to 768                .43 .46; .66 .67 -> .43 .43; .49 .53
  PieceBytes stored_pieces;
  PieceBytes streamed_pieces;
  // Pieces of the input so long are not asked for by what is staged: the machine's prefetchers follow them.
  int64_t followed_bytes;

  // Eighths of the last cache from which on streaming stores pay, of:
  int runs_leave;                   // copies, runs and pieces
  int narrow_lines_leave;           // what is split or merged in registers, of whole lines
  int narrow_staged_leave;          // likewise, staged: registers are as good as a copy, and staging is not
  ByWidth<double> tiles_leave;      // direct tiles that ask for nothing
  ByWidth<double> staged_leave;     // staged tiles of long sides
  ByWidth<double> conflicts_leave;  // likewise where rows conflict: the cores' own caches are short of sets
  int meeting_rows_leave;           // staged tiles whose rows meet
  ByWidth<double> carried_from;     // tiles at any pitch

  // Carried are output rows of so many bytes; in tiles, or blocks, of so many rows.
  ByWidth<int64_t> carried_row_bytes;
  ByWidth<int64_t> carried_rows;
  ByWidth<int64_t> carried_block_rows;

  ByWidth<TileShape> direct;           // in turn, unless as high as a thread's share
  ByWidth<TileShape> crossed;          // crosswise, likewise
  ByWidth<TileShape> crowded;          // the same where output rows crowd
  ByWidth<TileShape> streamed;         // high and narrow tiles read on from where they were
  ByWidth<TileShape> streamed_blocks;  // in blocks
};

// A far last cache, that many cores share: Xeon. Each core moves a line at once.
inline constexpr CpuTuning kFarCache = {
    .near_cache = false,
    .moves_lines = true,
    // 14 of whole lines, in turn -> crosswise: one thread .68 .72 .87 .91 .93 -> .60 .70 .83 .89 .85, four
    // .73 .87 .91 1.01 1.01 -> .71 .82 .88 1.00 .94.
    .crossed_until = {},
    .asks_into_l1 = false,

    // 8^8 reversed, 4 bytes                                  .08 -> .42
    // 5^9 reversed, 1 byte; 4                                .03 .13 -> .19 .53
    // 5 x 9 x 7 x 11 x 3 x 13 x 9 x 15, 1 byte; 4            .09 .32 -> .21 .49
    // 34 problems with sides of 64 bytes and more, 64 -> as Zen 4, 2 threads; 6
    //   4 bytes .457 .412 -> .469 .426, 8 bytes .514 .445 -> .546 .473, 16 bytes .587 .623 -> .567 .584
    .short_side_bytes = {128, 128, 128, 256, 64},
    .conflicting_pitches = 1,
    .tiny_matrix_bytes = 256,
    .stored_pieces = {768, 1024, 1024},
    .streamed_pieces = {768, 1024, 1024},
    // Asked for, and not, 16 threads; 4: 8191 x 8193 in 1 byte .31 .34, .49 .40; 8192^2 in 1 .48 .39, .57
    // .45; 8^8 reversed in 4 .48 .39, .54 .48; but 70 x 205 x 307 reversed in 2 .35 .43, .33 .32. Shorter
    // pieces were not measured.
    .followed_bytes = 256,

    // 5 MB: copies of 6 to 8 MB .64 -> 1.03, 2 x 1024 x 16 x 64 -> 0,2,1,3 in 2 bytes .35 -> .83, 3 x 400000
    // in 4 .52 -> 1.00; but 2.5 MB: 5 x 200000 in 2 .88 -> .50.
    .runs_leave = 5,
    .narrow_lines_leave = 5,
    .narrow_staged_leave = 5,
    .tiles_leave = {5.5, 6, 6, 6, 6},
    .staged_leave = {5.5, 6, 6, 6, 6},
    // 2048^2 in 2 bytes .40 -> .61, 1536^2 in 4 .49 -> .73.
    .conflicts_leave = {4, 4, 4, 4, 4},
    .meeting_rows_leave = 4,
    .carried_from = {5, 4, 5, 6, 6},

    .carried_row_bytes = {1024, 1536, 1024, 1024, 1024},
    // 256 -> so, 16 threads; 4: 8191 x 8193 in 4 bytes .66 .57 -> .70 .65, in 8 .65 .67 -> .84 .80, in 16 .81
    // .69 -> .84 .83.
    .carried_rows = {512, 256, 512, 1024, 1024},
    .carried_block_rows = {1024, 1024, 1024, 1024, 1024},

    // Not in bands, as kNearCache has them: 56 a width, 2 to 16 bytes, as high as shares, and in bands, 16
    // threads .65 .69 .71 .81, .63 .71 .74 .80; 4 .48 .56 .59 .65, .48 .54 .61 .67.
    .direct = kTileShape,
    .crossed = {},
    // 2 bytes with twice the rows, 16 threads: .9 times as fast.
    .crowded = {{{128, 1024}, {64, 512}, {16, 512}, {16, 512}, {8, 512}}},
    // 64 x 64 -> so, 16 threads; 4: 8192^2 in 8 bytes .43 .31 -> .61 .56, in 16 .44 .42 -> .65 .61, in 4 .52
    // .40 -> .74 .71; 8000^2 in 8 .80 .82 -> .90 .97.
    .streamed = {{{64, 64}, {64, 64}, {512, 32}, {512, 32}, {512, 32}}},
    // Of 256 x 2048, 512 x 1024, 256 x 1024, and 1024 x 512
    //   1 byte, five, 16 threads; 4        .74 .79 .74 .78, .64 .69 .63 .69
    //   2 bytes, six, of 128 x 2048 first  .80 .79 .82 .78, .72 .73 .74 .74
    //   4 bytes, six whose rows conflict   - .79 .81 .77, - .78 .74 .80
    .streamed_blocks = {{{512, 1024}, {256, 1024}, {1024, 512}}},
};

// Likewise where cores move a line in halves, or vectors are smaller: AVX2.
inline constexpr CpuTuning kFarCacheHalves = [] {
  CpuTuning tuning = kFarCache;
  tuning.moves_lines = false;
  tuning.short_side_bytes = {128, 128, 128, 256, 256};
  return tuning;
}();

// A near last cache, and cores that move a line at once: Zen 5. Two of them and more; a round trip of a line
// between two cores takes from 80 to 420 ns, as the host places them.
inline constexpr CpuTuning kNearCache = {
    .near_cache = true,
    .moves_lines = true,
    // Lines side by side follow each other at once in every other order, and as many were fetched in vain, or
    // late. In turn -> crosswise, one thread; two:
    //   30 of whole lines and .1 to 12 MB
    //     one thread              .61 .58 .59 .55 .62 -> .63 .72 .76 .70 .74
    //     two                     .69 .58 .60 .59 .66 -> .71 .71 .75 .72 .75
    //   30 at any pitch, to 4 MB
    //     one thread              .44 .51 .48 .54 .59 -> .44 .55 .57 .57 .63
    //     two                     .48 .49 .53 .52 .57 -> .49 .55 .59 .53 .58
    //   14 of 15 to 18 MB, 2 to 16 bytes, one thread             .66 .73 .77 .74 -> .59 .62 .76 .65
    //   at any pitch, 4 to 7 MB, one thread                      .56 .68 .79 .80 .84 -> .54 .65 .70 .75 .75
    //                            two                             .55 .63 .72 .72 .76 -> .54 .62 .70 .69 .69
    //   six of 5 to 12 MB whose input rows conflict, 4 and 8 bytes, in blocks -> so .57 .52 -> .71 .64
    //   the four in other orders, by rows, columns, around, and so, 4 bytes      .54 .55 .61 .72
    //   of 2 x 4, 4 x 2, 4 x 4 tiles and so                                      .66 .66 .71 .73
    .crossed_until = {1, 3},
    .asks_into_l1 = true,

    // 8^8 reversed, 4 bytes                                  .08 -> .42
    // 5^9 reversed, 1 byte; 4                                .01 .02 -> .30 .45
    // 5 x 9 x 7 x 11 x 3 x 13 x 9 x 15, 1 byte; 4            .03 .28 -> .27 .45
    // 48 of five to eight dims, 16 bytes, with 64, 128 and 256, of 1 to 6 MB .471 .542 .477, larger .502 .592
    // .613
    .short_side_bytes = {128, 128, 128, 256, 256},
    // With others a low tile's lines find room. In blocks -> in bands: six next to odd multiples of 3 KB in 4
    // bytes .51 -> .58, five of 6 KB in 8 .57 -> .72, 1000 x 1536 in 2 .51 -> .59.
    .conflicting_pitches = 2,
    .tiny_matrix_bytes = 256,
    .stored_pieces = {768, 1024, 832},
    .streamed_pieces = {768, 1024, 832},
    // In pieces of 256 bytes and more, not asked for -> asked for, 1 byte: 8192^2 .50 -> .60, 7001 x 9001 .57
    // -> .68.
    .followed_bytes = 4096,

    // 38 MB: 64 x 3 x 224 x 224 -> 0,2,3,1 in 2 bytes .74 -> .99, a copy .90 -> 1.03.
    .runs_leave = 9,
    .narrow_lines_leave = 9,
    // 64 x 225 x 225 x 3 -> 0,3,1,2 in 2 bytes, 39 MB, streamed .75, stored .87.
    .narrow_staged_leave = 11,
    // 1 to 4 bytes, 1800^2 to 4200^2; 3264^2 in 1 .36 -> .65.
    .tiles_leave = {5.5, 6, 6, 6, 6},
    .staged_leave = {5.5, 6, 6, 6, 6},
    // At 4 and 4.5 -> so, 21 MB, 1, 2 and 8 bytes, two, three and two at 380 ns; three each at 80
    //   .42 .35 .31 -> .55 .48 .52; .28 .27 .26 -> .30 .26 .48
    .conflicts_leave = {5.5, 6, 4, 6, 4},
    // 8^7 reversed in 4 bytes .21 -> .46, in 8 .32 -> .70. From 3 on, seven of 12 to 16 MB in 1 and 4 bytes
    // .22 .33 -> .19 .26.
    .meeting_rows_leave = 4,
    .carried_from = {5, 4, 5, 6, 6},

    // 49 x 775 x 519 -> 0,2,1 in 1 byte, staged -> carried, .50 -> .72.
    .carried_row_bytes = {512, 1536, 1024, 1024, 1024},
    // 256 -> so: 8191 x 8193 and 7001 x 9001 in 8 bytes .77 .77 -> .81 .81, 5001 x 4003 in 4 and in 8 .75 .75
    // -> .85 .83; but 8191 x 8193 in 4 .78 -> .73, with 512 in 2 .70 -> .67, and with 1024, if pages are
    // small, in 16 .85 -> .81. Four in 1 byte with 256, 512 and 1024 .67 .71 .71.
    .carried_rows = {512, 256, 512, 512, 512},
    .carried_block_rows = {1024, 1024, 1024, 1024, 1024},

    // Bands across, but for bytes. Where lines take long from core to core, a thread that comes to the end of
    // its share once a column makes the other wait for what its prefetchers took there. As high as shares ->
    // in bands, 2 to 16 bytes:
    //   32 of .15 to 18 MB, cores 380 ns apart     .45 .43 .43 .53 -> .60 .57 .57 .62
    //   48 of .15 to 25 MB, at 90 ns               .60 .58 .60 .65 -> .62 .60 .60 .64
    // In turn, one thread as high as its share, two of 32, 16 and 16 rows -> so, 4 to 16 bytes:
    //   14 at any pitch of 4 to 12 MB, one thread      .71 .71 .75 -> .75 .78 .80
    //                                  two             .67 .73 .75 -> .70 .76 .75
    //   12 next to multiples of 1 KiB, one             .64 .70 .68 -> .80 .81 .84
    //                                  two             .73 .70 .79 -> .78 .73 .81
    .direct = {{{128, 1024}, {64, 4096}, {64, 4096}, {64, 4096}, {64, 4096}}},
    // As high as in turn, 12 of whole lines and 4 to 12 MB, two threads, 8 and 16 bytes .82 .82 -> .78 .76.
    .crossed = {{{128, 1024}, {64, 4096}, {64, 4096}, {16, 4096}, {16, 4096}}},
    // With twice the rows in 2 and 8 bytes -> so: eight in 8, one thread; two, .44 .40 -> .55 .52, 1024 x 500
    // in 2 .44 -> .53.
    .crowded = {{{128, 1024}, {32, 512}, {16, 512}, {8, 512}, {8, 512}}},
    // 64 columns of 32 rows -> so: 4096^2 in 8 bytes .81 -> .86, in 16 .81 -> .89; but 8000^2 in 4 .87 ->
    // .79.
    .streamed = {{{64, 64}, {64, 64}, {64, 64}, {512, 32}, {512, 32}}},
    // As kFarCache has them -> so, 8192^2, 8000^2 and 6144^2: 1 byte .64 -> .72, 2 bytes .72 -> .77, 8192^2
    // and 6144^2 in 4 .71 -> .77; one thread, the first two, .58 .76 -> .66 .81.
    .streamed_blocks = {{{1024, 1024}, {1024, 1024}, {512, 1024}, {1024, 512}, {1024, 512}}},
};

// One of them alone leaves the cache sooner: what is stored past some eighths of it is what was fetched in
// vain. With two it depends: 14 of whole lines and 12 to 30 MB in 2 and 4 bytes .60 .60 -> .54 .54 at 90 ns,
// 12 of 8 to 32 MB .58 .69 -> .65 .72 at 400.
inline constexpr CpuTuning kNearCacheAlone = [] {
  CpuTuning tuning = kNearCache;
  // 12 at any pitch, 2 to 4 MB, crosswise -> in turn .55 .64 .71 .73 .70 -> .54 .64 .74 .78 .76, but 16 of 1
  // to 2 MB .46 .54 .56 .61 .66 -> .41 .51 .51 .61 .65.
  tuning.crossed_until[0] = .5;
  // 1000000 x 3 and 3 x 1000000 in 4 bytes .55 .52 -> .88 .77, 1800000 x 3 in 2 .67 -> .76; but 600000 x 3 in
  // 4 .79 -> .67.
  tuning.narrow_lines_leave = 5;
  // Of whole lines, 12 of 8 to 32 MB     .68 .61 .65 .71 .74 -> .73 .78 .76 .80 .79
  //                 14 of 12 to 30 MB    .37 .40 .55 .60 .60 -> .60 .67 .66 .73 .71
  tuning.tiles_leave = {3, 3.5, 4, 3.5, 4};
  // As tiles leave it -> so, nine of 14 to 21 MB in 8 bytes .39 -> .50; but two each of 21 to 25 MB in 1 and
  // 2 .49 .46 -> .23 .23.
  tuning.conflicts_leave = {3, 3.5, 4, 5.5, 4};
  // 15 of 12 to 16 MB, 1 to 8 bytes .18 .15 .26 .24 -> .23 .31 .36 .35.
  tuning.meeting_rows_leave = 3;
  // 12 of 8 to 32 MB at any pitch        .44 .49 .57 .60 .69 -> .49 .55 .57 .68 .75
  tuning.carried_from = {2.5, 3, 3.5, 3.5, 4};
  return tuning;
}();

// A near last cache, and cores that move a line in halves, or smaller vectors, for which it does not make up:
// Zen 4, and AVX2.
inline constexpr CpuTuning kNearCacheHalves = {
    .near_cache = true,
    .moves_lines = false,
    .crossed_until = {},
    .asks_into_l1 = false,

    // 34 a width, with 64, 128 and 256, 1 to 16 bytes
    //   64    .313 .383 .361 .407 .564
    //   128   .320 .409 .414 .535 .590
    //   256   .331 .401 .415 .567 .667
    // So 300 x 8 x 128 x 8 -> 3,1,2,0 in 8 bytes .27 -> .74, 20^5 reversed in 4 .24 -> .40, 8^7 reversed in
    // 16 .34 -> .76.
    .short_side_bytes = {128, 128, 128, 256, 256},
    .conflicting_pitches = 1,
    // Staged -> so, 96 MB moved: 14 x 14 in 2, 4 and 8 bytes .39 .52 .40 -> .57 .70 .69, 21 x 20 in 2 and 4
    // .26 .42 -> .74 .56, 7 x 7 in 16 .27 -> .74, 33 x 33 in 1 .24 -> .50; but of 3 KB 14 x 14 in 16 .67 ->
    // .47, 56 x 56 in 1 .63 -> .70.
    .tiny_matrix_bytes = 2048,
    .stored_pieces = {640, 1024, 640},
    .streamed_pieces = {512, 640, 640},
    .followed_bytes = 4096,

    .runs_leave = 9,
    // At 9 -> so, Zen 3, 12 a width of 32 to 36 MB, 1 to 8 bytes .70 .74 .84 1.04 -> .72 .80 .87 1.14; but
    // from 6 on, of 24 to 28, .63 .81 .81 .78 -> .62 .77 .78 .77.
    .narrow_lines_leave = 8,
    .narrow_staged_leave = 11,
    // While other guests use the cache, too: 1088 x 1984 and 1472^2 in 4 bytes .34 .32 -> .72 .77, 1920 x
    // 1728 and 256 x 128 x 128 in 2 .23 .27 -> .48 .44, 3008^2 in 1 .31 -> .60; AVX2, 1472^2, 4000 x 400 and
    // 20 x 256 x 256 in 4 .28 .27 .42 -> .60 .56 .56, 4096 x 1000 in 2 .24 -> .37, 3000^2 in 1 .22 -> .34,
    // but 2300^2 .28 -> .24 at a quarter, 900^2 in 8 .49 -> .42. While they do not, lines that are stored
    // within it are written at twice the speed of streaming, up to half of it; streamed -> so:
    //   at a quarter, 1600^2 in 2 bytes, 1200^2 and 100 x 128 x 128 in 4   .31 .31 .31 -> .64 .68 .71
    //   three eighths to a half, 150, 1 to 4 bytes                         .40 .44 .46 -> .47 .51 .55
    //     AVX2, 241                                                        .31 .37 .38 -> .38 .45 .56
    //   up to five eighths, 109                                            .43 .46 .49 -> .39 .41 .43
    .tiles_leave = {4.25, 4.25, 4.25, 6, 6},
    .staged_leave = {4.25, 4.25, 4.25, 6, 6},
    // AVX2, 2048^2 in 2 bytes .26 -> .41, 1536^2 in 4 .41 -> .52.
    .conflicts_leave = {4, 4, 4, 4, 4},
    .meeting_rows_leave = 4,
    .carried_from = {5, 4, 5, 6, 6},

    .carried_row_bytes = {1024, 1536, 1024, 1024, 1024},
    // With 512 and 1024: six in 1 byte .62 .59, in 4 .71 .73, in 8 .80 .74, in 16 .86 .88; eight in 2, with
    // 256, 512 and 1024 .74 .75 .76. In blocks, three, with 512 and 1024, 1 byte .61 .67, 8 .74 .75.
    .carried_rows = {512, 1024, 1024, 512, 512},
    // Eight in 2 bytes, one thread; two, with 1024, and so .51; .74, .52; .77 (8191 x 8193 .47; .48,
    // .56; .56), with 256 .48; .72.
    .carried_block_rows = {1024, 512, 1024, 1024, 1024},

    .direct = kTileShape,
    .crossed = {},
    // With a quarter to an eighth of the columns, and half the rows of 2 and 8 bytes -> so, one thread; two,
    // five or six each: 2 bytes .49 .55 -> .57 .62, 8 bytes .46 .50 -> .62 .71, 16 bytes .61 .61 -> .64 .65.
    .crowded = kFarCache.crowded,
    // 2 bytes in blocks, 4 as kNearCache, 8 and 16 as kFarCache -> so: 2 bytes, six, .57 -> .74, 4, four, .68
    // -> .73, 8, four, .71 -> .82, 16, three, .65 -> .84 (8000^2 in 2 .70 -> .94, 3136^2 in 4 .75 -> .91,
    // 6400 x 4800 in 8 .63 -> .89; AVX2 .61 .60 -> .72 .68, with 1024 rows .71 .81 -> .71 .86). Half as high,
    // 8 and 16 bytes .77 .78, 4 (six) .66 for .67; half as wide, 2, 8 and 16 .71 .72 .85. With two tiles
    // abreast, 1024 and 2048 rows, 1 byte (five, in blocks .64) .80 .71, 2 (six) .85 .83, 4 (eight) .88 .91,
    // 8 .89 .91, 16 .93 .91.
    .streamed = {{{1024, 256}, {1024, 128}, {2048, 64}, {2048, 32}, {1024, 16}}},
    // As wide as four lines: 8192^2, 8000^2, 4096^2 and 6400 x 4800, 512 rows, 1024 and 2048: 1 byte .58 .62
    // .48, 2 bytes .71 .72 .58.
    .streamed_blocks = {{{1024, 256}, {1024, 128}, {1024, 64}}},
};

// The same where one thread has the cache for itself.
inline constexpr CpuTuning kNearCacheHalvesAlone = [] {
  CpuTuning tuning = kNearCacheHalves;
  // 40 each with a side of 2 to 40 elements, 1 to 8 bytes, of 20, 28 and 34 MB .65 .52 .50 -> .70 .67 .67;
  // what is staged of them as early .58 .50 .47; AVX2, of 20 and 28 MB .61 .51 -> .60 .53.
  tuning.narrow_lines_leave = 4;
  // Stored -> carried, eight a width at any pitch, of 16 and of 20 MB
  //   .39 .50 .62 .55 .67, .38 .40 .52 .54 .54 -> .51 .61 .65 .75 .75, .58 .63 .75 .80 .83
  // but of 12 MB .51 .58 .69 .68 .78 -> .50 .61 .63 .67 .70.
  tuning.carried_from = {3.25, 3.25, 4, 3.5, 3.5};
  // As several have them -> so, 24 each of 16 to 80 MB at any pitch, 1, 4 and 8 bytes, in huge pages .69 .91
  // 1.06 -> .71 .97 1.11, of 4 KB .63 .90 .99 -> .67 .94 1.05; 2 and 16 bytes with twice the rows the same.
  tuning.carried_rows = {1024, 1024, 2048, 1024, 512};
  return tuning;
}();

// Likewise where vectors are smaller. Whole lines, in blocks above all, are streamed as soon as the last
// cache has hardly room, and carried no sooner. Later -> so, Zen 3, eight to ten a width, one thread; two:
//   output rows multiples of 2 KiB apart, 1 to 8 bytes
//     14.7 to 16.7 MB      .33 .37 .37 .42; .27 .31 .45 .39 -> .65 .66 .63 .77; .49 .52 .47 .42
//     16.8 to 24           .44 .40 .57 .47; .39 .32 .44 .45 -> .70 .82 1.02 1.17; .65 .68 .78 .71
//     but 12.6 to 14.5, 1 to 4 bytes    .26 .39 .46; .31 .41 .43 -> .32 .41 .45; .27 .31 .33
//   others
//     16.8 to 17.8 MB, 2 and 4 bytes    .60 .62; .45 .43 -> .72 .81; .50 .54
//     16.8 to 20, 8 and 16              .65 .76; .52 .61 -> 1.53 1.33; .97 .86
//     12.6 to 14.7, 8 and 16            .55 .52; .63 .66 -> 1.16 .98; .75 .69
//     14.7 to 16.7, 4                   .59; .53 -> .87; .47
//     but 10 to 12.5, 8 and 16          .78 .83; .68 .84 -> .66 .62; .56 .46
//         14.7 to 16.7, 1 and 2         .36 .43; .38 .54 -> .51 .64; .32 .39
//         16.8 to 17.8, 1               .67; .53 -> .51; .40
constexpr CpuTuning in_parts(CpuTuning tuning) {
  tuning.conflicts_leave = {3.5, 3.5, 3.5, 3.5, 3.5};
  tuning.tiles_leave = {4.25, 4, 3.5, 3, 3};
  tuning.streamed_blocks[3] = {1024, 64};
  tuning.streamed_blocks[4] = {512, 64};
  // 8191 x 8193, with 1024, 2048 and so .42 .42 .52, .45 .52 .54 -> .47 .56 .55, two threads .38 .55 .56, .45
  // .60 .61 -> .47 .64 .62; 8 and 16 bytes at any pitch, twelve each, with 1024 .82 .86, .86 .96 -> .85 .96,
  // .86 1.00.
  tuning.carried_block_rows = {4096, 4096, 4096, 512, 512};
  return tuning;
}
inline constexpr CpuTuning kNearCacheParts = in_parts(kNearCacheHalves);
inline constexpr CpuTuning kNearCachePartsAlone = in_parts(kNearCacheHalvesAlone);

// From so many bytes on L1 has room for what is asked for into it beside what is staged.
inline constexpr int64_t kRoomyL1Bytes = 48 << 10;

// Which of them a machine is, as far as can be told: a core does not move a line at once where vectors are
// smaller, nor where those of a line go in halves, as on a Zen 4 with AVX-512, which its L1 cache of 32 KiB
// gives away. (Zen 5 and Xeons since 2021 have 48. Portable on Zen 5, as kNearCache but not crossed -> so,
// one thread; two, 30 matrices and batches a width of .05 to 40 MB .24 .31 .38 .44 .35; .25 .29 .33 .38 .35
// -> .25 .32 .39 .42 .36; .26 .32 .33 .40 .36; crossed .22 .29 .27 .20 .15; .25 .33 .31 .23 .18.)
inline const CpuTuning& find_tuning(const CpuFacts& facts) {
  const bool halves = facts.line_vectors != 1 || facts.l1_bytes < kRoomyL1Bytes;
  if (facts.l3_bytes > kNearCacheBytes) return halves ? kFarCacheHalves : kFarCache;
  const bool alone = facts.threads <= 1;
  if (facts.line_vectors != 1) return alone ? kNearCachePartsAlone : kNearCacheParts;
  if (halves) return alone ? kNearCacheHalvesAlone : kNearCacheHalves;
  return alone ? kNearCacheAlone : kNearCache;
}

}  // namespace tx
