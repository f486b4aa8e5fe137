// SPDX-License-Identifier: Apache-2.0
// Shorthand of the simulator's tests.
#pragma once

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "core/cost/closed_form.h"
#include "core/sim/simulator.h"

namespace weir::sim {

inline constexpr Level kLevel{.latency_ns = 1000,
                              .send_overhead_ns = 100,
                              .recv_overhead_ns = 150,
                              .gap_ns = 50,
                              .ns_per_byte = 0.125,
                              .signal_ns = 400,
                              .remote_ns_per_byte = 0.0625};
inline constexpr double kCopyNsPerByte = 0.03125;
inline constexpr double kReduceNsPerByte = 0.0625;

inline Options uniform_options() {
  Options options;
  options.network = uniform_network(kLevel, kCopyNsPerByte, kReduceNsPerByte);
  return options;
}

inline cost::LinkFigures uniform_figures() {
  return {.send_overhead_ns = kLevel.send_overhead_ns,
          .latency_ns = kLevel.latency_ns,
          .recv_overhead_ns = kLevel.recv_overhead_ns,
          .ns_per_byte = kLevel.ns_per_byte,
          .signal_ns = kLevel.signal_ns,
          .remote_ns_per_byte = kLevel.remote_ns_per_byte,
          .copy_ns_per_byte = kCopyNsPerByte,
          .reduce_ns_per_byte = kReduceNsPerByte};
}

inline const algo::Algorithm& algorithm(Collective collective, std::string_view name) {
  const algo::Algorithm* found = algo::find_algorithm(collective, name);
  EXPECT_NE(found, nullptr) << name;
  return *found;
}

inline algo::Problem problem(Collective collective, Rank rank_count) {
  algo::Problem p;
  p.collective = collective;
  p.rank_count = rank_count;
  p.mapped = true;
  p.inputs_mapped = true;
  p.outputs_mapped = true;
  return p;
}

inline std::vector<uint32_t> even_nodes(Rank rank_count, Rank ranks_per_node) {
  std::vector<uint32_t> nodes(rank_count);
  for (Rank rank = 0; rank < rank_count; ++rank) nodes[rank] = rank / ranks_per_node;
  return nodes;
}

inline Report run(const algo::Algorithm& a, const algo::Problem& p, uint64_t bytes,
                  const Options& options) {
  Result<Report> report = simulate(a, p, bytes, options);
  EXPECT_TRUE(report.ok()) << a.name << ": " << report.status().text();
  return report.ok() ? report.take() : Report{};
}

inline double total_ns(const Report& report) { return static_cast<double>(report.total_ps) / 1000; }

}  // namespace weir::sim
