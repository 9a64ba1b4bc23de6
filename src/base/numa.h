// base/numa.h: which memory is near which processors, and where our pages lie.
//
// A page lies on the node of the thread that wrote it first. On one node nothing here matters; on
// several, memory that one thread has filled is read by all through that node's channels alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace smoe {

struct NumaNode {
  size_t number = 0;
  std::string cpus;  // as the kernel lists them: "0-7,16-23"; empty for memory alone
  uint64_t memory_bytes = 0;
  uint64_t free_bytes = 0;
};

inline constexpr size_t kNumaNodesMax = 1024;  // of the kernel: CONFIG_NODES_SHIFT is at most 10

// Ascending; empty where the kernel shows none, which means one node.
// `root` is where /sys is looked up: "" on a real system, a folder in tests.
std::vector<NumaNode> ReadNumaNodes(const std::string& root = "");

// Bytes of `memory` by the node they lie on, the index being its number. Looks at kPagesAsked pages
// in equal steps and scales up. Pages that nobody has touched count nowhere.
// Errors: kIo if the system refuses the question (a sandbox may).
// Source: man 2 move_pages.
inline constexpr size_t kPagesAsked = 4096;
Result<std::vector<uint64_t>> BytesByNode(Bytes memory);

// Pages that are touched from now on come from all nodes in turn, so that reads use the channels of
// all of them. For memory that every thread reads: weights, whose rows no thread owns, since
// threads take pieces from each other. False if there is one node or the system refuses; nothing
// changes. Source: man 2 mbind, MPOL_INTERLEAVE.
bool InterleaveOverNodes(MutableBytes memory);

}  // namespace smoe
