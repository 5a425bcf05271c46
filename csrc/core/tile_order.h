// The orders in which a direct tile's squares of vectors are moved, the shapes of blocks of them, and the L1
// cache that both are for.
#pragma once

#include <cstdint>

namespace tx {

inline constexpr int64_t kL1WayBytes = 4096;  // of every machine measured
inline constexpr int64_t kL1Ways = 8;         // of those that have fewest

enum class TileOrder : uint8_t {
  kInTurn,     // down, then across
  kCrosswise,  // two by two, corner after opposite corner
  kDiagonal,   // the same of several such, along diagonals
  kInBlocks    // several vectors on each side, one block read as another is written
};

// Tiles of a block, down and across, in lines' worths, and how many lines of an input row are asked for
// together. By log2 of the element's bytes; down and across the best of one to four. Of a copy, Zen 4; Xeon
// of 16 threads; 4, all with AVX-512: within the caches, three or four matrices whose rows conflict, in the
// shapes of two and four lines before and these, .53 .44 .51; .53 .44 .66; .49 .44 .55 -> .58 .46 .54; .57
// .46 .66; .54 .44 .52. Past them 8192^2, 8000^2 and 4096^2, 2 bytes with two lines down, with one and in the
// shape before .87 .89 .84; .76 .73 .67; .71 .61 .64.
//
// One line of each row after the other is slow to come: the machine's prefetchers follow from the second or
// third on (lines of 8191 x 8193 in 1 byte merely moved, one, two and four asked for together 3.8, 3.1
// and 3.0 ms, and 3.5 without the line that a row's piece ends in). As many as are read at once, and so,
// streamed, four matrices, Zen 4; three, Xeon: 1 byte .77 -> .82; .59 .50 -> .68 .60, 2 bytes .84 -> .86; .75
// .66 -> .76 .65, 4 bytes, which had {4, 2}, .91 -> .91, 2048^2 .60 -> .74; to rows at any pitch, three and
// two, 1 to 16 bytes .58 .68 .77 .66 .79 -> .66 .78 .85 .68 .81; 1 to 4 bytes .51 .56 .61, .41 .47 .50 -> .53
// .59 .68, .44 .54 .59. Within the caches it makes no difference.
struct BlockShape {
  int down = 0, across = 0, together = 0;
  int at_once = 1;  // lines of an output row that are written before the next row's; 8 bytes, pairs of them
};
// Stored, by whether vectors are lines. Smaller ones, shapes of lines, a vector's rows before the next one's
// -> so, eight of 3 to 9 MB whose output rows conflict, 1, 2 and 4 bytes, one thread; two, Zen 3, AVX2 .31
// .36 .50; .37 .29 .44 -> .32 .50 .53; .38 .41 .52, portable, 2 and 4, .29 .40; .24 .42 -> .34 .49; .27 .51.
inline constexpr BlockShape kStoredBlock[2][5] = {{{1, 2, 1}, {1, 2, 1}, {1, 3, 1}, {4, 4, 4}},
                                                  {{1, 4, 1}, {2, 4, 2}, {2, 4, 2}, {4, 4, 4}}};

// Streamed and carried, by whether lines are asked for into L1: then up to 1 KiB of a row together, in low
// blocks to whole lines, and in high ones to rows at any pitch. Shapes for L2, or tiles -> so, Zen 5, one
// thread; two:
//   whole lines, four each whose rows conflict, 2 and 4 bytes    .69 .73, .77 .82 -> .83 .86, .81 .86
//     ten of 2 bytes whose rows do not                           .96, .89 -> 1.03, .88
//     ten each, 8 and 16 bytes                                   .97 .97, .96 1.00 -> 1.00 1.06, .95 .99
//     8192^2 in 8 and 16                                         .73 .63, .79 .87 -> .76 .82, .86 .90
//     three in 2 that conflict, 512 bytes together, and 1 KiB    .70, .72 -> .86, .86
//   at any pitch, three each whose input rows share sets of L1
//     1, 2 and 4 bytes, one thread                               .45 .51 .63 -> .50 .67 .77
//                       two                                      .59 .69 .73 -> .60 .78 .94
//     five of 8                                                  .71, .75 -> .86, .90
// (Whole lines in high blocks, {4, 1, 8}, 2 bytes .65, .78 -> .53, .62; 1 byte in none of these.)
//
// Last where a line is several vectors: low blocks, of which more lines are asked for together, Zen 3, AVX2,
// one thread; two. As first, bytes a line at a time -> so, fifteen each of 18 to 150 MB, 1, 2 and 4 bytes
//                                    .50 .56 .64; .65 .71 .84 -> .52 .66 .71; .67 .77 .87
//   in tiles -> so, 8192^2, and 256 x 128 x 128, in 8 and 16
//                                    .60 .61, .48 .80; .72 .70, .72 .83 -> .60 .79, .76 .93; .75 .77, .98 .95
//   8 bytes, two lines of a row before the next's -> four, 48 of 25 to 150 MB whose output rows conflict
//                                    .79; .78 -> .88; .85
// (1 byte in {1, 1, 8} ten that do not conflict .65 -> .71, and five whose output rows do .57 -> .43.)
inline constexpr BlockShape kStreamedBlock[3][5] = {
    {{1, 2, 4}, {2, 2, 4}, {2, 4, 4}},
    {{}, {1, 2, 16}, {1, 2, 16}, {2, 2, 16}, {4, 4, 16}},
    {{1, 2, 4, 2}, {1, 2, 8}, {1, 4, 8}, {1, 4, 8, 2}, {1, 4, 8}}};
inline constexpr BlockShape kCarriedBlock[2][5] = {{{2, 1, 4}, {2, 2, 4}, {2, 4, 4}, {2, 4, 4}, {2, 4, 8}},
                                                   {{4, 1, 8}, {4, 1, 8}, {8, 1, 16}, {8, 2, 16}}};

// Of which a row's lines are put together in memory, and written one after the other. To rows at any pitch,
// in strips of 128 to 512 bytes before -> so, Zen 3, AVX2, 1 to 16 bytes (8 in {1, 2, 4} here), six each of
// 20 to 150 MB drawn at random, one thread; two
//   any pitch                              .44 .52 .57 .60 .93; .45 .60 .61 .79 .79
//                                       -> .42 .52 .66 .74 1.04; .44 .56 .67 .81 .86
//   input rows next to multiples of 4 KiB  .36 .47 .48 .60 .81; .35 .48 .52 .67 .80
//                                       -> .48 .62 .57 .69 .89; .45 .59 .64 .77 .86
//                            of 1 KiB      .40 .47 .53 .78 .95; .39 .55 .58 .77 .84
//                                       -> .50 .57 .62 .95 1.00; .47 .62 .69 .87 .91
// Ten each, 1 to 8 bytes, {1, 4, 8}, 4 and 8 bytes {1, 8, 8} -> {1, 4, 4}
//                                          .41 .54 .58 .72; .42 .54 .65 .83
//                                       -> .45 .57 .60 .79; .45 .56 .68 .89
//   8 bytes, 17, {1, 2, 4} -> {1, 4, 4}  .66; .82 -> .71; .85 (8191 x 8193 .41; .60 -> .53; .71)
inline constexpr BlockShape kByMemoryBlock{1, 4, 4};
// Whole lines, too, where a line is several vectors, of rows so far apart: those of several rows by turns ->
// so, Zen 3, AVX2, eight each of 25 to 150 MB, output rows odd multiples of 512 bytes, 1 KiB, 2, 4 and 8
//   1 byte, one thread     .64 .61 .49 .46 .44 -> .61 .63 .54 .64 .57
//           two            .64 .74 .66 .54 .59 -> .69 .79 .75 .75 .75
//   2 bytes, one           .68 .68 .48 .54 .54 -> .70 .74 .67 .74 .75
//            two           .69 .70 .59 .58 .61 -> .91 .78 .83 .83 .93
//   4 bytes, 2 KiB and more, one; two    .67 .63 .74; .72 .67 .83 -> .84 .72 .87; .83 .76 .94
// but of 1 KiB in 4 .93; .97 -> .89; .98, of 128 and 256 bytes, six in 2, .93; .93 -> .76; .87. Nor does it
// help lines within the caches, 8 and 16 bytes, of which a row's four lines are written together anyway, or a
// Xeon, 18 each, 16 threads, AVX2; AVX-512 .48 .72 .69; .74 .77 .74 -> .47 .71 .66; .68 .76 .73.
constexpr bool streams_by_memory(int64_t element_bytes, int64_t pitch) {
  return element_bytes <= 4 && pitch % (element_bytes == 4 ? 2048 : 512) == 0;
}

constexpr const BlockShape& streamed_block(int line_vectors, bool to_l1, int width) {
  return kStreamedBlock[line_vectors > 1 ? 2 : to_l1][width];
}
constexpr const BlockShape& carried_block(int line_vectors, bool to_l1, int width) {
  return line_vectors > 1 ? kByMemoryBlock : kCarriedBlock[to_l1][width];
}

}  // namespace tx
