#include "convert/packer.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/memory.h"
#include "base/stopwatch.h"
#include "convert/expert_packer.h"
#include "convert/give_up.h"
#include "convert/journal.h"
#include "convert/ledger.h"
#include "convert/pack_plan.h"
#include "convert/shatter_plan.h"
#include "convert/workers.h"
#include "io/atomic_file.h"

namespace smoe::convert {
namespace {

namespace fs = std::filesystem;
namespace records = store::records;

std::string PathIn(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

PackReport StartReport(const checkpoint::Checkpoint& checkpoint, const PackPlan& plan,
                       const std::string& out_path, const PackOptions& options) {
  PackReport report;
  report.checkpoint_path = checkpoint.path;
  report.out_path = out_path;
  report.model_type = checkpoint.config.model_type;
  report.naming = checkpoint.experts.naming();
  report.moves_bytes = plan.moves_bytes;
  if (!plan.moves_bytes) report.quantiser = QuantiserName(options.quantiser);
  report.layer_count = plan.index.num_moe_layers;
  report.expert_count = uint64_t{plan.index.num_moe_layers} * plan.index.num_experts;
  report.inter = plan.index.inter;
  report.hidden = plan.index.hidden;
  report.record_stride = plan.index.record_stride;
  report.is_partial = plan.index.num_moe_layers < plan.wanted_layer_count;
  report.expert_source_bytes = plan.expert_source_bytes * report.expert_count;
  report.trunk_bytes = plan.trunk.layout.total_bytes;
  report.trunk_formats = plan.trunk.formats;
  report.out_bytes = plan.out_bytes;
  report.decisions = checkpoint.facts.decisions;
  report.warnings = checkpoint.facts.warnings;
  report.decisions.insert(report.decisions.end(), plan.decisions.begin(), plan.decisions.end());
  report.warnings.insert(report.warnings.end(), plan.warnings.begin(), plan.warnings.end());
  if (!EngineRuns(checkpoint.config.family)) {
    report.warnings.push_back(fmt::format(
        "model_type {}: packed, but the engine does not run this family yet", report.model_type));
  }
  if (report.is_partial) {
    report.warnings.push_back(fmt::format("partial: {} of {} layers; such a store cannot be run",
                                          report.layer_count, plan.wanted_layer_count));
  }
  return report;
}

// The files beside the layers.
std::vector<std::string> FileNames(const PackPlan& plan) {
  std::vector<std::string> names = {kTrunkName};
  for (const AnnexText& text : plan.texts) names.emplace_back(text.name);
  return names;
}

// No output may be a file that is being read, nor lie among the checkpoint's own.
Status CheckOutputs(const checkpoint::Checkpoint& checkpoint, const PackPlan& plan,
                    const std::string& out_path) {
  std::error_code ignored;
  if (fs::equivalent(checkpoint.path, out_path, ignored)) {
    return Invalid("{}: is the checkpoint's own folder; name another one to write", out_path);
  }
  const std::vector<std::string> inputs = InputPaths(checkpoint);
  std::vector<std::string> names = FileNames(plan);
  names.insert(names.end(), {records::kManifestName, kPackJournalName});
  for (uint32_t layer = 0; layer < plan.index.num_moe_layers; ++layer) {
    names.push_back(records::ExpertIndex::FileName(layer));
  }
  for (const std::string& name : names) {
    SMOE_TRY(io::CheckNoInput(PathIn(out_path, name), inputs));
  }
  return Ok();
}

std::string JournalPath(const std::string& out_path, bool force) {
  return PathIn(records::RecordWriter::WorkFolder(out_path, force), kPackJournalName);
}

// Bytes on the drive of a file that a resume keeps.
uint64_t OccupiedBytes(const std::string& path) {
  constexpr uint64_t kStatBlockBytes = 512;
  struct stat info = {};
  if (::stat(path.c_str(), &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes;
}

// A resume keeps the layers of an unfinished run; --force removes them before it writes.
Status CheckFreeSpace(const std::string& out_path, const PackPlan& plan,
                      const PackOptions& options) {
  uint64_t needed = plan.out_bytes;
  const bool counts_old = options.resume || options.force;
  const std::string folder = records::RecordWriter::WorkFolder(out_path, options.force);
  for (uint32_t layer = 0; counts_old && layer < plan.index.num_moe_layers; ++layer) {
    const std::string path = PathIn(folder, records::ExpertIndex::FileName(layer));
    needed -= std::min(needed, OccupiedBytes(path) + OccupiedBytes(path + ".partial"));
  }
  SMOE_TRY_ASSIGN(const uint64_t free, io::FreeSpace(PathIn(out_path, records::kManifestName)));
  if (free >= needed) return Ok();
  return Exhausted(
      "{}: needs {} bytes ({} layers of {} records of {} and a trunk of {}), the drive has {} free",
      out_path, needed, plan.index.num_moe_layers, plan.index.num_experts, plan.index.record_stride,
      plan.trunk.layout.total_bytes, free);
}

// The packing itself: workers over experts, the trunk beside them.
class Packing {
 public:
  Packing(const checkpoint::Checkpoint& checkpoint, const PackPlan& plan,
          const PackOptions& options, records::RecordWriter& writer, Ledger& ledger,
          Progress& progress)
      : checkpoint_(checkpoint),
        plan_(plan),
        options_(options),
        writer_(writer),
        ledger_(ledger),
        progress_(progress),
        rules_{options.quantiser, options.allow_non_finite} {}

  // Takes over the records of an interrupted run whose bytes are still those it wrote.
  Status Restore() {
    const uint64_t raw_bytes = plan_.spec.raw_bytes;
    return ledger_.Restore(
        options_.threads, raw_bytes, progress_, [&] { return MakeWorker(); },
        [&](uint64_t index, uint64_t checksum, Worker& worker) {
          return writer_.RestoreRecord(KeyOf(index), checksum,
                                       worker.record.bytes().first(raw_bytes));
        });
  }

  Status Run() {
    const ProgressPhase phase(
        progress_, plan_.moves_bytes ? "packing" : "quantising",
        plan_.trunk.layout.total_bytes +
            (ledger_.expert_count() - ledger_.restored_count()) * plan_.expert_source_bytes);
    const bool drop_pages = IsLargerThanMemory(checkpoint_);
    return RunWorkers(
        ledger_.expert_count() + 1, options_.threads, [&] { return MakeWorker(); },
        [&](size_t index, Worker& worker) -> Status {
          if (index == 0) return WriteTrunk();
          return PackExpert(index - 1, worker, drop_pages);
        });
  }

  const TrunkErrors& trunk_errors() const { return trunk_errors_; }

 private:
  struct Worker {
    ExpertPacker packer;
    AlignedBuffer record;
  };

  Result<Worker> MakeWorker() const {
    SMOE_TRY_ASSIGN(AlignedBuffer record,
                    AlignedBuffer::Create(plan_.index.record_stride, "a record"));
    return Worker{ExpertPacker(checkpoint_, plan_.spec, rules_), std::move(record)};
  }

  records::ExpertKey KeyOf(uint64_t index) const {
    return records::ExpertRecordId{index}.Key(plan_.index.num_experts);
  }

  Status PackExpert(uint64_t index, Worker& worker, bool drop_pages) {
    if (ledger_.IsDone(index)) return Ok();
    const records::ExpertKey key = KeyOf(index);
    const uint32_t model_layer = plan_.index.moe_layer_to_model_layer[key.layer];
    ExpertDone& done = ledger_.Start(index);
    SMOE_TRY(worker.packer.Run(key, model_layer, worker.record.bytes(), &done));
    SMOE_TRY(writer_.WriteRecord(key, worker.record.bytes()));
    done.checksum = writer_.record_checksum(key);
    SMOE_TRY(ledger_.Finish(index));
    if (drop_pages) DropExpert(checkpoint_, model_layer, key.expert);
    progress_.Advance(plan_.expert_source_bytes);
    return Ok();
  }

  Status WriteTrunk() {
    SMOE_TRY(writer_.BeginFile(records::kPartTrunk, kTrunkName, plan_.trunk.layout.total_bytes));
    SMOE_TRY(StreamTrunk(
        checkpoint_.files, plan_.trunk, [&](Bytes piece) { return writer_.AppendFile(piece); },
        progress_, &trunk_errors_));
    return writer_.EndFile();
  }

  const checkpoint::Checkpoint& checkpoint_;
  const PackPlan& plan_;
  const PackOptions& options_;
  records::RecordWriter& writer_;
  Ledger& ledger_;
  Progress& progress_;
  const PackRules rules_;
  TrunkErrors trunk_errors_ = {};
};

Json SourceOf(const PackPlan& plan, const PackOptions& options, const PackReport& report) {
  Json source;
  source.Set("writer", options.writer);
  source.Set("checkpoint", plan.source);
  source.Set("quantiser", plan.moves_bytes ? "none: NVFP4 moved as it was" : report.quantiser);
  source.Set("naming", report.naming);
  if (report.trunk_formats != checkpoint::TrunkFormats{}) {
    source.Set("trunk", TrunkFormatJson(report.trunk_formats, report.trunk_errors));
  }
  if (report.non_finite_count != 0) source.Set("non_finite_as_zero", report.non_finite_count);
  if (report.errors) source.Set("errors", ErrorsJson(*report.errors));
  return source;
}

Status Convert(const checkpoint::Checkpoint& checkpoint, const PackPlan& plan,
               const PackOptions& options, records::RecordWriter& writer, Progress& progress,
               PackReport* report) {
  const uint64_t record_count = uint64_t{plan.index.num_moe_layers} * plan.index.num_experts;
  SMOE_TRY_ASSIGN(Ledger ledger, Ledger::Open(JournalPath(report->out_path, options.force),
                                              plan.identity, record_count, options.resume));
  Packing packing(checkpoint, plan, options, writer, ledger, progress);
  SMOE_TRY(packing.Restore());
  SMOE_TRY(packing.Run());
  report->trunk_errors = packing.trunk_errors();
  report->resumed_expert_count = ledger.restored_count();
  report->non_finite_count = ledger.non_finite_count();
  if (!plan.moves_bytes) report->errors = ledger.errors();
  for (const AnnexText& text : plan.texts) {
    SMOE_TRY(writer.AddFile(text.name, text.name, AsBytes(text.content)));
  }
  writer.set_source(SourceOf(plan, options, *report));
  return writer.Finish();
}

uint64_t WrittenBytes(const std::string& out_path, const records::ExpertIndex& index) {
  uint64_t bytes = index.num_moe_layers * index.Layout().FileBytes();
  for (const records::StoreFile& file : index.files) bytes += file.bytes;
  std::error_code failed;
  const auto manifest = fs::file_size(PathIn(out_path, records::kManifestName), failed);
  return failed ? bytes : bytes + manifest;
}

}  // namespace

Json PackReport::ToJson() const {
  Json json;
  json.Set("checkpoint", checkpoint_path);
  json.Set("store", out_path);
  json.Set("model_type", model_type);
  json.Set("naming", naming);
  json.Set("moved", moves_bytes);
  json.Set("quantiser", quantiser.empty() ? Json() : Json(quantiser));
  json.Set("layers", layer_count);
  json.Set("experts", expert_count);
  json.Set("inter", inter);
  json.Set("hidden", hidden);
  json.Set("record_stride", record_stride);
  json.Set("partial", is_partial);
  json.Set("expert_source_bytes", expert_source_bytes);
  json.Set("trunk_bytes", trunk_bytes);
  json.Set("trunk", TrunkFormatJson(trunk_formats, trunk_errors));
  json.Set("store_bytes", out_bytes);
  json.Set("resumed_experts", resumed_expert_count);
  json.Set("non_finite_as_zero", non_finite_count);
  json.Set("seconds", seconds);
  if (errors) json.Set("errors", ErrorsJson(*errors));
  json.Set("decisions", Json::ListOf(decisions));
  json.Set("warnings", Json::ListOf(warnings));
  return json;
}

Result<PackReport> Pack(const std::string& checkpoint_path, const std::string& out_path,
                        const PackOptions& asked, Progress& progress) {
  const Stopwatch stopwatch;
  SMOE_TRY(CheckThreadCount(asked.threads));
  PackOptions options = asked;
  const std::string manifest_path = PathIn(out_path, records::kManifestName);
  const std::string journal_path = JournalPath(out_path, asked.force);
  if (asked.resume && !asked.force && Exists(manifest_path)) {
    if (!asked.dry_run) RemoveFinishedJournal(manifest_path, journal_path);
    return Invalid(
        "{}: exists, nothing is left to resume; --force replaces the store{}", manifest_path,
        Exists(JournalPath(out_path, true)) ? ", --force --resume goes on with that" : "");
  }
  // Without a journal there is nothing that could be taken over.
  options.resume = asked.resume && Exists(journal_path);
  SMOE_TRY_ASSIGN(const checkpoint::Checkpoint checkpoint,
                  checkpoint::OpenCheckpoint(checkpoint_path));
  SMOE_TRY_ASSIGN(const PackPlan plan, PlanPack(checkpoint, options));
  PackReport report = StartReport(checkpoint, plan, out_path, options);
  SMOE_TRY(CheckText(checkpoint, options.allow_broken_text, &report.warnings));
  SMOE_TRY(CheckOutputs(checkpoint, plan, out_path));
  const records::RecordWriterOptions writer_options{options.force, options.resume};
  Status place = records::RecordWriter::CheckPlace(out_path, FileNames(plan), writer_options);
  if (!place && asked.resume && !options.resume && !options.force) {
    return NoJournal(journal_path, out_path);
  }
  SMOE_TRY(std::move(place));
  SMOE_TRY(CheckFreeSpace(out_path, plan, options));
  if (options.dry_run) return report;
  SMOE_TRY_ASSIGN(const auto writer,
                  records::RecordWriter::Create(out_path, plan.index, writer_options));
  if (options.resume) writer->KeepPartial();
  Status packed = Convert(checkpoint, plan, options, *writer, progress, &report);
  if (!packed) {
    return GiveUp(
        {out_path, journal_path, options.resume, options.force}, [&] { writer->KeepPartial(); },
        std::move(packed));
  }
  std::error_code ignored;
  fs::remove(JournalPath(out_path, false), ignored);
  report.out_bytes = WrittenBytes(out_path, writer->index());
  report.seconds = stopwatch.seconds();
  return report;
}

}  // namespace smoe::convert
