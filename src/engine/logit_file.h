// engine/logit_file.h: rows of logits on the drive, while another model computes its own.
//
// Two models larger than memory cannot be open together; a vocabulary of 150,000 and a text of a
// few thousand tokens make gigabytes. The file has no name and goes with the object.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "io/file.h"

namespace smoe::engine {

class LogitFile {
 public:
  // In $TMPDIR, or /tmp.
  // Errors: kExhausted if its drive has less than row_count * vocab_size * 4 bytes free, saying
  //         both and naming TMPDIR; kIo.
  static Result<LogitFile> Create(uint64_t row_count, uint64_t vocab_size);

  // Requires row < row_count and spans of vocab_size.
  Status Write(uint64_t row, std::span<const float> logits);
  Status Read(uint64_t row, std::span<float> logits) const;

 private:
  LogitFile(io::File file, uint64_t row_count, uint64_t vocab_size)
      : file_(std::move(file)), row_count_(row_count), vocab_size_(vocab_size) {}

  io::File file_;
  uint64_t row_count_;
  uint64_t vocab_size_;
};

}  // namespace smoe::engine
