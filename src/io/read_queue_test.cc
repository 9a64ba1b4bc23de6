// One suite for all read queues: what the contract says holds for each of them.
#include "io/read_queue.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/memory.h"
#include "io/fake_read_queue.h"
#include "io/file.h"
#include "io/split_read_queue.h"

namespace smoe::io {
namespace {

// A file of seeded bytes that is gone when the test ends.
class TestFile {
 public:
  TestFile(uint64_t size, uint64_t seed) : content_(size) {
    std::string name = (std::filesystem::temp_directory_path() / "smoe_read_XXXXXX").string();
    fd_ = mkstemp(name.data());
    path_ = name;
    std::mt19937_64 random(seed);
    for (std::byte& byte : content_) byte = static_cast<std::byte>(random());
    EXPECT_EQ(pwrite(fd_, content_.data(), size, 0), static_cast<ssize_t>(size));
  }
  ~TestFile() {
    close(fd_);
    unlink(path_.c_str());
  }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  Bytes range(uint64_t offset, uint64_t size) const {
    return Bytes(content_).subspan(offset, size);
  }

 private:
  int fd_ = -1;
  std::string path_;
  std::vector<std::byte> content_;
};

bool Same(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

class ReadQueueContract : public testing::TestWithParam<const char*> {
 protected:
  Result<std::unique_ptr<ReadQueue>> Open(uint32_t depth, uint32_t thread_count = 3) {
    ReadQueue::Options options{.depth = depth, .thread_count = thread_count};
    if (is_split()) options.piece_bytes = kDirectAlignment;
    const std::string kind = base_name();
    if (kind == "uring") return ReadQueue::OpenUring(options);
    if (kind == "threads") return ReadQueue::OpenThreaded(options);
    if (!is_split()) return MakeFakeReadQueue({.seed = 11, .depth = depth});
    // Hardly room for the pieces of one read, so that most have to wait.
    return MakeSplitReadQueue(MakeFakeReadQueue({.seed = 11, .depth = 3}), depth,
                              options.piece_bytes);
  }

  bool is_split() const { return std::string(GetParam()).ends_with("_split"); }
  std::string base_name() const {
    const std::string name = GetParam();
    return name.substr(0, name.find('_'));
  }

  // A machine without io_uring cannot test it; that is said, not hidden.
  std::unique_ptr<ReadQueue> OpenOrSkip(uint32_t depth) {
    Result<std::unique_ptr<ReadQueue>> queue = Open(depth);
    if (queue) return std::move(*queue);
    EXPECT_EQ(queue.error().code(), ErrorCode::kUnsupported) << queue.error().message();
    skip_reason_ = queue.error().message();
    return nullptr;
  }

  std::string skip_reason_;
};

#define OPEN_QUEUE(queue, depth)                        \
  std::unique_ptr<ReadQueue> queue = OpenOrSkip(depth); \
  if (queue == nullptr) GTEST_SKIP() << skip_reason_

TEST_P(ReadQueueContract, NameSaysWhichItIs) {
  OPEN_QUEUE(queue, 4);
  EXPECT_EQ(queue->name(), base_name());
}

TEST_P(ReadQueueContract, DeliversEveryByteAndEveryTagOnce) {
  const TestFile file(1 << 20, 1);
  for (const uint32_t depth : {1u, 2u, 7u, 64u, kReadDepthMax}) {
    OPEN_QUEUE(queue, depth);
    std::mt19937_64 random(depth);
    const size_t read_count = 300;
    std::vector<std::vector<std::byte>> buffers(read_count);
    std::vector<uint64_t> offsets(read_count);
    std::vector<int> seen(read_count, 0);
    size_t next = 0;
    size_t reaped = 0;
    std::vector<ReadDone> done(16);
    while (reaped < read_count) {
      while (next < read_count && queue->free_count() > 0) {
        offsets[next] = random() % (1 << 20);
        buffers[next].resize(random() % ((1 << 20) - offsets[next]) % 9000 + 1);
        queue->Push({.fd = file.fd(), .offset = offsets[next], .into = buffers[next], .tag = next});
        ++next;
      }
      const size_t in_flight = depth - queue->free_count();
      const size_t wanted = std::min<size_t>({in_flight, done.size(), random() % 5});
      Result<size_t> count = queue->Reap(done, wanted);
      ASSERT_TRUE(count.has_value()) << count.error().message();
      ASSERT_GE(*count, wanted);
      for (size_t i = 0; i < *count; ++i) {
        EXPECT_EQ(done[i].error, 0);
        ASSERT_LT(done[i].tag, read_count);
        ++seen[done[i].tag];
      }
      reaped += *count;
    }
    EXPECT_EQ(queue->free_count(), depth);
    for (size_t i = 0; i < read_count; ++i) {
      ASSERT_EQ(seen[i], 1) << "read " << i << ", depth " << depth;
      ASSERT_TRUE(Same(buffers[i], file.range(offsets[i], buffers[i].size()))) << "read " << i;
    }
  }
}

TEST_P(ReadQueueContract, EndOfFileIsNoDataWhereverTheReadBegins) {
  const TestFile file(10'000, 2);
  OPEN_QUEUE(queue, 8);
  std::vector<std::byte> buffer(4 * 5000);
  const MutableBytes all(buffer);
  queue->Push({.fd = file.fd(), .offset = 5000, .into = all.subspan(0, 5000), .tag = 0});
  queue->Push({.fd = file.fd(), .offset = 5001, .into = all.subspan(5000, 5000), .tag = ENODATA});
  queue->Push({.fd = file.fd(), .offset = 10'000, .into = all.subspan(10'000, 1), .tag = ENODATA});
  queue->Push({.fd = file.fd(), .offset = 99'999, .into = all.subspan(15'000, 9), .tag = ENODATA});
  std::vector<ReadDone> done(4);
  ASSERT_EQ(queue->Reap(done, 4).value(), 4u);
  for (const ReadDone& one : done) EXPECT_EQ(one.error, static_cast<int>(one.tag));
  EXPECT_TRUE(Same(all.subspan(0, 5000), file.range(5000, 5000)));
}

TEST_P(ReadQueueContract, EmptyReadSucceeds) {
  const TestFile file(10, 2);
  OPEN_QUEUE(queue, 1);
  queue->Push({.fd = file.fd(), .offset = 3, .into = {}, .tag = 5});
  ReadDone done{};
  ASSERT_EQ(queue->Reap({&done, 1}, 1).value(), 1u);
  EXPECT_EQ(done.tag, 5u);
  EXPECT_EQ(done.error, 0);
}

TEST_P(ReadQueueContract, BadFileFailsAloneAndTheOthersArrive) {
  const TestFile file(10'000, 3);
  const int directory = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  OPEN_QUEUE(queue, 8);
  std::vector<std::byte> buffer(30);
  const MutableBytes all(buffer);
  queue->Push({.fd = -1, .offset = 0, .into = all.subspan(0, 10), .tag = EBADF});
  queue->Push({.fd = file.fd(), .offset = 100, .into = all.subspan(10, 10), .tag = 0});
  queue->Push({.fd = directory, .offset = 0, .into = all.subspan(20, 10), .tag = EISDIR});
  std::vector<ReadDone> done(3);
  ASSERT_EQ(queue->Reap(done, 3).value(), 3u);
  for (const ReadDone& one : done) EXPECT_EQ(one.error, static_cast<int>(one.tag));
  EXPECT_TRUE(Same(all.subspan(10, 10), file.range(100, 10)));
  close(directory);
}

TEST_P(ReadQueueContract, ReadTakesItsPlaceFromPushToReap) {
  const TestFile file(100, 4);
  OPEN_QUEUE(queue, 2);
  std::byte bytes[2];
  ReadDone done[2];
  EXPECT_EQ(queue->free_count(), 2u);
  EXPECT_EQ(queue->Reap(done, 0).value(), 0u);
  queue->Push({.fd = file.fd(), .offset = 0, .into = {bytes, 1}, .tag = 0});
  EXPECT_EQ(queue->free_count(), 1u);
  queue->Push({.fd = file.fd(), .offset = 1, .into = {bytes + 1, 1}, .tag = 1});
  EXPECT_EQ(queue->free_count(), 0u);
  ASSERT_TRUE(queue->Submit().has_value());
  EXPECT_EQ(queue->free_count(), 0u);
  ASSERT_EQ(queue->Reap({done, 1}, 1).value(), 1u);
  EXPECT_EQ(queue->free_count(), 1u);
  ASSERT_EQ(queue->Reap(done, 1).value(), 1u);
  EXPECT_EQ(queue->free_count(), 2u);
}

TEST_P(ReadQueueContract, FullQueueTakesNoMore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  OPEN_QUEUE(queue, 1);
  std::byte byte{};
  const ReadRequest request{.fd = -1, .offset = 0, .into = {&byte, 1}, .tag = 0};
  queue->Push(request);
  EXPECT_DEATH(queue->Push(request), "free");
}

TEST_P(ReadQueueContract, WaitingForMoreThanIsInFlightIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  OPEN_QUEUE(queue, 4);
  ReadDone done[2];
  EXPECT_DEATH(static_cast<void>(queue->Reap(done, 1)), "done_min");
}

TEST_P(ReadQueueContract, DestructorWaitsSoThatNothingIsWrittenAfterIt) {
  const uint64_t size = 1 << 18;
  const TestFile file(size, 5);
  std::vector<std::byte> buffer(16 * size);
  for (int round = 0; round < 8; ++round) {
    OPEN_QUEUE(queue, 16);
    for (uint64_t i = 0; i < 16; ++i) {
      const MutableBytes into = MutableBytes(buffer).subspan(i * size, size);
      queue->Push({.fd = file.fd(), .offset = 0, .into = into, .tag = i});
    }
    ASSERT_TRUE(queue->Submit().has_value());
    queue.reset();
    // A late write would show: the next round's work gives it all the time it needs.
    std::fill(buffer.begin(), buffer.end(), std::byte{0xaa});
    std::vector<std::byte> copy(size);
    for (int i = 0; i < 16; ++i) ASSERT_GT(pread(file.fd(), copy.data(), size, 0), 0);
    ASSERT_TRUE(std::all_of(buffer.begin(), buffer.end(),
                            [](std::byte byte) { return byte == std::byte{0xaa}; }));
  }
}

TEST_P(ReadQueueContract, ReadThatWasNeverSubmittedTouchesNothing) {
  const TestFile file(4096, 6);
  std::vector<std::byte> buffer(4096, std::byte{0xaa});
  {
    OPEN_QUEUE(queue, 4);
    queue->Push({.fd = file.fd(), .offset = 0, .into = buffer, .tag = 0});
  }
  EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(),
                          [](std::byte byte) { return byte == std::byte{0xaa}; }));
}

TEST_P(ReadQueueContract, OffsetsBeyondFourGibibytesAreMeant) {
  const TestFile file(10, 7);
  const uint64_t marks[] = {0x7ffffffe, 0xfffffffc, 0x100000000, 0x123456789};
  for (const uint64_t mark : marks) {
    ASSERT_EQ(pwrite(file.fd(), &mark, sizeof(mark), static_cast<off_t>(mark)), 8);
  }
  OPEN_QUEUE(queue, 4);
  for (const uint64_t mark : marks) {
    if (mark == 0xfffffffc) continue;  // overwritten in part by the next mark
    uint64_t got = 0;
    const MutableBytes into = std::as_writable_bytes(std::span<uint64_t>(&got, 1));
    queue->Push({.fd = file.fd(), .offset = mark, .into = into, .tag = 0});
    ReadDone done{};
    ASSERT_EQ(queue->Reap({&done, 1}, 1).value(), 1u);
    EXPECT_EQ(done.error, 0);
    EXPECT_EQ(got, mark);
  }
}

TEST_P(ReadQueueContract, DirectReadsDeliverAndEndWithTheFile) {
  // Not a multiple of the alignment, so that the last direct read comes back short.
  const uint64_t size = 3 * kDirectAlignment + 1000;
  const TestFile file(size, 8);
  const int direct = open(file.path().c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (direct < 0) GTEST_SKIP() << file.path() << ": no direct reads here";
  OPEN_QUEUE(queue, 4);
  AlignedBuffer buffer = std::move(*AlignedBuffer::Create(8 * kDirectAlignment, "test"));
  const MutableBytes all = buffer.bytes();
  queue->Push({.fd = direct,
               .offset = kDirectAlignment,
               .into = all.subspan(0, 2 * kDirectAlignment),
               .tag = 0});
  queue->Push({.fd = direct,
               .offset = 2 * kDirectAlignment,
               .into = all.subspan(4 * kDirectAlignment, 4 * kDirectAlignment),
               .tag = ENODATA});
  std::vector<ReadDone> done(2);
  ASSERT_EQ(queue->Reap(done, 2).value(), 2u);
  close(direct);
  if (done[0].error == EINVAL) GTEST_SKIP() << file.path() << ": direct reads are refused here";
  for (const ReadDone& one : done) EXPECT_EQ(one.error, static_cast<int>(one.tag));
  EXPECT_TRUE(Same(all.subspan(0, 2 * kDirectAlignment),
                   file.range(kDirectAlignment, 2 * kDirectAlignment)));
}

std::atomic<int> signal_count{0};

TEST_P(ReadQueueContract, SignalsInterruptNothingThatTheCallerSees) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { signal_count.fetch_add(1, std::memory_order_relaxed); };
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);  // without SA_RESTART
  const uint64_t size = 1 << 20;
  const TestFile file(size, 9);
  OPEN_QUEUE(queue, 4);
  std::atomic<bool> stop{false};
  const pthread_t owner = pthread_self();
  std::thread sender([&stop, owner] {
    while (!stop.load(std::memory_order_relaxed)) {
      pthread_kill(owner, SIGUSR1);
      std::this_thread::yield();
    }
  });
  std::vector<std::byte> buffer(4 * size);
  int wrong = 0;
  for (int round = 0; round < 50; ++round) {
    for (uint64_t i = 0; i < 4; ++i) {
      const MutableBytes into = MutableBytes(buffer).subspan(i * size, size);
      queue->Push({.fd = file.fd(), .offset = 0, .into = into, .tag = i});
    }
    ReadDone done[4];
    Result<size_t> count = queue->Reap(done, 4);
    if (!count || *count != 4) ++wrong;
    for (const ReadDone& one : done) wrong += one.error != 0 ? 1 : 0;
  }
  stop.store(true);
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(signal_count.load(), 0);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(Same(MutableBytes(buffer).subspan(i * size, size), file.range(0, size)));
  }
}

// 2.25 GiB of address space over 64 MiB of memory: a read larger than one call moves, without the
// memory that it would need.
class FoldedBuffer {
 public:
  static constexpr uint64_t kFoldBytes = uint64_t{64} << 20;
  static constexpr uint64_t kBytes = kFoldBytes * 36;

  FoldedBuffer() {
    const int fd = memfd_create("smoe-fold", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, kFoldBytes), 0);
    void* const start = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = static_cast<std::byte*>(start);
    for (uint64_t at = 0; at < kBytes; at += kFoldBytes) {
      void* const fold =
          mmap(data_ + at, kFoldBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
      EXPECT_NE(fold, MAP_FAILED);
    }
    close(fd);
  }
  ~FoldedBuffer() { munmap(data_, kBytes); }
  MutableBytes bytes() { return {data_, kBytes}; }

 private:
  std::byte* data_ = nullptr;
};

TEST_P(ReadQueueContract, ReadAboveTwoGibibytesComesWhole) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer shadows the whole 2.25 GiB";
#endif
  if (is_split()) GTEST_SKIP() << "no piece of it is larger than one call moves";
  // In memory, where holes cost nothing: on a drive this would fill the page cache.
  const int fd = memfd_create("smoe-sparse", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, FoldedBuffer::kBytes), 0);
  // In the last fold, which is the one that stays visible: behind what one call moves.
  const uint64_t mark_offset = FoldedBuffer::kBytes - 12345;
  const uint64_t mark = 0x1122334455667788;
  ASSERT_EQ(pwrite(fd, &mark, sizeof(mark), static_cast<off_t>(mark_offset)), 8);
  OPEN_QUEUE(queue, 2);
  FoldedBuffer buffer;
  queue->Push({.fd = fd, .offset = 0, .into = buffer.bytes(), .tag = 3});
  ReadDone done{};
  ASSERT_EQ(queue->Reap({&done, 1}, 1).value(), 1u);
  EXPECT_EQ(done.error, 0);
  EXPECT_EQ(LoadStruct<uint64_t>(buffer.bytes(), mark_offset), mark);
  close(fd);
}

INSTANTIATE_TEST_SUITE_P(AllQueues, ReadQueueContract,
                         testing::Values("uring", "threads", "fake", "uring_split", "threads_split",
                                         "fake_split"),
                         [](const auto& one) { return std::string(one.param); });

TEST(ReadQueue, OptionsAreTakenUpToTheirLimitsAndRefusedBeyond) {
  EXPECT_TRUE(ReadQueue::OpenThreaded({.depth = 1, .thread_count = kReadThreadsMax}).has_value());
  for (const ReadQueue::Options& options :
       {ReadQueue::Options{.depth = 0, .thread_count = 1},
        ReadQueue::Options{.depth = kReadDepthMax + 1, .thread_count = 1},
        ReadQueue::Options{.depth = 1, .thread_count = 0},
        ReadQueue::Options{.depth = 1, .thread_count = kReadThreadsMax + 1},
        ReadQueue::Options{.depth = 1, .thread_count = 1, .piece_bytes = 5000}}) {
    for (const ReadBackend backend :
         {ReadBackend::kAuto, ReadBackend::kUring, ReadBackend::kThreads}) {
      Result<std::unique_ptr<ReadQueue>> queue = ReadQueue::Open(backend, options);
      ASSERT_FALSE(queue.has_value());
      EXPECT_EQ(queue.error().code(), ErrorCode::kInvalid);
      EXPECT_NE(queue.error().message().find(options.piece_bytes == 0 ? "expected 1 to"
                                                                      : "a multiple of 4096"),
                std::string::npos);
    }
  }
}

TEST(SplitReadQueue, FailedPieceFailsItsReadAloneWithTheErrorOfTheFirstInTheFile) {
  constexpr uint64_t kPiece = kDirectAlignment;
  const TestFile file(64 * kPiece, 14);
  std::vector<std::byte> buffer(64 * kPiece);
  int piece_count = 0;
  FakeReadOptions options{.seed = 15, .depth = 4};
  // Of the second read, pieces 9 and 2 fail; 2 lies first, whichever comes first.
  options.fault = [&piece_count](const ReadRequest& request) {
    ++piece_count;
    if (request.offset == (16 + 2) * kPiece) return EIO;
    return request.offset == (16 + 9) * kPiece ? ENOMEM : 0;
  };
  auto queue = MakeSplitReadQueue(MakeFakeReadQueue(options), 4, kPiece);
  for (uint64_t read = 0; read < 4; ++read) {
    queue->Push({.fd = file.fd(),
                 .offset = read * 16 * kPiece,
                 .into = MutableBytes(buffer).subspan(read * 16 * kPiece, 16 * kPiece),
                 .tag = read});
  }
  ReadDone done[4];
  ASSERT_EQ(queue->Reap(done, 4).value(), 4u);
  for (const ReadDone& one : done) {
    EXPECT_EQ(one.error, one.tag == 1 ? EIO : 0);
    if (one.tag == 1) continue;
    const uint64_t at = one.tag * 16 * kPiece;
    EXPECT_TRUE(Same(MutableBytes(buffer).subspan(at, 16 * kPiece), file.range(at, 16 * kPiece)));
  }
  EXPECT_LT(piece_count, 4 * 16) << "what was left of the failed read was read all the same";
  EXPECT_EQ(queue->free_count(), 4u);
}

TEST(UringReadQueue, RegisteredFilesAndMemoryDeliverTheSameBytes) {
  const TestFile file(1 << 20, 16);
  const TestFile stranger(1 << 20, 17);
  AlignedBuffer memory = std::move(*AlignedBuffer::Create(1 << 20, "test"));
  for (const uint64_t piece_bytes : {uint64_t{0}, kDirectAlignment}) {
    auto opened = ReadQueue::OpenUring({.depth = 8, .piece_bytes = piece_bytes});
    if (!opened) GTEST_SKIP() << opened.error().message();
    ReadQueue& queue = **opened;
    const int fd = file.fd();
    if (Status done = queue.RegisterFiles({&fd, 1}); !done) GTEST_SKIP() << done.error().message();
    if (Status done = queue.RegisterMemory(memory.bytes()); !done) {
      GTEST_SKIP() << done.error().message();
    }
    for (int round = 0; round < 2; ++round) {
      std::vector<std::byte> elsewhere(300'000);
      const MutableBytes inside = memory.bytes();
      queue.Push({.fd = fd, .offset = 5, .into = inside.subspan(0, 500'000), .tag = 0});
      queue.Push({.fd = fd, .offset = 77, .into = elsewhere, .tag = 1});
      queue.Push({.fd = stranger.fd(), .offset = 9, .into = inside.last(400'000), .tag = 2});
      ReadDone done[3];
      ASSERT_EQ(queue.Reap(done, 3).value(), 3u);
      for (const ReadDone& one : done) EXPECT_EQ(one.error, 0);
      EXPECT_TRUE(Same(inside.subspan(0, 500'000), file.range(5, 500'000)));
      EXPECT_TRUE(Same(elsewhere, file.range(77, elsewhere.size())));
      EXPECT_TRUE(Same(inside.last(400'000), stranger.range(9, 400'000)));
      ASSERT_TRUE(queue.ForgetMemory().has_value());  // the second round reads without it
    }
  }
}

TEST(ThreadedReadQueue, SaysThatItRegistersNothing) {
  auto queue = std::move(*ReadQueue::OpenThreaded({.depth = 1, .thread_count = 1}));
  std::byte byte{};
  const int fd = 0;
  const Status files = queue->RegisterFiles({&fd, 1});
  const Status memory = queue->RegisterMemory({&byte, 1});
  ASSERT_FALSE(files.has_value());
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(files.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(memory.error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(queue->ForgetMemory().has_value());
}

TEST(FakeReadQueue, SameSeedGivesTheSameOrderAndOtherSeedsGiveOthers) {
  const TestFile file(64, 12);
  const auto order_of = [&file](uint64_t seed) {
    std::unique_ptr<ReadQueue> queue = MakeFakeReadQueue({.seed = seed, .depth = 64});
    std::vector<std::byte> bytes(64);
    for (uint64_t i = 0; i < 64; ++i) {
      queue->Push({.fd = file.fd(), .offset = i, .into = {&bytes[i], 1}, .tag = i});
    }
    std::vector<uint64_t> order;
    ReadDone done[64];
    while (order.size() < 64) {
      const size_t count = queue->Reap(done, 1).value();
      for (size_t i = 0; i < count; ++i) order.push_back(done[i].tag);
    }
    return order;
  };
  EXPECT_EQ(order_of(1), order_of(1));
  EXPECT_NE(order_of(1), order_of(2));
}

TEST(FakeReadQueue, FaultsAndDamageHitTheReadsTheyAreMeantFor) {
  const TestFile file(64, 13);
  FakeReadOptions options;
  options.fault = [](const ReadRequest& request) { return request.tag == 1 ? EIO : 0; };
  options.damage = [](const ReadRequest& request) {
    if (request.tag == 2) request.into[0] ^= std::byte{1};
  };
  std::unique_ptr<ReadQueue> queue = MakeFakeReadQueue(options);
  std::vector<std::byte> bytes(4);
  for (uint64_t i = 0; i < 4; ++i) {
    queue->Push({.fd = file.fd(), .offset = i, .into = {&bytes[i], 1}, .tag = i});
  }
  ReadDone done[4];
  ASSERT_EQ(queue->Reap(done, 4).value(), 4u);
  for (const ReadDone& one : done) EXPECT_EQ(one.error, one.tag == 1 ? EIO : 0);
  EXPECT_EQ(bytes[0], file.range(0, 1)[0]);
  EXPECT_EQ(bytes[2], file.range(2, 1)[0] ^ std::byte{1});
  EXPECT_EQ(bytes[3], file.range(3, 1)[0]);
}

}  // namespace
}  // namespace smoe::io
