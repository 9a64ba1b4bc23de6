#include "engine/parts.h"

#include <algorithm>
#include <utility>

#include "base/core_count.h"
#include "base/log.h"
#include "base/memory_limits.h"
#include "base/numa.h"
#include "engine/budget.h"
#include "engine/pages.h"
#include "experts/local_backend.h"
#include "store/model_size.h"

namespace smoe::engine {

namespace {

// The reference computes with what the files have; integers want codes to compute with.
checkpoint::TrunkFormats ChooseTrunkFormats(const EngineOptions& options) {
  using checkpoint::TrunkFormats;
  if (options.trunk_formats) return *options.trunk_formats;
  return TrunkFormats::All(options.arithmetic == experts::Arithmetic::kInt8
                               ? checkpoint::TrunkFormat::kInt8
                               : checkpoint::TrunkFormat::kSource);
}

experts::LocalBackendOptions BackendOptions(const Parts& parts, const EngineOptions& options) {
  return {.arithmetic = options.arithmetic,
          .row_count_max = parts.limits.row_count_max,
          .top_k = parts.files.config.num_experts_per_tok};
}

kernels::KvKind ChooseKvKind(const EngineOptions& options) {
  if (options.kv) return *options.kv;
  return options.arithmetic == experts::Arithmetic::kF32 ? kernels::KvKind::kF32
                                                         : kernels::KvKind::kF16;
}

// A token of context: its keys and values, and its share of the results of an attention part.
uint64_t ContextTokenBytes(const checkpoint::ModelConfig& config, kernels::KvKind kind) {
  const uint64_t part_bytes = config.num_attention_heads *
                              (config.head_dim * sizeof(float) + sizeof(kernels::AttentionState));
  return model::KvBytesPerToken({.layer_count = config.num_hidden_layers,
                                 .kv_width = config.num_key_value_heads * config.head_dim,
                                 .kind = kind}) +
         CeilDiv(part_bytes, kernels::kAttentionPart);
}

// Activations of a step: per row the experts' outputs and a few vectors of each width, and what
// the experts of one round take.
uint64_t ScratchBytes(const Parts& parts, const EngineOptions& options) {
  constexpr uint64_t kHiddenVectors = 7;
  constexpr uint64_t kHeadVectors = 5;
  constexpr uint64_t kWideVectors = 3;         // gate, up and codes of a feed-forward network
  constexpr uint64_t kRoundHiddenVectors = 2;  // a row's copy and its codes
  const checkpoint::ModelConfig& config = parts.files.config;
  const uint64_t dense = std::max(config.intermediate_size, config.shared_expert_intermediate_size);
  const uint64_t per_row = (config.num_experts_per_tok + kHiddenVectors) * config.hidden_size +
                           kHeadVectors * config.num_attention_heads * config.head_dim +
                           kWideVectors * dense;
  const uint64_t per_round_row =
      kRoundHiddenVectors * config.hidden_size + kWideVectors * config.moe_intermediate_size;
  return sizeof(float) *
         (parts.limits.row_count_max * per_row +
          experts::RoundRowCountMax(BackendOptions(parts, options)) * per_round_row +
          parts.logit_row_max * uint64_t{config.vocab_size});
}

Result<Budget> PlanMemory(const Parts& parts, const EngineOptions& options) {
  const checkpoint::ModelConfig& config = parts.files.config;
  const uint64_t positions = config.max_position_embeddings;
  if (positions != 0 && options.context_tokens > positions) {
    LogWarning("--context {}: the model was made for {} positions, beyond them answers degrade",
               options.context_tokens, positions);
  }
  BudgetDemand demand;
  SMOE_TRY_ASSIGN(demand.trunk_bytes,
                  model::Model::TrunkBytes(parts.files, ChooseTrunkFormats(options)));
  demand.scratch_bytes = ScratchBytes(parts, options);
  demand.kv_bytes_per_token = ContextTokenBytes(config, ChooseKvKind(options));
  demand.slot_bytes = parts.files.experts->slot_bytes();
  demand.expert_count = parts.files.experts->expert_count();
  demand.top_k = config.num_experts_per_tok;
  demand.max_positions = config.max_position_embeddings;
  demand.context_tokens = options.context_tokens;
  demand.cache_bytes = options.cache_bytes;
  demand.cache_experts = options.cache_experts;
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
  SMOE_TRY_ASSIGN(Budget budget, DivideMemory(demand, free));
  for (const std::string& warning : budget.warnings) LogWarning("{}", warning);
  return budget;
}

Status OpenQueue(const EngineOptions& options, Parts* parts) {
  if (options.make_queue) {
    SMOE_TRY_ASSIGN(parts->queue, options.make_queue());
  } else {
    SMOE_TRY_ASSIGN(parts->queue, io::ReadQueue::Open(options.io, {}));
  }
  parts->choices.push_back(fmt::format("reads: {}, {}", parts->queue->name(),
                                       parts->files.experts->direct_io() ? "direct" : "buffered"));
  return Ok();
}

// Each sequence may leave most of its last page empty.
size_t KvRoom(const Parts& parts, const Budget& budget) {
  return budget.context_tokens + (parts.batch_max - 1) * model::kKvPageTokens;
}

// All sequences at once, each with a last part that is not full.
size_t PartRoom(const Parts& parts, const Budget& budget) {
  return static_cast<size_t>(CeilDiv(budget.context_tokens, kernels::kAttentionPart)) +
         parts.batch_max;
}

Status OpenModel(const Budget& budget, const EngineOptions& options, Parts* parts) {
  SMOE_TRY_ASSIGN(parts->cache, experts::ExpertCache::Create(*parts->files.experts, *parts->queue,
                                                             {.slot_count = budget.slot_count}));
  if (InterleaveOverNodes(parts->cache->slab())) {
    parts->choices.push_back("memory nodes: the expert cache takes pages of all in turn");
  }
  SMOE_TRY_ASSIGN(parts->backend,
                  experts::MakeLocalBackend(*parts->files.experts, *parts->cache, *parts->pool,
                                            *parts->kernels, BackendOptions(*parts, options)));
  SMOE_TRY_ASSIGN(parts->model,
                  model::Model::Load(parts->files, *parts->pool, *parts->kernels, *parts->backend,
                                     {.row_count_max = parts->limits.row_count_max,
                                      .logit_row_max = parts->logit_row_max,
                                      .attention_part_max = PartRoom(*parts, budget),
                                      .arithmetic = options.arithmetic,
                                      .trunk_formats = ChooseTrunkFormats(options)}));
  const model::TrunkReport& trunk = parts->model->trunk_report();
  parts->choices.push_back(fmt::format(
      "trunk: {} in memory, format {} ({}): {}", SizeText(trunk.bytes),
      checkpoint::TrunkFormatsText(trunk.asked),
      options.trunk_formats ? "as asked" : "the default for this arithmetic", trunk.Text()));
  model::KvShape shape = parts->model->kv_shape();
  shape.kind = ChooseKvKind(options);
  SMOE_TRY_ASSIGN(parts->kv, model::KvCache::Create(shape, KvRoom(*parts, budget)));
  parts->context_tokens = budget.context_tokens;
  return Ok();
}

// Two operations for each weight: a product and a sum.
Result<TokenCost> CostOfToken(const Parts& parts) {
  const checkpoint::ModelConfig& config = parts.files.config;
  const model::RowCost row = parts.model->row_cost();
  SMOE_TRY_ASSIGN(const store::ModelSize size, store::MeasureSize(parts.files));
  const uint64_t expert_weights =
      uint64_t{3} * parts.files.experts->hidden_size() * parts.files.experts->intermediate_size();
  const uint64_t experts = parts.files.experts->layers().size() * config.num_experts_per_tok;
  // A score and a share of the sum for each element of a head's key and value.
  const uint64_t head_elements =
      uint64_t{config.num_hidden_layers} * config.num_attention_heads * config.head_dim;
  return TokenCost{
      .trunk_bytes = row.layer_bytes,
      .head_bytes = row.head_bytes,
      .expert_bytes = size.token_bytes,
      .kv_bytes_per_position = model::KvBytesPerToken(parts.kv->shape()),
      .operations = 2 * (row.layer_weights + experts * expert_weights),
      .head_operations = 2 * row.head_weights,
      .operations_per_position = 4 * head_elements,
  };
}

Result<EngineSetup> DescribeSetup(const Parts& parts, const EngineOptions& options) {
  EngineSetup setup;
  setup.model_path = parts.files.path;
  setup.expert_format = parts.files.experts->format_name();
  const model::RowCost row = parts.model->row_cost();
  setup.trunk_format = row.format;
  if (setup.trunk_format != row.head_format) {
    setup.trunk_format += fmt::format(", head {}", row.head_format);
  }
  setup.kernels = parts.kernels->name;
  setup.reads = fmt::format("{}, {}", parts.queue->name(),
                            parts.files.experts->direct_io() ? "direct" : "buffered");
  setup.arithmetic = experts::ArithmeticName(options.arithmetic);
  setup.kv = kernels::KvKindName(parts.kv->shape().kind);
  setup.thread_count = parts.pool->thread_count();
  setup.chunk_tokens = parts.limits.chunk_tokens;
  setup.slot_count = parts.cache->slot_count();
  setup.expert_count = parts.files.experts->expert_count();
  setup.trunk_bytes = parts.model->trunk_report().bytes;
  setup.slab_bytes = parts.cache->slab().size();
  SMOE_TRY_ASSIGN(setup.token_cost, CostOfToken(parts));
  return setup;
}

}  // namespace

Result<Parts> AssembleParts(store::ModelFiles files, const EngineOptions& options) {
  if (options.batch_max == 0) return Invalid("batch: 0, expected at least 1");
  Parts parts;
  parts.files = std::move(files);
  SMOE_TRY_ASSIGN(parts.kernels,
                  kernels::ChooseKernels(options.isa.empty() ? nullptr : options.isa.c_str()));
  const size_t threads = options.thread_count == 0 ? UsableCoreCount() : options.thread_count;
  SMOE_TRY_ASSIGN(parts.pool, ThreadPool::Create(threads));
  parts.batch_max = options.batch_max;
  parts.limits.chunk_tokens =
      options.chunk_tokens == 0 ? kChunkTokensDefault : options.chunk_tokens;
  parts.limits.row_count_max = parts.limits.chunk_tokens + parts.batch_max;
  parts.logit_row_max =
      std::max(parts.batch_max, options.evaluate ? parts.limits.chunk_tokens : size_t{0});
  parts.choices = parts.files.decisions;
  parts.choices.push_back(fmt::format("kernels: {}, {} threads, arithmetic {}", parts.kernels->name,
                                      threads, experts::ArithmeticName(options.arithmetic)));
  parts.choices.push_back(fmt::format("keys and values: {} ({})",
                                      kernels::KvKindName(ChooseKvKind(options)),
                                      options.kv ? "as asked" : "by the arithmetic"));
  SMOE_TRY(OpenQueue(options, &parts));
  SMOE_TRY_ASSIGN(const Budget budget, PlanMemory(parts, options));
  parts.choices.insert(parts.choices.end(), budget.choices.begin(), budget.choices.end());
  SMOE_TRY(OpenModel(budget, options, &parts));
  parts.choices.push_back(PagesSentence(parts.model->trunk_memory(), parts.cache->slab()));
  SMOE_TRY_ASSIGN(parts.setup, DescribeSetup(parts, options));
  return parts;
}

}  // namespace smoe::engine
