// SPDX-License-Identifier: Apache-2.0
#include "core/sim/diagnosis.h"

#include <algorithm>

namespace weir::sim {

namespace {

constexpr uint32_t kNobody = 0xffffffffu;

class Search {
 public:
  Search(const std::vector<Blocked>& blocked, Rank rank_count)
      : blocked_(blocked),
        blamed_(rank_count, kNobody),
        next_(rank_count, kNobody),
        is_blocked_(rank_count, false),
        waiters_(rank_count) {
    for (const Blocked& lane : blocked) {
      waiters_[lane.waits_for].push_back(lane.rank);
      if (!is_blocked_[lane.rank]) next_[lane.rank] = lane.waits_for;
      is_blocked_[lane.rank] = true;
    }
  }

  // Breadth-first search against the direction of the waits, from all `roots` at once.
  void blame(const std::vector<Rank>& roots, Culprit::Kind kind) {
    std::vector<Rank> frontier;
    for (Rank root : roots) {
      if (blamed_[root] != kNobody) continue;
      blamed_[root] = static_cast<uint32_t>(culprits_.size());
      culprits_.push_back({{root}, kind, 0});
      frontier.push_back(root);
    }
    spread(frontier);
  }

  void blame_finished() {
    std::vector<Rank> finished;
    for (const Blocked& lane : blocked_) {
      const Rank target = lane.waits_for;
      if (!is_blocked_[target] && blamed_[target] == kNobody && blamed_[lane.rank] == kNobody) {
        finished.push_back(target);
      }
    }
    std::sort(finished.begin(), finished.end());
    finished.erase(std::unique(finished.begin(), finished.end()), finished.end());
    blame(finished, Culprit::Kind::kFinished);
  }

  void blame_cycles() {
    std::vector<uint32_t> visit(blamed_.size(), kNobody);
    for (const Blocked& lane : blocked_) {
      Rank at = lane.rank;
      while (blamed_[at] == kNobody && visit[at] == kNobody) {
        visit[at] = lane.rank;
        at = next_[at];
      }
      if (blamed_[at] != kNobody || visit[at] != lane.rank) continue;
      Culprit cycle{{}, Culprit::Kind::kCycle, 0};
      const uint32_t index = static_cast<uint32_t>(culprits_.size());
      for (Rank member = at; blamed_[member] == kNobody; member = next_[member]) {
        cycle.ranks.push_back(member);
        blamed_[member] = index;
      }
      std::vector<Rank> frontier = cycle.ranks;
      cycle.victim_count = cycle.ranks.size();
      culprits_.push_back(std::move(cycle));
      spread(frontier);
    }
  }

  std::vector<Culprit> take() {
    std::erase_if(culprits_, [](const Culprit& c) { return c.victim_count == 0; });
    std::stable_sort(culprits_.begin(), culprits_.end(), [](const Culprit& a, const Culprit& b) {
      return a.victim_count > b.victim_count;
    });
    return std::move(culprits_);
  }

 private:
  void spread(std::vector<Rank>& frontier) {
    for (size_t i = 0; i < frontier.size(); ++i) {
      const uint32_t culprit = blamed_[frontier[i]];
      for (Rank waiter : waiters_[frontier[i]]) {
        if (blamed_[waiter] != kNobody) continue;
        blamed_[waiter] = culprit;
        ++culprits_[culprit].victim_count;
        frontier.push_back(waiter);
      }
    }
  }

  const std::vector<Blocked>& blocked_;
  std::vector<uint32_t> blamed_;  // index of the culprit
  std::vector<uint32_t> next_;    // the rank that the first blocked lane waits for
  std::vector<bool> is_blocked_;
  std::vector<std::vector<Rank>> waiters_;
  std::vector<Culprit> culprits_;
};

}  // namespace

std::vector<Culprit> find_culprits(const std::vector<Blocked>& blocked,
                                   const std::vector<Rank>& dead, Rank rank_count) {
  Search search(blocked, rank_count);
  search.blame(dead, Culprit::Kind::kDead);
  search.blame_finished();
  search.blame_cycles();
  return search.take();
}

}  // namespace weir::sim
