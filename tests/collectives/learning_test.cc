// SPDX-License-Identifier: Apache-2.0
// WEIR_LEARN=1 as a program sees it: results stay right while calls explore, all ranks do the same,
// and what was measured decides from the next start on, on all ranks.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <vector>

#include "core/cost/learned_file.h"
#include "support/attempts.h"
#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr size_t kCount = 1000;

void reduce_many(weir_comm_t comm, int calls) {
  const Bench b(comm);
  for (int i = 0; i < calls; ++i) {
    check_all_reduce(b, kCount, How::kOutOfPlace);
    if (testing::Test::HasFailure()) return;
  }
}

class Learning : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_learning_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Environment environment(const char* transport, bool learns, const Environment& more = {}) const {
    Environment all = {{"WEIR_TRANSPORT", transport},
                       {"WEIR_CACHE_DIR", directory_},
                       {"WEIR_LEARN", learns ? "1" : "0"},
                       {"WEIR_PROBE", "1"},
                       {"WEIR_EXPLAIN", "1"},
                       {"WEIR_LOG", "info"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // What the ranks print.
  static std::string run(int n, const Body& body, const Environment& environment,
                         weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
    testing::internal::CaptureStderr();
    run_processes(n, body, environment, config);
    return testing::internal::GetCapturedStderr();
  }

  std::string file() const {
    const auto names = cost::learned_files(directory_);
    EXPECT_EQ(names.size(), 1u);
    return names.empty() ? "" : directory_ + "/" + names[0];
  }
  cost::Learned read() const {
    std::ifstream in(file());
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    auto learned = cost::learned_from_json(text);
    EXPECT_TRUE(learned.ok()) << learned.status().text();
    return learned.ok() ? learned.take() : cost::Learned();
  }
  static cost::CallShape shape(Collective collective = Collective::kAllReduce) {
    cost::CallShape shape;
    shape.collective = collective;
    shape.bytes = kCount * sizeof(float);
    return shape;
  }
  // What was kept of calls of the shape; fails if there is nothing.
  cost::LearnedCall kept(const cost::CallShape& of) const {
    for (const cost::LearnedCall& call : read().calls) {
      if (call.shape == of) return call;
    }
    ADD_FAILURE() << "nothing is kept of " << cost::describe(of, 0);
    return {};
  }
  // A file in which the algorithm of such calls that is predicted to be the slowest took half as
  // long as all others, in so many calls each. Returns its name.
  std::string forge(const cost::CallShape& of = shape(), uint64_t count = 50) {
    cost::Learned learned = read();
    std::string fast;
    for (cost::LearnedCall& call : learned.calls) {
      const bool forged = call.shape == of;
      const double choice_ns = call.find(call.choice)->predicted_ns;
      const auto slowest = std::max_element(
          call.times.begin(), call.times.end(),
          [](const auto& a, const auto& b) { return a.predicted_ns < b.predicted_ns; });
      if (forged) fast = slowest->algorithm;
      // Whatever a busy machine measured.
      for (cost::AlgorithmTime& time : call.times) {
        const double ns = !forged ? 0 : time.algorithm == fast ? choice_ns / 2 : choice_ns;
        time.count = forged ? count : 0;
        time.least_ns = time.average_ns = time.middle_ns = ns;
      }
    }
    EXPECT_NE(fast, "");
    EXPECT_TRUE(cost::store_learned(directory_, learned).ok());
    return fast;
  }

  // What a start prints in which the forged file decides. Every start measures costs, and on a busy
  // machine they may predict the forged algorithm to be the best: then the next one is looked at.
  static std::string decided(const std::function<std::string()>& start, const std::string& fast) {
    std::string printed;
    bool decides = false;
    for (Attempts attempts; !decides && attempts.next();) {
      printed = start();
      EXPECT_THAT(printed, HasSubstr(fast + ", "));
      if (HasFailure()) break;
      decides = printed.find(fast + ", measured faster: ") != std::string::npos;
    }
    EXPECT_TRUE(decides) << printed;
    return printed;
  }

  std::string directory_;
};

TEST_F(Learning, ACacheDirectoryThatCannotBeUsedIsAWarning) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "no directory";
  const std::string said = run(
      2, [](int, weir_comm_t comm) { reduce_many(comm, 200); },
      environment("tcp", true, {{"WEIR_CACHE_DIR", file + "/cache"}, {"WEIR_LOG", "warn"}}));
  EXPECT_NE(said.find("WEIR_LEARN=1: what is measured is not kept: "), std::string::npos) << said;
}

TEST_F(Learning, EveryCollectiveStaysRightWhileItExplores) {
  for (const char* transport : {"shm", "tcp"}) {
    for (const int n : {2, 3, 4}) {
      // Where it does not explain, other calls take the fast path.
      const bool explains = std::string(transport) == "tcp";
      SCOPED_TRACE(std::string(transport) + " with " + std::to_string(n) + " ranks");
      const std::string printed = run(
          n,
          [](int, weir_comm_t comm) {
            for (int round = 0; round < 4; ++round) {
              for (const size_t count : {size_t{0}, size_t{1}, size_t{600}, size_t{20'011}}) {
                check_every_collective(comm, count);
                if (testing::Test::HasFailure()) return;
              }
            }
          },
          environment(transport, true, {{"WEIR_EXPLAIN", explains ? "1" : "0"}}));
      if (explains) {
        EXPECT_THAT(printed, HasSubstr(", in its turns, predicted "));
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(Learning, ARankWithAnotherSettingIsRefusedByName) {
  const weir_unique_id_t id = make_id();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      for (const auto& [name, value] : environment("tcp", rank == 1)) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      weir_comm_t comm = nullptr;
      const weir_result_t result = weir_comm_create(&comm, 2, &id, rank, nullptr);
      const std::string text = weir_last_error(nullptr);
      const bool named = text.find("rank 0: WEIR_LEARN=0; rank 1: WEIR_LEARN=1") != text.npos;
      if (!named) std::fprintf(stderr, "rank %d: %s\n", rank, text.c_str());
      _exit(result == WEIR_ERROR_MISMATCH && named ? 0 : 1);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

TEST_F(Learning, ADeterministicCommunicatorExploresNothingAndItsBitsRepeat) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_DETERMINISTIC;
  const std::string printed = run(
      3,
      [](int rank, weir_comm_t comm) {
        std::mt19937 random(static_cast<unsigned>(rank) + 1);
        std::vector<float> input(kCount), first(kCount), output(kCount);
        for (float& value : input) {
          value = std::ldexp(static_cast<float>(random()), static_cast<int>(random() % 40));
        }
        for (int i = 0; i < 100; ++i) {
          ASSERT_EQ(weir_all_reduce(comm, input.data(), output.data(), kCount, WEIR_FLOAT32,
                                    WEIR_SUM, nullptr),
                    WEIR_OK);
          if (i == 0) first = output;
          const auto same_bits = [](float a, float b) {
            return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
          };
          ASSERT_TRUE(std::equal(first.begin(), first.end(), output.begin(), same_bits)) << i;
        }
      },
      environment("tcp", true), config);
  EXPECT_THAT(printed, Not(HasSubstr("explored")));
  EXPECT_THAT(printed, Not(HasSubstr("in its turns")));
  EXPECT_TRUE(cost::learned_files(directory_).empty());
}

TEST_F(Learning, WhatWasMeasuredIsKeptAndDecidesAtTheNextStartOnAllRanks) {
  const std::string before = run(
      4, [](int, weir_comm_t comm) { reduce_many(comm, 300); }, environment("tcp", true));
  EXPECT_THAT(before, HasSubstr("explored in turn: "));
  struct stat info = {};
  ASSERT_EQ(stat(file().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  const cost::Learned learned = read();
  EXPECT_EQ(learned.of.rank_count, 4u);
  EXPECT_EQ(learned.of.transport, "tcp");
  uint64_t measured = 0;
  for (const cost::LearnedCall& call : learned.calls) {
    for (const cost::AlgorithmTime& time : call.times) measured += time.count;
  }
  EXPECT_GT(measured, 0u);

  const std::string fast = forge();
  // A rank that chose by a file of its own would not meet the others.
  const auto of_rank = [&](int rank) {
    Environment all = environment("tcp", false, {{"WEIR_TIMEOUT_MS", "60000"}});
    if (rank != 0) all.emplace_back("WEIR_CACHE_DIR", directory_ + "/none");
    return all;
  };
  const auto start = [&] {
    testing::internal::CaptureStderr();
    const auto statuses = run_processes_each(
        4, [](int, weir_comm_t comm) { reduce_many(comm, 20); }, of_rank);
    std::string printed = testing::internal::GetCapturedStderr();
    EXPECT_EQ(statuses, std::vector<int>(4, 0)) << printed;
    return printed;
  };
  const std::string after = decided(start, "all_reduce of 3.906 KiB float32 on 4 ranks: " + fast);
  EXPECT_THAT(after, HasSubstr("(50 and 50 calls of earlier runs)"));
  EXPECT_THAT(after, Not(HasSubstr("explored")));
  // What a user forces is above it.
  const std::string forced = run(
      4, [](int, weir_comm_t comm) { reduce_many(comm, 1); },
      environment("tcp", false, {{"WEIR_ALGORITHM", "all_reduce=ring"}}));
  EXPECT_THAT(forced, HasSubstr("ring, forced by WEIR_ALGORITHM"));
  // And nothing that was measured is used without the probe.
  const std::string built_in = run(
      4, [](int, weir_comm_t comm) { reduce_many(comm, 1); },
      environment("tcp", false, {{"WEIR_PROBE", "0"}}));
  EXPECT_THAT(built_in, Not(HasSubstr("measured faster")));
}

// In place at the root, which is another one each time.
void broadcast_many(weir_comm_t comm, int calls, const std::function<void(int root)>& before) {
  int n = 0;
  ASSERT_EQ(weir_comm_size(comm, &n), WEIR_OK);
  int rank = 0;
  ASSERT_EQ(weir_comm_rank(comm, &rank), WEIR_OK);
  std::vector<float> data(kCount);
  for (int i = 0; i < calls; ++i) {
    const int root = i % n;
    before(root);
    for (size_t k = 0; k < kCount; ++k) data[k] = rank == root ? static_cast<float>(i + 1) : 0;
    ASSERT_EQ(weir_broadcast(comm, data.data(), data.data(), kCount, WEIR_FLOAT32, root, nullptr),
              WEIR_OK)
        << "call " << i << ": " << weir_last_error(comm);
    ASSERT_EQ(data.back(), static_cast<float>(i + 1));
  }
}

TEST_F(Learning, CallsWithARootAreMeasuredAndDecideAtTheNextStart) {
  const auto some = [](int, weir_comm_t comm) { broadcast_many(comm, 300, [](int) {}); };
  const std::string before = run(4, some, environment("tcp", true));
  EXPECT_THAT(before, HasSubstr("explored in turn: "));
  const cost::CallShape of = shape(Collective::kBroadcast);
  size_t measured = 0;
  for (const cost::AlgorithmTime& time : kept(of).times) measured += time.count > 0 ? 1 : 0;
  EXPECT_GE(measured, 2u);
  const std::string fast = forge(of);
  decided([&] { return run(4, some, environment("tcp", false)); },
          "broadcast of 3.906 KiB float32 on 4 ranks: " + fast);
}

// A root that calls late keeps the others waiting, whatever the algorithm.
TEST_F(Learning, OfCallsWithARootWhatIsMeasuredBeginsWhenAllHaveCalled) {
  constexpr int kLateMs = 40;
  run(
      3,
      [](int rank, weir_comm_t comm) {
        broadcast_many(comm, 120, [rank](int root) {
          if (rank == root) usleep(kLateMs * 1000);
        });
      },
      environment("tcp", true));
  const cost::CallShape of = shape(Collective::kBroadcast);
  for (const cost::AlgorithmTime& time : kept(of).times) {
    if (time.count < 3) continue;
    EXPECT_LT(time.middle_ns, kLateMs * 0.9e6) << time.algorithm;
  }
}

// Each of them explores about one call, with one of up to four algorithms.
TEST_F(Learning, ManyShortRunsMeasureTheChoiceAndOthersOftenEnough) {
  for (int i = 0; i < 150; ++i) {
    run(
        4, [](int, weir_comm_t comm) { reduce_many(comm, 7); }, environment("tcp", true));
  }
  size_t measured = 0;
  for (const cost::LearnedCall& call : read().calls) {
    if (call.shape != shape()) continue;
    const cost::AlgorithmTime* choice = call.find(call.choice);
    ASSERT_NE(choice, nullptr);
    EXPECT_GE(choice->count, cost::kLearnedCountMin) << call.choice;
    for (const cost::AlgorithmTime& time : call.times) {
      measured += time.count >= cost::kLearnedCountMin ? 1 : 0;
    }
  }
  EXPECT_GE(measured, 2u);
}

TEST_F(Learning, WithinAProcessChoicesStayTheSame) {
  run(
      2, [](int, weir_comm_t comm) { reduce_many(comm, 300); }, environment("tcp", true));
  // Too few calls to decide.
  forge(shape(), cost::kLearnedCountMin - 1);
  const std::string printed = run(
      2,
      [this](int rank, weir_comm_t comm) {
        reduce_many(comm, 5);
        if (rank == 0) forge();
        ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
        reduce_many(comm, 5);
        // A communicator that is made later chooses like those before it.
        weir_comm_t later = nullptr;
        ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &later), WEIR_OK)
            << weir_last_error(comm);
        reduce_many(later, 5);
        ASSERT_EQ(weir_comm_destroy(later), WEIR_OK);
      },
      environment("tcp", false));
  EXPECT_THAT(printed, HasSubstr("all_reduce of 3.906 KiB float32 on 2 ranks: "));
  EXPECT_THAT(printed, Not(HasSubstr("measured faster")));
  // Forged again as it was, to know the name.
  decided(
      [this] {
        return run(
            2, [](int, weir_comm_t comm) { reduce_many(comm, 5); }, environment("tcp", false));
      },
      "all_reduce of 3.906 KiB float32 on 2 ranks: " + forge());
}

TEST_F(Learning, AFileThatCannotBeUsedIsIgnoredWithALine) {
  run(
      2, [](int, weir_comm_t comm) { reduce_many(comm, 300); }, environment("tcp", true));
  const std::string fast = forge();
  const std::string path = file();
  const auto start = [&] {
    return run(
        2, [](int, weir_comm_t comm) { reduce_many(comm, 3); }, environment("tcp", false));
  };
  decided(start, "all_reduce of 3.906 KiB float32 on 2 ranks: " + fast);

  const timespec old = {.tv_sec = time(nullptr) - 31 * 24 * 3600, .tv_nsec = 0};
  const timespec both[] = {old, old};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), both, 0), 0);
  std::string printed = start();
  EXPECT_THAT(printed, HasSubstr("measured calls are not used: '" + path +
                                 "' was not written within the last 30 days"));
  EXPECT_THAT(printed, Not(HasSubstr("measured faster")));

  ASSERT_EQ(chmod(path.c_str(), 0622), 0);
  printed = start();
  EXPECT_THAT(printed, HasSubstr("measured calls are ignored: others may write '" + path));
  EXPECT_THAT(printed, Not(HasSubstr("measured faster")));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);

  std::ofstream(path, std::ios::trunc) << "{\"version\": ";
  printed = start();
  EXPECT_THAT(printed, HasSubstr("measured calls are ignored: "));
  EXPECT_THAT(printed, HasSubstr("not a JSON object"));
  EXPECT_THAT(printed, Not(HasSubstr("measured faster")));
}

}  // namespace
}  // namespace weir::test
