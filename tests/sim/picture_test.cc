// SPDX-License-Identifier: Apache-2.0
// The pictures of a simulation over links.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>

#include "core/sim/lane_picture.h"
#include "core/sim/machine_layout.h"
#include "core/sim/machine_picture.h"
#include "sim/sim_support.h"
#include "unit/graph/graph_support.h"

namespace weir::sim {
namespace {

using graph::LinkGraph;
using graph::LinkId;
using graph::VertexId;

// Of a host's name, on the side that is not the network's.
constexpr double kNameHeight = 20;

constexpr const char* kRecorded[] = {"dgx2.hwloc.xml", "azure-ndv4-topo.nccl.xml",
                                     "azure-ncv4-topo.nccl.xml", "rccl-8p-rome-n4.nccl.xml"};

struct Rectangle {
  double x, y, width, height;
};

bool overlap(const Rectangle& a, const Rectangle& b) {
  constexpr double kSlack = 0.01;
  return a.x + kSlack < b.x + b.width && b.x + kSlack < a.x + a.width &&
         a.y + kSlack < b.y + b.height && b.y + kSlack < a.y + a.height;
}

template <class Box>
Rectangle area(const Box& box) {
  return {box.x, box.y, box.width, box.height};
}

void expect_no_overlap(const std::vector<Rectangle>& boxes) {
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t k = i + 1; k < boxes.size(); ++k) EXPECT_FALSE(overlap(boxes[i], boxes[k]));
  }
}

// Every vertex of a host that is drawn has a place, inside the host's box, and no two overlap.
void expect_tidy(const LinkGraph& graph, double width_max) {
  const MachineLayout layout = lay_out(graph, width_max);
  ASSERT_FALSE(layout.hosts.empty());
  EXPECT_EQ(layout.hosts.size() + layout.hosts_left_out, graph.host_count());
  std::vector<Rectangle> outer;
  size_t placed = 0;
  for (const PlacedHost& host : layout.hosts) {
    outer.push_back(area(host));
    std::vector<Rectangle> inner;
    for (const PlacedVertex& it : host.vertices) {
      EXPECT_EQ(graph.vertices()[it.vertex].host, host.host);
      EXPECT_GE(it.x, host.x);
      EXPECT_LE(it.x + it.width, host.x + host.width);
      EXPECT_GE(it.y, host.y + (host.flipped ? 0 : kNameHeight));
      EXPECT_LE(it.y + it.height, host.y + host.height - (host.flipped ? kNameHeight : 0));
      inner.push_back(area(it));
    }
    expect_no_overlap(inner);
    placed += inner.size();
  }
  for (const PlacedVertex& it : layout.networks) outer.push_back(area(it));
  expect_no_overlap(outer);
  const auto expected =
      std::count_if(graph.vertices().begin(), graph.vertices().end(),
                    [&](const graph::Vertex& vertex) { return vertex.host < layout.hosts.size(); });
  EXPECT_EQ(placed, static_cast<size_t>(expected));
}

TEST(MachineLayout, OfEveryMachineIsTidy) {
  for (const char* file : kRecorded) {
    for (const uint32_t hosts : {1u, 2u, 3u, 7u}) {
      const Result<LinkGraph> graph = graph::graph_of_gpus(file, hosts);
      ASSERT_TRUE(graph.ok());
      SCOPED_TRACE(std::string(file) + " " + std::to_string(hosts));
      expect_tidy(graph.value(), 2400);
    }
  }
  expect_tidy(graph::full_mesh(8, 1000), 2400);
  expect_tidy(graph::star({1, 2, 3, 4, 5, 6, 7, 8}), 2400);
  expect_tidy(graph::star({1, 2, 3, 4, 5, 6, 7, 8}), 300);
}

struct RingRun {
  std::unique_ptr<LinkGraph> graph;
  Report report;
  Machine machine;
};

RingRun run_ring(LinkGraph graph, std::optional<Rank> lanes_of = std::nullopt) {
  RingRun run{.graph = std::make_unique<LinkGraph>(std::move(graph)), .report = {}, .machine = {}};
  const algo::Problem p = problem(Collective::kAllReduce, run.graph->rank_count());
  Options options;
  options.links = run.graph.get();
  options.lanes_of = lanes_of;
  run.report = sim::run(algorithm(Collective::kAllReduce, "ring"), p, 8 << 20, options);
  run.machine = machine_of(*run.graph, p, 8 << 20);
  return run;
}

// Every tag is closed, in order.
void expect_well_formed(const std::string& svg) {
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  std::vector<std::string> open;
  for (size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    if (tag.front() == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(MachinePicture, ColoursLinksByTheirLoad) {
  const RingRun it = run_ring(graph::full_mesh(4, 1'000'000));
  const std::string svg = machine_svg(it.report, it.machine, "a <ring>");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("a &lt;ring&gt;"), std::string::npos);
  // Of the 12 links the ring uses 4, all of the time; one line more is in the legend.
  EXPECT_NE(svg.find("not used (8)"), std::string::npos) << svg;
  EXPECT_NE(svg.find("more (4)"), std::string::npos);
  EXPECT_EQ(count_of(svg, "#991b1b"), 4u + 1);
  EXPECT_EQ(count_of(svg, "#cbd5e1"), 8u + 1);
  EXPECT_NE(svg.find("times the cut bound"), std::string::npos);
  for (Rank rank = 0; rank < 4; ++rank) {
    EXPECT_NE(svg.find(">rank " + std::to_string(rank) + "<"), std::string::npos);
  }
}

TEST(MachinePicture, SaysWhichHostsAreLeftOut) {
  Result<LinkGraph> graph = graph::graph_of_gpus("azure-ndv4-topo.nccl.xml", 9);
  ASSERT_TRUE(graph.ok());
  const RingRun it = run_ring(graph.take());
  const std::string svg = machine_svg(it.report, it.machine, "nine");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("host 3 (M3)"), std::string::npos);
  EXPECT_EQ(svg.find("host 4 (M4)"), std::string::npos);
  EXPECT_NE(svg.find("hosts left out: 5"), std::string::npos);
}

TEST(LanePicture, HasARowForEachLaneAndLink) {
  const RingRun it = run_ring(graph::star({2'000'000, 2'000'000, 2'000'000}), 1);
  const std::string svg = lanes_svg(it.report, 1, it.machine, "ring");
  expect_well_formed(svg);
  EXPECT_NE(svg.find("rank 1 of ring"), std::string::npos);
  for (const char* label : {">lane 0<", ">to network<", ">from network<"}) {
    EXPECT_EQ(count_of(svg, label), 1u) << label;
  }
  EXPECT_EQ(svg.find(">lane 1<"), std::string::npos);
}

TEST(LanePicture, ShowsThePortsOfTheTwoLevelNetwork) {
  Options options;
  options.lanes_of = 2;
  const Report report = run(algorithm(Collective::kAllReduce, "ring"),
                            problem(Collective::kAllReduce, 4), 1 << 20, options);
  const std::string svg = lanes_svg(report, 2, Machine{}, "ring");
  expect_well_formed(svg);
  EXPECT_EQ(count_of(svg, ">port out<"), 1u);
  EXPECT_EQ(count_of(svg, ">port in<"), 1u);
  for (const Span& span : report.lanes) EXPECT_EQ(span.rank, 2u);
  EXPECT_TRUE(report.timeline.empty());
}

// What is drawn is what the links were taken for.
TEST(LanePicture, IsOfAllTransfersOfTheRank) {
  for (const Rank rank : {0u, 5u}) {
    const RingRun it = run_ring(graph::full_mesh(6, 1'000'000), rank);
    std::map<LinkId, uint64_t> drawn_ps;
    for (const Transfer& transfer : it.report.transfers) {
      const graph::Link& link = it.graph->links()[transfer.link];
      EXPECT_EQ(transfer.out ? link.from : link.to, rank);
      EXPECT_EQ(transfer.out ? link.to : link.from, transfer.peer);
      drawn_ps[transfer.link] += transfer.end_ps - transfer.begin_ps;
    }
    for (LinkId id = 0; id < it.graph->links().size(); ++id) {
      const graph::Link& link = it.graph->links()[id];
      const bool is_own = link.from == rank || link.to == rank;
      EXPECT_EQ(drawn_ps[id], is_own ? it.report.links[id].busy_ps : 0);
    }
  }
}

TEST(LanePicture, OfARankThatDoesNotExistIsRefused) {
  Options options;
  options.lanes_of = 4;
  const Result<Report> report = simulate(algorithm(Collective::kAllReduce, "ring"),
                                         problem(Collective::kAllReduce, 4), 1 << 20, options);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().text(), "rank 4, whose lanes are wanted, is not below the 4 ranks");
}

}  // namespace
}  // namespace weir::sim
