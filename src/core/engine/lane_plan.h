// SPDX-License-Identifier: Apache-2.0
// LanePlan: any program of sends, receives, copies and reductions, bound to a data type and sizes,
// for every transport. User pointers stay arguments.
//
// Slices. The program runs once per slice of every chunk, so that messages stay cache-sized and the
// network, the copies and the reductions overlap: `in_flight` slices run side by side, each on
// transport lanes of its own (lane 0 of the transport is kept for point-to-point operations).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/engine/call.h"
#include "core/engine/reduce.h"
#include "core/engine/store_choice.h"
#include "core/engine/tree.h"
#include "core/sched/program.h"

namespace weir::engine {

struct LanePlace {
  enum class Base : uint8_t { kInput, kOutput, kScratch };
  Base base = Base::kInput;
  uint8_t folds = 0;  // of an operand of a tree
  uint64_t offset_bytes = 0;
};

struct LaneOp {
  sched::OpCode code = sched::OpCode::kCopy;
  bool tree = false;    // a reduce of a fold over leaves
  bool result = false;  // of it: what moves, or what is written, are rounded results of Output
  Rank peer = 0;
  uint32_t signal = 0;  // signal and wait, both to the rank itself
  uint32_t value = 0;
  uint32_t first_operand = 0;  // into LanePlan::operands_; a copy has one, a reduce several
  uint32_t operand_count = 0;
  uint32_t receive_count = 0;  // of a receive: it and the receives right after it
  uint64_t length_bytes = 0;   // of the whole chunk; 0 for a bare message
  LanePlace dst;
  LanePlace src;
};

// Whether a copy of so many bytes is done with the stores that are faster there: of a rank's own
// block into the user's output.
inline bool chooses_stores(const LaneOp& op, uint64_t bytes) {
  constexpr uint64_t kBytesMin = 64 * 1024;
  return op.code == sched::OpCode::kCopy && op.dst.base == LanePlace::Base::kOutput &&
         bytes >= kBytesMin;
}

class LanePlan {
 public:
  // `slice_bytes`: the longest slice; 0: chunks are not cut. Programs may use
  // `transport_lanes` lanes.
  // `rank_order`: every reduce of the program is a complete fold. kUnsupported when the program
  // needs mapped memory.
  static Result<std::unique_ptr<LanePlan>> bind(const sched::Program& program, const Call& call,
                                                uint64_t slice_bytes, uint32_t transport_lanes,
                                                bool rank_order, Arithmetic arithmetic);

  uint32_t lane_count() const { return static_cast<uint32_t>(lanes_.size()); }  // of the program
  uint32_t in_flight() const { return in_flight_; }  // slices, each over lanes of its own
  uint64_t slice_bytes() const { return slice_bytes_; }
  uint64_t scratch_bytes() const { return scratch_slots_ * slice_bytes_ * in_flight_; }

 private:
  friend class LaneRun;

  Rank rank_ = 0;
  Rank rank_count_ = 1;
  uint64_t slice_bytes_ = 0;
  uint64_t slice_count_ = 1;
  uint32_t in_flight_ = 1;
  uint64_t scratch_slots_ = 0;
  uint32_t sends_max_ = 0;  // of one lane and slice, headers included
  uint32_t signal_count_ = 0;
  std::vector<uint64_t> signals_;  // how often a program gives the signal of each index
  // Of a fold over leaves: of a partial result, which all lengths count. Those of results are
  // shorter by this shift.
  uint64_t element_bytes_ = 1;
  uint32_t output_shift_ = 0;
  uint32_t divisor_ = 1;  // of a tree
  bool divide_in_reduce_ = false;
  uint64_t input_bytes_ = 0;  // of the user's buffers on this rank
  uint64_t output_bytes_ = 0;
  ReduceKernel kernel_ = nullptr;
  TreeKernels tree_;
  std::vector<std::vector<LaneOp>> lanes_;
  std::vector<LanePlace> operands_;
  bool choose_output_stores_ = false;
  mutable StoreChoice output_stores_{1.02};
};

}  // namespace weir::engine
