// SPDX-License-Identifier: Apache-2.0
#include "core/sched/verify.h"

#include <fmt/format.h>

#include <vector>

#include "core/base/check.h"
#include "core/sched/executor.h"

namespace weir::sched {
namespace {

bool is_reduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter ||
         collective == Collective::kReduce;
}

// The rank whose input a chunk of a collective that only moves data comes from.
Rank origin_of(const Program& head, uint32_t chunk) {
  const uint32_t g = chunks_per_block(head.collective, head.rank_count, head.shape.chunk_count);
  switch (head.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      return chunk / g;
    case Collective::kAllToAll:
      return chunk / g / head.rank_count;
    default:
      return head.root;
  }
}

// Compares the final contents of the Outputs with the result that the collective requires.
class ResultChecker {
 public:
  ResultChecker(std::span<const Program> programs, const Layout& layout, const Executor& executor)
      : programs_(programs), layout_(layout), executor_(executor), head_(programs[0]) {
    const uint32_t leaf_count = head_.shape.leaf_count;
    if (leaf_count > 0) {
      fold_of_all_ = rounded(node_expression(leaf_count, {0, leaf_root_level(leaf_count)}, 0));
      return;
    }
    FoldBuilder fold;
    for (Rank rank = 0; rank < head_.rank_count; ++rank) fold.add(leaf(rank, 0));
    fold_of_all_ = fold.result();
  }

  // Sets the verdict's flaw, or rank_order and result_hash.
  void check(Verdict* verdict) {
    const bool reduces = is_reduction(head_.collective);
    verdict->rank_order = reduces;
    uint64_t hash = 0;
    first_rank_.assign(reduces ? head_.shape.chunk_count : 0, kNoRank);
    for (Rank rank = 0; rank < head_.rank_count; ++rank) {
      const uint32_t g =
          chunks_per_block(head_.collective, head_.rank_count, head_.shape.chunk_count);
      const bool is_column = head_.collective == Collective::kAllToAll;
      // all_to_all: the n blocks of column `rank`; otherwise find() tells which chunks of the grid.
      const uint32_t candidates = is_column ? head_.rank_count * g : head_.shape.chunk_count;
      for (uint32_t i = 0; i < candidates; ++i) {
        const uint32_t chunk = is_column ? (i / g * head_.rank_count + rank) * g + i % g : i;
        const Layout::Place place = layout_.find({chunk, rank, Space::kOutput}, 1);
        if (place == Layout::kNowhere) continue;
        const Expression& value = executor_.at(place);
        verdict->flaw = check_value(rank, chunk, place, value);
        if (!verdict->flaw.found() && reduces) verdict->flaw = check_order(rank, chunk, value);
        if (verdict->flaw.found()) return;
        if (reduces && value.order != fold_of_all_.order) verdict->rank_order = false;
        hash = mix64(hash ^ value.order) + (mix64(place) ^ chunk);
      }
    }
    verdict->result_hash = hash;
  }

 private:
  static constexpr Rank kNoRank = 0xffffffffu;

  Flaw check_value(Rank rank, uint32_t chunk, Layout::Place place, const Expression& value) const {
    Expression expected =
        is_reduction(head_.collective) ? fold_of_all_ : leaf(origin_of(head_, chunk), chunk);
    if (value.contributors == expected.contributors && value.chunk == chunk) return {};
    std::string what;
    if (value.holds_nothing()) {
      what = "holds nothing";
    } else if (value.chunk != chunk) {
      what = fmt::format("holds chunk {}", value.chunk);
    } else if (!is_reduction(head_.collective)) {
      what = fmt::format("does not hold the data of rank {}", origin_of(head_, chunk));
    } else {
      what = fmt::format("holds {} contributions and should hold {}{}", value.count, expected.count,
                         explain(value.contributors, expected.contributors));
    }
    return {
        Flaw::Kind::kValue, rank, Flaw::kNoOp,
        fmt::format("rank {}: out[{}] {}; {}", rank, chunk, what, executor_.last_writer(place))};
  }

  // Names the one or two ranks that explain the difference, if so few do.
  std::string explain(RankSetHash got, RankSetHash expected) const {
    if (head_.shape.leaf_count > 0) return " leaves";
    for (Rank rank = 0; rank < head_.rank_count; ++rank) {
      if (expected - got == key_of(rank)) return fmt::format(": that of rank {} is missing", rank);
      if (got - expected == key_of(rank)) return fmt::format(": that of rank {} is double", rank);
    }
    constexpr Rank kPairsMax = 512;
    for (Rank a = 0; a < head_.rank_count && head_.rank_count <= kPairsMax; ++a) {
      for (Rank b = 0; b < head_.rank_count; ++b) {
        if (b != a && got - expected == key_of(a) - key_of(b)) {
          return fmt::format(": that of rank {} is double and that of rank {} is missing", a, b);
        }
        if (b > a && expected - got == key_of(a) + key_of(b)) {
          return fmt::format(": those of ranks {} and {} are missing", a, b);
        }
        if (b > a && got - expected == key_of(a) + key_of(b)) {
          return fmt::format(": those of ranks {} and {} are double", a, b);
        }
      }
    }
    return "";
  }

  Flaw check_order(Rank rank, uint32_t chunk, const Expression& value) {
    if (head_.shape.leaf_count > 0) {
      if (value.order == fold_of_all_.order) return {};
      return {Flaw::Kind::kOrder, rank, Flaw::kNoOp,
              fmt::format("rank {}: out[{}] is not the tree over {} leaves, rounded once; {}", rank,
                          chunk, head_.shape.leaf_count,
                          executor_.last_writer(layout_.find({chunk, rank, Space::kOutput}, 1)))};
    }
    if (first_rank_[chunk] == kNoRank) {
      first_rank_[chunk] = rank;
      return {};
    }
    const Rank first = first_rank_[chunk];
    const Layout::Place place = layout_.find({chunk, first, Space::kOutput}, 1);
    if (executor_.at(place).order == value.order) return {};
    return {Flaw::Kind::kOrder, rank, Flaw::kNoOp,
            fmt::format("out[{}] is folded in another order on rank {} ({}) than on rank {} ({}): "
                        "their bits may differ",
                        chunk, rank,
                        executor_.last_writer(layout_.find({chunk, rank, Space::kOutput}, 1)),
                        first, executor_.last_writer(place))};
  }

  std::span<const Program> programs_;
  const Layout& layout_;
  const Executor& executor_;
  const Program& head_;
  Expression fold_of_all_;
  std::vector<Rank> first_rank_;  // by chunk: one rank that receives it
};

}  // namespace

Verdict verify(std::span<const Program> programs, const VerifyOptions& options) {
  WEIR_CHECK(options.credit >= 1, "a sender needs a credit of at least one");
  Verdict verdict;
  verdict.flaw = validate_heads(programs);
  if (!verdict.ok()) return verdict;
  const Program& head = programs[0];
  const Layout layout(head.collective, head.rank_count, head.root, head.shape,
                      options.access.in_place);
  for (const Program& program : programs) {
    verdict.op_count += program.ops.size();
    verdict.flaw = validate_ops(program, layout, options.access);
    if (!verdict.ok()) return verdict;
  }

  Executor executor(programs, layout, 1);
  if (options.moved_chunks != nullptr) executor.note_moved_chunks(options.moved_chunks);
  verdict.flaw = executor.run();
  verdict.message_count = executor.message_count();
  if (verdict.flaw.kind == Flaw::Kind::kDeadlock && options.credit > 1) {
    Executor with_more(programs, layout, options.credit);
    verdict.flaw.text +=
        with_more.run().kind == Flaw::Kind::kDeadlock
            ? fmt::format(" (credit {} does not help)", options.credit)
            : fmt::format(" (credit {} is enough, but programs must not rely on it)",
                          options.credit);
  }
  if (verdict.ok()) ResultChecker(programs, layout, executor).check(&verdict);
  if (verdict.ok() && options.keeps_nothing && verdict.message_count > 0) {
    verdict.flaw = Executor(programs, layout, Executor::kKeepsNothing).run();
  }
  return verdict;
}

}  // namespace weir::sched
