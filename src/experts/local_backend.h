// experts/local_backend.h: experts from the cache, computed by this machine's threads.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "experts/backend.h"
#include "kernels/kernels.h"

namespace smoe::experts {

struct LocalBackendOptions {
  Arithmetic arithmetic = Arithmetic::kInt8;
  size_t row_count_max = 0;  // rows in one Run
  size_t top_k = 0;
};

// Borrows all three. Scratch memory is taken here, none later: about
// row_count_max * (top_k * hidden_size + 3 * intermediate_size) floats.
Result<std::unique_ptr<ExpertBackend>> MakeLocalBackend(const store::ExpertStore& store,
                                                        ExpertCache& cache, ThreadPool& pool,
                                                        const kernels::KernelTable& kernels,
                                                        const LocalBackendOptions& options);

}  // namespace smoe::experts
