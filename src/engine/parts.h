// engine/parts.h: what an engine is made of, and how it is put together.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/budget.h"
#include "engine/engine.h"
#include "engine/memory_guard.h"
#include "engine/read_setup.h"
#include "engine/scheduler.h"
#include "engine/warm_start.h"
#include "experts/backend.h"
#include "experts/expert_cache.h"
#include "io/read_queue.h"
#include "kernels/kernels.h"
#include "model/kv_cache.h"
#include "model/model.h"
#include "store/model_files.h"

namespace smoe::engine {

// In the order in which they borrow from each other, so that each goes before what it borrows.
struct Parts {
  store::ModelFiles files;
  const kernels::KernelTable* kernels = nullptr;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<io::ReadQueue> queue;
  std::unique_ptr<experts::ExpertCache> cache;
  std::unique_ptr<WarmStart> warm_start;  // none: the cache begins empty
  std::unique_ptr<CacheKeeper> keeper;    // none: the cache keeps its size
  std::unique_ptr<experts::ExpertBackend> backend;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<model::KvCache> kv;
  StepLimits limits;
  size_t batch_max = 0;
  size_t context_tokens = 0;  // of one request
  size_t logit_row_max = 0;
  BudgetDemand demand;
  Budget budget;
  ReadSetup reads;
  std::string reads_text;  // of those, or of the queue of a test
  std::vector<std::string> choices;
  EngineSetup setup;
};

// Chooses kernels, threads, queue, cache size and KV room as Engine::Open says, opens them all and
// loads the trunk. Each choice is a sentence in Parts::choices.
// Errors: as Engine::Open.
Result<Parts> AssembleParts(store::ModelFiles files, const EngineOptions& options);

}  // namespace smoe::engine
