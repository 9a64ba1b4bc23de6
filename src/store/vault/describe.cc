#include <fmt/format.h>

#include "store/vault/arch.h"
#include "store/vault/vault.h"

namespace smoe::store::vault {

namespace {

Json DescribeHeader(const SmoeHeader& header) {
  Json json;
  json.Set("version", uint32_t{header.version});
  json.Set("num_moe_layers", uint32_t{header.num_moe_layers});
  json.Set("max_experts_per_layer", uint32_t{header.max_experts_per_layer});
  json.Set("total_experts", uint32_t{header.total_experts});
  json.Set("table_offset", uint64_t{header.table_offset});
  json.Set("data_offset", uint64_t{header.data_offset});
  json.Set("group_size", uint32_t{header.group_size});
  json.Set("bits", uint32_t{header.bits});
  json.Set("d_model", uint32_t{header.d_model});
  json.Set("vocab_size", uint32_t{header.vocab_size});
  json.Set("ffn_dim", uint32_t{header.ffn_dim});
  json.Set("reserved_ext", uint32_t{header.reserved_ext});
  return json;
}

Json DescribeArch(const SmoeArchBlock& arch) {
  Json json;
  json.Set("block_version", uint32_t{arch.block_version});
  json.Set("block_size", uint32_t{arch.block_size});
  json.Set("flags", uint32_t{arch.flags});
  json.Set("norm_topk_prob", (arch.flags & kArchNormTopkProb) != 0);
  json.Set("has_qk_norm", (arch.flags & kArchHasQkNorm) != 0);
  json.Set("has_dense_layer_0", (arch.flags & kArchHasDenseLayer0) != 0);
  json.Set("rope_theta", double{arch.rope_theta});
  json.Set("num_heads", uint32_t{arch.num_heads});
  json.Set("num_kv_heads", uint32_t{arch.num_kv_heads});
  json.Set("head_dim", uint32_t{arch.head_dim});
  json.Set("moe_top_k", uint32_t{arch.moe_top_k});
  json.Set("moe_ffn_dim", uint32_t{arch.moe_ffn_dim});
  json.Set("dense_ffn_dim", uint32_t{arch.dense_ffn_dim});
  json.Set("shared_expert_ffn_dim", uint32_t{arch.shared_expert_ffn_dim});
  json.Set("activation", uint32_t{arch.activation});
  json.Set("num_hidden_layers", uint32_t{arch.num_hidden_layers});
  json.Set("rms_norm_eps", double{arch.rms_norm_eps});
  json.Set("model_type", ArchModelType(arch));
  return json;
}

Json DescribeRecord(const ExpertRecord& record) {
  constexpr const char* kProjNames[kTensorsPerExpert] = {"gate", "up", "down"};
  Json json;
  json.Set("layer", record.id.layer_index);
  json.Set("expert", record.id.expert_index);
  json.Set("byte_offset", record.byte_offset);
  json.Set("raw_size", record.raw_size);
  json.Set("padded_size", record.padded_size);
  json.Set("num_groups", record.num_groups);
  for (uint32_t j = 0; j < kTensorsPerExpert; ++j) {
    const TensorPlace& place = record.tensors[j];
    Json tensor;
    tensor.Set("rows", place.rows);
    tensor.Set("cols", place.cols);
    tensor.Set("packed_offset", place.packed_offset);
    tensor.Set("packed_size", place.packed_size);
    tensor.Set("scales_offset", place.scales_offset);
    tensor.Set("scales_size", place.scales_size);
    json.Set(kProjNames[j], std::move(tensor));
  }
  return json;
}

Json DescribeExperts(const Vault& vault) {
  Json json;
  json.Set("count", static_cast<uint64_t>(vault.records.size()));
  json.Set("format",
           fmt::format("smoe-q{} group {}", static_cast<int>(vault.bits), vault.group_size));
  json.Set("hidden_size", vault.hidden_size);
  json.Set("intermediate_size", vault.intermediate_size);
  json.Set("bytes_each", vault.records.front().raw_size);
  json.Set("blobs_end", vault.blobs_end);
  json.Set("partial", vault.is_partial());
  if (vault.is_partial()) json.Set("missing", vault.missing);
  Json layers{Json::Array()};
  for (const VaultLayer& layer : vault.layers) {
    Json entry;
    entry.Set("layer", layer.layer_index);
    entry.Set("experts", layer.expert_count);
    layers.Append(std::move(entry));
  }
  json.Set("layers", std::move(layers));
  return json;
}

Json DescribeAnnex(const Annex& annex) {
  Json sections{Json::Array()};
  for (const AnnexSection& section : annex.sections) {
    Json entry;
    entry.Set("name", section.name);
    entry.Set("offset", section.offset);
    entry.Set("size", section.size);
    entry.Set("checksum", fmt::format("{:016x}", section.checksum));
    sections.Append(std::move(entry));
  }
  Json json;
  json.Set("offset", annex.offset);
  json.Set("metadata_checksum", fmt::format("{:016x}", annex.metadata_checksum));
  json.Set("sections", std::move(sections));
  return json;
}

Json Sentences(const std::vector<std::string>& sentences) {
  Json json{Json::Array()};
  for (const std::string& sentence : sentences) json.Append(sentence);
  return json;
}

}  // namespace

Json Describe(const Vault& vault, bool list_experts) {
  Json json;
  json.Set("file", vault.path);
  json.Set("bytes", vault.file_bytes);
  json.Set("header", DescribeHeader(vault.header));
  json.Set("arch", vault.arch ? DescribeArch(*vault.arch) : Json());
  json.Set("experts", DescribeExperts(vault));
  json.Set("annex", vault.annex ? DescribeAnnex(*vault.annex) : Json());
  json.Set("decisions", Sentences(vault.decisions));
  json.Set("warnings", Sentences(vault.warnings));
  if (!list_experts) return json;
  Json table{Json::Array()};
  for (const ExpertRecord& record : vault.records) table.Append(DescribeRecord(record));
  json.Set("table", std::move(table));
  return json;
}

}  // namespace smoe::store::vault
