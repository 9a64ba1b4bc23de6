#include "model/embedding_rows.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "checkpoint/trunk_format.h"
#include "model/matrix_rows.h"
#include "model/trunk_plan.h"
#include "tensor/finite.h"
#include "tensor/tensor.h"

namespace smoe::model {

using tensor::WeightFormat;

namespace {

constexpr uint32_t kNoToken = UINT32_MAX;

bool IsSameFile(const io::File& a, const io::File& b) {
  struct stat of_a = {};
  struct stat of_b = {};
  return ::fstat(a.fd(), &of_a) == 0 && ::fstat(b.fd(), &of_b) == 0 && of_a.st_dev == of_b.st_dev &&
         of_a.st_ino == of_b.st_ino;
}

}  // namespace

uint64_t EmbeddingRowsBytes(uint64_t cols) { return kEmbeddingRowsKept * cols * sizeof(float); }

Result<std::unique_ptr<EmbeddingRows>> EmbeddingRows::Open(const io::File& source, Place place) {
  SMOE_TRY_ASSIGN(io::File file, io::File::OpenRead(source.path()));
  if (!IsSameFile(source, file)) {
    return Io("{}: another file has this name now than when the model was opened; open it again",
              source.path());
  }
  SMOE_TRY_ASSIGN(AlignedBuffer memory,
                  AlignedBuffer::CreateTable(kEmbeddingRowsKept, place.cols, sizeof(float),
                                             "embeddings of tokens in use"));
  return std::unique_ptr<EmbeddingRows>(
      new EmbeddingRows(std::move(place), std::move(file), std::move(memory)));
}

EmbeddingRows::EmbeddingRows(Place place, io::File file, AlignedBuffer memory)
    : place_(std::move(place)),
      file_(std::move(file)),
      memory_(std::move(memory)),
      kept_tokens_(kEmbeddingRowsKept, kNoToken),
      stored_(row_bytes()) {
  // The plan has counted all rows.
  const std::optional<PieceBytes> bytes = BytesOf(place_.format, 1, place_.cols);
  SMOE_CHECK(bytes.has_value());
  codes_.resize(bytes->elements);
  scales_.resize(bytes->scales);
}

std::span<float> EmbeddingRows::Kept(uint32_t token) {
  const size_t first = size_t{token % kEmbeddingRowsKept} * place_.cols;
  return memory_.As<float>().subspan(first, place_.cols);
}

// All reads are under way before the first is waited for; what is kept here need not be in the page
// cache, too.
void EmbeddingRows::Read(std::span<const StepRow> rows, float* out, const FailRow& fail) {
  for (const StepRow& row : rows) {
    if (!IsKept(row.token)) file_.ReadAhead(OffsetOf(row.token), row_bytes());
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t token = rows[i].token;
    const std::span<float> to(out + i * place_.cols, place_.cols);
    Status loaded = IsKept(token) ? Ok() : Load(token);
    if (loaded) {
      std::ranges::copy(Kept(token), to.begin());
    } else {
      std::ranges::fill(to, 0.0F);
      fail(i, std::move(loaded.error()));
    }
  }
}

Status EmbeddingRows::Load(uint32_t token) {
  SMOE_CHECK(token < place_.rows);
  uint32_t& kept_token = kept_tokens_[token % kEmbeddingRowsKept];
  kept_token = kNoToken;
  const uint64_t offset = OffsetOf(token);
  SMOE_TRY(file_.ReadAt(offset, stored_));
  const uint64_t first_page = offset / kPageBytes * kPageBytes;
  file_.DropFromPageCache(first_page, RoundUp(offset + row_bytes(), kPageBytes) - first_page);
  ++read_count_;
  const std::optional<uint64_t> bad = tensor::FindNonFinite(place_.dtype, stored_);
  if (bad) {
    return Corrupt("{}: tensor {}: element {} is NaN or infinite, weights must be finite",
                   file_.path(), place_.name, FirstOf(token) + *bad);
  }
  const std::span<float> row = Kept(token);
  tensor::ToF32({place_.dtype, {place_.cols}, stored_}, 0, row);
  Status converted = Convert(row);
  if (!converted) {
    return Unexpected(std::move(converted.error())
                          .While(fmt::format("{}: tensor {}, counted from element {}", file_.path(),
                                             place_.name, FirstOf(token))));
  }
  kept_token = token;
  return Ok();
}

// There and back: what the format keeps of the row.
Status EmbeddingRows::Convert(std::span<float> row) {
  // f32 holds every float of a file.
  if (checkpoint::FormatOf(place_.dtype) == place_.format) return Ok();
  if (place_.format == WeightFormat::kF32) return Ok();
  SMOE_TRY(EncodeRows({place_.format, 1, place_.cols, codes_, scales_}, 0, row));
  DecodeRow(MatrixView(place_.format, 1, place_.cols, codes_, scales_), 0, row);
  return Ok();
}

}  // namespace smoe::model
