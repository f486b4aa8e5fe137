// SPDX-License-Identifier: Apache-2.0
// adam_perf as a user runs it: what it measures and writes, and what it refuses.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "perf/command.h"

namespace weir::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

CommandResult run_adam_perf(const std::vector<std::string>& arguments) {
  return run_tool("adam_perf", arguments);
}

class AdamPerf : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string path = fs::temp_directory_path() / "adam_perf_test.XXXXXX";
    ASSERT_NE(mkdtemp(path.data()), nullptr);
    root_ = path;
  }
  void TearDown() override { fs::remove_all(root_); }
  std::string content_of(const std::string& name) const {
    std::ifstream file(root_ / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  fs::path root_;
};

TEST_F(AdamPerf, MeasuresEveryCaseSizeAndThreadCountBesideItsLoop) {
  const CommandResult result = run_adam_perf(
      {"--cases", "all", "--sizes", "0.0625,0.25", "--threads", "1,2", "--rounds", "2", "--json",
       (root_ / "out.json").string(), "--plot", (root_ / "out.svg").string()});
  ASSERT_EQ(result.status, 0) << result.err;
  const json all = json::parse(content_of("out.json"), nullptr, false);
  ASSERT_TRUE(all.is_object());
  EXPECT_EQ(all["program"], "adam_perf");
  std::set<std::string> cases;
  for (const json& row : all["results"]) {
    cases.insert(row["case"].get<std::string>());
    for (const char* figure :
         {"bytes_per_parameter", "parameters_per_second_best", "parameters_per_second_median",
          "gbs_best", "loop_gbs_best", "ratio_best", "ratio_median"}) {
      EXPECT_GT(row[figure].get<double>(), 0) << figure << " of " << row.dump();
    }
  }
  EXPECT_EQ(cases, (std::set<std::string>{"f32", "bf16", "bf16sr", "idle", "half", "half8", "adam",
                                          "sgd", "adagrad", "lion"}));
  EXPECT_EQ(all["results"].size(), cases.size() * 2 * 2);
  const std::string svg = content_of("out.svg");
  EXPECT_EQ(svg.substr(0, 4), "<svg");
  for (const std::string& name : cases) {
    EXPECT_NE(svg.find(name + ", 2 threads, loop"), std::string::npos) << name;
  }
}

TEST_F(AdamPerf, TriesEveryInstructionSetWhenAsked) {
  const CommandResult result =
      run_adam_perf({"--cases", "f32", "--sizes", "0.0625", "--threads", "1", "--rounds", "1",
                     "--all-instruction-sets", "--json", (root_ / "out.json").string()});
  ASSERT_EQ(result.status, 0) << result.err;
  const json all = json::parse(content_of("out.json"), nullptr, false);
  std::set<std::string> sets;
  for (const json& row : all["results"]) sets.insert(row["instruction_set"].get<std::string>());
  EXPECT_EQ(sets.size(), all["results"].size());
#if defined(__x86_64__)
  EXPECT_GE(sets.size(), 2u);
#endif
}

TEST_F(AdamPerf, RefusesCasesSizesAndThreadsThatAreNone) {
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"--cases", "f33"}, {"--sizes", "0"}, {"--sizes", "-1"}, {"--threads", "0"}}) {
    const CommandResult result = run_adam_perf(bad);
    EXPECT_NE(result.status, 0) << bad[0] << " " << bad[1];
    EXPECT_NE(result.err.find(bad[0]), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(bad[1]), std::string::npos) << result.err;
  }
}

}  // namespace
}  // namespace weir::test
