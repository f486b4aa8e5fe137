// SPDX-License-Identifier: Apache-2.0
#include "core/engine/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "core/engine/chunk_map.h"
#include "core/engine/line_run.h"
#include "core/engine/slicing.h"

namespace weir::engine {

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

Planner::Planner(const Context& context, PlannerOptions options)
    : context_(context), options_(std::move(options)) {
  entries_.resize(kEntries);
}

Result<const Plan*> Planner::plan_for(const Call& call, bool windows) {
  if (call.block_counts != nullptr) {
    auto made = make(call, windows);
    if (!made.ok()) return made.status();
    uneven_ = made.take();
    return uneven_.get();
  }
  const PlanKey key = key_of(call, windows);
  const uint64_t hash = (key.what * 0x9e3779b97f4a7c15ull) ^ (key.count * 0xc2b2ae3d27d4eb4full) ^
                        (uint64_t{key.in_place} << 17) ^ (uint64_t{key.windows} << 23);
  Entry& entry = entries_[(hash >> 24) % kEntries];
  if (entry.plan == nullptr || entry.key != key) {
    auto made = make(call, windows);
    if (!made.ok()) return made.status();
    if (latest_ == entry.plan.get()) latest_ = nullptr;
    entry.plan = made.take();
    entry.key = key;
  }
  latest_key_ = key;
  latest_ = entry.plan.get();
  return entry.plan.get();
}

namespace {

// Of the largest buffer of a rank.
uint64_t work_bytes(const Call& call, Rank rank_count) {
  const uint64_t one = call.count * element_bytes(call.type);
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

// What can run here. Where memory is mapped, messages over the same memory would only copy once
// more, so they are left out unless nothing else is there or somebody asks for them. Uneven blocks
// must not travel through slots that do not say whose they are.
std::vector<const algo::Algorithm*> candidates_for(const Call& call, const algo::Problem& problem) {
  std::vector<const algo::Algorithm*> mapped;
  std::vector<const algo::Algorithm*> messages;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    if (algorithm->collective != call.collective) continue;
    const std::string_view name = algorithm->name;
    if (call.block_counts != nullptr && name != "direct" && name != "ring" && name != "pairwise") {
      continue;
    }
    if (!algorithm->supports(problem)) continue;
    if (algorithm->needs_user_windows) {
      if (problem.inputs_mapped) mapped.push_back(algorithm);
    } else if (algorithm->needs_mapped) {
      // Between two ranks, two phases move the same bytes with one more signal.
      if (problem.rank_count == 2 && name == "direct_two_phase") continue;
      if (problem.mapped) mapped.push_back(algorithm);
    } else {
      messages.push_back(algorithm);
    }
  }
  return mapped.empty() ? messages : mapped;
}

}  // namespace

Result<cost::Decision> Planner::choose(const Call& call, const algo::Problem& problem,
                                       uint64_t* record) {
  cost::Request request;
  request.work.problem = problem;
  request.work.bytes = work_bytes(call, context_.rank_count);
  request.work.slicing = {.slice_bytes = kMessageSliceBytes, .in_flight = 4};
  request.work.layout.cores_per_host = options_.core_count;
  request.work.layout.host_of_rank = options_.node_of_rank;
  request.type = call.type;
  request.deterministic = options_.deterministic;
  // One is kept for messages between two ranks.
  if (context_.transport != nullptr) {
    request.lane_count_max = context_.transport->caps.lane_count - 1;
  }
  std::vector<const algo::Algorithm*> candidates = candidates_for(call, problem);
  for (const auto& [collective, name] : options_.forced) {
    if (collective != call.collective) continue;
    request.forced = name;
    candidates.clear();  // the router then knows them all
  }
  const cost::Rule* rule =
      options_.rules.find(call.collective, request.work.bytes, context_.rank_count);
  if (rule != nullptr &&
      std::find(candidates.begin(), candidates.end(), rule->algorithm) == candidates.end()) {
    candidates.push_back(rule->algorithm);
  }
  auto decided = cost::choose(request, candidates, options_.table, &options_.rules);
  if (!decided.ok()) return decided;
  *record = decisions_.add(request, decided.value());
  if (options_.explain && context_.rank == 0) {
    std::fprintf(stderr, "%s\n", cost::explain(*decisions_.find(*record)).c_str());
  }
  return decided;
}

void Planner::measured(const Plan& plan, double ns) {
  decisions_.measured(plan.decision, ns);
  const cost::DecisionRecord* record = decisions_.find(plan.decision);
  if (options_.explain && context_.rank == 0 && record != nullptr && record->measured_count == 1) {
    std::fprintf(stderr, "%s\n", cost::explain_measured(*record).c_str());
  }
}

void Planner::explain_totals() const {
  if (!options_.explain || context_.rank != 0) return;
  for (const cost::DecisionRecord& record : decisions_.records()) {
    if (record.measured_count < 2) continue;
    std::fprintf(stderr, "%s\n", cost::explain_measured(record).c_str());
  }
}

Result<std::unique_ptr<Plan>> Planner::make(const Call& call, bool windows) {
  algo::Problem problem;
  problem.collective = call.collective;
  problem.rank_count = context_.rank_count;
  problem.root = call.root;
  problem.mapped = context_.mapped();
  problem.inputs_mapped = problem.outputs_mapped = windows;
  problem.in_place = call.in_place;
  problem.node_of_rank = options_.node_of_rank;
  uint64_t record = 0;
  auto decided = choose(call, problem, &record);
  if (!decided.ok()) return decided.status();
  const algo::Algorithm& algorithm = *decided.value().algorithm;
  const uint64_t wanted_slice_bytes = decided.value().slice_bytes;
  const sched::Program program = algo::compile(algorithm, problem, context_.rank);

  auto plan = std::make_unique<Plan>();
  plan->algorithm = &algorithm;
  plan->fingerprint = fingerprint(call);
  plan->what = pack_what(call);
  plan->decision = record;
  if (!algorithm.needs_mapped && !algorithm.needs_user_windows) {
    plan->protocol = Protocol::kLanes;
    auto bound = LanePlan::bind(program, call,
                                wanted_slice_bytes != 0 ? wanted_slice_bytes : kMessageSliceBytes,
                                context_.transport->caps.lane_count, algorithm.rank_order);
    if (!bound.ok()) return bound.status();
    plan->lanes = bound.take();
    return plan;
  }
  const ChunkMap map(call, context_.rank, context_.rank_count, program.shape.chunk_count);
  const SlicingQuestion question{
      .chunk_bytes_max = map.length_max() * element_bytes(call.type),
      .staging_slots = program.shape.staging_slots,
      .staging_bytes = context_.staging_bytes,
      .rank_count = context_.rank_count,
      .shared_cores = options_.shared_cores,
      .one_signal = program.shape.signal_count == 1 && program.shape.scratch_slots == 0 &&
                    call.collective != Collective::kBarrier,
      .slice_bytes = wanted_slice_bytes != 0 ? wanted_slice_bytes : options_.slice_bytes,
  };
  const Slicing slicing = choose_slicing(question);
  plan->protocol = slicing.embedded_flags         ? Protocol::kLine
                   : algorithm.needs_user_windows ? Protocol::kWindows
                                                  : Protocol::kSlots;
  auto bound = MappedPlan::bind(program, call, slicing);
  if (!bound.ok()) return bound.status();
  plan->mapped = bound.take();
  return plan;
}

Result<std::vector<std::pair<Collective, std::string>>> parse_forced_algorithms(
    const std::string& text) {
  std::vector<std::pair<Collective, std::string>> forced;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    begin = end + 1;
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    bool known = false;
    for (uint32_t c = 0; c < kCollectiveCount && equals != std::string::npos; ++c) {
      const auto collective = static_cast<Collective>(c);
      if (item.substr(0, equals) != weir::name_of(collective)) continue;
      known = true;
      const std::string name = item.substr(equals + 1);
      if (algo::find_algorithm(collective, name) == nullptr) {
        std::string names;
        for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
          if (algorithm->collective == collective) names += fmt::format(" {}", algorithm->name);
        }
        return invalid_argument(
            fmt::format("WEIR_ALGORITHM: '{}' is not an algorithm of {}; known:{}", name,
                        weir::name_of(collective), names));
      }
      forced.emplace_back(collective, name);
    }
    if (!known) {
      return invalid_argument(fmt::format(
          "WEIR_ALGORITHM: '{}' is not of the form collective=algorithm, such as all_reduce=ring",
          item));
    }
  }
  return forced;
}

}  // namespace weir::engine
