// How near do the matrix kernels come to what one core reads from memory?
//
// smoe_bench_kernels [--cached|--tiny]: for each table that runs here and each weight format, GB/s
// of weights over a set of matrices larger than the caches (as experts are), beside the rate of a
// plain read of the same memory in the same minute. Prints a checksum of all outputs; it is the
// same for all tables.
#include "kernels/kernels.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "tensor/dtype.h"

namespace {

using smoe::tensor::WeightFormat;
using smoe::tensor::WeightView;

constexpr uint32_t kCols = 768;
constexpr uint32_t kGroup = 64;

struct Setup {
  size_t bytes_total = 384 << 20;
  int rounds = 7;
  uint32_t rows = 2048;  // of a matrix
};

struct Memory {
  std::vector<uint8_t> weights;
  std::vector<uint8_t> scales;
};

// Time this thread spent computing: what other programs took away does not count.
double ThreadSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Best of `rounds` runs of `body`, in seconds: the others were disturbed.
template <class Body>
double BestSeconds(int rounds, const Body& body) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const double start = ThreadSeconds();
    body();
    best = std::min(best, ThreadSeconds() - start);
  }
  return best;
}

double ReadGigabytesPerSecond(const Memory& memory, int rounds) {
  uint64_t sum = 0;
  const double seconds = BestSeconds(rounds, [&] {
    const size_t count = memory.weights.size() / 8;
    for (size_t i = 0; i < count; ++i) {
      uint64_t word;
      std::memcpy(&word, memory.weights.data() + i * 8, 8);
      sum += word;
    }
  });
  if (sum == 1) fmt::print("unlikely\n");  // the reads must not be optimised away
  return static_cast<double>(memory.weights.size()) / seconds / 1e9;
}

size_t MatrixBytes(WeightFormat format, uint32_t rows) {
  const size_t count = size_t{rows} * kCols;
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
  }
  return 0;
}

size_t ScaleBytes(WeightFormat format, uint32_t rows) {
  if (!smoe::tensor::IsQuantised(format)) return 0;
  const size_t count = size_t{rows} * kCols;
  return format == WeightFormat::kNvfp4 ? count / smoe::tensor::kNvfp4Group : count / kGroup * 2;
}

struct Case {
  WeightFormat format;
  bool is_int8;
  size_t tokens;
};

// One pass over matrices that lie behind one another in memory.
double Measure(const smoe::kernels::KernelTable& table, const Case& what, const Memory& memory,
               const Setup& setup, uint64_t* checksum) {
  const size_t matrix_bytes = MatrixBytes(what.format, setup.rows);
  const size_t scale_bytes = ScaleBytes(what.format, setup.rows);
  // The scalar table is some hundred times slower: a part of the memory tells as much.
  const bool is_slow = std::string_view(table.name) == "scalar";
  const size_t bytes =
      is_slow ? std::min<size_t>(setup.bytes_total, matrix_bytes) : setup.bytes_total / what.tokens;
  const size_t count = std::max<size_t>(1, bytes / matrix_bytes);
  std::vector<float> x(what.tokens * kCols);
  std::mt19937 rng(1);
  for (float& value : x) value = static_cast<float>(rng() % 2001) / 1000 - 1;
  std::vector<int8_t> codes(x.size());
  std::vector<float> scales(x.size() / smoe::kernels::kActivationBlock);
  constexpr size_t kBlocks = kCols / smoe::kernels::kActivationBlock;
  for (size_t token = 0; token < what.tokens; ++token) {
    table.quantise_row(x.data() + token * kCols, kCols, codes.data() + token * kCols,
                       scales.data() + token * kBlocks);
  }
  std::vector<float> out(what.tokens * setup.rows);
  const auto run = [&](size_t matrix) {
    const WeightView view = {
        .format = what.format,
        .rows = setup.rows,
        .cols = kCols,
        .data = smoe::AsBytes(std::span<const uint8_t>(memory.weights))
                    .subspan(matrix * matrix_bytes, matrix_bytes),
        .scales = smoe::AsBytes(std::span<const uint8_t>(memory.scales)).subspan(0, scale_bytes),
        .group_size = what.format == WeightFormat::kNvfp4 ? smoe::tensor::kNvfp4Group : kGroup};
    const smoe::kernels::MatMulRange range = {
        .row_begin = 0, .row_end = setup.rows, .out = out.data(), .out_stride = setup.rows};
    if (what.is_int8) {
      table.matmul_int8(view,
                        {.codes = codes.data(),
                         .scales = scales.data(),
                         .token_count = what.tokens,
                         .cols = kCols,
                         .col_stride = kCols},
                        range);
    } else {
      table.matmul_f32(view, {.data = x.data(), .token_count = what.tokens, .stride = kCols},
                       range);
    }
  };
  const double seconds = BestSeconds(is_slow ? std::min(setup.rounds, 3) : setup.rounds, [&] {
    for (size_t matrix = 0; matrix < count; ++matrix) run(matrix);
  });
  run(0);
  *checksum ^= smoe::Checksum(smoe::AsBytes(std::span<const float>(out)));
  return static_cast<double>(count * (matrix_bytes + scale_bytes)) / seconds / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  const std::string_view option = argc > 1 ? argv[1] : "";
  if (option == "--tiny") setup = {.bytes_total = 1, .rounds = 1, .rows = 16};
  if (option == "--cached") setup = {.bytes_total = 1, .rounds = 300};
  Memory memory;
  memory.weights.resize(std::max(setup.bytes_total, MatrixBytes(WeightFormat::kF32, setup.rows)));
  memory.scales.resize(ScaleBytes(WeightFormat::kNvfp4, setup.rows));  // those of Q4 are fewer
  std::mt19937_64 rng(7);
  for (size_t i = 0; i + 8 <= memory.weights.size(); i += 8) {
    // Magnitudes near those of real weights in each of the formats: subnormals would be slow.
    const uint64_t word = (rng() & 0x81ff81ff81ff81ffu) | 0x3c003c003c003c00u;
    std::memcpy(memory.weights.data() + i, &word, 8);
  }
  for (size_t i = 0; i < memory.scales.size(); i += 2) {
    // An f16 for Q4 and Q2, two E4M3 for NVFP4: an even byte is never a NaN there.
    const auto scale = static_cast<uint16_t>(
        smoe::tensor::F16FromF32(0.01f + static_cast<float>(i % 97) / 97) & 0xfffeu);
    std::memcpy(memory.scales.data() + i, &scale, 2);
  }
  fmt::print("matrices {}x{}, group {}, one thread, {} MiB\n", setup.rows, kCols, kGroup,
             memory.weights.size() >> 20);
  for (const smoe::kernels::KernelTable* table : smoe::kernels::AllKernels()) {
    if (!table->runs_here()) {
      fmt::print("{}: not on this CPU\n", table->name);
      continue;
    }
    uint64_t checksum = 0;
    const double read = ReadGigabytesPerSecond(memory, setup.rounds);
    fmt::print("{}: plain read {:.1f} GB/s\n", table->name, read);
    for (const size_t tokens : {size_t{1}, size_t{16}}) {
      for (const Case& what :
           {Case{WeightFormat::kSmoeQ4, true, tokens}, Case{WeightFormat::kSmoeQ2, true, tokens},
            Case{WeightFormat::kNvfp4, true, tokens}, Case{WeightFormat::kNvfp4, false, tokens},
            Case{WeightFormat::kF32, false, tokens}, Case{WeightFormat::kF16, false, tokens},
            Case{WeightFormat::kBF16, false, tokens}, Case{WeightFormat::kSmoeQ4, false, tokens},
            Case{WeightFormat::kSmoeQ2, false, tokens}}) {
        const double rate = Measure(*table, what, memory, setup, &checksum);
        fmt::print(
            "  {:5} {:4} {:2} tokens {:7.2f} GB/s of weights, {:3.0f} % of a read, {:6.1f} "
            "Gmul/s\n",
            smoe::tensor::WeightFormatName(what.format), what.is_int8 ? "int8" : "f32", tokens,
            rate, 100 * rate / read,
            rate * static_cast<double>(what.tokens * setup.rows * kCols) /
                static_cast<double>(MatrixBytes(what.format, setup.rows)));
      }
    }
    fmt::print("  checksum {:016x}\n", checksum);
  }
  return 0;
}
