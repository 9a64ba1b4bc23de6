#include "engine/pages.h"

#include <fmt/core.h>

#include "base/huge_pages.h"
#include "base/memory.h"

namespace smoe::engine {

namespace {

// Less than this share in huge pages is called refused: borders never fill one.
constexpr double kGivenShare = 0.5;

bool IsLarge(Bytes memory) { return memory.size() >= 2 * kHugePageBytes; }

// What the kernel's setting explains, and how to change it.
std::string Reason(const std::string& root) {
  const std::string mode = HugePageMode(root);
  if (mode == "never") {
    return "the kernel is set to \"never\": echo madvise > "
           "/sys/kernel/mm/transparent_hugepage/enabled allows them";
  }
  if (mode.empty()) return "this kernel has none";
  return fmt::format("though the kernel is set to \"{}\": its memory may be in pieces", mode);
}

}  // namespace

std::string PagesSentence(Bytes trunk, MutableBytes cache, const std::string& root) {
  if (!IsLarge(trunk) && !IsLarge(cache))
    return "huge pages: trunk and cache are too small for any";
  std::string given;
  std::string refused;
  if (IsLarge(trunk)) {
    const auto use = ReadPageUse(trunk, root);
    if (!use) return fmt::format("huge pages: unknown: {}", use.error().message());
    if (use->HugeShare() >= kGivenShare) {
      given = fmt::format("{:.0f} % of the trunk", 100 * use->HugeShare());
    } else {
      refused = fmt::format("the trunk ({:.0f} % given)", 100 * use->HugeShare());
    }
  }
  if (IsLarge(cache)) {
    // Behind the first border: there lies a whole huge page, whatever the mapping begins with.
    cache[kHugePageBytes] = std::byte{0};
    const auto use = ReadPageUse(cache, root);
    if (!use) return fmt::format("huge pages: unknown: {}", use.error().message());
    std::string* const list = use->huge_bytes != 0 ? &given : &refused;
    *list += fmt::format("{}the cache", list->empty() ? "" : " and ");
  }
  if (refused.empty()) return fmt::format("huge pages: {}", given);
  return fmt::format("huge pages: {}{}refused for {}, {}; without them memory is read more slowly",
                     given, given.empty() ? "" : "; ", refused, Reason(root));
}

}  // namespace smoe::engine
