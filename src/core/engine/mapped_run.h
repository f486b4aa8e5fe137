// SPDX-License-Identifier: Apache-2.0
// MappedRun: executes a MappedPlan slice by slice over the staging ring. See mapped_plan.h for the
// order in which stages and slices interleave. Restarted for each operation, so that a warm call
// allocates nothing.
//
// Buffers that are told. Each rank writes into the descriptor of the call (control.h) where its
// Input lies, as a word that the caller of the engine understands, and then gives its first signal.
// Who sees that signal reads the word, and from then on reads that Input, or what stands in for it.
// So the program is the same on all ranks, and telling takes no round of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/engine/mapped_plan.h"
#include "core/sched/told.h"

namespace weir::engine {

// What the word of a rank says.
class ToldBuffers {
 public:
  virtual ~ToldBuffers() = default;
  // The address at which this process reaches the Input of `peer` in the call under way, which its
  // word, not 0, names; nullptr: it names memory that this process does not reach.
  virtual unsigned char* find(Rank peer, uint64_t word) = 0;
};

// Of a call that names memory of `peer` which this rank no longer knows.
Status unknown_memory(Rank peer);

class MappedRun final : public Run {
 public:
  // Begins the next operation of the context. `peer_inputs` and `peer_outputs`: the peers' buffers
  // in this process's address space by rank, for programs over user windows; else empty. Of an
  // all_to_all_v the inputs are the blocks that this rank receives. `plan` and
  // `call` must live until the run is done.
  void start(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint, Context& context,
             std::span<unsigned char* const> peer_inputs = {},
             std::span<unsigned char* const> peer_outputs = {});

  // The same for a program for Problem::told. `own_word`: of this rank's Input; 0: it is closed.
  // `told` must live until the run is done.
  void start_told(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint,
                  Context& context, uint64_t own_word, ToldBuffers& told);
  // Bytes that this rank has read and written in a run that is told; a copy onto itself moves none.
  uint64_t touched_bytes() const { return touched_bytes_; }

  Advance advance(Context& context) override;
  void collect_awaited(const Context& context, std::vector<Rank>* ranks) const override;
  RunPosition position() const override;

 private:
  bool ready(Context& context, uint32_t stage, uint64_t slice);
  bool peer_reached(Context& context, Rank peer, uint32_t phase, uint64_t slice);
  // Reads the word of a peer whose signal has arrived. False: not, or status_ says why.
  bool hear(Context& context, Rank peer);
  bool holds(sched::When when) const { return sched::holds(when, input_open_); }
  unsigned char* address(const Place& place, uint64_t ring_offset, uint64_t slice_offset) const;
  // False when the peer is known to run a different call under this sequence number.
  bool same_call(const Control& peer, const PhaseLine& line) const;
  void run_stage(Context& context, uint32_t stage_index, uint64_t slice);
  // Prefetches the lines that the next stage will write while the run waits for peers.
  void prefetch_outputs(uint64_t slice) const;

  const MappedPlan* plan_ = nullptr;
  const Call* call_ = nullptr;
  uint32_t mark_ = 0;
  bool described_ = false;
  uint64_t sequence_ = 0;
  uint64_t start_ = 0;  // ring position of slice 0
  std::vector<unsigned char*> bases_;
  ToldBuffers* told_ = nullptr;  // nullptr: all buffers of peers are open, or not used
  bool input_open_ = true;       // of this rank
  uint64_t touched_bytes_ = 0;
  std::vector<uint64_t> next_slice_;  // by stage
  std::vector<const void*> sources_;  // of the reduction being run
  std::vector<TreeOperand> tree_operands_;
};

}  // namespace weir::engine
