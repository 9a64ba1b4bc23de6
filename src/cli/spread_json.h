// cli/spread_json.h: several measurements of one thing, as every --json has them.
#pragma once

#include "base/json.h"
#include "base/spread.h"

namespace smoe::cli {

inline Json SpreadJson(const Spread& spread) {
  return Json().Set("min", spread.min).Set("median", spread.median).Set("max", spread.max);
}

}  // namespace smoe::cli
