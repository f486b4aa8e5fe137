// SPDX-License-Identifier: Apache-2.0
// The choice between the real NCCL and Weir, and where a real NCCL is looked for.
#include "nccl/forward/choice.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "nccl_search/search.h"

namespace weir::nccl::test {
namespace {

// Ranks that all can, each on a device of its own.
std::vector<Candidate> able(int n) {
  std::vector<Candidate> all(static_cast<size_t>(n));
  for (int rank = 0; rank < n; ++rank) {
    Candidate& it = all[static_cast<size_t>(rank)];
    it.able = 1;
    it.version = 22809;
    it.device_id[0] = static_cast<unsigned char>(rank + 1);
  }
  return all;
}

void expect_reason(const Choice& choice, const std::string& words) {
  EXPECT_NE(choice.reason.find(words), std::string::npos) << choice.reason;
}

TEST(NcclChoice, RanksThatAllCanGoToTheRealLibrary) {
  const Choice choice = choose(able(5));
  EXPECT_TRUE(choice.real);
  EXPECT_FALSE(choice.impossible);
}

TEST(NcclChoice, OneRankThatCannotSendsAllToWeirAndSaysWhy) {
  auto all = able(4);
  all[2].able = 0;
  all[2].say("the CUDA driver has no device");
  const Choice choice = choose(all);
  EXPECT_FALSE(choice.real);
  EXPECT_FALSE(choice.impossible);
  expect_reason(choice, "on rank 2 the CUDA driver has no device");
}

TEST(NcclChoice, DifferentVersionsGoToWeir) {
  auto all = able(3);
  all[1].version = 22703;
  const Choice choice = choose(all);
  EXPECT_FALSE(choice.real);
  expect_reason(choice, "2.28.9 on rank 0 and 2.27.3 on rank 1");
}

TEST(NcclChoice, RanksOnOneDeviceGoToWeirUnlessForced) {
  auto all = able(3);
  all[2].device_id = all[0].device_id;
  EXPECT_FALSE(choose(all).real);
  expect_reason(choose(all), "ranks 0 and 2 share a GPU");
  all[1].requested = static_cast<uint32_t>(RequestedBackend::kNccl);
  EXPECT_TRUE(choose(all).real);
}

TEST(NcclChoice, WeirOnOneRankIsWeirOnAll) {
  auto all = able(3);
  all[2].requested = static_cast<uint32_t>(RequestedBackend::kWeir);
  EXPECT_FALSE(choose(all).real);
  EXPECT_FALSE(choose(all).impossible);
  expect_reason(choose(all), "WEIR_BACKEND=weir on rank 2");
}

TEST(NcclChoice, WhatIsForcedAndCannotBeIsImpossible) {
  auto all = able(3);
  all[0].requested = static_cast<uint32_t>(RequestedBackend::kNccl);
  all[1].able = 0;
  EXPECT_TRUE(choose(all).impossible);
  all = able(3);
  all[0].requested = static_cast<uint32_t>(RequestedBackend::kNccl);
  all[1].requested = static_cast<uint32_t>(RequestedBackend::kWeir);
  EXPECT_TRUE(choose(all).impossible);
  expect_reason(choose(all), "nccl on rank 0 and weir on rank 1");
}

TEST(NcclChoice, AReasonThatDoesNotEndIsReadToItsPlacesEnd) {
  auto all = able(1);
  all[0].able = 0;
  std::memset(all[0].reason, 'x', sizeof all[0].reason);
  expect_reason(choose(all), std::string(Candidate::kReasonBytes, 'x'));
  all[0].say(std::string(1000, 'y'));
  expect_reason(choose(all), std::string(Candidate::kReasonBytes - 1, 'y'));
}

TEST(NcclChoice, VersionsAreWrittenAsNcclNumbersThem) {
  EXPECT_EQ(version_text(22809), "2.28.9");
  EXPECT_EQ(version_text(23102), "2.31.2");
  EXPECT_EQ(version_text(2708), "2.7.8");
}

// ---- The loader's cache -------------------------------------------------------------------------

void put(std::string* bytes, size_t offset, uint32_t value) {
  std::memcpy(bytes->data() + offset, &value, sizeof value);
}

// A cache with one entry of each flags value.
std::string cache_of(const std::vector<uint32_t>& flags) {
  std::string bytes(48 + 24 * flags.size(), '\0');
  std::memcpy(bytes.data(), "glibc-ld.so.cache1.1", 20);
  put(&bytes, 20, static_cast<uint32_t>(flags.size()));
  for (size_t i = 0; i < flags.size(); ++i) {
    put(&bytes, 48 + 24 * i, flags[i]);
    put(&bytes, 48 + 24 * i + 4, static_cast<uint32_t>(bytes.size()));
    bytes += std::string("libnccl.so.2") + '\0';
    put(&bytes, 48 + 24 * i + 8, static_cast<uint32_t>(bytes.size()));
    bytes += "/lib" + std::to_string(i) + "/libnccl.so.2" + '\0';
  }
  return bytes;
}

#if defined(__x86_64__)
TEST(NcclSearch, TheLoadersCacheIsReadForThisProcessor) {
  EXPECT_EQ(paths_in_loader_cache(cache_of({0x0803, 0x0303, 0x0303}), "libnccl.so.2"),
            (std::vector<std::string>{"/lib1/libnccl.so.2", "/lib2/libnccl.so.2"}));
  EXPECT_TRUE(paths_in_loader_cache(cache_of({0x0303}), "libnccl.so.3").empty());
}
#endif

TEST(NcclSearch, ADamagedCacheIsNoTrouble) {
  const std::string whole = cache_of({0x0303, 0x0303});
  for (size_t size = 0; size < whole.size(); ++size) {
    (void)paths_in_loader_cache(whole.substr(0, size), "libnccl.so.2");
  }
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 4; ++i)
      bytes[20 + random() % (bytes.size() - 20)] = static_cast<char>(random());
    for (const std::string& path : paths_in_loader_cache(bytes, "libnccl.so.2")) {
      EXPECT_EQ(path.front(), '/');
    }
  }
}

TEST(NcclSearch, APackagesFolderIsFoundInAPath) {
  EXPECT_EQ(packages_folder_of("/opt/env/lib/python3.11/site-packages/torch/lib/libtorch_cuda.so"),
            "/opt/env/lib/python3.11/site-packages");
  EXPECT_EQ(packages_folder_of("/usr/lib/python3/dist-packages/cupy/x.so"),
            "/usr/lib/python3/dist-packages");
  EXPECT_EQ(packages_folder_of("/usr/lib/libm.so.6"), "");
}

TEST(NcclSearch, EveryPlaceExistsAndIsNamedOnce) {
  std::vector<std::string> seen;
  for (const FoundFile& file : files_of_nccl(this_loading_process())) {
    EXPECT_EQ(file.path.front(), '/');
    for (const std::string& path : seen) EXPECT_NE(path, file.path);
    seen.push_back(file.path);
  }
}

}  // namespace
}  // namespace weir::nccl::test
