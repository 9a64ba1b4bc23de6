#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace smoe {
namespace {

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

// RLIMIT_NPROC does not bind root, so the refusal is made by too little address space for stacks.
TEST(ThreadPool, ARefusedThreadIsAnErrorAndNotTheEndOfTheProgram) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizers need the address space";
#endif
  const auto attempt = [] {
    const rlimit limit = {uint64_t{512} << 20, uint64_t{512} << 20};
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

}  // namespace
}  // namespace smoe
