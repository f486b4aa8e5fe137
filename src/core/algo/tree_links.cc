// SPDX-License-Identifier: Apache-2.0
#include "core/algo/tree_links.h"

#include <algorithm>
#include <cstdint>

#include "core/base/check.h"

namespace weir::algo {
namespace {

using Own = TreeLinks::Own;

// Of each link: the longest way from its lower end to a leaf.
std::vector<uint32_t> heights_of(const graph::Tree& tree, std::vector<uint32_t>* of_rank) {
  std::fill(of_rank->begin(), of_rank->end(), 0);
  std::vector<uint32_t> heights(tree.links.size());
  // A rank's link comes before those of its children.
  for (size_t i = tree.links.size(); i-- > 0;) {
    const graph::TreeLink& link = tree.links[i];
    heights[i] = (*of_rank)[link.to];
    uint32_t& above = (*of_rank)[link.from];
    above = std::max(above, heights[i] + 1);
  }
  return heights;
}

// A message of one rank, and its place: numbers with their widths in bits.
struct Message {
  uint64_t place = 0;
  Own own;
  uint32_t stage = 0;
};
constexpr uint32_t kRankBits = 20;  // also of stages
constexpr uint32_t kTreeBits = 23;  // eight for each rank; also of what goes between two ranks

// `messages`: of a rank in one lane.
void sort_into(std::vector<Message>* messages, Rank rank, Rank rank_count, bool folds, Own* to) {
  const auto sort = [&] {
    std::sort(messages->begin(), messages->end(),
              [](const Message& a, const Message& b) { return a.place < b.place; });
  };
  for (Message& message : *messages) {
    const graph::TreeLink& link = *message.own.link;
    const bool receives = (folds ? link.from : link.to) == rank;
    const Rank peer = link.from == rank ? link.to : link.from;
    const Rank behind = peer > rank ? peer - rank : peer + rank_count - rank;
    const Rank away = receives ? rank_count - behind : behind;
    message.place = ((uint64_t{message.stage} << 1 | uint64_t{receives}) << kRankBits | away)
                        << kTreeBits |
                    message.own.tree;
  }
  sort();
  // Those of a stage between the same ranks follow each other, and have numbers in place of trees.
  constexpr uint64_t kPeer = (uint64_t{1} << (kRankBits + 1)) - 1;
  uint64_t pair = ~uint64_t{0};
  uint64_t number = 0;
  bool has_numbers = false;
  for (Message& message : *messages) {
    const uint64_t its_pair = message.place >> kTreeBits;
    number = its_pair == pair ? number + 1 : 0;
    has_numbers = has_numbers || number > 0;
    pair = its_pair;
    message.place =
        (uint64_t{message.stage} << kTreeBits | number) << (kRankBits + 1) | (pair & kPeer);
  }
  if (has_numbers) sort();
  for (const Message& message : *messages) *to++ = message.own;
}
static_assert(kRankBits + 1 + kRankBits + kTreeBits == 64);

}  // namespace

TreeLinks::TreeLinks(const graph::Forest& forest, uint32_t lane_count, Rank first_rank,
                     Rank rank_count)
    : first_rank_(first_rank), rank_count_(rank_count) {
  WEIR_CHECK(forest.rank_count < (1u << kRankBits) && forest.trees.size() < (1u << kTreeBits),
             "forests have at most so many ranks and trees");
  std::vector<std::vector<Message>> fold(size_t{lane_count} * rank_count);
  std::vector<uint32_t> of_rank(forest.rank_count);
  for (uint32_t i = 0; i < forest.trees.size(); ++i) {
    const graph::Tree& tree = forest.trees[i];
    const std::vector<uint32_t> heights = heights_of(tree, &of_rank);
    for (size_t k = 0; k < tree.links.size(); ++k) {
      for (const Rank rank : {tree.links[k].from, tree.links[k].to}) {
        if (!has(rank)) continue;
        fold[size_t{i % lane_count} * rank_count + (rank - first_rank)].push_back(
            {.place = 0, .own = {&tree.links[k], i}, .stage = heights[k]});
      }
    }
  }
  begin_.assign(1, 0);
  for (const auto& messages : fold) begin_.push_back(begin_.back() + messages.size());
  fold_.resize(begin_.back());
  spread_.resize(begin_.back());
  for (size_t at = 0; at < fold.size(); ++at) {
    const Rank rank = first_rank + static_cast<Rank>(at % rank_count);
    std::vector<Message> spread(fold[at]);
    for (Message& message : spread) message.stage = message.own.link->depth;
    sort_into(&fold[at], rank, forest.rank_count, true, fold_.data() + begin_[at]);
    sort_into(&spread, rank, forest.rank_count, false, spread_.data() + begin_[at]);
  }
}

}  // namespace weir::algo
