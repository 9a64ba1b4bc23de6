#include "convert/converter.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/memory.h"
#include "base/stopwatch.h"
#include "convert/give_up.h"
#include "convert/journal.h"
#include "convert/ledger.h"
#include "convert/pack_plan.h"
#include "convert/shatter_plan.h"
#include "convert/store_target.h"
#include "convert/stored_model.h"
#include "convert/trunk.h"
#include "convert/workers.h"
#include "io/atomic_file.h"
#include "store/read_expert.h"
#include "store/records/manifest.h"

namespace smoe::convert {
namespace {

namespace fs = std::filesystem;

// Room for the origin record before its content is known.
constexpr uint64_t kOriginBytesMax = uint64_t{64} << 10;

const char* ChosenQuantiser(const ConvertOptions& options) {
  return options.to == StoreKind::kVault ? QuantiserName(options.vault_quantiser)
                                         : QuantiserName(options.record_quantiser);
}

// OUT may be neither MODEL, nor a file that is read, nor lie in MODEL's folder.
Status CheckOutput(const StoredModel& model, const std::string& out_path) {
  if (out_path.empty()) return Invalid("OUT: the name is empty");
  std::error_code ignored;
  SMOE_TRY(io::CheckNoInput(out_path, model.inputs));
  if (!model.is_records) return Ok();
  const fs::path folder = fs::weakly_canonical(model.files.path, ignored);
  const fs::path out = fs::weakly_canonical(out_path, ignored);
  const auto differing = std::mismatch(folder.begin(), folder.end(), out.begin(), out.end());
  if (differing.first != folder.end()) return Ok();
  return Invalid("{}: lies in {}, which is read; name another place", out_path, model.files.path);
}

struct Plan {
  std::unique_ptr<StoreTarget> target;
  TrunkPlan trunk;
  std::vector<store::ExpertId> experts;
  uint64_t out_bytes = 0;
  Json identity;
};

Json IdentityOf(const StoredModel& model, const ConvertOptions& options,
                const StoreTarget& target) {
  Json asked;
  asked.Set("format", target.format_name());
  asked.Set("quantiser", ChosenQuantiser(options));
  asked.Set("trunk_format", checkpoint::TrunkFormatsText(options.trunk_formats));
  Json identity;
  identity.Set("source", model.source);
  identity.Set("options", std::move(asked));
  return identity;
}

Result<Plan> MakePlan(const StoredModel& model, const std::string& out_path,
                      const ConvertOptions& options) {
  Plan plan;
  plan.experts = store::AllExperts(*model.files.experts);
  const store::ExpertStore& source = *model.files.experts;
  const TargetModel described{
      model.files.config,         model.files.facts, source.layers(), source.hidden_size(),
      source.intermediate_size(), source.path(),     out_path};
  if (options.to == StoreKind::kVault) {
    SMOE_TRY_ASSIGN(plan.target, MakeVaultTarget(described, options.bits, options.group_size,
                                                 options.vault_quantiser));
  } else {
    if (model.is_records) {
      return Invalid("{}: is a record store already; --to vault, or copy the folder",
                     model.files.path);
    }
    SMOE_TRY_ASSIGN(plan.target, MakeRecordTarget(described, options.record_quantiser));
  }
  SMOE_TRY_ASSIGN(plan.trunk, PlanTrunk(model.files.trunk, model.files.config, model.files.facts,
                                        options.trunk_formats));
  plan.out_bytes = plan.target->expert_bytes() +
                   plan.target->file_bytes(plan.trunk.layout.total_bytes) +
                   plan.target->file_bytes(kOriginBytesMax);
  for (const ModelPart& part : model.parts) {
    plan.out_bytes += plan.target->file_bytes(part.content.size());
  }
  plan.identity = IdentityOf(model, options, *plan.target);
  return plan;
}

Status CheckFreeSpace(const std::string& out_path, const Plan& plan,
                      const ConvertOptions& options) {
  uint64_t needed = plan.out_bytes;
  if (options.resume || options.force) {
    needed -= std::min(needed, plan.target->partial_bytes(options.force));
  }
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(out_path));
  if (free >= needed) return Ok();
  return Exhausted("{}: needs {} bytes ({} experts and a trunk of {}), the drive has {} free",
                   out_path, needed, plan.experts.size(), plan.trunk.layout.total_bytes, free);
}

// Refuses what the target does, and says of a resume what it lacks. Where a run was killed at its
// very end, the journal that is of nothing goes.
Status CheckPlace(const StoredModel& model, const StoreTarget& target, bool asked_resume,
                  const ConvertOptions& options, const std::string& out_path) {
  std::vector<std::string> names;
  for (const ModelPart& part : model.parts) names.push_back(part.name);
  Status place = target.CheckPlace(names, options.resume, options.force);
  std::error_code ignored;
  const bool is_finished = !fs::is_directory(out_path, ignored) ||
                           fs::exists(fs::path(out_path) / store::records::kManifestName, ignored);
  if (!place && asked_resume && !options.resume && !options.force && !is_finished) {
    return NoJournal(target.journal_path(options.force), out_path);
  }
  if (!place && asked_resume && !options.force && !options.dry_run) {
    RemoveFinishedJournal(target.final_path(), target.journal_path(false));
  }
  return place;
}

// The conversion itself: workers over experts, the trunk as one more piece of work.
class Conversion {
 public:
  Conversion(const StoredModel& model, const Plan& plan, const ConvertOptions& options,
             Ledger& ledger, Progress& progress)
      : source_(*model.files.experts),
        model_(model),
        plan_(plan),
        target_(*plan.target),
        options_(options),
        ledger_(ledger),
        progress_(progress) {}

  // Takes over the experts of an interrupted run whose bytes are still those it wrote.
  Status Restore() {
    return ledger_.Restore(
        options_.threads, BytesOf(0), progress_, [&] { return target_.MakeEncoder(); },
        [&](uint64_t index, uint64_t checksum, std::unique_ptr<ExpertEncoder>& encoder) {
          return target_.Restore(index, checksum, encoder->buffer());
        });
  }

  Status Run() {
    uint64_t total_bytes = plan_.trunk.layout.total_bytes;
    for (size_t i = 0; i < ledger_.expert_count(); ++i) {
      if (!ledger_.IsDone(i)) total_bytes += BytesOf(i);
    }
    const ProgressPhase phase(progress_, "converting", total_bytes);
    return RunWorkers(
        ledger_.expert_count() + 1, options_.threads, [&] { return MakeWorker(); },
        [&](size_t piece, Worker& worker) -> Status {
          return piece == 0 ? WriteTrunk() : ConvertExpert(piece - 1, worker);
        });
  }

  const TrunkErrors& trunk_errors() const { return trunk_errors_; }

  // Added up in the order of the experts, so that a resumed run gives the same figures.
  std::vector<LayerErrors> Errors() const {
    std::vector<ProjErrors> errors;
    for (const ExpertDone& expert : ledger_.experts()) errors.push_back(expert.errors);
    return SumByLayer(plan_.experts, errors);
  }

 private:
  struct Worker {
    std::unique_ptr<ExpertEncoder> encoder;
    AlignedBuffer slot;
  };

  Result<Worker> MakeWorker() const {
    SMOE_TRY_ASSIGN(auto encoder, target_.MakeEncoder());
    SMOE_TRY_ASSIGN(auto slot, AlignedBuffer::Create(source_.slot_bytes(), "an expert"));
    return Worker{std::move(encoder), std::move(slot)};
  }

  uint64_t BytesOf(size_t index) const { return source_.Locate(plan_.experts[index]).read_bytes(); }

  Status ConvertExpert(size_t index, Worker& worker) {
    if (ledger_.IsDone(index)) return Ok();
    const store::ExpertId id = plan_.experts[index];
    ExpertDone& done = ledger_.Start(index);
    SMOE_TRY(store::ReadExpert(source_, id, worker.slot.bytes()));
    SMOE_TRY(worker.encoder->Encode(index, source_.View(id, worker.slot.bytes()), &done.errors));
    SMOE_TRY_ASSIGN(done.checksum, target_.Write(index, worker.encoder->buffer()));
    SMOE_TRY(ledger_.Finish(index));
    progress_.Advance(BytesOf(index));
    return Ok();
  }

  Status WriteTrunk() {
    SMOE_TRY(CheckStoredTrunk(model_));
    SMOE_TRY(target_.BeginFile(store::vault::kSectionTrunk, plan_.trunk.layout.total_bytes));
    SMOE_TRY(StreamTrunk(
        model_.files.trunk, plan_.trunk, [&](Bytes piece) { return target_.AppendFile(piece); },
        progress_, &trunk_errors_));
    return target_.EndFile();
  }

  const store::ExpertStore& source_;
  const StoredModel& model_;
  const Plan& plan_;
  StoreTarget& target_;
  const ConvertOptions& options_;
  Ledger& ledger_;
  Progress& progress_;
  TrunkErrors trunk_errors_ = {};
};

Json OriginOf(const StoredModel& model, const ConvertOptions& options,
              const ConvertReport& report) {
  ProjErrors added;
  for (const LayerErrors& layer : report.added) {
    for (size_t p = 0; p < added.size(); ++p) added[p].Add(layer.projs[p]);
  }
  Json origin;
  origin.Set("writer", options.writer);
  origin.Set("converted_from", report.source_format);
  origin.Set("quantiser", ChosenQuantiser(options));
  origin.Set("format", report.target_format);
  origin.Set("added_errors", ErrorsJson(added));
  if (report.trunk_formats != checkpoint::TrunkFormats{}) {
    origin.Set("trunk", TrunkFormatJson(report.trunk_formats, report.trunk_errors));
  }
  if (!model.origin.is_null()) origin.Set("source_origin", model.origin);
  return origin;
}

Status WriteAll(const StoredModel& model, const Plan& plan, const ConvertOptions& options,
                Progress& progress, ConvertReport* report) {
  StoreTarget& target = *plan.target;
  SMOE_TRY_ASSIGN(Ledger ledger, Ledger::Open(target.journal_path(options.force), plan.identity,
                                              plan.experts.size(), options.resume));
  Conversion conversion(model, plan, options, ledger, progress);
  SMOE_TRY(conversion.Restore());
  SMOE_TRY(conversion.Run());
  report->resumed_expert_count = ledger.restored_count();
  report->added = conversion.Errors();
  report->trunk_errors = conversion.trunk_errors();
  for (const ModelPart& part : model.parts) {
    SMOE_TRY(target.BeginFile(part.name, part.content.size()));
    SMOE_TRY(target.AppendFile(AsBytes(std::string_view(part.content))));
    SMOE_TRY(target.EndFile());
  }
  SMOE_TRY(target.Finish(OriginOf(model, options, *report)));
  return target.Commit();
}

ConvertReport StartReport(const StoredModel& model, const Plan& plan, const std::string& out_path) {
  ConvertReport report;
  report.model_path = model.files.path;
  report.out_path = out_path;
  report.source_format = model.files.experts->format_name();
  report.target_format = plan.target->format_name();
  report.expert_count = plan.experts.size();
  for (const store::ExpertId id : plan.experts) {
    report.expert_source_bytes += model.files.experts->Locate(id).read_bytes();
  }
  report.trunk_bytes = plan.trunk.layout.total_bytes;
  report.trunk_formats = plan.trunk.formats;
  report.out_bytes = plan.out_bytes;
  report.decisions = model.files.decisions;
  report.warnings = model.files.warnings;
  if (model.has_input_scales) {
    report.warnings.push_back(
        "input_scale of the records is left out: a vault has no place for it, and this engine does "
        "not apply it");
  }
  if (report.source_format == report.target_format) {
    report.decisions.push_back("experts: already " + report.source_format + ", moved as they are");
  }
  return report;
}

// After the conversion, so that it need not read the original: both stores once more.
Status MeasureOriginal(const StoredModel& model, const store::ModelFiles& original,
                       const ConvertOptions& options, Progress& progress, ConvertReport* report) {
  SMOE_TRY_ASSIGN(const store::ModelFiles written,
                  store::OpenModelFiles(report->out_path, {.direct_io = false}));
  SMOE_TRY_ASSIGN(
      report->source_to_original,
      CompareExperts(*original.experts, *model.files.experts, options.threads, progress));
  SMOE_TRY_ASSIGN(report->target_to_original,
                  CompareExperts(*original.experts, *written.experts, options.threads, progress));
  return Ok();
}

}  // namespace

Result<ConvertReport> Convert(const std::string& model_path, const std::string& out_path,
                              const ConvertOptions& asked, Progress& progress) {
  const Stopwatch stopwatch;
  SMOE_TRY(CheckThreadCount(asked.threads));
  ConvertOptions options = asked;
  options.files.direct_io = false;
  SMOE_TRY_ASSIGN(const StoredModel model, OpenStoredModel(model_path, options.files));
  store::ModelFiles original;
  if (!options.original.empty()) {
    SMOE_TRY_ASSIGN(original, store::OpenModelFiles(options.original, {.direct_io = false}));
    SMOE_TRY(CheckSameShape(*original.experts, *model.files.experts));
  }
  SMOE_TRY(CheckOutput(model, out_path));
  SMOE_TRY_ASSIGN(const Plan plan, MakePlan(model, out_path, options));
  // Without a journal there is nothing that could be taken over.
  std::error_code ignored;
  const std::string journal_path = plan.target->journal_path(options.force);
  options.resume = options.resume && fs::exists(journal_path, ignored);
  ConvertReport report = StartReport(model, plan, out_path);
  SMOE_TRY(CheckPlace(model, *plan.target, asked.resume, options, out_path));
  SMOE_TRY(CheckFreeSpace(out_path, plan, options));
  if (options.dry_run) return report;

  SMOE_TRY(plan.target->Open(options.resume, options.force));
  if (options.resume) plan.target->KeepPartial();
  Status written = WriteAll(model, plan, options, progress, &report);
  if (!written) {
    return GiveUp(
        {out_path, journal_path, options.resume, options.force},
        [&] { plan.target->KeepPartial(); }, std::move(written));
  }
  fs::remove(plan.target->journal_path(false), ignored);
  report.seconds = stopwatch.seconds();
  if (options.original.empty()) return report;
  Status measured = MeasureOriginal(model, original, options, progress, &report);
  if (!measured) return While(out_path + " is written; comparing", std::move(measured));
  return report;
}

}  // namespace smoe::convert
