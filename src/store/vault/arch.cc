#include "store/vault/arch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"

namespace smoe::store::vault {

namespace {

constexpr uint32_t kKnownFlags = kArchNormTopkProb | kArchHasQkNorm | kArchHasDenseLayer0;

// Layers of any published model stay far below; bounds what a damaged count can ask for.
constexpr uint32_t kHiddenLayersMax = 4096;

Status CheckRange(const char* field, uint32_t value, uint32_t min, uint32_t max) {
  if (value >= min && value <= max) return Ok();
  if (min == max) return Corrupt("arch.{} is {}, expected {}", field, value, min);
  if (max == UINT32_MAX) return Corrupt("arch.{} is {}, expected at least {}", field, value, min);
  return Corrupt("arch.{} is {}, expected {} to {}", field, value, min, max);
}

// A name that came from a file and will be printed.
bool IsPlainName(std::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

Status CheckIdentity(const SmoeArchBlock& arch) {
  if (std::memcmp(arch.magic, kArchMagic, sizeof(kArchMagic)) != 0) {
    return Corrupt("arch.magic is {:02x}{:02x}{:02x}{:02x}, expected 53415243 (\"SARC\")",
                   arch.magic[0], arch.magic[1], arch.magic[2], arch.magic[3]);
  }
  SMOE_TRY(CheckRange("block_version", arch.block_version, kArchVersion, kArchVersion));
  return CheckRange("block_size", arch.block_size, sizeof(arch), sizeof(arch));
}

Status CheckNumbers(const SmoeArchBlock& arch, uint32_t max_experts_per_layer) {
  if ((arch.flags & ~kKnownFlags) != 0) {
    return Corrupt("arch.flags is 0x{:x}, expected only bits of 0x{:x}", uint32_t{arch.flags},
                   kKnownFlags);
  }
  const float theta = arch.rope_theta;
  if (!std::isfinite(theta) || theta <= 0) {
    return Corrupt("arch.rope_theta is {}, expected a finite number above 0", theta);
  }
  const float eps = arch.rms_norm_eps;
  if (!std::isfinite(eps) || eps < 0) {
    return Corrupt("arch.rms_norm_eps is {}, expected a finite number of at least 0", eps);
  }
  constexpr uint32_t kAny = UINT32_MAX;
  SMOE_TRY(CheckRange("num_heads", arch.num_heads, 1, kAny));
  SMOE_TRY(CheckRange("num_kv_heads", arch.num_kv_heads, 1, kAny));
  if (arch.num_heads % arch.num_kv_heads != 0) {
    return Corrupt("arch.num_kv_heads is {}, expected a divisor of num_heads {}",
                   uint32_t{arch.num_kv_heads}, uint32_t{arch.num_heads});
  }
  SMOE_TRY(CheckRange("head_dim", arch.head_dim, 1, kArchHeadDimMax));
  SMOE_TRY(CheckRange("moe_top_k", arch.moe_top_k, 1, kArchTopKMax));
  if (arch.moe_top_k > max_experts_per_layer) {
    return Corrupt("arch.moe_top_k is {}, expected at most the {} experts of a layer",
                   uint32_t{arch.moe_top_k}, max_experts_per_layer);
  }
  SMOE_TRY(CheckRange("activation", arch.activation, 0, 0));
  return CheckRange("num_hidden_layers", arch.num_hidden_layers, 1, kHiddenLayersMax);
}

}  // namespace

SmoeArchBlock EmptyArchBlock() {
  SmoeArchBlock arch = {};
  std::memcpy(arch.magic, kArchMagic, sizeof(kArchMagic));
  arch.block_version = kArchVersion;
  arch.block_size = sizeof(SmoeArchBlock);
  return arch;
}

std::string ArchModelType(const SmoeArchBlock& arch) {
  const char* end = std::find(arch.model_type, arch.model_type + sizeof(arch.model_type), '\0');
  return std::string(arch.model_type, static_cast<size_t>(end - arch.model_type));
}

Status CheckArchBlock(const SmoeArchBlock& arch, uint32_t max_experts_per_layer) {
  SMOE_TRY(CheckIdentity(arch));
  SMOE_TRY(CheckNumbers(arch, max_experts_per_layer));
  const std::string model_type = ArchModelType(arch);
  if (!IsPlainName(model_type)) {
    std::string hex;
    for (char c : model_type) hex += fmt::format("{:02x}", static_cast<uint8_t>(c));
    return Corrupt("arch.model_type is the bytes {}, expected letters, digits, '_', '-' and '.'",
                   hex);
  }
  if (!AllZero(AsBytes(std::span<const uint8_t>(arch.reserved)))) {
    return Corrupt("arch.reserved is not zero, expected 44 zero bytes");
  }
  return Ok();
}

Result<SmoeArchBlock> BuildArchBlock(const checkpoint::ModelConfig& config,
                                     const ArchFacts& facts) {
  if (!config.hidden_act.empty() && config.hidden_act != "silu" && config.hidden_act != "swish") {
    return Unsupported("hidden_act is \"{}\"; a vault's arch block can only say \"silu\"",
                       config.hidden_act);
  }
  if (config.num_experts_per_tok == 0 || config.num_experts_per_tok > kArchTopKMax) {
    return Unsupported("num_experts_per_tok is {}; a vault's arch block holds 1 to {}",
                       config.num_experts_per_tok, kArchTopKMax);
  }
  if (config.head_dim == 0 || config.head_dim > kArchHeadDimMax) {
    return Unsupported("head_dim is {}; a vault's arch block holds 1 to {}", config.head_dim,
                       kArchHeadDimMax);
  }
  SmoeArchBlock arch = EmptyArchBlock();
  arch.flags = (config.norm_topk_prob ? kArchNormTopkProb : 0) |
               (facts.has_qk_norm ? kArchHasQkNorm : 0) |
               (facts.has_dense_layer_0 ? kArchHasDenseLayer0 : 0);
  arch.rope_theta = static_cast<float>(config.rope.theta);
  arch.num_heads = config.num_attention_heads;
  arch.num_kv_heads = config.num_key_value_heads;
  arch.head_dim = config.head_dim;
  arch.moe_top_k = config.num_experts_per_tok;
  arch.moe_ffn_dim = facts.moe_ffn_dim != 0 ? facts.moe_ffn_dim : config.moe_intermediate_size;
  arch.dense_ffn_dim = config.intermediate_size;
  arch.shared_expert_ffn_dim = config.shared_expert_intermediate_size;
  arch.num_hidden_layers = config.num_hidden_layers;
  arch.rms_norm_eps = static_cast<float>(config.rms_norm_eps);
  const size_t length = std::min(config.model_type.size(), sizeof(arch.model_type));
  std::memcpy(arch.model_type, config.model_type.data(), length);
  return arch;
}

uint32_t HeaderFfnDim(const checkpoint::ModelConfig& config, bool has_dense_layers,
                      uint32_t expert_width) {
  if (has_dense_layers && config.intermediate_size != 0) return config.intermediate_size;
  if (config.shared_expert_intermediate_size != 0) return config.shared_expert_intermediate_size;
  return expert_width;
}

}  // namespace smoe::store::vault
