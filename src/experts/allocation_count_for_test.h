// experts/allocation_count_for_test.h: how often this test program has allocated.
#pragma once

#include <cstdint>

namespace smoe::experts {

// Calls of operator new since the start, by all threads.
uint64_t AllocationCount();

}  // namespace smoe::experts
