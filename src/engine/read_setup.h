// engine/read_setup.h: how the experts of a store are read on this machine, and how that was found.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/json.h"
#include "base/result.h"
#include "io/direct_io.h"
#include "io/read_queue.h"
#include "io/read_setting.h"
#include "store/expert_store.h"

namespace smoe::engine {

struct ReadSetup {
  io::ReadSetting setting;
  // Reads that may wait in the queue, where a prompt knows more of them than setting.depth. Guesses
  // that may be wrong are asked for setting.depth at once.
  uint32_t queue_room = 0;
  io::DirectEvidence evidence = io::DirectEvidence::kBuffered;
  io::ReadRate rate;   // of the probe, now or in an earlier run; no bytes: none was made
  std::string reason;  // "probed in 0.29 s: ..."; "all experts fit memory: not probed"
  // "uring, depth 4, whole, direct, verified; room for 64".
  std::string Text() const;
  Json ToJson() const;
};

// A smaller store is not worth the time, and too small to show a drive.
inline constexpr uint64_t kProbeStoreBytesMin = uint64_t{256} << 20;

struct ReadSetupOptions {
  io::ReadBackend backend = io::ReadBackend::kAuto;  // --io
  bool is_streamed = false;  // experts will be read all the time: a probe pays
  uint64_t probe_store_bytes_min = kProbeStoreBytesMin;
  std::string choices_path;  // io::ReadChoicesPath(); empty: nothing is kept
};

struct Reads {
  std::unique_ptr<io::ReadQueue> queue;
  ReadSetup setup;
};

// Opens the queue that suits the drive: as remembered, else as probed (at most some 0.3 s), else
// the defaults. A store that reads buffered better is told so. Every fallback is in the log.
// Errors: as ReadQueue::Open. A probe that fails is no error.
Result<Reads> OpenReads(store::ExpertStore& store, const ReadSetupOptions& options);

}  // namespace smoe::engine
