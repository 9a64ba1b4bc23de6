// io/bad_sector_for_test.h: a real queue on a drive with bad places: the kernel itself says EIO.
//
// Linux answers a read of /proc/self/mem where nothing is mapped with EIO, without root, a loop
// device or a fault injector. Reads that `is_bad` picks go there; the queue below is a real one.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <utility>

#include "io/read_queue.h"

namespace smoe::io {

class BadSectorQueue final : public ReadQueue {
 public:
  BadSectorQueue(std::unique_ptr<ReadQueue> inner, std::function<bool(const ReadRequest&)> is_bad)
      : inner_(std::move(inner)),
        is_bad_(std::move(is_bad)),
        fd_(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC)) {
    EXPECT_GE(fd_, 0);
  }
  ~BadSectorQueue() override {
    inner_.reset();
    ::close(fd_);
  }
  const char* name() const override { return inner_->name(); }
  uint32_t free_count() const override { return inner_->free_count(); }
  void Push(const ReadRequest& request) override {
    constexpr uint64_t kUnmapped = 4096;  // below the least address that a program may map
    ReadRequest sent = request;
    if (is_bad_(request)) {
      sent.fd = fd_;
      sent.offset = kUnmapped;
    }
    inner_->Push(sent);
  }
  Status Submit() override { return inner_->Submit(); }
  Result<size_t> Reap(std::span<ReadDone> done, size_t done_min) override {
    return inner_->Reap(done, done_min);
  }

 private:
  std::unique_ptr<ReadQueue> inner_;
  const std::function<bool(const ReadRequest&)> is_bad_;
  const int fd_;
};

}  // namespace smoe::io
