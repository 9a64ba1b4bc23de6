// What doctor says about kernel, processor and nodes.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>

#include "base/core_count.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/memory_limits.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "engine/doctor.h"
#include "kernels/kernels.h"

namespace smoe::engine {

namespace {

// Source: man 7 io_uring, "the read operations IORING_OP_READ, since 5.6".
constexpr int kUringMajor = 5;
constexpr int kUringMinor = 6;

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Where memory lands that the threads of a pool have filled, each its own part.
Finding CheckPlacement() {
  constexpr uint64_t kBytesPerThread = uint64_t{8} << 20;
  Finding finding{.subject = "placement"};
  ThreadPool pool(UsableCoreCount());
  auto memory = AlignedBuffer::Create(pool.thread_count() * kBytesPerThread, "placement test");
  if (!memory) {
    finding.severity = Severity::kNote;
    finding.found = memory.error().message();
    return finding;
  }
  const auto fill = [&](size_t begin, size_t end) {
    std::fill_n(memory->data() + begin, end - begin, std::byte{1});
  };
  pool.ParallelFor(memory->size(), kHugePageBytes, std::ref(fill));
  const auto by_node = BytesByNode(memory->bytes());
  if (!by_node) {
    finding.severity = Severity::kNote;
    finding.found = by_node.error().message();
    return finding;
  }
  finding.found =
      fmt::format("{} filled by {} threads lie on", SizeText(memory->size()), pool.thread_count());
  for (size_t node = 0; node < by_node->size(); ++node) {
    finding.found +=
        fmt::format("{} node {}: {}", node == 0 ? "" : ",", node, SizeText((*by_node)[node]));
  }
  return finding;
}

}  // namespace

Finding CheckKernelVersion(const std::string& root) {
  Finding finding{.subject = "kernel"};
  const std::string release = FirstLine(root + "/proc/sys/kernel/osrelease");
  int major = 0;
  int minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &major, &minor) != 2) {
    finding.severity = Severity::kNote;
    finding.found =
        fmt::format("{}/proc/sys/kernel/osrelease: \"{}\", expected a version", root, release);
    return finding;
  }
  finding.found = "Linux " + release;
  if (major > kUringMajor || (major == kUringMajor && minor >= kUringMinor)) return finding;
  finding.severity = Severity::kNote;
  finding.meaning = fmt::format("older than {}.{}, so experts are read by threads, not by io_uring",
                                kUringMajor, kUringMinor);
  finding.remedy = "a newer kernel";
  return finding;
}

Finding CheckInstructions(const std::string& isa) {
  Finding finding{.subject = "instructions"};
  std::string tables;
  for (const kernels::KernelTable* table : kernels::AllKernels()) {
    tables += fmt::format("{}{}{}", tables.empty() ? "" : ", ", table->name,
                          table->runs_here() ? "" : " (not on this processor)");
  }
  const auto chosen = kernels::ChooseKernels(isa.empty() ? nullptr : isa.c_str());
  if (!chosen) {
    finding.severity = Severity::kProblem;
    finding.found = chosen.error().message();
    finding.remedy = "unset SMOE_ISA, or name a table that runs here";
    finding.blocks = chosen.error().code();
    return finding;
  }
  finding.found = fmt::format("{} is used, of {}", (*chosen)->name, tables);
  if (!isa.empty()) finding.found += fmt::format("; SMOE_ISA={} asks for it", isa);
  if (*chosen != &kernels::kScalarKernels) return finding;
  finding.severity = Severity::kProblem;
  finding.meaning = "without vector instructions a token takes tens of times longer";
  finding.remedy = isa.empty() ? "a processor with AVX2; in a virtual machine, a CPU model that "
                                 "passes it on (qemu: -cpu host)"
                               : "unset SMOE_ISA";
  return finding;
}

Finding CheckCores(const std::string& root) {
  Finding finding{.subject = "cores"};
  const size_t cores = UsableCoreCount();
  const std::optional<size_t> quota = CgroupCoreQuota(root);
  const std::string online = FirstLine(root + "/sys/devices/system/cpu/online");
  finding.found = fmt::format("{} used by default; processors {}", cores,
                              online.empty() ? "not listed" : online + " are there");
  if (!quota) return finding;
  finding.found += fmt::format("; a cgroup grants the time of {}", *quota);
  if (*quota > cores) return finding;
  finding.severity = Severity::kNote;
  finding.meaning = "threads beyond the quota are stopped in the middle of a token";
  finding.remedy = "raise cpu.max of the cgroup (docker: --cpus)";
  return finding;
}

Finding CheckGovernor(const std::string& root) {
  Finding finding{.subject = "governor"};
  const std::string folder = root + "/sys/devices/system/cpu/cpu0/cpufreq/";
  const std::string governor = FirstLine(folder + "scaling_governor");
  const std::string driver = FirstLine(folder + "scaling_driver");
  if (governor.empty()) {
    finding.found = ReadMachine(root).is_virtual
                        ? "none shown: the host of this virtual machine decides"
                        : "none shown: the kernel does not scale the frequency";
    return finding;
  }
  finding.found = driver.empty() ? governor : fmt::format("{} of {}", governor, driver);
  // With these drivers "powersave" still goes up under load; elsewhere it is the lowest frequency.
  const bool scales_itself = driver.starts_with("intel_pstate") || driver.starts_with("amd-pstate");
  if (governor == "performance" || governor == "schedutil" || governor == "ondemand") {
    return finding;
  }
  finding.severity = scales_itself ? Severity::kNote : Severity::kProblem;
  finding.meaning = scales_itself ? "the processor goes up under load, a little late"
                                  : "the processor may stay at its lowest frequency";
  finding.remedy = "cpupower frequency-set -g performance";
  return finding;
}

std::vector<Finding> CheckNuma(const std::string& root, bool in_detail) {
  const std::vector<NumaNode> nodes = ReadNumaNodes(root);
  Finding finding{.subject = "numa"};
  finding.found =
      fmt::format("{} node{}", std::max<size_t>(1, nodes.size()), nodes.size() > 1 ? "s" : "");
  if (nodes.size() > 1) {
    finding.severity = Severity::kNote;
    finding.meaning =
        "trunk and expert cache are spread over the nodes page by page, so that all channels work "
        "for every thread; a thread reads most of it from afar";
    finding.remedy = "for a model that fits one node: numactl --cpunodebind=0 --membind=0 smoe ...";
  }
  std::vector<Finding> findings = {std::move(finding)};
  if (!in_detail) return findings;
  for (const NumaNode& node : nodes) {
    findings.push_back(
        {.subject = fmt::format("numa node {}", node.number),
         .found = fmt::format("processors {}, {} of memory, {} free",
                              node.cpus.empty() ? "none" : node.cpus, SizeText(node.memory_bytes),
                              SizeText(node.free_bytes))});
  }
  findings.push_back(CheckPlacement());
  return findings;
}

}  // namespace smoe::engine
