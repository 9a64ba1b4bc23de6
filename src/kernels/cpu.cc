// Asked here, in a file without extra flags, so that the question itself runs on every CPU.
#include "kernels/internal.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace smoe::kernels {

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
