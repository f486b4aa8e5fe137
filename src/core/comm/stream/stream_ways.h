// SPDX-License-Identifier: Apache-2.0
// StreamWays: which way collectives on devices take, by the links between these: straight from all
// others, in one phase or two (stream_program.h), or along rings (scheduled_program.h). A function
// of the links and the call, so that all ranks choose alike. Constant; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "core/base/types.h"
#include "core/comm/stream/stream_program.h"
#include "core/comm/stream/stream_schedule.h"
#include "core/engine/call.h"
#include "core/graph/device_ways.h"

namespace weir::comm {

class StreamWays {
 public:
  // What a step costs besides the bytes: flags that are set and waited for, and a kernel. An
  // estimate, as long as no GPU has been measured (docs/gpu.md).
  static constexpr double kStepNs = 8000;

  // Of links that are not known: straight, and in one phase up to StreamProgram::kOnePhaseMax.
  StreamWays() = default;
  // `slot_bytes`: of StreamMemory. `deterministic`: reductions are in the order of the ranks.
  StreamWays(const graph::DeviceWays& links, Rank rank, Rank rank_count, uint64_t slot_bytes,
             bool deterministic);

  // nullptr: straight. Reductions of floats of 8 and 16 bits go straight, where they are rounded
  // once; so do pre-multiplied sums.
  std::shared_ptr<const StreamSchedule> schedule_for(const engine::Call& call) const;
  // A reduction that goes straight has one phase up to so many bytes.
  uint64_t one_phase_max() const { return one_phase_max_; }

 private:
  // What it takes by the estimate.
  double straight_ns(Collective collective, double bytes) const;
  double rings_ns(const StreamSchedule& schedule, double bytes) const;

  double straight_ns_per_byte_ = 0;
  double rings_ns_per_byte_ = 0;
  Rank rank_count_ = 1;
  bool deterministic_ = false;
  uint64_t one_phase_max_ = StreamProgram::kOnePhaseMax;
  std::array<std::shared_ptr<const StreamSchedule>, kCollectiveCount> schedules_;
};

}  // namespace weir::comm
