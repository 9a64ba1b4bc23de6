#include "base/thread_pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <exception>
#include <iterator>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/core_count.h"
#include "base/stopwatch.h"

namespace smoe {

namespace {

constexpr size_t kLineBytes = 64;

// Where the pieces of a thread's run end, in 32nds of the run: shorter ones at the end, so that
// threads which are not equally fast stop together, and none so long that the others could not take
// most of the run of a thread that is kept off its core.
constexpr size_t kRunParts = 32;
constexpr uint8_t kPieceEnds[] = {4, 8, 12, 16, 20, 24, 26, 28, 29, 30, 31, 32};
static_assert(std::size(kPieceEnds) == kPiecesPerThread);

constexpr int kLooksBetweenClocks = 16;

// The gate: how many workers are inside the loop, and whether more may enter.
constexpr uint32_t kInsideMask = (1u << 16) - 1;
constexpr uint32_t kOpen = 1u << 16;
constexpr uint32_t kCallerSleeps = 1u << 17;
static_assert(kThreadsMax <= kInsideMask);

using Word = std::atomic<uint32_t>;
static_assert(sizeof(Word) == sizeof(uint32_t) && Word::is_always_lock_free);

// Sleeps while the word has this value. May return early.
void SleepWhile(const Word& word, uint32_t value) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void Wake(const Word& word, int count) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Looks until `seen()`, or until `limit` has passed; says whether it was seen.
template <class Seen>
bool LookOut(std::chrono::nanoseconds limit, const Seen& seen) {
  if (seen()) return true;
  if (limit.count() == 0) return false;
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < kLooksBetweenClocks; ++i) {
      Relax();
      if (seen()) return true;
    }
  } while (std::chrono::steady_clock::now() - start < limit);
  return false;
}

// The pieces of one thread that nobody has begun. Its owner takes them from the front, in the order
// of memory, and the others from the back, so that they meet as late as possible.
class alignas(kLineBytes) Run {
 public:
  void Set(size_t begin, size_t end) {
    range_.store(uint64_t{end} << 32 | uint64_t{begin}, std::memory_order_relaxed);
  }
  bool TakeFront(size_t* piece) { return Take(piece, true); }
  bool TakeBack(size_t* piece) { return Take(piece, false); }

 private:
  // Relaxed: what a piece reads and writes is handed over by the gate.
  bool Take(size_t* piece, bool front) {
    uint64_t range = range_.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t begin = range & 0xffffffff;
      const uint64_t end = range >> 32;
      if (begin >= end) return false;
      const uint64_t left = front ? range + 1 : range - (uint64_t{1} << 32);
      if (!range_.compare_exchange_weak(range, left, std::memory_order_relaxed)) continue;
      *piece = front ? begin : end - 1;
      return true;
    }
  }

  std::atomic<uint64_t> range_{0};
};

// Time that one thread spent at pieces. Only that thread adds to it.
class alignas(kLineBytes) BusyTime {
 public:
  void Add(uint64_t ns) {
    ns_.store(ns_.load(std::memory_order_relaxed) + ns, std::memory_order_relaxed);
  }
  uint64_t ns() const { return ns_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> ns_{0};
};

}  // namespace

// A loop is opened and closed by the caller. A worker that finds the gate open goes inside, and
// only there looks at the loop; one that comes late finds it closed. So the caller waits for those
// who are inside, and changes the loop when nobody is.
struct ThreadPool::State {
  explicit State(size_t threads) : thread_count(threads) {
    SMOE_CHECK(threads >= 1 && threads <= kThreadsMax);
    runs = std::make_unique<Run[]>(threads);
    busy = std::make_unique<BusyTime[]>(threads);
    if (threads > 1 && threads <= UsableCoreCount()) spin = kPoolSpin;
  }

  void Cut(size_t loop_count, size_t loop_grain,
           const std::function<void(size_t, size_t)>& loop_body) {
    count = loop_count;
    grain = loop_grain;
    grain_count = (loop_count - 1) / loop_grain + 1;
    body = &loop_body;
    pieces_are_grains = grain_count <= thread_count * kPiecesPerThread;
    for (size_t i = 0; i < thread_count; ++i) {
      if (pieces_are_grains) {
        runs[i].Set(RunBegin(i), RunBegin(i + 1));
      } else {
        runs[i].Set(i * kPiecesPerThread, (i + 1) * kPiecesPerThread);
      }
    }
  }

  // The first grain of a thread's run.
  size_t RunBegin(size_t thread) const {
    return grain_count / thread_count * thread +
           (grain_count % thread_count * thread + thread_count - 1) / thread_count;
  }

  // The first grain of a piece. The pieces of thread 0's run come first, then those of thread 1's.
  size_t PieceBegin(size_t piece) const {
    if (pieces_are_grains) return piece;
    const size_t thread = piece / kPiecesPerThread;
    const size_t begin = RunBegin(thread);
    if (piece % kPiecesPerThread == 0) return begin;
    const size_t length = RunBegin(thread + 1) - begin;
    const size_t parts = kPieceEnds[piece % kPiecesPerThread - 1];
    return begin + length / kRunParts * parts +
           (length % kRunParts * parts + kRunParts - 1) / kRunParts;
  }

  // An exception that leaves a thread would end the program.
  void RunPiece(size_t piece) {
    const size_t begin = PieceBegin(piece);
    const size_t end = PieceBegin(piece + 1);
    if (begin == end) return;  // of a run that has few more grains than pieces
    try {
      (*body)(begin * grain, end == grain_count ? count : end * grain);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  }

  // Returns when nobody's run has a piece left.
  void RunPieces(size_t thread) {
    const Stopwatch stopwatch;
    size_t piece = 0;
    while (runs[thread].TakeFront(&piece)) RunPiece(piece);
    for (size_t i = 1; i < thread_count; ++i) {
      Run& other = runs[(thread + i) % thread_count];
      while (other.TakeBack(&piece)) RunPiece(piece);
    }
    busy[thread].Add(stopwatch.ns());
  }

  void Open() {
    gate.store(kOpen, std::memory_order_release);
    // Sequentially consistent with Await: one of the two sees the other.
    phase.fetch_add(1);
    if (sleepers.load() != 0) Wake(phase, INT_MAX);
  }

  void Close() {
    const auto empty = [this] { return (gate.load(std::memory_order_acquire) & kInsideMask) == 0; };
    gate.fetch_and(~kOpen, std::memory_order_acq_rel);
    if (LookOut(spin, empty)) return;
    uint32_t seen = gate.fetch_or(kCallerSleeps, std::memory_order_acq_rel) | kCallerSleeps;
    while ((seen & kInsideMask) != 0) {
      SleepWhile(gate, seen);
      seen = gate.load(std::memory_order_acquire);
    }
  }

  bool Enter() {
    uint32_t seen = gate.load(std::memory_order_relaxed);
    while ((seen & kOpen) != 0) {
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void Leave() {
    const uint32_t before = gate.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kInsideMask) == 1 && (before & kCallerSleeps) != 0) Wake(gate, 1);
  }

  // Returns the number of the next phase.
  uint32_t Await(uint32_t done) {
    const auto is_next = [&] { return phase.load(std::memory_order_acquire) != done; };
    if (!LookOut(spin, is_next)) {
      sleepers.fetch_add(1);
      while (phase.load() == done) SleepWhile(phase, done);
      sleepers.fetch_sub(1);
    }
    return phase.load(std::memory_order_acquire);
  }

  void WorkerLoop(size_t thread) {
    uint32_t done = 0;
    for (;;) {
      done = Await(done);
      if (stopping.load(std::memory_order_acquire)) return;
      if (!Enter()) continue;
      // The gate may have been opened again since: no phase begins while somebody is inside.
      done = phase.load(std::memory_order_acquire);
      RunPieces(thread);
      Leave();
    }
  }

  // One cache line: all that a worker fetches before it begins.
  alignas(kLineBytes) Word gate{0};
  Word phase{0};
  size_t count = 0;
  size_t grain = 1;
  size_t grain_count = 0;
  const std::function<void(size_t, size_t)>* body = nullptr;
  size_t thread_count;
  std::unique_ptr<Run[]> runs;
  bool pieces_are_grains = false;  // in a short loop

  alignas(kLineBytes) Word sleepers{0};
  std::atomic<bool> stopping{false};
  std::chrono::nanoseconds spin{0};
  std::unique_ptr<BusyTime[]> busy;
  uint64_t loop_ns = 0;      // the owner's
  uint64_t loops_begun = 0;  // the owner's
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::vector<std::thread> workers;
};

Result<std::unique_ptr<ThreadPool>> ThreadPool::Create(size_t thread_count) {
  if (thread_count == 0 || thread_count > kThreadsMax) {
    return Invalid("threads: {}, expected 1 to {}", thread_count, kThreadsMax);
  }
  auto pool = std::make_unique<ThreadPool>(thread_count);
  if (pool->thread_count() == thread_count) return pool;
  return Exhausted("threads: {} asked, the system started {}; lower --threads or raise ulimit -u",
                   thread_count, pool->thread_count());
}

ThreadPool::ThreadPool(size_t thread_count) : state_(std::make_unique<State>(thread_count)) {
  state_->workers.reserve(thread_count - 1);
  // The standard library reports a refused thread in no other way.
  try {
    for (size_t index = 1; index < thread_count; ++index) {
      state_->workers.emplace_back([state = state_.get(), index] { state->WorkerLoop(index); });
    }
  } catch (const std::system_error&) {
    state_->thread_count = state_->workers.size() + 1;
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_release);
  state_->phase.fetch_add(1);
  Wake(state_->phase, INT_MAX);
  for (std::thread& worker : state_->workers) worker.join();
}

size_t ThreadPool::thread_count() const { return state_->thread_count; }

ThreadPool::Use ThreadPool::use() const {
  Use use = {.loop_ns = state_->loop_ns, .loop_count = state_->loops_begun};
  for (size_t i = 0; i < state_->thread_count; ++i) use.busy_ns += state_->busy[i].ns();
  return use;
}

void ThreadPool::ParallelFor(size_t count, size_t grain,
                             const std::function<void(size_t, size_t)>& body) {
  SMOE_CHECK(grain >= 1);
  if (count == 0) return;
  ++state_->loops_begun;
  const Stopwatch stopwatch;
  if (state_->thread_count == 1 || count <= grain) {
    body(0, count);
    const uint64_t ns = stopwatch.ns();
    state_->busy[0].Add(ns);
    state_->loop_ns += ns;
    return;
  }
  state_->Cut(count, grain, body);
  state_->Open();
  state_->RunPieces(0);
  state_->Close();
  state_->loop_ns += stopwatch.ns();
  if (state_->failure) std::rethrow_exception(std::exchange(state_->failure, nullptr));
}

}  // namespace smoe
