// cli/profile_text.h: where a token's time went, as a table with bars and as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "engine/engine.h"

namespace smoe::cli {

// The phases of `times`, each divided by `unit_count` (tokens, or prompts): times, shares and bars,
// then the share of the threads' time without work. `title` names what a unit is: "decode, a
// token".
std::string ProfileText(std::string_view title, const engine::StepTimes& times, uint64_t unit_count,
                        size_t thread_count);

// The same as an object, in milliseconds and shares of 1.
Json ProfileJson(const engine::StepTimes& times, uint64_t unit_count, size_t thread_count);

}  // namespace smoe::cli
