// The loops of every CPU kernel.
#include "cpu/run.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/tiles_cpu.h"
#include "cpu/isa.h"
#include "cpu/prefetcher.h"
#include "cpu/staged.h"
#include "cpu/tiles.h"

namespace tx::cpu {
namespace {

struct Element16 {
  uint64_t half[2];
};

// One tile of two dims; `a` is the dim in the outer loop. The dims are its own, which what is written can't
// change: with references in their place, and a loop that is not unrolled, Zen 4, L1, 1 and 2 bytes .042 .082
// of a copy (.077 .145).
template <class T>
void move_tile(const char* in, char* out, Dim a, int64_t a_extent, Dim b, int64_t b_extent) {
  constexpr int64_t kBytes = sizeof(T);
  const auto move = [=](const char* src, char* dst, int64_t out_step) {
    TX_UNROLL_SOME for (int64_t j = 0; j < b_extent; ++j) {
      std::memcpy(dst + j * out_step, src + j * b.in_stride, kBytes);
    }
  };
  for (int64_t i = 0; i < a_extent; ++i, in += a.in_stride, out += a.out_stride) {
    if (b.out_stride == kBytes) {
      move(in, out, kBytes);
    } else {
      move(in, out, b.out_stride);
    }
  }
}

template <class F>
void with_element(int64_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    case 8:
      return f(uint64_t{});
    default:
      return f(Element16{});
  }
}

template <class Function>
Function of_width(const Function* kernels, const Problem& p) {
  return kernels[std::bit_width(static_cast<uint64_t>(p.element_bytes - 1))];
}

MicroKernels::Transpose in_order(const Plan& plan, const MicroKernels& micro) {
  const Problem& p = plan.problem;
  const bool streams = plan.stores == Stores::kStreaming;
  const MicroKernels::Streaming& streaming = micro.streaming[plan.prefetches_l1];
  switch (plan.order) {
    case TileOrder::kInTurn:
      return of_width(streams ? streaming.transpose : micro.transpose, p);
    case TileOrder::kCrosswise:
      return of_width(micro.transpose_crosswise, p);
    case TileOrder::kDiagonal:
      return of_width(micro.transpose_diagonal, p);
    case TileOrder::kInBlocks:
      return of_width(streams ? streaming.blocks : micro.transpose_blocks, p);
  }
  return nullptr;
}

void run_tile(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  constexpr int64_t kEdges = 3;  // that a tile ends in, of plan.edge_rows each
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const int64_t bytes = p.element_bytes, in_pitch = p.dims[col].in_stride, out_pitch = p.dims[row].out_stride;
  const MicroKernels& micro = micro_kernels_in_use();
  const bool streaming = plan.stores == Stores::kStreaming;
  const auto transpose = in_order(plan, micro);
  const int64_t edge = plan.edge_rows;
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      int64_t rows = at.extent[row];  // that are left of the tile
      const char* from = in + at.in;
      char* to = out + at.out;
      const auto move = [&](int64_t count) {
        transpose(bytes, from, in_pitch, to, out_pitch, count, at.extent[col]);
        from += count * bytes, to += count * out_pitch, rows -= count;
      };
      if (edge > 0 && rows > 2 * edge && others_follow(plan, row, tile, last)) {
        if (rows / edge > kEdges) move((rows / edge - kEdges) * edge);
        while (rows >= 2 * edge) move(edge);
      }
      move(rows);
    }
    if (streaming) micro.fence();
  });
}

// Within the caches, asking for the lines of tiles to come.
void run_asking_tile(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const auto transpose = of_width(micro_kernels_in_use().transpose_asking, p);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first), next(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      next.next();
      transpose(in + at.in, p.dims[col].in_stride, out + at.out, p.dims[row].out_stride, at.extent[row],
                at.extent[col], next.in - at.in, next.out - at.out);
    }
  });
}

// Streams tiles to rows at any pitch: of a line that has columns of two tiles, the first one's are carried to
// the second. Only where rows begin and end are parts of lines written.
void run_carried_tile(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const int64_t in_pitch = p.dims[col].in_stride, out_pitch = p.dims[row].out_stride;
  const int64_t bytes = p.element_bytes, line = kLine / bytes;
  const MicroKernels& micro = micro_kernels_in_use();
  const auto transpose = of_width(micro.transpose, p);
  const MicroKernels::Streaming& streaming = micro.streaming[plan.prefetches_l1];
  const auto stream =
      of_width(plan.order == TileOrder::kInBlocks ? streaming.carried_blocks : streaming.carried, p);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    constexpr int64_t kRestRows = 256;
    alignas(kLine) char carried[kCarriedRows * kLine], rest[kRestRows * kLine];
    TileWalk at(plan, first);
    bool begins = true;
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t rows = at.extent[row];
      int64_t cols = at.extent[col];  // that are left of the tile
      const char* from = in + at.in;
      char* to = out + at.out;
      const auto pass = [&](int64_t count) { from += count * in_pitch, to += count * bytes, cols -= count; };
      if (begins && cols < line) {
        transpose(bytes, from, in_pitch, to, out_pitch, rows, cols);
        at.next();
        continue;
      }
      if (begins) {
        transpose(bytes, from, in_pitch, carried, kLine, rows, line);
        for (int64_t r = 0; r < rows; ++r) {
          char* const head = to + r * out_pitch;
          const int64_t place = reinterpret_cast<intptr_t>(head) % kLine;
          std::memcpy(head, carried + r * kLine, static_cast<size_t>(kLine - place));
        }
        pass(line);
      }
      const int64_t lines = cols / line * line;
      stream(from, in_pitch, to, out_pitch, rows, lines, carried);
      pass(lines);
      at.next();
      begins = cols > 0 || tile + 1 == last || out + at.out != to || at.extent[row] != rows;
      if (!begins) continue;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t in_rest = r % kRestRows, count = std::min(rows - r, kRestRows);
        if (cols > 0 && in_rest == 0) transpose(bytes, from + r * bytes, in_pitch, rest, kLine, count, cols);
        char* const tail = to + r * out_pitch;
        const int64_t place = reinterpret_cast<intptr_t>(tail) % kLine;
        std::memcpy(tail - place, carried + (r + 1) * kLine - place, static_cast<size_t>(place));
        std::memcpy(tail, rest + in_rest * kLine, static_cast<size_t>(cols * bytes));
      }
    }
    micro.fence();
  });
}

// Enters in a table of places the dim that continues the `count` it has.
int64_t add_places(int64_t* places, int64_t count, int64_t extent, int64_t stride) {
  if (count == 1) places[0] = 0;
  for (int64_t k = 1; k < extent; ++k) {
    for (int64_t i = 0; i < count; ++i) places[k * count + i] = places[i] + k * stride;
  }
  return count * extent;
}

// A tile's row dims, and where a fused tile's columns lie in the input, or the runs that it splits, in bytes
// from its first; an empty table for other plans.
struct Places {
  explicit Places(const Plan& plan) : runs(moved_runs(plan)) {
    const Problem& p = plan.problem;
    for (int k = 0, d = tile_row_dim(plan.kernel, p); k < plan.fused_rows; ++k, d = next_row_dim(p, d))
      row_dims[k] = d;
    int64_t cols = 1;
    in[0] = 0;
    for (int k = runs == Runs::kSplit ? 2 : 1; is_fused(plan) && k <= plan.fused_cols; ++k) {
      const Dim& dim = p.dims[p.rank - k];
      cols = add_places(in, cols, plan.tile[p.rank - k], dim.in_stride);
    }
  }

  const Runs runs;         // that the tile merges or splits
  int64_t in[kMostFused];  // of input row j, which is the tile's column j
  int row_dims[kMaxDims];  // innermost in the input first
};

// Rows and columns of the tile at hand.
struct Shape {
  Shape(const Plan& plan, const Places& places, const TileWalk& at) {
    for (int k = 0; k < plan.fused_rows; ++k) rows *= at.extent[places.row_dims[k]];
    for (int k = 1; k <= plan.fused_cols; ++k) cols *= at.extent[plan.problem.rank - k];
  }
  int64_t rows = 1, cols = 1;
};

// Moves a fused tile to rows at places of their own, or to the runs that it merges.
class FusedTile {
 public:
  FusedTile(const Plan& plan, const Places& places, const int64_t* out_places)
      : p_(plan.problem), places_(places), out_places_(out_places) {
    const MicroKernels& micro = micro_kernels_in_use();
    switch (places.runs) {
      case Runs::kNone:
        transpose_ = of_width(micro.transpose_placed, p_);
        break;
      case Runs::kMerged:
        merge_ = of_width(micro.merge_runs, p_);
        run_ = plan.tile[places.row_dims[0]];
        break;
      case Runs::kSplit:
        split_ = of_width(micro.split_runs, p_);
        run_ = plan.tile[p_.rank - 1];
    }
  }

  void move(const char* in, char* out, const Shape& shape) const {
    switch (places_.runs) {
      case Runs::kNone:
        return transpose_(p_.element_bytes, in, places_.in, out, out_places_, shape.rows, shape.cols);
      case Runs::kMerged:
        return merge_(in, p_.dims[p_.rank - 1].in_stride, out, out_places_, shape.rows / run_, run_,
                      shape.cols);
      case Runs::kSplit:
        return split_(in, places_.in, out, out_places_[1], shape.cols / run_, run_, shape.rows);
    }
  }

 private:
  const Problem& p_;
  const Places& places_;
  const int64_t* const out_places_;
  int64_t run_ = 1;  // rows, or columns, that it has
  MicroKernels::TransposePlaced transpose_ = nullptr;
  MicroKernels::MergeRuns merge_ = nullptr;
  MicroKernels::SplitRuns split_ = nullptr;
};

void run_fused_tile(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Places places(plan);
  int64_t out_places[kMostFused], rows = 1;  // of output row i, or of run i
  out_places[0] = 0;
  for (int k = places.runs == Runs::kMerged ? 1 : 0; k < plan.fused_rows; ++k) {
    const int d = places.row_dims[k];
    rows = add_places(out_places, rows, plan.tile[d], plan.problem.dims[d].out_stride);
  }
  const FusedTile fused(plan, places, out_places);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next())
      fused.move(in + at.in, out + at.out, Shape(plan, places, at));
  });
}

void copy_lines(char* out, const char* in, int64_t lines) {
  std::memcpy(out, in, static_cast<size_t>(lines * kLine));
}

// Where the rows of a fused tile lie in the staging memory, and where the staged rows that they are parts of
// lie in the output, in bytes from the first.
struct StagedPlaces {
  StagedPlaces(const Plan& plan, const Places& places, int first_adjoining, int64_t pitch) {
    int64_t rows = 1, staged_rows = 1;
    staged[0] = out[0] = 0;
    for (int k = places.runs == Runs::kMerged ? 1 : 0; is_fused(plan) && k < plan.fused_rows; ++k) {
      const int d = places.row_dims[k];
      const int64_t out_stride = plan.problem.dims[d].out_stride;
      if (d >= first_adjoining) {
        rows = add_places(staged, rows, plan.tile[d], out_stride);
      } else {
        rows = add_places(staged, rows, plan.tile[d], staged_rows * pitch);
        staged_rows = add_places(out, staged_rows, plan.tile[d], out_stride);
      }
    }
  }

  int64_t staged[kMostFused];
  int64_t out[kMostFused];
};

void run_staged(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const int first_adjoining = first_adjoining_dim(plan), first_col = p.rank - plan.fused_cols;
  const bool adjoin = first_adjoining == row;  // of tiles that are not fused
  const int64_t in_pitch = p.dims[col].in_stride, out_stride = p.dims[row].out_stride;
  const int64_t row_bytes = staged_row_bytes(plan), pitch = staged_pitch(row_bytes);
  const int64_t most_bytes = adjoining_bytes(plan);  // that a tile adds to a staged row
  const int64_t tiles_per_write = row_bytes / most_bytes;
  const int64_t tiles_ahead = kAskedAhead / (tile_rows(plan) * tile_cols(plan) * p.element_bytes);
  const Places places(plan);
  const StagedPlaces staged_places(plan, places, first_adjoining, pitch);
  const MicroKernels& micro = micro_kernels_in_use();
  const auto transpose = of_width(micro.transpose, p);
  const FusedTile fused(plan, places, staged_places.staged);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char memory[kStagingBytes + 2 * kLine];
    StagedRows staged(plan.stores == Stores::kStreaming ? micro.stream : copy_lines, memory, pitch,
                      out_stride, is_fused(plan) ? staged_places.out : nullptr);
    TileWalk at(plan, first);
    Prefetcher ahead(plan, places.row_dims, in, first + 1, last);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const Shape shape(plan, places, at);
      int64_t parts = 1;  // rows of the tile in a staged row
      for (int d = first_adjoining; d < first_col; ++d) parts *= at.extent[d];
      const int64_t staged_rows = shape.rows / parts;
      const bool rows_end = !staged.continues(out + at.out, staged_rows);
      if (rows_end || staged.filled() + most_bytes > row_bytes) {
        // Spread over the lines written: more prefetches at a time than the core can queue are dropped.
        const int64_t lines = ahead.lines_before(tile + tiles_per_write + tiles_ahead);
        int64_t asked = 0;
        staged.write(rows_end,
                     [&](int64_t written, int64_t of) { asked += ahead.ask(lines * written / of - asked); });
        if (rows_end) staged.begin(out + at.out, staged_rows);
      }
      if (is_fused(plan)) {
        fused.move(in + at.in, staged.next(), shape);
      } else {
        transpose(p.element_bytes, in + at.in, in_pitch, staged.next(),
                  adjoin ? shape.cols * p.element_bytes : pitch, shape.rows, shape.cols);
      }
      staged.add(parts * shape.cols * p.element_bytes);
    }
    staged.write(true, [](int64_t, int64_t) {});
    micro.fence();
  });
}

// Calls work(in, out) with where each index of these dims begins, the first dim's first, from a tile on.
template <class F>
void for_each_index(const Problem& p, const TileWalk& at, const int* dims, int count, const F& work) {
  int64_t index[kMaxDims], in = at.in, out = at.out;
  std::fill(index, index + count, 0);
  for (;;) {
    work(in, out);
    int k = 0;
    for (; k < count; ++k) {
      const Dim& dim = p.dims[dims[k]];
      in += dim.in_stride, out += dim.out_stride;
      if (++index[k] < at.extent[dims[k]]) break;
      in -= index[k] * dim.in_stride, out -= index[k] * dim.out_stride;
      index[k] = 0;
    }
    if (k == count) return;
  }
}

// Whether pieces are whole lines of the output, or several together, and every tile begins with a line: then
// they, of the dim `batch` and those before, need not be gathered (Zen 5, 500000 x 4 x 4 -> 0,2,1 in 4 bytes
// .78 -> .98 of a copy, in 16 .67 -> .99, 500000 x 8 x 8 in 1 .67 -> .99).
bool pieces_are_lines(const Plan& plan, const PieceDims& dims, int batch, const Piece& piece,
                      const char* out) {
  const Problem& p = plan.problem;
  if (writes_whole_lines(p, dims)) return true;
  uint64_t bits = reinterpret_cast<uintptr_t>(out) | static_cast<uint64_t>(plan.tile[batch] * piece.bytes);
  for (int d = 0; d < batch; ++d) bits |= static_cast<uint64_t>(p.dims[d].out_stride);
  return bits % kLine == 0 && piece.adjoin && kLine % piece.bytes == 0;
}

// Pieces along one dim.
struct PieceRow {
  int64_t in;
  int64_t out;
  int64_t pieces;
};

void run_pieces(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const PieceDims whole = piece_dims(plan);
  const BatchDims beyond = batch_dims(p, whole);
  const PieceMap map = piece_map(plan);
  const int batch = beyond.dims[0];
  Piece piece;
  piece.bytes = whole.bytes;
  piece.element_bytes = p.element_bytes;
  const bool dense = is_dense(p, whole);
  piece.adjoin = dense && p.dims[batch].in_stride == piece.bytes && p.dims[batch].out_stride == piece.bytes;
  piece.map = &map;
  const bool streaming = plan.stores == Stores::kStreaming;
  const MicroKernels& micro = micro_kernels_in_use();
  const auto stream = micro.stream_pieces[p.element_bytes > 1];
  micro.index_piece(piece);
  const bool in_lines = streaming && stream != nullptr && pieces_are_lines(plan, whole, batch, piece, out);
  const bool gathers = streaming && !in_lines;
  const auto permute = in_lines ? stream : micro.permute_pieces;
  // The dims of a tile, along which pieces are moved together first: the longest, unless they adjoin or are
  // gathered.
  int dims[kMaxDims], count = 0;
  for (int k = 0; k < beyond.count; ++k) {
    const int d = beyond.dims[k];
    if (k > 0 && plan.tile[d] == 1) continue;
    dims[count++] = d;
    if (!gathers && !piece.adjoin && plan.tile[d] > plan.tile[dims[0]]) std::swap(dims[0], dims[count - 1]);
  }
  const Dim& along = p.dims[dims[0]];
  const int64_t dense_ahead = streaming ? kAskedAhead : 0;
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char memory[2 * kStreamedPiecesBytes + kMostPieceBytes + 2 * kLine];
    StagedRows staged(micro.stream, memory, 0, 0);
    const auto move = [&](const PieceRow& row, int64_t ahead) {
      if (!gathers)
        return permute(piece, in + row.in, along.in_stride, out + row.out, along.out_stride, row.pieces,
                       ahead);
      staged.make_room(out + row.out, 1, kStreamedPiecesBytes);
      permute(piece, in + row.in, along.in_stride, staged.next(), piece.bytes, row.pieces, ahead);
      staged.add(row.pieces * piece.bytes);
    };
    TileWalk at(plan, first);
    PieceRow row{0, 0, 0};
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      for_each_index(p, at, dims + 1, count - 1, [&](int64_t from, int64_t to) {
        if (row.pieces > 0) move(row, dense ? dense_ahead : from - row.in);
        row = {from, to, at.extent[dims[0]]};
      });
    }
    move(row, dense ? dense_ahead : 0);
    if (gathers) staged.write(true, [](int64_t, int64_t) {});
    if (streaming) micro.fence();
  });
}

// Streams the lines of a long run, and asks for those that follow them, more at a time than the machine's own
// prefetchers do. Of a copy, not asked for -> 2 KiB ahead into L2, 8 KiB ahead into L1:
//   Xeon with AVX-512 VBMI, 2 threads, 400 MB, GB/s   38 -> 48, -    (less than 64 MB the same)
//        four, four problems; one                     -  -> 1.00 1.00, .97 .95
//   Zen 5, one thread, three; two                     -  -> 1.00 1.02, 1.08 1.03
void stream_long_run(const Plan& plan, const MicroKernels& micro, char* out, const char* in, int64_t lines) {
  const int64_t step = plan.prefetches_l1 ? 4 : 16, ahead = plan.prefetches_l1 ? kAskedAhead : 2048;
  for (int64_t line = 0; line < lines; line += step) {
    const int64_t count = std::min(lines - line, step);
    const char* const from = in + line * kLine;
    ask_for(from, ahead, count, plan.prefetches_l1);
    micro.stream(out + line * kLine, from, count);
  }
}

// Copies a run past the caches but for its ends.
void stream_run(const Plan& plan, const MicroKernels& micro, char* out, const char* in, int64_t bytes) {
  const int64_t head = std::min((kLine - reinterpret_cast<intptr_t>(out) % kLine) % kLine, bytes);
  const int64_t lines = (bytes - head) / kLine;
  const int64_t body = head + lines * kLine;
  std::memcpy(out, in, static_cast<size_t>(head));
  if (plan.prefetches && bytes >= kLongRunBytes) {
    stream_long_run(plan, micro, out + head, in + head, lines);
  } else {
    micro.stream(out + head, in + head, lines);
  }
  std::memcpy(out + body, in + body, static_cast<size_t>(bytes - body));
}

// Runs of n to 2 n bytes: two moves of n that may overlap (20 x 500 x 20 x 3 -> 0,2,1,3, Zen 5: 4 bytes .12
// -> .33 of a copy, 1 byte .04 -> .09).
template <int64_t n>
void copy_short_runs(const char* in, int64_t in_stride, char* out, int64_t out_stride, int64_t bytes,
                     int64_t runs) {
  for (int64_t r = 0; r < runs; ++r, in += in_stride, out += out_stride) {
    std::memcpy(out, in, n);
    std::memcpy(out + bytes - n, in + bytes - n, n);
  }
}

void copy_runs(const char* in, int64_t in_stride, char* out, int64_t out_stride, int64_t bytes,
               int64_t runs) {
  for (int64_t r = 0; r < runs; ++r, in += in_stride, out += out_stride)
    std::memcpy(out, in, static_cast<size_t>(bytes));
}

MicroKernels::CopyRuns copy_runs_of(const MicroKernels& micro, int64_t bytes) {
  if (micro.copy_runs != nullptr && bytes >= kLeastRun && bytes <= kMostRun) return micro.copy_runs;
  if (bytes < 2) return copy_short_runs<1>;
  if (bytes < 4) return copy_short_runs<2>;
  if (bytes < 8) return copy_short_runs<4>;
  if (bytes < 16) return copy_short_runs<8>;
  if (bytes < 32) return copy_short_runs<16>;
  if (bytes < 64) return copy_short_runs<32>;
  return bytes <= 128 ? copy_short_runs<64> : copy_runs;
}

// Runs that follow one another in the output, some of each of several rows.
void run_gathered_runs(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  constexpr int64_t kRowBytes = 2 * kGatheredBytes, kPitch = kRowBytes + kGatheredBytes + kLine;
  static_assert(kGatheredRows * kPitch <= kStagingBytes);
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), next = p.rank - 2;
  const int64_t bytes = p.dims[next].out_stride;
  const Dim rows = row == next ? Dim{1, 0, 0} : p.dims[row];
  const MicroKernels& micro = micro_kernels_in_use();
  const MicroKernels::CopyRuns copy = copy_runs_of(micro, bytes);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char memory[kStagingBytes + 2 * kLine];
    StagedRows staged(micro.stream, memory, kPitch, rows.out_stride);
    TileWalk at(plan, first);
    const auto rows_at_hand = [&] { return row == next ? 1 : at.extent[row]; };
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      staged.make_room(out + at.out, rows_at_hand(), kRowBytes);
      for (int64_t r = 0; r < rows_at_hand(); ++r) {
        copy(in + at.in + r * rows.in_stride, p.dims[next].in_stride, staged.next() + r * kPitch, bytes,
             bytes, at.extent[next]);
      }
      staged.add(at.extent[next] * bytes);
    }
    staged.write(true, [](int64_t, int64_t) {});
    micro.fence();
  });
}

void run_runs(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const Dim rows = row < 0 ? Dim{1, 0, 0} : p.dims[row];
  const MicroKernels& micro = micro_kernels_in_use();
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const int64_t bytes = at.extent[col] * p.element_bytes;
      const int64_t runs = row < 0 ? 1 : at.extent[row];
      const char* from = in + at.in;
      char* to = out + at.out;
      if (plan.stores == Stores::kOrdinary) {
        copy_runs_of(micro, bytes)(from, rows.in_stride, to, rows.out_stride, bytes, runs);
        continue;
      }
      const bool asks = plan.prefetches && bytes < kLongRunBytes;
      const int64_t ahead = ceil_div(kRunsAskedAhead, std::max(bytes, int64_t{kLine})) * rows.in_stride;
      for (int64_t r = 0; r < runs; ++r, from += rows.in_stride, to += rows.out_stride) {
        if (asks) ask_for_stretch(from, ahead, bytes, plan.prefetches_l1);
        stream_run(plan, micro, to, from, bytes);
      }
    }
    if (plan.stores == Stores::kStreaming) micro.fence();
  });
}

// Elements to places apart, one by one.
void run_scattered(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const Dim rows = row < 0 ? Dim{1, 0, 0} : p.dims[row];
  with_element(p.element_bytes, [&](auto element) {
    share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
      TileWalk at(plan, first);
      for (int64_t tile = first; tile < last; ++tile, at.next()) {
        const int64_t row_count = row < 0 ? 1 : at.extent[row], col_count = at.extent[col];
        if (col_count < row_count) {
          move_tile<decltype(element)>(in + at.in, out + at.out, p.dims[col], col_count, rows, row_count);
        } else {
          move_tile<decltype(element)>(in + at.in, out + at.out, rows, row_count, p.dims[col], col_count);
        }
      }
    });
  });
}

// Rows of tiles made of columns of the input that are packed before.
void run_packed(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const int64_t bytes = p.element_bytes;
  const Dim &rows = p.dims[row], &cols = p.dims[col];
  const MicroKernels& micro = micro_kernels_in_use();
  const auto gather = of_width(micro.gather, p);
  const auto transpose = of_width(micro.transpose, p);
  Gathered column{bytes, rows.in_stride};
  micro.prepare_gather(column);
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char packed[kPackedBytes];
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const int64_t pitch = at.extent[row] * bytes;
      gather(column, in + at.in, cols.in_stride, packed, pitch, at.extent[row], at.extent[col]);
      transpose(bytes, packed, pitch, out + at.out, rows.out_stride, at.extent[row], at.extent[col]);
    }
  });
}

// Rows of elements that lie apart in the input, or are one again and again.
void run_gathered(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  constexpr int64_t kStagedBytes = 4 << 10;  // of a row that is streamed
  const Problem& p = plan.problem;
  const int row = tile_row_dim(plan.kernel, p), col = p.rank - 1;
  const int64_t bytes = p.element_bytes, step = p.dims[col].in_stride;
  const Dim rows = row < 0 ? Dim{1, 0, 0} : p.dims[row];
  const MicroKernels& micro = micro_kernels_in_use();
  const auto gather = of_width(micro.gather, p);
  Gathered run{bytes, step};
  micro.prepare_gather(run);
  const bool streaming = plan.stores == Stores::kStreaming;
  share_tiles(plan, out, parallel_for, [&](int64_t first, int64_t last) {
    alignas(kLine) char memory[2 * kStagedBytes + 2 * kLine];
    StagedRows staged(micro.stream, memory, 0, 0);
    TileWalk at(plan, first);
    for (int64_t tile = first; tile < last; ++tile, at.next()) {
      const int64_t count = row < 0 ? 1 : at.extent[row];
      if (!streaming) {
        gather(run, in + at.in, rows.in_stride, out + at.out, rows.out_stride, at.extent[col], count);
        continue;
      }
      const auto stage = [&](const char* from, char* to, int64_t cols, int64_t row_count) {
        staged.make_room(to, 1, kStagedBytes);
        gather(run, from, rows.in_stride, staged.next(), cols * bytes, cols, row_count);
        staged.add(row_count * cols * bytes);
      };
      // Rows that adjoin several at a time, which have one part each, and long ones in parts.
      const int64_t row_bytes = at.extent[col] * bytes;
      const int64_t together = rows.out_stride == row_bytes ? kStagedBytes / row_bytes : 0;
      for (int64_t r = 0, some; r < count; r += some) {
        const char* from = in + at.in + r * rows.in_stride;
        char* to = out + at.out + r * rows.out_stride;
        some = std::clamp<int64_t>(together, 1, count - r);
        for (int64_t left = at.extent[col], part; left > 0; left -= part) {
          part = std::min(left, kStagedBytes / bytes);
          stage(from, to, part, some);
          from += part * step, to += part * bytes;
        }
      }
    }
    if (!streaming) return;
    staged.write(true, [](int64_t, int64_t) {});
    micro.fence();
  });
}

void run_strided(const Plan& plan, const char* in, char* out, ParallelFor parallel_for) {
  switch (strided_way(plan.problem)) {
    case Strided::kPacked:
      return run_packed(plan, in, out, parallel_for);
    case Strided::kScattered:
      return run_scattered(plan, in, out, parallel_for);
    case Strided::kRows:
    case Strided::kVectors:
      return run_gathered(plan, in, out, parallel_for);
  }
}

}  // namespace

void run(const Plan& plan, const void* in, void* out, ParallelFor parallel_for) {
  const Problem& p = plan.problem;
  const auto* from = static_cast<const char*>(in);
  auto* to = static_cast<char*>(out);
  if (element_count(p) == 0) return;
  if (p.rank == 0) {
    std::memcpy(to, from, static_cast<size_t>(p.element_bytes));
    return;
  }
  switch (plan.kernel) {
    case Kernel::kPieces:
      return run_pieces(plan, from, to, parallel_for);
    case Kernel::kCopy:
    case Kernel::kRows:
      return is_fused(plan) ? run_gathered_runs(plan, from, to, parallel_for)
                            : run_runs(plan, from, to, parallel_for);
    case Kernel::kTile:
      return is_fused(plan)    ? run_fused_tile(plan, from, to, parallel_for)
             : plan.carries    ? run_carried_tile(plan, from, to, parallel_for)
             : plan.prefetches ? run_asking_tile(plan, from, to, parallel_for)
                               : run_tile(plan, from, to, parallel_for);
    case Kernel::kStaged:
      return run_staged(plan, from, to, parallel_for);
    default:
      return run_strided(plan, from, to, parallel_for);
  }
}

}  // namespace tx::cpu
