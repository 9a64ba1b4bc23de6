#include "base/numa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/memory.h"

namespace smoe {

namespace {

constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h

// The value of "Node 0 MemTotal:  123 kB" in bytes.
uint64_t NodeBytes(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string node, number, name;
    uint64_t kib = 0;
    if (words >> node >> number >> name >> kib && name == key) return kib * 1024;
  }
  return 0;
}

}  // namespace

std::vector<NumaNode> ReadNumaNodes(const std::string& root) {
  std::vector<NumaNode> nodes;
  std::error_code error;
  const std::filesystem::path folder = root + "/sys/devices/system/node";
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with("node")) continue;
    NumaNode node;
    const char* const last = name.data() + name.size();
    const auto [stopped_at, bad] = std::from_chars(name.data() + 4, last, node.number);
    if (bad != std::errc() || stopped_at != last || node.number >= kNumaNodesMax) continue;
    std::ifstream cpus(entry->path() / "cpulist");
    std::getline(cpus, node.cpus);
    const std::string meminfo = (entry->path() / "meminfo").string();
    node.memory_bytes = NodeBytes(meminfo, "MemTotal:");
    node.free_bytes = NodeBytes(meminfo, "MemFree:");
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.number < b.number; });
  return nodes;
}

Result<std::vector<uint64_t>> BytesByNode(Bytes memory) {
  std::vector<uint64_t> bytes;
  const uint64_t page_count = memory.size() / kPageBytes;
  if (page_count == 0) return bytes;
  const uint64_t asked = std::min<uint64_t>(page_count, kPagesAsked);
  std::vector<const void*> pages;
  for (uint64_t i = 0; i < asked; ++i) {
    pages.push_back(memory.data() + i * page_count / asked * kPageBytes);
  }
  std::vector<int> nodes(asked, -1);
  if (syscall(SYS_move_pages, 0, asked, pages.data(), nullptr, nodes.data(), 0) != 0) {
    return Io("where memory lies: the system does not say: {}", std::strerror(errno));
  }
  for (const int node : nodes) {
    if (node < 0 || static_cast<size_t>(node) >= kNumaNodesMax) continue;  // not touched yet
    const auto index = static_cast<size_t>(node);
    if (bytes.size() <= index) bytes.resize(index + 1);
    bytes[index] += memory.size() / asked;
  }
  return bytes;
}

bool InterleaveOverNodes(MutableBytes memory) {
  const std::vector<NumaNode> nodes = ReadNumaNodes();
  if (nodes.size() < 2 || memory.empty()) return false;
  constexpr size_t kWordBits = 8 * sizeof(unsigned long);
  unsigned long mask[kNumaNodesMax / kWordBits] = {};
  for (const NumaNode& node : nodes) {
    if (node.memory_bytes == 0) continue;
    mask[node.number / kWordBits] |= 1UL << (node.number % kWordBits);
  }
  return syscall(SYS_mbind, memory.data(), memory.size(), kInterleave, mask, kNumaNodesMax + 1,
                 0) == 0;
}

}  // namespace smoe
