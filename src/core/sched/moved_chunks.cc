// SPDX-License-Identifier: Apache-2.0
#include "core/sched/moved_chunks.h"

#include <numeric>

namespace weir::sched {
namespace {

// Sets of uses that must refer to the same chunk (disjoint sets, with path halving).
class Groups {
 public:
  explicit Groups(size_t count) : parent_(count), chunk_(count, MovedChunks::kUnknown) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t root(size_t use) {
    while (parent_[use] != use) use = parent_[use] = parent_[parent_[use]];
    return use;
  }
  void join(size_t a, size_t b) {
    a = root(a);
    b = root(b);
    if (a == b) return;
    parent_[b] = a;
    if (chunk_[a] == MovedChunks::kUnknown) chunk_[a] = chunk_[b];
  }
  void name(size_t use, uint32_t chunk) { chunk_[root(use)] = chunk; }
  uint32_t chunk(size_t use) { return chunk_[root(use)]; }

 private:
  std::vector<size_t> parent_;
  std::vector<uint32_t> chunk_;
};

constexpr size_t kNoUse = static_cast<size_t>(-1);
constexpr uint32_t kNoLane = 0xffffffffu;
constexpr uint32_t kShared = 0xfffffffeu;

bool has_dst(OpCode code) {
  return code == OpCode::kRecv || code == OpCode::kCopy || code == OpCode::kReduce;
}

bool has_src(OpCode code) { return code == OpCode::kSend || code == OpCode::kCopy; }

// Calls visit for each reference that the operation reads.
template <typename Visit>
void for_each_source(const Program& program, const Op& op, Visit&& visit) {
  if (has_src(op.code)) visit(op.src);
  if (op.code != OpCode::kReduce) return;
  for (uint32_t k = 0; k < op.operand_count; ++k) visit(program.operands[op.first_operand + k]);
}

}  // namespace

MovedChunks::MovedChunks(const Program& program) {
  first_.reserve(program.ops.size());
  size_t use_count = 0;
  std::vector<uint32_t> lane_of_slot(program.shape.scratch_slots, kNoLane);
  for (const Op& op : program.ops) {
    const bool moves = has_dst(op.code) || has_src(op.code);
    first_.push_back(use_count);
    if (!moves) continue;
    use_count += op.count;
    const auto note_lane = [&](const Ref& ref) {
      if (ref.space != Space::kScratch) return;
      for (uint32_t k = 0; k < op.count; ++k) {
        uint32_t& lane = lane_of_slot[ref.chunk + k];
        lane = lane == kNoLane || lane == op.lane ? op.lane : kShared;
      }
    };
    if (has_dst(op.code)) note_lane(op.dst);
    for_each_source(program, op, note_lane);
  }

  if (program.moved_chunks.size() == use_count && use_count > 0) {
    chunks_ = program.moved_chunks;
    check_messages(program);
    return;
  }
  Groups groups(use_count);
  std::vector<size_t> writer_of_slot(program.shape.scratch_slots, kNoUse);
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    const auto name_by = [&](const Ref& ref, uint32_t k) {
      if (ref.space <= Space::kOutput) groups.name(first_[i] + k, ref.chunk + k);
    };
    for_each_source(program, op, [&](const Ref& ref) {
      for (uint32_t k = 0; k < op.count; ++k) {
        name_by(ref, k);
        if (ref.space != Space::kScratch || lane_of_slot[ref.chunk + k] == kShared) continue;
        const size_t writer = writer_of_slot[ref.chunk + k];
        if (writer != kNoUse) groups.join(writer, first_[i] + k);
      }
    });
    if (!has_dst(op.code)) continue;
    for (uint32_t k = 0; k < op.count; ++k) {
      name_by(op.dst, k);
      if (op.dst.space == Space::kScratch) writer_of_slot[op.dst.chunk + k] = first_[i] + k;
    }
  }

  chunks_.resize(use_count);
  for (size_t use = 0; use < use_count; ++use) chunks_[use] = groups.chunk(use);
  check_messages(program);
}

void MovedChunks::check_messages(const Program& program) {
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    if (op.code != OpCode::kSend && op.code != OpCode::kRecv) continue;
    for (uint32_t k = 0; k < op.count; ++k) {
      all_messages_known_ = all_messages_known_ && chunks_[first_[i] + k] != kUnknown;
    }
  }
}

}  // namespace weir::sched
