// text/rust_call.h: calls into rust/text with its codes as our errors and its memory as our
// vectors. Internal to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/rust_abi.h"

namespace smoe::text {

SmoeText Borrow(std::string_view text);

// Copy what the crate returned, and free it there.
std::string Take(SmoeBytes bytes);
std::vector<uint32_t> Take(SmoeIds ids);
std::vector<size_t> Take(SmoeOffsets offsets);

// The Status of a call that returned `code` and perhaps `error`, which is freed.
Status StatusOf(int code, SmoeBytes error);

// Runs a function of the ABI; `call` takes the pointer for the error text.
template <class Call>
Status CallRust(Call call) {
  SmoeBytes error{nullptr, 0};
  const int code = call(&error);
  return StatusOf(code, error);
}

}  // namespace smoe::text
