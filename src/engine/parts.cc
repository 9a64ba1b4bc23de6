#include "engine/parts.h"

#include <algorithm>
#include <utility>

#include "base/core_count.h"
#include "base/log.h"
#include "base/memory_limits.h"
#include "base/memory_pressure.h"
#include "base/numa.h"
#include "engine/budget.h"
#include "engine/model_demand.h"
#include "engine/pages.h"
#include "experts/local_backend.h"
#include "io/read_choices.h"
#include "store/model_size.h"

namespace smoe::engine {

namespace {

Result<Budget> PlanMemory(const EngineOptions& options, Parts* parts) {
  SMOE_TRY_ASSIGN(parts->demand, DemandOfFiles(parts->files, options));
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
  if (options.memory_bytes && *options.memory_bytes > free.bytes + ResidentBytes()) {
    LogWarning("--memory: {} asked, {} are free ({}); the system may swap, or end the program",
               SizeText(*options.memory_bytes), SizeText(free.bytes), free.reason);
  }
  SMOE_TRY_ASSIGN(Budget budget, DivideMemory(parts->demand, LimitOf(options.memory_bytes, free,
                                                                     ResidentBytes())));
  if (budget.leaves_embedding) parts->demand.trunk_bytes -= parts->demand.embedding_bytes;
  for (const std::string& warning : budget.warnings) LogWarning("{}", warning);
  return budget;
}

Status OpenQueue(const Budget& budget, const EngineOptions& options, Parts* parts) {
  store::ExpertStore& experts = *parts->files.experts;
  if (options.make_queue) {
    SMOE_TRY_ASSIGN(parts->queue, options.make_queue());
    parts->reads.setting.direct = experts.direct_io();
    parts->reads_text =
        fmt::format("{}, {}", parts->queue->name(), experts.direct_io() ? "direct" : "buffered");
    parts->choices.push_back("reads: " + parts->reads_text);
    return Ok();
  }
  SMOE_TRY_ASSIGN(Reads reads,
                  OpenReads(experts, {.backend = options.io,
                                      .is_streamed = budget.slot_count < experts.expert_count(),
                                      .choices_path = io::ReadChoicesPath()}));
  parts->queue = std::move(reads.queue);
  parts->reads = std::move(reads.setup);
  parts->reads_text = parts->reads.Text();
  parts->choices.push_back(fmt::format("reads: {} ({})", parts->reads_text, parts->reads.reason));
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

// Does somebody look after the cache's size? Tests bring their own queue, and want no other cache
// than they asked for.
bool HasKeeper(const EngineOptions& options) { return options.guard && !options.make_queue; }

void OpenKeeper(const Budget& budget, const EngineOptions& options, Parts* parts) {
  constexpr uint64_t kFloorDivisor = 128;
  constexpr uint64_t kFloorBytesMax = uint64_t{128} << 20;
  if (!HasKeeper(options)) return;
  parts->keeper = std::make_unique<CacheKeeper>(
      *parts->cache, MemoryGuard::Options{.slot_count = parts->cache->slot_count(),
                                          .slot_count_min = budget.slot_count_min,
                                          .slot_bytes = parts->files.experts->slot_bytes(),
                                          .floor_bytes = std::min(
                                              budget.limit.bytes / kFloorDivisor, kFloorBytesMax),
                                          .reads_page_cache = !parts->files.experts->direct_io()});
}

// What a drive of 2 GB/s fills in a quarter of a second: the pages are there before its reads, and
// who asks for little takes little.
constexpr uint64_t kPagesAheadBytes = uint64_t{512} << 20;

Status OpenModel(const Budget& budget, const EngineOptions& options, Parts* parts) {
  // What is lent must be taken back some day.
  const uint32_t slot_count = HasKeeper(options) ? budget.slot_count_max : budget.slot_count;
  const uint32_t slot_capacity =
      HasKeeper(options) ? SlotsBesideHeld(parts->demand, budget, parts->demand.trunk_bytes) : 0;
  const uint32_t guess_depth = options.make_queue ? 0 : parts->reads.setting.depth;
  SMOE_TRY_ASSIGN(parts->cache, experts::ExpertCache::Create(*parts->files.experts, *parts->queue,
                                                             {.slot_count = slot_count,
                                                              .slot_capacity = slot_capacity,
                                                              .guess_depth = guess_depth,
                                                              .pool = parts->pool.get()}));
  if (InterleaveOverNodes(parts->cache->slab())) {
    parts->choices.push_back("memory nodes: the expert cache takes pages of all in turn");
  }
  // Memory that may not be there is for the guard to see first.
  SMOE_TRY_ASSIGN(const FreeMemory free, ReadFreeMemory());
  if (budget.used_bytes() <= free.bytes + ResidentBytes()) {
    parts->cache->TakePagesAhead(kPagesAheadBytes);
  }
  SMOE_TRY_ASSIGN(parts->backend,
                  experts::MakeLocalBackend(
                      *parts->files.experts, *parts->cache, *parts->pool, *parts->kernels,
                      BackendOptions(parts->files.config, options, parts->limits.chunk_tokens)));
  OpenKeeper(budget, options, parts);
  if (parts->keeper) {
    parts->backend = std::make_unique<WatchedBackend>(std::move(parts->backend), *parts->keeper);
  }
  SMOE_TRY_ASSIGN(parts->model,
                  model::Model::Load(parts->files, *parts->pool, *parts->kernels, *parts->backend,
                                     {.row_count_max = parts->limits.row_count_max,
                                      .logit_row_max = parts->logit_row_max,
                                      .attention_part_max = PartRoom(*parts, budget),
                                      .arithmetic = options.arithmetic,
                                      .trunk = {.formats = ChooseTrunkFormats(options),
                                                .leaves_embedding = budget.leaves_embedding,
                                                .drops_page_cache = budget.drops_page_cache}}));
  const model::TrunkReport& trunk = parts->model->trunk_report();
  parts->choices.push_back(fmt::format(
      "trunk: {} in memory, format {} ({}): {}", SizeText(trunk.bytes),
      checkpoint::TrunkFormatsText(trunk.asked),
      options.trunk_formats ? "as asked" : "the default for this arithmetic", trunk.Text()));
  parts->choices.push_back(trunk.why_not_locked.empty()
                               ? "trunk: locked in memory"
                               : "trunk: anonymous, not locked: " + trunk.why_not_locked);
  model::KvShape shape = parts->model->kv_shape();
  shape.kind = ChooseKvKind(options);
  SMOE_TRY_ASSIGN(parts->kv, model::KvCache::Create(shape, KvRoom(*parts, budget)));
  parts->context_tokens = budget.request_tokens;
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
  setup.reads = parts.reads_text;
  setup.read_setup = parts.reads;
  setup.arithmetic = experts::ArithmeticName(options.arithmetic);
  setup.kv = kernels::KvKindName(parts.kv->shape().kind);
  setup.thread_count = parts.pool->thread_count();
  setup.chunk_tokens = parts.limits.chunk_tokens;
  setup.slot_count = parts.cache->slot_count();
  setup.expert_count = parts.files.experts->expert_count();
  setup.trunk_bytes = parts.model->trunk_report().bytes;
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
  parts.choices = parts.files.decisions;
  parts.choices.push_back(fmt::format("kernels: {}, {} threads, arithmetic {}", parts.kernels->name,
                                      threads, experts::ArithmeticName(options.arithmetic)));
  parts.choices.push_back(fmt::format("keys and values: {} ({})",
                                      kernels::KvKindName(ChooseKvKind(options)),
                                      options.kv ? "as asked" : "by the arithmetic"));
  SMOE_TRY_ASSIGN(Budget budget, PlanMemory(options, &parts));
  const bool planned_direct = parts.files.experts->direct_io();
  SMOE_TRY(OpenQueue(budget, options, &parts));
  // Buffered reads were found to be better: the page cache wants its share too.
  if (parts.files.experts->direct_io() != planned_direct) {
    SMOE_TRY_ASSIGN(budget, PlanMemory(options, &parts));
  }
  parts.choices.insert(parts.choices.end(), budget.choices.begin(), budget.choices.end());
  parts.limits.chunk_tokens = budget.chunk_tokens;
  parts.limits.row_count_max = RowCountMax(options, budget.chunk_tokens);
  parts.logit_row_max = LogitRowMax(options, budget.chunk_tokens);
  SMOE_TRY(OpenModel(budget, options, &parts));
  if (!options.hot_set_path.empty()) {
    parts.warm_start =
        std::make_unique<WarmStart>(*parts.cache, *parts.files.experts, options.hot_set_path);
    parts.choices.push_back(parts.warm_start->sentence());
  }
  parts.budget = budget;
  parts.choices.push_back(PagesSentence(parts.model->trunk_memory(), parts.cache->slab()));
  SMOE_TRY_ASSIGN(parts.setup, DescribeSetup(parts, options));
  return parts;
}

}  // namespace smoe::engine
