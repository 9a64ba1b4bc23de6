#include "store/stripe/stripe_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <random>

#include "base/log.h"
#include "base/memory.h"
#include "base/memory_limits.h"
#include "base/thread_pool.h"
#include "io/atomic_file.h"
#include "io/direct_io.h"
#include "io/drive_meter.h"
#include "store/read_expert.h"

namespace smoe::store::stripe {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kWritebackBytes = uint64_t{32} << 20;
constexpr double kRateSeconds = 0.25;  // of one round

std::string Absolute(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

// The striping that OUT describes and that is replaced, if there is one.
std::optional<Stripe> OldStripe(const WriteStripeOptions& options) {
  if (!options.overwrite || !IsStripeFile(options.out)) return std::nullopt;
  Result<Stripe> old = ReadStripe(options.out);
  if (!old) return std::nullopt;
  for (Part& part : old->parts) part.path = Absolute(part.path);
  return std::move(*old);
}

bool IsPartOf(const std::optional<Stripe>& stripe, const std::string& path) {
  if (!stripe) return false;
  return std::any_of(stripe->parts.begin(), stripe->parts.end(),
                     [&](const Part& part) { return part.path == path; });
}

// FOLDER/OUT.part1, or OUT.part1-2 beside it: what the older striping needs stays until the
// descriptor names other parts.
std::vector<std::string> PartPaths(const WriteStripeOptions& options) {
  const std::optional<Stripe> old = OldStripe(options);
  const std::string stem = fs::path(options.out).filename().string();
  std::vector<std::string> paths;
  for (const std::string& folder : options.folders) {
    const std::string name = fmt::format("{}.part{}", stem, paths.size() + 1);
    std::string path = (fs::path(Absolute(folder)) / name).string();
    const std::string first = path;
    for (int count = 2; IsPartOf(old, path); ++count) path = fmt::format("{}-{}", first, count);
    paths.push_back(path);
  }
  return paths;
}

// The parts that no descriptor names, any more or yet; nothing that is no part of this very
// striping.
void RemoveParts(const Stripe& stripe) {
  for (const Part& part : stripe.parts) {
    const auto file = io::File::OpenRead(part.path);
    std::byte start[sizeof(PartHeader)];
    if (!file || !file->ReadAt(0, start)) continue;
    const auto header = LoadStruct<PartHeader>(start);
    if (std::memcmp(header.magic, kPartMagic, sizeof(kPartMagic)) != 0 ||
        header.stripe_id != stripe.Id()) {
      continue;
    }
    std::error_code failed;
    fs::remove(part.path, failed);
    if (failed) LogWarning("{}: no longer needed, but: {}", part.path, failed.message());
  }
}

// The descriptor is JSON, which has no other bytes.
Status CheckIsUtf8(const std::string& path) {
  const Result<Json> back = Json::Parse(Json(path).Dump(), "path");
  if (back && back->AsString() != nullptr && *back->AsString() == path) return Ok();
  return Invalid("{}: the name is no UTF-8, expected one that OUT can hold; rename it", path);
}

std::optional<dev_t> DeviceOf(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return std::nullopt;
  return info.st_dev;
}

Status CheckFolders(const WriteStripeOptions& options) {
  for (const std::string& folder : options.folders) {
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) continue;
    return Invalid("{}: no such folder; name one on each drive that shall have a part", folder);
  }
  return Ok();
}

// Folders of one file system need room for the sum of their parts.
Status CheckSpace(const Stripe& stripe, const std::vector<std::string>& folders) {
  std::map<dev_t, std::pair<std::string, uint64_t>> needs;
  for (size_t i = 0; i < folders.size(); ++i) {
    const auto device = DeviceOf(folders[i]);
    if (!device) return Io("{}: its drive cannot be told", folders[i]);
    auto& need = needs[*device];
    if (need.first.empty()) need.first = folders[i];
    need.second += stripe.parts[i].file_bytes;
  }
  for (const auto& [device, need] : needs) {
    SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(need.first));
    if (free >= need.second) continue;
    return Exhausted(
        "{}: {} free, expected at least {} for its parts; free some or give it a "
        "smaller weight",
        need.first, SizeText(free), SizeText(need.second));
  }
  return Ok();
}

Status CheckNoPartIsEmpty(const WriteStripeOptions& options, const Placement& placement) {
  std::vector<size_t> counts(options.weights.size());
  for (const Place& place : placement.places) ++counts[place.part];
  uint64_t sum = 0;
  for (const uint32_t weight : options.weights) sum += weight;
  for (size_t i = 1; i < counts.size(); ++i) {
    if (counts[i] != 0) continue;
    return Invalid(
        "{}: its weight of {} in {} gives it none of {} experts; raise it, or leave the folder out",
        options.folders[i - 1], options.weights[i], sum, placement.places.size());
  }
  return Ok();
}

class Writer {
 public:
  Writer(const ExpertStore& store, const WriteStripeOptions& options, const Placement& placement)
      : store_(store), options_(options), placement_(placement) {
    for (const Place& place : placement.places) {
      if (place.part != 0) total_bytes_ += place.bytes;
    }
  }

  Status Open(const Stripe& stripe) {
    for (const Part& part : stripe.parts) {
      SMOE_TRY_ASSIGN(auto file,
                      io::AtomicFile::Open(part.path, {.overwrite = options_.overwrite}));
      SMOE_TRY(file.file().Truncate(0));
      SMOE_TRY(file.file().Reserve(part.file_bytes));
      files_.push_back(std::move(file));
    }
    return Ok();
  }

  // Bodies, by a thread for each part; their checksums go to the stripe.
  Status Copy(Stripe* stripe) {
    SMOE_TRY_ASSIGN(const auto pool, ThreadPool::Create(files_.size()));
    pool->ParallelFor(files_.size(), 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (Status status = CopyPart(i, &stripe->parts[i].body_checksum); !status) Fail(status);
      }
    });
    if (failure_) return Unexpected(*failure_);
    return Ok();
  }

  Status Finish(const Stripe& stripe) {
    for (size_t i = 0; i < files_.size(); ++i) {
      std::vector<std::byte> head(kPartHeaderBytes);
      StoreStruct(MutableBytes(head), 0, MakePartHeader(stripe, static_cast<uint32_t>(i + 1)));
      SMOE_TRY(files_[i].file().WriteAt(0, head));
      SMOE_TRY(files_[i].file().Sync());
    }
    for (io::AtomicFile& file : files_) SMOE_TRY(file.Commit());
    return Ok();
  }

 private:
  Status CopyPart(size_t index, uint64_t* body_checksum) {
    SMOE_TRY_ASSIGN(AlignedBuffer slot, AlignedBuffer::Create(store_.slot_bytes(), "striping"));
    const io::File& file = files_[index].file();
    ChecksumStream checksum;
    uint64_t handed_bytes = 0;
    const std::vector<ExpertId> ids = AllExperts(store_);
    for (size_t ordinal = 0; ordinal < ids.size(); ++ordinal) {
      const Place& place = placement_.places[ordinal];
      if (place.part != index + 1) continue;
      if (has_failed_) return Ok();
      if (options_.is_stopped && options_.is_stopped()) return Invalid("interrupted");
      const MutableBytes block = slot.bytes().first(place.bytes);
      std::fill(block.begin(), block.end(), std::byte{0});
      SMOE_TRY(ReadExpert(store_, ids[ordinal], slot.bytes()));
      checksum.Add(block);
      SMOE_TRY(file.WriteAt(place.offset, block));
      if (place.offset + place.bytes - handed_bytes >= kWritebackBytes) {
        file.StartWriteback(handed_bytes, place.offset + place.bytes - handed_bytes);
        handed_bytes = place.offset + place.bytes;
      }
      Advance(place.bytes);
    }
    *body_checksum = checksum.Digest();
    return Ok();
  }

  void Advance(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_bytes_ += bytes;
    if (options_.progress) options_.progress(done_bytes_, total_bytes_);
  }

  void Fail(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = status.error();
    has_failed_ = true;
  }

  const ExpertStore& store_;
  const WriteStripeOptions& options_;
  const Placement& placement_;
  std::vector<io::AtomicFile> files_;
  std::mutex mutex_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
  std::optional<Error> failure_;
  std::atomic<bool> has_failed_ = false;
};

// A drive that has just been written to, or is shared, is slow for moments: the best of several
// rounds counts. What the page cache may hold afterwards is read once.
Result<double> Rate(const std::vector<io::ReadRange>& ranges, bool is_direct) {
  constexpr int kRounds = 4;
  constexpr uint32_t kDepth = 8;
  constexpr uint64_t kMemoryBytes = uint64_t{64} << 20;
  uint64_t part_bytes = 0;
  for (const io::ReadRange& range : ranges) part_bytes = std::max(part_bytes, range.size);
  part_bytes = RoundUp(part_bytes, kPageBytes);
  const uint64_t memory_bytes = std::max(kMemoryBytes / part_bytes, uint64_t{kDepth}) * part_bytes;
  SMOE_TRY_ASSIGN(AlignedBuffer memory, AlignedBuffer::Create(memory_bytes, "measuring drives"));
  SMOE_TRY_ASSIGN(auto queue, io::ReadQueue::Open(io::ReadBackend::kAuto, {.depth = kDepth}));
  double best = 0;
  for (int round = 0; round < (is_direct ? kRounds : 1); ++round) {
    SMOE_TRY_ASSIGN(const io::ReadRate rate,
                    io::MeasureReads(*queue, ranges, memory.bytes(), kDepth, kRateSeconds));
    best = std::max(best, rate.bytes_per_second());
  }
  return best;
}

}  // namespace

Result<Stripe> WriteStripe(const ExpertStore& store, const WriteStripeOptions& options) {
  SMOE_TRY(CheckStripePlaces(options));
  if (options.weights.size() != options.folders.size() + 1) {
    return Invalid("stripe: {} weights, expected {}: the model's own, and one for each folder",
                   options.weights.size(), options.folders.size() + 1);
  }
  SMOE_TRY_ASSIGN(const Placement placement, PlaceExperts(store, options.weights));
  SMOE_TRY(CheckNoPartIsEmpty(options, placement));
  const std::optional<Stripe> old = OldStripe(options);
  const std::vector<std::string> paths = PartPaths(options);
  Stripe stripe;
  stripe.path = options.out;
  stripe.model = Absolute(options.model);
  stripe.model_weight = options.weights[0];
  stripe.expert_count = store.expert_count();
  for (const Place& place : placement.places) stripe.expert_bytes += place.bytes;
  for (size_t i = 0; i < options.folders.size(); ++i) {
    stripe.parts.push_back({paths[i], options.weights[i + 1], placement.part_bytes[i + 1], 0});
  }
  SMOE_TRY(CheckSpace(stripe, options.folders));
  SMOE_TRY_ASSIGN(auto descriptor,
                  io::AtomicFile::Open(options.out, {.overwrite = options.overwrite}));
  // As long as it will be: only checksums are missing, which have a fixed width.
  SMOE_TRY(descriptor.file().WriteAt(0, AsBytes(StripeText(stripe))));
  Writer writer(store, options, placement);
  SMOE_TRY(writer.Open(stripe));
  SMOE_TRY(writer.Copy(&stripe));
  SMOE_TRY(descriptor.file().WriteAt(0, AsBytes(StripeText(stripe))));
  SMOE_TRY(descriptor.file().Sync());
  Status finished = writer.Finish(stripe);
  if (finished) finished = descriptor.Commit();
  if (!finished) {
    std::error_code ignored;
    if (fs::exists(descriptor.partial_path(), ignored)) RemoveParts(stripe);
    return Unexpected(std::move(finished.error()));
  }
  if (old) RemoveParts(*old);
  return stripe;
}

Result<double> MeasureFolder(const std::string& folder) {
  constexpr uint64_t kReadBytes = uint64_t{1} << 20;
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(folder));
  if (free < kRateFileBytes) {
    return Exhausted("{}: {} free, expected {} to measure its drive; free some or give --weights",
                     folder, SizeText(free), SizeText(kRateFileBytes));
  }
  SMOE_TRY_ASSIGN(const io::File file, io::File::CreateUnnamed(folder));
  std::mt19937_64 random(1);
  std::vector<uint64_t> words(kReadBytes / sizeof(uint64_t));
  for (uint64_t& word : words) word = random();
  std::vector<io::ReadRange> ranges;
  for (uint64_t at = 0; at < kRateFileBytes; at += kReadBytes) {
    SMOE_TRY(file.WriteAt(at, std::as_bytes(std::span(words))));
    ranges.push_back({file.fd(), at, kReadBytes});
  }
  SMOE_TRY(file.Sync());
  file.DropFromPageCache(0, kRateFileBytes);
  // Without direct reads here the page cache, just emptied, is read through: the drive all the
  // same.
  const Result<io::File> direct = io::ReopenForRead(file.fd(), true);
  if (direct) {
    for (io::ReadRange& range : ranges) range.fd = direct->fd();
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  return Rate(ranges, direct.has_value());
}

Result<double> MeasureStore(const ExpertStore& store) {
  constexpr size_t kExperts = 256;
  std::mt19937_64 random(1);
  std::vector<io::ReadRange> ranges;
  for (const ExpertId id : AllExperts(store)) {
    SMOE_TRY_ASSIGN(const ExpertExtent extent, OneExtent(store, id));
    ranges.push_back({extent.fd, extent.offset, extent.size});
  }
  std::shuffle(ranges.begin(), ranges.end(), random);
  ranges.resize(std::min(ranges.size(), kExperts));
  for (const io::ReadRange& range : ranges) {
    (void)::posix_fadvise(range.fd, static_cast<off_t>(range.offset),
                          static_cast<off_t>(range.size), POSIX_FADV_DONTNEED);
  }
  return Rate(ranges, store.direct_io());
}

std::vector<uint32_t> WeightsOf(std::span<const double> bytes_per_second) {
  constexpr double kMost = 100;
  double best = 0;
  for (const double rate : bytes_per_second) best = std::max(best, rate);
  std::vector<uint32_t> weights;
  for (const double rate : bytes_per_second) {
    const double share = best > 0 ? rate / best : 1;
    weights.push_back(static_cast<uint32_t>(std::max(1.0, std::round(share * kMost))));
  }
  return weights;
}

Status CheckStripePlaces(const WriteStripeOptions& options) {
  SMOE_TRY(CheckFolders(options));
  std::vector<std::string> outputs = {options.out};
  for (std::string& path : PartPaths(options)) outputs.push_back(std::move(path));
  std::vector<std::string> inputs = options.inputs;
  inputs.push_back(options.model);
  SMOE_TRY(CheckIsUtf8(Absolute(options.model)));
  for (const std::string& output : outputs) {
    SMOE_TRY(CheckIsUtf8(output));
    SMOE_TRY(io::CheckOutputPlace(output, options.overwrite));
    SMOE_TRY(io::CheckNoInput(output, inputs));
  }
  return Ok();
}

std::vector<std::string> SharedDrives(const std::string& model,
                                      std::span<const std::string> folders) {
  std::vector<std::string> shared(folders.size());
  for (size_t i = 0; i < folders.size(); ++i) {
    const auto device = DeviceOf(folders[i]);
    if (!device) continue;
    if (DeviceOf(model) == device) shared[i] = model;
    for (size_t j = 0; j < i && shared[i].empty(); ++j) {
      if (DeviceOf(folders[j]) == device) shared[i] = folders[j];
    }
  }
  return shared;
}

}  // namespace smoe::store::stripe
