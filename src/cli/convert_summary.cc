#include "cli/convert_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/memory_limits.h"
#include "cli/progress_bar.h"

namespace smoe::cli {

Status CheckCheckpointFolder(const std::string& path) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(status)) return Ok();
  return Invalid("{}: {}, expected a Hugging Face folder (config.json and *.safetensors)", path,
                 std::filesystem::exists(status) ? "is no folder" : "no such folder");
}

void ConvertSummary::Line(std::string_view name, const std::string& value) {
  console_.Note("{:<12}{}\n", name, Printable(value));
}

void ConvertSummary::Checkpoint(const std::string& path, const std::string& model_type,
                                const std::string& naming) {
  Line("checkpoint", fmt::format("{} ({}, {})", path, model_type, naming));
}

void ConvertSummary::Written(bool dry_run, const std::string& text) {
  Line(dry_run ? "would write" : "written", text);
}

void ConvertSummary::Resumed(uint64_t expert_count) {
  if (expert_count == 0) return;
  Line("resumed", fmt::format("{} experts were there already", expert_count));
}

void ConvertSummary::Trunk(const checkpoint::TrunkFormats& formats,
                           const convert::TrunkErrors& errors) {
  if (formats == checkpoint::TrunkFormats{}) return;
  Line("trunk", convert::TrunkFormatText(formats, errors));
}

Status ParseTrunkOption(const std::string& text, checkpoint::TrunkFormats* formats) {
  if (text.empty()) return Ok();
  SMOE_TRY_ASSIGN(*formats, checkpoint::ParseTrunkFormats("--trunk-format", text));
  return Ok();
}

void DefineTrunkOption(Arguments& arguments, std::string* text) {
  arguments.Option("--trunk-format", text, "FORMAT",
                   "Matrices of the trunk: source, bf16, int8 or q4; then parts that differ, as "
                   "int8,head=bf16 (default: source)");
}

void ConvertSummary::Time(double seconds, uint64_t bytes, std::string_view unit) {
  const double rate = static_cast<double>(bytes) / std::max(seconds, 1e-3);
  Line("time",
       fmt::format("{}, {}{}", DurationText(seconds), SizeText(static_cast<uint64_t>(rate)), unit));
}

void ConvertSummary::Remarks(const std::vector<std::string>& decisions,
                             const std::vector<std::string>& warnings) {
  const char* label = "decided";
  for (const std::string& decision : decisions) Line(std::exchange(label, ""), decision);
  for (const std::string& warning : warnings) Line("warning", warning);
}

}  // namespace smoe::cli
