// Asked here, in a file without extra flags, so that the question itself runs on every CPU.
#include "kernels/internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace smoe::kernels {

#if defined(__x86_64__)
namespace {

// Intel SDM volume 1, 13.3 and 18.3: CPUID leaf 7, EDX; XCR0.
constexpr unsigned kCpuidAmxTile = 1u << 24;
constexpr unsigned kCpuidAmxInt8 = 1u << 25;
constexpr unsigned kCpuidOsXsave = 1u << 27;  // leaf 1, ECX
constexpr unsigned kXcr0Tiles = (1u << 17) | (1u << 18);

// Linux, Documentation/arch/x86/xstate.rst: a process asks before it uses tiles.
constexpr long kArchReqXcompPerm = 0x1023;
constexpr long kXfeatureXtileData = 18;

bool CpuHasAmx() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kCpuidOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kWanted = kCpuidAmxTile | kCpuidAmxInt8;
  if ((edx & kWanted) != kWanted) return false;
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kXcr0Tiles) == kXcr0Tiles;
}

}  // namespace
#endif

bool CpuRunsAvx2() {
#if defined(__x86_64__)
  // clang 14 does not know "f16c" as a name; it is bit 29 of ECX. The builtins also ask whether the
  // system saves the wide registers.
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#else
  return false;
#endif
}

bool CpuRunsAvxVnni() {
#if defined(__x86_64__)
  // clang 14 has no name for it: leaf 7, subleaf 1, bit 4 of EAX. Its registers are AVX2's.
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  const bool has_leaf = __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && eax >= 1;
  if (!has_leaf || __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) == 0) return false;
  return CpuRunsAvx2() && (eax & (1u << 4)) != 0;
#else
  return false;
#endif
}

bool CpuRunsAvx512Vnni() {
#if defined(__x86_64__)
  return CpuRunsAvx2() && __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
         __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

bool CpuRunsAmx() {
#if defined(__x86_64__)
  // Once, for all threads and until the process ends. A system that knows no tiles, or that finds a
  // signal stack too small for them, refuses.
  static const bool may_use_tiles =
      CpuRunsAvx512Vnni() && __builtin_cpu_supports("avx512vbmi") != 0 && CpuHasAmx() &&
      syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtileData) == 0;
  return may_use_tiles;
#else
  return false;
#endif
}

bool CpuRunsNeon() {
#if defined(__aarch64__)
  return true;
#else
  return false;
#endif
}

bool CpuRunsNeonDot() {
#if defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return false;
#endif
}

bool CpuRunsNeonI8mm() {
#if defined(__aarch64__)
  return CpuRunsNeonDot() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
  return false;
#endif
}

}  // namespace smoe::kernels
