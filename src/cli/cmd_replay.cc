// smoe replay TRACE: what caches of several sizes and policies would have read for it.
#include <algorithm>
#include <memory>
#include <vector>

#include "base/json.h"
#include "cli/command.h"
#include "cli/count_list.h"
#include "experts/replay.h"
#include "io/file.h"

namespace smoe::cli {

namespace {

struct Options {
  std::string trace;
  std::string slots;
  uint32_t skip = 0;
  bool json = false;
};

struct Row {
  uint32_t slot_count = 0;
  experts::ReplayCounts lru;
  experts::ReplayCounts frequency;
  experts::ReplayCounts belady;
  // Of the reads that LRU has and the best possible policy has not, what frequency saves.
  double gap_closed() const {
    const double gap = static_cast<double>(lru.miss_count) - static_cast<double>(belady.miss_count);
    const double saved =
        static_cast<double>(lru.miss_count) - static_cast<double>(frequency.miss_count);
    return gap == 0 ? 0 : saved / gap;
  }
};

// Each size takes a replay of its own.
constexpr CountList kSlotCounts = {
    .option = "--slots", .one = "a number above 0", .several = "200,400", .count_max = 64};

// --slots, or eight sizes from a tenth to four fifths of all experts.
Result<std::vector<uint32_t>> SlotCounts(const Options& options, uint32_t expert_count) {
  if (!options.slots.empty()) return ParseCounts(kSlotCounts, options.slots);
  std::vector<uint32_t> counts;
  for (uint32_t tenths = 1; tenths <= 8; ++tenths) {
    counts.push_back(std::max(expert_count * tenths / 10, 1U));
  }
  return counts;
}

void PrintTable(const std::vector<Row>& rows, const experts::Trace& trace, size_t token_count,
                Console& console) {
  console.Print("{}: {} tokens, {} layers, {} of {} experts of {:.2f} MB\n", Printable(trace.model),
                trace.token_count(), trace.layers.size(), trace.top_k, trace.expert_count,
                static_cast<double>(trace.expert_bytes) / 1e6);
  console.Print("{:>7} {:>8} | {:^29} | {:^29} | {}\n", "", "", "hits, %", "read, MB a token",
                "LRU's gap");
  console.Print("{:>7} {:>8} | {:>9} {:>9} {:>9} | {:>9} {:>9} {:>9} | {}\n", "slots", "GB", "lru",
                "frequency", "best", "lru", "frequency", "best", "closed, %");
  for (const Row& row : rows) {
    const auto megabytes = [&](const experts::ReplayCounts& counts) {
      return static_cast<double>(counts.miss_count) * static_cast<double>(trace.expert_bytes) /
             1e6 / static_cast<double>(std::max<size_t>(token_count, 1));
    };
    console.Print(
        "{:>7} {:>8.2f} | {:>9.2f} {:>9.2f} {:>9.2f} | {:>9.2f} {:>9.2f} {:>9.2f} | {:>9.0f}\n",
        row.slot_count,
        static_cast<double>(row.slot_count) * static_cast<double>(trace.expert_bytes) / 1e9,
        row.lru.hit_rate() * 100, row.frequency.hit_rate() * 100, row.belady.hit_rate() * 100,
        megabytes(row.lru), megabytes(row.frequency), megabytes(row.belady),
        row.gap_closed() * 100);
  }
  console.Print("best: the fewest reads possible, by a policy that knows the future (Belady)\n");
}

Json RowJson(const Row& row) {
  Json json;
  json.Set("slots", row.slot_count)
      .Set("experts_wanted", row.lru.wanted_count)
      .Set("misses_lru", row.lru.miss_count)
      .Set("misses_frequency", row.frequency.miss_count)
      .Set("misses_belady", row.belady.miss_count)
      .Set("gap_closed", row.gap_closed());
  return json;
}

Result<ExitCode> ReplayTrace(const Options& options, Console& console) {
  SMOE_TRY_ASSIGN(const std::string text,
                  io::ReadWholeFile(options.trace, experts::kTraceBytesMax));
  auto parsed = experts::ParseTrace(text);
  if (!parsed) return While(options.trace, std::move(parsed));
  const experts::Trace& trace = *parsed;
  if (trace.token_count() == 0) {
    return Corrupt("{}: line 3: a layer and its experts expected, the file ends; record it anew",
                   options.trace);
  }
  if (options.skip >= trace.token_count()) {
    return Invalid("--skip: {}, expected less than the {} tokens of the trace", options.skip,
                   trace.token_count());
  }
  const auto expert_count = static_cast<uint32_t>(trace.layers.size() * trace.expert_count);
  SMOE_TRY_ASSIGN(const std::vector<uint32_t> counts, SlotCounts(options, expert_count));
  std::vector<Row> rows;
  for (const uint32_t slot_count : counts) {
    using experts::Eviction;
    rows.push_back(
        {.slot_count = slot_count,
         .lru = experts::Replay(trace, Eviction::kLru, slot_count, options.skip),
         .frequency = experts::Replay(trace, Eviction::kFrequency, slot_count, options.skip),
         .belady = experts::ReplayBelady(trace, slot_count, options.skip)});
  }
  if (options.json) {
    std::vector<Json> sizes;
    for (const Row& row : rows) sizes.push_back(RowJson(row));
    Json json;
    json.Set("model", trace.model)
        .Set("tokens", trace.token_count())
        .Set("skipped", options.skip)
        .Set("expert_bytes", trace.expert_bytes)
        .Set("sizes", Json::ListOf(sizes));
    console.Print("{}\n", json.Dump(2));
  } else {
    PrintTable(rows, trace, trace.token_count() - options.skip, console);
  }
  return ExitCode::kOk;
}

}  // namespace

Runner DefineReplay(Arguments& arguments) {
  auto options = std::make_shared<Options>();
  arguments.Positional("TRACE", &options->trace, "A file that `smoe trace` wrote");
  arguments.Option("--slots", &options->slots, "LIST",
                   "Cache sizes in experts, as 200,400 (default: 10 to 80 % of them)");
  arguments.Option("--skip", &options->skip, "N",
                   "Count from token N on, when the cache is warm (default: 0)");
  arguments.Flag("--json", &options->json, "As JSON");
  return [options](Console& console) { return ReplayTrace(*options, console); };
}

}  // namespace smoe::cli
