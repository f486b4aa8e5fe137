// SPDX-License-Identifier: Apache-2.0
#include "core/comm/reports/times_of_ranks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <memory>

#include "core/algo/algorithm.h"

namespace weir::comm {
namespace {

// Messages to rank 0 arrive when the test says so. Everything else is unused.
class Wire final : public control::Network {
 public:
  struct Shared {
    std::map<Rank, std::deque<std::string>> on_the_way, arrived;
    bool rank_0_is_lost = false;
  };
  Wire(Shared& shared, Rank rank) : shared_(shared), rank_(rank) {}

  Status send(Rank peer, uint8_t channel, std::string_view message) override {
    EXPECT_EQ(peer, 0u);
    EXPECT_EQ(channel, TimesOfRanks::kChannel);
    if (shared_.rank_0_is_lost) return Status(Code::kPeerLost, "rank 0 has died");
    shared_.on_the_way[rank_].emplace_back(message);
    return {};
  }
  bool receive(Rank peer, uint8_t, std::string* message) override {
    std::deque<std::string>& all = shared_.arrived[peer];
    if (all.empty()) return false;
    *message = all.front();
    all.pop_front();
    return true;
  }

  Status leave_host() override { return {}; }
  std::string address() const override { return ""; }
  Status join(const std::vector<std::string>&, uint64_t, const StillPossible&) override {
    return {};
  }
  Status set_address(Rank, const std::string&) override { return {}; }
  void show(std::string_view) override {}
  uint64_t change_count() const override { return 0; }
  bool read(Rank, uint32_t*, std::string*) const override { return false; }
  control::Life life(Rank) const override { return control::Life::kHere; }
  void collect_unreached(std::vector<Unreached>*) const override {}
  void leave() override {}
  Status flush(Rank, uint64_t) override {
    ADD_FAILURE() << "times are never waited for";
    return {};
  }
  bool shares_host(Rank) const override { return true; }
  Status offer(const Key&, int) override { return {}; }
  void withdraw(const Key&) override {}
  Result<int> fetch(Rank, const Key&, uint64_t, const StillPossible&) override {
    return Status(Code::kUnsupported, "");
  }
  Status listen(int) override { return {}; }
  void connect(Rank, const control::Purpose&, std::vector<control::Path>, uint64_t) override {}
  bool connected(uint8_t, control::Connected*) override { return false; }
  net::Mac pair_key(Rank, std::string_view) const override { return {}; }
  std::string describe(Rank) const override { return ""; }
  net::IpAddress own_address(Rank) const override { return {}; }

 private:
  Shared& shared_;
  Rank rank_;
};

// A rank with one decision.
struct OfRank {
  OfRank(Wire::Shared& shared, Rank rank, Rank rank_count) : wire(shared, rank) {
    times.open(&wire, rank, rank_count);
    cost::Request request;
    request.work.problem.rank_count = rank_count;
    request.call_key = 42;
    cost::Decision decision;
    decision.algorithm = algo::find_algorithm(Collective::kAllReduce, "ring");
    id = log.add(request, decision);
  }
  void measure(double ns, const algo::Algorithm* explored = nullptr) {
    log.measured(id, ns, explored);
    const cost::DecisionRecord& record = *log.find(id);
    times.measured(record, nullptr);
    if (explored == nullptr) return;
    for (const auto& one : record.explored) {
      if (one.algorithm == explored) times.measured(record, &one);
    }
  }

  Wire wire;
  TimesOfRanks times;
  cost::DecisionLog log;
  uint64_t id = 0;
};

void arrive(Wire::Shared& shared) {
  for (auto& [rank, messages] : shared.on_the_way) {
    for (std::string& message : messages) shared.arrived[rank].push_back(std::move(message));
    messages.clear();
  }
}

TEST(TimesOfRanks, TheAverageIsOverAllCallsOfAllRanks) {
  Wire::Shared shared;
  OfRank root(shared, 0, 3);
  OfRank one(shared, 1, 3);
  OfRank two(shared, 2, 3);
  for (int i = 0; i < 7; ++i) {
    root.measure(100);
    one.measure(200);
    two.measure(i == 0 ? 60 : 340);
  }
  one.times.conclude(one.log);
  two.times.conclude(two.log);
  arrive(shared);
  root.times.conclude(root.log);
  ASSERT_EQ(root.times.all().size(), 1u);
  const cost::RanksTimes& all = root.times.all().begin()->second;
  EXPECT_EQ(all.rank_count, 3u);
  EXPECT_EQ(all.call_count, 21u);
  EXPECT_EQ(all.least_ns, 60);
  EXPECT_DOUBLE_EQ(all.average_ns(), (700 + 1400 + 60 + 6 * 340) / 21.0);
  EXPECT_DOUBLE_EQ(all.middle_ns, (100 + 200 + 340) / 3.0);
  EXPECT_TRUE(one.times.all().empty());
}

TEST(TimesOfRanks, ARankZeroThatEndsFirstKnowsAtLeastHalfOfTheCalls) {
  for (const int calls : {1, 2, 3, 7, 8, 100, 127}) {
    Wire::Shared shared;
    OfRank root(shared, 0, 2);
    OfRank one(shared, 1, 2);
    for (int i = 0; i < calls; ++i) {
      root.measure(100);
      one.measure(100);
    }
    arrive(shared);
    root.times.conclude(root.log);
    const uint64_t known =
        root.times.all().begin()->second.call_count - static_cast<uint64_t>(calls);
    EXPECT_GT(2 * known, static_cast<uint64_t>(calls));
    EXPECT_LE(shared.arrived[1].size(), 0u);
  }
}

TEST(TimesOfRanks, ARankThatDiesOrLeavesEarlyIsCountedAsFarAsItWasHeard) {
  Wire::Shared shared;
  OfRank root(shared, 0, 4);
  OfRank dies(shared, 2, 4);
  root.measure(100);
  for (int i = 0; i < 5; ++i) dies.measure(300);
  arrive(shared);  // after its first, second and fourth call
  root.times.conclude(root.log);
  const cost::RanksTimes& all = root.times.all().begin()->second;
  EXPECT_EQ(all.rank_count, 2u);
  EXPECT_EQ(all.call_count, 5u);
  EXPECT_DOUBLE_EQ(all.average_ns(), (100 + 4 * 300) / 5.0);
  // And a dead rank 0 hinders nobody.
  shared.rank_0_is_lost = true;
  dies.measure(300);
  dies.times.conclude(dies.log);
}

TEST(TimesOfRanks, FewMessagesAreSentAndEachOnlyOnce) {
  Wire::Shared shared;
  OfRank one(shared, 1, 2);
  for (int i = 0; i < 1024; ++i) one.measure(100);
  EXPECT_EQ(shared.on_the_way[1].size(), 11u);
  one.times.conclude(one.log);
  EXPECT_EQ(shared.on_the_way[1].size(), 11u) << "all has been told";
  one.measure(100);
  one.times.conclude(one.log);
  EXPECT_EQ(shared.on_the_way[1].size(), 12u);
}

TEST(TimesOfRanks, WhatWasExploredIsToldByItself) {
  Wire::Shared shared;
  OfRank root(shared, 0, 2);
  OfRank one(shared, 1, 2);
  const algo::Algorithm* other = algo::find_algorithm(Collective::kAllReduce, "recursive_doubling");
  for (OfRank* rank : {&root, &one}) {
    rank->measure(100);
    rank->measure(500, other);
  }
  arrive(shared);
  root.times.conclude(root.log);
  const cost::DecisionRecord& record = *root.log.find(root.id);
  ASSERT_EQ(root.times.all().size(), 2u);
  EXPECT_EQ(root.times.all().at(cost::times_key(record, nullptr)).average_ns(), 100);
  EXPECT_EQ(root.times.all().at(cost::times_key(record, other)).average_ns(), 500);
  EXPECT_EQ(root.times.all().at(cost::times_key(record, other)).call_count, 2u);
}

TEST(TimesOfRanks, DamagedMessagesAreIgnored) {
  Wire::Shared shared;
  OfRank one(shared, 1, 2);
  one.measure(100);
  const std::string good = shared.on_the_way[1].front();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0xff);
    shared.arrived[1].push_back(bad);
    shared.arrived[1].push_back(good.substr(0, i));
  }
  OfRank root(shared, 0, 2);
  root.measure(100);
  root.times.conclude(root.log);
  const cost::RanksTimes& all = root.times.all().begin()->second;
  EXPECT_TRUE(std::isfinite(all.average_ns()));
  EXPECT_GE(all.average_ns(), 0);
}

}  // namespace
}  // namespace weir::comm
