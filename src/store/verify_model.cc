#include "store/verify_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/linear_weight.h"
#include "store/records/verify.h"
#include "store/stripe/striped_store.h"

namespace smoe::store {

namespace {

void Append(const std::vector<std::string>& from, std::vector<std::string>* to) {
  to->insert(to->end(), from.begin(), from.end());
}

// Scales and codes that no weight may have: NaN codes, which are no floats of the file, what is
// below 0, and -128 in int8.
void VerifyScales(const checkpoint::TensorFiles& files, const checkpoint::ModelConfig& config,
                  vault::VerifyReport* report) {
  for (const auto& [name, info] : files.tensors()) {
    std::string_view stem;
    if (!checkpoint::IsLinearName(name, &stem) || info.shape.size() != 2) continue;
    // What is wrong with names and shapes is said where the model is opened.
    const auto linear = checkpoint::FindLinear(files, stem, config);
    if (!linear || linear->kind == checkpoint::LinearKind::kFloat ||
        linear->kind == checkpoint::LinearKind::kFp8) {
      continue;
    }
    if (Status status = checkpoint::CheckScales(files, *linear); !status) {
      const uint32_t file_index = linear->scales.info->file_index;
      report->AddProblem(
          fmt::format("{}: {}", files.files()[file_index].path(), status.error().message()));
    }
  }
}

// Opens the whole model and reads its tensors. What opening a vault has said is there already.
// A drive or a system that refuses says nothing about the model: that is an error, not a problem.
Status VerifyParts(const std::string& path, const ModelFilesOptions& options,
                   vault::VerifyReport* report) {
  const Result<ModelFiles> files = OpenModelFiles(path, options);
  if (!files) {
    const ErrorCode code = files.error().code();
    if (code == ErrorCode::kIo || code == ErrorCode::kExhausted) return Unexpected(files.error());
    // A part that is missing, not one that is damaged.
    report->AddProblem(files.error().message() +
                       (code == ErrorCode::kInvalid
                            ? "; --vault-only checks what is there without the rest"
                            : ""));
    return Ok();
  }
  for (const std::string& warning : files->warnings) {
    const auto& known = report->warnings;
    if (std::find(known.begin(), known.end(), warning) == known.end()) {
      report->warnings.push_back(warning);
    }
  }
  // The bytes of a trunk inside the vault or the store were counted with what lies there.
  const uint64_t counted_bytes = report->checked_bytes;
  vault::VerifyTensors(files->trunk, report);
  VerifyScales(files->trunk, files->config, report);
  std::error_code ignored;
  for (const io::File& file : files->trunk.files()) {
    const std::filesystem::path trunk = file.path();
    if (std::filesystem::equivalent(trunk, path, ignored) ||
        std::filesystem::equivalent(trunk.parent_path(), path, ignored)) {
      report->checked_bytes = counted_bytes;
    }
  }
  return Ok();
}

// A store that names no trunk is whole without one: the format has none.
Result<vault::VerifyReport> VerifyRecordModel(const std::string& path,
                                              const VerifyModelOptions& options) {
  vault::VerifyReport report;
  SMOE_TRY_ASSIGN(const records::RecordFolder folder, records::OpenRecordFolder(path));
  Append(folder.warnings, &report.warnings);
  SMOE_TRY(records::VerifyRecords(folder, options.blobs, &report));
  if (options.vault_only) return report;
  if (options.files.trunk.empty() && folder.index.FindFile(records::kPartTrunk) == nullptr) {
    report.warnings.push_back(
        "the store has no trunk: only its experts are checked; name one with "
        "--trunk to check both");
    return report;
  }
  ModelFilesOptions files = options.files;
  files.direct_io = false;
  files.allow_partial = true;
  SMOE_TRY(VerifyParts(path, files, &report));
  return report;
}

// The model itself, then that each part is there, is one of its parts, and is whole.
Result<vault::VerifyReport> VerifyStriped(const std::string& path,
                                          const VerifyModelOptions& options) {
  SMOE_TRY_ASSIGN(const stripe::Stripe striped, stripe::ReadStripe(path));
  if (stripe::IsStripeFile(striped.model)) {
    return Corrupt("{}: model is {}, itself a striped one", path, striped.model);
  }
  SMOE_TRY_ASSIGN(vault::VerifyReport report, VerifyModel(striped.model, options));
  const auto add = [&report](std::string problem) { report.AddProblem(std::move(problem)); };
  const uint64_t problem_count = report.problem_count;
  stripe::VerifyParts(striped, add);
  for (const stripe::Part& part : striped.parts) report.checked_bytes += part.file_bytes;
  if (report.problem_count != problem_count) return report;
  ModelFilesOptions files = options.files;
  files.direct_io = false;
  if (const auto opened = OpenModelFiles(path, files); !opened) add(opened.error().message());
  return report;
}

}  // namespace

Result<vault::VerifyReport> VerifyModel(const std::string& path,
                                        const VerifyModelOptions& options) {
  if (stripe::IsStripeFile(path)) return VerifyStriped(path, options);
  if (records::IsRecordFolder(path)) return VerifyRecordModel(path, options);
  vault::VerifyReport report;
  SMOE_TRY(CheckModelExists(path));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    SMOE_TRY_ASSIGN(const checkpoint::Checkpoint folder, checkpoint::OpenCheckpoint(path));
    Append(folder.facts.warnings, &report.warnings);
    vault::VerifyTensors(folder.files, &report);
    VerifyScales(folder.files, folder.config, &report);
    return report;
  }
  SMOE_TRY_ASSIGN(const vault::Vault opened, vault::OpenVault(path));
  Append(opened.warnings, &report.warnings);
  SMOE_TRY(vault::VerifyBlobs(opened, options.blobs, &report));
  if (opened.is_partial()) {
    report.warnings.push_back("a partial vault: " + opened.missing);
    return report;
  }
  if (options.vault_only) return report;
  ModelFilesOptions files = options.files;
  files.direct_io = false;
  SMOE_TRY(VerifyParts(path, files, &report));
  return report;
}

}  // namespace smoe::store
