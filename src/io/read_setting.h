// io/read_setting.h: one way to read from a drive, and the choice between measured ones.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/drive_meter.h"
#include "io/read_queue.h"

namespace smoe::io {

struct ReadSetting {
  ReadBackend backend = ReadBackend::kUring;  // never kAuto
  uint32_t depth = 64;
  uint32_t thread_count = 8;  // with kThreads
  uint64_t piece_bytes = 0;
  bool direct = true;
  friend bool operator==(const ReadSetting&, const ReadSetting&) = default;

  ReadQueue::Options options() const { return {depth, thread_count, piece_bytes}; }
  // Of a queue in which at least `room` reads may wait: whoever knows what is wanted next need not
  // come by whenever one ends. No more threads read for that.
  ReadQueue::Options options(uint32_t room) const;
  // "uring, depth 64, whole, direct"; "threads x 8, pieces of 512 KiB, buffered".
  std::string Text() const;
};

struct ReadSample {
  ReadSetting setting;
  ReadRate rate;
};

// The settings worth a try, likeliest first; the first has the defaults. With `may_be_direct` off
// only buffered ones; kAuto: both back ends.
std::vector<ReadSetting> CandidateReadSettings(ReadBackend backend, bool may_be_direct);

// Rates nearer to each other than this share cannot be told apart by a short look at a drive.
inline constexpr double kNearShare = 0.08;

// Index of the best of the samples: the most bytes per second; of those within kNearShare of that,
// the one that costs least processor time per byte, which the arithmetic needs. Samples without
// bytes lose. Requires at least one.
size_t ChooseReadSetting(std::span<const ReadSample> samples);

// "1.58 GB/s at 0.006 s of processor per GB".
std::string ReadRateText(const ReadRate& rate);

}  // namespace smoe::io
