// convert/journal.h: which experts of an unfinished vault are done, so that a later run can go on.
//
// A text file OUT.journal. The first line says what is being made from what (the identity, as
// JSON); then one line per finished expert, each with a checksum of its own, so that a line that
// a kill or a power cut has torn counts as absent.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "checkpoint/expert_layout.h"
#include "io/file.h"
#include "tensor/quantise.h"

namespace smoe::convert {

// What one expert left behind.
struct ExpertDone {
  uint64_t index = 0;             // into the plan's experts
  uint64_t checksum = 0;          // XXH3-64 of the blob
  uint64_t non_finite_count = 0;  // weights that became 0
  // By projection; all zero where the error is not measured.
  std::array<tensor::QuantisationError, checkpoint::kProjCount> errors;
};

class Journal {
 public:
  // Starts an empty journal. `identity`: an object of objects or values.
  static Result<std::unique_ptr<Journal>> Create(const std::string& path, const Json& identity);

  // Opens the journal of an interrupted run and returns its experts in `done` (the last line of
  // each). A missing or empty journal is begun anew.
  // Errors: kInvalid if its identity differs, naming each difference, then and now.
  static Result<std::unique_ptr<Journal>> Resume(const std::string& path, const Json& identity,
                                                 std::vector<ExpertDone>* done);

  // Threads: any. The line is with the kernel when this returns.
  Status Append(const ExpertDone& expert);

 private:
  Journal() = default;
  io::File file_;
  std::mutex mutex_;
  uint64_t end_ = 0;  // in bytes
};

// The answer to a resume where no journal is and something else is in the way.
Unexpected NoJournal(const std::string& journal_path, const std::string& out_path);

}  // namespace smoe::convert
