// The tuned numbers of the CPU planner, beside the measurements that chose them. Limits that the run knows
// too are in plan_cpu.h.
#pragma once

#include <cstdint>

#include "core/plan_cpu.h"

namespace tx {

// A second thread brings less than its start costs when there is less than this for each.
inline constexpr int64_t kBytesPerThread = 64 << 10;

struct TileShape {
  int64_t rows;
  int64_t cols;
};

// Bytes of a side that is joined with other dims where it is shorter, by whether cores move lines and share a
// far cache, and log2 of the element's bytes; and of the sides that are made so. Of a copy, with one dim a
// side and with several (Zen 5; Xeon, both with AVX-512): 8^8 reversed, 4 bytes, .08 -> .42; 5^9 reversed, 1
// byte .01 -> .30; .03 -> .19, 4 bytes .02 -> .45; .13 -> .53; 5 x 9 x 7 x 11 x 3 x 13 x 9 x 15, 1 byte .03
// -> .27; .09 -> .21, 4 bytes .28 -> .45; .32 -> .49. Sides of 64 bytes and more (Zen 4 with AVX-512, 34
// problems a width, with 64, 128 and 256 in place of the table, geometric mean): 1 byte .313 .320 .331, 2
// bytes .383 .409 .401, 4 bytes .361 .414 .415, 8 bytes .407 .535 .567, 16 bytes .564 .590 .667; 300 x 8 x
// 128 x 8 -> 3,1,2,0, 8 bytes .27 -> .74, 20^5 reversed, 4 bytes .24 -> .40, 8^7 reversed, 16 bytes .34 ->
// .76. The same on a Xeon, with 64 and the first row, 2 threads; 6: 4 bytes .457 .469; .412 .426, 8 bytes
// .514 .546; .445 .473, 16 bytes .587 .567; .623 .584. Zen 5, 48 of five to eight dims, 16 bytes with 64, 128
// and 256, of 1 to 6 MB .471 .542 .477, larger .502 .592 .613.
inline constexpr int64_t kShortSideBytes[2][5] = {{128, 128, 128, 256, 256}, {128, 128, 128, 256, 64}};
inline constexpr int64_t kFusedSideBytes = 256;

// By log2 of the element's bytes. Measured on Zen 5, but for the columns of direct tiles: these have two
// vectors down (with one and so, of a copy: 400 x 400 in 4 bytes .58 -> .61, 1000^2 .69 -> .78; 450^2 in 8
// .64 -> .70, 40 x 197 x 64 -> 0,2,1 .74 -> .78; 300 x 333 in 16 .59 -> .65), but one where output rows crowd
// (511 x 513 in 4 bytes .47 -> .55, in 8 .26 -> .39, 512^2 in 16 .22 -> .68), and 1 KiB across but in 2
// bytes, which gain nothing by it (a quarter of that, and one vector down, in 1 byte, half of it in 4 and
// wider, and so: Zen 4, two threads, 48 matrices and batches of .06 to 6 MB drawn at random, 1, 4, 8 and 16
// bytes .496 .692 .791 .875 -> .523 .701 .800 .891; AVX2, 24, .445 .590 .811 .888 -> .447 .617 .836 .909; one
// thread .99 to 1.04 times as fast; Xeon, 22, 1 to 16 threads, .97 to 1.10 times, but 1 byte where 16 threads
// have a few tiles each .89 to 1.07). A staged tile has 256 to 512 bytes on each side too; of bytes, long
// pieces of the input count more than long rows of the output. A tile in blocks is as high as some of them,
// and long, because its first block is read and its last written with nothing beside (1024^2 to 4096^2); of
// what streams where cores move lines in halves, high and as wide as four lines (Zen 4, 8192^2, 8000^2,
// 4096^2 and 6400 x 4800, 512 rows, 1024 and 2048: 1 byte .58 .62 .48 of a copy, 2 bytes .71 .72 .58), high
// too where they move lines and share a near cache (Zen 5, low as where it is far and so, 8192^2, 8000^2 and
// 6144^2: 1 byte .64 -> .72, 2 bytes .72 -> .77, 8192^2 and 6144^2 in 4 .71 -> .77; one thread, the first
// two, .58 -> .66, .76 -> .81). By the rows of kStreamedShape.
inline constexpr TileShape kTileShape[] = {{128, 1024}, {64, 256}, {64, 256}, {32, 128}, {32, 64}};
// The same where cores move lines and share a near cache, unless as high as below: bands across, but for
// bytes. Where lines take long from core to core, as between two core complexes, a thread that comes to the
// end of its share once a column makes the other wait for what its prefetchers took there. Of a copy, Zen 5,
// two threads, matrices and batches drawn at random, as high as shares and so, 32 of .15 to 18 MB while a
// round trip between the cores took 380 ns, 2, 4, 8 and 16 bytes .45 .43 .43 .53 -> .60 .57 .57 .62; 48 of
// .15 to 25 MB at 90 ns .60 .58 .60 .65 -> .62 .60 .60 .64. One thread, 32, 2 bytes .57 -> .61. Not where the
// cache is far: Xeon, 56 a width, 16 threads; 4, .65 .69 .71 .81; .48 .56 .59 .65 and .63 .71 .74 .80; .48
// .54 .61 .67.
inline constexpr TileShape kBandShape[] = {{128, 1024}, {64, 4096}, {32, 4096}, {16, 4096}, {16, 4096}};
// Most rows where it is as high as its thread's share. Over the rows above, by 2, 4, 8 and 16 bytes, 72
// matrices and batches of .1 to 12 MB drawn at random: Zen 4, one thread 1.08 1.13 1.14 1.09, two 4 bytes and
// wider 1.10 1.11 1.12; 36, Xeon, one, four and 16 threads 1.08 1.06 1.03 .96, 1.06 1.04 1.04 1.01, 1.03 1.03
// .97 .99; 1 byte, one thread, Zen 4 1.10, several .95, Xeon .85 to 1.01. (Zen 4, six matrices of 4 to 13 MB,
// 512, 1024, 2048: 4 bytes .69 .71 .70, 8 bytes .79 .81 .82.)
inline constexpr int64_t kHighRows = 1024;
// Crowded: bytes as else, others with four to eight times as many columns, and of 2 and 8 bytes twice the
// rows, but not where cores move lines and share a near cache (there, with twice the rows and so, eight
// matrices in 8, .44 -> .55; .40 -> .52, 1024 x 500 in 2 .44 -> .53; Zen 4, one thread; two, five or six
// matrices each: 2 bytes .49 -> .57; .55 -> .62, 8 bytes .46 -> .62; .50 -> .71, 16 bytes .61 -> .64; .61
// -> .65, but 2 bytes on a Xeon with 16 threads .9).
inline constexpr TileShape kCrowdedShape[2][5] = {{{128, 1024}, {64, 512}, {16, 512}, {16, 512}, {8, 512}},
                                                  {{128, 1024}, {32, 512}, {16, 512}, {8, 512}, {8, 512}}};
// Bytes of a column where crosses lie along diagonals. Of a copy, in blocks and so (Zen 5, five matrices each
// whose output rows are multiples of 2 and 4 KiB apart; one thread; two): 4 bytes .56 .46 -> .73 .62, 8 bytes
// .57 .51 -> .76 .68; not diagonally .60 .51, .38 .36. As high as two crosses (four times that, .72 .78, .77
// .71), and four across (two, eight: 4 bytes .69 .63, 8 bytes .56 .74); 2 bytes are level.
inline constexpr int64_t kDiagonalBytes = 256;
inline constexpr TileShape kStagedShape[] = {{448, 256}, {224, 128}, {128, 128}, {64, 64}, {32, 32}};
inline constexpr TileShape kStoredBlocksShape[] = {{256, 2048}, {128, 2048}, {1024, 1024}, {1024, 512}};
inline constexpr TileShape kStreamedBlocksShape[3][3] = {{{256, 2048}, {128, 2048}, {64, 1024}},
                                                         {{1024, 1024}, {1024, 1024}, {512, 1024}},
                                                         {{1024, 256}, {1024, 128}, {1024, 64}}};
// Of what streams, where cores share a far cache, where one is near and cores move lines, and where they do
// not. High and narrow tiles read on from where they were, which the machine's prefetchers follow. Of a copy,
// 64 columns of 32 rows, in 4 bytes of 64, and so: Xeon with AVX-512, 16 threads; 4, 8192^2 in 4 bytes .52 ->
// .74; .40 -> .71, in 8 .43 -> .61; .31 -> .56, in 16 .44 -> .65; .42 -> .61, 8000^2 in 8 .80 -> .90; .82 ->
// .97; Zen 5, 4096^2 in 8 .81 -> .86, in 16 .81 -> .89, but 8000^2 in 4 .87 -> .79. Zen 4 with AVX-512, 2
// threads, 2 bytes in blocks, 4 as Zen 5, 8 and 16 as the Xeon, and so, geometric means of six, four, four
// and three problems: .57 -> .74, .68 -> .73, .71 -> .82, .65 -> .84 (8000^2 in 2 .70 -> .94, 3136^2 in 4 .75
// -> .91, 6400 x 4800 in 8 .63 -> .89; AVX2 .61 -> .72, .60 -> .68, with 1024 rows .71 -> .71, .81 -> .86).
// Half as high, 8 and 16 bytes .77 .78, 4 (six problems) .66 for .67; half as wide, 2, 8 and 16 .71 .72 .85.
// With two tiles abreast, 1024 and 2048 rows: 1 byte (five matrices, in blocks .64) .80 .71, 2 bytes (six)
// .85 .83, 4 bytes (eight) .88 .91, 8 bytes .89 .91, 16 bytes .93 .91.
inline constexpr TileShape kStreamedShape[3][5] = {
    {{64, 64}, {64, 64}, {512, 32}, {512, 32}, {512, 32}},
    {{64, 64}, {64, 64}, {64, 64}, {512, 32}, {512, 32}},
    {{1024, 256}, {1024, 128}, {2048, 64}, {2048, 32}, {1024, 16}}};
// Rows of tiles that carry, by the rows of kStreamedShape. 256 and so: Xeon, 16 threads; 4, 8191 x 8193
// in 4 bytes .66 -> .70; .57 -> .65, in 8 .65 -> .84; .67 -> .80, in 16 .81 -> .84; .69 -> .83; Zen 5, 8191 x
// 8193 in 8 .77 -> .81, 7001 x 9001 in 8 .77 -> .81, 5001 x 4003 in 4 .75 -> .85, in 8 .75 -> .83, but in 4
// 8191 x 8193 .78 -> .73, and with 1024, if pages are small, in 16 .85 -> .81; with 512, in 2 .70 -> .67;
// four in 1, with 256, 512 and 1024 .67 .71 .71. Zen 4 with AVX-512, eight matrices, with 256, 512 and 1024,
// 2 bytes .74 .75 .76; six, with 512 and 1024, 1 byte .62 .59, 4 bytes .71 .73, 8 bytes .80 .74, 16 bytes .86
// .88. In blocks kCarriedRows (three, with 512 and so, 1 byte .61 .67, 2 bytes .77 .77, 8 bytes .74 .75).
inline constexpr int64_t kCarriedShapeRows[3][5] = {{512, 256, 512, kCarriedRows, kCarriedRows},
                                                    {512, 256, 512, 512, 512},
                                                    {512, kCarriedRows, kCarriedRows, 512, 512}};
// What is staged or carried has at least so many rows for the threads' sake.
inline constexpr int64_t kLeastBandRows = 64;
// Of fused tiles, those of kStaged are wanted as kStagedShape says: with its inner dims whole, a side has
// less than kFusedSideBytes or that many elements, which the staging memory holds.
inline constexpr TileShape kFusedShape[] = {{256, 256}, {128, 128}, {64, 128}, {32, 64}, {32, 32}};
// Of elements that are runs, of 3, and of up to 8, 16, 32, ... 1024 bytes (Xeon with AVX-512 VBMI, 28
// problems of up to 64 bytes: .52 of a copy with the tables above, .55 with these); direct ones on Zen 5 (900
// x 700 x 3 -> 1,0,2 in 2 bytes .55 -> .66, 500 x 400 x 3 in 4 .47 -> .63).
inline constexpr TileShape kRunsShape[] = {{64, 128}, {64, 128}, {64, 128}, {8, 64}, {8, 64},
                                           {8, 16},   {8, 16},   {4, 8},    {4, 8}};
inline constexpr TileShape kStagedRunsShape[] = {{64, 128}, {64, 64}, {32, 64}, {32, 16}, {32, 16},
                                                 {16, 8},   {16, 4},  {16, 4},  {8, 4}};
inline constexpr TileShape kStridedShape[] = {{64, 64}, {64, 64}, {64, 64}, {32, 32}, {16, 16}};

// Of a copy, what a thread takes at a time.
inline constexpr int64_t kCopiedBytes = 64 << 10;

// Runs that lie together in the input are moved together, to as many places: the machine's prefetchers
// follow.
inline constexpr int64_t kRowsTileBytes = 64 << 10;

// A tile that is thin because its problem is has this many bytes: they stay in L1 on both sides.
inline constexpr int64_t kThinTileBytes = 12 << 10;

// A last cache that is larger than this is so because more cores share it, and further away: it counts as one
// that is smaller than most. Xeon of 300 MiB with AVX-512, 2 and 6 threads, of a copy when it counted as 32
// and as 8: 1472^2 in 4 bytes .13 -> .57, 900^2 in 8 .12 -> .49, 3000^2 in 1 .06 -> .34, 3 x 400000 in 4 .52
// -> .79, 20 x 256 x 256 in 4 .32 -> .71. Nothing was slower. Or as three quarters of the second caches of
// the cores that take part, if that is more. The same Xeon, five matrices and batches of whole lines a width,
// 1 to 16 bytes, as 8 and so, 16 threads; 8: of 4 to 8 MB .82 .77 1.01 1.08 .99; .70 .69 .87 1.06 1.03
// -> 1.18 1.23 1.70 1.78 1.59; .92 .94 1.15 1.62 1.42, of 8 to 14 MB .90 .83 .97 .90 1.02; .74 .73 .87 .89
// .94 -> 1.14 1.61 1.95 1.24 1.92; .82 .79 .80 .83 .99, copies of 6 and 10 MB 2.0 2.7; 2.0 1.0 times as fast.
// As all of them, to rows at any pitch, 14 to 20 MB, 16 threads, 8 bytes .77 -> .70.
inline constexpr int64_t kNearCacheBytes = 32 << 20, kFarCacheBytes = 8 << 20;

// Rows so far apart, by whole multiples of this, meet in so few sets of the L1 cache, four of 1 to 4 bytes
// and two of 8, that a tile's lines wait for each other. Whole vectors of 16 bytes never won by heeding it.
inline constexpr int64_t kConflictingPitch[] = {1024, 1024, 1024, 2048};

// From so many bytes on, a problem is hardly in the L2 cache any more (Zen 5, 512^2 to 3072^2).
inline constexpr int64_t kBeyondL2Bytes = 1 << 20;

// Tiles leave the last cache before they fill it: streaming stores pay from so many eighths of it on, by
// whether cores move lines (yes: Zen 5, 1 to 4 bytes, 1800^2 to 4200^2, 1 byte 3264^2 .36 -> .65; no: Zen 4
// with AVX2, 4 bytes 1472^2 .28 -> .60 of a copy, 4000 x 400 .27 -> .56, 20 x 256 x 256 .42 -> .56, 2 bytes
// 4096 x 1000 .24 -> .37, 1 byte 3000^2 .22 -> .34, but 2300^2 .28 -> .24 at a quarter, 8 bytes 900^2 .49 ->
// .42; with AVX-512, 4 bytes 1472^2 .32 -> .77, 1088 x 1984 .34 -> .72, 2 bytes 1920 x 1728 .23 -> .48, 256 x
// 128 x 128 .27 -> .44, 1 byte 3008^2 .31 -> .60) and log2 of the element's bytes. All that was while other
// guests of that Zen 4 used the cache, too. While they do not, lines that are stored within it are written at
// twice the speed of streaming, up to half of it: at a quarter, with AVX-512, 1600^2 in 2 bytes .31 -> .64,
// 1200^2 in 4 .31 -> .68, 100 x 128 x 128 in 4 .31 -> .71; 150 matrices and batches drawn at random, from
// three eighths to a half, streamed and so, 1, 2 and 4 bytes .40 .44 .46 -> .47 .51 .55 (AVX2, 241, .31 .37
// .38 -> .38 .45 .56), but 109 of up to five eighths .43 .46 .49 -> .39 .41 .43.
inline constexpr double kTilesLeave[2][5] = {{4.25, 4.25, 4.25, 6, 6}, {5.5, 6, 6, 6, 6}};
// From so many eighths on, tiles ask for the lines of tiles to come, and those of whole lines leave as late
// as this. Neither the rows of a tile nor what it stores is in an order that the machine's prefetchers
// follow, and a line that is stored comes from the last cache, or from memory, before it can be written: of a
// copy, Zen 4 with AVX-512, 256 x 128 x 128 in 2 bytes asking for neither, for the input's, the output's and
// both .54 .75 .64 .89 (one thread), into the L1 cache .66. Eight matrices and batches drawn at random, of
// whole lines, 1 to 16 bytes, before and so: of 12 to 18 MB .60 .64 .64 .73 .76 -> .66 .74 .77 .78 .78, 18 to
// 24 .50 .45 .55 .56 .56 -> .61 .65 .77 .81 .78, 24 to 28 .60 .62 .65 .60 .66 -> .63 .65 .78 .78 .79, but 28
// to 34, 1 and 2 bytes .64 .69 -> .58 .67; to rows at any pitch, 18 to 24 MB, .31 .37 .43 .46 .57 -> .31 .37
// .50 .54 .60. Below, both sides being in the cores' caches, asking costs 4 bytes and wider up to a tenth.
inline constexpr double kTilesAsk[5] = {1.5, 1.5, 3, 3, 3};
inline constexpr double kAskingTilesLeave = 7;
// Tiles are moved crosswise up to so many eighths of the last cache, by whether they write whole lines, or
// rows would conflict. Lines side by side follow each other at once in every other order, and as many were
// fetched in vain, or late. Of a copy, in turn and so (Zen 5, matrices and batches drawn at random, 1 to 16
// bytes, one thread; two): 30 of whole lines and .1 to 12 MB .61 .58 .59 .55 .62; .69 .58 .60 .59 .66 -> .63
// .72 .76 .70 .74; .71 .71 .75 .72 .75, 30 at any pitch and to 4 MB .44 .51 .48 .54 .59; .48 .49 .53 .52 .57
// -> .44 .55 .57 .57 .63; .49 .55 .59 .53 .58; but 14 of 15 to 18 MB in 2 to 16 bytes, one thread, .66 .73
// .77 .74 -> .59 .62 .76 .65, at any pitch and 6 to 8 MB, two, .67 .69 .73 .80 -> .63 .65 .69 .77. The four
// in other orders, by rows, by columns and around, 4 bytes .54 .55 .61 for .72; of 2 x 4, 4 x 2 and 4 x 4
// tiles .66 .66 .71 for .73. Not on a Xeon (14 of whole lines, one thread; four, .68 .72 .87 .91 .93; .73 .87
// .91 1.01 1.01 -> .60 .70 .83 .89 .85; .71 .82 .88 1.00 .94). Of input rows that conflict, in blocks and so
// (Zen 5, one thread; two), six of 5 to 12 MB in 4 and 8 bytes .57 .52 -> .71 .64.
inline constexpr int kTilesCross[2] = {1, 3};
// Of what would be, lines in two sets of L1 side by side that are too many, of 1 and 2 bytes, and from where
// on (Zen 5, one thread; two, 2049 x 700 in 1 byte .21 -> .44; .17 -> .34, 1025 x 900 in 2 .22 -> .50; .21 ->
// .35; but next to multiples of 1 KiB, 1023 x 700 in 1, .35 -> .30).
inline constexpr int64_t kCrossedInBlocks[2] = {24, 12}, kCrossedInBlocksBytes = 128 << 10;
// Where rows conflict, or meet, it is the cores' own caches that are short of sets (2048^2 in 2 bytes, 1536^2
// in 4: Zen 4 with AVX2 .26 -> .41, .41 -> .52; Xeon with AVX-512 .40 -> .61, .49 -> .73; Zen 5, 8^7 reversed
// in 4 bytes .21 -> .46, in 8 .32 -> .70).
// By whether several of the cores that move lines share a near cache, and log2 of the element's bytes (Zen 5,
// 2048^2 and 2048 x 2100 in 2 bytes, two threads; one, .23 -> .36; .40 -> .18, four of 17 and 18 MB in 8 .27
// -> .45; .43 -> .34).
inline constexpr double kConflictsLeave[2][5] = {{4, 4, 4, 4, 4}, {4, 4.5, 4, 4.5, 4}};

// Of whole lines, one core that moves them and whose last cache is near: past some eighths what is stored is
// what was fetched in vain. Of a copy, as kTilesLeave says and so, Zen 5, one thread, matrices and batches
// drawn at random, 1 to 16 bytes, 12 of 8 to 32 MB .68 .61 .65 .71 .74 -> .73 .78 .76 .80 .79, 14 of 12 to 30
// MB .37 .40 .55 .60 .60 -> .60 .67 .66 .73 .71. With two threads it depends: 14 of 12 to 30 MB in 2 and 4
// bytes .60 .60 -> .54 .54 while a round trip between the cores took 90 ns, 12 of 8 to 32 MB .58 .69 -> .65
// .72 at 400.
inline constexpr double kAloneLinesLeave[5] = {3, 3.5, 4, 3.5, 4};
// Of what is split or merged in registers, likewise (1000000 x 3 and 3 x 1000000 in 4 bytes .55 .52 -> .88
// .77, 1800000 x 3 in 2 .67 -> .76; but 600000 x 3 in 4 .79 -> .67).
inline constexpr int kAloneNarrowLinesLeave = 5;
// From so many eighths on tiles are carried, by whether one core is alone (12 matrices and batches of 8 to 32
// MB at any pitch, .44 .49 .57 .60 .69 -> .49 .55 .57 .68 .75).
inline constexpr double kCarriedFrom[2][5] = {{5, 4, 5, 6, 6}, {2.5, 3, 3.5, 3.5, 4}};
// And that have output rows so long, by whether cores move lines and share a near cache (49 x 775 x 519 ->
// 0,2,1 in 1 byte, staged and so, .50 -> .72).
inline constexpr int64_t kCarriedRowBytes[2][5] = {{1024, 1536, 1024, 1024, 1024},
                                                   {512, 1536, 1024, 1024, 1024}};

// Tiles with shorter sides than this, fused ones too, leave the caches from so many eighths of the last one
// on, which neighbours share. Of a copy, stored within the caches and streamed (Zen 5): 40 x 41 x 39 x 40
// reversed in 4 bytes .24 -> .46, 299 x 251 x 203 in 1 .14 -> .36, 200 x 150 x 200 in 2 .20 -> .43, 20^5 in 4
// .58 -> .68, 18^5 in 8 .35 -> .54, 5 x 9 x 7 x 11 x 3 x 13 x 9 x 15 in 1 .31 -> .50; AVX2 .27 -> .59; but at
// three eighths 33 x 35 x 37 x 39 in 4 .43 -> .35.
inline constexpr int64_t kStagedSideBytes = 1024;
inline constexpr int kShortSidesLeave = 5;
// What is split or merged in registers is as good as copied, and staging is not (64 x 225 x 225 x 3 ->
// 0,3,1,2 in 2 bytes, 39 MB, .87 -> .75).
inline constexpr int kNarrowSidesLeave = 11;
// Where cores do not move lines, elements of so many bytes are moved from register to output as long as the
// last cache has room, whatever the sides: staging them takes longer than streaming whole tiles. Zen 4 with
// AVX-512, 649 permutations drawn at random, staged and streamed, and stored within the cache, 4, 8 and 16
// bytes: of a third to half of it .27 .28 .32 -> .46 .49 .58, up to three quarters .35 .39 .43 -> .40 .45
// .55; AVX2, 347 of both, .32 .36 .38 -> .43 .46 .53. Rows that meet are another matter: 16 x 12 x 8 x 14 x
// 16 x 8 reversed in 4 bytes .35 -> .09.
inline constexpr int64_t kWideStaged = 4;
inline constexpr int kWideStagedLeave = 6;

// Streaming stores straight from the micro-kernel's registers: where these are lines, to rows at any distance
// (Xeon with AVX-512, 16 threads; 4, 8192^2, 8000^2 and 4096^2 in 1 byte, of a copy, staged .54; .48, in
// blocks .66; .62; Zen 5, not in blocks, 8192^2 .61 -> .70). Two vectors a line, AVX2, by the most bytes
// between rows at which they won and log2 of the element's bytes (Zen 4, 8 bytes 2048^2 .82 and .70, 4096^2
// .72 and .61), but bytes at any distance where the last cache is near (8192^2 .29 -> .50). Few rows, of a
// vector lane or more, grow side by side at any distance.
inline constexpr int64_t kStreamedPitch[] = {5 << 10, INT64_MAX, INT64_MAX, 5 << 10, INT64_MAX};
inline constexpr int64_t kStreamedFew = 16;
inline constexpr int64_t kLaneBytes = 16;

// Batches of matrices of up to so many bytes move straight to the output whatever is beyond them, by whether
// cores move lines in halves and the last cache is near: staging costs some instructions a tile, which a
// matrix must be worth. Of a copy, staged and so (Zen 4 with AVX-512, 96 MB moved): 14 x 14 in 2, 4 and 8
// bytes .39 .52 .40 -> .57 .70 .69, 21 x 20 in 2 and 4 .26 .42 -> .74 .56, 7 x 7 in 16 .27 -> .74, 33 x 33 in
// 1 .24 -> .50, but of 3 KB, 14 x 14 in 16 .67 -> .47, 56 x 56 in 1 .63 -> .70.
inline constexpr int64_t kTinyMatrixBytes[2] = {256, 2048};

// Short rows are streamed whole.
inline constexpr int64_t kStreamedRowBytes = 512;
inline constexpr int64_t kStreamedTileBytes = 16 << 10;

}  // namespace tx
