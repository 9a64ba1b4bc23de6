// How near do the matrix kernels come to what the cores read from memory?
//
// smoe_bench_kernels [--cached|--tiny] [--threads N] [--rows N] [--cols N] [--rounds N]
// [--tokens N] [--format NAME] [--json]: for each weight format and each table that runs here, GB/s
// of weights over a set of matrices larger than the caches (as experts are), or over one of them
// (--cached), their share of a plain read of the same memory, and GFLOP/s, two to a multiplication.
// Tables and the plain read take turns within a round, so that what disturbs one disturbs all; the
// best round counts. With several threads each has its own rows of every matrix. Ends with a
// checksum of each table's outputs; they are equal. --json: a line of JSON for each figure instead.
#include "kernels/kernels.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/memory.h"
#include "tensor/dtype.h"

namespace {

using smoe::tensor::WeightFormat;
using smoe::tensor::WeightView;

constexpr uint32_t kGroup = 64;

struct Setup {
  size_t bytes_total = 384 << 20;
  int rounds = 7;
  uint32_t rows = 2048;  // of a matrix
  uint32_t cols = 768;
  uint32_t threads = 1;
  std::vector<size_t> tokens = {1, 2, 16, 64};
  std::string_view format = {};  // all of them
  bool is_json = false;
};

// Aligned as the engine's buffers are: loads that cross a cache line would count twice.
template <class T>
struct Buffer {
  explicit Buffer(size_t count)
      : memory(std::move(smoe::AlignedBuffer::Create(count * sizeof(T), "benchmark").value())) {}
  T* data() { return memory.As<T>().data(); }
  const T* data() const { return memory.As<T>().data(); }
  size_t size() const { return memory.As<T>().size(); }
  smoe::AlignedBuffer memory;
};

struct Memory {
  Buffer<uint8_t> weights;
  Buffer<uint8_t> scales;
};

// One thread: the time it spent computing, so that what other programs took away does not count.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Seconds that `body(thread)` takes on all threads together; by the clock if they are several.
double Seconds(uint32_t threads, const std::function<void(uint32_t)>& body) {
  if (threads == 1) {
    const double start = ThreadSeconds();
    body(0);
    return ThreadSeconds() - start;
  }
  std::barrier barrier(threads);
  std::chrono::steady_clock::time_point start;
  std::chrono::steady_clock::time_point end;
  const auto run = [&](uint32_t thread) {
    barrier.arrive_and_wait();
    if (thread == 0) start = std::chrono::steady_clock::now();
    body(thread);
    barrier.arrive_and_wait();
    if (thread == 0) end = std::chrono::steady_clock::now();
  };
  std::vector<std::thread> others;
  for (uint32_t thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
  run(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(end - start).count();
}

void ReadLines(const uint8_t* from, size_t lines, uint64_t* sum) {
  // Asked for 4 KiB ahead, as the kernels do: the processor alone stops at each page.
  constexpr size_t kAhead = 4096;
  for (size_t i = 0; i < lines; ++i) {
    __builtin_prefetch(from + std::min(i * 64 + kAhead, lines * 64 - 1));
    uint64_t line[8];
    std::memcpy(line, from + i * 64, 64);
    for (const uint64_t word : line) *sum ^= word;
  }
}

// The first `bytes` of the weights, each thread its part of them.
double ReadSeconds(const Memory& memory, size_t bytes, uint32_t threads) {
  const size_t lines = bytes / 64 / threads;
  std::vector<uint64_t> sums(threads);
  const double seconds = Seconds(threads, [&](uint32_t thread) {
    uint64_t sum = 0;
    ReadLines(memory.weights.data() + thread * lines * 64, lines, &sum);
    sums[thread] = sum;
  });
  if (sums[0] == 1) fmt::print("unlikely\n");  // the reads must not be optimised away
  return seconds;
}

size_t MatrixBytes(WeightFormat format, const Setup& setup) {
  const size_t count = size_t{setup.rows} * setup.cols;
  switch (format) {
    case WeightFormat::kF32:
      return count * 4;
    case WeightFormat::kF16:
    case WeightFormat::kBF16:
      return count * 2;
    case WeightFormat::kSmoeQ4:
    case WeightFormat::kNvfp4:
      return count / 2;
    case WeightFormat::kSmoeQ2:
      return count / 4;
    case WeightFormat::kInt8:
      return *smoe::tensor::Int8CodeBytes(setup.rows, setup.cols);
  }
  return 0;
}

size_t ScaleBytes(WeightFormat format, const Setup& setup) {
  if (!smoe::tensor::IsQuantised(format)) return 0;
  if (format == WeightFormat::kInt8) {
    return *smoe::tensor::Int8ScaleBytes(setup.rows, setup.cols);
  }
  const size_t count = size_t{setup.rows} * setup.cols;
  return format == WeightFormat::kNvfp4 ? count / smoe::tensor::kNvfp4Group : count / kGroup * 2;
}

struct Case {
  WeightFormat format;
  bool is_int8;
  size_t tokens;
};

// Activations of one case and the place for its outputs.
struct Inputs {
  Inputs(const Case& what, const Setup& setup)
      : x(what.tokens * setup.cols),
        codes(what.tokens * setup.cols),
        scales(what.tokens * setup.cols / smoe::kernels::kActivationBlock),
        out(what.tokens * setup.rows) {
    std::mt19937 rng(1);
    for (size_t i = 0; i < what.tokens * setup.cols; ++i) {
      x.data()[i] = static_cast<float>(rng() % 2001) / 1000 - 1;
    }
    const size_t blocks = setup.cols / smoe::kernels::kActivationBlock;
    for (size_t token = 0; token < what.tokens; ++token) {
      smoe::kernels::kScalarKernels.quantise_row(x.data() + token * setup.cols, setup.cols,
                                                 codes.data() + token * setup.cols,
                                                 scales.data() + token * blocks);
    }
  }
  Buffer<float> x;
  Buffer<int8_t> codes;
  Buffer<float> scales;
  Buffer<float> out;
};

// The matrix-th of those that lie behind one another in memory, for one thread's rows.
void Multiply(const smoe::kernels::KernelTable& table, const Case& what, const Memory& memory,
              const Setup& setup, size_t matrix, uint32_t thread, Inputs* in) {
  const size_t matrix_bytes = MatrixBytes(what.format, setup);
  const size_t scale_bytes = ScaleBytes(what.format, setup);
  const WeightView view = {
      .format = what.format,
      .rows = setup.rows,
      .cols = setup.cols,
      .data = memory.weights.memory.bytes().subspan(matrix * matrix_bytes, matrix_bytes),
      .scales = memory.scales.memory.bytes().subspan(matrix * scale_bytes, scale_bytes),
      .group_size = what.format == WeightFormat::kNvfp4 ? smoe::tensor::kNvfp4Group : kGroup};
  const smoe::kernels::MatMulRange range = {.row_begin = setup.rows / setup.threads * thread,
                                            .row_end = setup.rows / setup.threads * (thread + 1),
                                            .out = in->out.data(),
                                            .out_stride = setup.rows};
  if (what.is_int8) {
    table.matmul_int8(view,
                      {.codes = in->codes.data(),
                       .scales = in->scales.data(),
                       .token_count = what.tokens,
                       .cols = setup.cols,
                       .col_stride = setup.cols},
                      range);
  } else {
    table.matmul_f32(view, {.data = in->x.data(), .token_count = what.tokens, .stride = setup.cols},
                     range);
  }
}

struct Runner {
  const smoe::kernels::KernelTable* table;
  uint64_t checksum = 0;
};

// The scalar table is some hundred times slower: a part of the memory, and fewer rounds, tell as
// much.
size_t MatrixCount(const Runner& runner, const Case& what, const Setup& setup, int round) {
  if (runner.table == &smoe::kernels::kScalarKernels) return round < 2 ? 1 : 0;
  return std::max<size_t>(1, setup.bytes_total / what.tokens / MatrixBytes(what.format, setup));
}

struct Figure {
  double weight_rate;  // GB/s
  double read_rate;
  double flop_rate;  // GFLOP/s
};

void Print(const Case& what, const Setup& setup, const char* table, const Figure& figure) {
  const char* arithmetic = what.is_int8 ? "int8" : "f32";
  const double share = figure.weight_rate / figure.read_rate;
  if (setup.is_json) {
    fmt::print(
        "{{\"format\":\"{}\",\"arithmetic\":\"{}\",\"tokens\":{},\"table\":\"{}\",\"threads\":{},"
        "\"rows\":{},\"cols\":{},\"memory_bytes\":{},\"weight_gb_per_s\":{:.2f},"
        "\"read_gb_per_s\":{:.2f},\"read_share\":{:.3f},\"gflop_per_s\":{:.1f}}}\n",
        smoe::tensor::WeightFormatName(what.format), arithmetic, what.tokens, table, setup.threads,
        setup.rows, setup.cols, setup.bytes_total, figure.weight_rate, figure.read_rate, share,
        figure.flop_rate);
    return;
  }
  fmt::print("{:6} {:4} {:6} {:10} {:9.2f} {:9.2f} {:5.0f} % {:9.1f}\n",
             smoe::tensor::WeightFormatName(what.format), arithmetic, what.tokens, table,
             figure.weight_rate, figure.read_rate, 100 * share, figure.flop_rate);
}

void Report(const Case& what, const Memory& memory, const Setup& setup,
            std::vector<Runner>* runners) {
  const size_t matrix_bytes = MatrixBytes(what.format, setup);
  const size_t bytes = matrix_bytes + ScaleBytes(what.format, setup);
  const size_t read_bytes =
      std::min(std::max(setup.bytes_total, matrix_bytes), memory.weights.size());
  Inputs in(what, setup);
  std::vector<double> best(runners->size(), 1e30);
  double best_read = 1e30;
  for (int round = 0; round < setup.rounds; ++round) {
    best_read = std::min(best_read, ReadSeconds(memory, read_bytes, setup.threads));
    for (size_t i = 0; i < runners->size(); ++i) {
      const size_t count = MatrixCount((*runners)[i], what, setup, round);
      if (count == 0) continue;
      const double seconds = Seconds(setup.threads, [&](uint32_t thread) {
        for (size_t matrix = 0; matrix < count; ++matrix) {
          Multiply(*(*runners)[i].table, what, memory, setup, matrix, thread, &in);
        }
      });
      best[i] = std::min(best[i], seconds / static_cast<double>(count));
    }
  }
  for (size_t i = 0; i < runners->size(); ++i) {
    Runner& runner = (*runners)[i];
    for (uint32_t thread = 0; thread < setup.threads; ++thread) {
      Multiply(*runner.table, what, memory, setup, 0, thread, &in);
    }
    runner.checksum ^= smoe::Checksum(std::as_const(in.out.memory).bytes());
    const double flops = 2.0 * static_cast<double>(what.tokens * setup.rows * setup.cols);
    Print(what, setup, runner.table->name,
          {.weight_rate = static_cast<double>(bytes) / best[i] / 1e9,
           .read_rate = static_cast<double>(read_bytes) / best_read / 1e9,
           .flop_rate = flops / best[i] / 1e9});
  }
}

// Returns false for what it does not know.
bool ParseOptions(int argc, char** argv, Setup* setup) {
  for (int i = 1; i < argc; ++i) {  // these first, so that the others can change what they set
    const std::string_view option = argv[i];
    if (option == "--tiny") setup->bytes_total = 1, setup->rounds = 1, setup->rows = 64;
    if (option == "--cached") setup->bytes_total = 1, setup->rounds = 300;
  }
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const auto number = [&](int least, int most) {
      return std::clamp(i + 1 < argc ? std::atoi(argv[++i]) : 0, least, most);
    };
    if (option == "--tiny" || option == "--cached") continue;
    if (option == "--json") {
      setup->is_json = true;
    } else if (option == "--threads") {
      setup->threads = static_cast<uint32_t>(number(1, 64));
    } else if (option == "--cols") {
      setup->cols = static_cast<uint32_t>(number(64, 256 * 64)) / 64 * 64;
    } else if (option == "--rows") {
      setup->rows = static_cast<uint32_t>(number(64, 256 * 64)) / 64 * 64;
    } else if (option == "--tokens") {
      setup->tokens = {static_cast<size_t>(number(1, 1024))};
    } else if (option == "--rounds") {
      setup->rounds = number(1, 1000000);
    } else if (option == "--format" && i + 1 < argc) {
      setup->format = argv[++i];
    } else {
      fmt::print(stderr, "smoe_bench_kernels: unknown option {}\n", option);
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  if (!ParseOptions(argc, argv, &setup)) return 2;
  Memory memory = {
      .weights =
          Buffer<uint8_t>(std::max(setup.bytes_total, MatrixBytes(WeightFormat::kF32, setup))),
      // An eighth of the codes in NVFP4, less in the others; int8 has as many for one matrix.
      .scales = Buffer<uint8_t>(
          std::max(setup.bytes_total / 8, ScaleBytes(WeightFormat::kNvfp4, setup)))};
  std::mt19937_64 rng(7);
  for (size_t i = 0; i + 8 <= memory.weights.size(); i += 8) {
    // Magnitudes near those of real weights in each of the formats: subnormals would be slow.
    const uint64_t word = (rng() & 0x81ff81ff81ff81ffu) | 0x3c003c003c003c00u;
    std::memcpy(memory.weights.data() + i, &word, 8);
  }
  for (size_t i = 0; i < memory.scales.size(); i += 2) {
    // An f16 for Q4 and Q2, two E4M3 for NVFP4 (an even byte is never a NaN there), half an f32 for
    // int8.
    const auto scale = static_cast<uint16_t>(
        smoe::tensor::F16FromF32(0.01f + static_cast<float>(i % 97) / 97) & 0xfffeu);
    std::memcpy(memory.scales.data() + i, &scale, 2);
  }
  if (!setup.is_json) {
    fmt::print("matrices {}x{}, group {}, {} threads, {} MiB\n", setup.rows, setup.cols, kGroup,
               setup.threads, memory.weights.size() >> 20);
    fmt::print("{:6} {:4} {:>6} {:10} {:>9} {:>9} {:>7} {:>9}\n", "format", "", "tokens", "table",
               "GB/s", "read GB/s", "share", "GFLOP/s");
  }
  std::vector<Runner> runners;
  for (const smoe::kernels::KernelTable* table : smoe::kernels::AllKernels()) {
    if (table->runs_here()) {
      runners.push_back({.table = table});
    } else if (!setup.is_json) {
      fmt::print("{}: not on this CPU\n", table->name);
    }
  }
  for (const size_t tokens : setup.tokens) {
    for (const Case& what :
         {Case{WeightFormat::kSmoeQ4, true, tokens}, Case{WeightFormat::kSmoeQ2, true, tokens},
          Case{WeightFormat::kNvfp4, true, tokens}, Case{WeightFormat::kInt8, true, tokens},
          Case{WeightFormat::kInt8, false, tokens}, Case{WeightFormat::kNvfp4, false, tokens},
          Case{WeightFormat::kF32, false, tokens}, Case{WeightFormat::kF16, false, tokens},
          Case{WeightFormat::kBF16, false, tokens}, Case{WeightFormat::kSmoeQ4, false, tokens},
          Case{WeightFormat::kSmoeQ2, false, tokens}}) {
      const std::string_view name = smoe::tensor::WeightFormatName(what.format);
      if (!setup.format.empty() && setup.format != name) continue;
      Report(what, memory, setup, &runners);
    }
  }
  for (const Runner& runner : runners) {
    if (setup.is_json) break;
    fmt::print("{:10} checksum {:016x}\n", runner.table->name, runner.checksum);
  }
  return 0;
}
