#include "io/read_probe.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/memory.h"
#include "base/stopwatch.h"
#include "io/direct_io.h"

namespace smoe::io {

namespace {

constexpr uint64_t kMemoryBytes = uint64_t{64} << 20;  // more than the processor's caches
constexpr uint64_t kPartsMin = 4;
constexpr uint32_t kInFlightMax = 16;
constexpr int kRounds = 2;

class Probe {
 public:
  Probe(const ProbeRanges& ranges, std::span<const ReadSetting> settings, double seconds_max)
      : ranges_(ranges), settings_(settings), seconds_max_(seconds_max) {}

  Result<ReadProbe> Run() {
    SMOE_TRY(TakeMemory());
    OpenQueues();
    if (!queues_.empty()) {
      SMOE_TRY(Try(0));  // only to learn how many reads a slice holds
      probe_.samples[0].rate = {};
    }
    // Forth and back: a drive that tires, or bursts, does it to all alike.
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = 0; i < queues_.size(); ++i) {
        SMOE_TRY(Try(round % 2 == 0 ? i : queues_.size() - 1 - i));
      }
    }
    ReadProbe probe = std::move(probe_);
    std::erase_if(probe.samples, [](const ReadSample& one) { return one.rate.bytes == 0; });
    if (probe.samples.empty()) {
      if (probe.refused.empty()) probe.refused.push_back("all that it would read is in memory");
      return Unsupported("probe of reads: none of {} settings can be measured: {}",
                         settings_.size(), fmt::join(probe.refused, "; "));
    }
    probe.best = ChooseReadSetting(probe.samples);
    probe.seconds = stopwatch_.seconds();
    return probe;
  }

 private:
  Status TakeMemory() {
    for (const auto* all : {&ranges_.direct, &ranges_.buffered}) {
      for (const ReadRange& range : *all) part_bytes_ = std::max(part_bytes_, range.size);
    }
    part_bytes_ = std::max(kPageBytes, RoundUp(part_bytes_, kPageBytes));
    const uint64_t parts = std::max(kPartsMin, kMemoryBytes / part_bytes_);
    SMOE_TRY_ASSIGN(memory_, AlignedBuffer::CreateTable(parts, part_bytes_, 1, "probe of reads"));
    for (uint64_t at = 0; at < memory_.size(); at += kPageBytes) memory_.data()[at] = std::byte{1};
    part_count_ = static_cast<uint32_t>(std::min<uint64_t>(parts, kInFlightMax));
    return Ok();
  }

  void OpenQueues() {
    for (const ReadSetting& setting : settings_) {
      if ((setting.direct ? ranges_.direct : ranges_.buffered).empty()) continue;
      auto queue = setting.backend == ReadBackend::kUring
                       ? ReadQueue::OpenUring(setting.options())
                       : ReadQueue::OpenThreaded(setting.options());
      if (!queue) {
        const std::string& reason = queue.error().message();
        if (std::find(probe_.refused.begin(), probe_.refused.end(), reason) ==
            probe_.refused.end()) {
          probe_.refused.push_back(reason);
        }
        continue;
      }
      queues_.push_back(std::move(*queue));
      probe_.samples.push_back({setting, {}});
    }
  }

  Status Try(size_t index) {
    const double slice_seconds = seconds_max_ / (kRounds * static_cast<double>(queues_.size()));
    ReadSample& sample = probe_.samples[index];
    const bool is_late = stopwatch_.seconds() + slice_seconds > seconds_max_;
    if (is_late && tried_count_ >= 2) return Ok();
    ++tried_count_;
    const std::vector<ReadRange>& all = sample.setting.direct ? ranges_.direct : ranges_.buffered;
    const uint32_t in_flight = InFlight(sample.setting, slice_seconds);
    // As many as a slice holds at the best rate so far: what is left over by the clock counts too.
    const size_t count_max = std::max<size_t>(in_flight, ReadsInSlice(slice_seconds));
    std::vector<ReadRange> turn;
    for (size_t tries = 0; tries < all.size() && turn.size() < count_max; ++tries) {
      const ReadRange& range = all[next_range_++ % all.size()];
      if (sample.setting.direct || LeavesPageCache(range)) turn.push_back(range);
    }
    // Everything is in memory, and stays there: that says nothing about the drive.
    if (turn.empty()) return Ok();
    SMOE_TRY_ASSIGN(const ReadRate rate,
                    MeasureReads(*queues_[index], turn, memory_.bytes(), in_flight, slice_seconds));
    best_rate_ = std::max(best_rate_, rate.bytes_per_second());
    sample.rate += rate;
    return Ok();
  }

  // Few enough that the last ones end not long after the slice.
  uint32_t InFlight(const ReadSetting& setting, double slice_seconds) const {
    const uint32_t most = std::min(setting.depth, part_count_);
    if (best_rate_ == 0) return std::min(most, 2u);
    const double fits = best_rate_ * slice_seconds / 2 / static_cast<double>(part_bytes_);
    return std::clamp(static_cast<uint32_t>(std::min(fits, 1e6)), std::min(most, 2u), most);
  }

  size_t ReadsInSlice(double slice_seconds) const {
    if (best_rate_ == 0) return 2;
    return static_cast<size_t>(best_rate_ * slice_seconds / static_cast<double>(part_bytes_)) + 1;
  }

  static bool LeavesPageCache(const ReadRange& range) {
    (void)::posix_fadvise(range.fd, static_cast<off_t>(range.offset),
                          static_cast<off_t>(range.size), POSIX_FADV_DONTNEED);
    return IsOutOfPageCache(range.fd, range.offset, range.size);
  }

  const ProbeRanges& ranges_;
  const std::span<const ReadSetting> settings_;
  const double seconds_max_;
  const Stopwatch stopwatch_;
  uint64_t part_bytes_ = 0;
  uint32_t part_count_ = 0;
  AlignedBuffer memory_;
  std::vector<std::unique_ptr<ReadQueue>> queues_;  // beside probe_.samples; go before memory_
  ReadProbe probe_;
  size_t next_range_ = 0;
  size_t tried_count_ = 0;
  double best_rate_ = 0;
};

}  // namespace

std::string ReadProbe::Text() const {
  std::string text = fmt::format("{}: {}", chosen().setting.Text(), ReadRateText(chosen().rate));
  const char* lead = "; tried too: ";
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == best) continue;
    text +=
        fmt::format("{}{} {:.2f} GB/s, {:.3f} s", lead, samples[i].setting.Text(),
                    samples[i].rate.bytes_per_second() / 1e9, samples[i].rate.cpu_seconds_per_gb());
    lead = "; ";
  }
  return text;
}

Result<ReadProbe> ProbeReads(const ProbeRanges& ranges, std::span<const ReadSetting> settings,
                             double seconds_max) {
  return Probe(ranges, settings, seconds_max).Run();
}

}  // namespace smoe::io
