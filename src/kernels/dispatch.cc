#include <fmt/format.h>

#include <string>
#include <string_view>

#include "kernels/kernels.h"

namespace smoe::kernels {

namespace {

constexpr const KernelTable* kTables[] = {
#if defined(__x86_64__)
    &kAmxKernels,    &kAvx512Kernels, &kAvxVnniKernels, &kAvx2Kernels,
#elif defined(__aarch64__)
    &kNeonI8mmKernels,
    &kNeonDotKernels,
    &kNeonKernels,
#endif
    &kScalarKernels,
};

std::string Names(bool only_those_that_run) {
  std::string names;
  for (const KernelTable* table : kTables) {
    if (only_those_that_run && !table->runs_here()) continue;
    names += names.empty() ? table->name : fmt::format(", {}", table->name);
  }
  return names;
}

}  // namespace

std::span<const KernelTable* const> AllKernels() { return kTables; }

Result<const KernelTable*> ChooseKernels(const char* wanted) {
  const std::string_view name = wanted == nullptr ? "" : wanted;
  for (const KernelTable* table : kTables) {
    if (!name.empty() && name != table->name) continue;
    if (table->runs_here()) return table;
  }
  // Only a name gets here, since scalar runs everywhere. Another table in its place would turn a
  // typo into a wrong benchmark.
  return Invalid("SMOE_ISA: \"{}\", expected one of {}; this CPU runs {}", name, Names(false),
                 Names(true));
}

}  // namespace smoe::kernels
