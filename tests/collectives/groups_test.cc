// SPDX-License-Identifier: Apache-2.0
// Ranks of one host in groups by NUMA node and package. This machine may have one of each: topology
// files, of which each rank has its own, say that all processors of this machine are on one of
// several.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

using Groups = std::vector<int>;  // of each rank: the NUMA node that it is on

constexpr int kNodes = 4;

const std::vector<Groups> kLayouts = {
    {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {2, 2, 0, 1, 0}, {0, 1, 1, 2, 2, 2}};

std::string text_of(const Groups& groups) {
  std::string text = "groups";
  for (const int group : groups) text += " " + std::to_string(group);
  return text;
}

// Of 2,048 processors, by hwloc's notation, from the number `first` on.
std::string mask(int first) {
  std::string text;
  for (int word = 63; word >= 0; --word) text += "0xffffffff,";
  text.pop_back();
  for (int word = 0; word < first / 32; ++word) text += ",";
  return text;
}

// A machine on whose node `mine` all processors of this one are.
std::string machine_with(int mine) {
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<topology version=\"2.0\">\n"
      " <object type=\"Machine\" os_index=\"0\" gp_index=\"1\">\n";
  for (int node = 0; node < kNodes; ++node) {
    const int first = node == mine ? 0 : 2048 * (1 + (node + kNodes - mine) % kNodes);
    const std::string number = std::to_string(node);
    const auto object = [&](const char* type, const char* index) {
      return std::string("<object type=\"")
          .append(type)
          .append("\" os_index=\"")
          .append(number)
          .append("\" cpuset=\"")
          .append(mask(first))
          .append("\" gp_index=\"")
          .append(index)
          .append(number);
    };
    text += object("Package", "1") + "\">\n" + object("NUMANode", "2") + "\"/>\n</object>\n";
  }
  return text + "</object></topology>\n";
}

class GroupsOfOneHost : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "weir_groups_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    for (int node = 0; node < kNodes; ++node) {
      std::ofstream(file_of(node)) << machine_with(node);
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file_of(int node) const { return folder_ + "/node" + std::to_string(node) + ".xml"; }

  void run(const Groups& groups, const Body& body, const Environment& more) {
    const int n = static_cast<int>(groups.size());
    const std::vector<int> statuses = run_processes_each(n, body, [&](int rank) {
      Environment own = more;
      own.emplace_back("WEIR_TOPOLOGY_FILE", file_of(groups[static_cast<size_t>(rank)]));
      return own;
    });
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(statuses[static_cast<size_t>(rank)], 0) << "rank " << rank;
    }
  }

 private:
  std::string folder_;
};

// Rank r has r + k at place k: the average is k + (n - 1) / 2.
void check_averages(int rank, weir_comm_t comm) {
  int n = 0;
  ASSERT_EQ(weir_comm_size(comm, &n), WEIR_OK);
  constexpr size_t kBlock = 3001;
  const size_t count = kBlock * static_cast<size_t>(n);
  std::vector<float> input(count);
  for (size_t k = 0; k < count; ++k) input[k] = static_cast<float>(rank) + static_cast<float>(k);
  const auto expect = [&](const std::vector<float>& values, size_t first) {
    for (size_t k = 0; k < values.size(); ++k) {
      const float right = static_cast<float>(first + k) + static_cast<float>(n - 1) / 2;
      ASSERT_NEAR(values[k], right, 0.01f) << "place " << k;
    }
  };
  std::vector<float> output(count);
  ASSERT_EQ(
      weir_all_reduce(comm, input.data(), output.data(), count, WEIR_FLOAT32, WEIR_AVG, nullptr),
      WEIR_OK);
  expect(output, 0);
  for (int root = 0; root < n; ++root) {
    std::fill(output.begin(), output.end(), 0.0f);
    ASSERT_EQ(weir_reduce(comm, input.data(), output.data(), count, WEIR_FLOAT32, WEIR_AVG, root,
                          nullptr),
              WEIR_OK);
    if (rank == root) expect(output, 0);
  }
  output.assign(kBlock, 0.0f);
  ASSERT_EQ(weir_reduce_scatter(comm, input.data(), output.data(), kBlock, WEIR_FLOAT32, WEIR_AVG,
                                nullptr),
            WEIR_OK);
  expect(output, kBlock * static_cast<size_t>(rank));
}

TEST_F(GroupsOfOneHost, TheAlgorithmsByGroupsHold) {
  const Environment forced = {{"WEIR_ALGORITHM",
                               "all_reduce=by_numa,reduce_scatter=by_numa,all_gather=by_numa,"
                               "broadcast=by_numa,reduce=by_numa"}};
  for (const Groups& groups : kLayouts) {
    SCOPED_TRACE(text_of(groups));
    run(
        groups,
        [](int, weir_comm_t comm) {
          for (const size_t count : {size_t{1}, size_t{255}, size_t{5000}, size_t{70'001}}) {
            check_every_collective(comm, count);
          }
        },
        forced);
    if (HasFailure()) return;
  }
}

// Only the last of the folds of an average divides.
TEST_F(GroupsOfOneHost, AveragesHold) {
  for (const Groups& groups : kLayouts) {
    SCOPED_TRACE(text_of(groups));
    run(groups, [](int rank, weir_comm_t comm) { check_averages(rank, comm); },
        {{"WEIR_ALGORITHM", "all_reduce=by_numa,reduce_scatter=by_numa,reduce=by_numa"}});
    if (HasFailure()) return;
  }
}

TEST_F(GroupsOfOneHost, EveryCollectiveHoldsByItsOwnChoice) {
  run({0, 0, 1, 1},
      [](int, weir_comm_t comm) {
        for (const size_t count : {size_t{1}, size_t{5000}, size_t{300'000}}) {
          check_every_collective(comm, count);
        }
      },
      {});
}

TEST_F(GroupsOfOneHost, TheyCannotBeForcedWhereAllRanksAreInOne) {
  run({1, 1, 1},
      [](int, weir_comm_t comm) {
        float value = 1;
        EXPECT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
      },
      {{"WEIR_ALGORITHM", "all_reduce=by_numa"}});
}

// The sums of values that no order of additions but one gives, as rank 0 has them.
constexpr size_t kCount = 40'000;

TEST_F(GroupsOfOneHost, DeterministicSumsHaveTheSameBitsWhateverTheGroups) {
  constexpr size_t kBytes = kCount * sizeof(float);
  auto* const results = static_cast<unsigned char*>(
      mmap(nullptr, 3 * kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(results, MAP_FAILED);
  const Groups layouts[] = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 1}};
  for (int i = 0; i < 3; ++i) {
    run(layouts[i],
        [&](int rank, weir_comm_t comm) {
          std::vector<float> values(kCount);
          for (size_t k = 0; k < kCount; ++k) {
            values[k] =
                1.0f / static_cast<float>(1 + (k * 7 + static_cast<size_t>(rank) * 13) % 997);
          }
          ASSERT_EQ(weir_all_reduce(comm, values.data(), values.data(), kCount, WEIR_FLOAT32,
                                    WEIR_SUM, nullptr),
                    WEIR_OK);
          if (rank == 0)
            std::memcpy(results + static_cast<size_t>(i) * kBytes, values.data(), kBytes);
        },
        {{"WEIR_DETERMINISTIC", "1"}});
  }
  EXPECT_EQ(std::memcmp(results, results + kBytes, kBytes), 0);
  EXPECT_EQ(std::memcmp(results, results + 2 * kBytes, kBytes), 0);
  munmap(results, 3 * kBytes);
}

}  // namespace
}  // namespace weir::test
