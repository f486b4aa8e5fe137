// SPDX-License-Identifier: Apache-2.0
#include "core/algo/algorithm.h"

#include <optional>

#include "core/algo/imported.h"
#include "core/algo/nodes.h"
#include "core/base/check.h"

namespace weir::algo {

const char* name_of(Collective collective, BlockLengths lengths) {
  if (lengths == BlockLengths::kEqual) return weir::name_of(collective);
  switch (collective) {
    case Collective::kReduceScatter:
      return "reduce_scatter_v";
    case Collective::kAllGather:
      return "all_gather_v";
    case Collective::kAllToAll:
      return "all_to_all_v";
    default:
      return weir::name_of(collective);
  }
}

BlockLengths lengths_of_variant(Collective collective) {
  switch (collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return BlockLengths::kKnownToAll;
    case Collective::kAllToAll:
      return BlockLengths::kKnownToEnds;
    default:
      return BlockLengths::kEqual;
  }
}

std::optional<NamedCollective> collective_named(std::string_view name) {
  for (uint32_t i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    for (const BlockLengths lengths : {BlockLengths::kEqual, lengths_of_variant(collective)}) {
      if (name == name_of(collective, lengths)) return NamedCollective{collective, lengths};
    }
  }
  return std::nullopt;
}

sched::Program compile(const Algorithm& algorithm, const Problem& problem, Rank rank) {
  WEIR_CHECK(problem.collective == algorithm.collective, "the algorithm is for another collective");
  WEIR_CHECK(rank < problem.rank_count, "no such rank");
  WEIR_CHECK(algorithm.supports(problem), "ask supports() before compile()");
  sched::Program program;
  program.collective = problem.collective;
  program.rank = rank;
  program.rank_count = problem.rank_count;
  program.root = problem.root;
  program.shape = algorithm.shape(problem);
  program.shape.leaf_count = problem.leaf_count;
  std::optional<Nodes> nodes;
  Problem with_nodes = problem;
  if (algorithm.uses_nodes) with_nodes.nodes = &nodes.emplace(problem);
  sched::Builder builder(rank, &program.ops, &program.operands);
  const uint32_t step_count = algorithm.step_count(with_nodes, rank);
  for (uint32_t step = 0; step < step_count; ++step) {
    builder.lane(0);
    algorithm.step(with_nodes, rank, step, builder);
  }
  if (algorithm.imported != nullptr) {
    program.moved_chunks = algorithm.imported->program(rank).moved_chunks;
  }
  return program;
}

}  // namespace weir::algo
