// From a plan to a launch: parameters, the compiled variant, and the one place that launches kernels.
#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <utility>

#include "core/pieces_cuda.h"
#include "core/plan_cuda.h"
#include "core/tiles_cuda.h"
#include "core/tuning_cuda.h"
#include "cuda/kernel_narrow.cuh"
#include "cuda/kernel_periodic.cuh"
#include "cuda/kernel_pieces.cuh"
#include "cuda/kernel_simple.cuh"
#include "cuda/kernel_staged.cuh"
#include "cuda/kernel_tile.cuh"
#include "cuda/kernel_tile_gather.cuh"
#include "cuda/kernel_tile_small.cuh"
#include "cuda/kernel_tile_span.cuh"
#include "cuda/kernel_tile_unaligned.cuh"
#include "cuda/params.h"
#include "cuda/run.h"

namespace tx::cuda {
namespace {

constexpr int kMaxDevices = 64;

// Whether launches may begin early on this device: where its kernels wait for their inputs by themselves
// (wait_for_inputs()), as those compiled for sm_90 and later do (what the driver makes of PTX for less does
// not), and the driver can capture such launches into graphs.
bool begins_early(int device) {
  enum : int8_t { kUnknown, kNo, kYes };
  static std::array<std::atomic<int8_t>, kMaxDevices> known{};
  auto& answer = known[device % kMaxDevices];
  if (answer.load(std::memory_order_relaxed) == kUnknown) {
    constexpr int kFirstArch = 90, kFirstDriver = 12030;
    cudaFuncAttributes attributes;
    int driver = 0;
    if (cudaFuncGetAttributes(&attributes, copy_kernel) != cudaSuccess ||
        cudaDriverGetVersion(&driver) != cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    const bool yes = attributes.ptxVersion >= kFirstArch && driver >= kFirstDriver;
    answer.store(yes ? kYes : kNo, std::memory_order_relaxed);
  }
  return answer.load(std::memory_order_relaxed) == kYes;
}

struct Launch {
  const Plan& plan;
  dim3 grid;
  int device;
  cudaStream_t stream;
  bool early;  // may start before what the stream holds is done, which hides part of a launch
};

// Launches `kernel` with the plan's block. Dynamic shared memory beyond 48 KiB has to be opted into once for
// each kernel and device.
template <auto kernel, class Params>
cudaError_t launch(const Launch& l, const Params& params) {
  static std::atomic<uint64_t> opted_in{0};
  constexpr int kFreeShared = 48 * 1024;
  const uint64_t bit = uint64_t{1} << (l.device % kMaxDevices);
  if (l.plan.shared_bytes > kFreeShared && !(opted_in.load(std::memory_order_relaxed) & bit)) {
    int most = 0;
    cudaError_t status = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, l.device);
    if (status == cudaSuccess) {
      status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    }
    if (status != cudaSuccess) return status;
    opted_in.fetch_or(bit, std::memory_order_relaxed);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = l.grid;
  config.blockDim = dim3(static_cast<unsigned>(l.plan.block));
  config.dynamicSmemBytes = static_cast<size_t>(l.plan.shared_bytes);
  config.stream = l.stream;
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = l.early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, params);
}

// The dims of the problem that are not part of a tile: `first`, then from the innermost of the output on.
template <int kMost = kMaxOuterDims, class Inside>
OuterDimsOf<kMost> outer_dims(const Problem& p, Inside inside, int first = -1) {
  OuterDimsOf<kMost> outer;
  const auto add = [&](int d) {
    outer.dims[outer.count++] = {FastDiv(p.dims[d].extent), p.dims[d].in_stride, p.dims[d].out_stride};
  };
  if (first >= 0) add(first);
  for (int d = p.rank - 1; d >= 0; --d) {
    if (d != first && !inside(d)) add(d);
  }
  return outer;
}

FusedDims fused_dims(const Problem& p, const int* dims, int count, int64_t Dim::* stride) {
  FusedDims fused;
  for (int i = 0; i < count; ++i) {
    if (i + 1 < count) fused.extent[i] = FastDiv(p.dims[dims[i]].extent);
    fused.stride[fused.count++] = p.dims[dims[i]].*stride;
  }
  return fused;
}

// For both 2-D kernels.
TileParams tile_params(const Plan& plan, const Place* places, int count) {
  const Problem& p = plan.problem;
  const TileMatrix m = tile_matrix(p, plan.fused_rows, plan.fused_cols, plan.step);
  TileParams t;
  t.batch.count = FastDiv(count);
  std::copy(places, places + count, t.batch.places);
  t.rows = m.rows;
  t.cols = m.cols;
  t.in_pitch = p.dims[m.row_dims[0]].in_stride;
  t.out_pitch = p.dims[m.col_dims[0]].out_stride;
  const int64_t strips = ceil_div(m.cols, plan.tile[m.col_dims[0]]);
  const int64_t matrices = element_count(p) / (m.rows * m.cols);
  t.bands = FastDiv(plan.group);
  t.strips = FastDiv(strips);
  t.groups = FastDiv(plan.grid / (matrices * strips * plan.group));
  t.row_offsets = fused_dims(p, m.row_dims, m.row_dim_count, &Dim::in_stride);
  t.col_offsets = fused_dims(p, m.col_dims, m.col_dim_count, &Dim::out_stride);
  t.outer = outer_dims(p, [&](int d) { return m.has(d); }, plan.first_beyond);
  t.keep = plan.keep;
  t.release = plan.release;
  t.tile_rows = plan.tile[m.row_dims[0]];
  if (plan.kernel == Kernel::kTileUnaligned) {
    t.tile_words = FastDiv(fitted_words(plan.tile[m.col_dims[0]], kUnalignedVariants[plan.variant]));
  }
  return t;
}

SpanParams span_params(const Plan& plan, const Place* places, int count) {
  const Problem& p = plan.problem;
  const TileMatrix m = tile_matrix(p, plan.fused_rows, plan.fused_cols);
  const SpanVariant& v = kSpanVariants[plan.variant];
  const SpanTile tile{plan.tile[m.col_dims[0]], plan.block / 32};
  SpanParams s;
  s.rows = static_cast<int32_t>(m.rows);
  s.pitch = static_cast<int32_t>(p.dims[m.row_dims[0]].in_stride);
  s.strips = FastDiv(ceil_div(m.cols, int64_t{tile.cols}));
  s.tile_words = FastDiv(span_row_words(tile.cols, v));
  s.parts = span_parts(tile.cols, v);
  s.table_bytes = m.row_dim_count > 1 ? span_table_bytes(tile, v) : 0;
  s.row_offsets = fused_dims(p, m.row_dims, m.row_dim_count, &Dim::in_stride);
  s.cols = m.cols;
  s.batch.count = FastDiv(count);
  std::copy(places, places + count, s.batch.places);
  s.outer = outer_dims(p, [&](int d) { return m.has(d); }, plan.first_beyond);
  return s;
}

SmallParams small_params(const Plan& plan, const Place& place) {
  const Problem& p = plan.problem;
  const TileMatrix m = tile_matrix(p, 1, 1);
  SmallParams s;
  s.place = place;
  s.rows = static_cast<uint32_t>(m.rows);
  s.cols = static_cast<uint32_t>(m.cols);
  s.in_pitch = static_cast<uint32_t>(p.dims[m.row_dims[0]].in_stride);
  s.out_pitch = static_cast<uint32_t>(p.dims[m.col_dims[0]].out_stride);
  s.bands_first = ceil_div(m.rows, plan.tile[m.row_dims[0]]) > kMostAlongY;
  s.keep = plan.keep;
  s.release = plan.release;
  s.outer = outer_dims<kMaxSmallOuterDims>(p, [&](int d) { return m.has(d); });
  return s;
}

// Strips and bands along x and y, matrices along z.
dim3 small_grid(const Plan& plan, const SmallParams& s) {
  const TileMatrix m = tile_matrix(plan.problem, 1, 1);
  const auto bands = static_cast<unsigned>(ceil_div(m.rows, plan.tile[m.row_dims[0]]));
  const auto strips = static_cast<unsigned>(ceil_div(m.cols, plan.tile[m.col_dims[0]]));
  const unsigned matrices = static_cast<unsigned>(plan.grid) / (bands * strips);
  return s.bands_first ? dim3(bands, strips, matrices) : dim3(strips, bands, matrices);
}

// The compiled variants of the 2-D kernels, a row of their table each.
struct SmallKernels {
  static constexpr size_t kCount = std::size(kSmallVariants);
  template <size_t kRow>
  static constexpr auto kernel() {
    constexpr SmallVariant v = kSmallVariants[kRow];
    return small_kernel<SmallConfig<v.element_bytes, v.rows, v.cols, v.threads, v.vectors, v.keeps()>>;
  }
};

struct TileKernels {
  static constexpr size_t kCount = std::size(kTileVariants);
  template <size_t kRow>
  static constexpr auto kernel() {
    constexpr TileVariant v = kTileVariants[kRow];
    using Config = TileConfig<v.element_bytes, v.in_bytes, v.out_bytes, v.threads, v.min_blocks, v.fused>;
    static_assert(Config::kSharedBytes == v.shared_bytes(), "table and kernel agree");
    return tile_kernel<Config>;
  }
};

struct UnalignedKernels {
  static constexpr size_t kCount = std::size(kUnalignedVariants);
  template <size_t kRow>
  static constexpr auto kernel() {
    constexpr UnalignedVariant v = kUnalignedVariants[kRow];
    return unaligned_kernel<UnalignedConfig<v.element_bytes, v.words, v.out_bytes, v.warps, v.min_blocks,
                                            v.step, v.in_align, v.out_align, v.fits_rows, v.many_dims>>;
  }
};

GatherParams gather_params(const Plan& plan, const Place* places, int count) {
  const Problem& p = plan.problem;
  const TileMatrix m = tile_matrix(p, plan.fused_rows, plan.fused_cols);
  const GatherVariant& v = kGatherVariants[plan.variant];
  GatherParams s;
  s.rows = m.rows;
  s.cols = static_cast<uint32_t>(m.cols);
  s.row_bytes = static_cast<uint32_t>(m.cols * p.element_bytes);
  s.tile_rows = plan.tile[m.row_dims[0]];
  s.parts = FastDiv(ceil_div(m.cols, v.block() * v.batch));
  s.out_pitch = p.dims[m.col_dims[0]].out_stride;
  s.bands = FastDiv(ceil_div(m.rows, int64_t{s.tile_rows}));
  s.col_offsets = fused_dims(p, m.col_dims, m.col_dim_count, &Dim::out_stride);
  s.batch.count = FastDiv(count);
  std::copy(places, places + count, s.batch.places);
  s.outer = outer_dims(p, [&](int d) { return m.has(d); }, plan.first_beyond);
  s.keep = plan.keep;
  return s;
}

template <bool kFused>
struct GatherKernels {
  static constexpr size_t kCount = std::size(kGatherVariants);
  template <size_t kRow>
  static constexpr auto kernel() {
    constexpr GatherVariant v = kGatherVariants[kRow];
    return gather_kernel<GatherConfig<v.element_bytes, v.batch, kFused>>;
  }
};

template <bool kFused>
struct SpanKernels {
  static constexpr size_t kCount = std::size(kSpanVariants);
  template <size_t kRow>
  static constexpr auto kernel() {
    constexpr SpanVariant v = kSpanVariants[kRow];
    return span_kernel<SpanConfig<v.element_bytes, v.batch, v.registers, v.shifts_in, kFused>>;
  }
};

template <int E, PieceForm kForm>
struct PiecesKernels {
  static constexpr size_t kCount = std::size(kPiecesSlots);
  template <size_t kRow>
  static constexpr auto kernel() {
    return pieces_kernel<E, kPiecesSlots[kRow], kForm>;
  }
};

template <class Kernels, class Params, size_t... kRow>
cudaError_t run_variant(const Launch& l, const Params& params, std::index_sequence<kRow...>) {
  using Run = cudaError_t (*)(const Launch&, const Params&);
  static constexpr Run kRuns[] = {&launch<Kernels::template kernel<kRow>(), Params>...};
  return kRuns[l.plan.variant](l, params);
}

template <class Kernels, class Params>
cudaError_t run_variant(const Launch& l, const Params& params) {
  return run_variant<Kernels>(l, params, std::make_index_sequence<Kernels::kCount>());
}

NarrowParams narrow_params(const Plan& plan, const NarrowMatrix& m, const uint8_t* in, uint8_t* out) {
  const Problem& p = plan.problem;
  const bool vectors = plan.variant > 0;
  const int64_t per_word = (vectors ? kVector : word_bytes(p.element_bytes)) / p.element_bytes;
  NarrowParams n;
  n.in = in;
  n.out = out;
  n.rows = static_cast<uint32_t>(m.rows);
  n.tile_words = static_cast<uint32_t>(plan.tile[m.col_dim()] / per_word);
  n.words = m.cols / per_word;
  n.pitch = m.pitch;
  constexpr int kLogBanks = 5;
  n.log_spread = kLogBanks;
  for (uint32_t r = n.rows; r % 2 == 0 && n.log_spread > 0; r /= 2) --n.log_spread;
  uint64_t bits = reinterpret_cast<uint64_t>(m.merges ? out : in);
  for (int d = 0; d < p.rank; ++d) {
    if (m.matrix.has(d)) continue;
    bits |= static_cast<uint64_t>(m.merges ? p.dims[d].out_stride : p.dims[d].in_stride);
  }
  n.wide = bits % kVector == 0;
  n.keep = plan.keep;
  n.release = plan.release;
  const int64_t tiles = ceil_div(n.words, int64_t{n.tile_words});
  n.tiles = FastDiv(tiles);
  n.warps = vectors ? static_cast<uint32_t>(element_count(p) / (m.rows * m.cols) * tiles) : 0;
  n.outer = outer_dims(p, [&](int d) { return m.matrix.has(d); });
  return n;
}

// The kernel that moves few rows by vectors: a variant for each number of them, of which the first is for 2.
// Variant 0 is the kernel that moves words.
template <int E, bool kMerge>
struct NarrowKernels {
  static constexpr size_t kCount = kNarrowVectorRows;
  template <size_t kRow>
  static constexpr auto kernel() {
    if constexpr (kRow > 0) {
      return narrow_vectors_kernel<E, kRow + 1, kMerge>;
    } else {
      return narrow_kernel<E, kMerge, 1>;
    }
  }
};

template <int E, bool kMerge>
cudaError_t run_narrow(const Launch& l, const NarrowMatrix& m, const NarrowParams& n) {
  if (l.plan.variant == 0 && narrow_words_at_once(m.rows) == 2)
    return launch<narrow_kernel<E, kMerge, 2>>(l, n);
  return run_variant<NarrowKernels<E, kMerge>>(l, n);
}

void add_dim(PieceDims& dims, int64_t extent, int64_t stride) {
  dims.dims[dims.count++] = {FastDiv(extent), static_cast<uint32_t>(stride)};
}

PeriodicParams periodic_params(const Plan& plan, const Period& period, const uint8_t* in, uint8_t* out) {
  const Problem& p = plan.problem;
  PeriodicParams n;
  n.in = in;
  n.out = out;
  n.bytes = element_count(p) * p.element_bytes;
  n.keep = plan.keep;
  n.release = plan.release;
  n.chunk_bytes = static_cast<uint32_t>(period.chunk_bytes);
  n.period = FastDiv(period.words);
  n.word_step = static_cast<uint32_t>(plan.word_step);
  n.piece = FastDiv(period.piece);
  for (int d = last(p); d > 0; --d) add_dim(n.dims, p.dims[d].extent, p.dims[d].in_stride);
  return n;
}

template <int E>
cudaError_t run_periodic(const Launch& l, const uint8_t* in, uint8_t* out) {
  const Period period = find_period(l.plan.problem);
  const PeriodicParams params = periodic_params(l.plan, period, in, out);
  switch (ceil_div(period.words, int64_t{period.threads})) {
    case 1:
      return launch<periodic_kernel<E, 1>>(l, params);
    case 2:
      return launch<periodic_kernel<E, 2>>(l, params);
    case 3:
      return launch<periodic_kernel<E, 3>>(l, params);
    default:
      return launch<periodic_kernel<E, kPeriodicMostSlots>>(l, params);
  }
}

PieceRunDims piece_run_dims(const Problem& p, const Pieces& pieces, const PieceSide& side,
                            int64_t Dim::* stride) {
  PieceRunDims dims;
  for (int i = 0; i < side.run_dims; ++i) {
    const int of = side.run_dim[i], d = pieces.dim[of];
    dims.dims[dims.count++] = {FastDiv(pieces.tile[d]), static_cast<uint32_t>(side.shared_stride[of]),
                               p.dims[d].*stride};
  }
  return dims;
}

PiecesParams pieces_params(const Plan& plan, const Pieces& pieces, const uint8_t* in, uint8_t* out) {
  const Problem& p = plan.problem;
  PiecesParams n;
  n.in = in;
  n.out = out;
  n.keep = plan.keep;
  n.count = static_cast<uint32_t>(pieces.count);
  n.at_once = static_cast<uint32_t>(plan.group);
  n.slot_bytes = static_cast<uint32_t>(pieces.slot_bytes);
  n.in_runs = FastDiv(pieces.in.runs);
  n.in_run_bytes = static_cast<uint32_t>(pieces.in.run_bytes);
  constexpr uint32_t kLogWarp = 5, kVectorsOfLane = 2;
  n.log_lanes = 0;
  while (n.log_lanes < kLogWarp && (kVectorsOfLane * kVector << n.log_lanes) < n.in_run_bytes) ++n.log_lanes;
  n.in_run_dims = piece_run_dims(p, pieces, pieces.in, &Dim::in_stride);
  n.out_runs = static_cast<uint32_t>(pieces.out.runs);
  n.out_run_bytes = static_cast<uint32_t>(pieces.out.run_bytes);
  n.run_elements = static_cast<uint32_t>(pieces.out.run_bytes / p.element_bytes);
  n.run_words = FastDiv(pieces.words / pieces.out.runs);
  uint32_t threads = 4;
  while (2 * threads * n.out_runs <= static_cast<uint32_t>(plan.block) && threads * kVector < n.out_run_bytes)
    threads *= 2;
  n.run_threads = FastDiv(threads);
  n.runs_at_once = static_cast<uint32_t>(plan.block) / threads;
  n.out_run_dims = piece_run_dims(p, pieces, pieces.out, &Dim::out_stride);
  n.words = FastDiv(pieces.words);
  n.word_step = static_cast<uint32_t>(plan.word_step);
  n.row = FastDiv(pieces.tile[pieces.dim[0]]);
  n.row_stride = static_cast<uint32_t>(pieces.in.shared_stride[0]);
  n.rows = static_cast<uint32_t>(pieces.piece / n.row.divisor);
  for (int i = 1; i < pieces.dims; ++i) {
    add_dim(n.row_dims, pieces.tile[pieces.dim[i]], pieces.in.shared_stride[i]);
  }
  n.in_back = n.out_back = 0;
  const auto add = [&](int d) {
    const Dim& dim = p.dims[d];
    const int64_t tile = pieces.tile[d], count = ceil_div(dim.extent, tile);
    if (count == 1) return;
    n.outer.dims[n.outer.count++] = {FastDiv(count), tile * dim.in_stride, tile * dim.out_stride};
  };
  if (pieces.cut >= 0) {
    const Dim& dim = p.dims[pieces.cut];
    const int64_t back = round_up(dim.extent, int64_t{pieces.tile[pieces.cut]}) - dim.extent;
    n.in_back = back * dim.in_stride;
    n.out_back = back * dim.out_stride;
    add(pieces.cut);
  }
  for (int d = last(p); d >= 0; --d) {
    if (d != pieces.cut) add(d);
  }
  return n;
}

template <int E>
cudaError_t run_pieces(const Launch& l, const uint8_t* in, uint8_t* out) {
  const Pieces pieces = pieces_of(l.plan.problem, l.plan.tile);
  const PiecesParams params = pieces_params(l.plan, pieces, in, out);
  if (pieces.is_dense()) return run_variant<PiecesKernels<E, PieceForm::kDense>>(l, params);
  return pieces.out.runs == 1 ? run_variant<PiecesKernels<E, PieceForm::kOneRun>>(l, params)
                              : run_variant<PiecesKernels<E, PieceForm::kRuns>>(l, params);
}

RunsParams runs_params(const Plan& plan, const uint8_t* in, uint8_t* out) {
  const Problem& p = plan.problem;
  RunsParams r;
  r.in = in;
  r.out = out;
  r.keep = plan.keep;
  r.run_bytes = p.dims[last(p)].extent * p.element_bytes;
  const int first = last(p) - plan.fused_rows + 1;  // of the dims of a span
  int dims[kMaxFusedDims] = {};
  int count = 0;
  r.runs = 1;
  for (int d = last(p) - 1; d >= first; --d) r.runs *= p.dims[d].extent, dims[count++] = d;
  r.fused = fused_dims(p, dims, count, &Dim::in_stride);
  r.span_bytes = r.runs * r.run_bytes;
  if (r.runs > 1) r.run = FastDiv(r.run_bytes);
  r.chunks = FastDiv(runs_chunks(r.span_bytes));
  r.outer = outer_dims(p, [&](int d) { return d >= first; });
  return r;
}

// Whether 31 bits count the elements of both sides, and those between them.
bool is_near(const Problem& p) {
  return std::max(span_bytes(p, &Dim::in_stride), span_bytes(p, &Dim::out_stride)) <= p.element_bytes << 31;
}

template <int kRank>
StridedParams<kRank> strided_params(const Problem& p, const uint8_t* in, uint8_t* out) {
  using Offset = typename StridedParams<kRank>::Offset;
  StridedParams<kRank> s;
  s.in = in;
  s.out = out;
  s.count = static_cast<uint32_t>(element_count(p));
  s.rank = p.rank;
  for (int d = 0; d < p.rank; ++d) {
    const Dim& dim = p.dims[last(p) - d];
    s.dims[d] = {FastDiv(dim.extent), static_cast<Offset>(dim.in_stride / p.element_bytes),
                 static_cast<Offset>(dim.out_stride / p.element_bytes)};
  }
  return s;
}

StridedWideParams strided_wide_params(const Problem& p, const uint8_t* in, uint8_t* out) {
  StridedWideParams s;
  s.in = in;
  s.out = out;
  s.count = element_count(p);
  s.rank = p.rank;
  std::reverse_copy(p.dims, p.dims + p.rank, s.dims);
  return s;
}

template <int E, int kVariant, bool kKeep = false, int kRank = 1>
cudaError_t run_strided(const Launch& l, const uint8_t* in, uint8_t* out) {
  constexpr StridedVariant v = strided_variant(E, kVariant);
  const Problem& p = l.plan.problem;
  if constexpr (kRank > kStridedRanks) {
    return launch<strided_kernel<E, v.word_bytes, v.words, kKeep, 0>>(l, strided_params<0>(p, in, out));
  } else {
    if (p.rank != kRank || !is_near(p)) return run_strided<E, kVariant, kKeep, kRank + 1>(l, in, out);
    return launch<strided_kernel<E, v.word_bytes, v.words, kKeep, kRank>>(l,
                                                                          strided_params<kRank>(p, in, out));
  }
}

StagedParams staged_params(const Plan& plan, const uint8_t* in, uint8_t* out) {
  const StagedLayout& layout = plan.layout;
  const Problem p = staged_blocks(plan.problem, layout.block);
  int32_t tile[kMaxDims];
  std::copy(plan.tile, plan.tile + p.rank, tile);
  const int dense = input_dense_dim(plan.problem);  // of elements: among blocks another dim can look like it
  if (layout.block > 1) {
    tile[last(p)] /= layout.block;
    tile[dense] /= layout.block;
  }
  const auto cut = [&](int d) {
    return d == layout.in_cut ? Cut::kIn : d == layout.out_cut ? Cut::kOut : Cut::kNone;
  };
  StagedParams s;
  s.in = in;
  s.out = out;
  s.in_cut_dim = s.out_cut_dim = -1;
  s.in_cut_tile = s.out_cut_tile = 0;
  s.in_cut_extent = s.out_cut_extent = 0;
  for (int d = last(p); d >= 0; --d) {
    const int64_t tiles = ceil_div(p.dims[d].extent, tile[d]);
    if (tiles == 1) continue;
    if (d == layout.in_cut)
      s.in_cut_dim = s.grid.count, s.in_cut_tile = tile[d], s.in_cut_extent = p.dims[d].extent;
    if (d == layout.out_cut)
      s.out_cut_dim = s.grid.count, s.out_cut_tile = tile[d], s.out_cut_extent = p.dims[d].extent;
    s.grid.dims[s.grid.count++] = {FastDiv(tiles), p.dims[d].in_stride * tile[d],
                                   p.dims[d].out_stride * tile[d]};
  }

  const auto prefix = [&](const StagedSide& side) {
    int64_t elements = 1;
    for (int i = 0; i + 1 < side.chain_count; ++i) elements *= tile[side.chain[i]];
    return static_cast<int32_t>(elements);
  };
  const auto element = static_cast<int32_t>(p.element_bytes);

  const int in_last = layout.in.chain[layout.in.chain_count - 1];
  const auto step = static_cast<int32_t>(input_step(p));
  s.in_prefix_bytes = prefix(layout.in) * step;
  s.in_slack_bytes = step - element;
  s.in_last = tile[in_last];
  s.in_last_cut = cut(in_last);
  s.in_axis_count = 0;
  s.in_run_count = 1;
  const auto add_in_axis = [&](int32_t extent, int32_t shared_stride, Cut axis_cut, int64_t stride) {
    s.in_axes[s.in_axis_count++] = {FastDiv(extent), shared_stride, axis_cut, stride};
    s.in_run_count *= extent;
  };
  // The rows of a block come in as runs of their own.
  s.block_shared = layout.padded ? staged_padded(layout.block_shared, element) : layout.block_shared;
  s.block_out = layout.block > 1 ? p.dims[dense].out_stride / layout.block : 0;
  if (layout.block > 1) {
    add_in_axis(layout.block, layout.block_shared, Cut::kNone, p.dims[last(p)].in_stride / layout.block);
  }
  for (int i = 0; i < layout.in.axis_count; ++i) {
    const int d = layout.in.axes[i];
    add_in_axis(tile[d], layout.shared_stride[d], cut(d), p.dims[d].in_stride);
  }
  // A run can start anywhere in its first granule: at worst on the granule's last element.
  s.in_pieces = FastDiv(ceil_div(int64_t{s.in_prefix_bytes} * s.in_last + kVector - element, kVector));

  const int out_last = layout.out.chain[layout.out.chain_count - 1];
  const int repeat = layout.repeat_dim;
  s.out_prefix = prefix(layout.out);
  s.out_last = tile[out_last];
  s.out_last_cut = cut(out_last);
  s.out_axis_count = layout.out.axis_count;
  s.out_run_count = 1;
  s.repeat_axis = -1;
  for (int i = 0; i < layout.out.axis_count; ++i) {
    const int d = layout.out.axes[i];
    const int extent = d == repeat ? layout.repeat_step : tile[d];
    s.out_axes[i] = {FastDiv(extent), layout.shared_stride[d], cut(d), p.dims[d].out_stride};
    s.out_run_count *= extent;
    if (d == repeat) s.repeat_axis = i;
  }
  for (int i = 0; i < kMaxStagedChain; ++i) {
    const int d = layout.out.chain[std::min(i, layout.out.chain_count - 1)];
    s.chain[i] = {FastDiv(tile[d]), layout.shared_stride[d], cut(d), p.dims[d].out_stride};
  }
  s.repeat_step = layout.repeat_step;
  s.repeat_extent = repeat < 0 ? 1 : tile[repeat];
  s.repeat_cut = repeat < 0 ? Cut::kNone : cut(repeat);
  s.repeat_elements = repeat == out_last ? s.out_prefix * layout.repeat_step : 0;
  s.repeat_out = repeat < 0 ? 0 : p.dims[repeat].out_stride * layout.repeat_step;
  const int32_t shift = repeat < 0 ? 0 : layout.shared_stride[repeat] * layout.repeat_step;
  s.keep = plan.keep;
  s.padded = layout.padded;
  s.vectors = layout.vectors && !layout.padded;
  s.repeat_shared = layout.padded ? staged_padded(shift, element) : shift;
  s.out_words = FastDiv(staged_out_words(p, layout, tile));
  s.align = layout.align;
  return s;
}

template <int E, int kBlock>
cudaError_t run_staged_chain(const Launch& l, const StagedParams& params) {
  switch (l.plan.layout.out.chain_count) {
    case 1:
      return launch<staged_kernel<E, 1, kBlock>>(l, params);
    case 2:
      return launch<staged_kernel<E, 2, kBlock>>(l, params);
    default:
      return launch<staged_kernel<E, 3, kBlock>>(l, params);
  }
}

template <int E>
cudaError_t run_staged(const Launch& l, const StagedParams& params) {
  if constexpr (E < 4) {
    if (l.plan.layout.block > 1) return run_staged_chain<4, 4 / E>(l, params);
  }
  return run_staged_chain<E, 1>(l, params);
}

// Kernels that are compiled once for each element width.
template <int E>
cudaError_t run_width(const Launch& l, const uint8_t* in, uint8_t* out) {
  switch (l.plan.kernel) {
    case Kernel::kRows:
      if constexpr (E <= kRunsWidest) {
        const RunsParams runs = runs_params(l.plan, in, out);
        return l.plan.variant == 0 ? launch<runs_kernel<false>>(l, runs) : launch<runs_kernel<true>>(l, runs);
      }
      return cudaErrorInvalidValue;
    case Kernel::kNarrow:
      if constexpr (E <= kNarrowWidest) {
        const NarrowMatrix m = narrow_matrix(l.plan.problem);
        const NarrowParams n = narrow_params(l.plan, m, in, out);
        return m.merges ? run_narrow<E, true>(l, m, n) : run_narrow<E, false>(l, m, n);
      }
      return cudaErrorInvalidValue;
    case Kernel::kPeriodic:
      return run_periodic<E>(l, in, out);
    case Kernel::kPieces:
      if constexpr (E <= kPiecesWidest) {
        return run_pieces<E>(l, in, out);
      }
      return cudaErrorInvalidValue;
    case Kernel::kStaged:
      return run_staged<E>(l, staged_params(l.plan, in, out));
    case Kernel::kStrided: {
      const Problem& p = l.plan.problem;
      if (element_count(p) >= kFastDivLimit) {
        return launch<strided_wide_kernel<E>>(l, strided_wide_params(p, in, out));
      }
      if constexpr (strided_keeps(E, kStridedSeveral)) {
        if (l.plan.keep) return run_strided<E, kStridedSeveral, true>(l, in, out);
      }
      if (l.plan.variant == kStridedOne) return run_strided<E, kStridedOne>(l, in, out);
      return l.plan.variant == kStridedSeveral ? run_strided<E, kStridedSeveral>(l, in, out)
                                               : run_strided<E, kStridedWord>(l, in, out);
    }
    default:
      return cudaErrorInvalidValue;
  }
}

// Problems that one launch takes.
int batch_most(const Plan& plan) {
  const bool takes_several = plan.kernel == Kernel::kTile || plan.kernel == Kernel::kTileUnaligned ||
                             plan.kernel == Kernel::kTileSpan || plan.kernel == Kernel::kTileGather;
  if (!takes_several) return 1;
  return static_cast<int>(std::clamp<int64_t>((kFastDivLimit - 1) / plan.grid, 1, kMaxBatch));
}

cudaError_t run_batch(const Plan& plan, const Place* places, int count, int device, cudaStream_t stream) {
  const auto* in = static_cast<const uint8_t*>(places[0].in);
  auto* out = static_cast<uint8_t*>(places[0].out);
  const Launch l{plan, dim3(static_cast<unsigned>(plan.grid * count)), device, stream, begins_early(device)};
  switch (plan.kernel) {
    case Kernel::kCopy: {
      const CopyParams params{in, out, element_count(plan.problem) * plan.problem.element_bytes, plan.keep,
                              plan.release};
      return plan.variant == 0 ? launch<copy_kernel>(l, params) : launch<short_copy_kernel>(l, params);
    }
    case Kernel::kTileSmall: {
      const SmallParams params = small_params(plan, places[0]);
      return run_variant<SmallKernels>({plan, small_grid(plan, params), device, stream, l.early}, params);
    }
    case Kernel::kTile:
      return run_variant<TileKernels>(l, tile_params(plan, places, count));
    case Kernel::kTileUnaligned:
      return run_variant<UnalignedKernels>(l, tile_params(plan, places, count));
    case Kernel::kTileGather:
      if (plan.fused_cols == 1)
        return run_variant<GatherKernels<false>>(l, gather_params(plan, places, count));
      return run_variant<GatherKernels<true>>(l, gather_params(plan, places, count));
    case Kernel::kTileSpan:
      if (plan.fused_rows == 1) return run_variant<SpanKernels<false>>(l, span_params(plan, places, count));
      return run_variant<SpanKernels<true>>(l, span_params(plan, places, count));
    default:
      break;
  }
  switch (plan.problem.element_bytes) {
    case 1:
      return run_width<1>(l, in, out);
    case 2:
      return run_width<2>(l, in, out);
    case 4:
      return run_width<4>(l, in, out);
    case 8:
      return run_width<8>(l, in, out);
    case 16:
      return run_width<16>(l, in, out);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t run(const Plan& plan, const Place* places, int count, int device, cudaStream_t stream) {
  if (plan.kernel == Kernel::kNone || count == 0) return cudaSuccess;
  // Launches of equal size: a problem alone in the last would have nothing to share the SMs with.
  const int launches = static_cast<int>(ceil_div(count, batch_most(plan)));
  for (int i = 0; i < launches; ++i) {
    const int first = count * i / launches, last = count * (i + 1) / launches;
    const cudaError_t status = run_batch(plan, places + first, last - first, device, stream);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t device_facts(int device, DeviceFacts& facts) {
  // Written once a device; the flag orders the facts before their readers.
  static std::array<DeviceFacts, kMaxDevices> known;
  static std::array<std::atomic<bool>, kMaxDevices> read{};
  const bool kept = device >= 0 && device < kMaxDevices;
  if (kept && read[device].load(std::memory_order_acquire)) {
    facts = known[device];
    return cudaSuccess;
  }
  int major = 0, minor = 0;
  const std::pair<cudaDeviceAttr, int*> wanted[] = {
      {cudaDevAttrMultiProcessorCount, &facts.sm_count},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &facts.shared_per_block},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &facts.shared_per_sm},
      {cudaDevAttrL2CacheSize, &facts.l2_bytes},
      {cudaDevAttrComputeCapabilityMajor, &major},
      {cudaDevAttrComputeCapabilityMinor, &minor}};
  for (const auto& [attribute, value] : wanted) {
    const cudaError_t status = cudaDeviceGetAttribute(value, attribute, device);
    if (status != cudaSuccess) return status;
  }
  facts.arch = 10 * major + minor;
  if (kept) {
    // Two threads may both write here, the same bytes.
    known[device] = facts;
    read[device].store(true, std::memory_order_release);
  }
  return cudaSuccess;
}

}  // namespace tx::cuda
