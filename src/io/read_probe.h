// io/read_probe.h: a fraction of a second of reads that tells which setting suits a drive.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/drive_meter.h"
#include "io/read_setting.h"

namespace smoe::io {

inline constexpr double kProbeSeconds = 0.3;

// The same reads through both kinds of descriptors; those of a kind may be absent, and then no
// setting that needs them is tried. Random places, each read once or twice.
struct ProbeRanges {
  std::vector<ReadRange> direct;
  std::vector<ReadRange> buffered;
};

struct ReadProbe {
  std::vector<ReadSample> samples;   // those that were tried, at least one
  std::vector<std::string> refused;  // why others were not
  size_t best = 0;
  double seconds = 0;
  const ReadSample& chosen() const { return samples[best]; }
  // "uring, depth 64, whole, direct: 1.58 GB/s at ...; next: ..."
  std::string Text() const;
};

// Tries the settings in turn, twice, in opposite order, a slice of `seconds_max` each; what comes
// too late is left out. A slow drive may take one read longer than that for each of the first two.
// Ranges of buffered reads are dropped from the page cache first, and left out if they stay: they
// say nothing about the drive. Errors: kExhausted for the memory (some 64 MiB, given back);
// kUnsupported if no setting works, or nothing is left to read; kIo if a read fails.
Result<ReadProbe> ProbeReads(const ProbeRanges& ranges, std::span<const ReadSetting> settings,
                             double seconds_max = kProbeSeconds);

}  // namespace smoe::io
