#include "model/trunk.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/numa.h"
#include "model/matrix_rows.h"
#include "model/trunk_check.h"
#include "model/trunk_plan.h"
#include "tensor/finite.h"
#include "tensor/quantise_int8.h"
#include "tensor/tensor.h"

namespace smoe::model {

namespace {

using checkpoint::LinearKind;
using tensor::DType;
using tensor::QuantisationError;
using tensor::WeightFormat;

// Weights that a thread takes at once: 1 MiB in f32, which stays in a core's own cache. Rows are
// taken in whole tiles, and whole groups of q4.
constexpr uint64_t kJobWeights = uint64_t{1} << 18;
constexpr uint64_t kJobRows = 32;
// Jobs of a thread that the drive is ahead of it.
constexpr size_t kJobsAhead = 16;

tensor::WeightView ViewOf(const TrunkPiece& piece, const AlignedBuffer& memory) {
  return MatrixView(piece.format, piece.rows, piece.cols,
                    memory.bytes().subspan(piece.offset, piece.bytes),
                    memory.bytes().subspan(piece.scales_offset, piece.scale_bytes));
}

// Memory that a job works in; kept for the next one.
struct Staging {
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
  std::vector<float> floats;
};

template <class T>
std::span<T> First(std::vector<T>* buffer, uint64_t count) {
  buffer->resize(std::max<uint64_t>(buffer->size(), count));
  return std::span(*buffer).first(count);
}

struct Job {
  size_t piece_index = 0;
  uint64_t first_row = 0;
  uint64_t row_count = 0;
};

std::vector<Job> CutJobs(const std::vector<TrunkPiece>& pieces) {
  std::vector<Job> jobs;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TrunkPiece& piece = pieces[i];
    if (piece.cols == 0) continue;
    const uint64_t step = std::max<uint64_t>(kJobWeights / piece.cols / kJobRows, 1) * kJobRows;
    for (uint64_t first = 0; first < piece.rows; first += step) {
      jobs.push_back({i, first, std::min(step, piece.rows - first)});
    }
  }
  return jobs;
}

// Reads and converts the rows of one job.
class JobReader {
 public:
  JobReader(const store::ModelFiles& files, const TrunkPiece& piece, const Job& job,
            AlignedBuffer* memory, Staging* staging)
      : files_(files), piece_(piece), job_(job), memory_(*memory), staging_(*staging) {}

  // What converting has cost; nothing where the file's bits are kept.
  Result<QuantisationError> Run() {
    Result<QuantisationError> done = Read();
    if (done || done.error().message().starts_with(PathOfPiece())) return done;
    return While(PathOfPiece(), std::move(done));
  }

 private:
  uint64_t weight_count() const { return job_.row_count * piece_.cols; }
  uint64_t first_weight() const { return job_.first_row * piece_.cols; }
  std::string PathOfPiece() const {
    return files_.trunk.files()[piece_.source.codes.info->file_index].path();
  }
  MutableBytes Memory(uint64_t offset, uint64_t bytes) const {
    return memory_.bytes().subspan(offset, bytes);
  }
  MutableBytes Elements(uint64_t element_bytes) const {
    return Memory(piece_.offset + first_weight() * element_bytes, weight_count() * element_bytes);
  }
  MutableBytes Q4Codes() const {
    return Memory(piece_.offset + first_weight() / 2,
                  tensor::PackedBytes(weight_count(), tensor::SmoeBits::kQ4));
  }
  MutableBytes Q4Scales() const {
    return Memory(piece_.scales_offset + tensor::ScaleBytes(first_weight(), checkpoint::kQ4Group),
                  tensor::ScaleBytes(weight_count(), checkpoint::kQ4Group));
  }
  tensor::Int8Target Int8() const {
    return {static_cast<uint32_t>(piece_.rows), static_cast<uint32_t>(piece_.cols),
            Memory(piece_.offset, piece_.bytes), Memory(piece_.scales_offset, piece_.scale_bytes)};
  }

  Result<QuantisationError> Read() {
    const checkpoint::LinearWeight& source = piece_.source;
    const bool is_plain = source.kind == LinearKind::kFloat &&
                          checkpoint::FormatOf(source.codes.info->dtype) == piece_.format;
    if (is_plain) return ReadPlain();
    if (source.kind == LinearKind::kInt8 && piece_.format == WeightFormat::kInt8) return ReadInt8();
    if (source.kind == LinearKind::kQ4 && piece_.format == WeightFormat::kSmoeQ4) return ReadQ4();
    // f32 is where it shall be already.
    const std::span<float> weights =
        piece_.format == WeightFormat::kF32
            ? memory_.As<float>().subspan(piece_.offset / sizeof(float) + first_weight(),
                                          weight_count())
            : First(&staging_.floats, weight_count());
    SMOE_TRY(
        checkpoint::ReadLinearRows(files_.trunk, source, job_.first_row, weights, &staging_.codes));
    SMOE_TRY(CheckFinite(DType::kF32, std::as_bytes(weights)));
    return Convert(weights);
  }

  Status CheckFinite(DType dtype, Bytes elements) const {
    const std::optional<uint64_t> bad = tensor::FindNonFinite(dtype, elements);
    if (!bad) return Ok();
    return Corrupt("tensor {}: element {} is NaN or infinite, weights must be finite", piece_.name,
                   first_weight() + *bad);
  }

  Result<QuantisationError> ReadPlain() {
    const DType dtype = DTypeOf(piece_.format);
    const uint64_t element_bytes = tensor::DTypeBytes(dtype);
    const MutableBytes target = Elements(element_bytes);
    SMOE_TRY(files_.trunk.Read(*piece_.source.codes.info, first_weight() * element_bytes, target));
    SMOE_TRY(CheckFinite(dtype, target));
    return QuantisationError{};
  }

  Result<QuantisationError> ReadInt8() {
    const uint64_t row_scales = CeilDiv(piece_.cols, uint64_t{tensor::kInt8Group});
    const std::span<std::byte> codes = First(&staging_.codes, weight_count());
    const std::span<std::byte> scales =
        First(&staging_.scales, job_.row_count * row_scales * sizeof(float));
    SMOE_TRY(
        checkpoint::ReadLinearCodes(files_.trunk, piece_.source, job_.first_row, codes, scales));
    tensor::TileInt8(Int8(), static_cast<uint32_t>(job_.first_row),
                     static_cast<uint32_t>(job_.row_count), codes, scales);
    return QuantisationError{};
  }

  Result<QuantisationError> ReadQ4() {
    SMOE_TRY(checkpoint::ReadLinearCodes(files_.trunk, piece_.source, job_.first_row, Q4Codes(),
                                         Q4Scales()));
    return QuantisationError{};
  }

  Result<QuantisationError> Convert(std::span<const float> weights) {
    if (piece_.format == WeightFormat::kF32) return QuantisationError{};
    auto coded =
        EncodeRows({piece_.format, piece_.rows, piece_.cols, Memory(piece_.offset, piece_.bytes),
                    Memory(piece_.scales_offset, piece_.scale_bytes)},
                   job_.first_row, weights);
    if (coded) return coded;
    return While(fmt::format("tensor {}, counted from element {}", piece_.name, first_weight()),
                 std::move(coded));
  }

  const store::ModelFiles& files_;
  const TrunkPiece& piece_;
  const Job& job_;
  AlignedBuffer& memory_;
  Staging& staging_;
};

// All jobs over the pool.
class TrunkReader {
 public:
  TrunkReader(const store::ModelFiles& files, const TrunkPlan& plan, bool drops_page_cache,
              AlignedBuffer* memory)
      : files_(files),
        plan_(plan),
        memory_(*memory),
        jobs_(CutJobs(plan.pieces)),
        check_(files, Stretches(), drops_page_cache),
        errors_(jobs_.size()),
        first_failed_(jobs_.size()) {
    if (plan.left) check_.Done(jobs_.size());
  }

  Status Run(ThreadPool& pool) {
    pool.ParallelFor(jobs_.size(), 1, [&](size_t begin, size_t end) {
      const std::unique_ptr<Staging> staging = Borrow();
      for (size_t i = begin; i < begin + kJobsAhead; ++i) ReadAhead(i);
      for (size_t i = begin; i < end; ++i) {
        ReadAhead(i + kJobsAhead);
        RunJob(i, staging.get());
      }
      Return(std::move(*staging));
    });
    if (!failure_) return std::move(failure_);
    return check_.Finish();
  }

  // In the order of the jobs, so that the sums do not depend on the threads.
  QuantisationError ErrorOf(size_t piece_index) const {
    QuantisationError sum;
    for (size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].piece_index == piece_index) sum.Add(errors_[i]);
    }
    return sum;
  }

 private:
  std::unique_ptr<Staging> Borrow() {
    const std::lock_guard lock(mutex_);
    auto staging = std::make_unique<Staging>();
    if (idle_.empty()) return staging;
    *staging = std::move(idle_.back());
    idle_.pop_back();
    return staging;
  }
  void Return(Staging staging) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(staging));
  }

  // Jobs behind one that failed are passed over, those before it are not: so the first of all that
  // would fail is the one that is told.
  void RunJob(size_t index, Staging* staging) {
    if (index > first_failed_.load(std::memory_order_relaxed)) return;
    const Job& job = jobs_[index];
    auto done = JobReader(files_, plan_.pieces[job.piece_index], job, &memory_, staging).Run();
    if (done) {
      errors_[index] = *done;
      check_.Done(index);
      return;
    }
    const std::lock_guard lock(mutex_);
    if (index > first_failed_.load(std::memory_order_relaxed)) return;
    first_failed_.store(index, std::memory_order_relaxed);
    failure_ = Unexpected(std::move(done.error()));
  }

  // Where rows of a piece lie, but for their scales, which are few.
  TrunkCheck::Stretch StretchOf(const TrunkPiece& piece, uint64_t first_row,
                                uint64_t row_count) const {
    const checkpoint::TensorInfo& info = *piece.source.codes.info;
    const uint64_t row_bytes = piece.rows == 0 ? 0 : info.size / piece.rows;
    return {&files_.trunk.files()[info.file_index], info.offset + first_row * row_bytes,
            row_count * row_bytes};
  }

  // Of each job, and behind them what stays on the drive.
  std::vector<TrunkCheck::Stretch> Stretches() const {
    std::vector<TrunkCheck::Stretch> stretches;
    for (const Job& job : jobs_) {
      stretches.push_back(StretchOf(plan_.pieces[job.piece_index], job.first_row, job.row_count));
    }
    if (plan_.left) stretches.push_back(StretchOf(*plan_.left, 0, plan_.left->rows));
    return stretches;
  }

  void ReadAhead(size_t index) const {
    if (index >= jobs_.size()) return;
    const Job& job = jobs_[index];
    const auto place = StretchOf(plan_.pieces[job.piece_index], job.first_row, job.row_count);
    place.file->ReadAhead(place.offset, place.size);
  }

  const store::ModelFiles& files_;
  const TrunkPlan& plan_;
  AlignedBuffer& memory_;
  const std::vector<Job> jobs_;
  TrunkCheck check_;
  std::vector<QuantisationError> errors_;  // by job
  std::atomic<size_t> first_failed_;
  std::mutex mutex_;
  std::vector<Staging> idle_;
  Status failure_;
};

void Report(const TrunkPiece& piece, const QuantisationError& error, TrunkReport* report) {
  if (!piece.part) return;
  TrunkPartReport& part = report->parts[static_cast<size_t>(*piece.part)];
  ++part.matrix_count;
  part.bytes += piece.bytes + piece.scale_bytes;
  if (std::find(part.formats.begin(), part.formats.end(), piece.format) == part.formats.end()) {
    part.formats.push_back(piece.format);
  }
  part.error.Add(error);
}

Result<std::unique_ptr<EmbeddingRows>> OpenLeft(const store::ModelFiles& files,
                                                const TrunkPiece& piece) {
  const checkpoint::TensorInfo& info = *piece.source.codes.info;
  return EmbeddingRows::Open(files.trunk.files()[info.file_index],
                             {.name = piece.name,
                              .offset = info.offset,
                              .dtype = info.dtype,
                              .rows = static_cast<uint32_t>(piece.rows),
                              .cols = static_cast<uint32_t>(piece.cols),
                              .format = piece.format});
}

}  // namespace

std::string TrunkReport::Text() const {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const TrunkPartReport& part = parts[i];
    if (part.matrix_count == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ", ",
                        checkpoint::TrunkPartName(static_cast<checkpoint::TrunkPart>(i)));
    for (size_t f = 0; f < part.formats.size(); ++f) {
      text += fmt::format("{}{}", f == 0 ? " " : "/", tensor::WeightFormatName(part.formats[f]));
    }
    if (part.error.weight_count != 0) {
      text += fmt::format(" (error {:.3g} %)", 100 * part.error.RelativeRmse());
    }
    const bool is_left =
        leaves_embedding && i == static_cast<size_t>(checkpoint::TrunkPart::kEmbedding);
    if (is_left) text += " (on the drive)";
  }
  return text;
}

Result<std::unique_ptr<Trunk>> LoadTrunk(const store::ModelFiles& files, const ArchTraits& traits,
                                         const TrunkOptions& options, ThreadPool& pool) {
  auto trunk = std::make_unique<Trunk>();
  SMOE_TRY_ASSIGN(const TrunkPlan plan, PlanTrunk(files, traits, options, trunk.get()));
  SMOE_TRY_ASSIGN(trunk->memory, AlignedBuffer::Create(plan.total_bytes, "trunk"));
  InterleaveOverNodes(trunk->memory.bytes());  // all threads will read what each of them fills
  TrunkReader reader(files, plan, options.drops_page_cache, &trunk->memory);
  SMOE_TRY(reader.Run(pool));
  const Status locked = trunk->memory.Lock();
  trunk->report.why_not_locked = locked ? "" : locked.error().message();
  trunk->report.asked = options.formats;
  trunk->report.bytes = plan.total_bytes;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const TrunkPiece& piece = plan.pieces[i];
    Report(piece, reader.ErrorOf(i), &trunk->report);
    if (piece.matrix != nullptr) *piece.matrix = ViewOf(piece, trunk->memory);
    if (piece.second_matrix != nullptr) *piece.second_matrix = ViewOf(piece, trunk->memory);
    if (piece.vector == nullptr) continue;
    *piece.vector = trunk->memory.As<float>().subspan(piece.offset / sizeof(float), piece.cols);
  }
  if (plan.left) {
    Report(*plan.left, {}, &trunk->report);
    trunk->report.leaves_embedding = true;
    SMOE_TRY_ASSIGN(trunk->embedding_rows, OpenLeft(files, *plan.left));
  }
  return trunk;
}

Result<TrunkSize> MeasureTrunk(const store::ModelFiles& files, const ArchTraits& traits,
                               const checkpoint::TrunkFormats& formats) {
  Trunk unused;
  SMOE_TRY_ASSIGN(const TrunkPlan plan, PlanTrunk(files, traits, {.formats = formats}, &unused));
  SMOE_TRY_ASSIGN(
      const TrunkPlan left,
      PlanTrunk(files, traits, {.formats = formats, .leaves_embedding = true}, &unused));
  const uint64_t without = left.total_bytes + (left.left ? EmbeddingRowsBytes(left.left->cols) : 0);
  return TrunkSize{plan.total_bytes, plan.total_bytes - std::min(plan.total_bytes, without)};
}

}  // namespace smoe::model
