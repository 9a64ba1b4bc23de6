#include "store/vault/validate.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "store/vault/arch.h"

namespace smoe::store::vault {

namespace {

constexpr const char* kProjNames[kTensorsPerExpert] = {"gate", "up", "down"};

// What a file that is no vault seems to be; empty if we cannot tell.
std::string GuessKind(Bytes start) {
  struct Kind {
    std::string_view start;
    const char* name;
  };
  for (const Kind& kind : {Kind{"GGUF", "a GGUF file"}, Kind{"TRPX", "a file of expert records"},
                           Kind{"version https://git-lfs", "a Git LFS pointer: fetch the file"},
                           Kind{"PK\x03\x04", "a zip archive"}, Kind{"{", "JSON"}}) {
    if (std::memcmp(start.data(), kind.start.data(), kind.start.size()) != 0) continue;
    return fmt::format(" (it looks like {})", kind.name);
  }
  if (static_cast<char>(start[8]) == '{') return " (it looks like safetensors)";
  return "";
}

Status CheckIdentity(Bytes start, uint64_t file_bytes) {
  if (file_bytes == 0) {
    return Corrupt("the file is empty: its conversion was interrupted before the first expert");
  }
  if (AllZero(start)) {
    return Corrupt(
        "the header is all zero: the conversion of this vault was interrupted; convert it again, "
        "or "
        "if it was whole once, rebuild the header with smoe recover");
  }
  if (start.size() < sizeof(SmoeHeader)) {
    return Corrupt("the file has {} bytes, expected at least the {} of a header: truncated?",
                   file_bytes, sizeof(SmoeHeader));
  }
  if (std::memcmp(start.data(), kMagic, sizeof(kMagic)) == 0) return Ok();
  std::string found;
  for (size_t i = 0; i < sizeof(kMagic); ++i) {
    found += fmt::format("{:02x}", static_cast<unsigned>(start[i]));
  }
  return Corrupt("header.magic is {}, expected 534d4f45deea0001: not a .smoe vault{}", found,
                 GuessKind(start));
}

Status CheckOffsets(const SmoeHeader& header, uint64_t file_bytes, bool check_arch) {
  if (header.table_offset != kTableOffset) {
    return Corrupt("header.table_offset is {}, expected {}", uint64_t{header.table_offset},
                   kTableOffset);
  }
  if (header.total_experts == 0 || header.total_experts > kExpertsMax) {
    return Corrupt("header.total_experts is {}, expected 1 to {}", uint32_t{header.total_experts},
                   kExpertsMax);
  }
  const uint64_t descriptors_end = DescriptorsEnd(header);
  if (descriptors_end > file_bytes) {
    return Corrupt(
        "header.total_experts is {}: table and descriptors end at {}, the file has {} bytes: "
        "truncated?",
        uint32_t{header.total_experts}, descriptors_end, file_bytes);
  }
  const uint64_t data_offset = header.data_offset;
  if (data_offset % kBlobAlignment != 0 || data_offset < descriptors_end ||
      data_offset - descriptors_end > kGapBytesMax) {
    return Corrupt("header.data_offset is {}, expected a multiple of {} from {} to {}", data_offset,
                   kBlobAlignment, descriptors_end, descriptors_end + kGapBytesMax);
  }
  if (data_offset > file_bytes) {
    return Corrupt("header.data_offset is {}, the file has {} bytes: truncated?", data_offset,
                   file_bytes);
  }
  const uint64_t arch_offset = header.reserved_ext;
  if (check_arch && header.version == kVersion2 &&
      (arch_offset % kArchAlignment != 0 || arch_offset < descriptors_end ||
       !RangeFits(arch_offset, sizeof(SmoeArchBlock), data_offset))) {
    return Corrupt(
        "header.reserved_ext is {}, expected the offset of a {}-byte arch block, a multiple of {} "
        "between {} and {}",
        arch_offset, sizeof(SmoeArchBlock), kArchAlignment, descriptors_end, data_offset);
  }
  return Ok();
}

// Sizes of one projection against its shape. `who` is "entry 3 (layer 1, expert 1) gate".
Status CheckSizes(const TensorPlace& place, const Vault& vault, const std::string& who) {
  const auto weights = CheckedMul(place.rows, place.cols);
  const auto bits = weights ? CheckedMul(*weights, 8) : std::nullopt;
  if (place.rows == 0 || place.cols == 0 || !bits) {
    return Corrupt("{}: rows x cols is {} x {}, expected 1 or more each, below 2^61 together", who,
                   place.rows, place.cols);
  }
  const uint64_t packed = tensor::PackedBytes(*weights, vault.bits);
  if (place.packed_size != packed) {
    return Corrupt("{}: packed_size is {}, expected {} for {} x {} weights by header.bits {}", who,
                   place.packed_size, packed, place.rows, place.cols, uint32_t{vault.header.bits});
  }
  const uint64_t scales = tensor::ScaleBytes(*weights, vault.group_size);
  if (place.scales_size != scales) {
    return Corrupt("{}: scales_size is {}, expected {} for {} x {} weights by header.group_size {}",
                   who, place.scales_size, scales, place.rows, place.cols, vault.group_size);
  }
  return Ok();
}

struct Part {
  uint64_t offset;
  uint64_t size;
  uint32_t tensor;
  const char* field;
};

// The six parts lie inside raw_size and apart from each other.
Status CheckParts(const ExpertRecord& record, const std::string& who) {
  std::array<Part, 2 * kTensorsPerExpert> parts;
  for (uint32_t j = 0; j < kTensorsPerExpert; ++j) {
    const TensorPlace& place = record.tensors[j];
    parts[2 * j] = {place.packed_offset, place.packed_size, j, "packed_offset"};
    parts[2 * j + 1] = {place.scales_offset, place.scales_size, j, "scales_offset"};
  }
  for (const Part& part : parts) {
    if (RangeFits(part.offset, part.size, record.raw_size)) continue;
    return Corrupt("{} {}: {} is {} with {} bytes, expected to end within the blob's raw_size {}",
                   who, kProjNames[part.tensor], part.field, part.offset, part.size,
                   record.raw_size);
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].offset - parts[i - 1].offset >= parts[i - 1].size) continue;
    return Corrupt("{} {}: {} is {}, expected to begin after {} {} which ends at {}", who,
                   kProjNames[parts[i].tensor], parts[i].field, parts[i].offset,
                   kProjNames[parts[i - 1].tensor], parts[i - 1].field,
                   parts[i - 1].offset + parts[i - 1].size);
  }
  return Ok();
}

Status LoadDescriptors(Bytes metadata, uint32_t index, const std::string& who, Vault* vault,
                       ExpertRecord* record) {
  const uint64_t start = kTableOffset + uint64_t{vault->header.total_experts} * sizeof(ExpertEntry);
  for (uint32_t j = 0; j < kTensorsPerExpert; ++j) {
    const auto descriptor = LoadStruct<TensorDescriptor>(
        metadata, start + (uint64_t{index} * kTensorsPerExpert + j) * sizeof(TensorDescriptor));
    const std::string name = fmt::format("{} {}", who, kProjNames[j]);
    if (descriptor.tensor_type != j) {
      return Corrupt("{}: tensor_type is {}, expected {} (is header.total_experts {} right?)", name,
                     descriptor.tensor_type, j, uint32_t{vault->header.total_experts});
    }
    if (descriptor.ndim != 2) return Corrupt("{}: ndim is {}, expected 2", name, descriptor.ndim);
    if (descriptor.reserved_0[0] != 0 || descriptor.reserved_0[1] != 0) {
      return Corrupt("{}: descriptor.reserved is {:02x}{:02x}, expected zero", name,
                     descriptor.reserved_0[0], descriptor.reserved_0[1]);
    }
    record->tensors[j] = {descriptor.rows,          descriptor.cols,
                          descriptor.packed_offset, descriptor.packed_size,
                          descriptor.scales_offset, descriptor.scales_size};
    SMOE_TRY(CheckSizes(record->tensors[j], *vault, name));
  }
  const TensorPlace& gate = record->tensors[0];
  if (index == 0) {
    vault->hidden_size = gate.cols;
    vault->intermediate_size = gate.rows;
  }
  for (uint32_t j = 0; j < kTensorsPerExpert; ++j) {
    const uint32_t rows = j == 2 ? vault->hidden_size : vault->intermediate_size;
    const uint32_t cols = j == 2 ? vault->intermediate_size : vault->hidden_size;
    const TensorPlace& place = record->tensors[j];
    if (place.rows == rows && place.cols == cols) continue;
    return Corrupt("{} {}: rows x cols is {} x {}, expected {} x {} by the file's first gate", who,
                   kProjNames[j], place.rows, place.cols, rows, cols);
  }
  return CheckParts(*record, who);
}

// One group per 64 weights, whatever the group size: what the original writer counts.
constexpr uint32_t kOriginalGroupCount = 64;

uint64_t CountGroups(const ExpertRecord& record, uint32_t group_size) {
  uint64_t count = 0;
  for (const TensorPlace& place : record.tensors) {
    count += CeilDiv(uint64_t{place.rows} * place.cols, group_size);
  }
  return count;
}

Status CheckPlace(const ExpertRecord& record, const Vault& vault, const std::string& who) {
  if (record.raw_size == 0 || record.raw_size > record.padded_size) {
    return Corrupt("{}: raw_size is {}, expected 1 to padded_size {}", who, record.raw_size,
                   record.padded_size);
  }
  if (record.padded_size % kBlobAlignment != 0 ||
      record.padded_size - record.raw_size >= kBlobAlignment) {
    return Corrupt("{}: padded_size is {}, expected raw_size {} rounded up to a multiple of {}",
                   who, record.padded_size, record.raw_size, kBlobAlignment);
  }
  if (record.byte_offset % kBlobAlignment != 0 || record.byte_offset < vault.header.data_offset) {
    return Corrupt("{}: byte_offset is {}, expected a multiple of {} from data_offset {} on", who,
                   record.byte_offset, kBlobAlignment, uint64_t{vault.header.data_offset});
  }
  if (!RangeFits(record.byte_offset, record.padded_size, vault.file_bytes)) {
    return Corrupt("{}: byte_offset is {} with padded_size {}, the file has {} bytes: truncated?",
                   who, record.byte_offset, record.padded_size, vault.file_bytes);
  }
  return Ok();
}

Status CheckId(const ExpertRecord& record, const Vault& vault, const std::string& who) {
  const uint32_t layer_id_max =
      vault.arch ? vault.arch->num_hidden_layers + kMtpLayersMax - 1 : kLayerIdMax;
  if (record.id.layer_index > layer_id_max) {
    return Corrupt("{}: layer_id is {}, expected at most {}", who, record.id.layer_index,
                   layer_id_max);
  }
  if (record.id.expert_index >= vault.header.max_experts_per_layer) {
    return Corrupt("{}: expert_id is {}, expected below header.max_experts_per_layer {}", who,
                   record.id.expert_index, uint32_t{vault.header.max_experts_per_layer});
  }
  if (vault.records.empty()) return Ok();
  const ExpertId& before = vault.records.back().id;
  if (before == record.id) return Corrupt("{}: the entry before it names the same expert", who);
  const bool ascending =
      before.layer_index < record.id.layer_index ||
      (before.layer_index == record.id.layer_index && before.expert_index < record.id.expert_index);
  if (ascending) return Ok();
  return Corrupt(
      "{}: layer_id and expert_id do not follow those of the entry before it (layer {}, expert "
      "{}), "
      "expected entries that ascend by layer, then expert",
      who, before.layer_index, before.expert_index);
}

Status LoadRecord(Bytes metadata, uint32_t index, Vault* vault) {
  const auto entry =
      LoadStruct<ExpertEntry>(metadata, kTableOffset + uint64_t{index} * sizeof(ExpertEntry));
  ExpertRecord record;
  record.id = {entry.layer_id, entry.expert_id};
  record.byte_offset = entry.byte_offset;
  record.raw_size = entry.raw_size;
  record.padded_size = entry.padded_size;
  record.num_groups = entry.num_groups;
  const std::string who = fmt::format("entry {} (layer {}, expert {})", index,
                                      record.id.layer_index, record.id.expert_index);
  uint32_t reserved = 0;
  std::memcpy(&reserved, entry.reserved, sizeof(reserved));
  if (reserved != 0) return Corrupt("{}: entry.reserved is {}, expected 0", who, reserved);
  if (entry.group_size != vault->group_size) {
    return Corrupt("{}: group_size is {}, expected the header's {}", who,
                   uint32_t{entry.group_size}, vault->group_size);
  }
  SMOE_TRY(CheckId(record, *vault, who));
  SMOE_TRY(CheckPlace(record, *vault, who));
  SMOE_TRY(LoadDescriptors(metadata, index, who, vault, &record));
  const uint64_t groups = CountGroups(record, vault->group_size);
  if (record.num_groups != groups &&
      record.num_groups != CountGroups(record, kOriginalGroupCount)) {
    return Corrupt("{}: num_groups is {}, expected {}", who, record.num_groups, groups);
  }
  vault->records.push_back(record);
  return Ok();
}

Status CheckOverlaps(const Vault& vault) {
  std::vector<uint32_t> order(vault.records.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return vault.records[a].byte_offset < vault.records[b].byte_offset;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const ExpertRecord& a = vault.records[order[i - 1]];
    const ExpertRecord& b = vault.records[order[i]];
    if (b.byte_offset - a.byte_offset >= a.padded_size) continue;
    return Corrupt(
        "entries {} and {}: byte_offset is {} and {}, the first has {} bytes: the "
        "blobs overlap",
        order[i - 1], order[i], a.byte_offset, b.byte_offset, a.padded_size);
  }
  return Ok();
}

// Groups the records into layers, and says what the header's topology has beyond them.
Status LoadLayers(Vault* vault) {
  for (uint32_t i = 0; i < vault->records.size(); ++i) {
    const ExpertId& id = vault->records[i].id;
    if (vault->layers.empty() || vault->layers.back().layer_index != id.layer_index) {
      vault->layers.push_back({id.layer_index, i, 0});
    }
    ++vault->layers.back().expert_count;
  }
  const uint32_t layer_count = vault->header.num_moe_layers;
  const uint32_t expert_count = vault->header.max_experts_per_layer;
  if (layer_count < vault->layers.size()) {
    return Corrupt("header.num_moe_layers is {}, the table has experts of {} layers", layer_count,
                   vault->layers.size());
  }
  if (layer_count > vault->layers.size()) {
    vault->missing = fmt::format("{} of {} layers (header.num_moe_layers) are in the table",
                                 vault->layers.size(), layer_count);
  }
  for (const VaultLayer& layer : vault->layers) {
    if (layer.expert_count == expert_count) continue;
    uint32_t absent = 0;
    while (absent < layer.expert_count &&
           vault->records[layer.first_record + absent].id.expert_index == absent) {
      ++absent;
    }
    vault->missing += fmt::format(
        "{}layer {} has {} of {} experts (header.max_experts_per_layer), expert {} is missing",
        vault->missing.empty() ? "" : "; ", layer.layer_index, layer.expert_count, expert_count,
        absent);
    break;
  }
  return Ok();
}

}  // namespace

uint64_t DescriptorsEnd(const SmoeHeader& header) {
  return kTableOffset + uint64_t{header.total_experts} *
                            (sizeof(ExpertEntry) + kTensorsPerExpert * sizeof(TensorDescriptor));
}

Status CheckHeader(Bytes start, uint64_t file_bytes, bool check_arch) {
  SMOE_TRY(CheckIdentity(start, file_bytes));
  const auto header = LoadStruct<SmoeHeader>(start);
  if (header.version != kVersion1 && header.version != kVersion2) {
    return Corrupt("header.version is {}, expected {} or {}", uint32_t{header.version}, kVersion1,
                   kVersion2);
  }
  if (header.bits != 0 && header.bits != 2 && header.bits != 4) {
    return Corrupt("header.bits is {}, expected 2 or 4 (0 in the oldest files)",
                   uint32_t{header.bits});
  }
  if (header.group_size == 0 || header.group_size > tensor::kGroupSizeMax) {
    return Corrupt("header.group_size is {}, expected 1 to {}", uint32_t{header.group_size},
                   tensor::kGroupSizeMax);
  }
  return CheckOffsets(header, file_bytes, check_arch);
}

Status LoadRecords(Bytes metadata, Vault* vault) {
  const uint32_t count = vault->header.total_experts;
  vault->records.reserve(count);
  for (uint32_t i = 0; i < count; ++i) SMOE_TRY(LoadRecord(metadata, i, vault));
  SMOE_TRY(CheckOverlaps(*vault));
  SMOE_TRY(LoadLayers(vault));
  const uint32_t d_model = vault->header.d_model;
  if (d_model == 0) {
    vault->decisions.push_back(
        fmt::format("d_model: {} from the descriptors, the header has 0", vault->hidden_size));
  } else if (d_model != vault->hidden_size) {
    return Corrupt("header.d_model is {}, expected {}, the cols of the gate descriptors", d_model,
                   vault->hidden_size);
  }
  for (const ExpertRecord& record : vault->records) {
    vault->blobs_end = std::max(vault->blobs_end, record.byte_offset + record.padded_size);
  }
  return Ok();
}

}  // namespace smoe::store::vault
