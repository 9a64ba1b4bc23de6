#include "store/vault/vault.h"

#include <fmt/format.h>

#include <algorithm>

#include "store/vault/arch.h"
#include "store/vault/validate.h"

namespace smoe::store::vault {

namespace {

Status LoadArch(Bytes metadata, const OpenVaultOptions& options, Vault* vault) {
  if (options.ignore_arch) return Ok();
  if (vault->header.version == kVersion1) {
    if (vault->header.reserved_ext != 0) {
      vault->decisions.push_back(
          "version 1 with reserved_ext set: an upgrade was interrupted; the arch block is ignored");
    }
    return Ok();
  }
  const auto arch = LoadStruct<SmoeArchBlock>(metadata, vault->header.reserved_ext);
  SMOE_TRY(CheckArchBlock(arch, vault->header.max_experts_per_layer));
  vault->arch = arch;
  return Ok();
}

void NoteGap(Bytes metadata, Vault* vault) {
  const uint64_t descriptors_end = DescriptorsEnd(vault->header);
  // The block of an interrupted upgrade lies in a version 1 file's gap and is no surprise.
  const uint64_t arch_offset = vault->header.reserved_ext;
  const bool has_block = RangeFits(arch_offset, sizeof(SmoeArchBlock), metadata.size()) &&
                         arch_offset >= descriptors_end;
  const Bytes before = metadata.subspan(
      descriptors_end, (has_block ? arch_offset : metadata.size()) - descriptors_end);
  const Bytes after = has_block ? metadata.subspan(arch_offset + sizeof(SmoeArchBlock)) : Bytes();
  if (!AllZero(before) || !AllZero(after)) {
    vault->warnings.push_back("the gap between the metadata and data_offset is not zero");
  }
}

Status LoadAnnex(Bytes metadata, Vault* vault) {
  const AnnexPlace place{vault->blobs_end, vault->file_bytes, vault->header.data_offset,
                         vault->header.total_experts};
  SMOE_TRY_ASSIGN(vault->annex, ReadAnnex(vault->file, place));
  if (!vault->annex) {
    if (vault->file_bytes > vault->blobs_end) {
      vault->warnings.push_back(
          fmt::format("{} bytes after the last expert are no annex and are ignored",
                      vault->file_bytes - vault->blobs_end));
    }
    return Ok();
  }
  if (const uint64_t found = Checksum(metadata); found != vault->annex->metadata_checksum) {
    return Corrupt("metadata: checksum of the first {} bytes is {:016x}, the annex has {:016x}",
                   metadata.size(), found, vault->annex->metadata_checksum);
  }
  return Ok();
}

void NoteQuirks(Vault* vault) {
  if (vault->header.bits == 0) {
    vault->decisions.push_back("bits: 0 in the header is read as 2");
  }
  uint64_t counted_otherwise = 0;
  for (const ExpertRecord& record : vault->records) {
    uint64_t groups = 0;
    for (const TensorPlace& place : record.tensors) groups += place.scales_size / 2;
    if (record.num_groups != groups) ++counted_otherwise;
  }
  if (counted_otherwise != 0) {
    vault->decisions.push_back(
        fmt::format("num_groups: counted in groups of 64 in {} entries, as the original writer "
                    "does; the descriptors decide",
                    counted_otherwise));
  }
  for (const VaultLayer& layer : vault->layers) {
    if (vault->arch && layer.layer_index >= vault->arch->num_hidden_layers) {
      vault->decisions.push_back(
          fmt::format("layer {}: experts of multi-token prediction (beyond num_hidden_layers {}), "
                      "not run",
                      layer.layer_index, uint32_t{vault->arch->num_hidden_layers}));
    }
  }
  if (vault->arch && vault->arch->moe_ffn_dim != vault->intermediate_size) {
    vault->warnings.push_back(
        fmt::format("arch.moe_ffn_dim is {}, the descriptors say {}: the descriptors win",
                    uint32_t{vault->arch->moe_ffn_dim}, vault->intermediate_size));
  }
}

Result<Vault> Load(const std::string& path, const OpenVaultOptions& options) {
  Vault vault;
  vault.path = path;
  SMOE_TRY_ASSIGN(vault.file, io::File::OpenRead(path));
  SMOE_TRY_ASSIGN(vault.file_bytes, vault.file.Size());
  std::byte start[sizeof(SmoeHeader)];
  const MutableBytes head = MutableBytes(start).first(
      static_cast<size_t>(std::min<uint64_t>(sizeof(start), vault.file_bytes)));
  SMOE_TRY(vault.file.ReadAt(0, head));
  SMOE_TRY(CheckHeader(head, vault.file_bytes, !options.ignore_arch));
  vault.header = LoadStruct<SmoeHeader>(head);
  vault.bits = vault.header.bits == 4 ? tensor::SmoeBits::kQ4 : tensor::SmoeBits::kQ2;
  vault.group_size = vault.header.group_size;

  std::vector<std::byte> metadata(vault.header.data_offset);
  SMOE_TRY(vault.file.ReadAt(0, metadata));
  SMOE_TRY(LoadArch(metadata, options, &vault));
  SMOE_TRY(LoadRecords(metadata, &vault));
  NoteGap(metadata, &vault);
  SMOE_TRY(LoadAnnex(metadata, &vault));
  NoteQuirks(&vault);
  return vault;
}

}  // namespace

const ExpertRecord* Vault::Find(ExpertId id) const {
  const auto at = std::lower_bound(records.begin(), records.end(), id,
                                   [](const ExpertRecord& record, const ExpertId& wanted) {
                                     return record.id.layer_index != wanted.layer_index
                                                ? record.id.layer_index < wanted.layer_index
                                                : record.id.expert_index < wanted.expert_index;
                                   });
  return at != records.end() && at->id == id ? &*at : nullptr;
}

Result<Vault> OpenVault(const std::string& path, const OpenVaultOptions& options) {
  Result<Vault> vault = Load(path, options);
  // Messages of io::File name the path themselves.
  if (!vault && vault.error().message().find(path) == std::string::npos) {
    return While(path, std::move(vault));
  }
  return vault;
}

}  // namespace smoe::store::vault
