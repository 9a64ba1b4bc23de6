#include "engine/warm_start.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/hot_set.h"

namespace smoe::engine {

WarmStart::WarmStart(experts::ExpertCache& cache, const store::ExpertStore& store, std::string path)
    : cache_(cache), store_(store), path_(std::move(path)) {
  Begin();
}

WarmStart::~WarmStart() { Keep(); }

void WarmStart::Begin() {
  std::vector<double> worths(store_.expert_count(), 0.0);
  if (access(path_.c_str(), F_OK) == 0) {
    Result<std::vector<double>> kept = ReadHotSet(path_, store_.expert_count());
    if (kept) {
      worths = std::move(*kept);
    } else {
      LogWarning("warm start: the last run's hot set is no good and will be replaced: {}",
                 kept.error().message());
    }
  }
  for (double& worth : worths) worth *= kKeptShare;
  cache_.Recall(worths);

  std::vector<uint32_t> order(worths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return worths[a] > worths[b]; });
  const auto known = static_cast<size_t>(std::count_if(
      worths.begin(), worths.end(), [](double worth) { return worth >= kReadWorthMin; }));
  order.resize(std::min<size_t>(known, cache_.slot_count()));

  const std::vector<store::ExpertId> ids = store::AllExperts(store_);
  std::vector<store::ExpertId> likely;
  for (const uint32_t ordinal : order) likely.push_back(ids[ordinal]);
  cache_.ReadWhenIdle(likely);
  sentence_ = known == 0
                  ? fmt::format("warm start: {} knows no expert that is worth a read", path_)
                  : fmt::format("warm start: {} experts of {} are read while the drive is idle",
                                likely.size(), path_);
}

void WarmStart::Look() {
  if (since_kept_.ns() < kKeepNs) return;
  since_kept_ = Stopwatch();
  Keep();
}

void WarmStart::Keep() {
  const uint64_t wanted_count = cache_.stats().wanted_count();
  if (wanted_count == kept_wanted_count_) return;
  kept_wanted_count_ = wanted_count;
  const Status kept = WriteHotSet(path_, cache_.LastingWorths());
  if (kept || has_complained_) return;
  has_complained_ = true;
  LogWarning("warm start: the hot set is not kept: {}", kept.error().message());
}

}  // namespace smoe::engine
