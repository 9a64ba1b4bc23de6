#include "convert/ledger.h"

#include <algorithm>

namespace smoe::convert {

Result<Ledger> Ledger::Open(const std::string& journal_path, const Json& identity,
                            size_t expert_count, bool resume) {
  Ledger ledger(expert_count);
  if (resume) {
    SMOE_TRY_ASSIGN(ledger.journal_, Journal::Resume(journal_path, identity, &ledger.earlier_));
  } else {
    SMOE_TRY_ASSIGN(ledger.journal_, Journal::Create(journal_path, identity));
  }
  return ledger;
}

ExpertDone& Ledger::Start(size_t index) {
  ExpertDone& done = done_[index];
  done.index = index;
  return done;
}

uint64_t Ledger::restored_count() const {
  return static_cast<uint64_t>(std::count(is_done_.begin(), is_done_.end(), uint8_t{1}));
}

uint64_t Ledger::non_finite_count() const {
  uint64_t count = 0;
  for (const ExpertDone& expert : done_) count += expert.non_finite_count;
  return count;
}

ProjErrors Ledger::errors() const {
  ProjErrors errors;
  for (const ExpertDone& expert : done_) {
    for (size_t i = 0; i < errors.size(); ++i) errors[i].Add(expert.errors[i]);
  }
  return errors;
}

}  // namespace smoe::convert
