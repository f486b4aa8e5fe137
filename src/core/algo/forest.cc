// SPDX-License-Identifier: Apache-2.0
// `forest`: along the spanning trees that were found for the machine (graph/forest.h). Each rank's
// block goes to all others along the trees that it is the root of, which together use each link as
// much as it can carry; folds travel the same trees backwards, and all_reduce does both (Zhao et
// al. 2024, see graph/cut_bound.h). A broadcast and a reduce have trees of their root only.
//
// Every lane has some of the trees, and each rank does the sends and receives that are its own in
// the order of tree_links.h: those first that depend on the fewest others.
//
// In place: a rank reads chunk c of Input, for the last time, before it receives chunk c of Output
// or in the operation that writes it.
#include "core/graph/forest.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/algo/catalog.h"
#include "core/algo/support.h"
#include "core/algo/tree_links.h"

namespace weir::algo {
namespace {

using graph::Forest;
using graph::Tree;
using graph::TreeLink;
using sched::Builder;
using sched::Ref;
using sched::Shape;

bool is_rooted(const Problem& problem) {
  return problem.collective == Collective::kBroadcast || problem.collective == Collective::kReduce;
}

uint32_t parts_of(const Forest& forest) {
  uint32_t parts = 0;
  for (const Tree& tree : forest.trees) parts += tree.count;
  return parts;
}

// Trees of the root alone, or of all ranks; for all_reduce, of any.
bool has_trees(const Problem& problem) {
  const Forest* forest = problem.forest;
  if (problem.rank_count < 2 || forest == nullptr || forest->rank_count != problem.rank_count) {
    return false;
  }
  if (problem.collective == Collective::kAllReduce) return true;
  const uint32_t parts = parts_of(*forest);
  if (!is_rooted(problem)) return parts == forest->trees_per_root * problem.rank_count;
  return parts == forest->trees_per_root && forest->trees[0].root == problem.root;
}

// One rank's part in the trees, and how to say it in operations.
class Part {
 public:
  Part(const Problem& problem, Rank rank)
      : problem_(problem), forest_(*problem.forest), rank_(rank) {
    if (problem.tree_links == nullptr) made_.emplace(forest_, forest_lane_count(problem), rank);
    links_ = problem.tree_links != nullptr ? problem.tree_links : &*made_;
    const size_t trees = forest_.trees.size();
    children_.assign(trees, 0);
    fold_slot_.assign(trees, 0);
    for (uint32_t lane = 0; lane < forest_lane_count(problem); ++lane) {
      for (const Own& own : links_->spread(rank, lane)) {
        children_[own.tree] += own.link->from == rank;
      }
    }
    // In all_reduce any ranks may be roots, and their parts follow each other.
    uint32_t next = 0;
    for (const Tree& tree : forest_.trees) {
      widest_ = std::max(widest_, tree.count);
      chunk_of_.push_back(problem.collective == Collective::kAllReduce ? next
                          : is_rooted(problem)                         ? tree.first
                                               : tree.root * forest_.trees_per_root + tree.first);
      next += tree.count;
    }
    uint32_t next_slot = forest_lane_count(problem) * widest_;
    for (size_t i = 0; i < trees; ++i) {
      if (!folds_in_scratch(i)) continue;
      fold_slot_[i] = next_slot;
      next_slot += forest_.trees[i].count;
    }
  }

  void fold(Builder& b) {
    std::vector<bool> begun(forest_.trees.size());
    for (uint32_t lane = 0; lane < forest_lane_count(problem_); ++lane) {
      b.lane(static_cast<uint8_t>(lane));
      for (const Own& own : links_->fold(rank_, lane)) {
        const Tree& tree = forest_.trees[own.tree];
        if (own.link->to == rank_) {
          const Ref whole =
              children_[own.tree] == 0 ? b.input(chunk_of_[own.tree]) : sum(own.tree, b);
          b.send(own.link->from, whole, tree.count);
          continue;
        }
        const Ref received = b.scratch(lane * widest_);
        b.recv(own.link->to, received, tree.count);
        const Ref dst = sum(own.tree, b);
        const Ref mine = begun[own.tree] ? dst : b.input(chunk_of_[own.tree]);
        b.reduce(dst, std::array{mine, received}, tree.count);
        begun[own.tree] = true;
      }
    }
  }

  // `from_output`: a root's block is its result, not its input.
  void spread(bool from_output, Builder& b) {
    for (uint32_t lane = 0; lane < forest_lane_count(problem_); ++lane) {
      b.lane(static_cast<uint8_t>(lane));
      for (const Own& own : links_->spread(rank_, lane)) {
        const Tree& tree = forest_.trees[own.tree];
        const uint32_t chunk = chunk_of_[own.tree];
        if (own.link->from == rank_) {
          const bool from_input = tree.root == rank_ && !from_output;
          b.send(own.link->to, from_input ? b.input(chunk) : b.output(chunk), tree.count);
        } else {
          b.recv(own.link->from, b.output(chunk), tree.count);
        }
      }
    }
  }

  // The rank's own block, which no message brings.
  void keep(Builder& b) {
    if (is_rooted(problem_) && rank_ != problem_.root) return;
    const uint32_t chunk = is_rooted(problem_) ? 0 : rank_ * forest_.trees_per_root;
    b.lane(0);
    b.copy(b.output(chunk), b.input(chunk), forest_.trees_per_root);
  }

 private:
  using Own = TreeLinks::Own;

  // Output has a place for every chunk in all_reduce, and for those of the root at the root.
  bool folds_in_scratch(size_t tree) const {
    const bool folds = problem_.collective == Collective::kReduceScatter ||
                       problem_.collective == Collective::kReduce;
    return folds && children_[tree] > 0 && forest_.trees[tree].root != rank_;
  }
  Ref sum(uint32_t tree, const Builder& b) const {
    return folds_in_scratch(tree) ? b.scratch(fold_slot_[tree]) : b.output(chunk_of_[tree]);
  }

  const Problem& problem_;
  const Forest& forest_;
  Rank rank_;
  std::optional<TreeLinks> made_;
  const TreeLinks* links_ = nullptr;
  std::vector<uint32_t> children_;
  std::vector<uint32_t> chunk_of_;
  std::vector<uint32_t> fold_slot_;
  uint32_t widest_ = 1;
};

Shape spreading_shape(const Problem& problem) {
  return {.chunk_count = parts_of(*problem.forest), .lane_count = forest_lane_count(problem)};
}

// The slots of receives, by lane, then those of partial folds: the most of all ranks.
Shape folding_shape(const Problem& problem) {
  Shape shape = spreading_shape(problem);
  uint32_t widest = 1;
  std::vector<uint32_t> folds(problem.rank_count, 0);
  std::vector<size_t> counted(problem.rank_count, SIZE_MAX);  // the latest tree
  for (size_t i = 0; i < problem.forest->trees.size(); ++i) {
    const Tree& tree = problem.forest->trees[i];
    widest = std::max(widest, tree.count);
    if (problem.collective == Collective::kAllReduce) continue;
    counted[tree.root] = i;
    for (const TreeLink& link : tree.links) {
      if (std::exchange(counted[link.from], i) != i) folds[link.from] += tree.count;
    }
  }
  shape.scratch_slots =
      forest_lane_count(problem) * widest + *std::max_element(folds.begin(), folds.end());
  return shape;
}

void all_reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  Part part(problem, rank);
  part.fold(b);
  part.spread(true, b);
}

void folding_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  Part(problem, rank).fold(b);
}

void spreading_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  Part part(problem, rank);
  part.spread(false, b);
  part.keep(b);
}

}  // namespace

uint32_t forest_lane_count(const Problem& problem) {
  const uint32_t most = problem.tree_lanes_max != 0 ? problem.tree_lanes_max : problem.lanes_max;
  return std::clamp(static_cast<uint32_t>(problem.forest->trees.size()), 1u, std::max(1u, most));
}

const Algorithm kForestAllReduce = {
    .name = "forest",
    .summary = "along trees found for the machine, backwards and forwards (ForestColl, 2024)",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_forest = true,
    .supports = has_trees,
    .shape = folding_shape,
    .step_count = one_step,
    .step = all_reduce_step,
};

const Algorithm kForestReduceScatter = {
    .name = "forest",
    .summary = "partial folds travel along trees found for the machine (ForestColl, 2024)",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .uses_forest = true,
    .supports = has_trees,
    .shape = folding_shape,
    .step_count = one_step,
    .step = folding_step,
};

const Algorithm kForestAllGather = {
    .name = "forest",
    .summary = "blocks travel along trees found for the machine (ForestColl, 2024)",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .uses_forest = true,
    .supports = has_trees,
    .shape = spreading_shape,
    .step_count = one_step,
    .step = spreading_step,
};

const Algorithm kForestBroadcast = {
    .name = "forest",
    .summary = "parts travel along trees of the root, found for the machine (Edmonds 1973)",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_forest = true,
    .supports = has_trees,
    .shape = spreading_shape,
    .step_count = one_step,
    .step = spreading_step,
};

const Algorithm kForestReduce = {
    .name = "forest",
    .summary = "partial folds travel along trees to the root, found for the machine (Edmonds 1973)",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_forest = true,
    .supports = has_trees,
    .shape = folding_shape,
    .step_count = one_step,
    .step = folding_step,
};

}  // namespace weir::algo
