// Random problems through the CPU planner and every kernel that takes them, in each instruction set of this
// machine: every output byte, and every byte around and between outputs, is compared. Knows no torch: threads
// are std::thread.
//
//   cpu_property [--cases N] [--seed S] [--isa NAME] [--case K]
//
// Case K of a seed is the same problem on every machine. A failure prints one line that reproduces it. Inputs
// lie between pages that cannot be touched and are read-only themselves, so reading outside or writing there
// is a fault.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/normalize.h"
#include "core/pieces_cpu.h"
#include "core/plan_cpu.h"
#include "core/prefetch_cpu.h"
#include "core/stores_cpu.h"
#include "core/tiles_cpu.h"
#include "cpu/run.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include <sanitizer/common_interface_defs.h>
#define TX_SANITIZED 1
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) (static_cast<void>(address), static_cast<void>(bytes))
#endif

namespace {

using tx::CpuFacts;
using tx::Dim;
using tx::Kernel;
using tx::Plan;
using tx::Problem;
using tx::Stores;
using tx::TileOrder;

constexpr int64_t kLine = 64;
constexpr int64_t kArena = 8 << 20;  // most bytes that one side of a problem may span
constexpr int64_t kGuard = 4096;     // bytes compared on either side of an output
constexpr char kUsage[] = "usage: cpu_property [--cases N] [--seed S] [--isa NAME] [--case K]\n";

class Random {  // splitmix64: the same numbers with every library
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed * 0x9E3779B97F4A7C15u + stream) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }

 private:
  uint64_t state_;
};

// ---- what a failure prints ----

char g_case[4096];  // the case at hand, for signal handlers and sanitizers

void print_case() {
  const ssize_t written = write(STDERR_FILENO, g_case, std::strlen(g_case));
  static_cast<void>(written);
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  print_case();
  std::_Exit(1);
}

#ifndef TX_SANITIZED
void on_fault(int signal) {
  print_case();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}
#endif

// ---- memory ----

class Arena {  // kArena bytes between guard pages
 public:
  Arena() : page_(sysconf(_SC_PAGESIZE)) {
    const int64_t bytes = kArena + 2 * page_ + 2 * kGuard;
    void* all =
        mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) std::abort();
    begin_ = static_cast<char*>(all) + page_;
    end_ = static_cast<char*>(all) + bytes - page_;
    mprotect(all, static_cast<size_t>(page_), PROT_NONE);
    mprotect(end_, static_cast<size_t>(page_), PROT_NONE);
  }
  char* begin() const { return begin_; }
  char* end() const { return end_; }
  void make_read_only() { mprotect(begin_, static_cast<size_t>(end_ - begin_), PROT_READ); }

 private:
  const int64_t page_;
  char* begin_;
  char* end_;
};

// ---- problems ----

// Strides in which no two elements share memory, the last of `order` being the innermost dim.
void nested_strides(Random& random, Problem& p, const int* order, int64_t Dim::* stride, int padding) {
  int64_t step = p.element_bytes * (random.chance(12) ? random.between(2, 9) : 1);
  for (int k = p.rank - 1; k >= 0; --k) {
    p.dims[order[k]].*stride = step;
    step *= p.dims[order[k]].extent;
    if (random.chance(padding)) step += p.element_bytes * random.pick<int64_t>({1, 2, 3, 4, 8, 16, 61});
    if (random.chance(padding / 3)) step = (step + kLine - 1) / kLine * kLine;
  }
}

int64_t span(const Problem& p, int64_t Dim::* stride) {
  int64_t last = 0;
  for (int d = 0; d < p.rank; ++d) last += (p.dims[d].extent - 1) * p.dims[d].*stride;
  return last + p.element_bytes;
}

// patches: of dims of which every other one is very short, as in patches of images.
Problem random_problem(Random& random, bool patches) {
  Problem p;
  p.element_bytes = int64_t{1} << random.below(5);
  // Some of many short dims, of which pieces and the sides of tiles are made, or batches of small matrices;
  // of these some that have few rows and few columns, one next to the other.
  const bool narrow = !patches && random.chance(6), short_dims = !patches && !narrow && random.chance(25);
  const bool batch = narrow || (short_dims && random.chance(40));
  p.rank = static_cast<int>(narrow              ? 3
                            : batch             ? random.between(3, 4)
                            : short_dims        ? random.between(3, 9)
                            : patches           ? random.between(4, 6)
                            : random.chance(35) ? 2
                                                : random.below(7));
  int order[9];
  for (int d = 0; d < p.rank; ++d) order[d] = d;
  // Mostly small, so that many run in a second; some of several tiles and shares a side.
  const int64_t most = patches             ? 24 << 10
                       : random.chance(15) ? 400 << 10
                       : random.chance(40) ? 24 << 10
                                           : 1500;
  int64_t count = 1;
  for (int d = 0; d < p.rank; ++d) {
    const int64_t room = std::max<int64_t>(most / count, 1);
    int64_t extent = random.pick<int64_t>({1, 2, 3, 4, 5, 6, 7, 8, 16, 17, 31, 32, 64, 65, 130, 257, 600});
    if (random.chance(30)) extent = random.between(1, 300);
    if (short_dims && !random.chance(15)) extent = random.between(2, batch && random.chance(50) ? 24 : 6);
    if (narrow) extent = random.between(2, 8);
    if (patches) extent = d % 2 == 1 ? random.between(2, 8) : random.between(2, 32);
    if (d + 1 == p.rank && random.chance(20)) extent = room;
    if (random.chance(1)) extent = 0;
    p.dims[d].extent = std::min(extent, room);
    count *= std::max<int64_t>(p.dims[d].extent, 1);
  }
  for (int d = p.rank - 1; d > 0; --d) std::swap(p.dims[d].extent, p.dims[random.below(d + 1)].extent);
  if (batch) p.dims[0].extent = random.between(50, 400);
  if (random.chance(10)) {
    for (int d = p.rank - 1; d > 0; --d) std::swap(order[d], order[random.below(d + 1)]);
  }
  nested_strides(random, p, order, &Dim::out_stride, narrow || random.chance(60) ? 0 : 30);
  const int kept = batch && random.chance(50)        ? 1  // outer dims
                   : short_dims && random.chance(40) ? static_cast<int>(random.below(p.rank))
                                                     : 0;
  // Some with runs that are contiguous on both sides.
  const int moved = p.rank - 1 - (p.rank > 2 && random.chance(15));
  for (int d = moved; d > kept; --d) std::swap(order[d], order[kept + random.below(d + 1 - kept)]);
  nested_strides(random, p, order, &Dim::in_stride, narrow || random.chance(60) ? 0 : 30);
  for (int d = 0; d < p.rank; ++d) {
    if (random.chance(4)) p.dims[d].in_stride = 0;                // expanded
    if (random.chance(2)) p.dims[d].in_stride = p.element_bytes;  // windows that overlap
  }
  return p;
}

// A matrix to rows of whole lines that are so far apart that their lines are written one after the other.
Problem far_rows(Random& random) {
  Problem p;
  p.element_bytes = int64_t{1} << random.below(3);
  p.rank = 2;
  const int64_t pitch = 2048 * random.between(1, 2), rows = random.between(1, 400);
  const int64_t row_bytes = random.chance(50) ? pitch : kLine * random.between(4, pitch / kLine);
  p.dims[0] = {rows, p.element_bytes, pitch};
  p.dims[1] = {row_bytes / p.element_bytes, (rows + random.below(3)) * p.element_bytes, p.element_bytes};
  return p;
}

// Where `bytes` bytes go: against the guard before or behind them, or anywhere.
char* place(Random& random, const Arena& arena, int64_t bytes, int64_t element_bytes, int64_t guard) {
  const int64_t room = arena.end() - arena.begin() - 2 * guard - bytes;
  int64_t at = random.chance(40) ? room : random.chance(40) ? 0 : std::min<int64_t>(random.below(4096), room);
  if (random.chance(30)) at -= at % kLine;
  if (!random.chance(3))
    at -= at % element_bytes;  // memory from elsewhere need not be aligned to its element
  return arena.begin() + guard + at;
}

// What the problem says, an element at a time.
void reference(const Problem& p, const char* in, char* out) {
  if (tx::element_count(p) == 0) return;
  int64_t index[tx::kMaxDims] = {};
  for (;;) {
    std::memcpy(out, in, static_cast<size_t>(p.element_bytes));
    int d = p.rank - 1;
    for (; d >= 0; --d) {
      in += p.dims[d].in_stride;
      out += p.dims[d].out_stride;
      if (++index[d] < p.dims[d].extent) break;
      in -= p.dims[d].extent * p.dims[d].in_stride;
      out -= p.dims[d].extent * p.dims[d].out_stride;
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

// ---- threads ----

void on_threads(int64_t begin, int64_t end, int64_t grain, tx::cpu::RangeBody body) {
  std::vector<std::thread> threads;
  for (int64_t at = begin; at < end; at += grain) {
    threads.emplace_back([=] { body(at, std::min(at + grain, end)); });
  }
  for (std::thread& thread : threads) thread.join();
}

struct Lines {  // which share of the work wrote each line of the output
  char* begin = nullptr;
  int64_t count = 0;
  int64_t shared = 0;
};
Lines g_lines;

// One share after the other, the last first, noting the lines that each writes.
void one_by_one(int64_t begin, int64_t end, int64_t grain, tx::cpu::RangeBody body) {
  std::vector<char> before(g_lines.begin, g_lines.begin + g_lines.count * kLine);
  std::vector<char> written(static_cast<size_t>(g_lines.count));
  g_lines.shared = 0;
  for (int64_t at = begin + (end - begin - 1) / grain * grain; at >= begin; at -= grain) {
    body(at, std::min(at + grain, end));
    for (int64_t line = 0; line < g_lines.count; ++line) {
      char* const now = g_lines.begin + line * kLine;
      char* const was = before.data() + line * kLine;
      if (std::memcmp(now, was, kLine) == 0) continue;
      std::memcpy(was, now, kLine);
      g_lines.shared += written[static_cast<size_t>(line)];
      written[static_cast<size_t>(line)] = 1;
    }
  }
}

// Outputs of which no line may be written by two threads: those whose rows, and tiles, all start on lines,
// and contiguous ones that have rows enough between the threads' shares for one to start on a line.
bool lines_can_be_kept_apart(const Plan& plan) {
  const Problem& p = plan.problem;
  if (p.rank == 0 || p.out_address % kLine != 0) return false;
  const int64_t last = plan.tile[p.rank - 1];
  bool rows_on_lines =
      p.element_bytes <= 16 || last == p.dims[p.rank - 1].extent || last * p.element_bytes % kLine == 0;
  bool contiguous = true;
  int64_t stride = p.element_bytes;
  for (int d = p.rank - 1; d >= 0; --d) {
    rows_on_lines = rows_on_lines && (d + 1 == p.rank || p.dims[d].out_stride % kLine == 0);
    contiguous = contiguous && p.dims[d].out_stride == stride;
    stride *= p.dims[d].extent;
  }
  const int64_t row = plan.tile[0] * p.dims[0].out_stride;
  const int64_t rows_a_line = kLine / std::gcd(kLine, row);
  const int64_t rows = p.dims[0].extent / plan.tile[0];
  return rows_on_lines || (contiguous && rows >= 4 * rows_a_line * plan.threads);
}

// ---- one case ----

class Checker {
 public:
  explicit Checker(const char* isa) : isa_(isa) {
    Random random(1, 2);
    for (char* at = in_.begin(); at < in_.end(); at += 8) {
      const uint64_t value = random.next();
      std::memcpy(at, &value, 8);
    }
    in_.make_read_only();
  }

  void check(uint64_t seed, int64_t number) {
    Random random(seed, static_cast<uint64_t>(number) << 20);
    Problem p = number % 48 == 13 ? far_rows(random) : random_problem(random, number % 12 == 7);
    while (std::max(span(p, &Dim::in_stride), span(p, &Dim::out_stride)) > kArena) {
      Dim* const longest = std::max_element(p.dims, p.dims + p.rank,
                                            [](const Dim& a, const Dim& b) { return a.extent < b.extent; });
      longest->extent /= 2;
    }
    const bool empty = tx::element_count(p) == 0;
    const int64_t in_bytes = empty ? p.element_bytes : span(p, &Dim::in_stride);
    const int64_t out_bytes = empty ? p.element_bytes : span(p, &Dim::out_stride);
    const char* const in = place(random, in_, in_bytes, p.element_bytes, 0);
    char* const out = place(random, out_, out_bytes, p.element_bytes, kGuard);
    p.in_address = reinterpret_cast<uint64_t>(in);
    p.out_address = reinterpret_cast<uint64_t>(out);

    std::snprintf(g_case, sizeof g_case, "reproduce: cpu_property --isa %s --seed %llu --case %lld\n", isa_,
                  static_cast<unsigned long long>(seed), static_cast<long long>(number));
    CpuFacts facts = tx::cpu::facts(random.pick<int>({1, 2, 3, 5, 8}));
    facts.l1_bytes = random.chance(50) ? 32 << 10 : 48 << 10;
    if (random.chance(50)) facts.l3_bytes = 16 << 10;             // small problems are beyond such a cache
    if (random.chance(25)) std::fill_n(facts.piece_bytes, 2, 0);  // and pieces are tiles
    if (number % 4 == 0) std::fill_n(facts.permutes_runs, 2, false);
    const Problem normal = tx::normalize(p);
    std::vector<Plan> plans = {tx::plan_cpu(p, facts)};
    for (Kernel kernel : tx::kernels_cpu()) {
      if (tx::why_not_cpu(kernel, normal).empty()) plans.push_back(tx::plan_cpu_forced(p, facts, kernel));
    }

    // Both windows hold the same pattern, other bytes each time; the reference fills one, each plan the
    // other.
    const int64_t begin = std::max<int64_t>(out - kGuard - out_.begin(), 0);
    const int64_t end = std::min<int64_t>(out + out_bytes + kGuard - out_.begin(), out_.end() - out_.begin());
    const size_t bytes = static_cast<size_t>(end - begin);
    pattern_.resize(bytes);
    for (size_t i = 0; i < bytes; i += 8) {
      const uint64_t value = random.next();
      std::memcpy(&pattern_[i], &value, std::min<size_t>(8, bytes - i));
    }
    expected_ = pattern_;
    reference(p, in, expected_.data() + (out - out_.begin() - begin));

    ASAN_POISON_MEMORY_REGION(in_.begin(), in - in_.begin());
    ASAN_POISON_MEMORY_REGION(in + in_bytes, in_.end() - in - in_bytes);
    for (Plan& plan : plans) {
      if (&plan != plans.data()) {  // the planner's own plan runs as it is
        plan.threads = facts.threads;
        const bool streams =
            plan.kernel == Kernel::kCopy || plan.kernel == Kernel::kRows || plan.kernel == Kernel::kStaged;
        const int64_t e = plan.problem.element_bytes;
        if (plan.kernel == Kernel::kTile && !is_fused(plan) &&
            std::has_single_bit(static_cast<uint64_t>(e))) {
          const bool ordinary = plan.stores == Stores::kOrdinary;
          plan.order = random.pick<TileOrder>(
              {TileOrder::kInTurn, TileOrder::kCrosswise, TileOrder::kDiagonal, TileOrder::kInBlocks});
          if ((plan.order == TileOrder::kCrosswise && (!ordinary || e > 16)) ||
              (plan.order == TileOrder::kDiagonal && (!ordinary || (e != 4 && e != 8))) ||
              (plan.order == TileOrder::kInBlocks && e > (ordinary ? 8 : 16)))
            plan.order = TileOrder::kInTurn;
        }
        if (plan.kernel == Kernel::kTile && !is_fused(plan) && tx::can_carry_rows(plan.problem, facts) &&
            random.chance(50)) {
          plan.carries = true;
          plan.order = random.chance(50) ? TileOrder::kInBlocks : TileOrder::kInTurn;
          plan.stores = Stores::kStreaming;
          int32_t& rows = plan.tile[tx::tile_row_dim(plan.kernel, plan.problem)];
          rows = std::min<int32_t>(rows, tx::kCarriedRows);
        }
        const bool may_ask = plan.kernel == Kernel::kStaged ||
                             (plan.kernel == Kernel::kTile && facts.line_vectors > 0 &&
                              plan.stores == Stores::kOrdinary && plan.order == TileOrder::kInTurn &&
                              !is_fused(plan) && e <= 16 && std::has_single_bit(static_cast<uint64_t>(e)));
        if (may_ask) plan.prefetches = random.chance(50);
        if (plan.kernel == Kernel::kTile && plan.stores == Stores::kOrdinary)
          plan.edge_rows = random.pick<int>({0, 1, 4, 16});
        if (streams) plan.stores = random.pick<Stores>({Stores::kOrdinary, Stores::kStreaming});
        const bool only_into_l1 = plan.order == TileOrder::kInBlocks && !plan.carries && e > 4;
        plan.prefetches_l1 = tx::can_ask_into_l1(plan, facts) && (only_into_l1 || random.chance(50));
        if (plan.kernel == Kernel::kPieces && random.chance(50)) {
          const tx::PieceDims piece = tx::piece_dims(plan);
          const bool in_lines =
              tx::cpu::facts(1).permutes_runs[e > 1] && tx::writes_whole_lines(plan.problem, piece);
          if (in_lines || tx::can_gather(plan.problem, piece)) {
            const int d = tx::batch_dims(plan.problem, piece).dims[0];
            const auto most = static_cast<int32_t>(tx::kStreamedPiecesBytes / piece.bytes + 1);
            plan.tile[d] = std::min(plan.tile[d], most);
            plan.stores = Stores::kStreaming;
          }
        }
      }
      const bool in_turn = random.chance(40);
      describe(seed, number, plan, in_turn);
      char* const window = out_.begin() + begin;
      std::memcpy(window, pattern_.data(), bytes);
      g_lines.begin = window - reinterpret_cast<intptr_t>(window) % kLine;
      g_lines.count = (out_.begin() + end - g_lines.begin) / kLine;
      g_lines.shared = 0;
      tx::cpu::run(plan, in, out, in_turn ? one_by_one : on_threads);
      if (std::memcmp(window, expected_.data(), bytes) != 0) {
        int64_t at = 0;
        while (window[at] == expected_[static_cast<size_t>(at)]) ++at;
        const bool moved =
            std::memcmp(&expected_[static_cast<size_t>(at)], &pattern_[static_cast<size_t>(at)], 1) != 0;
        fail("byte " + std::to_string(at + begin - (out - out_.begin())) + " of an output of " +
             std::to_string(out_bytes) + " bytes" + (moved ? "" : ", which is not the output's"));
      }
      if (g_lines.shared != 0 && lines_can_be_kept_apart(plan)) {
        fail(std::to_string(g_lines.shared) + " lines written by two threads");
      }
      ++runs;
      shared_lines += g_lines.shared;
    }
    ASAN_UNPOISON_MEMORY_REGION(in_.begin(), in_.end() - in_.begin());
  }

  int64_t runs = 0;
  int64_t shared_lines = 0;

 private:
  void describe(uint64_t seed, int64_t number, const Plan& plan, bool in_turn) const {
    std::snprintf(g_case, sizeof g_case,
                  "reproduce: cpu_property --isa %s --seed %llu --case %lld  # %s, threads %s\n", isa_,
                  static_cast<unsigned long long>(seed), static_cast<long long>(number),
                  tx::to_string(plan).c_str(), in_turn ? "in turn" : "at once");
  }

  const char* isa_;
  Arena in_, out_;
  std::vector<char> pattern_, expected_;
};

int check_isa(const char* isa, uint64_t seed, int64_t first, int64_t last) {
  setenv("TX_CPU_ISA", isa, 1);
  if (!tx::cpu::isa_error().empty()) {
    std::fprintf(stderr, "%s\n", tx::cpu::isa_error().c_str());
    return 1;
  }
#ifdef TX_SANITIZED
  __sanitizer_set_death_callback(print_case);
#else
  std::signal(SIGSEGV, on_fault);
  std::signal(SIGBUS, on_fault);
  std::signal(SIGILL, on_fault);
#endif
  Checker checker(isa);
  for (int64_t number = first; number < last; ++number) checker.check(seed, number);
  std::printf("%s: %lld cases, %lld runs, all bytes right; seed %llu\n", tx::cpu::isa(),
              static_cast<long long>(last - first), static_cast<long long>(checker.runs),
              static_cast<unsigned long long>(seed));
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  int64_t cases = 2000, only = -1;
  uint64_t seed = 0;
  std::string isa;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (i + 1 == count) return std::fputs(kUsage, stderr), 2;
    const char* const value = arguments[++i];
    if (name == "--cases") {
      cases = std::atoll(value);
    } else if (name == "--seed") {
      seed = static_cast<uint64_t>(std::atoll(value));
    } else if (name == "--case") {
      only = std::atoll(value);
    } else if (name == "--isa") {
      isa = value;
    } else {
      return std::fputs(kUsage, stderr), 2;
    }
  }
  const int64_t first = std::max<int64_t>(only, 0), last = only < 0 ? cases : only + 1;
  if (!isa.empty()) return check_isa(isa.c_str(), seed, first, last);
  // The library chooses its instruction set once, so each has a process of its own.
  std::vector<pid_t> children;
  for (const char* each : tx::cpu::isas()) {
    const pid_t child = fork();
    if (child == 0) return check_isa(each, seed, first, last);
    children.push_back(child);
  }
  int failed = 0;
  for (const pid_t child : children) {
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) ++failed;
  }
  return failed;
}
