// SPDX-License-Identifier: Apache-2.0
// The options by which subcommands name an algorithm and a problem.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"

namespace weir::cli {
class Command;
}

namespace weir::sched_tool {

struct ProblemOptions {
  std::string collective;
  std::string algorithm;
  uint32_t root = 0;
  uint32_t per_node = 0;        // ranks per node, in blocks; 0: one node
  std::vector<uint32_t> nodes;  // node of each rank; overrides per_node
  bool in_place = false;
};

// --collective, --algorithm
void add_algorithm_options(cli::Command& command, ProblemOptions* options);
// --root, --per-node, --nodes, --in-place
void add_problem_options(cli::Command& command, ProblemOptions* options);

// The collective or v-variant of that name; the error lists those that are known.
Result<algo::NamedCollective> parse_collective(const std::string& name);
// The algorithm that is named; the error lists those that are known.
Result<const algo::Algorithm*> find_algorithm(const ProblemOptions& options);
// Ranges of rank counts: "8", "1..64", "2,4,8..16". All in 1..`max`.
Result<std::vector<Rank>> parse_rank_counts(const std::string& text, Rank max);

// A problem with its own node layout, and with the mapping that the algorithm needs.
struct OwnedProblem {
  algo::Problem problem;
  std::vector<uint32_t> nodes;

  algo::Problem get() const {
    algo::Problem copy = problem;
    copy.node_of_rank = nodes;
    return copy;
  }
};
// Why an algorithm does not support a problem whose memory is mapped as it needs, and the remedy.
std::string why_unsupported(const algo::Algorithm& algorithm, const algo::Problem& problem);
// Fails when the root or the nodes do not fit, or when the algorithm does not support the problem.
Result<OwnedProblem> make_problem(const algo::Algorithm& algorithm, Rank rank_count,
                                  const ProblemOptions& options);

}  // namespace weir::sched_tool
