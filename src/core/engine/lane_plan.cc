// SPDX-License-Identifier: Apache-2.0
#include "core/engine/lane_plan.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "core/engine/chunk_map.h"
#include "core/sched/moved_chunks.h"

namespace weir::engine {

using sched::OpCode;
using sched::Ref;
using sched::Space;

Result<std::unique_ptr<LanePlan>> LanePlan::bind(const sched::Program& program, const Call& call,
                                                 uint64_t slice_bytes, uint32_t transport_lanes,
                                                 bool rank_order, Arithmetic arithmetic) {
  auto plan = std::make_unique<LanePlan>();
  const ChunkMap map(call, program.rank, program.rank_count, program.shape.chunk_count);
  const uint64_t element = input_element_bytes(call);
  const uint64_t output_element = element_bytes(call.type);
  const uint64_t longest_bytes = map.length_max() * element;
  const uint32_t lane_count = std::max<uint32_t>(1, program.shape.lane_count);
  if (lane_count > transport_lanes) {
    return Status(Code::kUnsupported, "the transport has too few lanes for this program");
  }
  plan->rank_ = program.rank;
  plan->rank_count_ = program.rank_count;
  plan->element_bytes_ = element;
  plan->kernel_ = reduce_kernel(call.type, call.fold, arithmetic);
  plan->divide_in_reduce_ = rank_order;
  plan->output_shift_ = static_cast<uint32_t>(std::countr_zero(element / output_element));
  if (call.leaf_count > 0) {
    plan->tree_ = tree_kernels(call.type, call.fold);
    if (call.average) plan->divisor_ = call.leaf_count;
  }
  // Slices are even, because a short last slice would cost as much latency as a long one.
  const uint64_t slices =
      slice_bytes == 0 ? 1 : std::max<uint64_t>(1, (longest_bytes + slice_bytes - 1) / slice_bytes);
  plan->slice_bytes_ =
      std::max<uint64_t>(64, ((longest_bytes + slices - 1) / slices + 63) / 64 * 64);
  plan->slice_count_ = slices;
  plan->in_flight_ =
      static_cast<uint32_t>(std::min<uint64_t>(slices, std::max(1u, transport_lanes / lane_count)));
  plan->scratch_slots_ = program.shape.scratch_slots;
  plan->lanes_.resize(lane_count);
  plan->signal_count_ = program.shape.signal_count;
  plan->signals_.assign(plan->signal_count_, 0);

  const bool even = call.block_counts == nullptr;
  const Rank n = program.rank_count;
  const bool at_root = program.rank == program.root;
  uint64_t block_bytes_sum = 0;
  for (Rank i = 0; i < n; ++i) {
    block_bytes_sum += (even ? call.count : call.block_counts[i]) * element;
  }
  const uint64_t own_block_bytes = (even ? call.count : call.block_counts[program.rank]) * element;
  switch (call.collective) {
    case Collective::kReduceScatter:
      plan->input_bytes_ = block_bytes_sum;
      plan->output_bytes_ = own_block_bytes;
      break;
    case Collective::kReduce:
      plan->input_bytes_ = call.count * element;
      plan->output_bytes_ = at_root ? call.count * element : 0;
      break;
    case Collective::kAllReduce:
      plan->input_bytes_ = plan->output_bytes_ = call.count * element;
      break;
    default:
      break;  // only reductions scale or divide
  }

  const sched::MovedChunks moved(program);
  // Both ends of a message must agree on its length. Data of unknown length is only passed on,
  // which happens in programs whose chunks all have one length.
  auto length_bytes = [&](uint32_t op_index, uint32_t index) {
    const uint32_t chunk = moved.chunk(op_index, index);
    return (chunk == sched::MovedChunks::kUnknown ? map.length_max() : map.length(chunk)) * element;
  };
  auto place = [&](Ref ref, uint32_t index) -> LanePlace {
    const uint32_t chunk = ref.chunk + index;
    switch (ref.space) {
      case Space::kInput:
        return {LanePlace::Base::kInput, ref.folds,
                (ref.node * map.node_stride() + map.input_offset(chunk)) * element};
      case Space::kOutput:
        return {LanePlace::Base::kOutput, ref.folds, map.output_offset(chunk) * output_element};
      default:
        return {LanePlace::Base::kScratch, ref.folds, uint64_t{chunk} * plan->slice_bytes_};
    }
  };
  for (uint32_t op_index = 0; op_index < program.ops.size(); ++op_index) {
    const sched::Op& op = program.ops[op_index];
    auto& lane = plan->lanes_[op.lane];
    if (op.code == OpCode::kSignal || op.code == OpCode::kWait) {
      // Signals of a rank to itself synchronize its lanes.
      if (op.peer != program.rank) {
        return Status(Code::kUnsupported, "this program needs mapped memory");
      }
      LaneOp bound;
      bound.code = op.code;
      bound.signal = op.signal;
      bound.value = op.value;
      if (op.code == OpCode::kSignal) ++plan->signals_[op.signal];
      lane.push_back(bound);
      continue;
    }
    const bool message = op.code == OpCode::kSend || op.code == OpCode::kRecv;
    if (message && op.count == 0) {
      LaneOp bound;
      bound.code = op.code;
      bound.peer = op.peer;
      lane.push_back(bound);
      continue;
    }
    for (uint32_t i = 0; i < op.count; ++i) {
      LaneOp bound;
      bound.code = op.code;
      bound.peer = op.peer;
      bound.length_bytes = length_bytes(op_index, i);
      if (op.code != OpCode::kSend) bound.dst = place(op.dst, i);
      bound.tree = op.tree;
      bound.result = call.leaf_count > 0 &&
                     (op.code == OpCode::kSend ? op.src : op.dst).space == Space::kOutput;
      if (op.code == OpCode::kSend || op.code == OpCode::kCopy) bound.src = place(op.src, i);
      if (chooses_stores(bound, std::min(bound.length_bytes, plan->slice_bytes_))) {
        plan->choose_output_stores_ = true;
      }
      if (op.code == OpCode::kReduce) {
        bound.first_operand = static_cast<uint32_t>(plan->operands_.size());
        bound.operand_count = op.operand_count;
        for (uint32_t k = 0; k < op.operand_count; ++k) {
          plan->operands_.push_back(place(program.operands[op.first_operand + k], i));
        }
      }
      lane.push_back(bound);
    }
  }
  for (std::vector<LaneOp>& lane : plan->lanes_) {
    uint32_t receive_count = 0;
    for (auto op = lane.rbegin(); op != lane.rend(); ++op) {
      receive_count = op->code == OpCode::kRecv ? receive_count + 1 : 0;
      op->receive_count = receive_count;
    }
    const auto sends = static_cast<uint32_t>(std::count_if(
        lane.begin(), lane.end(), [](const LaneOp& op) { return op.code == OpCode::kSend; }));
    plan->sends_max_ = std::max(plan->sends_max_, sends + std::min(sends, n));
  }
  return plan;
}

}  // namespace weir::engine
