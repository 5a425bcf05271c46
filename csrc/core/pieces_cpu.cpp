// The CPU's pieces: which dims they have, and where their runs lie.
#include "core/pieces_cpu.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/int_math.h"
#include "core/machine_cpu.h"
#include "core/tuning_cpu.h"

namespace tx {
namespace {

enum class Side : uint8_t { kIn, kOut };

int64_t stride(const Dim& dim, Side side) { return side == Side::kIn ? dim.in_stride : dim.out_stride; }

uint64_t bit(int d) { return uint64_t{1} << d; }

// Which of these dims continues a run of so many bytes; -1 if none does.
int continuing(const Problem& p, uint64_t dims, Side side, int64_t run) {
  for (int d = 0; d < p.rank; ++d) {
    if ((dims & bit(d)) != 0 && stride(p.dims[d], side) == run) return d;
  }
  return -1;
}

// The run of so many dims, at most, of these; bytes are an element's where there is none.
struct Chain {
  int dims[kMaxDims];
  int count = 0;
  int64_t bytes;
};
Chain chain(const Problem& p, uint64_t dims, Side side, int most = kMaxDims) {
  Chain run;
  run.bytes = p.element_bytes;
  for (int d = 0; run.count < most && (d = continuing(p, dims, side, run.bytes)) >= 0;) {
    dims &= ~bit(d);
    run.dims[run.count++] = d;
    run.bytes *= p.dims[d].extent;
  }
  return run;
}

uint64_t bits(const Chain& run) {
  uint64_t all = 0;
  for (int k = 0; k < run.count; ++k) all |= bit(run.dims[k]);
  return all;
}

// The innermost of the output's dims that is none of these; -1 if there is none.
int innermost_but(const Problem& p, uint64_t dims) {
  int d = p.rank - 1;
  while (d >= 0 && (dims & bit(d)) != 0) --d;
  return d;
}

uint64_t all_dims(const Problem& p) { return p.rank == 0 ? 0 : ~uint64_t{0} >> (64 - p.rank); }

int64_t bytes_of(const Problem& p, uint64_t dims) {
  int64_t bytes = p.element_bytes;
  for (int d = 0; d < p.rank; ++d) {
    if ((dims & bit(d)) != 0) bytes *= p.dims[d].extent;
  }
  return bytes;
}

// A dim as two, of which the inner one has so many.
Problem with_split_dim(const Problem& p, int dim, int64_t inner) {
  Problem q = p;
  for (int d = q.rank++; d > dim; --d) q.dims[d] = q.dims[d - 1];
  q.dims[dim].extent /= inner;
  q.dims[dim].in_stride *= inner;
  q.dims[dim].out_stride *= inner;
  q.dims[dim + 1].extent = inner;
  return q;
}

// Whether all that is written are whole lines, in such runs of the output.
bool writes_whole_lines(const Problem& p, const Chain& run) {
  uint64_t all = p.out_address | static_cast<uint64_t>(run.bytes);
  for (int d = 0; d < p.rank; ++d) {
    if ((bits(run) & bit(d)) == 0) all |= static_cast<uint64_t>(p.dims[d].out_stride);
  }
  return all % kLine == 0;
}

BatchDims dims_but(const Problem& p, uint64_t dims) {
  BatchDims beyond;
  for (int d; (d = innermost_but(p, dims)) >= 0; dims |= bit(d)) beyond.dims[beyond.count++] = d;
  return beyond;
}

// That along which the input moves least.
int nearest_in_input(const Problem& p, const BatchDims& beyond) {
  return *std::min_element(beyond.dims, beyond.dims + beyond.count, [&](int a, int b) {
    return std::abs(p.dims[a].in_stride) < std::abs(p.dims[b].in_stride);
  });
}

// Whether pieces can be gathered to be streamed: they follow one another in the output, and of those that are
// gathered together some lie near one another in the input.
bool can_gather(const Problem& p, uint64_t dims) {
  const Chain run = chain(p, dims, Side::kOut);
  const BatchDims beyond = dims_but(p, dims);
  if (beyond.count == 0 || bits(run) != dims || p.dims[beyond.dims[0]].out_stride != run.bytes) return false;
  if (chain(p, dims, Side::kIn).bytes == run.bytes) return true;
  const int near = nearest_in_input(p, beyond);
  int64_t together = run.bytes;
  for (int k = 0; k < beyond.count && together < kStreamedPiecesBytes; ++k) {
    if (beyond.dims[k] == near) return true;
    together *= p.dims[beyond.dims[k]].extent;
  }
  return false;
}

constexpr double kNever = 1e9;

// Instructions for each byte of a piece: to read its vectors, to permute each two of them for each vector
// that is written, and to put these together. Infinite where the vectors are too many.
double instructions(const Problem& p, uint64_t dims, bool streams) {
  const int64_t bytes = bytes_of(p, dims);
  if (bytes > kMostPieceBytes) return kNever;
  const auto vectors = [&](Side side) {
    const int64_t run = chain(p, dims, side).bytes;
    return bytes / run * ceil_div(run, kLine);
  };
  const int64_t sources = vectors(Side::kIn), results = vectors(Side::kOut);
  if (sources > kMostSources || results > kMostResults) return kNever;
  constexpr double kEach = 3, kUnfit = 1e3;
  const auto all = static_cast<double>(sources + results * 2 * ceil_div(sources, 2));
  return (kEach + all) / static_cast<double>(bytes) +
         (streams && !can_gather(p, dims) && !writes_whole_lines(p, chain(p, dims, Side::kOut)) ? kUnfit : 0);
}

}  // namespace

PieceDims dense_piece(const Problem& p, int64_t most_bytes) {
  PieceDims most;
  for (int count = 2; count < p.rank; ++count) {
    const uint64_t dims = all_dims(p) & ~(bit(p.rank - count) - 1);
    const Chain in = chain(p, dims, Side::kIn), out = chain(p, dims, Side::kOut);
    if (out.count < count || out.bytes > most_bytes) break;
    const PieceDims piece{count, count, out.bytes};
    if (in.count == count && piece_dim_bits(p, piece) == dims) most = piece;
  }
  return most;
}

PieceDims piece_dims(const Plan& plan) {
  PieceDims piece{plan.fused_rows, plan.fused_cols};
  piece.bytes = bytes_of(plan.problem, piece_dim_bits(plan.problem, piece));
  return piece;
}

uint64_t piece_dim_bits(const Problem& p, const PieceDims& piece) {
  return bits(chain(p, all_dims(p), Side::kIn, piece.rows)) |
         bits(chain(p, all_dims(p), Side::kOut, piece.cols));
}

BatchDims batch_dims(const Problem& p, const PieceDims& piece) {
  return dims_but(p, piece_dim_bits(p, piece));
}

bool is_dense(const Problem& p, const PieceDims& piece) {
  return bits(chain(p, all_dims(p), Side::kIn, piece.rows)) ==
         bits(chain(p, all_dims(p), Side::kOut, piece.cols));
}

bool writes_whole_lines(const Problem& p, const PieceDims& piece) {
  return writes_whole_lines(p, chain(p, all_dims(p), Side::kOut, piece.cols));
}

bool can_gather(const Problem& p, const PieceDims& piece) { return can_gather(p, piece_dim_bits(p, piece)); }

PieceMap piece_map(const Plan& plan) {
  const Problem& p = plan.problem;
  const PieceDims piece = piece_dims(plan);
  const uint64_t dims = piece_dim_bits(p, piece);
  // By dim: how far apart its indices are among the bytes of all runs.
  int64_t packed_in[kMaxDims], packed_out[kMaxDims];
  int out_order[kMaxDims], count = 0;
  const auto pack = [&](Side side, int most, int64_t* packed, PieceRuns& runs, int* order) {
    const Chain run = chain(p, all_dims(p), side, most);
    int64_t bytes = p.element_bytes;
    const auto add = [&](int d) {
      packed[d] = bytes;
      bytes *= p.dims[d].extent;
      if (order != nullptr) order[count++] = d;
    };
    for (int k = 0; k < run.count; ++k) add(run.dims[k]);
    runs.bytes = bytes;
    runs.count = 1;
    runs.at[0] = 0;
    for (int d = p.rank - 1; d >= 0; --d) {
      if ((dims & ~bits(run) & bit(d)) == 0) continue;
      add(d);
      const int before = runs.count;
      for (int64_t k = 1; k < p.dims[d].extent; ++k) {
        for (int r = 0; r < before; ++r) runs.at[runs.count++] = runs.at[r] + k * stride(p.dims[d], side);
      }
    }
  };
  PieceMap map;
  pack(Side::kIn, piece.rows, packed_in, map.in, nullptr);
  pack(Side::kOut, piece.cols, packed_out, map.out, out_order);
  int64_t bytes = p.element_bytes;
  for (int64_t b = 0; b < bytes; ++b) map.source[b] = static_cast<uint16_t>(b);
  for (int k = 0; k < count; ++k) {
    const int d = out_order[k];
    for (int64_t b = bytes; b < bytes * p.dims[d].extent; ++b)
      map.source[b] = static_cast<uint16_t>(map.source[b - bytes] + packed_in[d]);
    bytes *= p.dims[d].extent;
  }
  return map;
}

PieceChoice piece_of_runs(const Problem& normalised, bool streams) {
  constexpr double kLess = .9;  // instructions that a dim more must take
  const PieceChoice none{normalised, {}};
  Problem p = normalised;
  const int first = continuing(p, all_dims(p), Side::kIn, p.element_bytes), last = p.rank - 1;
  if (!is_plain(p.element_bytes) || p.rank < 3 || p.rank == kMaxDims) return none;
  if (first < 0 || p.dims[last].out_stride != p.element_bytes) return none;
  uint64_t dims = 0;
  bool is_split = false;
  // Adds the dim, or the part of it, with which the piece takes fewest instructions, if less than `most`.
  double least = kNever;
  const auto add = [&](uint64_t with, std::initializer_list<int> candidates, double most) {
    int dim = -1;
    int64_t inner = 0;
    for (const int d : candidates) {
      if (d < 0) continue;
      const int64_t extent = p.dims[d].extent;
      const int64_t most_part = std::min(extent, kMostPieceBytes / bytes_of(p, with & ~bit(d)));
      for (int64_t part = is_split ? extent : 2; part <= most_part; ++part) {
        if (extent % part != 0) continue;
        p.dims[d].extent = part;
        const double cost = instructions(p, with | bit(d), streams);
        if (cost < most) most = cost, dim = d, inner = part;
      }
      p.dims[d].extent = extent;
    }
    if (dim < 0) return;
    least = most;
    dims = with | bit(dim);
    if (inner == p.dims[dim].extent) return;
    p = with_split_dim(p, dim, inner);
    const uint64_t outer = bit(dim + 1) - 1;
    dims = (dims & outer & ~bit(dim)) | (dims & ~outer) << 1 | bit(dim + 1);
    is_split = true;
  };
  add(bit(first) | bit(last), {first, last}, kNever);
  for (uint64_t before = 0; dims != before;) {
    before = dims;
    const auto next = [&](Side side) {
      return continuing(p, all_dims(p) & ~dims, side, chain(p, dims, side).bytes);
    };
    add(dims, {next(Side::kIn), next(Side::kOut)}, least * kLess);
  }
  if (dims == all_dims(p) || least > kMostInstructions[width_row(p.element_bytes)]) return none;
  const PieceDims piece{chain(p, dims, Side::kIn).count, chain(p, dims, Side::kOut).count, bytes_of(p, dims)};
  if (piece_dim_bits(p, piece) != dims || is_dense(p, piece)) return none;
  return {p, piece};
}

void set_pieces_tile(Plan& plan, const Machine& m) {
  const Problem& p = plan.problem;
  const PieceDims piece = piece_dims(plan);
  const uint64_t dims = piece_dim_bits(p, piece);
  for (int d = 0; d < p.rank; ++d) {
    if ((dims & bit(d)) != 0) plan.tile[d] = static_cast<int32_t>(p.dims[d].extent);
  }
  const bool in_lines = m.permutes_runs[p.element_bytes > 1] && writes_whole_lines(p, piece);
  const bool few = plan.stores == Stores::kStreaming && (is_dense(p, piece) || !in_lines);
  int64_t most = ceil_div(few ? kStreamedPiecesBytes : kPiecesBytes, piece.bytes);
  const auto take = [&](int d, int64_t count) {
    plan.tile[d] = static_cast<int32_t>(std::clamp<int64_t>(std::min(count, most), 1, p.dims[d].extent));
    most /= plan.tile[d];
  };
  const BatchDims beyond = batch_dims(p, piece);
  const int near = nearest_in_input(p, beyond);
  if (!few && !is_dense(p, piece) && fills(p, m, kNearFills))
    take(near, ceil_div(kNearBytes, std::max<int64_t>(std::abs(p.dims[near].in_stride), 1)));
  for (int k = 0; k < beyond.count && most > 0; ++k) {
    const int d = beyond.dims[k];
    if (plan.tile[d] == 1) take(d, most);
    if (plan.tile[d] < p.dims[d].extent && d != near) break;
  }
}

}  // namespace tx
