// SPDX-License-Identifier: Apache-2.0
#include "core/graph/switch_removal.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/graph/max_flow.h"

namespace weir::graph {
namespace {

// The flow network of a capacity and its supply, kept while a switch is removed.
class Checker {
 public:
  // `removed`: pairs of its neighbours have an arc, too.
  Checker(const TreeCapacity& capacity, const Supply& supply, Steps* steps, uint32_t removed)
      : source_(capacity.vertex_count()),
        arcs_(size_t{source_} * source_, kNone),
        flow_(source_ + 1),
        ranks_(capacity.rank_count()),
        wanted_(std::accumulate(supply.begin(), supply.end(), int64_t{0})),
        steps_(steps) {
    for (uint32_t from = 0; from < source_; ++from) {
      for (uint32_t to = 0; to < source_; ++to) {
        const bool new_pair = removed != kNone && from != to && capacity.at(from, removed) > 0 &&
                              capacity.at(removed, to) > 0;
        if (capacity.at(from, to) > 0 || new_pair) {
          arcs_[size_t{from} * source_ + to] = flow_.add_arc(from, to, capacity.at(from, to));
        }
      }
    }
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      if (supply[rank] > 0) flow_.add_arc(source_, rank, supply[rank]);
    }
  }

  void set(uint32_t from, uint32_t to, int64_t trees) {
    const uint32_t arc = arcs_[size_t{from} * source_ + to];
    if (arc != kNone) flow_.set_capacity(arc, trees);
  }

  // -1: no steps are left.
  int64_t missing() {
    int64_t most = 0;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
      if (!steps_->take()) return -1;
      most = std::max(most, wanted_ - flow_.run(source_, rank, wanted_));
    }
    return most;
  }

 private:
  uint32_t source_;
  std::vector<uint32_t> arcs_;
  MaxFlow flow_;
  uint32_t ranks_;
  int64_t wanted_;
  Steps* steps_;
};

// Removes one switch. What is split off a pair of links is taken out of both and given to the link
// that goes directly; as much as no rank misses.
class Removal {
 public:
  Removal(TreeCapacity* capacity, const Supply& supply, Steps* steps, uint32_t removed)
      : capacity_(*capacity), removed_(removed), checker_(*capacity, supply, steps, removed) {
    for (uint32_t other = 0; other < capacity_.vertex_count(); ++other) {
      in_.push_back(capacity_.at(other, removed));
      out_.push_back(capacity_.at(removed, other));
      total_ += out_.back();
    }
  }

  // In proportion, so that a switch becomes links between all its neighbours and trees stay low;
  // then what is left, first to those that got less than their share.
  bool run() {
    std::vector<Pair> pairs;
    for (uint32_t distance = 1; distance < capacity_.vertex_count(); ++distance) {
      for (uint32_t from = 0; from < capacity_.vertex_count(); ++from) {
        const uint32_t to = (from + distance) % capacity_.vertex_count();
        if (in_[from] == 0 || out_[to] == 0) continue;
        pairs.push_back({from, to, in_[from] * out_[to]});
        Pair& pair = pairs.back();
        const int64_t before = capacity_.at(from, removed_);
        if (!split(pair, std::max<int64_t>(1, pair.behind / total_))) return false;
        pair.behind -= total_ * (before - capacity_.at(from, removed_));
      }
    }
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](const Pair& a, const Pair& b) { return a.behind > b.behind; });
    for (const Pair& pair : pairs) {
      if (!split(pair, INT64_MAX)) return false;
    }
    return drop();
  }

 private:
  struct Pair {
    uint32_t from, to;
    int64_t behind;  // its share less what it got, times total_
  };

  bool split(const Pair& pair, int64_t most) {
    const int64_t amount =
        std::min({most, capacity_.at(pair.from, removed_), capacity_.at(removed_, pair.to)});
    if (amount == 0) return true;
    move(pair.from, pair.to, amount);
    const int64_t missing = checker_.missing();
    if (missing < 0) return false;
    // A cut loses what is split off, or nothing.
    move(pair.from, pair.to, -std::min(missing, amount));
    return true;
  }

  void move(uint32_t from, uint32_t to, int64_t amount) {
    const auto add = [&](uint32_t a, uint32_t b, int64_t trees) {
      capacity_.at(a, b) += trees;
      checker_.set(a, b, capacity_.at(a, b));
    };
    add(from, removed_, -amount);
    add(removed_, to, -amount);
    add(from, to, amount);
  }

  // What is left goes from a vertex and back to it.
  bool drop() {
    for (uint32_t other = 0; other < capacity_.vertex_count(); ++other) {
      capacity_.at(other, removed_) = 0;
      capacity_.at(removed_, other) = 0;
      checker_.set(other, removed_, 0);
      checker_.set(removed_, other, 0);
    }
    return checker_.missing() == 0;
  }

  TreeCapacity& capacity_;
  uint32_t removed_;
  Checker checker_;
  std::vector<int64_t> in_, out_;  // before
  int64_t total_ = 0;
};

}  // namespace

int64_t missing_trees(const TreeCapacity& capacity, const Supply& supply, Steps* steps) {
  return Checker(capacity, supply, steps, kNone).missing();
}

void balance_switches(TreeCapacity* capacity) {
  const uint32_t n = capacity->vertex_count();
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t vertex = capacity->rank_count(); vertex < n; ++vertex) {
      int64_t excess = 0;
      for (uint32_t other = 0; other < n; ++other) {
        excess += capacity->at(other, vertex) - capacity->at(vertex, other);
      }
      // One from each link in turn.
      for (uint32_t other = 0, idle = 0; excess != 0 && idle < n; other = (other + 1) % n, ++idle) {
        int64_t& trees = excess > 0 ? capacity->at(other, vertex) : capacity->at(vertex, other);
        if (trees == 0) continue;
        --trees;
        excess += excess > 0 ? -1 : 1;
        idle = 0;
        changed = true;
      }
    }
  }
}

bool remove_switches(TreeCapacity* capacity, const Supply& supply, Steps* steps) {
  std::vector<std::pair<size_t, uint32_t>> order;
  for (uint32_t vertex = capacity->rank_count(); vertex < capacity->vertex_count(); ++vertex) {
    size_t degree = 0;
    for (uint32_t other = 0; other < capacity->vertex_count(); ++other) {
      degree += capacity->at(other, vertex) > 0 ? 1 : 0;
    }
    order.emplace_back(degree, vertex);
  }
  std::sort(order.begin(), order.end());
  for (const auto& [degree, vertex] : order) {
    if (!Removal(capacity, supply, steps, vertex).run()) return false;
  }
  return true;
}

}  // namespace weir::graph
