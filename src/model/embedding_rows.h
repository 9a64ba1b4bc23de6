// model/embedding_rows.h: the embedding of tokens, left on the drive.
//
// A token needs one row of a matrix that may be as large as a hundred experts. Where memory is
// short the matrix stays in its file and rows are read when their tokens come: a page or two each,
// some 0.1 ms, while nothing else is being read. Rows in use are kept. A row has the bits that it
// would have in memory.
//
// Threads: one owner. Cost: no allocation after Open, but for the messages of failures.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/result.h"
#include "io/file.h"
#include "model/scratch.h"
#include "tensor/dtype.h"
#include "tensor/weights.h"

namespace smoe::model {

// Rows that are kept, each in the place that its token has among so many.
inline constexpr uint32_t kEmbeddingRowsKept = 512;
// What they take.
uint64_t EmbeddingRowsBytes(uint64_t cols);

class EmbeddingRows {
 public:
  struct Place {
    std::string name;                            // of the tensor, for messages
    uint64_t offset = 0;                         // of its first element in the file
    tensor::DType dtype = tensor::DType::kBF16;  // F32, F16 or BF16
    uint32_t rows = 0;
    uint32_t cols = 0;
    tensor::WeightFormat format = tensor::WeightFormat::kBF16;  // that it would have in memory
  };
  // Opens `source` once more: it is needed for this call only.
  // Errors: kIo if it cannot be opened, or if another file has its name by now, whose rows would be
  //         those of another model; kExhausted for the memory.
  static Result<std::unique_ptr<EmbeddingRows>> Open(const io::File& source, Place place);

  // Fills out [rows][cols] with the embeddings of the rows' tokens. Of a row that cannot be had,
  // `fail` is told which and why (kIo, kCorrupt, kUnsupported), and zeros stand for it.
  using FailRow = std::function<void(size_t row, Error error)>;
  void Read(std::span<const StepRow> rows, float* out, const FailRow& fail);

  uint64_t read_count() const { return read_count_; }  // rows that came from the file

 private:
  EmbeddingRows(Place place, io::File file, AlignedBuffer memory);
  uint64_t row_bytes() const { return place_.cols * tensor::DTypeBytes(place_.dtype); }
  uint64_t FirstOf(uint32_t token) const { return uint64_t{token} * place_.cols; }
  uint64_t OffsetOf(uint32_t token) const { return place_.offset + token * row_bytes(); }
  std::span<float> Kept(uint32_t token);
  bool IsKept(uint32_t token) const { return kept_tokens_[token % kEmbeddingRowsKept] == token; }
  Status Load(uint32_t token);
  Status Convert(std::span<float> row);

  const Place place_;
  const io::File file_;
  AlignedBuffer memory_;               // [kEmbeddingRowsKept][cols] f32
  std::vector<uint32_t> kept_tokens_;  // of the rows in memory_; UINT32_MAX: none
  std::vector<std::byte> stored_;      // a row as the file has it
  std::vector<std::byte> codes_;       // and as the format has it
  std::vector<std::byte> scales_;
  uint64_t read_count_ = 0;
};

}  // namespace smoe::model
