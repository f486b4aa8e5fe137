// SPDX-License-Identifier: Apache-2.0
#include "core/engine/lane_plan.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/engine/chunk_map.h"

namespace weir::engine {

namespace {

using sched::OpCode;
using sched::Ref;
using sched::Space;

bool names_chunk(Ref ref) { return ref.space == Space::kInput || ref.space == Space::kOutput; }

// A slot does not say which chunk lies in it, yet both ends of a message must agree on its length.
// So a receive into scratch takes the length that the next operation on the slot names, and a send
// from scratch that of what was put there. One number per operation and chunk, in the order of the
// operations.
class ScratchLengths {
 public:
  ScratchLengths(const sched::Program& program, const ChunkMap& map)
      : program_(program), map_(map) {
    constexpr size_t kUnknown = SIZE_MAX;
    std::vector<size_t> next(program.shape.scratch_slots, kUnknown);
    received_.resize(program.ops.size());
    for (size_t i = program.ops.size(); i-- > 0;) {
      const sched::Op& op = program.ops[i];
      const bool writes =
          op.code == OpCode::kRecv || op.code == OpCode::kCopy || op.code == OpCode::kReduce;
      if (op.code == OpCode::kRecv && op.dst.space == Space::kScratch)
        received_[i].resize(op.count);
      for (uint32_t k = 0; k < op.count; ++k) {
        if (writes && op.dst.space == Space::kScratch) {
          size_t& slot = next[op.dst.chunk + k];
          if (op.code == OpCode::kRecv)
            received_[i][k] = slot == kUnknown ? map.length_max() : slot;
          slot = kUnknown;
        }
        const size_t named = named_length(op, k);
        if (named == kUnknown) continue;
        if (op.code == OpCode::kCopy && op.src.space == Space::kScratch)
          next[op.src.chunk + k] = named;
        if (op.code == OpCode::kReduce) {
          for (uint32_t m = 0; m < op.operand_count; ++m) {
            const Ref operand = program.operands[op.first_operand + m];
            if (operand.space == Space::kScratch) next[operand.chunk + k] = named;
          }
        }
      }
    }
    held_.assign(program.shape.scratch_slots, map.length_max());
  }

  // To be called once for each operation in order; the length, in elements, of its k-th chunk.
  size_t visit(size_t op_index, uint32_t k) {
    const sched::Op& op = program_.ops[op_index];
    size_t length = named_length(op, k);
    if (length == SIZE_MAX) {
      if (op.code == OpCode::kRecv) {
        length = received_[op_index][k];
      } else if (op.code == OpCode::kReduce) {
        length = held_[program_.operands[op.first_operand].chunk + k];
      } else {
        length = held_[op.src.chunk + k];
      }
    }
    if (op.code != OpCode::kSend && op.dst.space == Space::kScratch)
      held_[op.dst.chunk + k] = length;
    return length;
  }

 private:
  size_t named_length(const sched::Op& op, uint32_t k) const {
    if (op.code != OpCode::kSend && names_chunk(op.dst)) return map_.length(op.dst.chunk + k);
    if ((op.code == OpCode::kSend || op.code == OpCode::kCopy) && names_chunk(op.src)) {
      return map_.length(op.src.chunk + k);
    }
    if (op.code == OpCode::kReduce) {
      for (uint32_t m = 0; m < op.operand_count; ++m) {
        const Ref operand = program_.operands[op.first_operand + m];
        if (names_chunk(operand)) return map_.length(operand.chunk + k);
      }
    }
    return SIZE_MAX;
  }

  const sched::Program& program_;
  const ChunkMap& map_;
  std::vector<std::vector<size_t>> received_;
  std::vector<size_t> held_;
};

}  // namespace

Result<std::unique_ptr<LanePlan>> LanePlan::bind(const sched::Program& program, const Call& call,
                                                 uint64_t slice_bytes,
                                                 uint32_t transport_lane_count, bool rank_order) {
  auto plan = std::make_unique<LanePlan>();
  const ChunkMap map(call, program.rank, program.rank_count, program.shape.chunk_count);
  const uint64_t element = element_bytes(call.type);
  const uint64_t longest_bytes = map.length_max() * element;
  const uint32_t lane_count = std::max<uint32_t>(1, program.shape.lane_count);
  if (lane_count + 1 > transport_lane_count) {
    return Status(Code::kUnsupported, "the transport has too few lanes for this program");
  }
  plan->rank_ = program.rank;
  plan->rank_count_ = program.rank_count;
  plan->element_bytes_ = element;
  plan->kernel_ = reduce_kernel(call.type, call.fold);
  plan->divide_in_reduce_ = rank_order;
  // A short last slice would cost as much latency as a long one: even slices.
  const uint64_t slices = std::max<uint64_t>(1, (longest_bytes + slice_bytes - 1) / slice_bytes);
  plan->slice_bytes_ =
      std::max<uint64_t>(64, ((longest_bytes + slices - 1) / slices + 63) / 64 * 64);
  plan->slice_count_ = slices;
  plan->in_flight_ = static_cast<uint32_t>(
      std::min<uint64_t>(slices, std::max(1u, (transport_lane_count - 1) / lane_count)));
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

  ScratchLengths lengths(program, map);
  auto place = [&](Ref ref, uint32_t index) -> LanePlace {
    const uint32_t chunk = ref.chunk + index;
    switch (ref.space) {
      case Space::kInput:
        return {LanePlace::Base::kInput, map.input_offset(chunk) * element};
      case Space::kOutput:
        return {LanePlace::Base::kOutput, map.output_offset(chunk) * element};
      default:
        return {LanePlace::Base::kScratch, uint64_t{chunk} * plan->slice_bytes_};
    }
  };
  for (size_t op_index = 0; op_index < program.ops.size(); ++op_index) {
    const sched::Op& op = program.ops[op_index];
    auto& lane = plan->lanes_[op.lane];
    if (op.code == OpCode::kFence) continue;
    if (op.code == OpCode::kSignal || op.code == OpCode::kWait) {
      // Lanes of one rank are joined by signals to itself.
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
    if (op.code == OpCode::kPut) {
      return Status(Code::kUnsupported, "this program needs mapped memory");
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
      bound.length_bytes = lengths.visit(op_index, i) * element;
      if (op.code != OpCode::kSend) bound.dst = place(op.dst, i);
      if (op.code == OpCode::kSend || op.code == OpCode::kCopy) bound.src = place(op.src, i);
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
  return plan;
}

}  // namespace weir::engine
