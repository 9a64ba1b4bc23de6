// convert/ledger.h: which experts of a conversion are done, and what each left behind. Kept in
// memory and in the journal, so that an interrupted run is taken over.
//
//   ledger = Ledger::Open(journal, identity, expert_count, resume)
//   Restore(...)                        what an earlier run wrote and still is what it wrote
//   work of expert i: if (ledger.IsDone(i)) ...; ledger.Start(i); fill it; ledger.Finish(i)
//   totals, in the order of the experts: a resumed run gives the same figures
//
// Threads: any, one per expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "convert/expert_error.h"
#include "convert/journal.h"
#include "convert/progress.h"
#include "convert/workers.h"

namespace smoe::convert {

class Ledger {
 public:
  // Begins the journal, or with `resume` opens that of an interrupted run.
  // Errors: as Journal::Create and Journal::Resume.
  static Result<Ledger> Open(const std::string& journal_path, const Json& identity,
                             size_t expert_count, bool resume);

  // Calls `restore(index, checksum, worker)`, a Result<bool>, for each expert that the journal
  // names, in phase "resuming" of `expert_bytes` each; true takes it over. `make_worker` as in
  // RunWorkers. Without such experts nothing is called.
  template <class MakeWorker, class RestoreOne>
  Status Restore(size_t thread_count, uint64_t expert_bytes, Progress& progress,
                 const MakeWorker& make_worker, const RestoreOne& restore);

  bool IsDone(size_t index) const { return is_done_[index] != 0; }
  // The expert's entry, to be filled: checksum, errors, non_finite_count.
  ExpertDone& Start(size_t index);
  // Writes its line.
  Status Finish(size_t index) { return journal_->Append(done_[index]); }

  size_t expert_count() const { return done_.size(); }
  uint64_t restored_count() const;
  std::span<const ExpertDone> experts() const { return done_; }
  uint64_t non_finite_count() const;
  ProjErrors errors() const;  // by projection, all experts together

 private:
  explicit Ledger(size_t expert_count) : done_(expert_count), is_done_(expert_count) {}

  std::unique_ptr<Journal> journal_;
  std::vector<ExpertDone> earlier_;  // as the journal has them
  std::vector<ExpertDone> done_;
  std::vector<uint8_t> is_done_;  // restored; a byte each, so that threads never share one
};

template <class MakeWorker, class RestoreOne>
Status Ledger::Restore(size_t thread_count, uint64_t expert_bytes, Progress& progress,
                       const MakeWorker& make_worker, const RestoreOne& restore) {
  if (earlier_.empty()) return Ok();
  const ProgressPhase phase(progress, "resuming", earlier_.size() * expert_bytes);
  return RunWorkers(
      earlier_.size(), thread_count, make_worker, [&](size_t i, auto& worker) -> Status {
        const ExpertDone& expert = earlier_[i];
        if (expert.index >= done_.size()) return Ok();
        SMOE_TRY_ASSIGN(const bool is_same, restore(expert.index, expert.checksum, worker));
        progress.Advance(expert_bytes);
        if (!is_same) return Ok();
        done_[expert.index] = expert;
        is_done_[expert.index] = 1;
        return Ok();
      });
}

}  // namespace smoe::convert
