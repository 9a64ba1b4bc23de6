#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace smoe {
namespace {

// 'S' for a thread that sleeps, as proc(5) has it: the letter behind the name in parentheses.
char StateOfThread(const std::filesystem::path& task) {
  std::ifstream file(task / "stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = text.rfind(')');
  return name_end + 2 < text.size() ? text[name_end + 2] : '?';
}

std::filesystem::path TaskOfThisThread() {
  return std::filesystem::path("/proc/self/task") / std::to_string(gettid());
}

std::vector<std::pair<size_t, size_t>> Ranges(ThreadPool& pool, size_t count, size_t grain) {
  std::mutex mutex;
  std::vector<std::pair<size_t, size_t>> ranges;
  pool.ParallelFor(count, grain, [&](size_t begin, size_t end) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST(ThreadPool, CoversEachIndexExactlyOnce) {
  for (size_t threads : {1u, 2u, 3u, 7u}) {
    ThreadPool pool(threads);
    for (size_t count : {0u, 1u, 2u, 5u, 64u, 1001u}) {
      for (size_t grain : {1u, 8u, 64u}) {
        std::vector<std::atomic<int>> seen(count);
        pool.ParallelFor(count, grain, [&](size_t begin, size_t end) {
          EXPECT_TRUE(end == count || (end - begin) % grain == 0);
          for (size_t i = begin; i < end; ++i) seen[i].fetch_add(1);
        });
        for (size_t i = 0; i < count; ++i) {
          EXPECT_EQ(seen[i].load(), 1) << threads << " threads, index " << i << " of " << count;
        }
      }
    }
  }
}

TEST(ThreadPool, ForksAndJoinsManyTimes) {
  ThreadPool pool(2);
  std::atomic<size_t> sum{0};
  for (int round = 0; round < 20000; ++round) {
    pool.ParallelFor(2, 1, [&](size_t begin, size_t end) { sum += end - begin; });
  }
  EXPECT_EQ(sum.load(), 40000u);
}

TEST(ThreadPool, CutsByCountAndGrainAlone) {
  ThreadPool pool(2);
  // 100 rows in grains of 3 are 34 grains, 17 for each thread: 17 * 4 / 32, 17 * 8 / 32, ...
  // rounded up are 3, 5, 7, 9, 11, 13, 14, 15, 16, 16, 17, 17.
  std::vector<std::pair<size_t, size_t>> expected;
  for (const size_t first : {size_t{0}, size_t{17}}) {
    size_t begin = first;
    for (const size_t end : {3u, 5u, 7u, 9u, 11u, 13u, 14u, 15u, 16u, 17u}) {
      expected.emplace_back(begin * 3, std::min<size_t>((first + end) * 3, 100));
      begin = first + end;
    }
  }
  for (int round = 0; round < 100; ++round) EXPECT_EQ(Ranges(pool, 100, 3), expected);
}

TEST(ThreadPool, AShortLoopIsCutIntoGrains) {
  ThreadPool pool(2);
  const std::vector<std::pair<size_t, size_t>> expected = {{0, 3}, {3, 6}, {6, 8}};
  EXPECT_EQ(Ranges(pool, 8, 3), expected);
  EXPECT_EQ(Ranges(pool, 24, 1).size(), 24u);
}

TEST(ThreadPool, ALongLoopEndsInShortPieces) {
  ThreadPool pool(2);
  const auto ranges = Ranges(pool, 6400, 1);
  ASSERT_EQ(ranges.size(), 24u);
  for (const size_t first : {0u, 12u}) {
    EXPECT_EQ(ranges[first].second - ranges[first].first, 400u);
    EXPECT_EQ(ranges[first + 11].second - ranges[first + 11].first, 100u);
  }
}

// Whoever has the first piece keeps it until all others are done, also those that were meant for
// the same thread.
TEST(ThreadPool, OneThreadDoesWhatAnotherIsKeptFrom) {
  ThreadPool pool(2);
  for (int round = 0; round < 200; ++round) {
    std::atomic<size_t> done{0};
    pool.ParallelFor(64, 1, [&](size_t begin, size_t end) {
      while (begin == 0 && done.load() != 64 - (end - begin)) std::this_thread::yield();
      done += end - begin;
    });
    EXPECT_EQ(done.load(), 64u);
  }
}

TEST(ThreadPool, TheCallerSleepsWhileAWorkerIsBusy) {
  ThreadPool pool(2);
  const std::thread::id caller = std::this_thread::get_id();
  const std::filesystem::path task = TaskOfThisThread();
  std::atomic<bool> worker_is_inside{false};
  std::atomic<bool> caller_slept{false};
  pool.ParallelFor(2, 1, [&](size_t, size_t) {
    if (std::this_thread::get_id() == caller) {
      while (!worker_is_inside) std::this_thread::yield();
      return;
    }
    worker_is_inside = true;
    while (StateOfThread(task) != 'S') std::this_thread::yield();
    caller_slept = true;
  });
  EXPECT_TRUE(caller_slept);
}

TEST(ThreadPool, AtRestEveryWorkerSleeps) {
  ThreadPool pool(2);
  std::atomic<size_t> workers_inside{0};
  const std::thread::id caller = std::this_thread::get_id();
  std::filesystem::path worker;
  pool.ParallelFor(2, 1, [&](size_t, size_t) {
    if (std::this_thread::get_id() == caller) {
      while (workers_inside.load() == 0) std::this_thread::yield();
      return;
    }
    worker = TaskOfThisThread();
    workers_inside = 1;
  });
  while (StateOfThread(worker) != 'S') std::this_thread::yield();
  // And it wakes again.
  EXPECT_EQ(Ranges(pool, 2, 1).size(), 2u);
}

TEST(ThreadPool, StopsAtAnyTimeAfterALoop) {
  for (int round = 0; round < 300; ++round) {
    ThreadPool pool(1 + static_cast<size_t>(round) % 4);
    std::atomic<size_t> sum{0};
    for (int loop = 0; loop < round % 3; ++loop) {
      pool.ParallelFor(100, 1, [&](size_t begin, size_t end) { sum += end - begin; });
    }
    EXPECT_EQ(sum.load(), 100u * static_cast<size_t>(round % 3));
  }
}

// Plain memory, written by one thread and read by another in the next loop.
TEST(ThreadPool, ALoopSeesWhatTheLoopBeforeWrote) {
  for (size_t threads : {2u, 5u}) {
    ThreadPool pool(threads);
    std::vector<int> values(203, 0);
    for (int round = 1; round <= 3000; ++round) {
      pool.ParallelFor(values.size(), 7, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) values[i] += 1;
      });
      std::reverse(values.begin(), values.begin() + round % 203);
    }
    EXPECT_EQ(std::count(values.begin(), values.end(), 3000), 203);
  }
}

TEST(ThreadPool, CreateTakesTheLimitAndRefusesWhatIsBeyond) {
  const auto largest = ThreadPool::Create(kThreadsMax);
  ASSERT_TRUE(largest || largest.error().code() == ErrorCode::kExhausted);
  for (size_t threads : {size_t{0}, kThreadsMax + 1, size_t{4294967295}, ~size_t{0}}) {
    const auto pool = ThreadPool::Create(threads);
    ASSERT_FALSE(pool) << threads;
    EXPECT_EQ(pool.error().code(), ErrorCode::kInvalid);
    EXPECT_EQ(pool.error().message(),
              "threads: " + std::to_string(threads) + ", expected 1 to 1024");
  }
}

constexpr rlim_t kLittleAddressSpace = rlim_t{512} << 20;

// Emulators of another processor take the limit and do not keep it.
bool AddressSpaceLimitBinds() {
  rlimit before = {};
  if (getrlimit(RLIMIT_AS, &before) != 0) return false;
  const rlimit little = {kLittleAddressSpace, before.rlim_max};
  if (setrlimit(RLIMIT_AS, &little) != 0) return false;
  void* const more =
      mmap(nullptr, kLittleAddressSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  setrlimit(RLIMIT_AS, &before);
  if (more == MAP_FAILED) return true;
  munmap(more, kLittleAddressSpace);
  return false;
}

// RLIMIT_NPROC does not bind root, so the refusal is made by too little address space for stacks.
TEST(ThreadPool, ARefusedThreadIsAnErrorAndNotTheEndOfTheProgram) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers need the address space";
#endif
  if (!AddressSpaceLimitBinds()) GTEST_SKIP() << "RLIMIT_AS does not bind here";
  const auto attempt = [] {
    const rlimit limit = {kLittleAddressSpace, kLittleAddressSpace};
    if (setrlimit(RLIMIT_AS, &limit) != 0) std::exit(3);
    const auto pool = ThreadPool::Create(kThreadsMax);
    std::exit(!pool && pool.error().code() == ErrorCode::kExhausted ? 0 : 1);
  };
  EXPECT_EXIT(attempt(), testing::ExitedWithCode(0), "");
}

TEST(ThreadPool, WhatABodyThrowsArrivesAtTheCallerOnEveryThread) {
  ThreadPool pool(3);
  for (size_t thrower : {0u, 1u, 2u}) {
    const auto body = [&](size_t begin, size_t) {
      if (begin == thrower) static_cast<void>(std::string_view().at(0));
    };
    EXPECT_THROW(pool.ParallelFor(3, 1, body), std::out_of_range) << thrower;
  }
  std::atomic<size_t> sum{0};
  pool.ParallelFor(3, 1, [&](size_t begin, size_t end) { sum += end - begin; });
  EXPECT_EQ(sum.load(), 3u);
}

// No thread can be busy for longer than the loops took, and somebody was.
TEST(ThreadPool, CountsLoopsAndTheTimeAtPieces) {
  for (const size_t threads : {1u, 2u, 3u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.use().loop_count, 0u);
    std::atomic<uint64_t> sum{0};
    for (int loop = 0; loop < 10; ++loop) {
      pool.ParallelFor(1000, 1, [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) sum += i;
      });
    }
    pool.ParallelFor(0, 1, [](size_t, size_t) {});
    const ThreadPool::Use use = pool.use();
    EXPECT_EQ(use.loop_count, 10u);
    EXPECT_GT(use.busy_ns, 0u);
    EXPECT_LE(use.busy_ns, threads * use.loop_ns);
  }
}

}  // namespace
}  // namespace smoe
