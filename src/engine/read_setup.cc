#include "engine/read_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/machine.h"
#include "base/memory.h"
#include "io/read_choices.h"
#include "io/read_probe.h"

namespace smoe::engine {

namespace {

constexpr size_t kProbeExperts = 256;

// Reads that may wait for a prompt: at 1.6 GB/s 64 of 2.5 MB are a tenth of a second, more than a
// layer attends.
constexpr uint32_t kReadRoom = 64;

// Random experts of the store as ranges to read, and the files that were opened for that.
struct ProbeInput {
  io::ProbeRanges ranges;
  std::map<int, io::File> twins;  // plain descriptors by direct ones
};

ProbeInput DrawExperts(const store::ExpertStore& store) {
  ProbeInput input;
  std::mt19937_64 random(std::random_device{}());
  const bool is_direct = store.direct_io();
  std::vector<store::ExpertId> ids = store::AllExperts(store);
  std::shuffle(ids.begin(), ids.end(), random);
  ids.resize(std::min(ids.size(), kProbeExperts));
  for (const store::ExpertId id : ids) {
    const store::ExpertLocation location = store.Locate(id);
    for (uint32_t part = 0; part < location.extent_count; ++part) {
      const store::ExpertExtent& extent = location.extents[part];
      const io::ReadRange range{extent.fd, extent.offset, extent.size};
      if (!is_direct) {
        input.ranges.buffered.push_back(range);
        continue;
      }
      input.ranges.direct.push_back(range);
      auto twin = input.twins.find(extent.fd);
      if (twin == input.twins.end()) {
        Result<io::File> plain = io::ReopenForRead(extent.fd, false);
        if (!plain) continue;
        twin = input.twins.emplace(extent.fd, std::move(*plain)).first;
      }
      input.ranges.buffered.push_back({twin->second.fd(), extent.offset, extent.size});
    }
  }
  return input;
}

// Reads one expert, and says what that did to the page cache. A few are tried until one shows it:
// those in the page cache already cannot.
io::DirectEvidence SeeDirect(const store::ExpertStore& store) {
  constexpr int kTries = 4;
  io::DirectEvidence evidence = io::DirectEvidence::kBuffered;
  if (!store.direct_io()) return evidence;
  Result<AlignedBuffer> slot = AlignedBuffer::Create(store.slot_bytes(), "probe of direct reads");
  std::mt19937_64 random(std::random_device{}());
  const std::vector<store::ExpertId> ids = store::AllExperts(store);
  evidence = io::DirectEvidence::kFlagOnly;
  for (int i = 0; slot && i < kTries && evidence == io::DirectEvidence::kFlagOnly; ++i) {
    const store::ExpertExtent extent = store.Locate(ids[random() % ids.size()]).extents[0];
    const auto seen =
        io::ProveDirectRead(extent.fd, extent.offset, slot->bytes().first(extent.size));
    // The engine's own read of that expert will say what is wrong, and to whom.
    if (seen) evidence = *seen;
  }
  return evidence;
}

std::string KeyText(io::ReadBackend backend, bool is_direct) {
  return fmt::format("--io {}{}; {}", io::ReadBackendName(backend), is_direct ? "" : " --buffered",
                     MachineText(ReadMachine()));
}

// The file or folder by its full name, wherever the program was started.
Result<std::string> ChoiceKey(const store::ExpertStore& store, io::ReadBackend backend) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(store.path(), error);
  if (error) return Io("{}: {}", store.path(), error.message());
  return io::ReadChoiceKey(KeyText(backend, store.direct_io()), path.string(), store.slot_bytes());
}

// The settings without a probe.
ReadSetup DefaultSetup(const store::ExpertStore& store, const ReadSetupOptions& options,
                       std::string reason) {
  ReadSetup setup;
  setup.setting = io::CandidateReadSettings(options.backend, store.direct_io()).front();
  setup.reason = std::move(reason);
  return setup;
}

ReadSetup ProbeStore(const store::ExpertStore& store, const ReadSetupOptions& options,
                     const std::string& key) {
  const ProbeInput input = DrawExperts(store);
  const auto settings = io::CandidateReadSettings(options.backend, store.direct_io());
  Result<io::ReadProbe> probe = io::ProbeReads(input.ranges, settings);
  if (!probe) {
    LogInfo("reads: no probe, the defaults are used: {}", probe.error().message());
    return DefaultSetup(store, options, "the probe failed: " + probe.error().message());
  }
  for (const std::string& refusal : probe->refused) LogInfo("reads: not tried: {}", refusal);
  ReadSetup setup;
  setup.setting = probe->chosen().setting;
  setup.rate = probe->chosen().rate;
  setup.reason = fmt::format("probed in {:.2f} s: {}", probe->seconds, probe->Text());
  if (!key.empty()) {
    if (Status kept = io::KeepReadChoice(options.choices_path, key, probe->chosen()); !kept) {
      LogInfo("reads: the choice is not kept for the next run: {}", kept.error().message());
    }
  }
  return setup;
}

ReadSetup ChooseSetup(const store::ExpertStore& store, const ReadSetupOptions& options) {
  if (!options.is_streamed) {
    return DefaultSetup(store, options, "all experts fit the cache: the drive was not probed");
  }
  if (store.expert_count() * store.slot_bytes() < options.probe_store_bytes_min) {
    return DefaultSetup(store, options, "a small store: the drive was not probed");
  }
  std::string key;
  if (!options.choices_path.empty()) {
    if (Result<std::string> found = ChoiceKey(store, options.backend)) key = std::move(*found);
  }
  if (!key.empty()) {
    if (const auto kept = io::FindReadChoice(options.choices_path, key)) {
      ReadSetup setup;
      setup.setting = kept->setting;
      setup.rate = kept->rate;
      setup.reason = fmt::format("as probed earlier ({}): {}", options.choices_path,
                                 io::ReadRateText(kept->rate));
      return setup;
    }
  }
  return ProbeStore(store, options, key);
}

// As the setting says; where io_uring is gone since it was chosen, and nobody insists, by threads.
Result<std::unique_ptr<io::ReadQueue>> OpenQueue(const ReadSetupOptions& options,
                                                 io::ReadSetting* setting) {
  using io::ReadBackend;
  const bool may_fall_back =
      setting->backend == ReadBackend::kUring && options.backend == ReadBackend::kAuto;
  const ReadBackend backend = may_fall_back ? ReadBackend::kAuto : setting->backend;
  SMOE_TRY_ASSIGN(auto queue, io::ReadQueue::Open(backend, setting->options(kReadRoom)));
  if (std::string_view(queue->name()) == "threads") setting->backend = ReadBackend::kThreads;
  return queue;
}

}  // namespace

std::string ReadSetup::Text() const {
  std::string text = setting.Text();
  const bool has_room = setting.backend == io::ReadBackend::kUring && queue_room > setting.depth;
  const std::string room = has_room ? fmt::format("; room for {}", queue_room) : "";
  if (evidence == io::DirectEvidence::kBuffered) return text + room;
  // The setting says "direct" at its end; the evidence says it better.
  return text.substr(0, text.rfind(", ")) + ", " + io::DirectEvidenceText(evidence) + room;
}

Json ReadSetup::ToJson() const {
  Json json;
  json.Set("backend", io::ReadBackendName(setting.backend))
      .Set("depth", setting.depth)
      .Set("room", queue_room)
      .Set("threads", setting.thread_count)
      .Set("piece_bytes", setting.piece_bytes)
      .Set("direct", setting.direct)
      .Set("evidence", io::DirectEvidenceText(evidence))
      .Set("reason", reason);
  if (rate.bytes > 0) {
    json.Set("probed_bytes_per_second", rate.bytes_per_second())
        .Set("probed_cpu_seconds_per_gb", rate.cpu_seconds_per_gb());
  }
  return json;
}

Result<Reads> OpenReads(store::ExpertStore& store, const ReadSetupOptions& options) {
  Reads reads;
  reads.setup = ChooseSetup(store, options);
  ReadSetup& setup = reads.setup;
  if (store.direct_io() && !setup.setting.direct) {
    LogInfo("reads: buffered, which this drive does better: {}", setup.reason);
    store.FallBackToBuffered();
  }
  setup.setting.direct = store.direct_io();
  SMOE_TRY_ASSIGN(reads.queue, OpenQueue(options, &setup.setting));
  setup.queue_room = reads.queue->free_count();
  setup.evidence = SeeDirect(store);
  if (setup.evidence == io::DirectEvidence::kIgnored) {
    LogInfo("reads: {}: O_DIRECT is set, and this file system reads through the page cache",
            store.path());
  }
  return reads;
}

}  // namespace smoe::engine
