// SPDX-License-Identifier: Apache-2.0
// StreamSchedule: a schedule of messages (core/sched/op.h), such as rings along the links of a
// machine, as work of one stream for each rank. It is made once for a communicator and serves calls
// of any size: scheduled_program.h.
//
// A message becomes a slot in memory of its sender, which the receiver reads where it lies; the
// sender tells that it is full. Each value that a rank sends, or folds for a later step, has a slot
// of its own, so that none is written twice in a round. What a rank reads first in its own buffers
// it reads there.
//
//   send      a copy into a slot, if the value is in none yet; tell
//   recv      wait; into Output: a copy out of the sender's slot; into Scratch: nothing
//   reduce    of slots, also of other ranks, and of Input, into Output, or a slot, or both
//   copy      a copy
//
// Lanes of a rank become one order: that of an execution of all ranks in *steps*. What a step waits
// for is told in an earlier one, as in stream_program.h.
//
// Pure: a value.
#pragma once

#include <cstdint>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

struct SchedulePlace {
  enum class Buffer : uint8_t { kInput, kOutput, kSlot };
  Buffer buffer = Buffer::kInput;
  Rank rank = 0;       // of a slot: whose
  uint32_t index = 0;  // of the chunk (core/sched/op.h), or of the slot
};

struct ScheduleOp {
  enum class Kind : uint8_t { kWait, kTell, kCopy, kReduce };
  Kind kind = Kind::kWait;
  // kWait, kTell: the message, by its number among those to its reader in a round.
  Rank reader = 0;
  uint32_t message = 0;
  // kCopy, kReduce: one chunk.
  SchedulePlace to;
  std::vector<SchedulePlace> from;  // of a reduction: the operands, in order
  uint32_t chunk = 0;               // a chunk that is as long
  bool keeps = false;               // also to this rank's own slot `kept`
  uint32_t kept = 0;
  bool complete = false;  // a reduction: of all ranks
};

class StreamSchedule {
 public:
  // The most messages to one rank in a round.
  static constexpr uint32_t kMessagesMax = 128;

  // That of `rank`. kUnsupported: the programs use memory of peers, or too many messages;
  // kInvalidArgument: they wait for each other.
  static Result<StreamSchedule> compile(const algo::Algorithm& algorithm,
                                        const algo::Problem& problem, Rank rank);

  const char* name() const { return name_; }  // of the algorithm
  Collective collective() const { return collective_; }
  Rank rank() const { return rank_; }
  Rank rank_count() const { return rank_count_; }
  uint32_t chunk_count() const { return chunk_count_; }
  // The slots of the rank that has the most; the same on all ranks, and so are the steps.
  uint32_t slot_count() const { return slot_count_; }
  const std::vector<std::vector<ScheduleOp>>& steps() const { return steps_; }
  // The ranks that read this rank's slots, and those whose slots it reads.
  const std::vector<Rank>& readers() const { return readers_; }
  const std::vector<Rank>& writers() const { return writers_; }

 private:
  StreamSchedule() = default;

  const char* name_ = "";
  Collective collective_ = Collective::kAllReduce;
  Rank rank_ = 0;
  Rank rank_count_ = 1;
  uint32_t chunk_count_ = 0;
  uint32_t slot_count_ = 0;
  std::vector<std::vector<ScheduleOp>> steps_;
  std::vector<Rank> readers_;
  std::vector<Rank> writers_;
};

}  // namespace weir::comm
