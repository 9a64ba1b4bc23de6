// experts/backend.h: the only way in which a model reaches its experts.
//
// A batch of token rows with their routing goes in, the weighted sum of their experts comes out.
// Here (experts/local_backend.h) the experts are read and computed on this machine; another
// implementation may send the rows to other machines. Either way a row's result has the same bits:
// expert outputs are added in router order, rank 0 first, never in order of arrival.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "experts/expert_cache.h"

namespace smoe::experts {

// Up to so many rows the next layer's experts are guessed one by one, and only where timing shows
// that it pays. Of more rows, some will want nearly every expert that is named: they are foreseen.
inline constexpr size_t kGuessRowsMax = 16;

enum class Arithmetic : uint8_t {
  kInt8,  // activations quantised to s8 where the weights are quantised; f32 otherwise
  kF32,   // weights dequantised exactly
};
const char* ArithmeticName(Arithmetic arithmetic);  // "int8", "f32"

// The routing of row_count token rows through one layer.
struct RoutedRows {
  uint32_t layer_index = 0;
  size_t row_count = 0;
  size_t top_k = 0;
  const float* hidden = nullptr;         // [row_count][hidden_size], normed input
  const uint32_t* expert_ids = nullptr;  // [row_count][top_k], router order
  const float* weights = nullptr;        // [row_count][top_k]
  float* out = nullptr;                  // [row_count][hidden_size]: set to the weighted sum
  // More rows of the same sequences will run through all layers right afterwards: a prompt's next
  // chunk. Changes no result.
  bool more_follow = false;
};

// A row that could not be computed; its out is unspecified.
struct RowFailure {
  size_t row = 0;
  Error error;
};

class ExpertBackend {
 public:
  virtual ~ExpertBackend() = default;

  // Begins to read what the rows want. Run with the same rows follows, with nothing but Foresee and
  // Poll in between.
  // Requires ids that the layer has, row_count <= the maximum given at creation.
  // Errors: as Run.
  virtual Status Begin(const RoutedRows& rows) {
    (void)rows;
    return Ok();
  }
  // Computes all rows; those whose expert could not be had are appended to `failures`, once each.
  // Errors: only if nothing more can be computed (the queue is broken).
  virtual Status Run(const RoutedRows& rows, std::vector<RowFailure>* failures) = 0;

  // Whether Foresee would make use of what is likely now, with so many rows.
  virtual bool WantsLikely(size_t row_count) const {
    (void)row_count;
    return false;
  }

  // Gives the memory of rows that were computed back to the system, for as long as no Run wants
  // it. Requires that none is under way.
  virtual void ForgetActivations() {}

  // What the row_count rows of a step will probably want of the next layer that has experts, said
  // behind Begin, when their own reads are under way, or between Run and Begin: likeliest first; an
  // expert stands there once for each row that will. Of many rows some may have been asked. In
  // place of what was said before, as far as its reads have not begun. Changes no result. Worth the
  // trouble for the first layer that has experts where WantsFirst says so, for the others where
  // WantsLikely does.
  virtual bool WantsFirst(size_t row_count) const {
    (void)row_count;
    return false;
  }
  virtual void Foresee(uint32_t layer_index, std::span<const uint32_t> likely_ids,
                       size_t row_count) {
    (void)layer_index;
    (void)likely_ids;
    (void)row_count;
  }

  // Called between the loops of a step: a look at the drive, which may go on reading then.
  virtual void Poll() {}

  virtual CacheStats stats() const = 0;
  virtual uint64_t compute_ns() const = 0;
};

}  // namespace smoe::experts
