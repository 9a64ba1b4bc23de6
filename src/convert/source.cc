#include "convert/source.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "store/model_text.h"
#include "store/vault/annex.h"

namespace smoe::convert {
namespace {

// The samples of a source file that its hash covers: this many of this size, evenly spread, the
// first and the last bytes included. Whole files of hundreds of gigabytes would double the work.
constexpr uint64_t kSampleCount = 64;
constexpr uint64_t kSampleBytes = uint64_t{64} << 10;
Result<uint64_t> SampledChecksum(const io::File& file, uint64_t size) {
  ChecksumStream checksum;
  std::vector<std::byte> piece(kSampleBytes);
  const uint64_t last = size > kSampleBytes ? size - kSampleBytes : 0;
  uint64_t previous_end = 0;
  for (uint64_t i = 0; i < kSampleCount; ++i) {
    const uint64_t begin =
        std::max(previous_end, last / (kSampleCount - 1) * i +
                                   last % (kSampleCount - 1) * i / (kSampleCount - 1));
    const uint64_t count = std::min(kSampleBytes, size - std::min(size, begin));
    if (count == 0) break;
    const MutableBytes into = MutableBytes(piece).first(count);
    SMOE_TRY(file.ReadAt(begin, into));
    checksum.Add(into);
    previous_end = begin + count;
  }
  return checksum.Digest();
}

}  // namespace

Result<Json> SourceJson(const checkpoint::Checkpoint& checkpoint, bool times) {
  return SourceJson(checkpoint.files.files(), checkpoint.side_files.config, times);
}

Result<Json> SourceJson(std::span<const io::File> files, std::string_view config, bool times) {
  Json::Array entries;
  for (const io::File& file : files) {
    SMOE_TRY_ASSIGN(const uint64_t size, file.Size());
    SMOE_TRY_ASSIGN(const uint64_t checksum, SampledChecksum(file, size));
    Json entry;
    entry.Set("name", std::filesystem::path(file.path()).filename().string());
    entry.Set("bytes", size);
    entry.Set("sampled_xxh3", fmt::format("{:016x}", checksum));
    if (times) {
      struct stat info = {};
      if (::fstat(file.fd(), &info) != 0) return Io("{}: no modification time", file.path());
      entry.Set("modified", fmt::format("{}.{:09}", info.st_mtim.tv_sec, info.st_mtim.tv_nsec));
    }
    entries.push_back(std::move(entry));
  }
  Json source;
  source.Set("files", Json(std::move(entries)));
  source.Set("config_xxh3", fmt::format("{:016x}", Checksum(AsBytes(config))));
  return source;
}

std::vector<AnnexText> TextsOf(const checkpoint::SideFiles& files) {
  std::vector<AnnexText> texts = {{store::vault::kSectionConfig, files.config}};
  const std::pair<std::string_view, const std::optional<std::string>*> optional_texts[] = {
      {store::vault::kSectionGenerationConfig, &files.generation_config},
      {store::vault::kSectionTokenizer, &files.tokenizer},
      {store::vault::kSectionTokenizerConfig, &files.tokenizer_config},
      {store::vault::kSectionChatTemplate, &files.chat_template},
  };
  for (const auto& [name, content] : optional_texts) {
    if (content->has_value()) texts.push_back({name, **content});
  }
  return texts;
}

std::vector<std::string> InputPaths(const checkpoint::Checkpoint& checkpoint) {
  std::vector<std::string> paths;
  for (const io::File& file : checkpoint.files.files()) paths.push_back(file.path());
  for (const char* name : {"model.safetensors.index.json", "config.json", "generation_config.json",
                           "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    paths.push_back((std::filesystem::path(checkpoint.path) / name).string());
  }
  return paths;
}

Status CheckText(const checkpoint::Checkpoint& checkpoint, bool allow_broken_text,
                 std::vector<std::string>* warnings) {
  Status usable = Ok();
  if (auto text = store::LoadText(checkpoint.side_files, checkpoint.path); !text) {
    usable = Unexpected(std::move(text.error()));
  } else if (!text->template_status()) {
    usable = While(checkpoint.path, text->template_status());
  }
  if (usable || !allow_broken_text) return usable;
  warnings->push_back("text: " + usable.error().message());
  return Ok();
}

bool EngineRuns(checkpoint::Family family) {
  using enum checkpoint::Family;
  constexpr checkpoint::Family kRuns[] = {kQwen2Moe, kQwen3Moe, kOlmoe, kMixtral, kDeepseek};
  return std::find(std::begin(kRuns), std::end(kRuns), family) != std::end(kRuns);
}

bool IsLargerThanMemory(const checkpoint::Checkpoint& checkpoint) {
  uint64_t source_bytes = 0;
  for (const io::File& file : checkpoint.files.files()) {
    const auto size = file.Size();
    if (size) source_bytes += *size;
  }
  const long pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  return source_bytes / 2 > static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) / 4;
}

void DropExpert(const checkpoint::Checkpoint& checkpoint, uint32_t layer_index,
                uint32_t expert_index) {
  for (int p = 0; p < checkpoint::kProjCount; ++p) {
    const checkpoint::MatrixSlice slice =
        checkpoint.experts.Slice(layer_index, expert_index, static_cast<checkpoint::Proj>(p));
    const checkpoint::TensorInfo* info = checkpoint.files.Find(slice.tensor_name);
    if (info == nullptr || !slice.contiguous()) continue;
    // Elements of a byte or less: the tensor may hold two in one, and is this expert's alone.
    const bool is_whole = slice.first == 0 && info->size <= uint64_t{slice.rows} * slice.cols;
    const uint64_t element_bytes = tensor::DTypeBytes(info->dtype);
    const uint64_t first = is_whole ? 0 : slice.first * element_bytes;
    const uint64_t size = is_whole ? info->size : uint64_t{slice.rows} * slice.cols * element_bytes;
    checkpoint.files.files()[info->file_index].DropFromPageCache(info->offset + first, size);
  }
}

}  // namespace smoe::convert
