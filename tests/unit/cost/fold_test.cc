// SPDX-License-Identifier: Apache-2.0
// One rank that stands for others does what they do.
#include "core/cost/fold.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/cost/critical_path.h"
#include "core/cost/prediction_memo.h"
#include "sim/sim_support.h"

namespace weir::cost {
namespace {

Rank renamed(Rank rank, Rank distance, Rank n, algo::Symmetry symmetry) {
  return symmetry == algo::Symmetry::kXor ? rank ^ distance : (rank + distance) % n;
}

// What a program does, up to the chunks that it names.
struct Act {
  sched::OpCode code;
  uint32_t lane, peer, count, operands;
  bool operator==(const Act&) const = default;
};

std::vector<Act> acts_of(const algo::Algorithm& a, const algo::Problem& p, Rank rank,
                         Rank distance) {
  std::vector<Act> acts;
  const sched::Program program = algo::compile(a, p, rank);
  for (const sched::Op& op : program.ops) {
    const bool has_peer = op.code != sched::OpCode::kCopy && op.code != sched::OpCode::kReduce &&
                          op.peer != sched::kAllRanks;
    const Rank peer = has_peer ? renamed(op.peer, distance, p.rank_count, a.symmetry) : op.peer;
    acts.push_back({op.code, op.lane, has_peer ? peer : 0, op.count, op.operand_count});
  }
  return acts;
}

// As many chunks copied and folded (a range of them that wraps around is two copies), and the same
// messages and signals in the same order.
void expect_alike(const std::vector<Act>& a, const std::vector<Act>& b, const std::string& where) {
  const auto talks = [](std::vector<Act> acts) {
    std::erase_if(acts, [](const Act& act) {
      return act.code == sched::OpCode::kCopy || act.code == sched::OpCode::kReduce;
    });
    return acts;
  };
  const auto chunks_folded = [](const std::vector<Act>& acts) {
    uint64_t sum = 0;
    for (const Act& act : acts) {
      const bool folds = act.code == sched::OpCode::kReduce;
      if (folds || act.code == sched::OpCode::kCopy) {
        sum += uint64_t{act.count} * (folds ? act.operands : 1);
      }
    }
    return sum;
  };
  EXPECT_EQ(chunks_folded(a), chunks_folded(b)) << where;
  EXPECT_TRUE(talks(a) == talks(b)) << where;
}

TEST(Symmetry, OfEveryAlgorithmThatHasOneMapsProgramsOntoEachOther) {
  uint32_t compared = 0;
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    if (a->symmetry == algo::Symmetry::kNone) continue;
    for (const Rank n : {4u, 8u, 12u, 16u, 32u}) {
      if (a->symmetry == algo::Symmetry::kXor && (n & (n - 1)) != 0) continue;
      const std::vector<uint32_t> nodes = sim::even_nodes(n, 4);
      algo::Problem p = sim::problem(a->collective, n);
      if (a->uses_nodes) p.node_of_rank = nodes;
      if (!a->supports(p)) continue;
      const Rank step = a->uses_nodes ? 4 : 1;
      for (Rank distance = step; distance < n; distance += step) {
        for (Rank rank = 0; rank < step; ++rank) {
          expect_alike(acts_of(*a, p, rank, distance),
                       acts_of(*a, p, renamed(rank, distance, n, a->symmetry), 0),
                       std::string(a->name) + " of " + name_of(a->collective) + ", rank " +
                           std::to_string(rank) + " of " + std::to_string(n) + ", distance " +
                           std::to_string(distance));
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 500u);
}

Workload workload(const algo::Algorithm& a, Rank n, uint64_t bytes,
                  const std::vector<uint32_t>& hosts) {
  Workload work{sim::problem(a.collective, n), bytes, {65536, 4}, {}};
  if (!hosts.empty()) {
    work.problem.mapped = work.problem.inputs_mapped = work.problem.outputs_mapped = false;
    work.problem.node_of_rank = hosts;
  }
  work.layout.host_of_rank = hosts;
  return work;
}

TEST(Fold, GivesTheTimeOfAllRanks) {
  const Table table = built_in_table();
  uint32_t folded_count = 0;
  for (const algo::Algorithm* a : algo::all_algorithms()) {
    for (const Rank per_host : {1u, 4u, 16u}) {
      const std::vector<uint32_t> hosts =
          per_host == 16 ? std::vector<uint32_t>() : sim::even_nodes(16, per_host);
      for (const uint64_t bytes : {uint64_t{4096}, uint64_t{1} << 20, uint64_t{8} << 20}) {
        const Workload work = workload(*a, 16, bytes, hosts);
        if (!a->supports(work.problem)) continue;
        const Fold fold(*a, work);
        if (fold.followed() == 16) continue;
        EXPECT_EQ(fold.followed(), per_host == 16 ? 1 : per_host);
        const TaskCosts costs(work, table);
        const double of_all = critical_path(*a, work, costs, Fold(16)).ns;
        const double of_few = critical_path(*a, work, costs, fold).ns;
        // Which of two messages that arrive at the same time is first may differ.
        EXPECT_NEAR(of_few, of_all, 0.03 * of_all)
            << a->name << " of " << name_of(a->collective) << ", " << per_host << " a host, "
            << bytes << " bytes";
        ++folded_count;
      }
    }
  }
  EXPECT_GT(folded_count, 60u);
}

TEST(Fold, FollowsAllRanksWhereHostsDiffer) {
  const algo::Algorithm& ring = sim::algorithm(Collective::kAllReduce, "ring");
  const std::vector<uint32_t> even = sim::even_nodes(16, 4);
  Workload work = workload(ring, 16, 4096, even);
  EXPECT_EQ(Fold(ring, work).followed(), 4u);
  std::vector<uint32_t> uneven = even;
  uneven[3] = 1;
  work.layout.host_of_rank = uneven;
  EXPECT_EQ(Fold(ring, work).followed(), 16u);
  std::vector<uint32_t> dealt(16);
  for (Rank rank = 0; rank < 16; ++rank) dealt[rank] = rank % 4;
  work.layout.host_of_rank = dealt;
  EXPECT_EQ(Fold(ring, work).followed(), 16u);
  work.layout.host_of_rank = even;
  const std::vector<double> wires = {1, 1, 1, 2};
  work.layout.wire_of_host = wires;
  EXPECT_EQ(Fold(ring, work).followed(), 16u);
  work.layout.wire_of_host = {};
  std::vector<uint32_t> cards = sim::even_nodes(16, 2);
  work.layout.card_of_rank = cards;
  EXPECT_EQ(Fold(ring, work).followed(), 4u);
  cards[1] = 1;
  work.layout.card_of_rank = cards;
  EXPECT_EQ(Fold(ring, work).followed(), 16u);
}

TEST(PredictionMemo, KeepsWhatWasPredictedForEqualQuestionsOnly) {
  const algo::Algorithm& ring = sim::algorithm(Collective::kAllReduce, "ring");
  const Table table = built_in_table();
  const std::vector<uint32_t> hosts = sim::even_nodes(12, 4);
  const Workload work = workload(ring, 12, 123'456, hosts);
  const PredictionMemo::Key key = PredictionMemo::key_of(ring, work, table);
  ASSERT_TRUE(key);
  PredictionMemo& memo = PredictionMemo::of_process();
  const auto ns_of = [&](const PredictionMemo::Key& of) {
    const auto kept = memo.find(*of);
    return kept ? std::optional(kept->ns) : std::nullopt;
  };
  EXPECT_EQ(ns_of(key), std::nullopt);
  const double ns = predict(ring, work, table);
  EXPECT_EQ(ns_of(key), ns);
  // Another communicator of the same layout has arrays of its own.
  const std::vector<uint32_t> same = sim::even_nodes(12, 4);
  EXPECT_EQ(ns_of(PredictionMemo::key_of(ring, workload(ring, 12, 123'456, same), table)), ns);
  const auto differs = [&](const Workload& other, const Table& with) {
    return !memo.find(*PredictionMemo::key_of(ring, other, with)).has_value();
  };
  EXPECT_TRUE(differs(workload(ring, 12, 123'457, hosts), table));
  EXPECT_TRUE(differs(workload(ring, 12, 123'456, sim::even_nodes(12, 6)), table));
  Table other = table;
  other.times.call_ns += 1;
  EXPECT_TRUE(differs(work, other));
  Workload in_place = work;
  in_place.problem.in_place = true;
  EXPECT_TRUE(differs(in_place, table));
  const algo::Algorithm& forest = sim::algorithm(Collective::kAllReduce, "forest");
  EXPECT_FALSE(PredictionMemo::key_of(forest, work, table));
}

}  // namespace
}  // namespace weir::cost
