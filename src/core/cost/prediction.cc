// SPDX-License-Identifier: Apache-2.0
#include "core/cost/prediction.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "core/base/check.h"
#include "core/cost/chunk_bytes.h"

namespace weir::cost {

namespace {

// Following an operation takes about 0.1 us. A choice has up to eight candidates and should take
// 20 ms for 128 ranks, 200 ms for 4,096.
constexpr uint64_t kOperationsMax = 30'000;
constexpr uint64_t kOperationsMaxPerRank = 60;
// Programs without long runs of alike steps are followed up to this many times more, or up to this
// many operations of each rank.
constexpr uint64_t kOperationsTolerated = 4;
constexpr uint64_t kLongOperationsMax = 800'000;
constexpr uint64_t kLongOperationsMaxPerRank = 1'000;
// Where cards are uneven and all ranks do the same, up to so many rounds, of so many times the
// operations.
constexpr uint64_t kUnevenRoundsMax = 8;
constexpr uint64_t kUnevenBudgets = 2;
// Of more than this, one round of slices is followed and not two.
constexpr uint64_t kTwoRoundsOperationsMax = 60'000;
constexpr uint64_t kTwoRoundsOperationsMaxPerRank = 75;
// Of a slice, of which all ranks are asked what they do: a small part of what is followed. (Not
// where steps are left out: what a rank does in a few of them it may not do in others.)
constexpr uint64_t kLoadsMax = 60'000;
constexpr uint64_t kOperandsMax = 1'000'000;  // of folds that are followed
// An access to a peer's memory takes a link or more, in the order of time: as long as so many
// operations.
constexpr uint64_t kOperationsOfAccess = 4;
constexpr uint64_t kPendingMax = 4'000'000;
// Of the work of a slice, since the last ones may be shorter.
constexpr double kSureShare = 0.99;
// A long program of alike steps takes about as long as its busiest core or card works. Others have
// phases that use different ones, and each idles in some: for less time where other slices use it.
constexpr double kTimeOfPhases = 1.5;
constexpr double kTimeOfFullPipelines = 1.05;

// Some ranks that are followed: others than the root, odd and even ones, and last the root.
constexpr Rank kSampled = 8;
std::vector<Rank> sampled_ranks(Rank followed, Rank root) {
  std::vector<Rank> ranks(std::min(followed, kSampled));
  std::iota(ranks.begin(), ranks.end(), 0u);
  if (followed <= kSampled) return ranks;
  for (Rank i = 0; i < kSampled; ++i) {
    const Rank rank = static_cast<Rank>(uint64_t{i} * followed / kSampled + i % 2);
    ranks[i] = rank == root ? (rank + 1) % followed : rank;
  }
  ranks.push_back(root);
  return ranks;
}

std::vector<StepRange> with(const std::vector<StepRange>& some, std::vector<StepRange> others) {
  others.insert(others.end(), some.begin(), some.end());
  std::sort(others.begin(), others.end(),
            [](const StepRange& a, const StepRange& b) { return a.begin < b.begin; });
  return others;
}

// Whether more ranks share one network card than another one.
bool has_uneven_cards(const Workload& work) {
  const RankLayout& layout = work.layout;
  if (layout.card_of_rank.empty()) return false;
  std::vector<uint32_t> ranks(work.problem.rank_count, 0);
  for (const uint32_t card : layout.card_of_rank) ++ranks[card];
  uint32_t most = 0;
  uint32_t least = work.problem.rank_count;
  for (const uint32_t card : layout.card_of_rank) {
    most = std::max(most, ranks[card]);
    least = std::min(least, ranks[card]);
  }
  return most > least;
}

// The first ranks of the network card that takes longest for a byte of each of its ranks: where
// hosts or cards differ, the others wait for it. Empty: each rank has a card, and all are alike.
std::vector<Rank> ranks_of_busiest_card(const RankLayout& layout, Rank rank_count, Rank followed) {
  constexpr size_t kMost = 16;
  std::vector<Rank> ranks;
  if (layout.host_of_rank.empty()) return ranks;
  std::vector<double> loads(rank_count, 0);
  double most = 0;
  uint32_t busiest = 0;
  for (Rank rank = 0; rank < rank_count; ++rank) {
    const uint32_t card = layout.card(rank);
    loads[card] += layout.wire_of_host.empty() ? 1 : layout.wire_of_host[layout.host(rank)];
    if (loads[card] <= most) continue;
    most = loads[card];
    busiest = card;
  }
  if (layout.wire_of_host.empty() && most <= 1) return ranks;
  for (Rank rank = 0; rank < followed && ranks.size() < kMost; ++rank) {
    if (layout.card(rank) == busiest) ranks.push_back(rank);
  }
  return ranks;
}

// How often the rank reads or writes memory of a peer.
uint64_t accesses_of(const sched::Program& program) {
  uint64_t count = 0;
  for (const sched::Op& op : program.ops) {
    const bool copies = op.code == sched::OpCode::kCopy;
    if (!copies && op.code != sched::OpCode::kReduce) continue;
    if (op.dst.rank != program.rank) ++count;
    if (copies && op.src.rank != program.rank) ++count;
  }
  for (const sched::Ref& operand : program.operands) count += operand.rank != program.rank ? 1 : 0;
  return count;
}

}  // namespace

Prediction::Prediction(const algo::Algorithm& algorithm, const Workload& work, const Table& table)
    : algorithm_(algorithm),
      work_(work),
      nodes_(work.problem),
      costs_(work, table),
      fold_(algorithm, work),
      slice_count_(ChunkBytes(work.problem.collective, work.problem.rank_count, work.bytes,
                              algorithm.shape(work.problem).chunk_count, work.slicing.slice_bytes)
                       .slice_count()),
      in_flight_(std::max(1u, work.slicing.in_flight)),
      budget_(kOperationsMax + kOperationsMaxPerRank * work.problem.rank_count),
      sampled_(sampled_ranks(fold_.followed(), work.problem.root)),
      busiest_(ranks_of_busiest_card(work.layout, work.problem.rank_count, fold_.followed())) {
  WEIR_CHECK(algorithm.supports(work.problem), "only algorithms that can be used are predicted");
  work_.problem.nodes = &nodes_;
  if (algorithm.uses_forest) {
    tree_links_.emplace(*work_.problem.forest, algo::forest_lane_count(work_.problem));
    work_.problem.tree_links = &*tree_links_;
  }
  count_operations();
  if (slice_count_ > 3 * in_flight_) rounds_ = per_slice_ * 5 * in_flight_ > budget_ ? 2 : 3;
  // Ranks of a card that few share run ahead of the others at first, round by round.
  const bool runs_ahead = algorithm.symmetry != algo::Symmetry::kNone && has_uneven_cards(work_);
  while (runs_ahead && rounds_ >= 3 && rounds_ < kUnevenRoundsMax &&
         slice_count_ > (rounds_ + 1) * in_flight_ &&
         per_slice_ * (2 * rounds_ + 1) * in_flight_ <= kUnevenBudgets * budget_) {
    ++rounds_;
  }
  // Those of `rounds_`, and of one less.
  const uint64_t slices = rounds_ == 0 ? slice_count_ : (2 * rounds_ - 1) * in_flight_;
  to_follow_ = per_slice_ * slices;
  if (to_follow_ > budget_) runs_ = alike_steps(algorithm_, work_.problem);
  if (!runs_.empty() && few_steps_operations() * slices > tolerated()) runs_.clear();
  if (runs_.empty()) {
    add_loads(&whole_);
  } else {
    leave_out_folds();
    ends_.left_out = with(folds_, left_out(runs_, false));
    more_.left_out = with(folds_, left_out(runs_, true));
    add_loads(&ends_);
    add_loads(&more_);
    add_steps_left_out();
  }
  bound_ns_ = kSureShare * whole_.busy_ns * static_cast<double>(slice_count_);
}

// Of a slice of the ranks that are followed, for both estimates of few steps. Other steps than
// those of runs may have most of the operations.
uint64_t Prediction::few_steps_operations() const {
  std::vector<sched::Op> ops;
  std::vector<sched::Ref> operands;
  sched::Builder builder(sampled_[0], &ops, &operands);
  for (const bool measured : {false, true}) {
    uint32_t step = 0;
    const auto keep_to = [&](uint32_t end) {
      for (; step < end; ++step) algorithm_.step(work_.problem, sampled_[0], step, builder);
    };
    for (const StepRange& range : left_out(runs_, measured)) {
      keep_to(range.begin);
      step = range.end;
    }
    keep_to(algorithm_.step_count(work_.problem, sampled_[0]));
  }
  return ops.size() * fold_.followed();
}

// Where every rank folds the contributions of all others at once, writing down the operands alone
// takes longer than to follow all else.
void Prediction::leave_out_folds() {
  if (slice_count_ > 1 || operands_per_slice_ <= kOperandsMax) return;
  const ChunkBytes chunks(work_.problem.collective, work_.problem.rank_count, work_.bytes,
                          algorithm_.shape(work_.problem).chunk_count, work_.slicing.slice_bytes);
  std::vector<sched::Op> ops;
  std::vector<sched::Ref> operands;
  // Steps between runs.
  uint32_t begin = 0;
  for (size_t i = 0; i <= runs_.size(); ++i) {
    const uint32_t end =
        i < runs_.size() ? runs_[i].begin : algorithm_.step_count(work_.problem, 0);
    for (uint32_t step = begin; step < end; ++step) {
      Picoseconds most = 0;
      bool only_folds = true;
      for (const Rank rank : {Rank{0}, work_.problem.rank_count / 2}) {
        ops.clear();
        operands.clear();
        sched::Builder builder(rank, &ops, &operands);
        algorithm_.step(work_.problem, rank, step, builder);
        only_folds = only_folds && ops.size() == 1 && ops[0].code == sched::OpCode::kReduce &&
                     ops[0].operand_count == work_.problem.rank_count;
        if (!only_folds) break;
        most = std::max(
            most, costs_.reduce(rank, ops[0].dst, operands, chunks.bytes_max() * ops[0].count));
      }
      if (!only_folds) continue;
      folds_.push_back({step, step + 1});
      folds_ns_ += static_cast<double>(most) / 1000;
    }
    if (i < runs_.size()) begin = runs_[i].end;
  }
}

// Of the ranks that are followed, from a few of them.
void Prediction::count_operations() {
  const Rank followed = fold_.followed();
  struct Count {
    uint64_t operations = 0;
    uint64_t operands = 0;
  };
  const auto of = [&](std::span<const Rank> ranks) {
    Count count;
    for (const Rank rank : ranks) {
      const sched::Program program = algo::compile(algorithm_, work_.problem, rank);
      count.operations += program.ops.size();
      if (work_.layout.memory_ways != nullptr) {
        count.operations += kOperationsOfAccess * accesses_of(program);
      }
      count.operands += program.operands.size();
    }
    return count;
  };
  if (followed < work_.problem.rank_count) {  // those of one rank are those of all
    const Count one = of(std::span(sampled_).first(1));
    per_slice_ = one.operations * followed;
    operands_per_slice_ = one.operands * followed;
    return;
  }
  if (sampled_.size() == followed) {
    const Count all = of(sampled_);
    per_slice_ = all.operations;
    operands_per_slice_ = all.operands;
    return;
  }
  // The root is like no other.
  const Count root = of(std::span(sampled_).last(1));
  const Count others = of(std::span(sampled_).first(sampled_.size() - 1));
  per_slice_ = root.operations + others.operations * (followed - 1) / kSampled;
  operands_per_slice_ = root.operands + others.operands * (followed - 1) / kSampled;
}

// Where programs are very long, of some ranks.
void Prediction::add_loads(ProgramPart* to) const {
  Part part;
  part.rank_count = fold_.followed();
  part.slices_max = 1;
  part.left_out = to->left_out;
  OpStream stream(algorithm_, work_.problem, work_.bytes, work_.slicing, costs_, kPendingMax, part);
  std::vector<Rank> ranks;
  const uint64_t most = to->left_out.empty() ? std::max(kLoadsMax, budget_) : budget_;
  if (per_slice_ + operands_per_slice_ <= most) {
    ranks.resize(fold_.followed());
    std::iota(ranks.begin(), ranks.end(), 0u);
  } else {
    ranks = sampled_;
    // The stream gives the operations of a rank once.
    for (const Rank rank : busiest_) {
      if (std::find(sampled_.begin(), sampled_.end(), rank) == sampled_.end()) {
        ranks.push_back(rank);
      }
    }
  }
  Loads loads = loads_of(&stream, ranks, work_, costs_);
  if (!stream.status().ok()) return;
  // Those that were not asked take the links, too.
  if (ranks.size() < fold_.followed() && work_.layout.memory_ways != nullptr) {
    for (Picoseconds& link : loads.links) link = link * fold_.followed() / ranks.size();
  }
  to->busy_ns = static_cast<double>(loads.busiest()) / 1000;
  to->loads = std::move(loads);
}

// Each core and each card goes on in the steps that are left out as in those that are measured.
void Prediction::add_steps_left_out() {
  const double times = steps_left_out();
  const auto add = [&](const std::vector<Picoseconds>& ends, const std::vector<Picoseconds>& more) {
    std::vector<Picoseconds> whole(more);
    for (size_t i = 0; i < std::min(ends.size(), more.size()); ++i) {
      const double left = more[i] > ends[i] ? static_cast<double>(more[i] - ends[i]) * times : 0;
      whole[i] += static_cast<Picoseconds>(left);
      const double busy_ns = static_cast<double>(whole[i]) / 1000;
      if (busy_ns <= whole_.busy_ns) continue;
      whole_.busy_ns = busy_ns;
      left_ns_ = left / 1000;
    }
    return whole;
  };
  whole_.loads.cores = add(ends_.loads.cores, more_.loads.cores);
  whole_.loads.cards_out = add(ends_.loads.cards_out, more_.loads.cards_out);
  whole_.loads.cards_in = add(ends_.loads.cards_in, more_.loads.cards_in);
  whole_.loads.links = add(ends_.loads.links, more_.loads.links);
}

double Prediction::steps_left_out() const {
  const auto steps_of = [](const std::vector<StepRange>& ranges) {
    uint64_t steps = 0;
    for (const StepRange& range : ranges) steps += range.end - range.begin;
    return steps;
  };
  const uint64_t left = steps_of(more_.left_out);
  return static_cast<double>(left) / static_cast<double>(steps_of(ends_.left_out) - left);
}

uint64_t Prediction::tolerated() const {
  const uint64_t by_ranks = kLongOperationsMaxPerRank * work_.problem.rank_count;
  return std::max(kOperationsTolerated * budget_, std::min(kLongOperationsMax, by_ranks));
}

double Prediction::expected_ns() const {
  if (!is_long() || !runs_.empty()) return bound_ns();
  return bound_ns() * (rounds_ == 0 ? kTimeOfPhases : kTimeOfFullPipelines);
}

Predicted Prediction::made(double ns_max) {
  if (bound_ns() > ns_max) return {bound_ns(), true, operations_};
  const double limit_ns = ns_max - costs_.call_ns();
  Estimate estimate;
  if (!runs_.empty()) {
    estimate = of_few_steps(limit_ns - folds_ns_);
    if (estimate.ns >= 0) estimate.ns += folds_ns_;
  }
  uint64_t rounds = rounds_;
  uint64_t to_follow = to_follow_;
  if (estimate.ns < 0 && rounds == 2 &&
      to_follow > std::max(kTwoRoundsOperationsMax,
                           kTwoRoundsOperationsMaxPerRank * work_.problem.rank_count)) {
    rounds = 1;
    to_follow = per_slice_ * in_flight_;
  }
  if (estimate.ns < 0 && to_follow <= tolerated()) estimate = followed(rounds, whole_, limit_ns);
  if (estimate.ns < 0) estimate.ns = std::max(in_lockstep(), bound_ns_);
  if (work_.layout.memory_ways != nullptr) estimate.ns = std::max(estimate.ns, bound_ns_);
  const double ns = costs_.call_ns() + estimate.ns;
  return {ns, estimate.at_least || ns > ns_max, operations_};
}

// Once the pipeline of slices is full, each round of them costs the same, and no less than it
// occupies a core or a card. `rounds`: that are followed, and one less; 0: all slices.
Prediction::Estimate Prediction::followed(uint64_t rounds, const ProgramPart& of, double limit_ns) {
  const uint64_t first = rounds == 0 ? slice_count_ : rounds * in_flight_;
  const auto rest = static_cast<double>(slice_count_ - first);
  const double rest_ns = kSureShare * of.busy_ns * rest;  // of the rest, at least
  Part part;
  part.left_out = of.left_out;
  const auto limit_of = [&](uint64_t slices) {
    return Limit{limit_ns - rest_ns, &of.loads, kSureShare * static_cast<double>(slices)};
  };
  const auto follow = [&](uint64_t slices) {
    part.slices_max = slices;
    return critical_path(algorithm_, work_, costs_, fold_, part, limit_of(slices));
  };
  PathTime before;
  std::optional<PathInParts> path;
  // After one round alone only the busiest core or card counts. Where slices follow each other on
  // the same lanes, a slice costs more than that and less than its longest lane: simulated, 0.2 to
  // 0.8 of the way between them.
  if (rounds > 1) {
    const uint64_t slices = first - in_flight_;
    // Where ranks differ, some of them are ahead by whole slices: little of both is the same.
    if (algorithm_.symmetry != algo::Symmetry::kNone) {
      part.slices_max = first;
      path.emplace(algorithm_, work_, costs_, fold_, part);
    }
    before = path ? path->first(slices, limit_of(slices)) : follow(slices);
    operations_ += before.operations;
    if (before.ns < 0) return {};
    const double busy_ns = before.busy_ns / static_cast<double>(slices);
    const double least_ns = before.ns + (before.at_least ? rest_ns : busy_ns * rest);
    if (before.at_least || least_ns > limit_ns) return {least_ns, true, 0};
  }
  const PathTime time = path ? path->all(limit_of(first)) : follow(first);
  operations_ += time.operations;
  if (time.at_least) return {time.ns + rest_ns, true, 0};
  if (rounds == 0 || time.ns < 0) return {time.ns, false, time.busy_ns};
  const double busy_ns = time.busy_ns / static_cast<double>(first);  // of a slice
  const double lane_ns = in_flight_ == 1 ? (busy_ns + time.lane_ns) / 2 : 0;
  const double more_ns = rounds > 1 ? time.ns - before.ns : lane_ns;
  const double slice_ns = std::max(more_ns / static_cast<double>(in_flight_), busy_ns);
  return {time.ns + slice_ns * rest, false, busy_ns * static_cast<double>(slice_count_)};
}

// Negative: the programs do not end.
Prediction::Estimate Prediction::of_few_steps(double limit_ns) {
  const double times = steps_left_out();
  // Of the others, at least.
  const double left_ns = kSureShare * left_ns_ * static_cast<double>(slice_count_);
  Estimate more = followed(rounds_, more_, limit_ns - left_ns);
  if (more.ns < 0) return more;
  if (more.at_least) {
    more.ns += left_ns;
    return more;
  }
  const Estimate ends = followed(rounds_, ends_, std::numeric_limits<double>::infinity());
  if (ends.ns < 0) return {};
  return {std::max({more.ns + (more.ns - ends.ns) * times, more.ns + left_ns, bound_ns_,
                    more.busy_ns + (more.busy_ns - ends.busy_ns) * times})};
}

double Prediction::in_lockstep() const {
  const Rank n = work_.problem.rank_count;
  const uint64_t slices = std::min(slice_count_, 2 * in_flight_);
  double most = 0;
  std::vector<Rank> ranks = {0, 1, n / 2, n - 1, work_.problem.root};
  if (!busiest_.empty()) ranks.push_back(busiest_[0]);
  for (const Rank rank : ranks) {
    if (rank >= n) continue;
    most = std::max(most, lockstep_ns(algorithm_, work_, costs_, rank, slices));
  }
  return most * static_cast<double>(slice_count_) / static_cast<double>(slices);
}

}  // namespace weir::cost
