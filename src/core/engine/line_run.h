// SPDX-License-Identifier: Apache-2.0
// LineRun: executes a MappedPlan with embedded flags, the short way for small messages. A staging
// slot is
//
//   [payload, contiguous][padding][flag, the last 8 bytes of the last cache line]
//
// with flag = sequence << 32 | call fingerprint, stored (release) after the payload. So up to 56
// bytes travel with their flag in one cache line, a reader that sees the flag sees the payload, and
// the flag says which call it belongs to. Slots lie in one of two rings, and neither needs a trailing
// barrier:
//
// - Mutual operations, in which every rank hears every other (all but the rooted ones): two entries
//   in turn. Who begins the k-th has heard in the one before that every rank had finished the one
//   before that, which used the same entry. The few lines stay in the fastest cache.
// - Rooted operations: kRootedLineEntries by sequence number, since the root may be far ahead; that
//   no rank is more than kOperationsAhead operations ahead makes reuse safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/engine/mapped_plan.h"

namespace weir::engine {

// Bytes of a slot for a payload.
constexpr uint64_t line_slot_bytes(uint64_t payload_bytes) {
  return (payload_bytes + sizeof(uint64_t) + 63) / 64 * 64;
}

class LineRun final : public Run {
 public:
  void start(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint, Context& context);
  Advance advance(Context& context) override;
  void collect_awaited(const Context& context, std::vector<Rank>* ranks) const override;
  RunPosition position() const override;
  uint64_t flag() const { return flag_; }  // call_flag of the operation

 private:
  const MappedPlan* plan_ = nullptr;
  const Call* call_ = nullptr;
  uint32_t fingerprint_ = 0;
  uint32_t next_op_ = 0;
  uint64_t start_ = 0;
  uint64_t flag_ = 0;
  bool described_ = false;
  std::vector<unsigned char*> bases_;
  std::vector<const void*> sources_;
};

}  // namespace weir::engine
