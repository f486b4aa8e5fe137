// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "core/algo/check.h"
#include "core/algo/nodes.h"

namespace weir::algo {
namespace {

const std::vector<uint32_t> kUneven{0, 1, 0, 2, 1, 0, 0, 2};  // sizes 4, 2, 2

Problem problem_on(Collective collective, const std::vector<uint32_t>& nodes) {
  Problem problem;
  problem.collective = collective;
  problem.rank_count = static_cast<Rank>(nodes.size());
  problem.node_of_rank = nodes;
  return problem;
}

TEST(Nodes, NumberRanksWithinNodes) {
  const Problem problem = problem_on(Collective::kAllReduce, kUneven);
  const Nodes nodes(problem);
  EXPECT_EQ(nodes.count(), 3u);
  EXPECT_EQ(nodes.width(), 4u);
  EXPECT_EQ(nodes.size(1), 2u);
  EXPECT_EQ(nodes.member(0, 2), 5u);
  EXPECT_EQ(nodes.local_of(7), 1u);
  EXPECT_EQ(nodes.node_of(7), 2u);
}

TEST(Nodes, EveryRailHasOneCarrierPerNodeEitherWay) {
  const Problem problem = problem_on(Collective::kAllReduce, kUneven);
  const Nodes nodes(problem);
  for (uint32_t node = 0; node < nodes.count(); ++node) {
    std::set<Rank> carried;
    for (uint32_t local = 0; local < nodes.size(node); ++local) {
      const std::vector<Rank> ranks = nodes.carried_ranks(node, local);
      EXPECT_EQ(nodes.carried_count(node, local), ranks.size());
      for (uint32_t i = 0; i < ranks.size(); ++i) {
        EXPECT_EQ(nodes.carried_index(node, ranks[i]), i);
        EXPECT_TRUE(carried.insert(ranks[i]).second);
      }
      for (uint32_t rail = nodes.block_first(node, local);
           rail < nodes.block_first(node, local + 1); ++rail) {
        EXPECT_EQ(nodes.block_owner(node, rail), local);
      }
    }
    EXPECT_EQ(carried.size(), 8u);
    EXPECT_EQ(nodes.block_first(node, nodes.size(node)), nodes.width());
  }
}

TEST(Nodes, MalformedLayoutsAreNotSupported) {
  for (const std::vector<uint32_t>& nodes :
       {std::vector<uint32_t>{0, 2, 1}, {1, 0, 0}, {0, 0}, {0, 1, 1, 1}}) {
    Problem problem = problem_on(Collective::kAllReduce, nodes);
    problem.rank_count = 3;
    EXPECT_FALSE(find_algorithm(Collective::kAllReduce, "hierarchical")->supports(problem));
  }
}

// Chunks that cross between nodes, by sender.
std::map<Rank, uint64_t> crossing(const Algorithm& algorithm, const Problem& problem) {
  std::map<Rank, uint64_t> chunks;
  for (const sched::Program& program : compile_all(algorithm, problem)) {
    for (const sched::Op& op : program.ops) {
      if (op.code == sched::OpCode::kSend &&
          problem.node_of_rank[op.peer] != problem.node_of_rank[program.rank]) {
        chunks[program.rank] += op.count;
      }
    }
  }
  return chunks;
}

TEST(Hierarchical, SpreadsWhatCrossesNodesEvenlyOverRanksOfEvenNodes) {
  const std::vector<uint32_t> even{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  for (Collective collective : {Collective::kAllReduce, Collective::kReduceScatter,
                                Collective::kAllGather, Collective::kAllToAll}) {
    const auto chunks =
        crossing(*find_algorithm(collective, "hierarchical"), problem_on(collective, even));
    ASSERT_EQ(chunks.size(), 12u) << name_of(collective);
    for (const auto& [rank, count] : chunks) EXPECT_EQ(count, chunks.at(0)) << name_of(collective);
  }
  const auto chunks = crossing(*find_algorithm(Collective::kBroadcast, "hierarchical"),
                               problem_on(Collective::kBroadcast, even));
  for (const auto& [rank, count] : chunks) EXPECT_LE(count, 2u);
}

// The messages of a rank, in order, and how many copies and reductions it makes.
struct Moves {
  std::vector<std::tuple<sched::OpCode, Rank, uint32_t>> messages;
  size_t on_memory = 0;
};
Moves moves_of(const sched::Program& program) {
  Moves moves;
  for (const sched::Op& op : program.ops) {
    if (op.code == sched::OpCode::kSend || op.code == sched::OpCode::kRecv) {
      moves.messages.emplace_back(op.code, op.peer, op.count);
    } else {
      ++moves.on_memory;
    }
  }
  return moves;
}

// Those who follow programs in time hold a step of each rank.
TEST(Hierarchical, AStepIsAnExchangeWithOneOtherRankOrNode) {
  for (const Collective collective :
       {Collective::kReduceScatter, Collective::kAllGather, Collective::kAllToAll}) {
    const Algorithm& algorithm = *find_algorithm(collective, "hierarchical");
    std::vector<uint32_t> even(48);
    for (Rank rank = 0; rank < even.size(); ++rank) even[rank] = rank / 4;
    const Problem problem = problem_on(collective, even);
    EXPECT_GE(algorithm.step_count(problem, 0), 4u + 11u) << name_of(collective);
    for (uint32_t step = 0; step < algorithm.step_count(problem, 0); ++step) {
      std::vector<sched::Op> ops;
      std::vector<sched::Ref> operands;
      sched::Builder builder(0, &ops, &operands);
      algorithm.step(problem, 0, step, builder);
      std::set<Rank> targets;
      for (const sched::Op& op : ops) {
        if (op.code == sched::OpCode::kSend) targets.insert(op.peer);
      }
      EXPECT_LE(targets.size(), 1u) << name_of(collective) << ", step " << step;
    }
  }
}

// Why the router does not offer both.
TEST(Hierarchical, OfSingleRanksIsAnotherAlgorithmWithNoFewerCopies) {
  size_t pairs = 0;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (algorithm->of_single_ranks == nullptr) continue;
    ++pairs;
    EXPECT_GE(algorithm->of_single_ranks->lengths, algorithm->lengths);
    for (const Rank n : {2u, 3u, 4u, 7u, 8u, 16u, 21u}) {
      std::vector<uint32_t> nodes(n);
      std::iota(nodes.begin(), nodes.end(), 0u);
      Problem problem = problem_on(algorithm->collective, nodes);
      problem.root = n / 3;
      EXPECT_TRUE(are_single_ranks(problem));
      EXPECT_EQ(algorithm->shape(problem).lane_count,
                algorithm->of_single_ranks->shape(problem).lane_count);
      const auto with_nodes = compile_all(*algorithm, problem);
      const auto without = compile_all(*algorithm->of_single_ranks, problem);
      for (Rank rank = 0; rank < n; ++rank) {
        const Moves one = moves_of(with_nodes[rank]);
        const Moves other = moves_of(without[rank]);
        EXPECT_EQ(one.messages, other.messages)
            << algorithm->name << " of " << name_of(algorithm->collective) << ", rank " << rank
            << " of " << n;
        EXPECT_GE(one.on_memory, other.on_memory);
      }
    }
  }
  EXPECT_EQ(pairs, 4u);
  EXPECT_FALSE(are_single_ranks(problem_on(Collective::kAllReduce, kUneven)));
  EXPECT_FALSE(are_single_ranks(problem_on(Collective::kAllReduce, {})));
}

TEST(Hierarchical, AllGatherBringsEachBlockIntoEachNodeOnce) {
  const auto chunks = crossing(*find_algorithm(Collective::kAllGather, "hierarchical"),
                               problem_on(Collective::kAllGather, kUneven));
  uint64_t sum = 0;
  for (const auto& [rank, count] : chunks) sum += count;
  EXPECT_EQ(sum, 8u * 2);  // to each of the two other nodes
}

TEST(Hierarchical, AllToAllSendsOneMessagePerRankAndOtherNode) {
  const std::vector<uint32_t> even{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
  const Problem problem = problem_on(Collective::kAllToAll, even);
  for (const sched::Program& program :
       compile_all(*find_algorithm(Collective::kAllToAll, "hierarchical"), problem)) {
    int messages = 0;
    for (const sched::Op& op : program.ops) {
      if (op.code == sched::OpCode::kSend && even[op.peer] != even[program.rank]) ++messages;
    }
    EXPECT_EQ(messages, 2);
  }
}

// Messages between nodes, by their ends.
std::map<std::pair<Rank, Rank>, int> crossing_messages(const char* name, const Problem& problem) {
  std::map<std::pair<Rank, Rank>, int> messages;
  for (const sched::Program& program :
       compile_all(*find_algorithm(problem.collective, name), problem)) {
    for (const sched::Op& op : program.ops) {
      const bool crosses = op.code == sched::OpCode::kSend &&
                           problem.node_of_rank[op.peer] != problem.node_of_rank[program.rank];
      if (crosses) ++messages[{program.rank, op.peer}];
    }
  }
  return messages;
}

// A binomial tree of ranks crosses between nodes wherever the root and the order of ranks put it.
TEST(Hierarchical, GatherAndScatterCrossOnceForEachOtherNodeWhateverTheRoot) {
  const std::vector<uint32_t> blocks{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3};
  const std::vector<uint32_t> dealt{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  for (const Collective collective : {Collective::kGather, Collective::kScatter}) {
    for (const auto& nodes : {blocks, dealt}) {
      for (Rank root = 0; root < 12; ++root) {
        Problem problem = problem_on(collective, nodes);
        problem.root = root;
        const auto messages = crossing_messages("hierarchical", problem);
        EXPECT_EQ(messages.size(), 3u) << "root " << root;
        // A subtree's blocks may wrap around the end of the grid.
        for (const auto& [ends, count] : messages) EXPECT_LE(count, 2) << "root " << root;
        if (nodes != dealt) continue;
        EXPECT_GE(crossing_messages("binomial", problem).size(), 6u) << "root " << root;
      }
    }
  }
}

}  // namespace
}  // namespace weir::algo
