// Periods and pieces of a problem, and how words of them are dealt to lanes.
#include "core/pieces_cuda.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>

#include "core/int_math.h"
#include "core/staged_tile.h"

namespace tx {

Period find_period(const Problem& p) {
  Period period;
  if (p.rank < 3 || p.rank > 1 + kMaxPieceDims) return period;
  const int64_t e = p.element_bytes, word = word_bytes(e);
  int64_t piece = 1, span = e;
  for (int d = 1; d < p.rank; ++d) {
    piece *= p.dims[d].extent;
    span += (p.dims[d].extent - 1) * p.dims[d].in_stride;
  }
  const int64_t piece_bytes = piece * e;
  if (piece > kPeriodicMostPiece || p.dims[0].in_stride != piece_bytes ||
      p.dims[0].out_stride != piece_bytes || span != piece_bytes) {
    return period;
  }
  int64_t words = std::lcm(piece_bytes, word) / word;
  if (words > kPeriodicMostSlots * kPeriodicMostThreads) return period;
  words *= std::max<int64_t>(1, kPeriodicThreads / words);
  period.piece = piece;
  period.words = words;
  period.threads = static_cast<int>(round_up(ceil_div(words, ceil_div(words, kPeriodicMostThreads)), 32));
  const int64_t least = std::lcm<int64_t>(words * word, kVector);
  const int64_t wanted = std::max<int64_t>({e == 1 ? kPeriodicChunkBytesNarrow : kPeriodicChunkBytes,
                                            32 * period.threads, kPeriodicChunkPiece * piece});
  period.chunk_bytes = std::max<int64_t>(1, wanted / least) * least;
  return period;
}

namespace {

// Puts a piece's runs of one side into shared memory, so far apart that whole words and vectors of them keep
// apart. Returns the bytes that they take.
int64_t place_runs(const Problem& p, const Pieces& n, int64_t Dim::* stride, int64_t apart, int64_t alike,
                   PieceSide& side) {
  // Sectors are read from L2 twice if not all of one lies alike in shared memory; lines matter less.
  constexpr int64_t kLongRun = 400;
  const auto stride_of = [&](int i) { return p.dims[n.dim[i]].*stride; };
  int order[kMaxPieceDims];  // from the least stride
  for (int i = 0; i < n.dims; ++i) {
    int at = i;
    for (; at > 0 && stride_of(order[at - 1]) > stride_of(i); --at) order[at] = order[at - 1];
    order[at] = i;
  }
  int64_t size = p.element_bytes;
  bool in_run = true;
  for (const int* i = order; i < order + n.dims; ++i) {
    in_run = in_run && stride_of(*i) == size;
    int64_t shared = size;
    if (in_run) {
      side.run_bytes = size * n.tile[n.dim[*i]];
    } else {
      const int64_t modulus = side.run_bytes >= kLongRun ? kLine : alike;
      shared += apart;
      shared += (stride_of(*i) - shared) & (modulus - 1);
      side.run_dim[side.run_dims++] = *i;
      side.runs *= n.tile[n.dim[*i]];
    }
    side.shared_stride[*i] = shared;
    size += (n.tile[n.dim[*i]] - 1) * shared;
  }
  return size;
}

}  // namespace

Pieces pieces_of(const Problem& p, const int32_t* tile) {
  const int64_t e = p.element_bytes;
  Pieces n;
  std::copy(tile, tile + p.rank, n.tile);
  n.count = 1;
  int64_t piece = 1;
  for (int d = last(p); d >= 0; --d) {
    n.count *= ceil_div(p.dims[d].extent, int64_t{tile[d]});
    if (tile[d] == 1) continue;
    if (n.dims == kMaxPieceDims) return n;
    if (tile[d] < p.dims[d].extent) n.cut = d;
    n.dim[n.dims++] = d;
    piece *= tile[d];
  }
  const int64_t bytes = piece * e;
  if (e > kPiecesWidest || n.dims < 2 || p.dims[n.dim[0]].out_stride != e) return n;
  if (bytes < kPiecesLeastBytes || bytes > kPiecesMostBytes) return n;
  n.in.run_bytes = n.out.run_bytes = e;
  const int64_t in_bytes = place_runs(p, n, &Dim::in_stride, 2 * kVector, kSector, n.in);
  const int64_t out_bytes = place_runs(p, n, &Dim::out_stride, e < 4 ? 8 : 0, kVector, n.out);
  const int64_t slot_bytes = round_up(std::max(in_bytes, out_bytes + kVector), kVector) + kAsyncAlignment;
  if (2 * slot_bytes + kPieceEntryBytes > kPiecesMostShared) return n;
  n.slot_bytes = static_cast<int>(slot_bytes);
  n.words = n.out.runs * ceil_div(n.out.run_bytes, int64_t{word_bytes(e)});
  constexpr int kMostVariant = static_cast<int>(std::size(kPiecesSlots)) - 1;
  while (n.variant < kMostVariant && n.words > int64_t{kPiecesSlots[n.variant]} * kPiecesThreads) ++n.variant;
  n.threads = static_cast<int>(round_up(ceil_div(n.words, int64_t{kPiecesSlots[n.variant]}), 32));
  if (n.threads <= kPiecesMostThreads) n.piece = piece;
  return n;
}

Pieces find_pieces(const Problem& p) {
  const int64_t e = p.element_bytes;
  Pieces best;
  double best_score = 0;
  const auto consider = [&](const int32_t* tile) {
    constexpr double kLongEnough = 4, kWaste = 1.06;
    constexpr int64_t kBest = 8192;  // bytes
    const Pieces n = pieces_of(p, tile);
    // Parts of one run are a copy's, or those of a longer dense piece.
    if (n.piece == 0 || (n.in.runs == 1 && n.out.runs == 1 && n.cut >= 0)) return;
    if (static_cast<double>(n.count * n.piece) > kWaste * static_cast<double>(element_count(p))) return;
    // The longest dense ones: a part of them has less to do for each place that it finds. Else those of the
    // longest runs.
    const auto length = [](const PieceSide& side, int64_t least) {
      return side.runs == 1 ? kLongEnough : static_cast<double>(side.run_bytes) / static_cast<double>(least);
    };
    const int64_t bytes = n.piece * e;
    double score = std::min({length(n.in, kPiecesInRun), length(n.out, kPiecesOutRun), kLongEnough}) -
                   1e-3 * static_cast<double>(std::abs(bytes - kBest)) / kPiecesMostBytes;
    if (n.is_dense()) score = bytes >= kPiecesPayFrom ? static_cast<double>(bytes) : 0;
    if (best.piece == 0 || score > best_score) best = n, best_score = score;
  };
  // The innermost dims of the output, and those of the input: as many as a piece can have, and then a part.
  for (int64_t Dim::* const stride : {&Dim::out_stride, &Dim::in_stride}) {
    int32_t tile[kMaxDims];
    std::fill(tile, tile + p.rank, 1);
    int64_t piece = 1;
    for (bool whole = true; whole;) {
      int next = last(p);
      while (next >= 0 && (tile[next] > 1 || p.dims[next].*stride != piece * e)) --next;
      if (next < 0) break;
      const int64_t extent = p.dims[next].extent;
      whole = piece * extent * e <= kPiecesMostBytes;
      const int64_t room = whole ? extent : kPiecesCutBytes / (piece * e);
      if (room < 2) break;
      tile[next] = static_cast<int32_t>(ceil_div(extent, ceil_div(extent, room)));
      piece *= tile[next];
      consider(tile);
    }
  }
  return best;
}

namespace {

// A mean of warps here and there.
double gather_wavefronts(const Gather& g, int64_t e, int64_t words, int step) {
  constexpr int kWarps = 3;
  const int word = word_bytes(e), lanes = 128 / word;  // that one wavefront can serve
  const int64_t per_word = word / e, run_words = ceil_div(g.run, per_word);
  const bool runs = g.run != g.piece;
  int wavefronts = 0;
  for (int warp = 0; warp < kWarps; ++warp) {
    for (int64_t element = 0; element < per_word; ++element) {
      int32_t met[32];
      for (int lane = 0; lane < lanes; ++lane) {
        const int64_t w = (words * warp / kWarps + lane) * step % words;
        int64_t index = w * per_word + element;
        if (runs) index = w / run_words * g.run + std::min(w % run_words * per_word + element, g.run - 1);
        int64_t at = index / g.piece * g.piece * e;
        auto rest = static_cast<uint32_t>(index % g.piece);
        for (int i = 0; i < g.dims; ++i) {
          const auto extent = static_cast<uint32_t>(g.extents[i]);
          at += rest % extent * g.strides[i];
          rest /= extent;
        }
        met[lane] = static_cast<int32_t>(at / word);
      }
      wavefronts += bank_conflicts(met, lanes);
    }
  }
  return static_cast<double>(wavefronts) / kWarps;
}

}  // namespace

// Odd steps: what is gathered meets in no banks when it is stored. Every word is someone's, so the step and
// the number of words have no common divisor.
WordOrder choose_word_order(const Gather& gather, int64_t e, int64_t words) {
  constexpr int kMostStep = 65;
  constexpr double kClearly = 0.95;
  const double few = 2.3 * word_bytes(e) / e;  // seldom less
  WordOrder best;
  for (int step = 1; step <= kMostStep; step += 2) {
    if (std::gcd<int64_t>(step, words) != 1) continue;
    const double wavefronts = gather_wavefronts(gather, e, words, step);
    if (step == 1 || wavefronts < kClearly * best.wavefronts) best = {step, wavefronts};
    if (best.wavefronts <= few) break;
  }
  return best;
}

}  // namespace tx
