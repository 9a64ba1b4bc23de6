// Replaces operator new of the test program. In a file of its own, so that the compiler does not
// inline half of a pair of new and delete into the tests.
#include <atomic>
#include <cstdlib>
#include <new>

#include "experts/allocation_count_for_test.h"

namespace {

std::atomic<uint64_t> allocation_count{0};

}  // namespace

void* operator new(size_t size) {
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  void* const memory = std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) std::abort();
  return memory;
}
// Libraries that ask without exceptions must get memory that the delete below can take.
void* operator new(size_t size, const std::nothrow_t&) noexcept { return operator new(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace smoe::experts {

uint64_t AllocationCount() { return allocation_count.load(std::memory_order_relaxed); }

}  // namespace smoe::experts
