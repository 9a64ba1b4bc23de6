#include "engine/logit_file.h"

#include <cstdlib>
#include <filesystem>

#include "base/bytes.h"
#include "base/check.h"

namespace smoe::engine {

Result<LogitFile> LogitFile::Create(uint64_t row_count, uint64_t vocab_size) {
  const char* named = std::getenv("TMPDIR");
  const std::filesystem::path folder = named == nullptr || *named == '\0' ? "/tmp" : named;
  const auto row_bytes = CheckedMul(vocab_size, sizeof(float));
  const auto needed = row_bytes ? CheckedMul(row_count, *row_bytes) : std::nullopt;
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(folder.string()));
  if (!needed || *needed > free) {
    return Exhausted(
        "{}: the logits of {} positions need {} bytes, {} are free; name another folder by TMPDIR "
        "or take a shorter text",
        folder.string(), row_count, needed ? *needed : UINT64_MAX, free);
  }
  SMOE_TRY_ASSIGN(io::File file, io::File::CreateUnnamed(folder.string()));
  return LogitFile(std::move(file), row_count, vocab_size);
}

Status LogitFile::Write(uint64_t row, std::span<const float> logits) {
  SMOE_CHECK(row < row_count_ && logits.size() == vocab_size_);
  return file_.WriteAt(row * logits.size_bytes(), AsBytes(logits));
}

Status LogitFile::Read(uint64_t row, std::span<float> logits) const {
  SMOE_CHECK(row < row_count_ && logits.size() == vocab_size_);
  return file_.ReadAt(row * logits.size_bytes(), std::as_writable_bytes(logits));
}

}  // namespace smoe::engine
