// SPDX-License-Identifier: Apache-2.0
// StreamProgram: a collective on memory of devices as work of one stream of each rank: copies,
// reductions, and flags that are set and waited for. No thread of the host takes part while it
// runs. It knows no CUDA: stream_call.h turns it into calls to the driver.
//
// Each rank has *scratch* on its device, which all ranks reach: two slots, which the rounds of a
// program use in turn. In a round a rank copies a piece of its data into its slot and tells the
// readers; they copy or reduce out of the slots of their peers, in the order of the ranks, and give
// them back. A large reduction has two phases: each rank reduces one part, which the others then
// copy.
//
//   writer:  wait until empty = 1, empty = 0; fill the slot; full = v
//   reader:                                                  wait until full = v, full = 0; use it;
//            empty = 1
//
// A pair of flags belongs to one writer, one reader, one slot and one phase. Each is waited for by
// one rank only, which clears it, and `v` is the fingerprint of the call. So all values are
// constants, a captured program may be replayed any number of times, and ranks that make different
// calls do not use each other's data.
//
// Windows. Where all ranks have mapped each other's buffers, a program copies nothing into slots: a
// rank tells that its buffer is ready, its peers read there, and it waits until all have given it
// back. An all-reduce then has two phases, of which the second one reads the receive buffers of the
// peers, so that it may be in place; those of a reduce pass through slots, since only the root has
// a receive buffer. A broadcast reads the receive buffer of the root. No rank writes to another's
// buffers, and in a scatter the others do not know where the root's send buffer lies: it has slots.
//
// Steps. What a step waits for is set by steps with lower numbers. If all steps k of the ranks are
// submitted before the first step k + 1, no order in which a device takes up the streams hangs.
//
// Pure: a value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/types.h"
#include "core/comm/stream/stream_schedule.h"

namespace weir::comm {

// What the program of a call depends on.
struct StreamShape {
  Collective collective = Collective::kAllReduce;
  Rank root = 0;
  uint64_t count = 0;  // of the whole buffer or of a block, as in weir.h
  uint32_t element_bytes = 1;
  uint32_t fingerprint = 1;  // not 0; the same on ranks that make the same call
  bool in_windows = false;   // not of a scatter
  uint64_t one_phase_max = kOnePhaseMax;

  // Up to so many bytes a reduction has one phase, where nothing is known of the links: each rank
  // reads all of them from every other one, and waits once.
  static constexpr uint64_t kOnePhaseMax = uint64_t{128} << 10;
};

// Where the data of an operation lie.
enum class StreamBuffer : uint8_t { kSend, kRecv, kScratch, kPeerSend, kPeerRecv };
struct StreamPlace {
  StreamBuffer memory = StreamBuffer::kSend;
  Rank rank = 0;  // whose scratch, or buffer
  uint64_t offset = 0;
};

struct StreamOp {
  enum class Kind : uint8_t {
    kWait,    // until the flag has the value
    kSet,     // the flag to the value, after all that was before it in the stream
    kCopy,    // `bytes` from `from` to `to`
    kReduce,  // `count` elements of `operands`, in order; without any: at from.offset of all ranks'
              // scratch, or send buffers
  };
  Kind kind = Kind::kWait;
  uint32_t flag = 0;
  uint32_t value = 0;
  StreamPlace to;    // of a reduction: where it goes, if `stores`
  StreamPlace from;  // of a reduction: of each rank
  uint64_t bytes = 0;
  uint64_t count = 0;
  std::vector<StreamPlace> operands;
  bool stores = false;  // a reduction's result goes to `to`
  bool keeps = false;   // and to this rank's own scratch, at kept_offset
  uint64_t kept_offset = 0;
  bool divides = true;       // an average is complete with this reduction
  bool contributes = false;  // a copy of elements that are folded: of a pre-multiplied sum, scaled
};

class StreamProgram {
 public:
  static constexpr uint32_t kSlots = 2;
  static constexpr uint32_t kPhases = 2;
  static constexpr uint64_t kOnePhaseMax = StreamShape::kOnePhaseMax;
  // Slots, and parts within them, begin at multiples of this.
  static constexpr uint64_t kAlign = 256;

  // The flags of a communicator: a pair for each writer, reader, slot and phase. The `full` ones
  // are even and 0 at first, the `empty` ones are odd and 1 at first. Behind them, those of the
  // messages of schedules (scheduled_program.h), which are 0 at first.
  static uint32_t flag_count(Rank rank_count) { return message_flag(rank_count, kSlots, 0, 0); }
  static uint32_t pair_flag_count(Rank rank_count) {
    return kPhases * kSlots * rank_count * rank_count * 2;
  }
  static uint32_t message_flag(Rank rank_count, uint32_t slot, Rank reader, uint32_t message) {
    return pair_flag_count(rank_count) +
           (slot * rank_count + reader) * StreamSchedule::kMessagesMax + message;
  }
  static uint32_t full_flag(Rank rank_count, uint32_t phase, uint32_t slot, Rank writer,
                            Rank reader) {
    return (((phase * kSlots + slot) * rank_count + writer) * rank_count + reader) * 2;
  }
  static uint32_t empty_flag(Rank rank_count, uint32_t phase, uint32_t slot, Rank writer,
                             Rank reader) {
    return full_flag(rank_count, phase, slot, writer, reader) + 1;
  }

  // The least slot that a call of any count can use.
  static uint64_t slot_bytes_min(Rank rank_count);

  // `slot_bytes`: a multiple of kAlign, at least slot_bytes_min, the same on all ranks.
  StreamProgram(const StreamShape& call, Rank rank, Rank rank_count, uint64_t slot_bytes);

  bool has_two_phases() const { return two_phases_; }
  size_t round_count() const { return rounds_; }
  size_t step_count() const { return rounds_ * kStepsOfRound + (call_.in_windows ? 1 : 0); }
  // The operations of a step, in order.
  void step(size_t index, std::vector<StreamOp>* ops) const;
  // Whether this rank waits for data of another.
  bool awaits(Rank writer) const { return flows(0, writer, rank_) || flows(1, writer, rank_); }
  // Whether this rank reads the send buffer, and writes the receive buffer.
  bool sends() const;
  bool receives() const { return receives(rank_); }

 private:
  static constexpr size_t kStepsOfRound = 3;

  bool is_reduction() const;
  bool has_blocks() const;  // in the send buffer
  bool rooted_at(Rank rank) const { return call_.root == rank; }
  // Whether data of `writer` go to `reader` in the phase.
  bool flows(uint32_t phase, Rank writer, Rank reader) const;
  bool writes(uint32_t phase, Rank writer) const;
  bool receives(Rank rank) const;
  uint32_t full(uint32_t phase, uint32_t slot, Rank writer, Rank reader) const {
    return full_flag(rank_count_, phase, slot, writer, reader);
  }
  uint32_t empty(uint32_t phase, uint32_t slot, Rank writer, Rank reader) const {
    return empty_flag(rank_count_, phase, slot, writer, reader);
  }
  uint64_t width(size_t round) const;  // elements of a block in the round
  uint64_t begin(size_t round) const { return round * width_; }
  uint64_t slot_offset(size_t round) const { return round % kSlots * slot_bytes_; }
  // Part of a rank in a reduction of two phases.
  uint64_t part_begin(size_t round, Rank rank) const;
  uint64_t part_count(size_t round, Rank rank) const;

  void fill(size_t round, std::vector<StreamOp>* ops) const;
  void use(size_t round, std::vector<StreamOp>* ops) const;
  void collect(size_t round, std::vector<StreamOp>* ops) const;
  void take(uint32_t phase, uint32_t slot, std::vector<StreamOp>* ops) const;
  void give_back(uint32_t phase, uint32_t slot, std::vector<StreamOp>* ops) const;
  void await_given_back(std::vector<StreamOp>* ops) const;
  // What of a slot holds a rank's part of a reduction of two phases.
  uint64_t kept_offset(size_t round, Rank rank) const;
  void tell(uint32_t phase, uint32_t slot, std::vector<StreamOp>* ops) const;
  void await_empty(uint32_t phase, size_t round, std::vector<StreamOp>* ops) const;

  StreamShape call_;
  Rank rank_;
  Rank rank_count_;
  uint64_t slot_bytes_;
  bool two_phases_ = false;
  bool keeps_parts_ = false;  // in slots, between the two phases
  uint64_t width_ = 0;        // elements of a block in each round but the last
  uint64_t stride_ = 0;       // bytes between blocks in a slot
  size_t rounds_ = 0;
};

}  // namespace weir::comm
