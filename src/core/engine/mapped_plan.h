// SPDX-License-Identifier: Apache-2.0
// MappedPlan: a one-lane program of copies, reductions, signals and waits, bound to the mapped
// segment, a data type and sizes. User pointers stay arguments, so every equal call reuses the
// plan.
//
// Slices. The program runs once per slice of every chunk, and slices overlap: the waits cut the
// program into *stages*, each stage goes through the slices in order, and a stage may run for slice
// s as soon as the stage before has run for s and the peers it waits for have signalled s. Staging
// slots of slice s are entry s of a ring; an entry is written again only when every rank has
// finished the slice that used it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/engine/call.h"
#include "core/engine/context.h"
#include "core/engine/reduce.h"
#include "core/engine/run.h"
#include "core/engine/store_choice.h"
#include "core/engine/tree.h"
#include "core/sched/program.h"

namespace weir::engine {

// Where an operand lies: bases[base] + offset (+ the slice's part).
struct Place {
  uint32_t base = 0;    // index into the bases of the run
  bool staged = false;  // in the ring: + ring offset of the slice; else + slice * slice_bytes
  uint8_t folds = 0;    // of an operand of a tree
  uint64_t offset_bytes = 0;
  // Where the base is nullptr, which is a peer's closed buffer: index of another operand that
  // stands in for it.
  uint32_t stand_in = kNoSource;
};

struct MappedOp {
  bool reduce = false;   // else copy of operand 0 (a scaled copy is a reduce of one operand)
  bool second = false;   // second_dst is in use
  bool partial = false;  // further folds complete the result: no division for an average
  bool tree = false;     // a reduce of a fold over leaves; result: dst is Output
  bool result = false;
  sched::When when = sched::When::kAlways;  // of what the run's own Input must be
  uint32_t scaled_operand = kNoSource;
  uint32_t first_operand = 0;
  uint32_t operand_count = 0;
  uint64_t length_bytes = 0;  // of the whole chunk
  Place dst;
  Place second_dst;
};

struct Stage {
  int wait_phase = -1;  // signal index waited for, or -1
  sched::When wait_when = sched::When::kAlways;
  std::vector<Rank> wait_ranks;
  uint32_t first_op = 0;
  uint32_t op_count = 0;
  int signal_phase = -1;
};

// How a plan divides its data; chosen by size (slicing.h).
struct Slicing {
  uint64_t slice_bytes = 0;  // of one chunk, and of a staging slot; multiple of 64
  uint64_t entry_bytes = 0;  // staging slots of one slice
  uint64_t ring_bytes = 0;   // multiple of entry_bytes
  // Whether the kind of stores is chosen by measurement (store_choice.h); else plain stores.
  bool choose_slot_stores = false;
  bool choose_output_stores = false;
  // One slice; each staging slot ends with its own flag (line protocol, see line_run.h).
  bool embedded_flags = false;
};

class MappedPlan {
 public:
  // kUnsupported when the program has other operations. `known_signal`: a signal that every rank is
  // known to have given when a run starts, so that none gives it or waits for it; or
  // kNoKnownSignal.
  static constexpr uint32_t kNoKnownSignal = kPhaseCount;
  static Result<std::unique_ptr<MappedPlan>> bind(const sched::Program& program, const Call& call,
                                                  const Slicing& slicing, Arithmetic arithmetic,
                                                  uint32_t known_signal = kNoKnownSignal);

  uint64_t slice_count() const { return slice_count_; }
  const Slicing& slicing() const { return slicing_; }
  size_t stage_count() const { return stages_.size(); }
  // The stages that show how fast each kind of stores is: the one that fills slots only, and the
  // last one that writes to users' buffers only. Past the end: none.
  size_t slot_stage() const { return slot_stage_; }
  size_t output_stage() const { return output_stage_; }
  bool uses_scratch() const { return scratch_ != nullptr; }

 private:
  friend class MappedRun;
  friend class LineRun;

  // What is folded into scratch only to be copied from there goes where the copy goes.
  void write_past_scratch();
  bool writes_to_scratch() const;
  void find_measured_stages();

  Slicing slicing_;
  uint64_t what_ = 0;  // pack_what of the call
  Rank rank_ = 0;
  Rank rank_count_ = 1;
  uint64_t slice_count_ = 1;
  // Of a fold over leaves: of a partial result. Those of results, of which Output consists, are
  // shorter by this shift.
  uint64_t element_bytes_ = 1;
  uint32_t output_shift_ = 0;
  uint32_t divisor_ = 1;
  bool scaled_ = false;
  bool hears_all_ = false;  // a rank that has finished knows that all ranks have begun
  bool mutual_ = false;     // the collective has no root
  ReduceKernel kernel_ = nullptr;
  TreeKernels tree_;  // of a fold over leaves
  std::vector<MappedOp> ops_;
  std::vector<Place> operands_;
  std::vector<Stage> stages_;
  size_t slot_stage_ = 0;
  size_t output_stage_ = 0;
  std::unique_ptr<unsigned char[]> scratch_;  // slots, each a ring like the staging ring
  // Used by the one run at a time. The peer reads data that plain stores leave in a shared cache so
  // much faster that these stores may take 4.5 times as long (docs/performance.md).
  mutable StoreChoice slot_stores_{4.5};
  mutable StoreChoice output_stores_{1.02};
};

// The indices of a run's bases over n ranks.
inline constexpr uint32_t kBaseInput = 0;
inline constexpr uint32_t kBaseOutput = 1;
inline constexpr uint32_t kBaseStaging = 2;  // + rank
inline uint32_t base_peer_input(Rank rank_count, Rank peer) { return 2 + rank_count + peer; }
inline uint32_t base_peer_output(Rank rank_count, Rank peer) { return 2 + 2 * rank_count + peer; }
inline uint32_t base_scratch(Rank rank_count) { return 2 + 3 * rank_count; }

}  // namespace weir::engine
