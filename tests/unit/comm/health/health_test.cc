// SPDX-License-Identifier: Apache-2.0
#include "core/comm/health/health.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/comm/requests/request_text.h"
#include "support/control_networks.h"
#include "unit/comm/parts_support.h"

namespace weir::comm {
namespace {

using engine::RankState;

struct HealthTest : testing::Test {
  static constexpr Rank kRanks = 4;

  CommState state;
  MappedRanks ranks{kRanks, &state};
  PeerReports reports{state};
  Records records{state};
  FakeOperations operations;
  std::vector<Status> told;
  Health health{state, reports, operations, records,
                [this](const Status& status, const std::vector<Rank>&) { told.push_back(status); }};
  Request request;

  void SetUp() override {
    reports.open(nullptr);
    health.open();
    request.call.collective = Collective::kAllReduce;
    request.call.count = 4;
    operations.first = &request;
  }

  engine::Control& peer(Rank rank) { return state.context.control(rank); }
  void check() {
    const std::lock_guard lock(state.lock);
    health.check(request);
  }
  Status failure() const { return state.failure.status(); }
};

TEST_F(HealthTest, NothingIsWrongWhileThereIsTime) {
  operations.awaited = {1};
  for (int i = 0; i < 3; ++i) check();
  EXPECT_TRUE(failure().ok());
  EXPECT_TRUE(operations.failures.empty());
}

TEST_F(HealthTest, TheFailureThatAPeerTellsOfIsTakenOverWithWhomItBlames) {
  std::snprintf(peer(2).error_text, sizeof peer(2).error_text, "rank 3 died");
  peer(2).blamed_count = 1;
  peer(2).blamed_ranks[0] = 3;
  peer(2).health.code.store(static_cast<uint32_t>(Code::kPeerLost));
  peer(2).health.state.store(static_cast<uint32_t>(RankState::kFailed));
  EXPECT_EQ(health.reported_failure().code(), Code::kPeerLost);
  // What had been sent before counts: there is a poll between two looks.
  check();
  EXPECT_TRUE(failure().ok());
  check();
  EXPECT_EQ(failure().text(), "rank 3 died (reported by rank 2)");
  EXPECT_EQ(state.failure.blamed(), std::vector<Rank>{3});
  ASSERT_EQ(operations.failures.size(), 1u);
  ASSERT_EQ(told.size(), 1u);
  std::set<Rank> lost;
  health.collect_lost(&lost);
  EXPECT_EQ(lost, std::set<Rank>{3});
  // And it is passed on.
  EXPECT_EQ(peer(0).health.state.load(), static_cast<uint32_t>(RankState::kFailed));
  EXPECT_STREQ(peer(0).error_text, "rank 3 died (reported by rank 2)");
}

TEST_F(HealthTest, APeerThatLeftWithoutDoingItsPartIsLostOnceTwoLooksHaveSeenIt) {
  operations.awaited = {1};
  request.started = true;
  request.sequence = 1;
  state.context.sequence = 1;
  state.context.end_position[1] = 64;
  peer(1).health.gone.store(1);
  check();
  EXPECT_TRUE(failure().ok());
  {
    const std::lock_guard lock(state.lock);
    health.note_progress();
  }
  check();
  EXPECT_TRUE(failure().ok()) << "something moved: what it left behind counts";
  check();
  EXPECT_EQ(failure().code(), Code::kPeerLost);
  EXPECT_NE(failure().text().find("rank 1 destroyed the communicator"), std::string::npos)
      << failure().text();
}

// A transport that reaches no peer, where the control network says that they live.
TEST(Health, APeerThatCannotBeReachedIsNotCalledDead) {
  weir_transport_config_t config{};
  config.rank_count = 4;
  config.comm_id = 5;
  const unsigned char secret[32] = {1};
  config.secret = secret;
  config.secret_bytes = sizeof secret;
  for (const bool has_network : {true, false}) {
    testing_support::ControlRank control(config, false);
    ASSERT_TRUE(control.problem.ok()) << control.problem.text();
    CommState state;
    const MappedRanks ranks(4, &state);
    weir_transport_functions_t transport = *state.context.transport;
    transport.caps.bits |= WEIR_CAP_PEER_FAILURE;
    transport.peer_alive = [](weir_transport_t*, uint32_t peer) {
      return peer == 1 || peer == 3 ? WEIR_ERROR_PEER_LOST : WEIR_OK;
    };
    state.context.transport = &transport;
    PeerReports reports(state);
    reports.open(has_network ? control.network.get() : nullptr);
    state.context.control(2).health.gone.store(1);
    reports.look(now_ns());
    EXPECT_EQ(reports.ended(), (std::vector<Rank>{1, 3}));
    const FakeOperations operations;
    const WaitTime wait_time;
    const HealthTexts texts(state, reports, operations, wait_time);
    EXPECT_EQ(texts.describe_lost({1, 2, 3}),
              has_network ? "ranks 1, 3 could not be reached and rank 2 destroyed the communicator"
                          : "ranks 1, 3 died and rank 2 destroyed the communicator");
  }
}

TEST_F(HealthTest, APeerThatLeftAfterItsPartIsNoLoss) {
  operations.awaited = {1};
  request.started = true;
  request.sequence = 1;
  state.context.sequence = 1;
  state.context.end_position[1] = 64;
  peer(1).health.gone.store(1);
  peer(1).done.position.store(64);
  for (int i = 0; i < 4; ++i) check();
  EXPECT_TRUE(failure().ok()) << failure().text();
}

TEST_F(HealthTest, AtTheDeadlineTheOnlySilentRankIsBlamed) {
  operations.awaited = {1};
  request.timeout_ms = 40;
  const auto show = [&](Rank p, Rank awaited) {
    peer(p).health.awaited[0].store(uint64_t{1} << awaited);
    peer(p).health.beat.fetch_add(1);
  };
  // Rank 0 waits for 1, that for 2, that for 3, which shows nothing.
  check();
  while (failure().ok() && now_ns() < request.deadline_ns + 10'000'000'000) {
    show(1, 2);
    show(2, 3);
    check();
  }
  EXPECT_EQ(failure().code(), Code::kTimeout);
  EXPECT_EQ(state.failure.blamed(), std::vector<Rank>{3});
  EXPECT_NE(failure().text().find("waiting for rank 3"), std::string::npos) << failure().text();
}

TEST_F(HealthTest, AnotherCallOfAPeerIsToldByRank) {
  engine::Call other = request.call;
  other.count = 5;
  engine::DescriptorLine& line = peer(3).descriptor[1];
  line.mark.store(engine::fingerprint(other, 2));
  line.what.store(engine::pack_what(other));
  line.count.store(other.count);
  line.sequence.store(1);
  check();
  EXPECT_EQ(failure().code(), Code::kMismatch);
  EXPECT_NE(failure().text().find("rank 3 called " + engine::describe(other)), std::string::npos)
      << failure().text();
}

TEST_F(HealthTest, AnAbortIsToldAtOnceAndEndsTheOperationsAtTheNextLook) {
  health.abort();
  EXPECT_EQ(failure().code(), Code::kAborted);
  EXPECT_EQ(peer(0).health.state.load(), static_cast<uint32_t>(RankState::kAborted));
  EXPECT_TRUE(operations.failures.empty());
  check();
  ASSERT_EQ(operations.failures.size(), 1u);
  EXPECT_EQ(operations.failures[0].code(), Code::kAborted);
}

TEST_F(HealthTest, WhatBrokeAnotherCommunicatorOfTheseRanksBreaksThisOne) {
  health.adopt(Status(Code::kTimeout, "elsewhere"), {2});
  health.adopt(Status(Code::kPeerLost, "later"), {3});
  EXPECT_EQ(failure().text(), "elsewhere");
  EXPECT_EQ(state.failure.blamed(), std::vector<Rank>{2});
  EXPECT_EQ(peer(0).health.state.load(), static_cast<uint32_t>(engine::RankState::kFailed));
  EXPECT_EQ(peer(0).blamed_ranks[0], 2u) << "its peers are told of whom it blames";
  check();
  ASSERT_EQ(operations.failures.size(), 1u);
  EXPECT_TRUE(told.empty()) << "the other one knows";
}

// The thread that holds the lock need not be one that polls.
TEST_F(HealthTest, WhatBrokeAnotherCommunicatorIsToldToThePeersWhoeverHoldsTheLock) {
  const std::lock_guard lock(state.lock);
  std::thread([&] { health.adopt(Status(Code::kTimeout, "nothing has moved"), {1}); }).join();
  EXPECT_EQ(peer(0).health.state.load(), static_cast<uint32_t>(RankState::kFailed));
  EXPECT_STREQ(peer(0).error_text, "nothing has moved");
}

TEST_F(HealthTest, RanksThatAPeerBlamesHaveNotGone) {
  EXPECT_TRUE(health.gone_ranks().empty());
  peer(3).health.gone.store(1);
  EXPECT_EQ(health.gone_ranks(), std::vector<Rank>{3});
  // The error says why it has gone.
  peer(2).blamed_count = 1;
  peer(2).blamed_ranks[0] = 1;
  peer(2).health.code.store(static_cast<uint32_t>(Code::kTimeout));
  peer(2).health.state.store(static_cast<uint32_t>(RankState::kFailed));
  EXPECT_TRUE(health.gone_ranks().empty());
  std::set<Rank> lost;
  health.collect_lost(&lost);
  EXPECT_EQ(lost, (std::set<Rank>{1, 3}));
}

TEST_F(HealthTest, AShrinkGoesOnOnlyWithRanksThatLive) {
  const auto survivors_but = [&](const std::set<Rank>& out) {
    return health.check_survivors(out, "weir_comm_split", "leave it out");
  };
  EXPECT_TRUE(survivors_but({}).ok());
  peer(2).health.gone.store(1);
  const Status lost = survivors_but({});
  EXPECT_EQ(lost.code(), Code::kPeerLost);
  EXPECT_NE(lost.text().find("rank 2"), std::string::npos) << lost.text();
  EXPECT_NE(lost.text().find("before all ranks had called weir_comm_split; leave it out"),
            std::string::npos)
      << lost.text();
  EXPECT_TRUE(survivors_but({2}).ok());
}

TEST_F(HealthTest, WhoWaitsShowsThatItLivesAndForWhom) {
  operations.awaited = {1, 3};
  check();
  EXPECT_GT(peer(0).health.beat.load(), 0u);
  EXPECT_EQ(peer(0).health.awaited[0].load(), 0b1010u);
  const std::lock_guard lock(state.lock);
  reports.end_wait();
  EXPECT_EQ(peer(0).health.awaited[0].load(), 0u);
}

TEST_F(HealthTest, AWaitInAnotherCommunicatorOfTheseRanksIsShownToo) {
  const std::lock_guard lock(state.lock);
  const int other = 0;
  health.note_elsewhere(&other, {2});
  EXPECT_EQ(peer(0).health.awaited[0].load(), 0b0100u);
  operations.awaited = {1, 3};
  health.check(request);
  EXPECT_EQ(peer(0).health.awaited[0].load(), 0b1110u) << "beside what this one waits for";
  operations.awaited = {};
  operations.first = nullptr;
  health.note_elsewhere(&other, {});
  EXPECT_EQ(peer(0).health.awaited[0].load(), 0u);
}

}  // namespace
}  // namespace weir::comm
