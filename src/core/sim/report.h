// SPDX-License-Identifier: Apache-2.0
// A simulation's result as text, JSON and SVG. Pure functions; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/cost/closed_form.h"
#include "core/graph/link_graph.h"
#include "core/sim/simulator.h"

namespace weir::sim {

// "12.3 us"
std::string text_of_time(uint64_t ps);

// The closed form for the network that the problem uses: all ranks on one node, or one rank on each
// node. nullopt with several ranks on several nodes, with slices, with faults or over a link graph.
std::optional<cost::ClosedForm> expected(const algo::Algorithm& algorithm,
                                         const algo::Problem& problem, uint64_t bytes,
                                         const Options& options);

// The link graph that a simulation ran over.
struct Machine {
  const graph::LinkGraph* graph = nullptr;  // null: the two-level network
  // The least time by the links' bandwidth alone (graph/cut_bound.h). nullopt: for this collective
  // no bound is known, or nothing limits it.
  std::optional<double> least_ns;
};
Machine machine_of(const graph::LinkGraph& graph, const algo::Problem& problem, uint64_t bytes);

// "M1.GPU0": the name of a vertex, with its host's number where there are several.
std::string text_of_vertex(const graph::LinkGraph& graph, graph::VertexId vertex);
// The part of the time that a link is taken; 0 to 1.
double busy_share(const Report& report, graph::LinkId link);
// The links that were taken for the longest time, at most `count`; of equal ones the first.
std::vector<graph::LinkId> busiest_links(const Report& report, size_t count);

// Several lines: total, bounds, critical path, traffic, ports or links, and who is blocked on whom.
std::string to_text(const Report& report, const std::optional<cost::ClosedForm>& closed_form,
                    const Machine& machine = {});

// The same as a JSON object, with `finish_ns` of every rank and every link.
std::string to_json(const Report& report, const std::optional<cost::ClosedForm>& closed_form,
                    const Machine& machine = {});

// Rows of ranks over time, from Report::timeline; sends, receives, computation, waits.
std::string to_svg(const Report& report, const std::string& title);

}  // namespace weir::sim
