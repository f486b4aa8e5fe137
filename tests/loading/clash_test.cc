// SPDX-License-Identifier: Apache-2.0
// A program that has functions of the same names as libraries inside libnccl.so.2, and other
// versions of those libraries, loaded before it: neither gets the other's.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "perf/command.h"

namespace weir::test {
namespace {

// The program checks every collective (tests/nccl/program.c). Over tcp with TLS, and with a line of
// the log, most of what is inside is called.
CommandResult run_beside(const std::string& libraries) {
  return run_command(WEIR_PROGRAM, {"processes", "2"},
                     {"LD_PRELOAD=" + libraries + ":" WEIR_LIBRARY, "WEIR_TRANSPORT=tcp",
                      "WEIR_TLS=all", "WEIR_LOG=info"});
}

void expect_work(const CommandResult& result) {
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_NE(result.out.find("processes 2: OK"), std::string::npos) << result.out << result.err;
  EXPECT_NE(result.err.find("info: "), std::string::npos) << "the log has no line";
}

TEST(Clash, FunctionsOfTheProgramAreNotCalled) { expect_work(run_beside(WEIR_CLASHING)); }

// And they are called by what asks for them by name: by OpenSSL's own library.
TEST(Clash, TheFunctionsOfTheProgramComeFirst) {
  const CommandResult result = run_command(
      "/bin/sh", {"-c", "LD_PRELOAD=" WEIR_CLASHING ":$0 openssl version", "libssl.so.3"});
  if (result.err.find("not found") != std::string::npos) GTEST_SKIP() << "no openssl here";
  EXPECT_NE(result.err.find("the program's own"), std::string::npos) << result.err;
}

// What this machine does not have is ignored by the loader.
TEST(Clash, OtherVersionsOfTheLibrariesAreLeftAlone) {
  expect_work(
      run_beside("libstdc++.so.6:libssl.so.3:libcrypto.so.3:libspdlog.so.1.10:libfmt.so.9:"
                 "libpugixml.so.1:libxxhash.so.0:liburing.so.2:libhwloc.so.15"));
}

}  // namespace
}  // namespace weir::test
