#include "convert/recover.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include "convert/expert_shatterer.h"
#include "convert/shatter_plan.h"
#include "convert/workers.h"
#include "store/vault/vault.h"

namespace smoe::convert {
namespace {

namespace vault = store::vault;

constexpr uint32_t kGroupSizes[] = {64, 32, 128, 16, 8};  // the common ones first

// One way in which the file may have been made.
struct Candidate {
  vault::VaultPlan plan;
  tensor::Quantiser quantiser;
};

// The experts that an intact table names, as far as they stand in order; empty if it does not
// look like a table.
Result<std::vector<store::ExpertId>> ReadTable(const io::File& file, uint64_t file_bytes) {
  constexpr uint64_t kEntryBytes = sizeof(vault::ExpertEntry);
  std::vector<store::ExpertId> experts;
  uint64_t first_offset = 0;
  for (uint64_t at = vault::kTableOffset; experts.size() < vault::kExpertsMax; at += kEntryBytes) {
    if (!RangeFits(at, kEntryBytes, file_bytes)) break;
    std::byte raw[kEntryBytes];
    SMOE_TRY(file.ReadAt(at, raw));
    const auto entry = LoadStruct<vault::ExpertEntry>(raw);
    if (experts.empty()) first_offset = entry.byte_offset;
    const bool plausible =
        entry.padded_size != 0 && entry.padded_size % vault::kBlobAlignment == 0 &&
        entry.raw_size <= entry.padded_size && first_offset >= at + kEntryBytes &&
        entry.byte_offset == first_offset + experts.size() * entry.padded_size &&
        RangeFits(entry.byte_offset, entry.padded_size, file_bytes);
    if (!plausible) break;
    experts.push_back({entry.layer_id, entry.expert_id});
  }
  return experts;
}

class Recovery {
 public:
  Recovery(const checkpoint::Checkpoint& checkpoint, const io::File& file, uint64_t file_bytes)
      : checkpoint_(checkpoint), file_(file), file_bytes_(file_bytes) {}

  // The combination under which the first blob comes out again.
  Result<Candidate> Find(const std::vector<store::ExpertId>& table) {
    size_t tried_count = 0;
    for (bool include_mtp : {false, true}) {
      for (tensor::SmoeBits bits : {tensor::SmoeBits::kQ4, tensor::SmoeBits::kQ2}) {
        for (uint32_t group_size : kGroupSizes) {
          SMOE_TRY_ASSIGN(const auto plan, PlanFor(table, include_mtp, bits, group_size));
          if (!plan) continue;
          for (auto quantiser : {tensor::Quantiser::kMse, tensor::Quantiser::kReference}) {
            const Candidate candidate{*plan, quantiser};
            ++tried_count;
            SMOE_TRY_ASSIGN(const bool is_same, Matches(candidate, 0));
            if (is_same) return candidate;
          }
        }
      }
    }
    return Corrupt(
        "{}: the first expert is none that this checkpoint gives ({} combinations of bits, group "
        "size and quantiser fit the file's {} bytes); another checkpoint, an older writer, or "
        "damaged experts",
        file_.path(), tried_count, file_bytes_);
  }

  // Compares one blob with a fresh quantisation. Threads: any.
  Result<bool> Matches(const Candidate& candidate, size_t index) const {
    const vault::VaultPlan& plan = candidate.plan;
    ExpertShatterer shatterer(
        checkpoint_, plan.tensors(),
        {plan.spec().bits, plan.spec().group_size, candidate.quantiser, true, false});
    std::vector<std::byte> fresh(plan.raw_size());
    ExpertDone ignored;
    SMOE_TRY(shatterer.Run(plan.spec().experts[index], fresh, &ignored));
    std::vector<std::byte> stored(plan.raw_size());
    SMOE_TRY(file_.ReadAt(plan.blob_offset(index), stored));
    return fresh == stored;
  }

 private:
  // nullopt: such a vault would have another size than the file.
  Result<std::optional<vault::VaultPlan>> PlanFor(const std::vector<store::ExpertId>& table,
                                                  bool include_mtp, tensor::SmoeBits bits,
                                                  uint32_t group_size) const {
    ShatterOptions options;
    options.bits = bits;
    options.group_size = group_size;
    SMOE_TRY_ASSIGN(vault::VaultSpec spec, MakeVaultSpec(checkpoint_, options, include_mtp));
    if (!table.empty()) {
      const bool known = std::includes(spec.experts.begin(), spec.experts.end(), table.begin(),
                                       table.end(), Before);
      if (!known) return std::optional<vault::VaultPlan>();
      spec.experts = table;
    }
    SMOE_TRY_ASSIGN(vault::VaultPlan plan, vault::VaultPlan::Create(std::move(spec)));
    if (plan.blobs_end() > file_bytes_) return std::optional<vault::VaultPlan>();
    if (plan.blobs_end() < file_bytes_) {
      const auto annex = vault::ReadAnnex(file_, {plan.blobs_end(), file_bytes_, plan.data_offset(),
                                                  static_cast<uint32_t>(plan.expert_count())});
      if (!annex || !*annex) return std::optional<vault::VaultPlan>();
    }
    return std::optional<vault::VaultPlan>(std::move(plan));
  }

  static bool Before(const store::ExpertId& a, const store::ExpertId& b) {
    return a.layer_index != b.layer_index ? a.layer_index < b.layer_index
                                          : a.expert_index < b.expert_index;
  }

  const checkpoint::Checkpoint& checkpoint_;
  const io::File& file_;
  uint64_t file_bytes_;
};

// Every blob. Errors: kCorrupt with how many differ, and the first of them.
Status CompareAll(const Recovery& recovery, const Candidate& candidate, const std::string& path,
                  size_t thread_count, Progress& progress) {
  const std::vector<store::ExpertId>& experts = candidate.plan.spec().experts;
  const ProgressPhase phase(progress, "recovering", experts.size() * candidate.plan.raw_size());
  std::mutex mutex;
  std::vector<size_t> differing;
  struct Nothing {};
  SMOE_TRY(RunWorkers(
      experts.size(), thread_count, [] { return Result<Nothing>(Nothing{}); },
      [&](size_t i, Nothing&) -> Status {
        SMOE_TRY_ASSIGN(const bool is_same, recovery.Matches(candidate, i));
        progress.Advance(candidate.plan.raw_size());
        const std::lock_guard lock(mutex);
        if (!is_same) differing.push_back(i);
        return Ok();
      }));
  if (differing.empty()) return Ok();
  const size_t first = *std::min_element(differing.begin(), differing.end());
  return Corrupt(
      "{}: {} of {} experts differ from what the checkpoint gives, the first is expert {} of layer "
      "{}; nothing was written",
      path, differing.size(), experts.size(), experts[first].expert_index,
      experts[first].layer_index);
}

// What is lost. Errors: kInvalid if nothing is.
struct Losses {
  bool header = false;
  bool table = false;
};
Result<Losses> FindLosses(const io::File& file, uint64_t file_bytes) {
  constexpr uint64_t kStartBytes = sizeof(vault::SmoeHeader) + sizeof(vault::ExpertEntry);
  if (file_bytes < vault::kBlobAlignment) {
    return Corrupt("{}: {} bytes, a vault has at least {}: there are no experts to recover",
                   file.path(), file_bytes, vault::kBlobAlignment);
  }
  std::byte start[kStartBytes];
  SMOE_TRY(file.ReadAt(0, start));
  Losses losses{AllZero(Bytes(start).first(sizeof(vault::SmoeHeader))),
                AllZero(Bytes(start).subspan(sizeof(vault::SmoeHeader)))};
  if (losses.header || losses.table) return losses;
  const auto opened = vault::OpenVault(file.path());
  if (opened) return Invalid("{}: header and table are intact, nothing to recover", file.path());
  return Invalid("{}: header and table are not empty, and not overwritten; what is wrong: {}",
                 file.path(), opened.error().message());
}

}  // namespace

Json RecoverReport::ToJson() const {
  Json json;
  json.Set("bits", static_cast<uint32_t>(bits));
  json.Set("group_size", group_size);
  json.Set("quantiser", QuantiserName(quantiser));
  json.Set("experts", expert_count);
  json.Set("table_was_lost", table_was_lost);
  json.Set("annex", has_annex);
  json.Set("warnings", Json::ListOf(warnings));
  return json;
}

Result<RecoverReport> Recover(const std::string& checkpoint_path, const std::string& vault_path,
                              const RecoverOptions& options, Progress& progress) {
  SMOE_TRY_ASSIGN(const io::File file, options.dry_run ? io::File::OpenRead(vault_path)
                                                       : io::File::OpenReadWrite(vault_path));
  SMOE_TRY_ASSIGN(const uint64_t file_bytes, file.Size());
  SMOE_TRY_ASSIGN(const Losses losses, FindLosses(file, file_bytes));
  SMOE_TRY_ASSIGN(const checkpoint::Checkpoint checkpoint,
                  checkpoint::OpenCheckpoint(checkpoint_path));
  std::vector<store::ExpertId> table;
  if (!losses.table) {
    SMOE_TRY_ASSIGN(table, ReadTable(file, file_bytes));
  }
  Recovery recovery(checkpoint, file, file_bytes);
  SMOE_TRY_ASSIGN(const Candidate found, recovery.Find(table));
  SMOE_TRY(CompareAll(recovery, found, vault_path, options.threads, progress));

  RecoverReport report;
  report.bits = found.plan.spec().bits;
  report.group_size = found.plan.spec().group_size;
  report.quantiser = found.quantiser;
  report.expert_count = found.plan.expert_count();
  report.table_was_lost = table.empty();
  report.has_annex = found.plan.blobs_end() < file_bytes;
  if (report.has_annex) {
    const auto annex =
        vault::ReadAnnex(file, {found.plan.blobs_end(), file_bytes, found.plan.data_offset(),
                                static_cast<uint32_t>(found.plan.expert_count())});
    if (annex && *annex && (*annex)->metadata_checksum != Checksum(found.plan.Metadata())) {
      report.warnings.push_back(
          "the annex's checksum of the metadata is another: the header was not exactly what this "
          "version writes");
    }
  }
  if (options.dry_run) return report;
  if (!losses.header) {
    // A stop inside WriteMetadata must again look like a lost header, not like a damaged vault.
    const std::byte zeros[sizeof(vault::SmoeHeader)] = {};
    SMOE_TRY(file.WriteAt(0, zeros));
    SMOE_TRY(file.Sync());
  }
  SMOE_TRY(vault::WriteMetadata(file, found.plan));
  return report;
}

}  // namespace smoe::convert
