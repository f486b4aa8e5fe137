// SPDX-License-Identifier: Apache-2.0
// OpStream: the operations of every rank, generated when a lane has none left, one step of the
// algorithm at a time, in a short form for simulation and prediction: sizes and costs instead of
// references. Consecutive copies and reductions of a lane become one. Not thread-safe.
//
// A step with very many operations is generated several times, each time for the next thousand of
// them.
//
// Slices. With k slices in flight a rank has k times the program's lanes: lane i * program_lanes +
// p runs lane p of the program for the slices i, i + k, i + 2k, … one after another.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/algo/nodes.h"
#include "core/base/status.h"
#include "core/cost/chunk_bytes.h"

namespace weir::cost {

using Picoseconds = uint64_t;

// The time that work on memory takes the core that does it.
class MemoryCosts {
 public:
  virtual ~MemoryCosts() = default;
  virtual Picoseconds copy(Rank self, const sched::Ref& dst, const sched::Ref& src,
                           uint64_t bytes) const = 0;
  // `bytes` of the result.
  virtual Picoseconds reduce(Rank self, const sched::Ref& dst, std::span<const sched::Ref> operands,
                             uint64_t bytes) const = 0;
  // Whether what is read from and written to peers' memory takes links, beside the core's time.
  virtual bool takes_links() const { return false; }
};

struct ShortOp {
  // kRead, kWrite: of a peer's memory, after the kCompute; only where MemoryCosts::takes_links.
  enum class Code : uint32_t { kSend, kRecv, kCompute, kSignal, kWait, kRead, kWrite };
  Code code;
  uint32_t peer;
  // kSend, kRecv, kRead, kWrite: bytes; kCompute: picoseconds; kSignal: signal << 32; kWait:
  // signal << 32 | value
  uint64_t amount;

  uint32_t signal() const { return static_cast<uint32_t>(amount >> 32); }
  uint32_t value() const { return static_cast<uint32_t>(amount); }
};
static_assert(sizeof(ShortOp) == 16);

struct StepRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// The part of the programs that is generated; everything, unless set otherwise.
struct Part {
  Rank rank_count = 0;  // the ranks below it; 0: all
  uint64_t slices_begin = 0;
  uint64_t slices_max = ~uint64_t{0};
  // Steps of every rank that are left out, in order, not adjacent.
  std::span<const StepRange> left_out = {};
};

class OpStream {
 public:
  // All references must outlive the stream. The algorithm must support the problem.
  OpStream(const algo::Algorithm& algorithm, const algo::Problem& problem, uint64_t bytes,
           const Slicing& slicing, const MemoryCosts& costs, uint64_t pending_max,
           const Part& part = {});

  uint32_t lane_count() const { return lane_count_; }      // per rank
  uint64_t signal_count() const { return signal_count_; }  // per (sender, receiver)
  uint64_t slice_count() const { return slice_count_; }
  uint64_t steps_done() const { return steps_done_; }
  uint64_t steps_total() const { return steps_total_; }
  uint64_t copied_bytes() const { return copied_bytes_; }  // written by copies and reductions
  uint64_t remote_bytes() const { return remote_bytes_; }  // read from or written to peers' memory
  uint64_t operations() const { return operations_; }

  // The next operation of the lane, generated if needed; nullptr at the end of its program or after
  // an error. Valid until the next call.
  const ShortOp* peek(Rank rank, uint32_t lane) {
    LaneOps& ops = lanes_[size_t{rank} * lane_count_ + lane];
    if (ops.empty() && !refill(rank, lane, ops)) return nullptr;
    return &ops.ops[ops.next];
  }
  void advance(Rank rank, uint32_t lane) {
    LaneOps& ops = lanes_[size_t{rank} * lane_count_ + lane];
    ++ops.next;
    --pending_;
    if (ops.empty()) {
      ops.ops.clear();
      ops.next = 0;
    }
  }
  // From now on the programs end with the first `count` slices, at most those of the part. A lane
  // that was at its end goes on if there are more of them.
  void set_slice_count(uint64_t count) { slice_count_ = count; }

  // kNoMemory: more than pending_max operations were generated and not yet executed. kInternal: the
  // program names a rank, lane or signal that does not exist.
  const Status& status() const { return status_; }

 private:
  struct LaneOps {
    std::vector<ShortOp> ops;
    size_t next = 0;
    bool empty() const { return next == ops.size(); }
  };
  // One rank's run through the slices i, i + k, ….
  struct Walk {
    uint32_t next_step = 0;
    uint32_t round = 0;
    uint32_t taken = 0;   // operations of next_step that have been translated
    uint32_t ranges = 0;  // of Part::left_out that are behind
  };

  bool refill(Rank rank, uint32_t lane, const LaneOps& wanted);
  void end_step(Walk& walk);
  // The operations of one step of a rank.
  struct Step {
    std::vector<sched::Op> ops;
    std::vector<sched::Ref> operands;
    uint32_t number = ~uint32_t{0};  // of the step
  };

  const Step& step_of(Rank rank, uint32_t number);
  void translate(Rank rank, uint32_t instance, uint64_t slice, const sched::Op& op,
                 std::span<const sched::Ref> all_operands);
  bool is_sane(const sched::Op& op) const;
  uint64_t bytes_of(const sched::Op& op, uint64_t slice, std::span<const sched::Ref> refs) const;
  void append(LaneOps& lane, const ShortOp& op);
  // What the copy or reduction moves to and from peers.
  void append_moves(LaneOps& lane, Rank rank, const sched::Op& op,
                    std::span<const sched::Ref> all_operands, uint64_t bytes);

  const algo::Algorithm& algorithm_;
  std::optional<algo::Nodes> nodes_;
  algo::Problem problem_;  // with nodes_
  const MemoryCosts& costs_;
  Part part_;
  sched::Shape shape_;
  ChunkBytes chunks_;
  uint64_t slice_count_;
  uint32_t in_flight_;
  uint32_t lane_count_;
  uint64_t signal_count_;
  uint64_t pending_max_;
  uint64_t pending_ = 0;
  uint64_t steps_done_ = 0;
  uint64_t steps_total_ = 0;
  uint64_t copied_bytes_ = 0;
  uint64_t remote_bytes_ = 0;
  uint64_t operations_ = 0;
  std::vector<LaneOps> lanes_;  // [rank * lane_count + lane]
  std::vector<Walk> walks_;     // [rank * in_flight + instance]
  std::vector<uint32_t> step_count_;
  Step step_;               // that is being made
  std::vector<Step> kept_;  // [rank * kStepsKept + number % kStepsKept]
  Status status_;
};

}  // namespace weir::cost
