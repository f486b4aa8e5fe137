// SPDX-License-Identifier: Apache-2.0
// What dynamic dispatch of Highway's needs beside its headers: which of its targets this processor
// has. tests/loading compares it with Highway's own answer.
#include <hwy/targets.h>

#include <cstdint>
#include <initializer_list>

#if HWY_ARCH_X86
#include <cpuid.h>
#endif

namespace {

#if HWY_ARCH_X86

constexpr uint32_t bits(std::initializer_list<int> numbers) {
  uint32_t all = 0;
  for (const int number : numbers) all |= uint32_t{1} << number;
  return all;
}

struct Features {
  uint32_t ecx1 = 0;  // leaf 1
  uint32_t ebx7 = 0;  // leaf 7
  uint32_t ecx7 = 0;
  uint32_t ecx_extended = 0;  // leaf 0x80000001
  uint32_t saved = 0;         // the registers that the operating system saves (XCR0)

  bool has(const Features& needed) const {
    return (ecx1 & needed.ecx1) == needed.ecx1 && (ebx7 & needed.ebx7) == needed.ebx7 &&
           (ecx7 & needed.ecx7) == needed.ecx7 && (saved & needed.saved) == needed.saved &&
           (ecx_extended & needed.ecx_extended) == needed.ecx_extended;
  }
};

Features features() {
  Features found;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) found.ecx1 = ecx;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) {
    found.ebx7 = ebx;
    found.ecx7 = ecx;
  }
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) found.ecx_extended = ecx;
  constexpr int kOsxsave = 27;
  if ((found.ecx1 & bits({kOsxsave})) != 0) {
    __asm__("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
    found.saved = eax;
  }
  return found;
}

// The instructions that Highway's headers let the compiler use for each target, besides those of
// the one before.
constexpr Features kSsse3{.ecx1 = bits({0, 9})};              // SSE3, SSSE3
constexpr Features kSse4{.ecx1 = bits({1, 19, 20, 25})};      // PCLMUL, SSE4.1, SSE4.2, AES
constexpr Features kAvx2{.ecx1 = bits({12, 28, 29}),          // FMA, AVX, F16C
                         .ebx7 = bits({3, 5, 8}),             // BMI1, AVX2, BMI2
                         .ecx_extended = bits({5}),           // LZCNT
                         .saved = bits({1, 2})};              // the registers of SSE and AVX
constexpr Features kAvx3{.ebx7 = bits({16, 17, 28, 30, 31}),  // AVX-512 F, DQ, CD, BW, VL
                         .saved = bits({5, 6, 7})};           // its registers
// VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ
constexpr Features kAvx3Dl{.ecx7 = bits({1, 6, 8, 9, 10, 11, 12, 14})};

int64_t find_targets() {
  const Features found = features();
  constexpr struct {
    Features needed;
    int64_t target;
  } kLadder[] = {{kSsse3, HWY_SSSE3},
                 {kSse4, HWY_SSE4},
                 {kAvx2, HWY_AVX2},
                 {kAvx3, HWY_AVX3},
                 {kAvx3Dl, HWY_AVX3_DL}};
  int64_t targets = 0;
  for (const auto& step : kLadder) {
    if (!found.has(step.needed)) break;
    targets |= step.target;
  }
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
