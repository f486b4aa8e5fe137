// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_ways.h"

#include <algorithm>
#include <cmath>

#include "core/comm/stream/scheduled_program.h"

namespace weir::comm {

namespace {

bool is_reduction(Collective it) {
  return it == Collective::kAllReduce || it == Collective::kReduceScatter;
}

// Floats whose partial results would be rounded at each rank.
bool is_rounded(DataType type) {
  return element_bytes(type) < 4 && type != DataType::kInt8 && type != DataType::kUint8;
}

}  // namespace

StreamWays::StreamWays(const graph::DeviceWays& links, Rank rank, Rank rank_count,
                       uint64_t slot_bytes, bool deterministic)
    : straight_ns_per_byte_(links.straight_ns_per_byte),
      rings_ns_per_byte_(links.rings_ns_per_byte),
      rank_count_(rank_count),
      deterministic_(deterministic) {
  if (std::isfinite(straight_ns_per_byte_) && straight_ns_per_byte_ > 0 && rank_count > 2) {
    // One phase reads the vectors of all others; two take a step more, and read each part twice.
    const double even = kStepNs / (straight_ns_per_byte_ * (rank_count - 2));
    one_phase_max_ = static_cast<uint64_t>(std::min(even, 1e15));
  }
  if (!links.rings_are_faster()) return;
  algo::Problem problem;
  problem.rank_count = rank_count;
  problem.rings = &links.rings;
  for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
    problem.collective = algorithm->collective;
    if (!algorithm->uses_rings || !algorithm->supports(problem)) continue;
    auto made = StreamSchedule::compile(*algorithm, problem, rank);
    if (!made.ok() || !ScheduledProgram::fits(made.value(), slot_bytes)) continue;
    auto& schedule = schedules_[static_cast<size_t>(algorithm->collective)];
    schedule = std::make_shared<const StreamSchedule>(made.take());
  }
}

double StreamWays::straight_ns(Collective collective, double bytes) const {
  if (collective != Collective::kAllReduce) return kStepNs + bytes * straight_ns_per_byte_;
  if (bytes <= static_cast<double>(one_phase_max_)) {
    return kStepNs + rank_count_ * bytes * straight_ns_per_byte_;
  }
  return 2 * (kStepNs + bytes * straight_ns_per_byte_);
}

double StreamWays::rings_ns(const StreamSchedule& schedule, double bytes) const {
  const double times = schedule.collective() == Collective::kAllReduce ? 2 : 1;
  return static_cast<double>(schedule.steps().size()) * kStepNs +
         times * bytes * rings_ns_per_byte_;
}

std::shared_ptr<const StreamSchedule> StreamWays::schedule_for(const engine::Call& call) const {
  const auto& schedule = schedules_[static_cast<size_t>(call.collective)];
  if (schedule == nullptr || call.scaled ||
      (is_reduction(call.collective) && (deterministic_ || is_rounded(call.type)))) {
    return nullptr;
  }
  const bool has_blocks = call.collective != Collective::kAllReduce;
  const double bytes = static_cast<double>(call.count) *
                       static_cast<double>(element_bytes(call.type)) *
                       (has_blocks ? rank_count_ : 1);
  return rings_ns(*schedule, bytes) < straight_ns(call.collective, bytes) ? schedule : nullptr;
}

}  // namespace weir::comm
