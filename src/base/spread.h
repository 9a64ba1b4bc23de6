// base/spread.h: what several measurements of one thing say.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace smoe {

struct Spread {
  double min = 0;
  double median = 0;
  double max = 0;
};

// All 0 without a value. Of an even number of values the lower of the two in the middle is the
// median, so that it is one that was measured.
inline Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.front(), values[(values.size() - 1) / 2], values.back()};
}

}  // namespace smoe
