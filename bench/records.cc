// What does it cost to check every record of an NVFP4 store as it arrives?
//
// smoe_bench_records [--tiny] [FOLDER]: writes a store of random records of 768 x 2048 below FOLDER
// (default: the folder for temporary files), and measures
//   - the parts of the check alone, on records that no cache of the CPU holds;
//   - the experts of one-token steps whose experts all come from the drive, in turns: with no
//     check, with the identity alone, as the program does (whole at the first arrival), always
//     whole.
#include <fmt/core.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/stopwatch.h"
#include "experts/local_backend.h"
#include "store/records/record.h"
#include "store/records/record_store.h"
#include "store/records/writer.h"

namespace {

using smoe::Bytes;
using smoe::MutableBytes;
using smoe::Result;
using smoe::Status;
namespace experts = smoe::experts;
namespace records = smoe::store::records;
namespace store = smoe::store;

struct Setup {
  uint32_t layers = 4;
  uint32_t experts = 48;
  uint32_t inter = 768;
  uint32_t hidden = 2048;
  uint32_t top_k = 8;
  int tokens = 20;
  int rounds = 9;
};

enum class Check { kNone, kIdentity, kStore, kAlways };
constexpr std::array kChecks = {Check::kNone, Check::kIdentity, Check::kStore, Check::kAlways};

// A record store that checks as much as it is told to; kStore: as the program does.
class ChosenStore final : public store::ExpertStore {
 public:
  ChosenStore(std::unique_ptr<store::ExpertStore> whole, records::RecordFolder folder)
      : whole_(std::move(whole)), folder_(std::move(folder)) {}
  Check check = Check::kStore;

  const std::string& path() const override { return whole_->path(); }
  const char* format_name() const override { return whole_->format_name(); }
  std::span<const store::StoreLayer> layers() const override { return whole_->layers(); }
  uint32_t expert_count() const override { return whole_->expert_count(); }
  uint32_t hidden_size() const override { return whole_->hidden_size(); }
  uint32_t intermediate_size() const override { return whole_->intermediate_size(); }
  uint64_t slot_bytes() const override { return whole_->slot_bytes(); }
  bool direct_io() const override { return whole_->direct_io(); }
  bool FallBackToBuffered() override { return whole_->FallBackToBuffered(); }
  store::ExpertLocation Locate(store::ExpertId id) const override { return whole_->Locate(id); }
  Status Admit(store::ExpertId id, MutableBytes slot) const override {
    const records::ExpertKey key{id.layer_index, id.expert_index};
    switch (check) {
      case Check::kNone:
        return smoe::Ok();
      case Check::kIdentity:
        return records::CheckIdentity(folder_.spec, key, slot);
      case Check::kStore:
        return whole_->Admit(id, slot);
      case Check::kAlways:
        break;
    }
    return records::CheckRecord(folder_, key, slot);
  }
  smoe::tensor::ExpertWeights View(store::ExpertId id, Bytes slot) const override {
    return whole_->View(id, slot);
  }

 private:
  std::unique_ptr<store::ExpertStore> whole_;
  records::RecordFolder folder_;
};

// Time spent computing: what other programs took away does not count.
double CpuSeconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Any code is a weight; block scales from 0.25 to 0.5.
void Randomise(std::mt19937_64& random, MutableBytes bytes, bool is_scale) {
  for (std::byte& value : bytes) {
    const auto bits = static_cast<uint8_t>(random());
    value = std::byte{static_cast<uint8_t>(is_scale ? 0x28 + (bits & 7) : bits)};
  }
}

Status WriteStore(const Setup& setup, const std::string& path) {
  records::ExpertIndex index;
  index.num_moe_layers = setup.layers;
  index.num_experts = setup.experts;
  index.inter = setup.inter;
  index.hidden = setup.hidden;
  for (uint32_t layer = 0; layer < setup.layers; ++layer) {
    index.moe_layer_to_model_layer.push_back(layer);
  }
  SMOE_TRY_ASSIGN(const auto writer, records::RecordWriter::Create(path, index, {}));
  const records::ExpertRecordSpec& spec = writer->spec();
  std::vector<std::byte> record(spec.raw_bytes);
  std::array<std::array<std::vector<std::byte>, 2>, records::kProjCount> buffers;
  records::ExpertParts parts;
  std::mt19937_64 random(1);
  for (size_t i = 0; i < records::kProjCount; ++i) {
    buffers[i] = {std::vector<std::byte>(spec.projs[i].bytes.packed),
                  std::vector<std::byte>(spec.projs[i].bytes.scale)};
    Randomise(random, buffers[i][0], false);
    Randomise(random, buffers[i][1], true);
    parts.projs[i] = {buffers[i][0], buffers[i][1], 0.05F, std::nullopt};
  }
  for (uint32_t layer = 0; layer < setup.layers; ++layer) {
    for (uint32_t expert = 0; expert < setup.experts; ++expert) {
      buffers[0][0][expert] = std::byte{static_cast<uint8_t>(layer)};
      SMOE_TRY(
          records::PackRecord(spec, {layer, expert}, parts, records::PartsOrder::kRecord, record));
      SMOE_TRY(writer->WriteRecord({layer, expert}, record));
    }
  }
  return writer->Finish();
}

// Over all records of a layer, which no cache of the CPU has held since the layer before.
Status MeasureParts(const records::RecordFolder& folder) {
  std::vector<std::byte> bytes(folder.layout.FileBytes());
  double seconds[3] = {};
  uint64_t count = 0;
  uint64_t sum = 0;
  for (uint32_t layer = 0; layer < folder.layout.num_moe_layers; ++layer) {
    SMOE_TRY(folder.files[layer].ReadAt(0, bytes));
    for (int part = 0; part < 3; ++part) {
      const double start = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
      for (uint32_t expert = 0; expert < folder.layout.num_experts; ++expert) {
        const Bytes record =
            Bytes(bytes).subspan(folder.layout.RecordOffset(expert), folder.spec.raw_bytes);
        if (part == 0) SMOE_TRY(records::CheckIdentity(folder.spec, {layer, expert}, record));
        if (part == 1) sum += smoe::Checksum(record);
        if (part == 2) SMOE_TRY(records::CheckContent(folder.spec, record));
      }
      seconds[part] += CpuSeconds(CLOCK_THREAD_CPUTIME_ID) - start;
    }
    count += folder.layout.num_experts;
  }
  const char* const names[] = {"identity", "checksum", "content"};
  for (int part = 0; part < 3; ++part) {
    fmt::print("{:<10} {:8.1f} us a record of {} bytes\n", names[part],
               1e6 * seconds[part] / static_cast<double>(count), folder.spec.raw_bytes);
  }
  fmt::print("checksum of checksums {:016x}\n", sum);
  return smoe::Ok();
}

struct Taken {
  double wall = 0;
  double cpu = 0;
};

struct Median {
  double min = 0;
  double median = 0;
  double max = 0;
};

Median MedianOf(const std::vector<Taken>& all, double Taken::*what) {
  std::vector<double> values;
  for (const Taken& taken : all) values.push_back(taken.*what);
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

// Routing that never asks twice in a row for the same experts.
class Decoder {
 public:
  Decoder(const Setup& setup, experts::ExpertBackend& backend)
      : setup_(setup), backend_(backend), hidden_(setup.hidden, 0.5F), out_(setup.hidden) {
    weights_.assign(setup.top_k, 1.0F / static_cast<float>(setup.top_k));
    ids_.resize(setup.top_k);
  }
  // Seconds for some tokens, by the clock and of all threads.
  Result<Taken> Run(std::mt19937_64 random) {
    const smoe::Stopwatch watch;
    const double start = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int token = 0; token < setup_.tokens; ++token) {
      for (uint32_t layer = 0; layer < setup_.layers; ++layer) {
        const auto first = static_cast<uint32_t>(random() % setup_.experts);
        for (uint32_t i = 0; i < setup_.top_k; ++i) {
          ids_[i] = (first + i * (setup_.experts / setup_.top_k)) % setup_.experts;
        }
        std::vector<experts::RowFailure> failures;
        const experts::RoutedRows rows = {
            layer, 1, setup_.top_k, hidden_.data(), ids_.data(), weights_.data(), out_.data()};
        SMOE_TRY(backend_.Begin(rows));
        SMOE_TRY(backend_.Run(rows, &failures));
        if (!failures.empty()) return smoe::Unexpected(failures[0].error);
      }
    }
    return Taken{watch.seconds(), CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - start};
  }

 private:
  const Setup& setup_;
  experts::ExpertBackend& backend_;
  std::vector<float> hidden_;
  std::vector<float> out_;
  std::vector<float> weights_;
  std::vector<uint32_t> ids_;
};

Status MeasureDecode(const Setup& setup, const std::string& path) {
  SMOE_TRY_ASSIGN(records::RecordFolder folder, records::OpenRecordFolder(path));
  SMOE_TRY_ASSIGN(records::RecordFolder other, records::OpenRecordFolder(path));
  SMOE_TRY_ASSIGN(auto whole, records::OpenRecordStore(std::move(folder), {true, setup.layers}));
  ChosenStore chosen(std::move(whole), std::move(other));
  SMOE_TRY_ASSIGN(const auto queue, smoe::io::ReadQueue::OpenUring({}));
  SMOE_TRY_ASSIGN(const auto cache,
                  experts::ExpertCache::Create(chosen, *queue, {.slot_count = setup.top_k + 1}));
  SMOE_TRY_ASSIGN(const smoe::kernels::KernelTable* table, smoe::kernels::ChooseKernels(nullptr));
  smoe::ThreadPool pool(2);
  SMOE_TRY_ASSIGN(const auto backend,
                  experts::MakeLocalBackend(chosen, *cache, pool, *table,
                                            {.row_count_max = 1, .top_k = setup.top_k}));
  Decoder decoder(setup, *backend);
  std::array<std::vector<Taken>, kChecks.size()> seconds;
  for (int round = 0; round < setup.rounds; ++round) {
    for (size_t turn = 0; turn < kChecks.size(); ++turn) {
      const size_t at = (turn + static_cast<size_t>(round)) % kChecks.size();
      chosen.check = kChecks[at];
      SMOE_TRY_ASSIGN(const Taken taken,
                      decoder.Run(std::mt19937_64(static_cast<uint64_t>(round))));
      seconds[at].push_back(taken);
    }
  }
  const experts::CacheStats stats = cache->stats();
  const auto misses = static_cast<double>(stats.miss_count);
  fmt::print(
      "{} hits, {} misses, {} reads, kernels {}; us a record: {:.0f} computing, {:.0f} waiting\n",
      stats.hit_count, stats.miss_count, chosen.direct_io() ? "direct" : "buffered", table->name,
      1e-3 * static_cast<double>(backend->compute_ns()) / misses,
      1e-3 * static_cast<double>(stats.wait_ns) / misses);
  const char* const names[] = {"none", "identity", "first", "always"};
  const double base = MedianOf(seconds[0], &Taken::wall).median;
  const double base_cpu = MedianOf(seconds[0], &Taken::cpu).median;
  const double ms = 1e3 / setup.tokens;
  for (size_t i = 0; i < kChecks.size(); ++i) {
    const Median wall = MedianOf(seconds[i], &Taken::wall);
    const Median cpu = MedianOf(seconds[i], &Taken::cpu);
    fmt::print(
        "{:<9} ms a token: {:.2f} / {:.2f} / {:.2f} ({:+.1f} %), CPU {:.2f} / {:.2f} / "
        "{:.2f} ({:+.1f} %)\n",
        names[i], ms * wall.min, ms * wall.median, ms * wall.max, 100 * (wall.median / base - 1),
        ms * cpu.min, ms * cpu.median, ms * cpu.max, 100 * (cpu.median / base_cpu - 1));
  }
  return smoe::Ok();
}

Status Measure(const Setup& setup, const std::string& path) {
  SMOE_TRY(WriteStore(setup, path));
  SMOE_TRY_ASSIGN(const records::RecordFolder folder, records::OpenRecordFolder(path));
  SMOE_TRY(MeasureParts(folder));
  return MeasureDecode(setup, path);
}

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  std::string parent = std::filesystem::temp_directory_path().string();
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--tiny") {
      setup = {2, 16, 32, 64, 2, 2, 1};
    } else {
      parent = argv[i];
    }
  }
  std::string path = parent + "/smoe_bench_records_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    fmt::print(stderr, "{}: no folder can be made there\n", parent);
    return 1;
  }
  const Status status = Measure(setup, path + "/store");
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  if (status) return 0;
  fmt::print(stderr, "{}\n", status.error().message());
  return 1;
}
