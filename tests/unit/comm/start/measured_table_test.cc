// SPDX-License-Identifier: Apache-2.0
// The agreement on costs, over a real bootstrap and a transport that fails when a test says so: all
// ranks have the same table, or all have the same reason.
#include "core/comm/start/measured_table.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

using test::End;
using test::Fault;

constexpr Rank kRanks = 3;

class MeasuredTable : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "weir-costs-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    settings_.cache_dir = name;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      ends_[rank].wire = &wire_;
      ends_[rank].rank = rank;
      all_.push_back(introduce_this_process());
      all_.back().host = "a";  // rank 1 is on a host of its own
    }
  }
  void TearDown() override { std::filesystem::remove_all(settings_.cache_dir); }

  // What each rank gets.
  std::vector<Result<AgreedCosts>> agree(uint64_t timeout_ms) {
    const Secret secret = fresh_secret();
    // What a process has measured between two hosts it knows.
    static int number = 0;
    all_[1].host = "b" + std::to_string(number++);
    std::array<std::optional<Result<AgreedCosts>>, kRanks> results;
    std::vector<std::thread> threads;
    for (Rank rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        engine::Context context;
        context.rank = rank;
        context.rank_count = kRanks;
        context.transport = &test::scripted_transport();
        context.instance = reinterpret_cast<weir_transport_t*>(&ends_[rank]);
        auto joined = Bootstrap::join(secret, rank, kRanks, deadline_in_ms(20'000));
        ASSERT_TRUE(joined.ok()) << joined.status().text();
        const std::string transport_error = "what the transport has said last";
        Settings own = settings_;
        own.probe = probes_[rank];
        results[rank] = agree_on_costs(*joined.value(), context, own, all_,
                                       deadline_in_ms(timeout_ms), transport_error);
        EXPECT_FALSE(ends_[rank].holds_something());
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::vector<Result<AgreedCosts>> all;
    for (auto& result : results) {
      all.push_back(result ? std::move(*result) : Status(Code::kInternal, "it did not join"));
    }
    return all;
  }
  // The reason, which is the same for all.
  Status expect_one_reason(uint64_t timeout_ms) {
    const auto results = agree(timeout_ms);
    for (const auto& result : results) {
      EXPECT_FALSE(result.ok());
      EXPECT_EQ(result.status().code(), results[0].status().code());
      EXPECT_EQ(result.status().text(), results[0].status().text());
    }
    return results[0].status();
  }

  test::Wire wire_;
  std::array<End, kRanks> ends_;
  std::vector<Introduction> all_;
  Settings settings_{};
  std::array<bool, kRanks> probes_ = {true, true, true};
};

TEST_F(MeasuredTable, IsTheSameOnAllRanks) {
  const auto results = agree(60'000);
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status().text();
    EXPECT_EQ(cost::to_blob(result.value().table), cost::to_blob(results[0].value().table));
  }
}

// WEIR_PROBE differs: nobody waits for a rank that does not know of it.
TEST_F(MeasuredTable, IsMeasuredWhereRank0SaysSo) {
  probes_ = {true, false, false};
  for (const auto& result : agree(60'000)) EXPECT_TRUE(result.ok()) << result.status().text();
  EXPECT_GT(ends_[1].post_count, 0u);
  probes_ = {false, true, true};
  ends_[1].post_count = 0;
  for (const auto& result : agree(60'000)) EXPECT_TRUE(result.ok()) << result.status().text();
  EXPECT_EQ(ends_[1].post_count, 0u);
}

TEST_F(MeasuredTable, OfARankThatIsSlowIsTheSameOnAllRanks) {
  ends_[1].fault = Fault::kSlow;
  ends_[1].step = 7;
  for (const auto& result : agree(60'000)) EXPECT_TRUE(result.ok()) << result.status().text();
}

TEST_F(MeasuredTable, IsRefusedToAllWhereTheProbeFailsOnOne) {
  for (const Rank rank : {0u, 1u, 2u}) {
    for (const uint64_t step : {uint64_t{0}, uint64_t{5}}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      wire_.queues.clear();
      for (Rank r = 0; r < kRanks; ++r) {
        ends_[r].posted.clear();
        ends_[r].quiet = false;
        ends_[r].fault = r == rank ? Fault::kError : Fault::kNone;
        ends_[r].step = step;
        ends_[r].post_count = 0;
      }
      const Status reason = expect_one_reason(60'000);
      EXPECT_NE(
          reason.text().find("failed on rank " + std::to_string(rank) + ": what the transport"),
          std::string::npos)
          << reason.text();
    }
  }
}

TEST_F(MeasuredTable, IsRefusedToAllWhereARankDoesNotAnswer) {
  ends_[1].fault = Fault::kSilent;
  ends_[1].step = 4;
  // Two are late at the same moment, and each says for whom it waits.
  for (const auto& result : agree(2'000)) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kTimeout);
    EXPECT_NE(result.status().text().find("the start-up probe: rank "), std::string::npos)
        << result.status().text();
  }
}

}  // namespace
}  // namespace weir::comm
