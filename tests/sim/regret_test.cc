// SPDX-License-Identifier: Apache-2.0
// How good the choices are: the simulated time of the chosen algorithm over the least of all
// candidates (`weir-sched regret` judges more of them), and how long a choice takes, in operations
// that are followed.
#include "core/sim/regret.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/cost/predict.h"
#include "core/cost/run_ahead.h"
#include "core/cost/task_costs.h"
#include "core/graph/forests.h"
#include "core/graph/host_networks.h"
#include "core/sim/simulator.h"
#include "sim/sim_support.h"

namespace weir::sim {
namespace {

constexpr uint64_t kEventsMax = 30'000'000;
constexpr uint64_t kSliceBytes = 128 * 1024;  // as the planner's for messages

struct Hosts {
  Rank ranks_per_host = 8;
  uint32_t cards_per_host = 1;
  cost::Link network = cost::Link::kTcp;
};

struct Asked {
  std::vector<uint32_t> hosts;
  std::vector<uint32_t> cards;
  cost::Request request;
  std::vector<const algo::Algorithm*> candidates;
};

// What a communicator asks for.
Asked ask(const Hosts& hosts, Rank n, Collective collective, uint64_t bytes) {
  Asked asked;
  if (n > hosts.ranks_per_host) {
    asked.hosts = even_nodes(n, hosts.ranks_per_host);
    for (Rank rank = 0; rank < n && hosts.cards_per_host > 1; ++rank) {
      asked.cards.push_back(asked.hosts[rank] * hosts.cards_per_host + rank % hosts.ranks_per_host *
                                                                           hosts.cards_per_host /
                                                                           hosts.ranks_per_host);
    }
  }
  cost::Workload& work = asked.request.work;
  work.problem.collective = collective;
  work.problem.rank_count = n;
  work.problem.mapped = asked.hosts.empty();
  work.problem.node_of_rank = asked.hosts;
  work.bytes = collective == Collective::kBarrier ? 0 : bytes;
  work.slicing = {kSliceBytes, 4};
  work.layout.host_of_rank = asked.hosts;
  work.layout.card_of_rank = asked.cards;
  work.layout.network = hosts.network;
  asked.candidates = cost::candidates_for(algo::all_algorithms(), work.problem);
  return asked;
}

double regret_of(const Hosts& hosts, Rank n, Collective collective, uint64_t bytes) {
  const Asked asked = ask(hosts, n, collective, bytes);
  const cost::Table table = cost::built_in_table();
  const Result<cost::Decision> decision =
      cost::choose(asked.request, asked.candidates, table, nullptr);
  EXPECT_TRUE(decision.ok()) << decision.status().text();
  if (!decision.ok()) return 1e9;
  const Result<Regret> judged = regret(asked.request, decision.value(), table, kEventsMax);
  EXPECT_TRUE(judged.ok()) << judged.status().text();
  if (!judged.ok()) return 1e9;
  EXPECT_TRUE(judged.value().left_out.empty());
  const double value = judged.value().value();
  EXPECT_LE(value, 1.3) << name_of(collective) << " of " << bytes << " bytes on " << n << " ranks, "
                        << hosts.ranks_per_host << " a host: " << decision.value().algorithm->name
                        << " is predicted to take " << decision.value().predicted_ns
                        << " ns and takes " << judged.value().chosen_ns << ", "
                        << judged.value().best->name << " " << judged.value().best_ns;
  return value;
}

// The calls for which bad choices were made when long programs were taken to run in lockstep.
TEST(Regret, OfLongChainsAndSharedCardsIsSmall) {
  const Hosts eight;
  EXPECT_LE(regret_of(eight, 1024, Collective::kBroadcast, 4096), 1.1);  // was 21.7
  EXPECT_LE(regret_of(eight, 1024, Collective::kReduce, 4096), 1.1);     // was 21.2
  EXPECT_LE(regret_of(eight, 512, Collective::kBroadcast, 64 << 20), 1.1);
  EXPECT_LE(regret_of(eight, 128, Collective::kBroadcast, 64 << 20), 1.1);
  EXPECT_LE(regret_of(eight, 64, Collective::kAllToAll, 64 << 20), 1.1);
  EXPECT_LE(regret_of(eight, 512, Collective::kAllToAll, 64 << 20), 1.1);
}

TEST(Regret, IsAtMostATenthInNineOfTenCalls) {
  std::vector<double> regrets;
  for (const Hosts& hosts : {Hosts{8, 1, cost::Link::kTcp}, Hosts{8, 8, cost::Link::kFabric},
                             Hosts{1, 1, cost::Link::kTcp}, Hosts{4, 2, cost::Link::kFabric}}) {
    for (const Rank n : {2u, 6u, 16u, 20u, 64u}) {
      for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
        for (const uint64_t bytes : {uint64_t{1024}, uint64_t{256} << 10, uint64_t{16} << 20}) {
          regrets.push_back(regret_of(hosts, n, static_cast<Collective>(i), bytes));
        }
      }
    }
  }
  std::sort(regrets.begin(), regrets.end());
  EXPECT_LE(regrets[regrets.size() * 9 / 10], 1.1);
}

// Hosts whose networks differ, in turns, and the trees of their star.
class UnevenHosts {
 public:
  UnevenHosts(Rank n, Rank ranks_per_host, const std::vector<double>& wires)
      : hosts_(even_nodes(n, ranks_per_host)) {
    std::vector<graph::KilobytesPerSecond> networks;
    for (uint32_t host = 0; host <= hosts_.back(); ++host) {
      wires_.push_back(wires[host % wires.size()]);
      networks.push_back(graph::on_grid(wires_.back()));
    }
    forests_.emplace(graph::host_star(hosts_, networks, graph::on_grid(0.1)));
  }

  // Refers to this.
  cost::Request request(Collective collective, uint64_t bytes) {
    cost::Request request;
    cost::Workload& work = request.work;
    work.problem.collective = collective;
    work.problem.rank_count = static_cast<Rank>(hosts_.size());
    work.problem.node_of_rank = hosts_;
    work.problem.forest = forests_->of(collective, 0);
    work.bytes = collective == Collective::kBarrier ? 0 : bytes;
    work.slicing = {kSliceBytes, 4};
    work.layout.host_of_rank = hosts_;
    work.layout.wire_of_host = wires_;
    request.lane_count_max = 4;
    return request;
  }

 private:
  std::vector<uint32_t> hosts_;
  std::vector<double> wires_;
  std::optional<graph::Forests> forests_;
};

// The calls for which bad choices were made when the slowest host was not looked at where a program
// is estimated from a few ranks.
TEST(Regret, OfUnevenHostsIsSmall) {
  const cost::Table table = cost::built_in_table();
  UnevenHosts twos(100, 2, {8, 20, 20, 160, 80});
  UnevenHosts single(128, 1, {20, 20, 20, 160});
  for (const cost::Request& request : {twos.request(Collective::kAllToAll, 64 << 20),
                                       twos.request(Collective::kAllReduce, 64 << 20),
                                       single.request(Collective::kAllReduce, 64 << 20)}) {
    const auto candidates = cost::candidates_for(algo::all_algorithms(), request.work.problem);
    const auto decision = cost::choose(request, candidates, table, nullptr);
    ASSERT_TRUE(decision.ok());
    const Result<Regret> judged = regret(request, decision.value(), table, kEventsMax);
    ASSERT_TRUE(judged.ok()) << judged.status().text();
    EXPECT_LE(judged.value().value(), 1.1)  // was 2.97, 1.21 and 1.36
        << name_of(request.work.problem.collective) << ": " << decision.value().algorithm->name
        << ", best " << judged.value().best->name;
  }
}

// One rank on each host: nothing is folded. About 0.13 us each: 20 ms for 128 ranks, 200 ms for
// 4,096.
TEST(Regret, AChoiceAmongUnevenHostsFollowsFewOperations) {
  const cost::Table table = cost::built_in_table();
  for (const auto& [n, most] : {std::pair<Rank, uint64_t>{128, 150'000}, {4096, 1'000'000}}) {
    UnevenHosts hosts(n, 1, {20, 20, 20, 160});
    for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
      for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{64} << 20}) {
        const cost::Request request = hosts.request(static_cast<Collective>(i), bytes);
        const auto candidates = cost::candidates_for(algo::all_algorithms(), request.work.problem);
        const auto decision = cost::choose(request, candidates, table, nullptr);
        ASSERT_TRUE(decision.ok());
        EXPECT_LE(decision.value().operations, most)
            << name_of(static_cast<Collective>(i)) << " of " << bytes << " bytes, " << n
            << " ranks";
      }
    }
  }
}

// About 0.1 us each: 20 ms up to 128 ranks, 200 ms for 4,096.
TEST(Regret, AChoiceFollowsFewOperations) {
  const cost::Table table = cost::built_in_table();
  for (const Hosts& hosts : {Hosts{}, Hosts{1, 1, cost::Link::kFabric}}) {
    for (const auto& [n, most] : {std::pair<Rank, uint64_t>{127, 400'000},
                                  {128, 400'000},
                                  {4000, 2'500'000},
                                  {4096, 2'500'000}}) {
      for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
        const Asked asked = ask(hosts, n, static_cast<Collective>(i), uint64_t{256} << 20);
        uint64_t operations = 0;
        for (const algo::Algorithm* candidate : asked.candidates) {
          operations += cost::predict_anew(*candidate, asked.request.work, table).operations;
        }
        EXPECT_LE(operations, most) << name_of(static_cast<Collective>(i)) << ", " << n
                                    << " ranks, " << hosts.ranks_per_host << " a host";
      }
    }
  }
}

// What choices look at and follow, of all collectives. About 0.1 us each: 20 ms.
uint64_t most_operations(const Hosts& hosts, Rank n) {
  const cost::Table table = cost::built_in_table();
  uint64_t most = 0;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
    for (const uint64_t bytes : {uint64_t{64} << 10, uint64_t{64} << 20, uint64_t{256} << 20}) {
      const Asked asked = ask(hosts, n, static_cast<Collective>(i), bytes);
      const auto decision = cost::choose(asked.request, asked.candidates, table, nullptr);
      EXPECT_TRUE(decision.ok());
      if (decision.ok()) most = std::max(most, decision.value().operations);
    }
  }
  return most;
}

TEST(Regret, AChoiceOnOneHostLooksAtFewOperations) {
  for (const Rank n : {64u, 96u, 127u, 128u}) {
    EXPECT_LE(most_operations(Hosts{128}, n), 400u * n) << n << " ranks";
  }
}

// The last host has fewer ranks than the others, so that each rank is followed.
TEST(Regret, AChoiceWhereHostsAreNotFullFollowsFewOperations) {
  for (const Rank per_host : {8u, 12u, 16u}) {
    for (const uint32_t cards : {1u, 4u}) {
      const Hosts hosts{per_host, cards, cost::Link::kFabric};
      EXPECT_LE(most_operations(hosts, 100), 190'000u) << per_host << " a host, " << cards;
    }
  }
}

// What is predicted of a row of calls is what the simulated ranks work.
TEST(Predictions, WhereDataFlowOneWayAreTheWorkOfTheBusiestRank) {
  const cost::Table table = cost::built_in_table();
  uint32_t count = 0;
  for (const Collective collective :
       {Collective::kBroadcast, Collective::kReduce, Collective::kGather, Collective::kScatter}) {
    for (const Rank n : {2u, 5u, 8u}) {
      for (const uint64_t bytes : {uint64_t{1024}, uint64_t{256} << 10, uint64_t{16} << 20}) {
        const Asked asked = ask(Hosts{}, n, collective, bytes);
        for (const algo::Algorithm* algorithm : asked.candidates) {
          const cost::Workload& work = asked.request.work;
          const auto ahead = cost::run_ahead_ns(*algorithm, work, table);
          if (!ahead) continue;
          const cost::TaskCosts tasks(work, table);
          Options options;
          options.tasks = &tasks;
          options.slicing = work.slicing;
          const auto report = simulate(*algorithm, work.problem, bytes, options);
          ASSERT_TRUE(report.ok()) << report.status().text();
          const auto& busy = report.value().core_busy_ps;
          const double simulated_ns =
              static_cast<double>(*std::max_element(busy.begin(), busy.end())) / 1000;
          EXPECT_NEAR((*ahead - tasks.call_ns()) / simulated_ns, 1, 0.02)
              << algorithm->name << ' ' << name_of(collective) << ' ' << n << ' ' << bytes;
          ++count;
        }
      }
    }
  }
  EXPECT_GT(count, 30u);
}

// Where some network cards have more ranks than others, a core or card is as busy in the steps that
// are left out as in the ones that are measured, each for itself.
TEST(Predictions, WhereCardsAreUnevenAreNearTheSimulation) {
  const cost::Table table = cost::built_in_table();
  std::vector<double> errors;
  for (const Hosts& hosts : {Hosts{6, 4, cost::Link::kFabric}, Hosts{5, 3, cost::Link::kFabric},
                             Hosts{8, 3, cost::Link::kFabric}}) {
    for (const Rank n : {16u, 100u}) {
      for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{256} << 20}) {
        for (const auto& [collective, name] : {std::pair{Collective::kAllReduce, "ordered"},
                                               {Collective::kReduceScatter, "pairwise"},
                                               {Collective::kAllToAll, "pairwise"},
                                               {Collective::kReduce, "ordered"}}) {
          const Asked asked = ask(hosts, n, collective, bytes);
          const algo::Algorithm* algorithm =
              algo::find_algorithm(collective, name, algo::all_algorithms());
          ASSERT_NE(algorithm, nullptr);
          const cost::TaskCosts tasks(asked.request.work, table);
          Options options;
          options.tasks = &tasks;
          options.slicing = asked.request.work.slicing;
          const auto report = simulate(*algorithm, asked.request.work.problem, bytes, options);
          ASSERT_TRUE(report.ok()) << report.status().text();
          const double predicted = cost::predict_anew(*algorithm, asked.request.work, table).ns;
          const double simulated = static_cast<double>(report.value().total_ps) / 1000;
          errors.push_back(std::abs(predicted / simulated - 1));
        }
      }
    }
  }
  std::sort(errors.begin(), errors.end());
  EXPECT_LE(errors[errors.size() / 2], 0.05);
  EXPECT_LE(errors[errors.size() * 9 / 10], 0.15);  // was 0.23
}

}  // namespace
}  // namespace weir::sim
