#include <algorithm>
#include <cstring>

#include "store/vault/writer.h"

namespace smoe::store::vault {

namespace {

bool Before(const ExpertId& a, const ExpertId& b) {
  return a.layer_index != b.layer_index ? a.layer_index < b.layer_index
                                        : a.expert_index < b.expert_index;
}

Status CheckExperts(const VaultSpec& spec) {
  if (spec.experts.empty()) return Invalid("vault plan: no experts");
  if (spec.experts.size() > UINT32_MAX) {
    return Invalid("vault plan: {} experts, a table holds {}", spec.experts.size(), UINT32_MAX);
  }
  uint64_t layer_count = 1;
  uint32_t expert_index_max = 0;
  for (size_t i = 0; i < spec.experts.size(); ++i) {
    expert_index_max = std::max(expert_index_max, spec.experts[i].expert_index);
    if (i == 0) continue;
    if (!Before(spec.experts[i - 1], spec.experts[i])) {
      return Invalid("vault plan: expert {} of layer {} does not come after the one before it",
                     spec.experts[i].expert_index, spec.experts[i].layer_index);
    }
    if (spec.experts[i].layer_index != spec.experts[i - 1].layer_index) ++layer_count;
  }
  if (spec.num_moe_layers < layer_count || spec.max_experts_per_layer <= expert_index_max) {
    return Invalid("vault plan: {} layers with expert ids up to {}, the topology has {} and {}",
                   layer_count, expert_index_max, spec.num_moe_layers, spec.max_experts_per_layer);
  }
  return Ok();
}

// Offset past a part of `size` bytes at `offset`; both stay far below 2^63 by CheckSizes.
uint64_t Place(uint64_t size, uint64_t offset, uint64_t* part_offset, uint64_t* part_size) {
  *part_offset = offset;
  *part_size = size;
  return offset + size;
}

}  // namespace

Result<VaultPlan> VaultPlan::Create(VaultSpec spec) {
  SMOE_TRY(CheckExperts(spec));
  SMOE_TRY(tensor::CheckGroupSize(spec.group_size));
  constexpr uint64_t kWeightsMax = uint64_t{1} << 40;  // of one matrix: 2^20 by 2^20
  const uint64_t weight_count = uint64_t{spec.hidden_size} * spec.intermediate_size;
  if (weight_count == 0 || weight_count > kWeightsMax) {
    return Invalid("vault plan: experts of {} x {} weights, expected 1 to {}",
                   spec.intermediate_size, spec.hidden_size, kWeightsMax);
  }
  VaultPlan plan;
  uint64_t cursor = 0;
  for (uint32_t i = 0; i < kTensorsPerExpert; ++i) {
    const bool is_down = i == 2;
    TensorPlace& part = plan.tensors_[i];
    part.rows = is_down ? spec.hidden_size : spec.intermediate_size;
    part.cols = is_down ? spec.intermediate_size : spec.hidden_size;
    cursor = Place(tensor::PackedBytes(weight_count, spec.bits), cursor, &part.packed_offset,
                   &part.packed_size);
    cursor = Place(tensor::ScaleBytes(weight_count, spec.group_size), cursor, &part.scales_offset,
                   &part.scales_size);
  }
  plan.group_count_ = kTensorsPerExpert * CeilDiv(weight_count, spec.group_size);
  const uint64_t count = spec.experts.size();
  const uint64_t table_end =
      kTableOffset + count * (sizeof(ExpertEntry) + kTensorsPerExpert * sizeof(TensorDescriptor));
  plan.arch_offset_ = RoundUp(table_end, kArchAlignment);
  plan.data_offset_ = RoundUp(plan.arch_offset_ + sizeof(SmoeArchBlock), kBlobAlignment);
  if (plan.arch_offset_ > UINT32_MAX) {
    return Unsupported("vault plan: {} experts put the arch block beyond 4 GiB", count);
  }
  plan.raw_size_ = cursor;
  plan.padded_size_ = RoundUp(cursor, kBlobAlignment);
  const auto blobs = CheckedMul(count, plan.padded_size_);
  if (!blobs || *blobs > (uint64_t{1} << 62)) {
    return Invalid("vault plan: {} experts of {} bytes are more than a file can hold", count,
                   plan.padded_size_);
  }
  plan.blobs_end_ = plan.data_offset_ + *blobs;
  plan.spec_ = std::move(spec);
  return plan;
}

std::vector<std::byte> VaultPlan::Metadata() const {
  std::vector<std::byte> metadata(data_offset_);
  SmoeHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion2;
  header.num_moe_layers = spec_.num_moe_layers;
  header.max_experts_per_layer = spec_.max_experts_per_layer;
  header.total_experts = static_cast<uint32_t>(expert_count());
  header.table_offset = kTableOffset;
  header.data_offset = data_offset_;
  header.group_size = spec_.group_size;
  header.bits = static_cast<uint32_t>(spec_.bits);
  header.d_model = spec_.hidden_size;
  header.vocab_size = spec_.vocab_size;
  header.ffn_dim = spec_.ffn_dim;
  header.reserved_ext = static_cast<uint32_t>(arch_offset_);
  StoreStruct(metadata, 0, header);

  uint64_t descriptor_offset = kTableOffset + expert_count() * sizeof(ExpertEntry);
  for (size_t i = 0; i < expert_count(); ++i) {
    ExpertEntry entry = {};
    entry.layer_id = spec_.experts[i].layer_index;
    entry.expert_id = spec_.experts[i].expert_index;
    entry.byte_offset = blob_offset(i);
    entry.raw_size = raw_size_;
    entry.padded_size = padded_size_;
    entry.group_size = spec_.group_size;
    entry.num_groups = group_count_;
    StoreStruct(metadata, kTableOffset + i * sizeof(ExpertEntry), entry);
    for (uint8_t j = 0; j < kTensorsPerExpert; ++j) {
      const TensorPlace& part = tensors_[j];
      const TensorDescriptor descriptor{j,
                                        2,
                                        {0, 0},
                                        part.rows,
                                        part.cols,
                                        part.packed_offset,
                                        part.packed_size,
                                        part.scales_offset,
                                        part.scales_size};
      StoreStruct(metadata, descriptor_offset, descriptor);
      descriptor_offset += sizeof(TensorDescriptor);
    }
  }
  StoreStruct(metadata, arch_offset_, spec_.arch);
  return metadata;
}

uint64_t VaultPlan::FileBytesWithAnnex(std::span<const uint64_t> section_sizes) const {
  const uint64_t checksums = sizeof(ChecksumsHead) + expert_count() * sizeof(uint64_t);
  uint64_t cursor = blobs_end_ + RoundUp(checksums, kBlobAlignment);
  for (const uint64_t size : section_sizes) cursor += RoundUp(size, kBlobAlignment);
  const uint64_t directory = (section_sizes.size() + 1) * sizeof(AnnexDirectoryEntry);
  return cursor + RoundUp(directory + sizeof(AnnexFooter), kBlobAlignment);
}

}  // namespace smoe::store::vault
