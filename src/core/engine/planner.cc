// SPDX-License-Identifier: Apache-2.0
#include "core/engine/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdio>

#include "core/algo/collective_names.h"
#include "core/algo/nodes.h"
#include "core/engine/chunk_map.h"
#include "core/engine/line_run.h"
#include "core/engine/slicing.h"
#include "core/engine/transport_lanes.h"
#include "core/sched/validate.h"

namespace weir::engine {

static_assert(kWindowBytesMin == 16 * 1024 && kRootedWindowBytesMin == 256 * 1024,
              "cost::kNeedsUserWindows names these sizes");

const char* name_of(Protocol protocol) {
  switch (protocol) {
    case Protocol::kLine:
      return "line";
    case Protocol::kSlots:
      return "slots";
    case Protocol::kWindows:
      return "windows";
    case Protocol::kLanes:
      return "messages";
  }
  return "?";
}

namespace {

algo::BlockLengths lengths_of(const Call& call) {
  return call.block_counts == nullptr ? algo::BlockLengths::kEqual
                                      : algo::lengths_of_variant(call.collective);
}

// In WEIR_ALGORITHM, after the name of a collective: of a fold over leaves.
constexpr std::string_view kLeavesSuffix = "_leaves";

// The bytes of this rank's largest buffer. They are the same on all ranks, except for an
// all_to_all_v without an agreed block_count_max.
uint64_t work_bytes(const Call& call, Rank rank_count) {
  const uint64_t element = input_element_bytes(call);
  if (call.recv_counts != nullptr && call.block_count_max > 0) {
    return call.block_count_max * element * rank_count;
  }
  if (call.recv_counts != nullptr) {
    uint64_t sent = 0;
    uint64_t received = 0;
    for (Rank i = 0; i < rank_count; ++i) {
      sent += call.block_counts[i];
      received += call.recv_counts[i];
    }
    return std::max(sent, received) * element;
  }
  const uint64_t one = call.count * element;
  switch (call.collective) {
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return call.block_counts != nullptr ? one : one * rank_count;
    case Collective::kAllToAll:
    case Collective::kGather:
    case Collective::kScatter:
      return one * rank_count;
    default:
      return one;
  }
}

// For programs of messages. A rank that does not know all lengths cannot know how many slices a
// peer's block has: blocks stay whole.
uint64_t slice_bytes_of_messages(const algo::Problem& problem, double wire_ns_per_byte) {
  return problem.lengths == algo::BlockLengths::kKnownToEnds
             ? 0
             : message_slice_bytes(problem.collective, problem.rank_count, wire_ns_per_byte);
}

// Of the slowest network card; 0: there is one host.
double slowest_wire(const PlannerOptions& options) {
  if (options.node_of_rank.empty()) return 0;
  if (options.wire_of_node.empty()) {
    return options.table.times.link(cost::RankLayout().network).wire_ns_per_byte;
  }
  return *std::max_element(options.wire_of_node.begin(), options.wire_of_node.end());
}

std::array<const size_t*, 4> arrays_of(const Call& call) {
  return {call.block_counts, call.block_displacements, call.recv_counts, call.recv_displacements};
}

}  // namespace

Planner::Planner(const Context& context, PlannerOptions options)
    : context_(context), options_(std::move(options)), slowest_wire_(slowest_wire(options_)) {
  entries_.resize(kEntries);
  algorithms_.assign(options_.algorithms.begin(), options_.algorithms.end());
  for (const auto& program : options_.programs) algorithms_.push_back(&program->algorithm());
  is_watched_ = options_.explain || options_.learns;
  const std::vector<uint32_t>& hosts = options_.node_of_rank;
  if (!hosts.empty()) {
    const uint32_t host_count = *std::max_element(hosts.begin(), hosts.end()) + 1;
    if (graph::crossings(hosts) > host_count) ring_by_host_ = graph::ring_by_host(hosts);
  }
  note_windows();
}

void Planner::note_windows() {
  for (const algo::Algorithm* algorithm : algorithms_) {
    if (algorithm->imported != nullptr) {
      has_programs_[static_cast<size_t>(algorithm->collective)] = true;
    }
    if (!algorithm->needs_user_windows) continue;
    uses_windows_[static_cast<size_t>(algorithm->collective)] = true;
  }
}

void Planner::add(std::shared_ptr<const algo::Imported> program, bool preferred) {
  algorithms_.push_back(&program->algorithm());
  if (preferred) preferred_.push_back(&program->algorithm());
  options_.programs.push_back(std::move(program));
  note_windows();
  latest_ = nullptr;
  for (Entry& entry : entries_) {
    if (entry.plan != nullptr) retired_.push_back(std::move(entry.plan));
    if (entry.explored != nullptr) {
      for (auto& plan : entry.explored->plans) retired_.push_back(std::move(plan));
    }
    entry = {};
  }
  if (uneven_explored_ != nullptr) retired_.push_back(std::move(uneven_explored_));
  if (uneven_ != nullptr) retired_.push_back(std::move(uneven_));
  uneven_choices_.clear();
  next_uneven_choice_ = 0;
}

Status Planner::check_runnable(const algo::Imported& program) const {
  const algo::Algorithm& algorithm = program.algorithm();
  const weir_transport_functions_t& transport = *context_.transport;
  if (!algo::uses_messages(algorithm)) {
    if (context_.mapped()) return {};
    return Status(Code::kUnsupported,
                  fmt::format("'{}' works in memory of peers, which transport '{}' does not map; "
                              "add programs of messages",
                              algorithm.name, transport.name));
  }
  const uint32_t lanes = program.program(0).shape.lane_count;
  if (lanes <= program_lanes(transport.caps)) return {};
  return Status(Code::kUnsupported,
                fmt::format("'{}' has {} lanes, and transport '{}' has {} for programs; use fewer",
                            algorithm.name, lanes, transport.name, program_lanes(transport.caps)));
}

Planner::Entry& Planner::entry_of(const PlanKey& key) {
  const uint64_t flags =
      uint64_t{key.in_place} | uint64_t{key.windows} << 1 | uint64_t{key.told} << 2;
  // Every bit of the key reaches the index: roots and flags differ in single ones.
  const uint64_t hash = spread(key.what ^ spread(key.count ^ flags << 61));
  Entry* const set = &entries_[(hash >> 32) % (kEntries / kWays) * kWays];
  Entry* oldest = set;
  for (Entry* entry = set; entry != set + kWays; ++entry) {
    if (entry->plan != nullptr && entry->key == key) return *entry;
    if (entry->used < oldest->used) oldest = entry;
  }
  return *oldest;
}

Result<const Plan*> Planner::plan_for(const Call& call, bool windows) {
  if (call.block_counts != nullptr) return plan_for_uneven(call, windows);
  const PlanKey key = key_of(call, windows);
  Entry& entry = entry_of(key);
  if (entry.plan == nullptr || entry.key != key) {
    auto chosen = choose(call, windows, work_bytes(call, context_.rank_count));
    if (!chosen.ok()) return chosen.status();
    auto made = bind(chosen.value(), call);
    if (!made.ok()) return made.status();
    if (latest_ == entry.plan.get()) latest_ = nullptr;
    entry.plan = made.take();
    entry.key = key;
    entry.explored = nullptr;
    if (!chosen.value().explored.empty()) {
      entry.explored = std::make_unique<Explored>();
      entry.explored->algorithms = std::move(chosen.value().explored);
      entry.explored->plans.resize(entry.explored->algorithms.size());
    }
  }
  entry.used = ++use_count_;
  latest_key_ = key;
  latest_ = entry.plan.get();
  return entry.plan.get();
}

Result<const Plan*> Planner::plan_to_explore(const Call& call, bool windows, uint64_t sequence) {
  auto chosen = plan_for(call, windows);
  if (!chosen.ok()) return chosen;
  const uint64_t turn = spread(sequence + options_.learn_seed) / kExploredEvery;
  if (call.block_counts != nullptr) {
    const UnevenChoice* known = uneven_choice_of(uneven_key_of(call, windows));
    if (known == nullptr || known->choice.explored.empty()) return chosen;
    const auto& algorithms = known->choice.explored;
    const algo::Algorithm* algorithm = algorithms[turn % algorithms.size()];
    if (algorithm == chosen.value()->algorithm) return chosen;
    auto made = bind(instead(known->choice, algorithm, call, windows), call);
    if (!made.ok()) return made.status();
    uneven_explored_ = made.take();
    return uneven_explored_.get();
  }
  Entry& entry = entry_of(key_of(call, windows));
  if (entry.explored == nullptr) return chosen;
  const size_t index = turn % entry.explored->algorithms.size();
  const algo::Algorithm* algorithm = entry.explored->algorithms[index];
  if (algorithm == entry.plan->algorithm) return chosen;
  std::unique_ptr<Plan>& plan = entry.explored->plans[index];
  if (plan == nullptr) {
    Choice choice;
    choice.record = entry.plan->decision;
    auto made = bind(instead(choice, algorithm, call, windows), call);
    if (!made.ok()) return made.status();
    plan = made.take();
  }
  return plan.get();
}

PlanKey Planner::uneven_key_of(const Call& call, bool windows) const {
  constexpr uint64_t kBytesMax = uint64_t{1} << 62;
  const uint64_t bytes = std::bit_ceil(std::min(work_bytes(call, context_.rank_count), kBytesMax));
  return {pack_what(call), bytes, call.in_place, windows, call.told};
}

Planner::UnevenChoice* Planner::uneven_choice_of(const PlanKey& key) {
  const auto known = std::find_if(uneven_choices_.begin(), uneven_choices_.end(),
                                  [&](const UnevenChoice& one) { return one.key == key; });
  return known == uneven_choices_.end() ? nullptr : &*known;
}

bool Planner::is_bound_to(const Call& call, size_t block_count_max) const {
  const size_t* at = uneven_lengths_.data();
  if (*at++ != block_count_max || *at++ != call.count) return false;
  for (const size_t* values : arrays_of(call)) {
    if (*at++ != (values != nullptr ? 1u : 0u)) return false;
    for (Rank i = 0; values != nullptr && i < context_.rank_count; ++i) {
      if (*at++ != values[i]) return false;
    }
  }
  return true;
}

Result<const Plan*> Planner::plan_for_uneven(const Call& call, bool windows) {
  const Rank n = context_.rank_count;
  const PlanKey key = uneven_key_of(call, windows);
  if (uneven_ != nullptr && uneven_key_ == key && is_bound_to(call, call.block_count_max)) {
    return uneven_.get();
  }
  UnevenChoice* known = uneven_choice_of(key);
  if (known == nullptr) {
    auto chosen = choose(call, windows, key.count);
    if (!chosen.ok()) return chosen.status();
    if (uneven_choices_.size() < kUnevenChoicesMax) {
      uneven_choices_.push_back({key, chosen.take()});
      known = &uneven_choices_.back();
    } else {
      known = &uneven_choices_[next_uneven_choice_];
      next_uneven_choice_ = (next_uneven_choice_ + 1) % kUnevenChoicesMax;
      *known = {key, chosen.take()};
    }
  }
  auto made = bind(known->choice, call);
  if (!made.ok()) return made.status();
  uneven_ = made.take();
  uneven_key_ = key;
  uneven_lengths_.assign({call.block_count_max, call.count});
  for (const size_t* values : arrays_of(call)) {
    uneven_lengths_.push_back(values != nullptr ? 1 : 0);
    if (values != nullptr) uneven_lengths_.insert(uneven_lengths_.end(), values, values + n);
  }
  return uneven_.get();
}

const ForcedAlgorithm* Planner::forced_for(const algo::Problem& problem) const {
  const ForcedAlgorithm* found = nullptr;
  for (const ForcedAlgorithm& forced : options_.forced) {
    if (forced.collective != problem.collective) continue;
    if (forced.of_leaves != (problem.leaf_count > 0)) continue;
    const bool is_general = forced.lengths == algo::BlockLengths::kEqual;
    if (forced.lengths == problem.lengths || (found == nullptr && is_general)) found = &forced;
  }
  return found;
}

const algo::Algorithm* Planner::preferred_for(const algo::Problem& problem) const {
  const auto found =
      std::find_if(preferred_.rbegin(), preferred_.rend(), [&](const algo::Algorithm* algorithm) {
        return algorithm->collective == problem.collective &&
               algorithm->lengths >= problem.lengths && algorithm->supports(problem);
      });
  return found == preferred_.rend() ? nullptr : *found;
}

cost::Request Planner::request_for(const Call& call, bool windows) const {
  const uint64_t bytes = call.block_counts != nullptr ? uneven_key_of(call, windows).count
                                                      : work_bytes(call, context_.rank_count);
  return request_of(call, problem_of(call, windows, bytes), bytes);
}

cost::Request Planner::request_of(const Call& call, const algo::Problem& problem,
                                  uint64_t bytes) const {
  cost::Request request;
  request.work.problem = problem;
  if (problem.told) {
    // Predicted as if all were windows, and not in place: which of a rank's buffers are is its own
    // matter, and all must choose alike.
    request.work.problem.told = request.work.problem.in_place = false;
    request.agreed = false;
  }
  request.work.bytes = bytes;
  request.work.slicing = {.slice_bytes = slice_bytes_of_messages(problem, slowest_wire_),
                          .in_flight = 4};
  request.work.layout.cores_per_host = options_.core_count;
  request.work.layout.host_of_rank = options_.node_of_rank;
  request.work.layout.wire_of_host = options_.wire_of_node;
  request.work.layout.card_of_rank = options_.card_of_rank;
  request.work.layout.cache_of_rank = options_.cache_of_rank;
  request.work.layout.socket_of_rank = options_.package_of_rank;
  request.work.layout.ranks_per_cache = options_.ranks_per_cache;
  request.work.layout.memory_ways = options_.memory_ways.get();
  if (options_.ways != nullptr) {
    request.work.layout.ways = options_.ways.get();
    request.work.layout.network = cost::Link::kFabric;
    request.work.slicing.in_flight = sched::kLaneCountMax;  // as many as there are lanes
    if (request.work.slicing.slice_bytes != 0) request.slices = kDeviceSliceBytes;
  }
  request.type = call.type;
  request.call_key = pack_what(call) * 0x9e3779b97f4a7c15ull ^ bytes * 0xc2b2ae3d27d4eb4full ^
                     (uint64_t{request.work.problem.in_place} << 1) ^
                     uint64_t { problem.inputs_mapped };
  // Programs and rules, and what is learned, are of reductions without leaves.
  const bool of_leaves = problem.leaf_count > 0;
  if (!of_leaves) request.learned = options_.learned.find(cost::shape_of(request));
  request.deterministic = options_.deterministic;
  request.explores = options_.learns && !of_leaves && options_.ways == nullptr;
  if (context_.transport != nullptr) {
    request.lane_count_max = program_lanes(context_.transport->caps);
  }
  return request;
}

Result<cost::Decision> Planner::decide(const Call& call, const algo::Problem& problem,
                                       uint64_t bytes, uint64_t* record) {
  cost::Request request = request_of(call, problem, bytes);
  const bool of_leaves = problem.leaf_count > 0;
  const std::span<const algo::Algorithm* const> all =
      of_leaves ? algo::leaf_algorithms() : std::span<const algo::Algorithm* const>(algorithms_);
  std::vector<const algo::Algorithm*> candidates = cost::candidates_for(all, problem);
  // What is forced is meant for the program's calls, whose buffers may be other ones.
  const ForcedAlgorithm* forced = call.purpose == Purpose::kNone ? forced_for(problem) : nullptr;
  const bool passed_over = forced != nullptr && forced->lengths < problem.lengths &&
                           (forced->algorithm->lengths < problem.lengths ||
                            (forced->algorithm->needs_user_windows && !problem.inputs_mapped));
  if (forced != nullptr && !passed_over) {
    request.forced = forced->algorithm->name;
    candidates.assign(all.begin(), all.end());
  }
  // The router then gives the reason for each.
  if (candidates.empty()) candidates.assign(all.begin(), all.end());
  const auto add = [&candidates](const algo::Algorithm* algorithm) {
    if (std::find(candidates.begin(), candidates.end(), algorithm) == candidates.end()) {
      candidates.push_back(algorithm);
    }
  };
  request.preferred = of_leaves ? nullptr : preferred_for(problem);
  if (request.preferred != nullptr) add(request.preferred);
  const cost::Rules* rules = of_leaves ? nullptr : &options_.rules;
  const cost::Rule* rule =
      of_leaves ? nullptr : rules->find(call.collective, request.work.bytes, context_.rank_count);
  if (rule != nullptr) add(rule->algorithm);
  auto decided = cost::choose(request, candidates, options_.table, rules);
  if (!decided.ok()) return decided;
  if (passed_over) {
    decided.value().reason += fmt::format(
        "; WEIR_ALGORITHM: '{}' is ignored, because it {}", forced->algorithm->name,
        forced->algorithm->lengths < problem.lengths ? "supports blocks of equal length only"
                                                     : cost::kNeedsUserWindows);
  }
  // A rank knows only its own lengths of an all_to_all_v. In mapped memory a rank that is late
  // compares its call with what others run, which may be the meeting before a call with a root.
  const bool is_left_out = problem.lengths == algo::BlockLengths::kKnownToEnds ||
                           (problem.mapped && is_rooted(problem.collective));
  if (request.explores && !is_left_out) {
    decided.value().explored = cost::worth_exploring(decided.value());
  }
  if (options_.explain) add_not_offered(request, &decided.value());
  *record = decisions_.find_same(request, decided.value());
  if (*record != 0) return decided;
  *record = decisions_.add(request, decided.value());
  if (options_.explain && context_.rank == 0) {
    std::fprintf(stderr, "%s\n", cost::explain(*decisions_.find(*record)).c_str());
  }
  return decided;
}

void Planner::add_not_offered(const cost::Request& request, cost::Decision* decision) const {
  const algo::Problem& problem = request.work.problem;
  const std::span<const algo::Algorithm* const> all =
      problem.leaf_count > 0 ? algo::leaf_algorithms()
                             : std::span<const algo::Algorithm* const>(algorithms_);
  const auto why = [&](const algo::Algorithm& algorithm) {
    if (const char* excluded = cost::why_excluded(algorithm, request)) return excluded;
    if (algorithm.groups == &algo::Problem::numa_of_rank && problem.mapped) {
      return "not offered: is the same program as by_cache here";
    }
    if (algorithm.of_single_ranks != nullptr && algo::are_single_ranks(problem)) {
      return "not offered: where each host has one rank, another one does the same with fewer "
             "copies";
    }
    return cost::kNeedsUserWindows;
  };
  for (const algo::Algorithm* algorithm : all) {
    if (algorithm->collective != problem.collective) continue;
    const bool listed = std::any_of(
        decision->candidates.begin(), decision->candidates.end(),
        [&](const cost::Candidate& candidate) { return candidate.algorithm == algorithm; });
    if (listed) continue;
    cost::Candidate candidate;
    candidate.algorithm = algorithm;
    candidate.excluded = why(*algorithm);
    decision->candidates.push_back(candidate);
  }
}

void Planner::measured(const Plan& plan, double ns, bool explored) {
  if (!is_watched_) return decisions_.measured(plan.decision, ns);
  const cost::DecisionRecord* record = decisions_.find(plan.decision);
  if (record == nullptr) return;
  const algo::Algorithm* turn =
      explored && !record->decision.explored.empty() ? plan.algorithm : nullptr;
  decisions_.measured(plan.decision, ns, turn);
  if (options_.explain && context_.rank == 0 && record->measured.count == 1 &&
      plan.algorithm == record->decision.algorithm) {
    std::fprintf(stderr, "%s\n", cost::explain_measured(*record).c_str());
  }
  if (!options_.on_measured) return;
  options_.on_measured(*record, nullptr);
  for (const cost::ExploredTimes& one : record->explored) {
    if (one.algorithm == turn) options_.on_measured(*record, &one);
  }
}

void Planner::explain_totals(const cost::TimesByKey& all) const {
  if (!options_.explain || context_.rank != 0) return;
  const auto print = [&](const cost::DecisionRecord& record, const cost::ExploredTimes* explored) {
    const auto found =
        all.find(cost::times_key(record, explored == nullptr ? nullptr : explored->algorithm));
    const std::string line =
        cost::explain_total(record, explored, found == all.end() ? nullptr : &found->second);
    std::fprintf(stderr, "%s\n", line.c_str());
  };
  for (const cost::DecisionRecord& record : decisions_.records()) {
    if (record.measured.count >= 2) print(record, nullptr);
    for (const cost::ExploredTimes& one : record.explored) print(record, &one);
  }
}

algo::Problem Planner::problem_of(const Call& call, bool windows, uint64_t bytes) const {
  algo::Problem problem;
  problem.collective = call.collective;
  problem.rank_count = context_.rank_count;
  problem.root = call.root;
  problem.mapped = context_.mapped();
  problem.inputs_mapped = problem.outputs_mapped = windows || call.told;
  problem.told = call.told;
  problem.in_place = call.in_place;
  problem.node_of_rank = options_.node_of_rank;
  problem.cache_of_rank = options_.cache_of_rank;
  problem.numa_of_rank = options_.numa_of_rank;
  problem.lengths = lengths_of(call);
  problem.leaf_count = call.leaf_count;
  // Trees are for messages.
  if (options_.forests != nullptr && !problem.mapped) {
    problem.forest = options_.forests->of(call.collective, call.root);
    problem.rings = options_.forests->rings();
    if (context_.transport != nullptr) {
      problem.lanes_max =
          std::clamp(program_lanes(context_.transport->caps), 1u, sched::kLaneCountMax);
    }
    problem.tree_lanes_max =
        cost::tree_lanes(problem, bytes, slice_bytes_of_messages(problem, slowest_wire_));
  }
  if (problem.rings == nullptr && !problem.mapped && ring_by_host_.rank_count > 0) {
    problem.rings = &ring_by_host_;
  }
  return problem;
}

void Planner::compile(const algo::Problem& problem, Choice* choice) const {
  if (algo::uses_messages(*choice->algorithm)) {
    const uint64_t usual = slice_bytes_of_messages(problem, slowest_wire_);
    if (choice->slice_bytes == 0 || usual == 0) choice->slice_bytes = usual;
  }
  choice->program = algo::compile(*choice->algorithm, problem, context_.rank);
}

Planner::Choice Planner::instead(const Choice& chosen, const algo::Algorithm* algorithm,
                                 const Call& call, bool windows) const {
  Choice choice;
  choice.algorithm = algorithm;
  choice.record = chosen.record;
  compile(problem_of(call, windows, work_bytes(call, context_.rank_count)), &choice);
  return choice;
}

Result<Planner::Choice> Planner::choose(const Call& call, bool windows, uint64_t bytes) {
  algo::Problem problem = problem_of(call, windows, bytes);
  Choice choice;
  auto decided = decide(call, problem, bytes, &choice.record);
  if (!decided.ok()) return decided.status();
  choice.algorithm = decided.value().algorithm;
  choice.slice_bytes = decided.value().slice_bytes;
  choice.explored = std::move(decided.value().explored);
  if (decided.value().tree_lanes != 0) problem.tree_lanes_max = decided.value().tree_lanes;
  compile(problem, &choice);
  return choice;
}

Result<std::unique_ptr<Plan>> Planner::bind(const Choice& choice, const Call& call) const {
  const algo::Algorithm& algorithm = *choice.algorithm;
  const sched::Program& program = choice.program;
  auto plan = std::make_unique<Plan>();
  plan->algorithm = &algorithm;
  plan->fingerprint = fingerprint(call, context_.rank_count);
  plan->what = pack_what(call);
  plan->decision = choice.record;
  if (algo::uses_messages(algorithm)) {
    plan->protocol = Protocol::kLanes;
    auto bound =
        LanePlan::bind(program, call, choice.slice_bytes, program_lanes(context_.transport->caps),
                       algorithm.rank_order, options_.arithmetic);
    if (!bound.ok()) return bound.status();
    plan->lanes = bound.take();
    return plan;
  }
  const ChunkMap map(call, context_.rank, context_.rank_count, program.shape.chunk_count);
  const SlicingQuestion question{
      .chunk_bytes_max = map.length_max() * input_element_bytes(call),
      .staging_slots = program.shape.staging_slots,
      .staging_bytes = context_.staging_bytes,
      .rank_count = context_.rank_count,
      .shared_cores = options_.shared_cores,
      // Programs from elsewhere need not keep the line protocol's rules.
      // With lines, a rank hears those whose data it reads, and must hear all.
      .one_signal = algorithm.imported == nullptr && program.shape.signal_count == 1 &&
                    program.shape.scratch_slots == 0 && call.collective != Collective::kBarrier &&
                    (call.leaf_count == 0 || call.leaf_count >= context_.rank_count),
      .told = call.told && algorithm.needs_user_windows,
      .slice_bytes = choice.slice_bytes != 0 ? choice.slice_bytes : options_.slice_bytes,
  };
  const Slicing slicing = choose_slicing(question);
  plan->protocol = slicing.embedded_flags         ? Protocol::kLine
                   : algorithm.needs_user_windows ? Protocol::kWindows
                                                  : Protocol::kSlots;
  // All ranks have called the operation when they know that all buffers lie in windows.
  const bool entered =
      plan->protocol == Protocol::kWindows && algorithm.imported == nullptr && !call.told;
  auto bound = MappedPlan::bind(program, call, slicing, options_.arithmetic,
                                entered ? algo::kWindowsEntered : MappedPlan::kNoKnownSignal);
  if (!bound.ok()) return bound.status();
  plan->mapped = bound.take();
  return plan;
}

Result<std::vector<ForcedAlgorithm>> parse_forced_algorithms(
    const std::string& text, std::span<const algo::Algorithm* const> among) {
  std::vector<ForcedAlgorithm> forced;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    std::string collective = item.substr(0, equals == std::string::npos ? 0 : equals);
    const bool of_leaves = collective.ends_with(kLeavesSuffix);
    if (of_leaves) collective.resize(collective.size() - kLeavesSuffix.size());
    if (equals == std::string::npos) {
      return invalid_argument(fmt::format(
          "WEIR_ALGORITHM: '{}' is not of the form collective=algorithm, such as all_reduce=ring",
          item));
    }
    const auto named = algo::collective_named(collective);
    if (!named) {
      return invalid_argument(fmt::format("WEIR_ALGORITHM: '{}' is not a collective; known are {}",
                                          item.substr(0, equals), algo::known_collectives()));
    }
    const bool twice = std::any_of(forced.begin(), forced.end(), [&](const ForcedAlgorithm& other) {
      return other.collective == named->collective && other.lengths == named->lengths &&
             other.of_leaves == of_leaves;
    });
    if (twice) {
      return invalid_argument(
          fmt::format("WEIR_ALGORITHM: {} is named twice; leave one of its algorithms out",
                      item.substr(0, equals)));
    }
    const std::string name = item.substr(equals + 1);
    const std::span<const algo::Algorithm* const> known =
        of_leaves ? algo::leaf_algorithms() : among;
    const algo::Algorithm* algorithm = algo::find_algorithm(named->collective, name, known);
    if (algorithm == nullptr || algorithm->lengths < named->lengths) {
      std::string names;
      for (const algo::Algorithm* other : known) {
        if (other->collective != named->collective || other->lengths < named->lengths) continue;
        names += fmt::format(" {}", other->name);
      }
      return invalid_argument(
          fmt::format("WEIR_ALGORITHM: '{}' is not an algorithm of {}; known:{}", name,
                      item.substr(0, equals), names));
    }
    forced.push_back({named->collective, named->lengths, algorithm, of_leaves});
  }
  return forced;
}

}  // namespace weir::engine
