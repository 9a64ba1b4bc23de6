// io_uring refused by a real seccomp filter, in a child process: what a container does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <vector>

#include "io/read_queue.h"

namespace smoe::io {
namespace {

// From here on `call` gives `error` in this process.
bool Refuse(uint32_t call, uint32_t error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error & SECCOMP_RET_DATA)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = 4, .filter = filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

struct ChildResult {
  int exit_code = -1;
  std::string text;  // stdout and stderr
};

// Runs `prepare` and then `body` in a child and collects what they write. 99: cannot prepare.
template <class Prepare>
ChildResult RunInChild(const Prepare& prepare, int (*body)()) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    _exit(prepare() ? body() : 99);
  }
  close(ends[1]);
  ChildResult result;
  char buffer[512];
  for (ssize_t got = read(ends[0], buffer, sizeof(buffer)); got > 0;
       got = read(ends[0], buffer, sizeof(buffer))) {
    result.text.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

ChildResult RunRefused(uint32_t call, uint32_t error, int (*body)()) {
  return RunInChild([call, error] { return Refuse(call, error); }, body);
}

// Prints the reason; 0 if io_uring is refused as it should be.
int OpenExplicitly() {
  Result<std::unique_ptr<ReadQueue>> queue = ReadQueue::Open(ReadBackend::kUring, {});
  if (queue) return 1;
  dprintf(1, "%s", queue.error().message().c_str());
  return queue.error().code() == ErrorCode::kUnsupported ? 0 : 2;
}

// 0 if the queue that comes reads right; 2 if it is not of the kind `name`, where one is given.
int OpenAndRead(const char* name) {
  Result<std::unique_ptr<ReadQueue>> queue = ReadQueue::Open(ReadBackend::kAuto, {.depth = 4});
  if (!queue) return 1;
  if (name != nullptr && std::string((*queue)->name()) != name) return 2;
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  std::vector<std::byte> magic(4);
  (*queue)->Push({.fd = fd, .offset = 0, .into = magic, .tag = 0});
  ReadDone done{};
  Result<size_t> count = (*queue)->Reap({&done, 1}, 1);
  if (!count || *count != 1 || done.error != 0) return 3;
  return magic[1] == std::byte{'E'} && magic[3] == std::byte{'F'} ? 0 : 4;
}

int OpenThreads() { return OpenAndRead("threads"); }
int OpenAny() { return OpenAndRead(nullptr); }

struct Refusal {
  uint32_t call;
  uint32_t error;
  const char* reason;
};

class ReadQueueSandbox : public testing::TestWithParam<Refusal> {};

TEST_P(ReadQueueSandbox, ExplicitRingIsUnsupportedAndTheMessageSaysWhy) {
  const Refusal& refusal = GetParam();
  const ChildResult result = RunRefused(refusal.call, refusal.error, OpenExplicitly);
  if (result.exit_code == 99) GTEST_SKIP() << "no seccomp filters in this sandbox";
  EXPECT_EQ(result.exit_code, 0) << result.text;
  EXPECT_NE(result.text.find(refusal.reason), std::string::npos) << result.text;
  EXPECT_EQ(result.text.find("io_uring: "), 0u) << result.text;
}

TEST_P(ReadQueueSandbox, AutomaticChoiceReadsWithThreadsAfterOneLine) {
  const Refusal& refusal = GetParam();
  const ChildResult result = RunRefused(refusal.call, refusal.error, OpenThreads);
  if (result.exit_code == 99) GTEST_SKIP() << "no seccomp filters in this sandbox";
  EXPECT_EQ(result.exit_code, 0) << result.text;
  EXPECT_EQ(std::count(result.text.begin(), result.text.end(), '\n'), 1) << result.text;
  EXPECT_NE(result.text.find(refusal.reason), std::string::npos) << result.text;
  EXPECT_NE(result.text.find("using 4 pread threads"), std::string::npos) << result.text;
}

INSTANTIATE_TEST_SUITE_P(
    Refusals, ReadQueueSandbox,
    testing::Values(Refusal{SYS_io_uring_setup, EPERM, "Operation not permitted"},
                    Refusal{SYS_io_uring_setup, ENOSYS, "Function not implemented"},
                    Refusal{SYS_io_uring_setup, ENOMEM, "Cannot allocate memory"},
                    Refusal{SYS_io_uring_enter, EPERM, "Operation not permitted"}));

TEST(ReadQueueSandbox, RingThatMayNotRegisterBuffersStillWorks) {
  const ChildResult result = RunRefused(SYS_io_uring_register, EPERM, [] {
    Result<std::unique_ptr<ReadQueue>> queue = ReadQueue::OpenUring({.depth = 4});
    if (queue) return 0;
    dprintf(1, "%s", queue.error().message().c_str());
    return 98;
  });
  if (result.exit_code == 99) GTEST_SKIP() << "no seccomp filters in this sandbox";
  if (result.exit_code == 98) GTEST_SKIP() << result.text;
  EXPECT_EQ(result.exit_code, 0) << result.text;
}

TEST(ReadQueueSandbox, ReadsWorkWhateverTheLimitOnLockedMemory) {
  for (const rlim_t limit : {rlim_t{0}, rlim_t{64 << 10}}) {
    const ChildResult result = RunInChild(
        [limit] {
          const rlimit locked{.rlim_cur = limit, .rlim_max = limit};
          return setrlimit(RLIMIT_MEMLOCK, &locked) == 0;
        },
        OpenAny);
    EXPECT_EQ(result.exit_code, 0) << result.text;
  }
}

// Prints why 1 MiB of memory is not registered; 0 if reads into it work all the same.
int RegisterMemoryAndRead() {
  Result<std::unique_ptr<ReadQueue>> queue = ReadQueue::OpenUring({.depth = 4});
  if (!queue) {
    dprintf(1, "%s", queue.error().message().c_str());
    return 98;
  }
  std::vector<std::byte> memory(1 << 20);
  const Status registered = (*queue)->RegisterMemory(memory);
  if (registered) return 5;
  if (registered.error().code() != ErrorCode::kUnsupported) return 6;
  dprintf(1, "%s", registered.error().message().c_str());
  const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  (*queue)->Push({.fd = fd, .offset = 0, .into = MutableBytes(memory).first(4), .tag = 0});
  ReadDone done{};
  Result<size_t> count = (*queue)->Reap({&done, 1}, 1);
  return count && *count == 1 && done.error == 0 && memory[1] == std::byte{'E'} ? 0 : 7;
}

TEST(ReadQueueSandbox, MemoryAboveTheLockedLimitIsNotRegisteredAndTheMessageNamesTheLimit) {
  const ChildResult result = RunInChild(
      [] {
        const rlimit locked{.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
        if (setrlimit(RLIMIT_MEMLOCK, &locked) != 0) return false;
        constexpr uid_t kNobody = 65534;  // root has no limit
        return geteuid() != 0 || setuid(kNobody) == 0;
      },
      RegisterMemoryAndRead);
  if (result.exit_code == 98 || result.exit_code == 99) GTEST_SKIP() << result.text;
  EXPECT_EQ(result.exit_code, 0) << result.text;
  EXPECT_NE(result.text.find("the limit on locked memory is 64"), std::string::npos) << result.text;
}

TEST(ReadQueueSandbox, MemoryIsNotRegisteredWhereTheSandboxForbidsIt) {
  const ChildResult result = RunRefused(SYS_io_uring_register, EPERM, RegisterMemoryAndRead);
  if (result.exit_code == 98 || result.exit_code == 99) GTEST_SKIP() << result.text;
  EXPECT_EQ(result.exit_code, 0) << result.text;
  EXPECT_NE(result.text.find("registering memory: Operation not permitted"), std::string::npos)
      << result.text;
}

}  // namespace
}  // namespace smoe::io
