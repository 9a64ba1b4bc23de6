#include "engine/model_demand.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/memory.h"
#include "model/embedding_rows.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "tensor/quantise.h"
#include "tensor/weights.h"

namespace smoe::engine {

namespace {

using checkpoint::TrunkFormat;
using checkpoint::TrunkPart;

// Results of one part of attention, kept until they are merged.
uint64_t AttentionPartBytes(const checkpoint::ModelConfig& config) {
  return config.num_attention_heads *
         (config.head_dim * sizeof(float) + sizeof(kernels::AttentionState));
}

// A token of context: its keys and values, and its share of the results of an attention part.
uint64_t ContextTokenBytes(const checkpoint::ModelConfig& config, kernels::KvKind kind) {
  return model::KvBytesPerToken({.layer_count = config.num_hidden_layers,
                                 .kv_width = config.num_key_value_heads * config.head_dim,
                                 .key_value_heads = config.num_key_value_heads,
                                 .kind = kind}) +
         CeilDiv(AttentionPartBytes(config), kernels::kAttentionPart);
}

// What a row of a step takes: the experts' outputs, and a few vectors of each width.
uint64_t RowBytes(const checkpoint::ModelConfig& config) {
  constexpr uint64_t kHiddenVectors = 7;
  constexpr uint64_t kHeadVectors = 5;
  constexpr uint64_t kWideVectors = 3;  // gate, up and codes of a feed-forward network
  const uint64_t dense = std::max(config.intermediate_size, config.shared_expert_intermediate_size);
  return sizeof(float) *
         ((config.num_experts_per_tok + kHiddenVectors) * config.hidden_size +
          kHeadVectors * config.num_attention_heads * config.head_dim + kWideVectors * dense);
}

// What a row takes of the memory of the experts that are computed together.
uint64_t RoundRowBytes(const checkpoint::ModelConfig& config) {
  constexpr uint64_t kHiddenVectors = 2;  // a row's copy and its codes
  constexpr uint64_t kWideVectors = 3;
  return sizeof(float) *
         (kHiddenVectors * config.hidden_size + kWideVectors * config.moe_intermediate_size);
}

uint64_t ScratchBytes(const checkpoint::ModelConfig& config, const EngineOptions& options,
                      size_t chunk_tokens) {
  return options.batch_max * AttentionPartBytes(config) +
         RowCountMax(options, chunk_tokens) * RowBytes(config) +
         experts::RoundRowCountMax(BackendOptions(config, options, chunk_tokens)) *
             RoundRowBytes(config) +
         sizeof(float) * LogitRowMax(options, chunk_tokens) * uint64_t{config.vocab_size};
}

// Steps of fewer rows use the first rows of each array, and may touch a huge page behind them.
uint64_t TouchedBytes(const checkpoint::ModelConfig& config, const EngineOptions& options,
                      size_t row_count, size_t chunk_tokens) {
  constexpr uint64_t kLargeArrays = 20;
  const uint64_t rows_max = RowCountMax(options, chunk_tokens);
  const uint64_t rows = std::min<uint64_t>(row_count, rows_max);
  const uint64_t all = ScratchBytes(config, options, chunk_tokens);
  return std::min(all, all - (rows_max - rows) * RowBytes(config) + kLargeArrays * kHugePageBytes);
}

// YaRN stretches the positions of the training; configs do not always say the product.
uint64_t MaxPositions(const checkpoint::ModelConfig& config) {
  constexpr double kMost = 0x1p40;
  if (config.rope.type != checkpoint::RopeType::kYarn) return config.max_position_embeddings;
  const double stretched =
      std::min(kMost, config.rope.factor * static_cast<double>(config.rope.original_positions));
  return std::max(config.max_position_embeddings, static_cast<uint64_t>(stretched));
}

uint64_t MatrixBytes(TrunkFormat format, uint64_t rows, uint64_t cols) {
  const uint64_t count = rows * cols;
  if (format == TrunkFormat::kQ4 && cols % checkpoint::kQ4Group == 0) {
    return tensor::PackedBytes(count, tensor::SmoeBits::kQ4) +
           tensor::ScaleBytes(count, checkpoint::kQ4Group);
  }
  if (format == TrunkFormat::kInt8 || format == TrunkFormat::kQ4) {
    return tensor::Int8CodeBytes(rows, cols).value_or(count) +
           tensor::Int8ScaleBytes(rows, cols).value_or(count);
  }
  return 2 * count;
}

}  // namespace

checkpoint::TrunkFormats ChooseTrunkFormats(const EngineOptions& options) {
  // The reference computes with what the files have; integers want codes to compute with.
  if (options.trunk_formats) return *options.trunk_formats;
  return checkpoint::TrunkFormats::All(
      options.arithmetic == experts::Arithmetic::kInt8 ? TrunkFormat::kInt8 : TrunkFormat::kSource);
}

kernels::KvKind ChooseKvKind(const EngineOptions& options) {
  if (options.kv) return *options.kv;
  return options.arithmetic == experts::Arithmetic::kF32 ? kernels::KvKind::kF32
                                                         : kernels::KvKind::kF16;
}

size_t RowCountMax(const EngineOptions& options, size_t chunk_tokens) {
  return chunk_tokens + options.batch_max;
}

size_t LogitRowMax(const EngineOptions& options, size_t chunk_tokens) {
  return std::max(options.batch_max, options.evaluate ? chunk_tokens : size_t{0});
}

experts::LocalBackendOptions BackendOptions(const checkpoint::ModelConfig& config,
                                            const EngineOptions& options, size_t chunk_tokens) {
  return {.arithmetic = options.arithmetic,
          .row_count_max = RowCountMax(options, chunk_tokens),
          .top_k = config.num_experts_per_tok,
          .prefetch = options.prefetch};
}

BudgetDemand DemandOf(const checkpoint::ModelConfig& config, const EngineOptions& options) {
  BudgetDemand demand;
  demand.scratch_bytes = [config, options](size_t chunk_tokens) {
    return ScratchBytes(config, options, chunk_tokens);
  };
  demand.touched_bytes = [config, options](size_t row_count, size_t chunk_tokens) {
    return TouchedBytes(config, options, row_count, chunk_tokens);
  };
  demand.kv_bytes_per_token = ContextTokenBytes(config, ChooseKvKind(options));
  // Each sequence may leave most of its last page empty.
  demand.kv_spare_tokens = options.batch_max * model::kKvPageTokens;
  demand.top_k = config.num_experts_per_tok;
  demand.max_positions = MaxPositions(config);
  demand.request_count = static_cast<uint32_t>(std::min<size_t>(options.batch_max, UINT32_MAX));
  demand.context_tokens = options.context_tokens;
  demand.chunk_tokens = options.chunk_tokens;
  demand.cache_bytes = options.cache_bytes;
  demand.cache_experts = options.cache_experts;
  return demand;
}

Result<BudgetDemand> DemandOfFiles(const store::ModelFiles& files, const EngineOptions& options) {
  BudgetDemand demand = DemandOf(files.config, options);
  SMOE_TRY_ASSIGN(const model::TrunkSize trunk,
                  model::Model::MeasureTrunk(files, ChooseTrunkFormats(options)));
  demand.trunk_bytes = trunk.bytes;
  demand.embedding_bytes = trunk.embedding_bytes;
  demand.slot_bytes = files.experts->slot_bytes();
  demand.expert_count = files.experts->expert_count();
  demand.layer_count = static_cast<uint32_t>(std::max<size_t>(1, files.experts->layers().size()));
  demand.reads_page_cache = !files.experts->direct_io();
  return demand;
}

ShapeTrunk TrunkOfShape(const checkpoint::ModelConfig& config,
                        const checkpoint::TrunkFormats& formats) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t q = uint64_t{config.num_attention_heads} * config.head_dim;
  const uint64_t kv = uint64_t{config.num_key_value_heads} * config.head_dim;
  const TrunkFormat attention = formats.Of(TrunkPart::kAttention);
  const TrunkFormat dense = formats.Of(TrunkPart::kDense);
  const uint64_t shared = config.shared_expert_intermediate_size;
  const uint64_t router = sizeof(uint16_t) * hidden * config.num_experts;
  const uint64_t floats = 2 * hidden + 2 * config.head_dim;
  const uint64_t layer = MatrixBytes(attention, q, hidden) +
                         2 * MatrixBytes(attention, kv, hidden) +
                         MatrixBytes(formats.Of(TrunkPart::kOutput), hidden, q) +
                         2 * MatrixBytes(dense, shared, hidden) +
                         MatrixBytes(dense, hidden, shared) + router + sizeof(float) * floats;
  const uint64_t head =
      MatrixBytes(formats.Of(TrunkPart::kHead), config.vocab_size, hidden) + sizeof(float) * hidden;
  ShapeTrunk trunk;
  trunk.token_read_bytes = config.num_hidden_layers * layer + head;
  trunk.bytes = trunk.token_read_bytes;
  if (config.tie_word_embeddings) return trunk;
  const uint64_t embedding =
      MatrixBytes(formats.Of(TrunkPart::kEmbedding), config.vocab_size, hidden);
  trunk.bytes += embedding;
  trunk.embedding_bytes = embedding - std::min(embedding, model::EmbeddingRowsBytes(hidden));
  return trunk;
}

}  // namespace smoe::engine
