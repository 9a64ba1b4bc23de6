// base/memory_rate.h: how fast this machine reads its memory.
//
// The bound of every token: decoding reads each weight once, so it can be no faster than a plain
// read of as many bytes. Speed differs from machine to machine and from minute to minute; whoever
// prints a share of this rate measures it beside, in turns.
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "base/result.h"
#include "base/thread_pool.h"

namespace smoe {

// What is read is this many times the caches, so that they serve little of it.
inline constexpr uint64_t kRateCacheMultiple = 4;
inline constexpr uint64_t kRateBytesMin = uint64_t{256} << 20;
inline constexpr uint64_t kRateBytesDefault = uint64_t{1} << 30;

// The largest cache that the kernel reports for the first processor, 0 if it reports none. A
// virtual machine may see the cache of a whole socket of which it has a part.
// `root` is where /sys is looked up: "" on a real system, a folder in tests.
uint64_t LargestCacheBytes(const std::string& root = "");

// How much a meter should read: kRateCacheMultiple times the caches or kRateBytesDefault, whichever
// is more, but at most a quarter of `free_bytes`; never below kRateBytesMin.
uint64_t RateBytes(uint64_t cache_bytes, uint64_t free_bytes);

class MemoryRateMeter {
 public:
  struct Options {
    uint64_t bytes = kRateBytesDefault;  // rounded up to whole pages
    bool huge_pages = true;              // asked for; false: refused, if the kernel had them
  };

  // Takes the memory and writes all of it, on the pool's threads.
  // Errors: kExhausted with the size.
  static Result<MemoryRateMeter> Create(const Options& options, ThreadPool& pool);

  struct Reading {
    double bytes_per_second = 0;
    uint64_t sum = 0;  // of all 64-bit words, whatever the number of threads
  };
  // Reads all of it once, on all threads of the pool, asking ahead as our kernels do.
  // Cost: some 50 ms for each GiB; no allocation.
  Reading Read(ThreadPool& pool) const;

  Bytes memory() const { return memory_.bytes(); }
  // What Read's sum must be.
  uint64_t expected_sum() const;

 private:
  explicit MemoryRateMeter(AlignedBuffer memory) : memory_(std::move(memory)) {}
  AlignedBuffer memory_;
};

}  // namespace smoe
