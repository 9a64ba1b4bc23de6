#include "io/drive_bench.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "base/memory.h"
#include "base/memory_limits.h"
#include "io/drive_meter.h"
#include "io/file.h"

namespace smoe::io {

namespace {

constexpr uint64_t kMemoryBytes = uint64_t{256} << 20;
constexpr uint64_t kSizes[] = {uint64_t{256} << 10, uint64_t{1} << 20, uint64_t{5} << 19,
                               uint64_t{8} << 20};
constexpr uint32_t kDepths[] = {1, 4, 16};
constexpr uint32_t kUsualDepth = 16;
constexpr uint64_t kPieceBytes = uint64_t{512} << 10;
constexpr size_t kReadsMax = 4096;  // of a cell in a round
constexpr ReadBackend kRing = ReadBackend::kUring;
constexpr ReadBackend kPool = ReadBackend::kThreads;

DriveCell Cell(uint64_t size, ReadBackend backend, uint32_t depth, uint64_t piece_bytes,
               bool direct, bool registered) {
  DriveCell cell;
  cell.setting = {backend, depth, depth, piece_bytes, direct};
  cell.read_bytes = size;
  cell.registered = registered;
  return cell;
}

std::vector<DriveCell> AllCells() {
  std::vector<DriveCell> cells;
  for (const uint64_t size : kSizes) {
    for (const ReadBackend backend : {kRing, kPool}) {
      for (const uint32_t depth : kDepths) {
        cells.push_back(Cell(size, backend, depth, 0, true, false));
      }
    }
    cells.push_back(Cell(size, kRing, kUsualDepth, 0, true, true));
    if (size > kPieceBytes) {
      cells.push_back(Cell(size, kRing, kUsualDepth, kPieceBytes, true, false));
    }
    for (const ReadBackend backend : {kRing, kPool}) {
      cells.push_back(Cell(size, backend, kUsualDepth, 0, false, false));
    }
  }
  return cells;
}

class DriveBench {
 public:
  DriveBench(File plain, const DriveBenchOptions& options)
      : options_(options), plain_(std::move(plain)), random_(options.seed) {}

  Result<DriveReport> Run(const std::function<void(uint64_t, uint64_t)>& on_cell) {
    SMOE_TRY(Prepare());
    std::vector<size_t> order(report_.cells.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    const uint64_t total = order.size() * options_.round_count;
    for (uint32_t round = 0; round < options_.round_count; ++round) {
      std::shuffle(order.begin(), order.end(), random_);
      for (size_t i = 0; i < order.size(); ++i) {
        SMOE_TRY(Measure(order[i]));
        on_cell(round * order.size() + i + 1, total);
      }
    }
    for (size_t i = 0; i < order.size(); ++i) {
      report_.cells[i].bytes_per_second = SpreadOf(std::move(rates_[i]));
      report_.cells[i].cpu_seconds_per_gb = SpreadOf(std::move(costs_[i]));
    }
    return std::move(report_);
  }

 private:
  Status Prepare() {
    report_.path = plain_.path();
    SMOE_TRY_ASSIGN(report_.file_bytes, plain_.Size());
    const uint64_t least = 4 * *std::max_element(std::begin(kSizes), std::end(kSizes));
    if (report_.file_bytes < least) {
      return Invalid("{}: {} bytes, at least {} are wanted to read here and there", plain_.path(),
                     report_.file_bytes, SizeText(least));
    }
    report_.alignment = AskDirectAlignment(plain_.fd());
    SMOE_TRY_ASSIGN(memory_, AlignedBuffer::Create(kMemoryBytes, "reads of the drive"));
    for (uint64_t at = 0; at < memory_.size(); at += kPageBytes) memory_.data()[at] = std::byte{1};
    if (Result<File> direct = File::OpenDirect(plain_.path())) {
      direct_ = std::move(*direct);
      SMOE_TRY(LookForEvidence());
    } else {
      direct_refused_ = direct.error().message();
    }
    report_.cells = AllCells();
    rates_.resize(report_.cells.size());
    costs_.resize(report_.cells.size());
    return Ok();
  }

  // Ranges that are in the page cache show nothing: a few are tried.
  Status LookForEvidence() {
    constexpr int kTries = 8;
    report_.evidence = DirectEvidence::kFlagOnly;
    for (int i = 0; i < kTries && report_.evidence == DirectEvidence::kFlagOnly; ++i) {
      const MutableBytes into = memory_.bytes().first(kSizes[0]);
      SMOE_TRY_ASSIGN(report_.evidence,
                      ProveDirectRead(direct_.fd(), RandomOffset(into.size()), into));
    }
    return Ok();
  }

  uint64_t RandomOffset(uint64_t size) {
    const uint64_t places = (report_.file_bytes - size) / kDirectAlignment + 1;
    return random_() % places * kDirectAlignment;
  }

  Status Measure(size_t index) {
    DriveCell& cell = report_.cells[index];
    if (!cell.refused.empty()) return Ok();
    const File& file = cell.setting.direct ? direct_ : plain_;
    if (!file.is_open()) {
      cell.refused = direct_refused_;
      return Ok();
    }
    auto queue = cell.setting.backend == kRing ? ReadQueue::OpenUring(cell.setting.options())
                                               : ReadQueue::OpenThreaded(cell.setting.options());
    if (!queue) {
      cell.refused = queue.error().message();
      return Ok();
    }
    if (cell.registered && !Register(**queue, file.fd(), &cell)) return Ok();
    const std::vector<ReadRange> ranges = Draw(cell, file.fd());
    SMOE_TRY_ASSIGN(const ReadRate rate, MeasureReads(**queue, ranges, memory_.bytes(),
                                                      cell.setting.depth, options_.cell_seconds));
    rates_[index].push_back(rate.bytes_per_second());
    costs_[index].push_back(rate.cpu_seconds_per_gb());
    return Ok();
  }

  bool Register(ReadQueue& queue, int fd, DriveCell* cell) {
    Status done = queue.RegisterFiles({&fd, 1});
    if (done) done = queue.RegisterMemory(memory_.bytes());
    if (!done) cell->refused = done.error().message();
    return done.has_value();
  }

  std::vector<ReadRange> Draw(const DriveCell& cell, int fd) {
    // At what no drive of today exceeds: the clock ends the cell.
    constexpr double kBytesPerSecondMax = 16e9;
    const double most =
        kBytesPerSecondMax * options_.cell_seconds / static_cast<double>(cell.read_bytes);
    std::vector<ReadRange> ranges(std::min<size_t>(kReadsMax, static_cast<size_t>(most) + 1));
    for (ReadRange& range : ranges) {
      range = {fd, RandomOffset(cell.read_bytes), cell.read_bytes};
    }
    // Buffered reads are measured from the drive, not from what earlier ones left in memory.
    if (!cell.setting.direct) plain_.DropFromPageCache(0, 0);
    return ranges;
  }

  const DriveBenchOptions options_;
  File plain_;
  File direct_;
  std::string direct_refused_;
  AlignedBuffer memory_;
  std::mt19937_64 random_;
  DriveReport report_;
  std::vector<std::vector<double>> rates_;  // by cell, a figure each round
  std::vector<std::vector<double>> costs_;
};

}  // namespace

Result<DriveReport> MeasureDrive(const std::string& path, const DriveBenchOptions& options,
                                 const std::function<void(uint64_t, uint64_t)>& on_cell) {
  SMOE_TRY_ASSIGN(File plain, File::OpenRead(path));
  return DriveBench(std::move(plain), options).Run(on_cell);
}

}  // namespace smoe::io
