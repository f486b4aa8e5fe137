// SPDX-License-Identifier: Apache-2.0
#include "core/sim/regret.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/cost/message_ways.h"
#include "core/cost/run_ahead.h"
#include "core/cost/task_costs.h"
#include "core/sim/measured_network.h"
#include "core/sim/simulator.h"

namespace weir::sim {

namespace {

// What a program is simulated over.
Options options_of(const cost::Workload& work, const cost::TaskCosts& tasks,
                   const cost::Table& table, const graph::LinkGraph* links) {
  Options options;
  options.slicing = work.slicing;
  if (work.layout.memory_ways != nullptr) {
    options.tasks = &tasks;
    options.links = &work.layout.memory_ways->graph();
  } else if (work.layout.ways != nullptr) {
    options.network = accelerator_network();
    options.links = &work.layout.ways->graph();
  } else if (links != nullptr) {
    options.network = measured_network(table, work.bytes, work.layout.network);
    options.links = links;
  } else {
    options.tasks = &tasks;
  }
  return options;
}

}  // namespace

Result<Regret> regret(const cost::Request& request, const cost::Decision& decision,
                      const cost::Table& table, uint64_t events_max,
                      const std::function<bool(const char* name, uint64_t events)>& progress,
                      const graph::LinkGraph* links) {
  const cost::TaskCosts tasks(request.work, table);
  Regret result;
  bool stopped = false;
  // The time; nothing if it is longer than `time_max_ns` (0: any) or needs too many events.
  const auto time_of = [&](const algo::Algorithm& algorithm, const cost::Cut& cut,
                           double time_max_ns) -> Result<std::optional<double>> {
    const bool one_way = cost::run_ahead_ns(algorithm, request.work, table).has_value();
    const cost::Workload work = cost::work_of(algorithm, request, cut);
    Options options = options_of(work, tasks, table, links);
    options.time_max_ns = one_way ? 0 : time_max_ns;
    options.progress = [&](const Progress& at) {
      stopped = progress && !progress(algorithm.name, at.events);
      return !stopped && at.events < events_max;
    };
    const Result<Report> report = simulate(algorithm, work.problem, work.bytes, options);
    if (report.ok()) {
      result.events += report.value().events;
      if (!report.value().complete) return std::optional<double>();
      // In a row of calls no rank waits: those that only send work ahead of the others.
      const auto& busy = report.value().core_busy_ps;
      const uint64_t ps =
          one_way ? *std::max_element(busy.begin(), busy.end()) : report.value().total_ps;
      return std::optional(static_cast<double>(ps) / 1000);
    }
    return report.status();
  };
  const cost::Cut chosen_cut = {decision.slice_bytes, decision.tree_lanes};
  const auto chosen = time_of(*decision.algorithm, chosen_cut, 0);
  if (!chosen.ok()) return chosen.status();
  if (!chosen.value()) return Status(Code::kInternal, "the chosen algorithm does not end");
  result.chosen_ns = result.best_ns = *chosen.value();
  result.best = decision.algorithm;
  result.best_cut = chosen_cut;
  for (const cost::Candidate& candidate : decision.candidates) {
    if (candidate.excluded != nullptr) continue;
    bool left_out = false;
    for (const cost::Cut& cut : cost::cuts_of(*candidate.algorithm, request)) {
      if (candidate.algorithm == decision.algorithm && cut == chosen_cut) continue;
      const auto time = time_of(*candidate.algorithm, cut, result.best_ns);
      if (!time.ok()) {
        const Code code = time.status().code();
        if (stopped || (code != Code::kAborted && code != Code::kNoMemory)) return time.status();
        left_out = true;
        continue;
      }
      if (!time.value() || *time.value() >= result.best_ns) continue;
      result.best_ns = *time.value();
      result.best = candidate.algorithm;
      result.best_cut = cut;
    }
    if (left_out) result.left_out.push_back(candidate.algorithm);
  }
  return result;
}

}  // namespace weir::sim
