// SPDX-License-Identifier: Apache-2.0
#include "core/cost/prediction_memo.h"

#include <memory>

#include "core/cost/message_ways.h"

namespace weir::cost {

namespace {

// A member that is added must become part of the key, unless it follows from others (nodes,
// tree_links) or is of trees, of which nothing is kept.
static_assert(sizeof(algo::Problem) == 112);
static_assert(sizeof(RankLayout) == 112);
static_assert(sizeof(Slicing) == 16);

class Digest {
 public:
  Digest() : state_(XXH3_createState(), &XXH3_freeState) { XXH3_128bits_reset(state_.get()); }

  template <typename Value>
  void add(const Value& value) {
    XXH3_128bits_update(state_.get(), &value, sizeof(value));
  }
  template <typename Value>
  void add(std::span<const Value> values) {
    add(values.size());
    XXH3_128bits_update(state_.get(), values.data(), values.size_bytes());
  }
  XXH128_hash_t result() const { return XXH3_128bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace

PredictionMemo::Key PredictionMemo::key_of(const algo::Algorithm& algorithm, const Workload& work,
                                           const Table& table) {
  if (algorithm.uses_forest || algorithm.uses_rings || algorithm.imported != nullptr) {
    return std::nullopt;
  }
  Digest digest;
  digest.add(reinterpret_cast<uintptr_t>(&algorithm));
  const algo::Problem& problem = work.problem;
  digest.add(problem.collective);
  digest.add(problem.rank_count);
  digest.add(problem.root);
  digest.add(problem.mapped);
  digest.add(problem.inputs_mapped);
  digest.add(problem.outputs_mapped);
  digest.add(problem.node_of_rank);
  digest.add(problem.cache_of_rank);
  digest.add(problem.numa_of_rank);
  digest.add(problem.lanes_max);
  digest.add(problem.in_place);
  digest.add(problem.lengths);
  digest.add(problem.leaf_count);
  digest.add(work.bytes);
  digest.add(work.slicing.slice_bytes);
  digest.add(work.slicing.in_flight);
  const RankLayout& layout = work.layout;
  digest.add(layout.host_of_rank);
  digest.add(layout.socket_of_rank);
  digest.add(layout.cache_of_rank);
  digest.add(layout.network);
  digest.add(layout.cores_per_host);
  digest.add(layout.wire_of_host);
  digest.add(layout.ranks_per_cache);
  digest.add(layout.card_of_rank);
  for (const MessageWays* ways : {layout.ways, layout.memory_ways}) {
    digest.add(ways == nullptr ? uint64_t{0} : ways->hash());
  }
  digest.add(table.times);
  return digest.result();
}

PredictionMemo& PredictionMemo::of_process() {
  // Never destroyed: handlers of exit may still plan calls.
  static PredictionMemo* const memo = new PredictionMemo;
  return *memo;
}

// A lock that is taken is not waited for: the prediction is made again. So a fork while another
// thread has it does no harm.
std::optional<PredictionMemo::Kept> PredictionMemo::find(const XXH128_hash_t& key) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return std::nullopt;
  const auto found = kept_.find(key);
  return found == kept_.end() ? std::nullopt : std::optional(found->second);
}

void PredictionMemo::keep(const XXH128_hash_t& key, const Kept& made) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  if (kept_.size() >= kPredictionsMax) kept_.clear();
  kept_.emplace(key, made);
}

}  // namespace weir::cost
