// SPDX-License-Identifier: Apache-2.0
// Networks that are slower than any that a job should run on: with nothing set, a communicator
// starts between two hosts and works. WEIR_TEST_TRANSPORT names the transport.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "netns/lab.h"
#include "support/promises.h"

namespace weir::test {
namespace {

class SlowNetwork : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
    const char* named = getenv("WEIR_TEST_TRANSPORT");
    transport_ = named == nullptr ? "tcp" : named;
  }
  LabOptions hosts() const {
    return {.hosts = {{0}, {1}},
            .environment = {{"WEIR_TRANSPORT", transport_}, {"WEIR_LOG", "info"}},
            .timeout_ms = 0};
  }

  std::string transport_;
};

void all_reduce(int rank, weir_comm_t comm, size_t count) {
  SCOPED_TRACE(testing::Message() << count << " elements");
  std::vector<int32_t> data(count);
  std::iota(data.begin(), data.end(), rank * 1000);
  ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_INT32, WEIR_SUM, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(data[i], static_cast<int32_t>(2 * i) + 1000) << "element " << i;
  }
}

void use(int rank, weir_comm_t comm) {
  for (const size_t count : {1u, 1000u, 3u, 10'000u}) all_reduce(rank, comm, count);
  ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
}

TEST_F(SlowNetwork, At64KbitAnd600MsThereAndBackACommunicatorStartsAndWorks) {
  LabOptions options = hosts();
  options.relay = {.bits_per_second = 64'000, .delay_ms = 300};
  run_in_lab(options, use);
}

TEST_F(SlowNetwork, At200KbitACommunicatorStartsAndWorks) {
  LabOptions options = hosts();
  options.relay = {.bits_per_second = 200'000, .delay_ms = 20};
  run_in_lab(options, use);
}

// The first of it passes at once, the rest does not: what the probe sees first promises too much.
TEST_F(SlowNetwork, At300KbitBehindABucketACommunicatorStartsAndWorks) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  LabOptions options = hosts();
  options.commands = {"tc qdisc add dev eth0 root tbf rate 300kbit burst 16kb latency 400ms"};
  run_in_lab(options, use);
}

}  // namespace
}  // namespace weir::test
