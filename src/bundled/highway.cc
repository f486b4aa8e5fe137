// SPDX-License-Identifier: Apache-2.0
// What dynamic dispatch of Highway's needs beside its headers: which of its targets this processor
// has. tests/loading compares it with Highway's own answer.
#include <hwy/targets.h>

namespace {

#if HWY_ARCH_X86

// The instructions that Highway's headers let the compiler use for each target.
// (__builtin_cpu_supports() also asks whether the operating system saves the registers.)
bool has_ssse3() {
  return __builtin_cpu_supports("sse2") && __builtin_cpu_supports("sse3") &&
         __builtin_cpu_supports("ssse3");
}

bool has_sse4() {
  return has_ssse3() && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("sse4.2") &&
         __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
}

bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("lzcnt");
}

bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}

bool has_avx3_dl() {
  return has_avx3() && __builtin_cpu_supports("avx512vnni") &&
         __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("vaes") &&
         __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512bitalg") &&
         __builtin_cpu_supports("gfni");
}

int64_t find_targets() {
  __builtin_cpu_init();
  int64_t targets = 0;
  if (has_ssse3()) targets |= HWY_SSSE3;
  if (has_sse4()) targets |= HWY_SSE4;
  if (has_avx2()) targets |= HWY_AVX2;
  if (has_avx3()) targets |= HWY_AVX3;
  if (has_avx3_dl()) targets |= HWY_AVX3_DL;
  return targets;
}

#else

// What the compiler may assume everywhere.
int64_t find_targets() { return HWY_ENABLED_BASELINE; }

#endif

}  // namespace

namespace hwy {

int64_t SupportedTargets() {
  static const int64_t targets = find_targets() | HWY_ENABLED_BASELINE;
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
