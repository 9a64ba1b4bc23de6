// store/vault/verify_collector.h: what the threads of a verification share.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "store/vault/verify.h"

namespace smoe::store::vault {

// The report, and how far they are. Threads: any.
class VerifyCollector {
 public:
  // `total`: bytes that will be checked. Both references outlive this.
  VerifyCollector(const VerifyOptions& options, uint64_t total, VerifyReport* report)
      : options_(options), total_(total), report_(report) {}

  void Problem(std::string problem) {
    const std::lock_guard lock(mutex_);
    report_->AddProblem(std::move(problem));
  }
  void OddPadding() {
    const std::lock_guard lock(mutex_);
    ++odd_padding_count_;
  }
  void Advance(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    report_->checked_bytes += bytes;
    // A few hundred calls, however many experts there are.
    const uint64_t step = total_ / 256;
    if (!options_.progress) return;
    if (report_->checked_bytes < shown_ + step && report_->checked_bytes != total_) return;
    shown_ = report_->checked_bytes;
    options_.progress(shown_, total_);
  }
  // To be asked when the threads are done.
  uint64_t odd_padding_count() const { return odd_padding_count_; }

 private:
  const VerifyOptions& options_;
  const uint64_t total_;
  VerifyReport* const report_;
  std::mutex mutex_;
  uint64_t shown_ = 0;
  uint64_t odd_padding_count_ = 0;
};

}  // namespace smoe::store::vault
