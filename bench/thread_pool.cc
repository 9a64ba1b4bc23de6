// What does a loop on the thread pool cost beyond its pieces?
//
// smoe_bench_pool [--tiny]: on all usable cores, medians of: a loop of nothing; a loop whose pieces
// wait for each other, so that every thread takes part, with the threads on the look-out and
// asleep; the speed-up of short loops of arithmetic; and the processor time of a pool at rest.
#include "base/thread_pool.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/core_count.h"

namespace {

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double ProcessSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

struct Times {
  double median;
  double tenth;      // a tenth of the runs took less
  double ninetieth;  // a tenth took more
};

// `pause` runs before each measured call.
template <class Pause, class Body>
Times Measure(size_t rounds, const Pause& pause, const Body& body) {
  std::vector<double> times;
  for (size_t round = 0; round < rounds; ++round) {
    pause();
    const auto start = Clock::now();
    body();
    times.push_back(Microseconds(Clock::now() - start));
  }
  std::sort(times.begin(), times.end());
  return {times[rounds / 2], times[rounds / 10], times[rounds * 9 / 10]};
}

void Print(const char* what, const Times& times) {
  fmt::print("{:<46} {:8.2f} us  ({:.2f} to {:.2f})\n", what, times.median, times.tenth,
             times.ninetieth);
}

// One piece for each thread; none ends before all have begun.
void MeetAll(smoe::ThreadPool& pool) {
  std::atomic<size_t> here{0};
  const size_t threads = pool.thread_count();
  const auto body = [&](size_t, size_t) {
    here.fetch_add(1);
    for (int looks = 0; here.load() < threads; ++looks) {
      if (looks > 10000) std::this_thread::yield();
    }
  };
  pool.ParallelFor(threads, 1, std::ref(body));
}

uint64_t Churn(size_t steps) {
  uint64_t x = steps | 1;
  for (size_t i = 0; i < steps; ++i) x = x * 6364136223846793005u + 1442695040888963407u;
  return x;
}

void MeasureSpeedUp(smoe::ThreadPool& pool, size_t rounds, size_t steps_per_row) {
  constexpr size_t kRows = 64;
  std::vector<uint64_t> out(kRows);
  const auto body = [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) out[row] += Churn(steps_per_row + row % 2);
  };
  const auto nothing = [] {};
  const Times one = Measure(rounds, nothing, [&] { body(0, kRows); });
  const Times all = Measure(rounds, nothing, [&] { pool.ParallelFor(kRows, 1, std::ref(body)); });
  fmt::print("loop of {:7.1f} us on one thread: {:7.1f} us on all, {:.2f} x\n", one.median,
             all.median, one.median / all.median);
}

}  // namespace

int main(int argc, char** argv) {
  const bool tiny = argc > 1 && std::strcmp(argv[1], "--tiny") == 0;
  const size_t rounds = tiny ? 3 : 20000;
  smoe::ThreadPool pool(smoe::UsableCoreCount());
  fmt::print("{} threads; medians, and what a tenth stays below and above\n", pool.thread_count());
  const auto nothing = [] {};
  const auto empty = [](size_t, size_t) {};
  const auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (size_t i = 0; i < rounds / 10 + 1; ++i) MeetAll(pool);
  Print("a loop of nothing", Measure(rounds, nothing, [&] {
          pool.ParallelFor(pool.thread_count(), 1, std::ref(empty));
        }));
  Print("every thread takes part, on the look-out",
        Measure(rounds, nothing, [&] { MeetAll(pool); }));
  Print("every thread takes part, asleep before",
        Measure(rounds / 20 + 1, rest, [&] { MeetAll(pool); }));
  for (const size_t steps : {50u, 500u, 5000u}) MeasureSpeedUp(pool, rounds / 20 + 1, steps);
  const double start = ProcessSeconds();
  const double seconds = tiny ? 0.01 : 2;
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  fmt::print("at rest for {} s after the last loop: {:.3f} % of a core\n", seconds,
             100 * (ProcessSeconds() - start) / seconds);
  return 0;
}
