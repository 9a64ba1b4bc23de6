// model/streamed_model_for_test.h: a model on the real path: store, read queue, cache, backend.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "experts/expert_cache.h"
#include "experts/local_backend.h"
#include "io/read_queue.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "store/model_files.h"

namespace smoe::model {

struct StreamSetup {
  experts::Arithmetic arithmetic = experts::Arithmetic::kF32;
  TrunkOptions trunk = {};
  uint32_t slot_count = 0;  // 0: all experts
  size_t thread_count = 2;
  size_t row_count_max = 256;
  size_t kv_tokens = 1024;
  std::function<Result<std::unique_ptr<io::ReadQueue>>()> make_queue = [] {
    return io::ReadQueue::OpenThreaded({});
  };
};

// In the order in which the parts borrow from each other.
struct StreamedModel {
  store::ModelFiles files;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<io::ReadQueue> queue;
  std::unique_ptr<experts::ExpertCache> cache;
  std::unique_ptr<experts::ExpertBackend> backend;
  std::unique_ptr<Model> model;
  std::unique_ptr<KvCache> kv;
};

// The kernels are those that SMOE_ISA names, or the best.
inline Result<std::unique_ptr<StreamedModel>> OpenStreamed(const std::string& path,
                                                           const store::ModelFilesOptions& options,
                                                           const StreamSetup& setup) {
  auto made = std::make_unique<StreamedModel>();
  SMOE_TRY_ASSIGN(made->files, store::OpenModelFiles(path, options));
  const store::ExpertStore& store = *made->files.experts;
  SMOE_TRY_ASSIGN(const kernels::KernelTable* table,
                  kernels::ChooseKernels(std::getenv("SMOE_ISA")));
  made->pool = std::make_unique<ThreadPool>(setup.thread_count);
  SMOE_TRY_ASSIGN(made->queue, setup.make_queue());
  const uint32_t slots = setup.slot_count == 0 ? store.expert_count() : setup.slot_count;
  SMOE_TRY_ASSIGN(made->cache, experts::ExpertCache::Create(*made->files.experts, *made->queue,
                                                            {.slot_count = slots}));
  SMOE_TRY_ASSIGN(made->backend,
                  experts::MakeLocalBackend(store, *made->cache, *made->pool, *table,
                                            {.arithmetic = setup.arithmetic,
                                             .row_count_max = setup.row_count_max,
                                             .top_k = made->files.config.num_experts_per_tok}));
  SMOE_TRY_ASSIGN(made->model, Model::Load(made->files, *made->pool, *table, *made->backend,
                                           {.row_count_max = setup.row_count_max,
                                            .logit_row_max = setup.row_count_max,
                                            .arithmetic = setup.arithmetic,
                                            .trunk = setup.trunk}));
  SMOE_TRY_ASSIGN(made->kv, KvCache::Create(made->model->kv_shape(), setup.kv_tokens));
  return made;
}

}  // namespace smoe::model
