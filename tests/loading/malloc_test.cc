// SPDX-License-Identifier: Apache-2.0
// A program with another malloc, which comes before everything: memory that one library allocates
// and another one frees must be of the same malloc.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "perf/command.h"

namespace weir::test {
namespace {

struct Malloc {
  const char* name;
  const char* file;  // "" where the build has not found it
  const char* package;
};

class AnotherMalloc : public testing::TestWithParam<Malloc> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(GetParam().file)) {
      GTEST_SKIP() << "no " << GetParam().name << ": install " << GetParam().package;
    }
  }

  // What tests/nccl/loader_program.c says of NCCL's functions.
  static std::string who_works(std::vector<std::string> environment) {
    environment.push_back(std::string("LD_PRELOAD=") + GetParam().file + ":" WEIR_LIBRARY);
    const CommandResult result = run_command(WEIR_LOADER, {"linked"}, environment);
    return result.status == 0 ? result.out
                              : "status " + std::to_string(result.status) + ": " + result.err;
  }
};

constexpr char kReal[] = "WEIR_NCCL_LIBRARY=" WEIR_DOUBLE;
constexpr char kDevices[] = "LD_LIBRARY_PATH=" WEIR_FAKE_CUDA_FOLDER;

TEST_P(AnotherMalloc, Forwarding) {
  EXPECT_EQ(who_works({kReal, kDevices}), "library weir, work real\n");
}

TEST_P(AnotherMalloc, PassThrough) {
  EXPECT_EQ(who_works({kReal, "WEIR_DISABLE=1"}), "library weir, work real\n");
}

TEST_P(AnotherMalloc, FallbackAfterTheRealLibraryHasFailedToStart) {
  EXPECT_EQ(who_works({kReal, kDevices, "DOUBLE_FAIL_RANK=1"}), "library weir, work own\n");
}

TEST_P(AnotherMalloc, Weir) { EXPECT_EQ(who_works({}), "library weir, work own\n"); }

INSTANTIATE_TEST_SUITE_P(Debian, AnotherMalloc,
                         testing::Values(Malloc{"jemalloc", WEIR_JEMALLOC, "libjemalloc2"},
                                         Malloc{"tcmalloc", WEIR_TCMALLOC, "libtcmalloc-minimal4"}),
                         [](const auto& it) { return std::string(it.param.name); });

}  // namespace
}  // namespace weir::test
