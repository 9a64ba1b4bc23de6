#include "store/model_fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/memory.h"
#include "checkpoint/expert_names.h"
#include "io/file.h"

namespace smoe::store {

namespace {

constexpr uint64_t kSampleBytes = io::kDirectAlignment;  // experts may be open for direct reads

// All that changes a number, and nothing else.
std::string ConfigText(const checkpoint::ModelConfig& config) {
  const checkpoint::RopeConfig& rope = config.rope;
  std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} "
      "{} {} {} | {}",
      static_cast<int>(config.family), config.hidden_act, config.vocab_size, config.hidden_size,
      config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads,
      config.head_dim, config.rms_norm_eps, config.clip_qkv,  //
      static_cast<int>(rope.type), rope.theta, rope.factor, rope.original_positions, rope.beta_fast,
      rope.beta_slow, rope.attention_factor.value_or(-1), rope.mscale.value_or(-1),
      rope.mscale_all_dim.value_or(-1), rope.truncate, rope.partial_rotary_factor,  //
      config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size,
      config.intermediate_size, config.shared_expert_intermediate_size, config.norm_topk_prob,
      static_cast<int>(config.scoring), config.routed_scaling_factor, config.n_group,
      config.topk_group, config.tie_word_embeddings, config.sliding_window);
  for (const bool slides : config.layer_is_sliding) text += slides ? 'S' : 'F';
  return text;
}

class Sampler {
 public:
  explicit Sampler(AlignedBuffer buffer) : buffer_(std::move(buffer)) {}

  void Add(std::string_view text) {
    const uint64_t size = text.size();  // so that no two texts run into each other
    checksum_.Add(std::as_bytes(std::span(&size, 1)));
    checksum_.Add(AsBytes(text));
  }

  Status AddTensor(const checkpoint::TensorFiles& trunk, const checkpoint::TensorInfo& tensor) {
    const uint64_t count = std::min(kSampleBytes, tensor.size);
    const MutableBytes into = buffer_.bytes().first(count);
    SMOE_TRY(trunk.Read(tensor, 0, into));
    checksum_.Add(into);
    if (tensor.size == count) return Ok();
    SMOE_TRY(trunk.Read(tensor, tensor.size - count, into));
    checksum_.Add(into);
    return Ok();
  }

  Status AddExpert(const ExpertStore& store, ExpertId id) {
    const ExpertLocation location = store.Locate(id);
    for (uint32_t i = 0; i < location.extent_count; ++i) {
      const ExpertExtent& extent = location.extents[i];
      const MutableBytes into = buffer_.bytes().first(std::min(kSampleBytes, extent.size));
      SMOE_TRY(io::ReadFd(extent.fd, store.path(), extent.offset, into));
      checksum_.Add(into);
    }
    return Ok();
  }

  uint64_t Digest() const { return checksum_.Digest(); }

 private:
  AlignedBuffer buffer_;
  ChecksumStream checksum_;
};

}  // namespace

Result<uint64_t> ModelFingerprint(const ModelFiles& files) {
  SMOE_TRY_ASSIGN(AlignedBuffer buffer, AlignedBuffer::Create(kSampleBytes, "fingerprint"));
  Sampler sampler(std::move(buffer));
  sampler.Add(ConfigText(files.config));
  sampler.Add(files.experts->format_name());
  for (const auto& [name, tensor] : files.trunk.tensors()) {
    if (checkpoint::ParseExpertName(name)) continue;  // below, as the store has them
    sampler.Add(name);
    sampler.Add(tensor::DTypeName(tensor.dtype));
    sampler.Add(tensor::ShapeText(tensor.shape));
    SMOE_TRY(sampler.AddTensor(files.trunk, tensor));
  }
  for (const StoreLayer& layer : files.experts->layers()) {
    SMOE_TRY(sampler.AddExpert(*files.experts, {layer.layer_index, 0}));
    SMOE_TRY(sampler.AddExpert(*files.experts, {layer.layer_index, layer.expert_count - 1}));
  }
  return sampler.Digest();
}

}  // namespace smoe::store
