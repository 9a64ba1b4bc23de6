#include "convert/sculptor.h"

#include <algorithm>
#include <filesystem>

#include "base/memory.h"
#include "base/stopwatch.h"
#include "convert/expert_shatterer.h"
#include "convert/give_up.h"
#include "convert/ledger.h"
#include "convert/shatter_plan.h"
#include "convert/workers.h"
#include "io/atomic_file.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

namespace vault = store::vault;

ShatterReport StartReport(const checkpoint::Checkpoint& checkpoint, const ShatterPlan& plan,
                          const std::string& out_path) {
  ShatterReport report;
  report.checkpoint_path = checkpoint.path;
  report.out_path = out_path;
  report.scout_path = plan.scout_path;
  report.model_type = checkpoint.config.model_type;
  report.naming = checkpoint.experts.naming();
  report.family = checkpoint.config.family;
  const auto& experts = plan.vault.spec().experts;
  report.expert_count = experts.size();
  for (size_t i = 0; i < experts.size(); ++i) {
    if (i == 0 || experts[i].layer_index != experts[i - 1].layer_index) ++report.layer_count;
  }
  uint64_t expected_count = 0;
  for (const checkpoint::ExpertLayer& layer : checkpoint.experts.layers()) {
    if (!layer.is_mtp) report.checkpoint_expert_count += layer.expert_count;
    if (!layer.is_mtp || plan.include_mtp) expected_count += layer.expert_count;
  }
  report.is_partial = report.expert_count < expected_count;
  report.expert_source_bytes = plan.expert_source_bytes * report.expert_count;
  report.trunk_bytes = plan.trunk.layout.total_bytes;
  report.trunk_formats = plan.trunk.formats;
  report.out_bytes = plan.out_bytes;
  report.scout_bytes = plan.scout_path.empty() ? 0 : report.trunk_bytes;
  report.decisions = checkpoint.facts.decisions;
  report.warnings = checkpoint.facts.warnings;
  if (!EngineRuns(report.family)) {
    report.warnings.push_back(
        fmt::format("model_type {}: converted, but the engine does not run this family yet",
                    report.model_type));
  }
  if (report.is_partial) {
    report.warnings.push_back(fmt::format("partial: {} of {} experts; such a vault cannot be run",
                                          report.expert_count, expected_count));
  }
  return report;
}

// OUT may lie in the checkpoint's folder, but not in the place of one of its files.
Status CheckOutputs(const checkpoint::Checkpoint& checkpoint, const ShatterPlan& plan,
                    const std::string& out_path) {
  const std::vector<std::string> inputs = InputPaths(checkpoint);
  SMOE_TRY(io::CheckNoInput(out_path, inputs));
  return io::CheckNoInput(plan.scout_path, inputs);
}

// What a dry run would otherwise not notice: opening the output refuses the same.
Status CheckReplaces(const std::string& out_path, bool force) {
  std::error_code ignored;
  if (force || !std::filesystem::exists(out_path, ignored)) return Ok();
  return Invalid("{}: exists; --force replaces it", out_path);
}

Status CheckUnfinished(const std::string& out_path, const ShatterOptions& options) {
  std::error_code ignored;
  if (!options.resume || options.force || !std::filesystem::exists(out_path, ignored)) return Ok();
  if (std::filesystem::exists(out_path + ".partial", ignored)) {
    return Invalid("{}: exists; --force --resume goes on with what was to replace it", out_path);
  }
  const bool was_stopped = RemoveFinishedJournal(out_path, out_path + ".journal");
  return Invalid("{}: exists; {}--force replaces it", out_path,
                 was_stopped ? "the run before had finished it, nothing is left to resume; " : "");
}

// What the new files need beyond what an unfinished run already occupies.
Status CheckFreeSpace(const std::string& out_path, const ShatterPlan& plan,
                      const ShatterReport& report, bool resume) {
  uint64_t needed = report.out_bytes + report.scout_bytes;
  std::error_code ignored;
  const auto partial = std::filesystem::file_size(out_path + ".partial", ignored);
  if (resume && !ignored) needed -= std::min<uint64_t>(needed, partial);
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(out_path));
  if (free >= needed) return Ok();
  return Exhausted("{}: needs {} bytes ({} experts of {} and a trunk of {}), the drive has {} free",
                   out_path, needed, report.expert_count, plan.vault.padded_size(),
                   report.trunk_bytes, free);
}

// The conversion itself: workers over experts, the trunk beside them.
class Conversion {
 public:
  Conversion(const checkpoint::Checkpoint& checkpoint, const ShatterPlan& plan,
             const ShatterOptions& options, Ledger& ledger, Progress& progress)
      : checkpoint_(checkpoint),
        plan_(plan),
        options_(options),
        ledger_(ledger),
        progress_(progress),
        rules_{options.bits, options.group_size, options.quantiser, options.allow_non_finite,
               options.measure_error} {}

  // Takes over the experts of an interrupted run whose bytes are still those it wrote.
  Status Restore(vault::VaultWriter& writer) {
    const uint64_t raw_size = plan_.vault.raw_size();
    return ledger_.Restore(
        options_.threads, raw_size, progress_, [&] { return MakeWorker(); },
        [&](uint64_t index, uint64_t checksum, Worker& worker) {
          return writer.RestoreBlob(index, checksum, worker.padded.bytes().first(raw_size));
        });
  }

  Status Run(vault::VaultWriter& writer, const TrunkSink& trunk_sink) {
    const ProgressPhase phase(
        progress_, "converting",
        plan_.trunk.layout.total_bytes +
            (ledger_.expert_count() - ledger_.restored_count()) * plan_.expert_source_bytes);
    const bool drop_pages = IsLargerThanMemory(checkpoint_);
    return RunWorkers(
        [&] {
          return StreamTrunk(checkpoint_.files, plan_.trunk, trunk_sink, progress_, &trunk_errors_);
        },
        [&](size_t index, ExpertShatterer& shatterer, MutableBytes padded) -> Status {
          if (ledger_.IsDone(index)) return Ok();
          const MutableBytes blob = padded.first(plan_.vault.raw_size());
          ExpertDone& done = ledger_.Start(index);
          SMOE_TRY(shatterer.Run(plan_.vault.spec().experts[index], blob, &done));
          SMOE_TRY(writer.WriteBlob(index, padded));
          done.checksum = writer.blob_checksum(index);
          SMOE_TRY(ledger_.Finish(index));
          const store::ExpertId id = plan_.vault.spec().experts[index];
          if (drop_pages) DropExpert(checkpoint_, id.layer_index, id.expert_index);
          progress_.Advance(plan_.expert_source_bytes);
          return Ok();
        });
  }

  const TrunkErrors& trunk_errors() const { return trunk_errors_; }

  // Reads every blob back and compares it with a fresh quantisation.
  Status Validate(const io::File& file) {
    const ProgressPhase phase(progress_, "validating",
                              ledger_.expert_count() * plan_.expert_source_bytes);
    return RunWorkers(
        [] { return Ok(); },
        [&](size_t index, ExpertShatterer& shatterer, MutableBytes padded) -> Status {
          const MutableBytes blob = padded.first(plan_.vault.raw_size());
          const store::ExpertId id = plan_.vault.spec().experts[index];
          ExpertDone ignored;
          SMOE_TRY(shatterer.Run(id, blob, &ignored));
          std::vector<std::byte> stored(blob.size());
          SMOE_TRY(file.ReadAt(plan_.vault.blob_offset(index), stored));
          progress_.Advance(plan_.expert_source_bytes);
          const auto differing = std::mismatch(stored.begin(), stored.end(), blob.begin());
          if (differing.first == stored.end()) return Ok();
          const uint64_t at = static_cast<uint64_t>(differing.first - stored.begin());
          return Corrupt(
              "{}: expert {} of layer {}: byte {} of the file is 0x{:02x}, a fresh "
              "quantisation gives 0x{:02x}",
              file.path(), id.expert_index, id.layer_index, plan_.vault.blob_offset(index) + at,
              std::to_integer<int>(*differing.first), std::to_integer<int>(*differing.second));
        });
  }

 private:
  struct Worker {
    ExpertShatterer shatterer;
    AlignedBuffer padded;
  };

  Result<Worker> MakeWorker() const {
    SMOE_TRY_ASSIGN(auto padded,
                    AlignedBuffer::Create(plan_.vault.padded_size(), "a converted expert"));
    return Worker{ExpertShatterer(checkpoint_, plan_.vault.tensors(), rules_), std::move(padded)};
  }

  // Calls `first_task` on one worker, and `work(index, shatterer, padded)` once for every expert on
  // all of them. `padded`: a worker's own blob, padded_size() bytes at a page, zeros at its end.
  template <class FirstTask, class Work>
  Status RunWorkers(const FirstTask& first_task, const Work& work) {
    return convert::RunWorkers(
        ledger_.expert_count() + 1, options_.threads, [&] { return MakeWorker(); },
        [&](size_t index, Worker& worker) -> Status {
          if (index == 0) return first_task();
          return work(index - 1, worker.shatterer, worker.padded.bytes());
        });
  }

  const checkpoint::Checkpoint& checkpoint_;
  const ShatterPlan& plan_;
  const ShatterOptions& options_;
  Ledger& ledger_;
  Progress& progress_;
  ShatterRules rules_;
  TrunkErrors trunk_errors_ = {};
};

Status AddTexts(vault::VaultWriter& writer, const ShatterPlan& plan, const Json& origin) {
  for (const AnnexText& text : plan.texts) {
    SMOE_TRY(writer.AddSection(text.name, AsBytes(text.content)));
  }
  const std::string origin_text = origin.Dump(2) + "\n";
  return writer.AddSection(vault::kSectionOrigin, AsBytes(std::string_view(origin_text)));
}

// Opens OUT.partial (and the scout's), converts, finishes. Nothing has its final name on return.
struct OpenFiles {
  io::AtomicFile out;
  std::optional<io::AtomicFile> scout;
};

Status Convert(const checkpoint::Checkpoint& checkpoint, const ShatterPlan& plan,
               const ShatterOptions& options, OpenFiles& files, Progress& progress,
               ShatterReport* report) {
  SMOE_TRY_ASSIGN(Ledger ledger, Ledger::Open(report->out_path + ".journal", plan.identity,
                                              plan.vault.expert_count(), options.resume));
  SMOE_TRY_ASSIGN(const auto writer, vault::VaultWriter::Create(files.out.file(), plan.vault));
  Conversion conversion(checkpoint, plan, options, ledger, progress);
  SMOE_TRY(conversion.Restore(*writer));

  uint64_t scout_position = 0;
  TrunkSink sink = [&](Bytes piece) { return writer->AppendSection(piece); };
  if (files.scout) {
    sink = [&](Bytes piece) -> Status {
      SMOE_TRY(files.scout->file().WriteAt(scout_position, piece));
      files.scout->file().StartWriteback(scout_position, piece.size());
      scout_position += piece.size();
      return Ok();
    };
  } else {
    SMOE_TRY(writer->BeginSection(vault::kSectionTrunk, plan.trunk.layout.total_bytes));
  }
  SMOE_TRY(conversion.Run(*writer, sink));
  report->trunk_errors = conversion.trunk_errors();
  report->resumed_expert_count = ledger.restored_count();
  report->non_finite_count = ledger.non_finite_count();
  if (options.measure_error) report->errors = ledger.errors();
  if (!files.scout) {
    SMOE_TRY(writer->EndSection());
    SMOE_TRY(AddTexts(*writer, plan, OriginOf(plan, options, *report)));
  }
  SMOE_TRY(writer->Finish());
  if (options.validate) {
    SMOE_TRY(vault::OpenVault(files.out.partial_path()));
    SMOE_TRY(conversion.Validate(files.out.file()));
    report->validated_expert_count = report->expert_count;
  }
  SMOE_TRY_ASSIGN(report->out_bytes, files.out.file().Size());
  return Ok();
}

Result<OpenFiles> OpenOutputs(const std::string& out_path, const ShatterPlan& plan,
                              const ShatterOptions& options) {
  // A run that was stopped between the two renames has left a finished scout.
  const bool replaces_scout = options.force || options.resume;
  if (!plan.scout_path.empty()) {
    SMOE_TRY(io::CheckOutputPlace(plan.scout_path, replaces_scout));  // before OUT.partial is begun
  }
  SMOE_TRY_ASSIGN(io::AtomicFile out,
                  io::AtomicFile::Open(out_path, {options.force, options.resume}));
  OpenFiles files{std::move(out), std::nullopt};
  if (options.resume) files.out.KeepPartial();
  if (!plan.scout_path.empty()) {
    SMOE_TRY_ASSIGN(auto scout, io::AtomicFile::Open(plan.scout_path, {replaces_scout, false}));
    files.scout.emplace(std::move(scout));
  }
  return files;
}

// The scout first: a vault under its name always has its trunk. An older one is kept under another
// name until the vault is there: between the two renames the older vault needs it.
Status CommitAll(OpenFiles& files, const std::string& scout_path) {
  if (!files.scout) return files.out.Commit();
  namespace fs = std::filesystem;
  const std::string aside = scout_path + ".replaced";
  std::error_code ignored;
  fs::create_hard_link(scout_path, aside, ignored);  // not over one that an earlier kill has left
  Status committed = files.scout->Commit();
  if (committed) committed = files.out.Commit();
  std::error_code failed;
  if (fs::exists(files.out.partial_path(), ignored)) fs::rename(aside, scout_path, failed);
  if (!failed) fs::remove(aside, ignored);  // a rename leaves a second name of the same file
  return committed;
}

}  // namespace

Json ShatterReport::ToJson() const {
  Json json;
  json.Set("checkpoint", checkpoint_path);
  json.Set("vault", out_path);
  json.Set("scout", scout_path.empty() ? Json() : Json(scout_path));
  json.Set("model_type", model_type);
  json.Set("naming", naming);
  json.Set("layers", layer_count);
  json.Set("experts", expert_count);
  json.Set("checkpoint_experts", checkpoint_expert_count);
  json.Set("partial", is_partial);
  json.Set("expert_source_bytes", expert_source_bytes);
  json.Set("trunk_bytes", trunk_bytes);
  json.Set("trunk", TrunkFormatJson(trunk_formats, trunk_errors));
  json.Set("vault_bytes", out_bytes);
  json.Set("scout_bytes", scout_bytes);
  json.Set("resumed_experts", resumed_expert_count);
  json.Set("validated_experts", validated_expert_count);
  json.Set("non_finite_as_zero", non_finite_count);
  json.Set("seconds", seconds);
  if (errors) json.Set("errors", ErrorsJson(*errors));
  json.Set("decisions", Json::ListOf(decisions));
  json.Set("warnings", Json::ListOf(warnings));
  return json;
}

Result<ShatterReport> Shatter(const std::string& checkpoint_path, const std::string& out_path,
                              const ShatterOptions& options, Progress& progress) {
  const Stopwatch stopwatch;
  SMOE_TRY_ASSIGN(const checkpoint::Checkpoint checkpoint,
                  checkpoint::OpenCheckpoint(checkpoint_path));
  SMOE_TRY_ASSIGN(const ShatterPlan plan, PlanShatter(checkpoint, out_path, options));
  ShatterReport report = StartReport(checkpoint, plan, out_path);
  SMOE_TRY(CheckText(checkpoint, options.allow_broken_text, &report.warnings));
  SMOE_TRY(CheckOutputs(checkpoint, plan, out_path));
  SMOE_TRY(CheckFreeSpace(out_path, plan, report, options.resume));
  if (options.dry_run) {
    SMOE_TRY(CheckReplaces(out_path, options.force));
    return report;
  }
  SMOE_TRY(CheckUnfinished(out_path, options));
  SMOE_TRY_ASSIGN(OpenFiles files, OpenOutputs(out_path, plan, options));
  Status converted = Convert(checkpoint, plan, options, files, progress, &report);
  if (converted) converted = CommitAll(files, plan.scout_path);
  if (!converted) {
    return GiveUp(
        {out_path, out_path + ".journal", options.resume, options.force},
        [&] { files.out.KeepPartial(); }, std::move(converted));
  }
  std::error_code ignored;
  std::filesystem::remove(out_path + ".journal", ignored);
  report.seconds = stopwatch.seconds();
  return report;
}

}  // namespace smoe::convert
