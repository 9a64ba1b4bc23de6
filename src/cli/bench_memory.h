// cli/bench_memory.h: smoe bench --memory LIST, as text and as JSON.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/memory_bench.h"

namespace smoe::cli {

// A table for decoding and one for the prompt, a row for each amount of memory.
std::string MemoryBenchText(const engine::MemoryBenchReport& report);
Json MemoryBenchJson(const engine::MemoryBenchReport& report);

// "1.5 GB" as 1000 to the third, or "all".
std::string MemoryName(const std::optional<uint64_t>& memory_bytes);

}  // namespace smoe::cli
