#include "model/arch/arch_traits.h"

namespace smoe::model {

namespace {

constexpr const ArchTraits* kArchs[] = {
    &kQwen3MoeTraits, &kQwen2MoeTraits, &kOlmoeTraits, &kMixtralTraits, &kDeepseekTraits,
};

}  // namespace

std::span<const ArchTraits* const> AllArchs() { return kArchs; }

const ArchTraits* FindArch(checkpoint::Family family) {
  for (const ArchTraits* traits : kArchs) {
    if (traits->family == family) return traits;
  }
  return nullptr;
}

std::string ArchNames() {
  std::string names;
  for (const ArchTraits* traits : kArchs) {
    if (!names.empty()) names += ", ";
    names += checkpoint::FamilyName(traits->family);
  }
  return names;
}

}  // namespace smoe::model
