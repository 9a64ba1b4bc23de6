// What doctor says about the drive and the model on it.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/memory.h"
#include "base/memory_limits.h"
#include "engine/doctor.h"
#include "io/file.h"
#include "io/read_queue.h"
#include "store/model_files.h"
#include "store/model_size.h"
#include "store/stripe/stripe.h"

namespace smoe::engine {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLittleSpace = uint64_t{20} << 30;  // a small model's vault

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool HoldsModel(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) || fs::exists(path + "/config.json", ignored) ||
         fs::exists(path + "/manifest.json", ignored);
}

// A file to try: the model itself, or the largest file in its folder.
std::string FileToRead(const std::string& path) {
  if (!IsFolder(path)) return path;
  std::error_code error;
  std::string largest;
  uint64_t largest_bytes = io::kDirectAlignment - 1;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const uint64_t bytes = entry->file_size(ignored);
    if (bytes <= largest_bytes) continue;
    largest_bytes = bytes;
    largest = entry->path().string();
  }
  return largest;
}

// A file that is there for the time of one test.
class ProbeFile {
 public:
  static Result<ProbeFile> Create(const std::string& folder) {
    ProbeFile probe(fmt::format("{}/.smoe_doctor_{}", folder, getpid()));
    SMOE_TRY_ASSIGN(const io::File file, io::File::Create(probe.path_));
    const std::array<std::byte, io::kDirectAlignment> bytes{};
    SMOE_TRY(file.WriteAt(0, bytes));
    SMOE_TRY(file.Sync());
    return probe;
  }
  ProbeFile(ProbeFile&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ProbeFile& operator=(ProbeFile&&) = delete;
  ProbeFile(const ProbeFile&) = delete;
  ProbeFile& operator=(const ProbeFile&) = delete;
  ~ProbeFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  explicit ProbeFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

Finding DirectFinding(const std::string& path, const Status& opened) {
  Finding finding{.subject = "direct reads"};
  if (opened) {
    finding.found = fmt::format("work for {}", path);
    return finding;
  }
  finding.severity = Severity::kNote;
  finding.found = opened.error().message();
  finding.meaning =
      "experts are read through the page cache, which takes memory from the expert "
      "cache and costs a copy";
  finding.remedy = "a file system that has them: ext4, xfs or btrfs on a drive of this machine";
  return finding;
}

Status TryDirect(const std::string& path) {
  const auto file = io::File::OpenDirect(path);
  if (!file) return Unexpected(file.error());
  return Ok();
}

}  // namespace

Finding CheckUring() {
  Finding finding{.subject = "io_uring"};
  const auto queue = io::ReadQueue::OpenUring({.depth = 8});
  if (queue) {
    finding.found = "allowed";
    return finding;
  }
  finding.severity = Severity::kNote;
  finding.found = queue.error().message();
  finding.meaning = "experts are read by threads, which costs some processor time";
  finding.remedy =
      "sysctl kernel.io_uring_disabled=0; in a container, a seccomp profile that "
      "allows io_uring";
  return finding;
}

Finding CheckDirectReads(const std::string& path) {
  if (const std::string file = HoldsModel(path) ? FileToRead(path) : ""; !file.empty()) {
    return DirectFinding(file, TryDirect(file));
  }
  if (std::error_code ignored; fs::exists(path, ignored) && !IsFolder(path)) {
    return {.severity = Severity::kProblem,
            .subject = "direct reads",
            .found = fmt::format("{}: a device, pipe or socket, expected a file or folder", path),
            .meaning = "",
            .remedy = "name a model, or a folder for models",
            .blocks = ErrorCode::kInvalid};
  }
  if (!IsFolder(path)) {
    return {.severity = Severity::kProblem,
            .subject = "direct reads",
            .found = fmt::format("{}: no such file or folder", path),
            .meaning = "",
            .remedy = "name a model, or a folder for models",
            .blocks = ErrorCode::kInvalid};
  }
  const auto probe = ProbeFile::Create(path);
  if (!probe) {
    return {.severity = Severity::kNote,
            .subject = "direct reads",
            .found = fmt::format("not tried: {}", probe.error().message()),
            .meaning = "",
            .remedy = "name a model, or a folder that you may write to",
            .blocks = {}};
  }
  Finding finding = DirectFinding(path, TryDirect(probe->path()));
  return finding;
}

Finding CheckFreeSpace(const std::string& path) {
  Finding finding{.subject = "free space"};
  const auto space = io::FreeSpace(path);
  if (!space) {
    finding.severity = Severity::kNote;
    finding.found = space.error().message();
    return finding;
  }
  if (*space == io::kFreeSpaceUnknown) {
    finding.severity = Severity::kNote;
    finding.found = fmt::format("{}: this file system does not say", path);
    return finding;
  }
  finding.found = fmt::format("{} for {}", SizeText(*space), path);
  if (*space >= kLittleSpace) return finding;
  finding.severity = Severity::kNote;
  finding.meaning = "a 30 B model takes 20 GiB in 4 bits, beside the checkpoint it is made of";
  finding.remedy = "another drive, or smoe shatter --bits 2";
  return finding;
}

std::optional<Finding> CheckModel(const std::string& path, const std::string& root) {
  if (!HoldsModel(path)) return std::nullopt;
  Finding finding{.subject = "model"};
  const auto fail = [&](const Error& error) {
    finding.severity = Severity::kProblem;
    finding.found = error.message();
    finding.blocks = error.code();
    return finding;
  };
  const auto files = store::OpenModelFiles(path, {});
  if (!files) return fail(files.error());
  const auto size = store::MeasureSize(*files);
  if (!size) return fail(size.error());
  uint64_t copied_bytes = 0;  // experts that lie on a further drive as well
  if (store::stripe::IsStripeFile(path)) {
    const auto striped = store::stripe::ReadStripe(path);
    if (!striped) return fail(striped.error());
    for (const store::stripe::Part& part : striped->parts) copied_bytes += part.file_bytes;
  }
  const uint64_t held_bytes = size->expert_bytes + copied_bytes;
  const uint64_t trunk_bytes = size->drive_bytes - std::min(size->drive_bytes, held_bytes);
  finding.found =
      fmt::format("{}, {} experts in {} ({}), the rest {}; a token uses {} of experts",
                  files->config.model_type, size->expert_count, files->experts->format_name(),
                  SizeText(size->expert_bytes), SizeText(trunk_bytes), SizeText(size->token_bytes));
  const auto free = ReadFreeMemory(root);
  if (!free) return finding;
  const uint64_t rest = free->bytes - std::min(free->bytes, trunk_bytes);
  if (rest >= size->expert_bytes) {
    finding.meaning = "all of it fits memory";
    return finding;
  }
  finding.severity = rest < size->token_bytes ? Severity::kProblem : Severity::kNote;
  finding.meaning =
      fmt::format("{:.0f} % of the experts fit beside the rest, the others are read when needed",
                  100 * static_cast<double>(rest) / static_cast<double>(size->expert_bytes));
  if (finding.severity == Severity::kProblem) {
    finding.meaning += "; less than one token's, so every expert is read for every token";
    finding.remedy = "free memory, or fewer bits (smoe shatter --bits 2)";
  }
  return finding;
}

}  // namespace smoe::engine
