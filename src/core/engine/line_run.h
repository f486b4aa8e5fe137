// SPDX-License-Identifier: Apache-2.0
// LineRun: executes a MappedPlan with embedded flags, the fast path for small messages. A staging
// slot is
//
//   [payload, contiguous][padding][flag, the last 8 bytes of the last cache line]
//
// with flag = (sequence << 32 | call mark) ^ bytes of payload, stored (release) after the
// payload. So up to 56 bytes travel with their flag in one cache line, a reader that sees the flag
// sees the payload, and the flag says which call it belongs to and how long the payload is. Slots
// lie in one of two rings, and neither needs a trailing barrier:
//
// - Mutual operations, in which every rank reads from every other (all but the rooted ones): two
//   entries, used alternately. A rank that begins operation k has seen in operation k - 1 that
//   every rank had finished k - 2, which used the same entry. The few lines stay in the fastest
//   cache.
// - Rooted operations: kRootedLineEntries by sequence number, since the root may be far ahead. No
//   rank is more than kOperationsAhead operations ahead, which makes reuse safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/engine/mapped_plan.h"

namespace weir::engine {

// Bytes of a slot for a payload.
constexpr uint64_t line_slot_bytes(uint64_t payload_bytes) {
  return (payload_bytes + sizeof(uint64_t) + 63) / 64 * 64;
}

// The longest payload for which the slots of `rank_count` ranks fit into one entry.
constexpr uint64_t line_payload_bytes(Rank rank_count) {
  const uint64_t slot_bytes = kLineEntryBytes / rank_count / 64 * 64;
  return slot_bytes == 0 ? 0 : slot_bytes - sizeof(uint64_t);
}

class LineRun final : public Run {
 public:
  void start(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint, Context& context);
  // Fills the slots of an operation that the ranks have not agreed on yet. If they do (start with
  // the same plan), the run goes on from there; else no rank reads the slots.
  void publish_ahead(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint,
                     Context& context);
  // A rank whose slots of the operation published ahead have not arrived yet, or are of another
  // length than this rank expects; none when all have arrived.
  std::optional<Rank> unpublished(const Context& context) const;
  Advance advance(Context& context) override;
  void collect_awaited(const Context& context, std::vector<Rank>* ranks) const override;
  RunPosition position() const override;

 private:
  void bind(const MappedPlan& plan, const Call& call, uint32_t mark, uint64_t sequence,
            uint64_t entry, Context& context);
  void execute(const MappedOp& op, Context& context);
  void execute_tree(const MappedOp& op, unsigned char* dst);

  const MappedPlan* plan_ = nullptr;
  const Call* call_ = nullptr;
  uint32_t mark_ = 0;
  uint32_t next_op_ = 0;
  uint64_t start_ = 0;
  uint64_t ahead_flag_ = 0;  // of the operation published ahead last
  uint32_t ahead_op_count_ = 0;
  uint64_t flag_ = 0;
  bool described_ = false;
  bool heard_ = false;   // the data of a peer has arrived
  bool waited_ = false;  // it had not when this rank needed it
  std::vector<unsigned char*> bases_;
  std::vector<const void*> sources_;
  std::vector<TreeOperand> tree_operands_;
};

}  // namespace weir::engine
