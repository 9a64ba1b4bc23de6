// Does attention over a long context cost no more than reading its keys and values?
//
// smoe_bench_attention [--tiny] [--cached] [--threads N] [--context N] [--rounds N] [--heads N]
// [--kv-heads N]
// [--head-dim N]: for f32, f16 and int8 and each table that runs here, decode (one row, all heads,
// a layer after another, more layers than the caches hold) in GB/s of keys and values, beside a
// plain read of the same memory by as many threads in the same minute; and prefill (512 rows behind
// nothing, and behind the context) in GFLOP/s. Work is cut as model/attention.cc cuts it. Tables
// take turns within a round; the best round counts. --cached: all layers are the first one, so that
// with a short --context it is arithmetic that is timed. The scalar table runs with --tiny alone.
// One thread is timed by the time it spent computing, several by the clock. Prints a checksum of
// each table's outputs; they are equal.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "tensor/dtype.h"

namespace {

namespace kernels = smoe::kernels;
using kernels::kAttentionPage;
using kernels::kAttentionPart;
using kernels::KvKind;
using WordPair __attribute__((vector_size(16))) = uint64_t;

struct Setup {
  size_t bytes_total = size_t{512} << 20;
  size_t context = 8192;
  size_t prompt = 512;
  size_t heads = 32;
  size_t kv_heads = 4;
  size_t head_dim = 128;
  size_t threads = 1;
  int rounds = 5;
  bool cached = false;

  size_t group() const { return heads / kv_heads; }
  size_t token_count() const { return context + prompt; }
  size_t page_count() const { return (token_count() + kAttentionPage - 1) / kAttentionPage; }
  size_t page_bytes(KvKind kind) const {
    return kAttentionPage * kv_heads * kernels::KvTokenBytes(kind, head_dim);
  }
};

template <class T>
struct Buffer {
  explicit Buffer(size_t count)
      : memory(std::move(smoe::AlignedBuffer::Create(count * sizeof(T), "benchmark").value())) {}
  T* data() { return memory.As<T>().data(); }
  smoe::AlignedBuffer memory;
};

double Now(const Setup& setup) {
  timespec now = {};
  clock_gettime(setup.threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Keys and values of several layers, page after page.
struct Cache {
  Cache(KvKind kind_in, const Setup& setup)
      : kind(kind_in),
        layer_bytes(setup.page_count() * setup.page_bytes(kind_in)),
        layer_count(std::max<size_t>(2, setup.bytes_total / layer_bytes)),
        memory((setup.cached ? 1 : layer_count) * layer_bytes) {
    std::mt19937_64 rng(7);
    std::normal_distribution<float> normal;
    std::vector<float> row(setup.head_dim);
    std::vector<std::byte> first_page(setup.page_bytes(kind));
    for (size_t token = 0; token < setup.kv_heads * kAttentionPage; ++token) {
      for (float& x : row) x = normal(rng);
      const size_t head = token / kAttentionPage;
      kernels::WriteKvToken(kernels::kScalarKernels, kind, row.data(), row.data(), setup.head_dim,
                            token % kAttentionPage,
                            first_page.data() + head * first_page.size() / setup.kv_heads);
    }
    for (size_t page = 0; page < layer_count * setup.page_count(); ++page) {
      const size_t at = (setup.cached ? page % setup.page_count() : page) * first_page.size();
      std::memcpy(memory.data() + at, first_page.data(), first_page.size());
      pages.push_back(memory.memory.data() + at);
    }
  }

  KvKind kind;
  size_t layer_bytes;
  size_t layer_count;
  Buffer<uint8_t> memory;
  std::vector<const std::byte*> pages;  // [layer][page_count]
};

// What the model keeps for a step.
struct Step {
  explicit Step(const Setup& setup)
      : part_count(setup.token_count() / kAttentionPart + 1),
        q(setup.prompt * setup.heads * setup.head_dim),
        out(setup.prompt * setup.heads * setup.head_dim),
        work(setup.prompt * setup.heads * setup.head_dim),
        part_outs(part_count * setup.heads * setup.head_dim),
        states(setup.prompt * setup.heads),
        part_states(part_count * setup.heads) {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (float& x : q.memory.As<float>()) x = normal(rng);
  }
  size_t part_count;
  Buffer<float> q;
  Buffer<float> out;
  Buffer<float> work;
  Buffer<float> part_outs;
  std::vector<kernels::AttentionState> states;
  std::vector<kernels::AttentionState> part_states;
};

struct Bench {
  const Setup& setup;
  smoe::ThreadPool& pool;
  const Cache& cache;
  Step& step;

  kernels::AttentionJob Job(size_t layer, size_t kv_head) const {
    kernels::AttentionJob job;
    job.kind = cache.kind;
    job.head_dim = setup.head_dim;
    job.scale = 1 / std::sqrt(static_cast<float>(setup.head_dim));
    job.pages = cache.pages.data() + layer * setup.page_count();
    job.page_offset = kv_head * setup.page_bytes(cache.kind) / setup.kv_heads;
    return job;
  }

  void Decode(const kernels::KernelTable& table, size_t layer) const {
    const size_t parts = (setup.context + kAttentionPart - 1) / kAttentionPart;
    const auto attend = [&](size_t begin, size_t end) {
      for (size_t index = begin; index < end; ++index) {
        const size_t kv_head = index / parts;
        const size_t part = index % parts;
        std::vector<kernels::AttentionQuery> queries(setup.group());
        for (size_t g = 0; g < setup.group(); ++g) {
          const size_t head = kv_head * setup.group() + g;
          const size_t at = part * setup.heads + head;
          queries[g] = {.query = step.q.data() + head * setup.head_dim,
                        .key_count = setup.context,
                        .out = step.part_outs.data() + at * setup.head_dim,
                        .state = &step.part_states[at]};
        }
        kernels::AttentionJob job = Job(layer, kv_head);
        job.key_begin = part * kAttentionPart;
        job.key_end = job.key_begin + kAttentionPart;
        job.queries = queries.data();
        job.query_count = queries.size();
        table.attend(job);
      }
    };
    pool.ParallelFor(setup.kv_heads * parts, 1, std::ref(attend));
    const auto merge = [&](size_t begin, size_t end) {
      for (size_t head = begin; head < end; ++head) {
        table.merge_attention({.states = &step.part_states[head],
                               .state_stride = setup.heads,
                               .outs = step.part_outs.data() + head * setup.head_dim,
                               .out_stride = setup.heads * setup.head_dim,
                               .count = parts},
                              setup.head_dim, step.out.data() + head * setup.head_dim);
      }
    };
    pool.ParallelFor(setup.heads, 4, std::ref(merge));
  }

  void Prefill(const kernels::KernelTable& table, size_t layer, size_t context) const {
    const size_t rows = std::max<size_t>(1, 64 / setup.group());
    const size_t blocks = (setup.prompt + rows - 1) / rows;
    const auto attend = [&](size_t begin, size_t end) {
      for (size_t index = begin; index < end; ++index) {
        const size_t kv_head = index / blocks;
        const size_t row_begin = index % blocks * rows;
        const size_t row_end = std::min(setup.prompt, row_begin + rows);
        std::vector<kernels::AttentionQuery> queries;
        for (size_t row = row_begin; row < row_end; ++row) {
          for (size_t g = 0; g < setup.group(); ++g) {
            const size_t at = row * setup.heads + kv_head * setup.group() + g;
            queries.push_back({.query = step.q.data() + at * setup.head_dim,
                               .key_count = context + row + 1,
                               .out = step.out.data() + at * setup.head_dim,
                               .state = &step.states[at]});
          }
        }
        kernels::AttentionJob job = Job(layer, kv_head);
        job.key_end = context + row_end;
        job.queries = queries.data();
        job.query_count = queries.size();
        job.work = step.work.data() +
                   (row_begin * setup.heads + kv_head * queries.size()) * setup.head_dim;
        table.attend(job);
        for (const kernels::AttentionQuery& query : queries) {
          table.merge_attention({.states = query.state, .outs = query.out, .count = 1},
                                setup.head_dim, query.out);
        }
      }
    };
    pool.ParallelFor(setup.kv_heads * blocks, 1, std::ref(attend));
  }

  // Seconds of one plain read of what Decode reads in all layers.
  double Read() const {
    const size_t page_bytes = setup.page_bytes(cache.kind);
    const size_t read_pages = (setup.context + kAttentionPage - 1) / kAttentionPage;
    uint64_t total = 0;
    const double start = Now(setup);
    for (size_t layer = 0; layer < cache.layer_count; ++layer) {
      const auto body = [&](size_t begin, size_t end) {
        // Four sums that do not wait for each other, as in base/memory_rate.cc.
        WordPair sums[4] = {};
        // Asked for 4 KiB ahead: the processor alone stops at each page.
        const std::byte* const base = cache.pages[layer * setup.page_count()];
        for (size_t at = begin * page_bytes; at < end * page_bytes; at += 64) {
          __builtin_prefetch(base + std::min(at + 4096, end * page_bytes - 1));
          WordPair pairs[4];
          std::memcpy(pairs, base + at, sizeof(pairs));
          for (size_t i = 0; i < 4; ++i) sums[i] += pairs[i];
        }
        const WordPair pair = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const uint64_t sum = pair[0] + pair[1];
        if (sum == 1) __atomic_fetch_add(&total, sum, __ATOMIC_RELAXED);
      };
      pool.ParallelFor(read_pages, 1, std::ref(body));
    }
    const double seconds = Now(setup) - start;
    if (total == 12345) fmt::print("unlikely\n");  // the reads must not be optimised away
    return seconds;
  }
};

struct Runner {
  const kernels::KernelTable* table;
  double decode = 1e30;
  double prefill[2] = {1e30, 1e30};
  uint64_t checksum = 0;
};

void Report(KvKind kind, const Setup& setup, smoe::ThreadPool& pool, std::vector<Runner> runners) {
  const Cache cache(kind, setup);
  Step step(setup);
  const Bench bench = {setup, pool, cache, step};
  const size_t contexts[] = {0, setup.context};
  double read = 1e30;
  for (int round = 0; round < setup.rounds; ++round) {
    read = std::min(read, bench.Read());
    for (Runner& runner : runners) {
      double start = Now(setup);
      for (size_t layer = 0; layer < cache.layer_count; ++layer) {
        bench.Decode(*runner.table, layer);
      }
      runner.decode = std::min(runner.decode, Now(setup) - start);
      runner.checksum = smoe::Checksum(std::as_const(step.out.memory)
                                           .bytes()
                                           .first(setup.heads * setup.head_dim * sizeof(float)));
      for (size_t i = 0; i < 2; ++i) {
        start = Now(setup);
        bench.Prefill(*runner.table, 1, contexts[i]);
        runner.prefill[i] = std::min(runner.prefill[i], Now(setup) - start);
        runner.checksum ^= smoe::Checksum(std::as_const(step.out.memory).bytes());
      }
    }
  }
  const auto bytes = static_cast<double>(cache.layer_count * setup.page_bytes(kind)) *
                     static_cast<double>((setup.context + kAttentionPage - 1) / kAttentionPage);
  fmt::print("{}: {} layers, plain read {:.1f} GB/s\n", kernels::KvKindName(kind),
             cache.layer_count, bytes / read / 1e9);
  for (const Runner& runner : runners) {
    double rates[2];
    for (size_t i = 0; i < 2; ++i) {
      const auto prompt = static_cast<double>(setup.prompt);
      const double pairs = prompt * (static_cast<double>(contexts[i]) + (prompt + 1) / 2);
      const double operations =
          4 * pairs * static_cast<double>(setup.heads) * static_cast<double>(setup.head_dim);
      rates[i] = operations / runner.prefill[i] / 1e9;
    }
    fmt::print(
        "  {:10} decode {:6.2f} GB/s, {:3.0f} % of the read; {} rows behind 0: {:6.1f} GFLOP/s, "
        "behind {}: {:6.1f}; "
        "checksum {:016x}\n",
        runner.table->name, bytes / runner.decode / 1e9, 100 * read / runner.decode, setup.prompt,
        rates[0], setup.context, rates[1], runner.checksum);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--tiny") {
      setup.bytes_total = 1;
      setup.context = 70;
      setup.prompt = 9;
      setup.rounds = 1;
    }
    if (option == "--cached") setup.cached = true;
    if (i + 1 == argc) break;
    const auto number = static_cast<size_t>(std::clamp(std::atoi(argv[i + 1]), 1, 1 << 20));
    if (option == "--threads") setup.threads = number;
    if (option == "--context") setup.context = number;
    if (option == "--rounds") setup.rounds = static_cast<int>(number);
    if (option == "--heads") setup.heads = number;
    if (option == "--kv-heads") setup.kv_heads = number;
    if (option == "--head-dim") setup.head_dim = number;
  }
  if (setup.heads % setup.kv_heads != 0) {
    fmt::print(stderr, "--heads {}: expected a multiple of --kv-heads {}\n", setup.heads,
               setup.kv_heads);
    return 2;
  }
  fmt::print("{} heads, {} of keys and values, head_dim {}, context {}, part {}, {} threads\n",
             setup.heads, setup.kv_heads, setup.head_dim, setup.context, kAttentionPart,
             setup.threads);
  smoe::ThreadPool pool(std::min(setup.threads, smoe::kThreadsMax));
  std::vector<Runner> runners;
  for (const kernels::KernelTable* table : kernels::AllKernels()) {
    if (!table->runs_here()) {
      fmt::print("{}: not on this CPU\n", table->name);
    } else if (table != &kernels::kScalarKernels || setup.context <= 100) {
      runners.push_back({.table = table});
    }
  }
  for (const KvKind kind : {KvKind::kF32, KvKind::kF16, KvKind::kInt8}) {
    Report(kind, setup, pool, runners);
  }
  return 0;
}
