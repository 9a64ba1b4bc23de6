#include "io/read_setting.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/memory_limits.h"

namespace smoe::io {

namespace {

// Each has been the best on some drive: deep queues of whole records on fast ones, few in flight
// where seeks cost, pieces where one request is served by one channel.
constexpr uint32_t kDeep = 64;
constexpr uint32_t kShallow = 4;
constexpr uint32_t kReaders = 8;
constexpr uint64_t kPieceBytes = uint64_t{512} << 10;

}  // namespace

ReadQueue::Options ReadSetting::options(uint32_t room) const {
  return {std::max(depth, room), piece_bytes == 0 ? std::min(thread_count, depth) : thread_count,
          piece_bytes};
}

std::string ReadSetting::Text() const {
  const bool is_threaded = backend == ReadBackend::kThreads;
  return fmt::format(
      "{}, {}, {}",
      is_threaded ? fmt::format("threads x {}", thread_count)
                  : fmt::format("uring, depth {}", depth),
      piece_bytes == 0 ? std::string("whole") : fmt::format("pieces of {}", SizeText(piece_bytes)),
      direct ? "direct" : "buffered");
}

std::vector<ReadSetting> CandidateReadSettings(ReadBackend backend, bool may_be_direct) {
  constexpr ReadBackend kRing = ReadBackend::kUring;
  constexpr ReadBackend kPool = ReadBackend::kThreads;
  std::vector<ReadSetting> all = {
      {kRing, kDeep, kReaders, 0, true},    {kPool, kDeep, kReaders, 0, true},
      {kPool, kDeep, kReaders, 0, false},   {kRing, kDeep, kReaders, kPieceBytes, true},
      {kRing, kShallow, kReaders, 0, true}, {kPool, kDeep, kReaders, kPieceBytes, true},
      {kRing, kDeep, kReaders, 0, false},
  };
  std::erase_if(all, [&](const ReadSetting& one) {
    return (one.direct && !may_be_direct) ||
           (backend != ReadBackend::kAuto && one.backend != backend);
  });
  return all;
}

size_t ChooseReadSetting(std::span<const ReadSample> samples) {
  SMOE_CHECK(!samples.empty());
  double best_rate = 0;
  for (const ReadSample& one : samples) {
    best_rate = std::max(best_rate, one.rate.bytes_per_second());
  }
  size_t best = samples.size();
  for (size_t i = 0; i < samples.size(); ++i) {
    const ReadRate& rate = samples[i].rate;
    if (rate.bytes == 0 || rate.bytes_per_second() < (1 - kNearShare) * best_rate) continue;
    const bool is_cheaper = best == samples.size() ||
                            rate.cpu_seconds_per_gb() < samples[best].rate.cpu_seconds_per_gb();
    if (is_cheaper) best = i;
  }
  return best == samples.size() ? 0 : best;
}

std::string ReadRateText(const ReadRate& rate) {
  return fmt::format("{:.2f} GB/s at {:.3f} s of processor per GB", rate.bytes_per_second() / 1e9,
                     rate.cpu_seconds_per_gb());
}

}  // namespace smoe::io
