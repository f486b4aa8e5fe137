// SPDX-License-Identifier: Apache-2.0
// Prediction against the simulator, on a network that both can describe.
#include "core/cost/predict.h"

#include <gtest/gtest.h>

#include "sim/sim_support.h"

namespace weir::cost {
namespace {

constexpr Rank kRanksMax = 64;

// The table of the uniform network: each rank is a host of its own and the wire is its port.
Table uniform_table() {
  Table table;
  TaskTimes& t = table.times;
  LinkTimes& link = t.link(Link::kFabric);
  const sim::Level& level = sim::kLevel;
  link.send_ns = level.send_overhead_ns;
  link.recv_ns = level.recv_overhead_ns;
  link.message_ns = level.send_overhead_ns + level.latency_ns + level.recv_overhead_ns;
  link.signal_ns = level.signal_ns;
  link.wire_ns_per_byte = level.ns_per_byte;
  link.window_ns_per_byte.fill(sim::kCopyNsPerByte + level.remote_ns_per_byte);
  t.copy_ns_per_byte.fill(sim::kCopyNsPerByte);
  for (size_t i = 0; i < kReduceSources.size(); ++i) {
    t.reduce_ns_per_byte[i].fill(sim::kReduceNsPerByte * (kReduceSources[i] - 1));
  }
  t.l2_bytes = 1 << 20;
  t.l3_bytes = 1 << 25;
  return table;
}

std::vector<uint32_t> own_hosts() {
  std::vector<uint32_t> hosts(kRanksMax);
  for (uint32_t i = 0; i < kRanksMax; ++i) hosts[i] = i;
  return hosts;
}

TEST(Prediction, IsWithin15PercentOfTheSimulation) {
  const Table table = uniform_table();
  const std::vector<uint32_t> hosts = own_hosts();
  uint32_t compared = 0;
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    for (Rank n : {2u, 3u, 8u, 13u, 32u, 64u}) {
      algo::Problem p = sim::problem(a->collective, n);
      if (!a->supports(p)) continue;
      for (uint64_t bytes : {uint64_t{64}, uint64_t{100'000}, uint64_t{8} << 20}) {
        Workload work{.problem = p, .bytes = bytes, .slicing = {}, .layout = {}};
        work.layout.host_of_rank = std::span(hosts).first(n);
        work.layout.network = Link::kFabric;
        const double predicted = predict(*a, work, table);
        const double simulated = sim::total_ns(sim::run(*a, p, bytes, sim::uniform_options()));
        ++compared;
        EXPECT_NEAR(predicted, simulated, 0.15 * simulated)
            << a->name << " of " << name_of(a->collective) << ", " << n << " ranks, " << bytes
            << " bytes";
      }
    }
  }
  EXPECT_GT(compared, 300u);
}

TEST(Prediction, OfSlicedPipelinesIsWithin15PercentOfTheSimulation) {
  const Table table = uniform_table();
  const std::vector<uint32_t> hosts = own_hosts();
  for (const char* name : {"chain", "binomial", "double_binary_tree"}) {
    const algo::Algorithm& a = sim::algorithm(Collective::kBroadcast, name);
    const algo::Problem p = sim::problem(Collective::kBroadcast, 8);
    Workload work{.problem = p, .bytes = 8 << 20, .slicing = {65536, 4}, .layout = {}};
    work.layout.host_of_rank = std::span(hosts).first(8);
    work.layout.network = Link::kFabric;
    sim::Options options = sim::uniform_options();
    options.slicing = work.slicing;
    const double simulated = sim::total_ns(sim::run(a, p, work.bytes, options));
    EXPECT_NEAR(predict(a, work, table), simulated, 0.15 * simulated) << name;
  }
}

TEST(Prediction, RisesWithBytesAndWithRanks) {
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    double before = 0;
    for (uint64_t bytes :
         {uint64_t{4096}, uint64_t{1} << 16, uint64_t{1} << 20, uint64_t{1} << 24}) {
      const algo::Problem p = sim::problem(a->collective, 8);
      if (!a->supports(p) || a->collective == Collective::kBarrier) continue;
      const double now = predict(*a, {p, bytes, {}, {}}, built_in_table());
      EXPECT_GT(now, before) << a->name << " " << bytes;
      before = now;
    }
  }
}

TEST(Prediction, WhatGoesOverANetworkIsInNoCacheButWithinAHostItMayBe) {
  Table table = uniform_table();
  const std::vector<uint32_t> hosts = own_hosts();
  const algo::Algorithm& a = sim::algorithm(Collective::kAllGather, "ring");
  Workload work{.problem = sim::problem(Collective::kAllGather, 2),
                .bytes = 65536,
                .slicing = {},
                .layout = {}};
  for (const Link link : {Link::kFabric, Link::kShmSharedCache}) {
    LinkTimes& times = table.times.link(link);
    times = table.times.link(Link::kFabric);
    times.wire_ns_per_byte = 0;
    times.slot_in_ns_per_byte = times.slot_out_ns_per_byte = {0.1, 0.1, 10};
  }
  work.layout.network = Link::kFabric;
  const double within = predict(a, work, table);
  work.layout.host_of_rank = std::span(hosts).first(2);
  const double between = predict(a, work, table);
  EXPECT_LT(within, 32768);  // half of the bytes come from the other rank
  EXPECT_GT(between, 2 * 32768 * 10);
}

TEST(Prediction, SharingCoresCosts) {
  const algo::Algorithm& a = sim::algorithm(Collective::kAllReduce, "direct");
  Workload work{sim::problem(Collective::kAllReduce, 4), 8, {}, {}};
  const double own = predict(a, work, built_in_table());
  work.layout.cores_per_host = 2;
  const double shared = predict(a, work, built_in_table());
  EXPECT_GT(shared, own + built_in_table().times.switch_ns * 0.9);
}

TEST(Prediction, OfThousandsOfRanksTakesNoTime) {
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    const algo::Problem p = sim::problem(a->collective, 2000);
    if (!a->supports(p)) continue;
    EXPECT_GT(predict(*a, {p, 1 << 20, {}, {}}, built_in_table()), 0) << a->name;
  }
}

// 16 ranks on two packages of two caches each; `cross` times as slow between packages.
double time_by(const char* name, double cross, uint64_t bytes) {
  Table table = built_in_table();
  const LinkTimes near = table.times.link(Link::kShmSharedCache);
  for (const Link link : {Link::kShmSameSocket, Link::kShmCrossSocket}) {
    LinkTimes& it = table.times.link(link) = near;
    if (link == Link::kShmSameSocket) continue;
    for (double& figure : it.window_ns_per_byte) figure *= cross;
  }
  std::vector<uint32_t> caches, packages;
  for (uint32_t rank = 0; rank < 16; ++rank) {
    caches.push_back(rank / 4);
    packages.push_back(rank / 8);
  }
  algo::Problem problem = sim::problem(Collective::kAllReduce, 16);
  problem.mapped = true;
  problem.cache_of_rank = caches;
  problem.numa_of_rank = packages;
  Workload work{.problem = problem, .bytes = bytes, .slicing = {}, .layout = {}};
  work.layout.cache_of_rank = caches;
  work.layout.socket_of_rank = packages;
  work.layout.ranks_per_cache = 4;
  return predict(sim::algorithm(Collective::kAllReduce, name), work, table);
}

TEST(Prediction, PrefersGroupsOnlyWhereLinksBetweenThemAreSlow) {
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20}) {
    EXPECT_GT(time_by("by_numa", 1, bytes), time_by("direct_two_phase", 1, bytes)) << bytes;
    EXPECT_LT(time_by("by_numa", 8, bytes), time_by("direct_two_phase", 8, bytes)) << bytes;
    EXPECT_LT(time_by("by_numa", 8, bytes), time_by("by_cache", 8, bytes)) << bytes;
  }
}

// A cache of 32 MiB: 16 ranks have 2 MiB each, the 4 that share one have 8.
TEST(Prediction, CountsTheRanksThatShareACache) {
  const Table table = built_in_table();
  Workload work{.problem = sim::problem(Collective::kAllReduce, 16),
                .bytes = table.times.l3_bytes / 16,
                .slicing = {},
                .layout = {}};
  work.problem.mapped = true;
  const algo::Algorithm& direct = sim::algorithm(Collective::kAllReduce, "direct");
  const double shared_by_all = predict(direct, work, table);
  work.layout.ranks_per_cache = 4;
  EXPECT_LT(predict(direct, work, table), shared_by_all);
}

}  // namespace
}  // namespace weir::cost
