// SPDX-License-Identifier: Apache-2.0
#include "simnet/programs.h"

#include <map>
#include <memory>
#include <string>

#include "core/algo/check.h"
#include "core/algo/imported.h"
#include "core/algo/program_text.h"
#include "core/base/check.h"
#include "sched/msccl_documents.h"

namespace weir::simnet {
namespace {

using Sets = std::vector<std::shared_ptr<const algo::Imported>>;

void add(const std::string& text, const char* name, Sets* sets) {
  const auto read = algo::read_programs(text, name);
  WEIR_CHECK(read.ok(), "the documents of the tests can be read");
  auto made = algo::Imported::make(read.value().set, name);
  WEIR_CHECK(made.ok(), "the documents of the tests are right");
  sets->push_back(made.take());
}

Sets make(Rank n) {
  Sets sets;
  add(algo::msccl_ring_all_reduce(n, 2, true), "msccl_ring", &sets);
  add(algo::msccl_pairs_all_reduce(n), "msccl_pairs", &sets);
  if ((n & (n - 1)) == 0) add(algo::msccl_doubling_all_reduce(n), "msccl_doubling", &sets);
  add(algo::msccl_ring_all_gather(n, false), "msccl_gather", &sets);
  add(algo::msccl_ring_reduce_scatter(n, true), "msccl_scatter", &sets);
  add(algo::msccl_pairs_all_to_all(n, 2, false), "msccl_exchange", &sets);
  // One by one in memory of peers, and one of messages with a root.
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kAllToAll,
        Collective::kBroadcast, Collective::kBarrier}) {
    for (const bool mapped : {true, false}) {
      if (!mapped && collective != Collective::kBroadcast) continue;
      algo::Problem problem;
      problem.collective = collective;
      problem.rank_count = n;
      problem.root = n - 1;
      problem.mapped = mapped;
      const char* const from = mapped ? "direct" : "chain";
      add(sched::to_json({algo::access_of(problem),
                          algo::compile_all(*algo::find_algorithm(collective, from), problem)}),
          mapped ? "from_direct" : "from_chain", &sets);
    }
  }
  return sets;
}

}  // namespace

std::vector<const algo::Algorithm*> programs_for(Rank rank_count) {
  static std::map<Rank, Sets> made;
  auto found = made.find(rank_count);
  if (found == made.end()) found = made.emplace(rank_count, make(rank_count)).first;
  std::vector<const algo::Algorithm*> algorithms;
  for (const auto& set : found->second) algorithms.push_back(&set->algorithm());
  return algorithms;
}

}  // namespace weir::simnet
