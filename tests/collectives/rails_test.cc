// SPDX-License-Identifier: Apache-2.0
// Messages between two ranks that share several connections, with all settings as they are by
// default: each start measures its costs over them.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/attempts.h"
#include "support/collective_checks.h"
#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

// No start finds what an earlier one has measured.
class RailsOverTcp : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  Environment environment() const {
    return {{"WEIR_TRANSPORT", "tcp"},
            {"WEIR_TCP_CONNECTIONS", std::to_string(GetParam())},
            {"WEIR_CACHE_DIR", folder_}};
  }
  // Returns whether there were any.
  bool forget_costs() const {
    bool any = false;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      any = std::filesystem::remove_all(entry.path()) > 0 || any;
    }
    return any;
  }

 private:
  std::string folder_ = std::filesystem::temp_directory_path() / "weir-rails-XXXXXX";
};

void move(weir_comm_t comm, int rank, bool sends, std::vector<unsigned char>* data, int number) {
  const auto value = [&](size_t i) { return static_cast<unsigned char>(i * 3 + i / 251 + number); };
  for (size_t i = 0; i < data->size(); ++i) (*data)[i] = sends ? value(i) : 0xee;
  ASSERT_EQ(sends ? weir_send(comm, data->data(), data->size(), WEIR_UINT8, 1 - rank, nullptr)
                  : weir_recv(comm, data->data(), data->size(), WEIR_UINT8, 1 - rank, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  for (size_t i = 0; i < data->size(); ++i) ASSERT_EQ((*data)[i], value(i));
}

// Several messages one way and one back, again and again, from either rank.
TEST_P(RailsOverTcp, AnyNumberOfMessagesMayBeAnsweredByOne) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        for (const size_t bytes : {size_t{8}, size_t{1000}, size_t{8192}}) {
          std::vector<unsigned char> data(bytes);
          for (int count = 1; count <= 17; ++count) {
            SCOPED_TRACE(std::to_string(count) + " messages of " + std::to_string(bytes));
            for (int round = 0; round < 12 && !testing::Test::HasFatalFailure(); ++round) {
              const bool sends = (round / 6 + rank) % 2 == 0;
              for (int k = 0; k < count; ++k) move(comm, rank, sends, &data, round + k);
              move(comm, rank, !sends, &data, round);
            }
          }
        }
        check_every_collective(comm, 1000);
      },
      environment(), with_timeout(60'000));
}

// Where messages do not come the measuring ends after 5 s, and nothing is kept. On a busy machine
// nothing is kept either, but the start is not that long.
TEST_P(RailsOverTcp, StartsMeasureTheirCosts) {
  int measured = 0;
  int stuck = 0;
  for (Attempts attempts; measured < 6 && attempts.next();) {
    const auto start = Clock::now();
    run_processes(
        2, [](int, weir_comm_t comm) { ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK); },
        environment(), with_timeout(60'000));
    const bool kept = forget_costs();
    measured += kept ? 1 : 0;
    if (!kept && seconds_since(start) >= 5.0) ++stuck;
  }
  EXPECT_EQ(measured, 6);
  EXPECT_LE(stuck, 2);
}

// Who has all that it waits for may destroy its communicator at once: its peers have been told what
// it has received, and finish.
TEST_P(RailsOverTcp, PeersOfARankThatDestroysItsCommunicatorFinish) {
  const std::vector<Body> bodies = {
      [](int, weir_comm_t comm) {
        std::vector<float> data(100'000, 1.0f);
        EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                  WEIR_SUM, nullptr),
                  WEIR_OK)
            << weir_last_error(comm);
      },
      [](int rank, weir_comm_t comm) {
        std::vector<unsigned char> data(400'000);
        if (rank < 2) move(comm, rank, rank == 0, &data, 0);
      }};
  for (const Body& body : bodies) {
    for (int round = 0; round < 20 && !HasFailure(); ++round) {
      run_processes(3, body, environment(), with_timeout(60'000));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Connections, RailsOverTcp, testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace weir::test
