// experts/local_backend.h: experts from the cache, computed by this machine's threads.
//
// One Run sorts its (row, rank) pairs by expert, asks the cache for the union, and computes each
// expert once, for all of its rows, in whatever order the experts become ready. Those that are
// ready at the same time are computed together, as many as their rows have room in a round: first
// all that were in memory, while the reads of the others are in flight, then by arrival. Every
// pair's output has a place of its own; at the end each row adds its outputs in router order:
//
//   out = 0;  out = fma(weights[rank], output of rank, out), rank 0 first
//
// So a row's bits depend on its input, its routing and the weights, and on nothing else.
#pragma once

#include <memory>

#include "base/thread_pool.h"
#include "experts/backend.h"
#include "experts/prefetch_controller.h"
#include "kernels/kernels.h"

namespace smoe::experts {

struct LocalBackendOptions {
  Arithmetic arithmetic = Arithmetic::kInt8;
  size_t row_count_max = 0;  // rows in one Run
  size_t top_k = 0;          // experts of one row at most
  // Rows of all experts of a round; an expert that has more of its own still gets one round. Many
  // make few fork-joins, few keep the intermediate values near the cores.
  size_t round_row_count = 512;
  PrefetchMode prefetch = PrefetchMode::kAuto;  // of what few rows Foresee
};

// The rows that a round has memory for: no more than all pairs of a Run, no fewer than its rows.
size_t RoundRowCountMax(const LocalBackendOptions& options);

// Borrows all four. Scratch memory is taken here, none later: about
// 4 * (row_count_max * top_k * hidden_size + rounds * (hidden_size + 2 * intermediate_size)) bytes,
// with rounds = RoundRowCountMax(options), and for int8 row_count_max * hidden_size +
// rounds * (hidden_size + intermediate_size) bytes more.
// In int8 a row whose input, or whose intermediate values in an expert, are not finite is a failed
// row that says so; in f32 it is computed, and its NaN reaches the caller.
// Errors: kExhausted with the size, also when it does not fit 64 bits.
Result<std::unique_ptr<ExpertBackend>> MakeLocalBackend(const store::ExpertStore& store,
                                                        ExpertCache& cache, ThreadPool& pool,
                                                        const kernels::KernelTable& kernels,
                                                        const LocalBackendOptions& options);

}  // namespace smoe::experts
