// SPDX-License-Identifier: Apache-2.0
#include "core/sim/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/sim_support.h"
#include "unit/graph/graph_support.h"

namespace weir::sim {
namespace {

TEST(ReportText, StatesTheClosedFormBesideThePrediction) {
  const algo::Algorithm& ring = algorithm(Collective::kAllReduce, "ring");
  const algo::Problem p = problem(Collective::kAllReduce, 16);
  const Options options;
  const auto form = expected(ring, p, 1 << 20, options);
  ASSERT_TRUE(form.has_value());
  EXPECT_TRUE(form->exact);
  const Report report = run(ring, p, 1 << 20, options);
  EXPECT_NEAR(total_ns(report), form->ns, 0.1);
  const std::string text = to_text(report, form);
  EXPECT_NE(text.find("closed form"), std::string::npos) << text;
  EXPECT_NE(text.find("contention 0.0 ns"), std::string::npos) << text;
}

TEST(ReportText, NamesTheDeadRankAndWhoWaitsForItFirst) {
  Options options;
  options.dead = {{40, 10'000}};
  const Report report = run(algorithm(Collective::kAllReduce, "ring"),
                            problem(Collective::kAllReduce, 64), 1 << 20, options);
  const std::string text = to_text(report, std::nullopt);
  EXPECT_NE(text.find("STOPPED"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 40 is dead: 63 ranks wait for it"), std::string::npos) << text;
  const size_t first = text.find("  blocked ");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find("rank 41 lane 0 waits for a message from rank 40"),
            text.find("rank ", first));
}

TEST(ReportText, HasNoClosedFormWhereNoneHolds) {
  const algo::Algorithm& ring = algorithm(Collective::kAllReduce, "ring");
  algo::Problem p = problem(Collective::kAllReduce, 16);
  Options options;
  options.slow = {{1, 2}};
  EXPECT_FALSE(expected(ring, p, 1 << 20, options).has_value());
  options.slow.clear();
  options.slicing = {1024, 2};
  EXPECT_FALSE(expected(ring, p, 1 << 20, options).has_value());
  options.slicing = {};
  const std::vector<uint32_t> nodes = even_nodes(16, 4);
  p.node_of_rank = nodes;
  EXPECT_FALSE(expected(ring, p, 1 << 20, options).has_value());
  const std::vector<uint32_t> alone = even_nodes(16, 1);
  p.node_of_rank = alone;
  EXPECT_NEAR(expected(ring, p, 1 << 20, options)->ns, total_ns(run(ring, p, 1 << 20, options)),
              0.1);
}

TEST(ReportJson, CanBeReadBack) {
  Options options;
  options.dead = {{3, 1000}};
  const std::vector<uint32_t> nodes = even_nodes(8, 4);
  algo::Problem p = problem(Collective::kAllReduce, 8);
  p.node_of_rank = nodes;
  const Report report =
      run(algorithm(Collective::kAllReduce, "recursive_doubling"), p, 65536, options);
  const nlohmann::json json = nlohmann::json::parse(to_json(report, std::nullopt));
  EXPECT_FALSE(json["complete"].get<bool>());
  EXPECT_EQ(json["finish_ns"].size(), 8u);
  EXPECT_EQ(json["nic_ports"].size(), 2u * options.network.nic.rails);
  EXPECT_EQ(json["culprits"][0]["ranks"][0], 3);
  EXPECT_EQ(json["blocked"].size(), report.blocked.size());
}

// Three hosts with 400 Mbit/s and one with 50.
struct UnequalHosts {
  graph::LinkGraph graph = graph::star({50'000, 50'000, 50'000, 6'250});
  algo::Problem p = problem(Collective::kAllGather, 4);
  uint64_t bytes = 4'000'000;
  Options options = [this] {
    Options o;
    o.network = uniform_network(Level{}, 0, 0);
    o.links = &graph;
    return o;
  }();
  Report report = run(algorithm(Collective::kAllGather, "ring"), p, bytes, options);
};

TEST(ReportOfLinks, StatesTheCutBoundAndTheBusiestLinks) {
  const UnequalHosts it;
  const Machine machine = machine_of(it.graph, it.p, it.bytes);
  ASSERT_TRUE(machine.least_ns.has_value());
  EXPECT_NEAR(*machine.least_ns, 480e6, 1);
  EXPECT_FALSE(
      expected(algorithm(Collective::kAllGather, "ring"), it.p, it.bytes, it.options).has_value());
  const std::string text = to_text(it.report, std::nullopt, machine);
  EXPECT_NE(
      text.find("cut bound        480.000 ms by the links' bandwidth alone; the time is 1.00"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("8 with a limit, 34.4 % busy on average"), std::string::npos) << text;
  EXPECT_NE(text.find("100.0 %  M3.rank3 -> network: 3 MB over 0.00625 GB/s"), std::string::npos)
      << text;
  const std::vector<graph::LinkId> busiest = busiest_links(it.report, 2);
  ASSERT_EQ(busiest.size(), 2u);
  EXPECT_EQ(it.graph.links()[busiest[0]].from, 3u);
  EXPECT_EQ(it.graph.links()[busiest[1]].to, 3u);
}

TEST(ReportOfLinks, AsJsonNamesEveryLink) {
  const UnequalHosts it;
  const nlohmann::json json =
      nlohmann::json::parse(to_json(it.report, std::nullopt, machine_of(it.graph, it.p, it.bytes)));
  EXPECT_NEAR(json["cut_bound_ns"].get<double>(), 480e6, 1);
  EXPECT_NEAR(json["cut_bound_ratio"].get<double>(), 1, 1e-4);
  ASSERT_EQ(json["links"].size(), 8u);
  const nlohmann::json& link = json["links"][0];
  EXPECT_EQ(link["from"], "M0.rank0");
  EXPECT_EQ(link["to"], "network");
  EXPECT_EQ(link["bytes"], 3'000'000);
  EXPECT_EQ(link["messages"], 3);
  EXPECT_EQ(link["gbs"], 0.05);
  EXPECT_EQ(link["busy_ns"], 60e6);
  EXPECT_NEAR(link["busy_share"].get<double>(), 0.125, 1e-4);
}

TEST(ReportOfLinks, HasNoBoundWhereNoneIsKnownAndNoRatioOfWhatStopped) {
  UnequalHosts it;
  EXPECT_FALSE(
      machine_of(it.graph, problem(Collective::kGather, 4), it.bytes).least_ns.has_value());
  EXPECT_FALSE(
      machine_of(it.graph, problem(Collective::kBarrier, 4), it.bytes).least_ns.has_value());
  it.options.dead = {{1, 10}};
  const Report stopped = run(algorithm(Collective::kAllGather, "ring"), it.p, it.bytes, it.options);
  const Machine machine = machine_of(it.graph, it.p, it.bytes);
  EXPECT_EQ(to_text(stopped, std::nullopt, machine).find("times as long"), std::string::npos);
  EXPECT_EQ(to_json(stopped, std::nullopt, machine).find("cut_bound_ratio"), std::string::npos);
}

TEST(ReportSvg, ShowsTheRanksThatWereRecorded) {
  Options options;
  options.timeline_ranks = 3;
  const Report report = run(algorithm(Collective::kAllReduce, "ring"),
                            problem(Collective::kAllReduce, 8), 65536, options);
  for (const Span& span : report.timeline) {
    EXPECT_LT(span.rank, 3u);
    EXPECT_LT(span.begin_ps, span.end_ps);
    EXPECT_LE(span.end_ps, report.total_ps);
  }
  const std::string svg = to_svg(report, "ring");
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_NE(svg.find("rank 2<"), std::string::npos);
  EXPECT_EQ(svg.find("rank 3<"), std::string::npos);
}

}  // namespace
}  // namespace weir::sim
