// cli/json_for_test.h: figures in what --json printed.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>

#include "base/json.h"

namespace smoe::cli {

// The number at the end of a path of keys. A test failure, and 0, where a key is not there; -1 for
// what is no number.
inline double Number(const Json& json, std::initializer_list<const char*> path) {
  const Json* at = &json;
  for (const char* key : path) {
    at = at->Find(key);
    if (at == nullptr) {
      ADD_FAILURE() << "no " << key;
      return 0;
    }
  }
  return at->AsDouble().value_or(-1);
}

}  // namespace smoe::cli
