// SPDX-License-Identifier: Apache-2.0
#include "core/sched/told.h"

#include "core/sched/layout.h"

namespace weir::sched {

namespace {

Ref with_inputs(const Ref& ref, const std::vector<bool>& open) {
  if (ref.slot == kNoSlot) return ref;
  if (open[ref.rank]) return {ref.chunk, ref.rank, ref.space};
  return {ref.slot, ref.rank, Space::kStaging};
}

}  // namespace

Program with_inputs(const Program& program, const std::vector<bool>& open) {
  Program made = program;
  made.ops.clear();
  for (const Op& op : program.ops) {
    if (!holds(op.when, open[program.rank])) continue;
    made.ops.push_back(op);
    made.ops.back().when = When::kAlways;
    made.ops.back().src = with_inputs(op.src, open);
  }
  for (Ref& operand : made.operands) operand = with_inputs(operand, open);
  return made;
}

uint64_t touched_chunks(const Program& program, bool in_place) {
  const Layout layout(program.collective, program.rank_count, program.root, program.shape,
                      in_place);
  uint64_t chunks = 0;
  for (const Op& op : program.ops) {
    if (op.code == OpCode::kReduce) chunks += uint64_t{op.operand_count + 1} * op.count;
    if (op.code != OpCode::kCopy) continue;
    if (layout.find(op.dst, op.count) != layout.find(op.src, op.count)) chunks += 2ull * op.count;
  }
  return chunks;
}

}  // namespace weir::sched
