// SPDX-License-Identifier: Apache-2.0
#include "core/sched/peephole.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/sched/print.h"

namespace weir::sched {
namespace {

bool same(const Ref& a, const Ref& b) {
  return a.chunk == b.chunk && a.rank == b.rank && a.space == b.space;
}

// Walks a program backwards, knowing for each scratch slot whether its content is still needed.
// Only slots that one lane has for itself are looked at, so that other lanes' operations do not
// matter.
class Walker {
 public:
  explicit Walker(const Program& program)
      : program_(program),
        needed_(program.shape.scratch_slots, false),
        lane_of_slot_(program.shape.scratch_slots, kNoLane),
        last_(program.shape.lane_count) {
    for (const Op& op : program.ops) {
      for_each_access(op, [&](const Ref& ref, bool /*is_write*/) {
        for (uint32_t slot = ref.chunk; slot < ref.chunk + op.count; ++slot) {
          if (lane_of_slot_[slot] == kNoLane) lane_of_slot_[slot] = op.lane;
          if (lane_of_slot_[slot] != op.lane) lane_of_slot_[slot] = kSharedByLanes;
        }
      });
    }
  }

  // Calls visit(index, fusible) for every operation, last first; fusible: with the next of its
  // lane.
  template <typename Visit>
  void walk(Visit&& visit) {
    for (size_t i = program_.ops.size(); i-- > 0;) {
      const Op& op = program_.ops[i];
      Passed& next = last_[op.lane];
      visit(i, next.op != nullptr && fusible(op, next));
      next = {&op, consumable_operands(op)};
      // Reads after writes: an operand that is also the destination is needed before the operation.
      for (const bool is_write_pass : {true, false}) {
        for_each_access(op, [&](const Ref& ref, bool is_write) {
          if (is_write == is_write_pass) {
            std::fill_n(needed_.begin() + ref.chunk, op.count, !is_write);
          }
        });
      }
    }
  }

 private:
  static constexpr uint32_t kNoLane = 0xffffffffu;
  static constexpr uint32_t kSharedByLanes = 0xfffffffeu;

  // The operation of a lane that was passed last, and which of its scratch operands nobody needs
  // after.
  struct Passed {
    const Op* op = nullptr;
    std::vector<Ref> consumable;
  };

  // Calls visit(ref, is_write) for what the operation accesses in Scratch.
  template <typename Visit>
  void for_each_access(const Op& op, Visit&& visit) const {
    const bool writes =
        op.code == OpCode::kRecv || op.code == OpCode::kCopy || op.code == OpCode::kReduce;
    const bool reads =
        op.code == OpCode::kSend || op.code == OpCode::kCopy || op.code == OpCode::kPut;
    if (writes && op.dst.space == Space::kScratch) visit(op.dst, true);
    if (reads && op.src.space == Space::kScratch) visit(op.src, false);
    if (op.code != OpCode::kReduce) return;
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      const Ref& operand = program_.operands[op.first_operand + k];
      if (operand.space == Space::kScratch) visit(operand, false);
    }
  }

  // Given needed_ after `op`.
  std::vector<Ref> consumable_operands(const Op& op) const {
    std::vector<Ref> result;
    if (op.code != OpCode::kReduce) return result;
    for_each_access(op, [&](const Ref& ref, bool is_write) {
      if (is_write) return;
      for (uint32_t slot = ref.chunk; slot < ref.chunk + op.count; ++slot) {
        if (lane_of_slot_[slot] != op.lane) return;
        if (needed_[slot] && !same(ref, op.dst)) return;
      }
      result.push_back(ref);
    });
    return result;
  }

  bool fusible(const Op& op, const Passed& next) const {
    if (op.count == 0 || op.count != next.op->count) return false;
    if (op.code != OpCode::kRecv && op.code != OpCode::kReduce) return false;
    if (next.op->code == OpCode::kSend || next.op->code == OpCode::kCopy) {
      return same(op.dst, next.op->src);
    }
    if (op.code != OpCode::kRecv || next.op->code != OpCode::kReduce) return false;
    const auto is_received = [&](const Ref& ref) { return same(ref, op.dst); };
    if (std::none_of(next.consumable.begin(), next.consumable.end(), is_received)) return false;
    // Not twice, and not in part by another operand.
    uint32_t overlapping = 0;
    for_each_access(*next.op, [&](const Ref& ref, bool is_write) {
      const bool overlaps =
          ref.chunk < op.dst.chunk + op.count && op.dst.chunk < ref.chunk + op.count;
      if (!is_write && overlaps) ++overlapping;
    });
    return overlapping == 1;
  }

  const Program& program_;
  std::vector<bool> needed_;
  std::vector<uint32_t> lane_of_slot_;
  std::vector<Passed> last_;  // by lane
};

}  // namespace

uint32_t mark_fused(Program* program) {
  std::vector<bool> marks(program->ops.size());
  Walker(*program).walk([&](size_t index, bool fusible) { marks[index] = fusible; });
  uint32_t count = 0;
  for (size_t i = 0; i < marks.size(); ++i) {
    uint8_t& flags = program->ops[i].flags;
    flags = static_cast<uint8_t>(marks[i] ? flags | kFusedWithNext : flags & ~kFusedWithNext);
    count += marks[i] ? 1 : 0;
  }
  return count;
}

std::string check_marks(const Program& program) {
  std::string text;
  Walker(program).walk([&](size_t index, bool fusible) {
    const bool is_marked = (program.ops[index].flags & kFusedWithNext) != 0;
    if (is_marked && !fusible) {
      text = fmt::format("{} must not be fused with the next operation of its lane",
                         locate(program, static_cast<uint32_t>(index)));
    }
  });
  return text;
}

}  // namespace weir::sched
