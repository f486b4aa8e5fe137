// SPDX-License-Identifier: Apache-2.0
// ScheduledProgram: a call by a StreamSchedule: the operations of StreamProgram's kinds, in rounds
// that use the two slots of scratch in turn, each divided into the slots of the schedule.
//
// A round begins when all ranks that read this rank's slot have given it back, and ends by giving
// back those that it has read: the flags for that are StreamProgram's of phase 0, so that calls of
// both kinds may follow each other. Each message has a flag of its own, which its reader clears.
//
// Pure: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/comm/stream/stream_program.h"
#include "core/comm/stream/stream_schedule.h"

namespace weir::comm {

class ScheduledProgram {
 public:
  // `slot_bytes` as in StreamProgram; it holds a piece of each slot of the schedule (fits).
  ScheduledProgram(const StreamShape& call, std::shared_ptr<const StreamSchedule> schedule,
                   uint64_t slot_bytes);
  static bool fits(const StreamSchedule& schedule, uint64_t slot_bytes) {
    return slot_bytes >= schedule.slot_count() * StreamProgram::kAlign;
  }

  size_t step_count() const { return rounds_ * schedule_->steps().size(); }
  void step(size_t index, std::vector<StreamOp>* ops) const;
  size_t round_count() const { return rounds_; }

 private:
  uint64_t begin(size_t round) const { return round * width_; }
  uint64_t width(size_t round) const;
  uint64_t part(size_t round) const;
  uint64_t length(size_t round, uint32_t chunk) const;
  StreamPlace place(const SchedulePlace& place, size_t round) const;

  StreamShape call_;
  std::shared_ptr<const StreamSchedule> schedule_;
  uint64_t slot_bytes_;
  uint32_t chunks_of_block_;
  uint64_t width_ = 0;   // elements of a block in each round but the last
  uint64_t stride_ = 0;  // bytes of a slot of the schedule
  size_t rounds_ = 0;
};

}  // namespace weir::comm
