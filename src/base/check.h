// base/check.h: invariants of our own code. A failed check is a bug of ours, never of the input.
#pragma once

namespace smoe {

// Prints file:line and the condition to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);

}  // namespace smoe

#define SMOE_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::smoe::CheckFailed(__FILE__, __LINE__, #condition))

#ifdef NDEBUG
#define SMOE_DCHECK(condition) static_cast<void>(0)
#else
#define SMOE_DCHECK(condition) SMOE_CHECK(condition)
#endif
