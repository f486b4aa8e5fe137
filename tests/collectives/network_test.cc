// SPDX-License-Identifier: Apache-2.0
// Dead and stopped ranks where ranks share no memory but only connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

// tcp, or what WEIR_TEST_TRANSPORT names.
const char* transport_under_test() {
  const char* name = std::getenv("WEIR_TEST_TRANSPORT");
  return name != nullptr ? name : "tcp";
}

const Environment kTcp = {{"WEIR_TRANSPORT", transport_under_test()}};

unsigned test_seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 0))
                         : std::random_device{}();
}

TEST(KilledOverTcp, EverySurvivorHearsOfItAndShrinkGoesOn) {
  const unsigned seed = test_seed();
  std::printf("WEIR_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    const int victim = static_cast<int>(random() % 4);
    const useconds_t moment_us = random() % 20'000;
    const size_t count = random() % 2 == 0 ? 10 : 200'000;
    SCOPED_TRACE("rank " + std::to_string(victim) + " dies after " + std::to_string(moment_us) +
                 " us, count " + std::to_string(count));
    std::vector<int> expected(4, 0);
    expected[static_cast<size_t>(victim)] = 128 + SIGKILL;
    const std::vector<int> statuses = run_processes_status(
        4,
        [&](int rank, weir_comm_t comm) {
          if (rank == victim) {
            std::thread([moment_us] {
              usleep(moment_us);
              kill(getpid(), SIGKILL);
            }).detach();
          }
          std::vector<float> data(count, 1.0f);
          weir_result_t result = WEIR_OK;
          while (result == WEIR_OK) {
            result = weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, WEIR_MAX,
                                     nullptr);
          }
          EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
          // Who waited for a survivor that has given up knows only of that one.
          const std::string text = weir_last_error(comm);
          const bool told = text.find("rank " + std::to_string(victim)) != std::string::npos;
          EXPECT_TRUE(told || text.find("has closed the communicator") != std::string::npos)
              << text;
          int lost[4];
          int lost_count = 0;
          ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 4, &lost_count), WEIR_OK);
          ASSERT_LE(lost_count, 1);
          if (told) {
            ASSERT_EQ(lost_count, 1) << text;
          }
          if (lost_count == 1) {
            EXPECT_EQ(lost[0], victim);
          }
          lost[0] = victim;
          weir_comm_t rest = nullptr;
          ASSERT_EQ(weir_comm_shrink(comm, lost, 1, nullptr, &rest), WEIR_OK)
              << weir_last_error(comm);
          check_every_collective(rest, 1000);
          ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
        },
        kTcp, with_timeout(20'000));
    EXPECT_EQ(statuses, expected);
    if (HasFailure()) return;
  }
}

TEST(StoppedOverTcp, WhoWaitsForItNamesItAtTheDeadline) {
  const std::vector<int> statuses = run_processes_status(
      2,
      [](int rank, weir_comm_t comm) {
        std::vector<float> data(100'000, 1.0f);
        if (rank == 1) {
          const pid_t self = getpid();
          if (fork() == 0) {  // so that the test can collect it
            usleep(3'000'000);
            kill(self, SIGKILL);
            _exit(0);
          }
          raise(SIGSTOP);
        }
        EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                  WEIR_SUM, nullptr),
                  WEIR_ERROR_TIMEOUT);
        EXPECT_NE(std::string(weir_last_error(comm)).find("rank 1"), std::string::npos)
            << weir_last_error(comm);
      },
      kTcp, with_timeout(1'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(MismatchOverTcp, ARankThatHearsAnotherCallSaysWhoCalledWhat) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        std::vector<float> data(1000, 1.0f);
        const weir_result_t result =
            weir_all_reduce(comm, data.data(), data.data(), rank == 0 ? 1000 : 999, WEIR_FLOAT32,
                            WEIR_SUM, nullptr);
        // Both send first, so both hear; who is slower may find the other gone.
        ASSERT_NE(result, WEIR_OK);
        if (result == WEIR_ERROR_PEER_LOST) return;
        EXPECT_EQ(result, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("count 1000"), std::string::npos) << text;
        EXPECT_NE(text.find("count 999"), std::string::npos) << text;
      },
      kTcp, with_timeout(10'000));
}

TEST(ListOverTcp, TheSettingMayNameSeveralTransports) {
  run_processes(
      2, [](int, weir_comm_t comm) { check_every_collective(comm, 100); },
      {{"WEIR_TRANSPORT", "tcp,shm"}}, with_timeout(10'000));
}

}  // namespace
}  // namespace weir::test
