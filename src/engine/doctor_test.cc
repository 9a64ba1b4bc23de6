#include "engine/doctor.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/fake_root_for_test.h"
#include "base/memory.h"
#include "engine/pages.h"

namespace smoe::engine {
namespace {

using testing::HasSubstr;

class Doctor : public FakeRootTest {};

TEST_F(Doctor, AKernelBefore56HasNoIoUring) {
  const std::string path = "/proc/sys/kernel/osrelease";
  EXPECT_EQ(CheckKernelVersion(root_).severity, Severity::kNote);
  for (const char* release : {"5.6.0", "5.10.0-31-amd64", "6.1.0", "6.18.44-fc"}) {
    Write(path, release);
    EXPECT_EQ(CheckKernelVersion(root_).severity, Severity::kOk) << release;
    EXPECT_THAT(CheckKernelVersion(root_).found, HasSubstr(release));
  }
  for (const char* release : {"5.5.19", "4.19.0"}) {
    Write(path, release);
    EXPECT_EQ(CheckKernelVersion(root_).severity, Severity::kNote) << release;
    EXPECT_THAT(CheckKernelVersion(root_).meaning, HasSubstr("5.6"));
  }
}

TEST_F(Doctor, AnUnknownInstructionSetKeepsEverythingFromRunning) {
  const Finding unknown = CheckInstructions("sse9");
  EXPECT_EQ(unknown.severity, Severity::kProblem);
  EXPECT_EQ(unknown.blocks, ErrorCode::kInvalid);
  const Finding scalar = CheckInstructions("scalar");
  EXPECT_EQ(scalar.severity, Severity::kProblem);
  EXPECT_FALSE(scalar.blocks);
  EXPECT_THAT(CheckInstructions("").found, HasSubstr("scalar"));
}

TEST_F(Doctor, AQuotaOfTimeIsNamed) {
  EXPECT_THAT(CheckCores(root_).found, HasSubstr("not listed"));
  EXPECT_EQ(CheckCores(root_).severity, Severity::kOk);
  Write("/proc/self/cgroup", "0::/box\n");
  Write("/sys/fs/cgroup/box/cpu.max", "100000 100000\n");
  Write("/sys/devices/system/cpu/online", "0-63\n");
  const Finding one = CheckCores(root_);
  EXPECT_THAT(one.found, HasSubstr("processors 0-63"));
  EXPECT_THAT(one.found, HasSubstr("the time of 1"));
  EXPECT_EQ(one.severity, Severity::kNote);
  EXPECT_THAT(one.remedy, HasSubstr("cpu.max"));
  Write("/sys/fs/cgroup/box/cpu.max", "409600000 100000\n");
  EXPECT_EQ(CheckCores(root_).severity, Severity::kOk);
}

TEST_F(Doctor, PowersaveMeansDifferentThingsToDifferentDrivers) {
  const std::string folder = "/sys/devices/system/cpu/cpu0/cpufreq/";
  EXPECT_EQ(CheckGovernor(root_).severity, Severity::kOk);
  Write("/proc/cpuinfo", "flags : hypervisor\n");
  EXPECT_THAT(CheckGovernor(root_).found, HasSubstr("virtual machine"));
  Write(folder + "scaling_governor", "performance\n");
  EXPECT_EQ(CheckGovernor(root_).severity, Severity::kOk);
  Write(folder + "scaling_governor", "powersave\n");
  EXPECT_EQ(CheckGovernor(root_).severity, Severity::kProblem);
  Write(folder + "scaling_driver", "intel_pstate\n");
  EXPECT_EQ(CheckGovernor(root_).severity, Severity::kNote);
  EXPECT_EQ(CheckGovernor(root_).found, "powersave of intel_pstate");
}

TEST_F(Doctor, NodesAreCountedAndInDetailListed) {
  EXPECT_EQ(CheckNuma(root_, false).size(), 1u);
  EXPECT_EQ(CheckNuma(root_, false)[0].found, "1 node");
  for (const char* node : {"node0", "node1"}) {
    const std::string folder = std::string("/sys/devices/system/node/") + node;
    Write(folder + "/cpulist", "0-3\n");
    Write(folder + "/meminfo", "Node 0 MemTotal: 1048576 kB\nNode 0 MemFree: 1024 kB\n");
  }
  EXPECT_EQ(CheckNuma(root_, false)[0].severity, Severity::kNote);
  const std::vector<Finding> findings = CheckNuma(root_, true);
  ASSERT_EQ(findings.size(), 4u);
  EXPECT_EQ(findings[1].subject, "numa node 0");
  EXPECT_EQ(findings[2].found, "processors 0-3, 1.0 GiB of memory, 1.0 MiB free");
  EXPECT_EQ(findings[3].subject, "placement");
}

TEST_F(Doctor, LittleMemoryIsANoteAndNoneAProblem) {
  const Finding unknown = CheckFreeMemory(root_);
  EXPECT_EQ(unknown.blocks, ErrorCode::kIo);
  const auto severity = [&](const char* kib) {
    Write("/proc/meminfo", std::string("MemTotal: 1 kB\nMemAvailable: ") + kib + " kB\n");
    return CheckFreeMemory(root_).severity;
  };
  EXPECT_EQ(severity("8388608"), Severity::kOk);
  EXPECT_EQ(severity("1048576"), Severity::kNote);
  EXPECT_EQ(severity("524288"), Severity::kProblem);
  EXPECT_FALSE(CheckFreeMemory(root_).blocks);
}

TEST_F(Doctor, SwapInUseIsANote) {
  Write("/proc/meminfo", "SwapTotal: 0 kB\n");
  EXPECT_EQ(CheckSwap(root_).found, "none");
  Write("/proc/meminfo", "SwapTotal: 1048576 kB\nSwapFree: 1048576 kB\n");
  EXPECT_EQ(CheckSwap(root_).severity, Severity::kOk);
  Write("/proc/meminfo", "SwapTotal: 1048576 kB\nSwapFree: 524288 kB\n");
  EXPECT_EQ(CheckSwap(root_).severity, Severity::kNote);
  EXPECT_EQ(CheckSwap(root_).found, "1.0 GiB, 512.0 MiB in use");
}

TEST_F(Doctor, StrictOvercommitIsANote) {
  for (const char* mode : {"0", "1"}) {
    Write("/proc/sys/vm/overcommit_memory", mode);
    EXPECT_EQ(CheckOvercommit(root_).severity, Severity::kOk);
  }
  Write("/proc/sys/vm/overcommit_memory", "2");
  EXPECT_EQ(CheckOvercommit(root_).severity, Severity::kNote);
}

TEST_F(Doctor, TheLimitOfLockedMemoryIsTheSoftOne) {
  const std::string path = "/proc/self/limits";
  EXPECT_EQ(CheckLockedMemory(root_).severity, Severity::kNote);
  Write(path,
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max locked memory         8388608              unlimited            bytes     \n");
  const auto refuses = [](uint64_t) { return false; };
  EXPECT_EQ(CheckLockedMemory(root_, refuses).found, "at most 8.0 MiB");
  EXPECT_EQ(CheckLockedMemory(root_, refuses).severity, Severity::kNote);
  Write(path, "Max locked memory         unlimited            unlimited            bytes     \n");
  EXPECT_EQ(CheckLockedMemory(root_).found, "unlimited");
  EXPECT_EQ(CheckLockedMemory(root_).severity, Severity::kOk);
}

TEST_F(Doctor, ALimitOfLockedMemoryThatDoesNotBindIsNoNote) {
  Write("/proc/self/limits",
        "Max locked memory         8388608              8388608              bytes     \n");
  // Asked for one page more than the limit.
  const auto allows = [](uint64_t bytes) { return bytes == 8388608 + 4096; };
  EXPECT_EQ(CheckLockedMemory(root_, allows).severity, Severity::kOk);
  EXPECT_THAT(CheckLockedMemory(root_, allows).found, HasSubstr("does not bind"));
  EXPECT_TRUE(MayLock(kPageBytes));
}

TEST_F(Doctor, HugePagesAreCountedNotBelieved) {
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const Finding finding = CheckHugePages(root_);
  EXPECT_THAT(finding.found, HasSubstr("set to \"never\""));
  // The setting is the test's, the pages are this machine's.
  EXPECT_EQ(finding.severity == Severity::kOk, finding.remedy.empty());
}

TEST_F(Doctor, ADirectReadIsTriedAndLeavesNothingBehind) {
  Write("/models/.keep", "");
  const std::string folder = root_ + "/models";
  const Finding in_folder = CheckDirectReads(folder);
  EXPECT_THAT(in_folder.found, HasSubstr(folder));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  const Finding missing = CheckDirectReads(folder + "/none.smoe");
  EXPECT_EQ(missing.blocks, ErrorCode::kInvalid);
  EXPECT_THAT(missing.found, HasSubstr("none.smoe"));
  const Finding device = CheckDirectReads("/dev/null");
  EXPECT_EQ(device.blocks, ErrorCode::kInvalid);
  EXPECT_THAT(device.found, HasSubstr("/dev/null: a device, pipe or socket"));
}

TEST_F(Doctor, AModelIsDescribedAndWhatIsNoneBlocks) {
  Write("/proc/meminfo", "MemAvailable: 1048576 kB\n");
  const std::string tiny = std::string(SMOE_SOURCE_DIR) + "/models/tiny-moe";
  const std::optional<Finding> fits = CheckModel(tiny, root_);
  ASSERT_TRUE(fits);
  EXPECT_EQ(fits->severity, Severity::kOk);
  EXPECT_THAT(fits->found, HasSubstr("qwen3_moe, 64 experts"));
  EXPECT_THAT(fits->meaning, HasSubstr("all of it fits"));
  Write("/proc/meminfo", "MemAvailable: 1024 kB\n");
  EXPECT_EQ(CheckModel(tiny, root_)->severity, Severity::kProblem);
  Write("/x.smoe", "not a vault at all");
  const std::optional<Finding> damaged = CheckModel(root_ + "/x.smoe", root_);
  ASSERT_TRUE(damaged);
  EXPECT_TRUE(damaged->blocks);
  EXPECT_FALSE(CheckModel(root_, root_));
}

TEST_F(Doctor, NamesEverySubjectOnce) {
  const std::vector<Finding> findings =
      Examine({.path = testing::TempDir(), .isa = "", .numa = false, .root = root_});
  EXPECT_GE(findings.size(), 12u);
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.subject.empty());
    EXPECT_FALSE(finding.found.empty()) << finding.subject;
    EXPECT_TRUE(finding.severity != Severity::kOk || finding.remedy.empty()) << finding.subject;
    EXPECT_EQ(std::ranges::count(findings, finding.subject, &Finding::subject), 1);
  }
}

class Pages : public FakeRootTest {
 protected:
  void SetUp() override {
    FakeRootTest::SetUp();
    trunk_ = std::move(AlignedBuffer::Create(8 << 20, "test").value());
    cache_ = std::move(AlignedBuffer::Create(8 << 20, "test").value());
  }
  std::string Mapping(const AlignedBuffer& memory, int huge_kib) const {
    const std::byte* const begin = memory.data();
    return fmt::format("{}-{} rw-p 0 0 0\nRss: 8192 kB\nAnonHugePages: {} kB\n", fmt::ptr(begin),
                       fmt::ptr(begin + memory.size()), huge_kib);
  }
  std::string Sentence(int trunk_kib, int cache_kib) {
    Write("/proc/self/smaps", Mapping(trunk_, trunk_kib) + Mapping(cache_, cache_kib));
    return PagesSentence(trunk_.bytes(), cache_.bytes(), root_);
  }
  AlignedBuffer trunk_;
  AlignedBuffer cache_;
};

TEST_F(Pages, WhatWasRefusedIsSaidWithTheReason) {
  EXPECT_EQ(Sentence(8192, 2048), "huge pages: 100 % of the trunk and the cache");
  EXPECT_THAT(Sentence(0, 0), HasSubstr("refused for the trunk (0 % given) and the cache, this"));
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  EXPECT_THAT(Sentence(0, 2048), HasSubstr("the cache; refused for the trunk (0 % given), the "
                                           "kernel is set to \"never\": echo madvise > "));
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  EXPECT_THAT(Sentence(8192, 0), HasSubstr("refused for the cache, though the kernel is set to"));
}

TEST_F(Pages, SmallMemoryIsNotLookedAt) {
  EXPECT_THAT(PagesSentence({}, {}, root_), HasSubstr("too small"));
  EXPECT_THAT(PagesSentence(trunk_.bytes(), {}, root_), HasSubstr("unknown: "));
}

}  // namespace
}  // namespace smoe::engine
