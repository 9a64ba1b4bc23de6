// io/fake_read_queue.h: a read queue whose drive is a seed.
//
// Reads really happen, but finish in an order drawn from the seed, in bursts drawn from the seed,
// and some fail as asked. For tests: the same seed gives the same run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "io/read_queue.h"

namespace smoe::io {

struct FakeReadOptions {
  uint64_t seed = 1;
  uint32_t depth = 64;
  // The errno a read ends with, 0 for success. Called once per read, in the order of Push.
  std::function<int(const ReadRequest&)> fault = {};
  // How many calls of Reap a read lies on the drive, which goes on with the others meanwhile. A
  // caller that waits for it sleeps through them. Called once per read, in the order of Push.
  std::function<uint32_t(const ReadRequest&)> stall = {};
  // Called on the bytes of a finished read, to flip some.
  std::function<void(const ReadRequest&)> damage = {};
};

std::unique_ptr<ReadQueue> MakeFakeReadQueue(const FakeReadOptions& options);

}  // namespace smoe::io
