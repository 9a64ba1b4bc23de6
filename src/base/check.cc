#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace smoe {

void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: check does not hold: %s (a bug in smoe; please report it)\n", file,
               line, condition);
  std::abort();
}

}  // namespace smoe
