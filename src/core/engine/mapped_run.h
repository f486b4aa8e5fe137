// SPDX-License-Identifier: Apache-2.0
// MappedRun: executes a MappedPlan slice by slice over the staging ring. See mapped_plan.h for the
// order in which stages and slices interleave. Restarted for each operation, so that a warm call
// allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/engine/mapped_plan.h"

namespace weir::engine {

class MappedRun final : public Run {
 public:
  // Begins the next operation of the context. `peer_inputs` and `peer_outputs`: the peers' buffers
  // in this process's address space by rank, for programs over user windows; else empty. `plan` and
  // `call` must live until the run is done.
  void start(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint, Context& context,
             std::span<unsigned char* const> peer_inputs = {},
             std::span<unsigned char* const> peer_outputs = {});

  Advance advance(Context& context) override;
  void collect_awaited(const Context& context, std::vector<Rank>* ranks) const override;
  RunPosition position() const override;

 private:
  bool ready(Context& context, uint32_t stage, uint64_t slice);
  bool peer_reached(Context& context, Rank peer, uint32_t phase, uint64_t slice);
  // False when the peer is known to run a different call under this sequence number.
  bool same_call(const Control& peer, const PhaseLine& line) const;
  void run_stage(Context& context, uint32_t stage_index, uint64_t slice);
  // Prefetches the lines that the next stage will write while the run waits for peers.
  void prefetch_outputs(uint64_t slice) const;

  const MappedPlan* plan_ = nullptr;
  const Call* call_ = nullptr;
  uint32_t fingerprint_ = 0;
  bool described_ = false;
  uint64_t sequence_ = 0;
  uint64_t start_ = 0;  // ring position of slice 0
  std::vector<unsigned char*> bases_;
  std::vector<uint64_t> next_slice_;  // by stage
  std::vector<const void*> sources_;  // of the reduction being run
  std::vector<TreeOperand> tree_operands_;
};

}  // namespace weir::engine
