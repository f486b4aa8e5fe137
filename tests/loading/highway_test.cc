// SPDX-License-Identifier: Apache-2.0
// src/bundled/highway.cc finds the same instruction sets as Highway's own library. The program is
// linked with the former; the latter is opened.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

namespace {

TEST(BundledHighway, FindsWhatHighwayFinds) {
  void* library = dlopen("libhwy.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  auto* theirs = reinterpret_cast<int64_t (*)()>(dlsym(library, "_ZN3hwy16SupportedTargetsEv"));
  ASSERT_NE(theirs, nullptr) << dlerror();
  ASSERT_NE(theirs, &hwy::SupportedTargets);
  const int64_t of_both = HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL;
  EXPECT_EQ(hwy::SupportedTargets() & of_both, theirs() & of_both);
  EXPECT_NE(hwy::SupportedTargets() & HWY_TARGETS, 0);
}

TEST(BundledHighway, TheChoiceIsOneForAll) {
  EXPECT_EQ(&hwy::GetChosenTarget(), &hwy::GetChosenTarget());
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  EXPECT_TRUE(hwy::GetChosenTarget().IsInitialized());
}

}  // namespace
