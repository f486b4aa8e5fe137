// SPDX-License-Identifier: Apache-2.0
#include "core/sim/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/sim/simulation.h"

namespace weir::sim {

namespace {

constexpr Rank kRanksMax = 1u << 22;
constexpr uint64_t kBytesMax = uint64_t{1} << 44;
constexpr uint32_t kLanesMax = 256;
constexpr uint64_t kSignalsMax = 1u << 20;

Status check_problem(const algo::Algorithm& algorithm, const algo::Problem& problem, uint64_t bytes,
                     const Options& options) {
  if (problem.collective != algorithm.collective) {
    return invalid_argument(fmt::format("algorithm '{}' is for {}, the problem is {}",
                                        algorithm.name, name_of(algorithm.collective),
                                        name_of(problem.collective)));
  }
  if (problem.rank_count < 1 || problem.rank_count > kRanksMax) {
    return invalid_argument(fmt::format("{} ranks cannot be simulated; allowed is 1 to {}",
                                        problem.rank_count, kRanksMax));
  }
  if (bytes > kBytesMax) {
    return invalid_argument(
        fmt::format("{} bytes cannot be simulated; allowed is at most {}", bytes, kBytesMax));
  }
  if (!problem.node_of_rank.empty()) {
    if (problem.node_of_rank.size() != problem.rank_count) {
      return invalid_argument(fmt::format("node_of_rank has {} entries for {} ranks",
                                          problem.node_of_rank.size(), problem.rank_count));
    }
    for (uint32_t node : problem.node_of_rank) {
      if (node >= problem.rank_count) {
        return invalid_argument(
            fmt::format("node {} is out of range; nodes are numbered from 0 "
                        "and there are at most as many as ranks ({})",
                        node, problem.rank_count));
      }
    }
  }
  if (options.links != nullptr && options.links->rank_count() != problem.rank_count) {
    return invalid_argument(fmt::format("the link graph has {} ranks, the problem has {}",
                                        options.links->rank_count(), problem.rank_count));
  }
  if (problem.root >= problem.rank_count) {
    return invalid_argument(
        fmt::format("root {} is not below {}", problem.root, problem.rank_count));
  }
  if (!algorithm.supports(problem)) {
    return Status(
        Code::kUnsupported,
        fmt::format("algorithm '{}' of {} does not support {} ranks{}{}", algorithm.name,
                    name_of(problem.collective), problem.rank_count,
                    algorithm.needs_mapped && !problem.mapped ? " without mapped staging" : "",
                    algorithm.needs_user_windows ? " (it needs user windows)" : ""));
  }
  const sched::Shape shape = algorithm.shape(problem);
  if (shape.lane_count < 1 || shape.lane_count > kLanesMax || shape.signal_count > 256) {
    return Status(Code::kInternal, fmt::format("'{}' needs {} lanes and {} signals", algorithm.name,
                                               shape.lane_count, shape.signal_count));
  }
  const uint64_t lanes = uint64_t{shape.lane_count} * options.slicing.in_flight;
  const cost::ChunkBytes chunks(problem.collective, problem.rank_count, bytes, shape.chunk_count,
                                options.slicing.slice_bytes);
  if (options.slicing.in_flight < 1 || lanes > kLanesMax) {
    return invalid_argument(
        fmt::format("{} slices in flight of {} lanes; allowed are 1 to {} lanes",
                    options.slicing.in_flight, shape.lane_count, kLanesMax));
  }
  if (chunks.slice_count() * std::max(1u, shape.signal_count) > kSignalsMax) {
    return invalid_argument(fmt::format("{} slices are too many; use larger slices than {} bytes",
                                        chunks.slice_count(), options.slicing.slice_bytes));
  }
  return {};
}

Status check_faults(const algo::Problem& problem, const Options& options) {
  for (const SlowRank& slow : options.slow) {
    if (slow.rank >= problem.rank_count) {
      return invalid_argument(
          fmt::format("slow rank {} is not below the {} ranks", slow.rank, problem.rank_count));
    }
    if (!std::isfinite(slow.factor) || slow.factor < 0.001 || slow.factor > 1e6) {
      return invalid_argument(fmt::format("slow rank {}: factor {} is not in 0.001 to 1000000",
                                          slow.rank, slow.factor));
    }
  }
  if (options.lanes_of && *options.lanes_of >= problem.rank_count) {
    return invalid_argument(
        fmt::format("rank {}, whose lanes are wanted, is not below the {} ranks", *options.lanes_of,
                    problem.rank_count));
  }
  for (const DeadRank& dead : options.dead) {
    if (dead.rank >= problem.rank_count) {
      return invalid_argument(
          fmt::format("dead rank {} is not below the {} ranks", dead.rank, problem.rank_count));
    }
    if (!std::isfinite(dead.at_ns) || dead.at_ns < 0 || dead.at_ns > 1e15) {
      return invalid_argument(
          fmt::format("dead rank {}: {} ns is not a time", dead.rank, dead.at_ns));
    }
  }
  return {};
}

Status check_nodes(const algo::Problem& problem, const Options& options) {
  const std::vector<double>& nics = options.nic_ns_per_byte_of_node;
  if (nics.empty()) return {};
  const size_t nodes =
      problem.node_of_rank.empty()
          ? 1
          : *std::max_element(problem.node_of_rank.begin(), problem.node_of_rank.end()) + size_t{1};
  if (nics.size() != nodes) {
    return invalid_argument(
        fmt::format("figures of {} NICs are given, there are {} nodes", nics.size(), nodes));
  }
  for (const double ns : nics) {
    if (!std::isfinite(ns) || ns < 0 || ns > 1e6) {
      return invalid_argument(fmt::format("{} ns per byte of a NIC; allowed is 0 to 1e6", ns));
    }
  }
  return {};
}

}  // namespace

Status check(const algo::Problem& problem, const Options& options) {
  WEIR_RETURN_IF_ERROR(check_faults(problem, options));
  WEIR_RETURN_IF_ERROR(validate(options.network));
  return check_nodes(problem, options);
}

Result<Report> simulate(const algo::Algorithm& algorithm, const algo::Problem& problem,
                        uint64_t bytes, const Options& options) {
  WEIR_RETURN_IF_ERROR(check_problem(algorithm, problem, bytes, options));
  WEIR_RETURN_IF_ERROR(check(problem, options));
  return Simulation(algorithm, problem, bytes, options).run();
}

}  // namespace weir::sim
