#include "cli/kv_file.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "io/atomic_file.h"

namespace smoe::cli {

void KvFile::Define(Arguments& arguments) {
  arguments.Option("--kv-file", &path_, "FILE",
                   "Keeps the conversation's keys and values: read at the start, if it is there, "
                   "and written after each answer");
}

Status KvFile::CheckPlace(const store::ModelFiles& files, const ModelOptions& options) const {
  if (!is_given()) return Ok();
  SMOE_TRY_ASSIGN(const std::string target, Target());
  SMOE_TRY(io::CheckOutputPlace(target, true));
  // It is replaced by a file beside it. Found out now, not when an answer is there to be kept.
  const std::string folder = std::filesystem::path(target).parent_path().string();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    return Io("--kv-file: {}: nothing can be written into its folder: {}", target,
              std::generic_category().message(errno));
  }
  return CheckSparesModel(target, files, options, {});
}

Result<std::optional<model::KvFileContent>> KvFile::Restore(engine::Engine& engine,
                                                            Console& console) const {
  if (!is_given()) return std::nullopt;
  // What cannot be looked at is left to reading, which says why.
  std::error_code unknown;
  if (!std::filesystem::exists(*path_, unknown) && !unknown) return std::nullopt;
  SMOE_TRY_ASSIGN(model::KvFileContent content, engine.RestoreTokens(*path_));
  console.Note("({}: {} tokens restored)\n", Printable(*path_), content.tokens.size());
  return std::optional(std::move(content));
}

Status KvFile::Save(engine::Engine& engine, std::span<const uint32_t> tokens,
                    std::string_view note) const {
  if (!is_given()) return Ok();
  SMOE_TRY_ASSIGN(const std::string target, Target());
  return engine.SaveTokens(target, tokens, note);
}

Status KvFile::SaveAnswer(engine::Engine& engine, std::vector<uint32_t> prompt,
                          const Answer& answer) const {
  if (answer.reason == engine::FinishReason::kCancelled && answer.tokens.empty()) return Ok();
  prompt.insert(prompt.end(), answer.tokens.begin(), answer.tokens.end());
  return Save(engine, prompt, {});
}

Result<std::string> KvFile::Target() const {
  namespace fs = std::filesystem;
  constexpr int kLinksMax = 40;  // as the kernel follows
  fs::path path = *path_;
  std::error_code is_none;
  for (int i = 0; i < kLinksMax; ++i) {
    const fs::path next = fs::read_symlink(path, is_none);
    if (is_none) return path.string();
    path = path.parent_path() / next;
  }
  return Invalid("--kv-file: {}: more than {} links, expected a file", *path_, kLinksMax);
}

}  // namespace smoe::cli
