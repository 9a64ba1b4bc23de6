#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
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

}  // namespace
}  // namespace smoe
