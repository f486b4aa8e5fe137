// SPDX-License-Identifier: Apache-2.0
#include "core/engine/mapped_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "core/base/check.h"
#include "core/engine/chunk_map.h"

namespace weir::engine {

namespace {

using sched::OpCode;
using sched::Ref;
using sched::Space;

// Translates references to chunks into places, one chunk at a time.
class Binder {
 public:
  Binder(const sched::Program& program, const Call& call, const Slicing& slicing)
      : program_(program),
        call_(call),
        slicing_(slicing),
        map_(call, program.rank, program.rank_count, program.shape.chunk_count),
        element_bytes_(input_element_bytes(call)),
        output_element_bytes_(element_bytes(call.type)) {}

  const ChunkMap& map() const { return map_; }

  // The length of the data that moves: that of the grid chunk named by either side. A slot alone
  // does not tell what it holds.
  bool names_length(Ref a, Ref b) const { return names_chunk(a) || names_chunk(b); }
  uint64_t length_bytes(Ref a, Ref b, uint32_t index) const {
    return map_.length((names_chunk(a) ? a : b).chunk + index) * element_bytes_;
  }

  Place place(Ref ref, uint32_t index) const {
    const uint32_t chunk = ref.chunk + index;
    const bool local = ref.rank == program_.rank;
    Place place;
    place.folds = ref.folds;
    switch (ref.space) {
      case Space::kInput:
        place.base = local ? kBaseInput : base_peer_input(program_.rank_count, ref.rank);
        // Of an all_to_all_v that base is the block itself.
        if (!local && call_.recv_counts != nullptr) break;
        place.offset_bytes =
            (ref.node * map_.node_stride() + map_.input_offset(chunk)) * element_bytes_;
        break;
      case Space::kOutput:
        place.base = local ? kBaseOutput : base_peer_output(program_.rank_count, ref.rank);
        place.offset_bytes = map_.output_offset(chunk) * output_element_bytes_;
        break;
      case Space::kStaging:
        place.base = kBaseStaging + ref.rank;
        place.offset_bytes = uint64_t{chunk} * slicing_.slice_bytes;
        place.staged = true;
        break;
      case Space::kScratch:
        // Slices overlap, so each has its own part of a slot.
        place.base = base_scratch(program_.rank_count);
        place.offset_bytes = uint64_t{chunk} * slicing_.ring_bytes;
        place.staged = true;
        break;
    }
    return place;
  }

  static bool names_chunk(Ref ref) {
    return ref.space == Space::kInput || ref.space == Space::kOutput;
  }

 private:
  const sched::Program& program_;
  const Call& call_;
  const Slicing& slicing_;
  ChunkMap map_;
  uint64_t element_bytes_;
  uint64_t output_element_bytes_;
};

bool same_place(const Place& a, const Place& b) {
  return a.base == b.base && a.staged == b.staged && a.offset_bytes == b.offset_bytes;
}

}  // namespace

bool MappedPlan::writes_to_scratch() const {
  const uint32_t scratch = base_scratch(rank_count_);
  return std::any_of(ops_.begin(), ops_.end(), [scratch](const MappedOp& op) {
    return op.dst.base == scratch || (op.second && op.second_dst.base == scratch);
  });
}

void MappedPlan::write_past_scratch() {
  const auto in_scratch = [this](const Place& place) {
    return place.base == base_scratch(rank_count_);
  };
  if (std::any_of(operands_.begin(), operands_.end(), in_scratch)) return;
  for (MappedOp& op : ops_) {
    if (!op.second || !in_scratch(op.dst)) continue;
    op.dst = op.second_dst;
    op.second = false;
  }
}

void MappedPlan::find_measured_stages() {
  slot_stage_ = output_stage_ = stages_.size();
  const auto is_slot = [this](const MappedOp& op) {
    return !op.second && op.dst.base == kBaseStaging + rank_;
  };
  const auto is_output = [this](const MappedOp& op) {
    const auto lies_in = [this](const Place& place) {
      return place.base == kBaseOutput || (place.base >= base_peer_output(rank_count_, 0) &&
                                           place.base < base_scratch(rank_count_));
    };
    return lies_in(op.dst) && (!op.second || lies_in(op.second_dst));
  };
  for (size_t k = 0; k < stages_.size(); ++k) {
    if (stages_[k].op_count == 0) continue;
    const auto begin = ops_.begin() + stages_[k].first_op;
    const auto end = begin + stages_[k].op_count;
    if (slot_stage_ == stages_.size() && std::all_of(begin, end, is_slot)) slot_stage_ = k;
    if (std::all_of(begin, end, is_output)) output_stage_ = k;
  }
}

Result<std::unique_ptr<MappedPlan>> MappedPlan::bind(const sched::Program& program,
                                                     const Call& call, const Slicing& slicing,
                                                     Arithmetic arithmetic, uint32_t known_signal) {
  auto plan = std::make_unique<MappedPlan>();
  plan->slicing_ = slicing;
  plan->rank_ = program.rank;
  plan->rank_count_ = program.rank_count;
  plan->what_ = pack_what(call);
  plan->element_bytes_ = input_element_bytes(call);
  plan->output_shift_ =
      static_cast<uint32_t>(std::countr_zero(plan->element_bytes_ / element_bytes(call.type)));
  plan->kernel_ = reduce_kernel(call.type, call.fold, arithmetic);
  plan->divisor_ = call.average ? program.rank_count : 1;
  if (call.leaf_count > 0) {
    plan->tree_ = tree_kernels(call.type, call.fold);
    plan->divisor_ = call.average ? call.leaf_count : 1;
  }
  plan->scaled_ = call.scaled;
  WEIR_CHECK(slicing.slice_bytes % 64 == 0 && slicing.slice_bytes > 0, "slices are whole lines");
  WEIR_CHECK(slicing.entry_bytes >= program.shape.staging_slots * slicing.slice_bytes &&
                 slicing.ring_bytes >= slicing.entry_bytes,
             "an entry holds the slots of one slice");

  WEIR_CHECK(!slicing.embedded_flags || program.shape.scratch_slots == 0,
             "the line protocol has no scratch");
  Binder binder(program, call, slicing);
  const uint64_t longest_bytes = binder.map().length_max() * plan->element_bytes_;
  plan->slice_count_ =
      std::max<uint64_t>(1, (longest_bytes + slicing.slice_bytes - 1) / slicing.slice_bytes);
  WEIR_CHECK(!slicing.embedded_flags || plan->slice_count_ == 1, "the line protocol has one slice");

  Stage stage;
  bool stage_has_work = false;
  std::array<bool, kPhaseCount> signalled{};
  auto end_stage = [&] {
    stage.op_count = static_cast<uint32_t>(plan->ops_.size()) - stage.first_op;
    plan->stages_.push_back(stage);
    stage = Stage{};
    stage.first_op = static_cast<uint32_t>(plan->ops_.size());
    stage_has_work = false;
  };

  std::vector<Place> stand_ins;

  for (const sched::Op& op : program.ops) {
    if (op.lane != 0) return Status(Code::kUnsupported, "a mapped program has one lane");
    switch (op.code) {
      case OpCode::kSignal:
        // A signal is visible to all ranks, whichever it is meant for, so each index is published
        // once.
        if (op.signal >= kPhaseCount || stage.signal_phase >= 0 || signalled[op.signal] ||
            op.when != sched::When::kAlways) {
          return Status(Code::kUnsupported,
                        fmt::format("a mapped program uses signals 0 to {}, each once, one a stage",
                                    kPhaseCount - 1));
        }
        signalled[op.signal] = true;
        if (op.signal == known_signal) break;
        stage.signal_phase = op.signal;
        stage_has_work = true;
        break;
      case OpCode::kWait:
        if (op.signal >= kPhaseCount || op.value != 1) {
          return Status(Code::kUnsupported,
                        "a mapped program waits for the first signal of an index");
        }
        if (op.signal == known_signal) break;
        if (stage_has_work || (stage.wait_phase >= 0 &&
                               (stage.wait_phase != op.signal || stage.wait_when != op.when))) {
          end_stage();
        }
        stage.wait_phase = op.signal;
        stage.wait_when = op.when;
        if (op.peer == sched::kAllRanks) {
          stage.wait_ranks.clear();
          for (Rank p = 0; p < program.rank_count; ++p) {
            if (p != program.rank) stage.wait_ranks.push_back(p);
          }
        } else if (std::find(stage.wait_ranks.begin(), stage.wait_ranks.end(), op.peer) ==
                   stage.wait_ranks.end()) {
          stage.wait_ranks.push_back(op.peer);
        }
        break;
      case OpCode::kCopy:
      case OpCode::kReduce: {
        if (stage.signal_phase >= 0) end_stage();
        stage_has_work = true;
        const bool reduce = op.code == OpCode::kReduce;
        Ref named = op.src;
        for (uint32_t k = 0; reduce && k < op.operand_count; ++k) {
          const Ref operand = program.operands[op.first_operand + k];
          if (k == 0 || Binder::names_chunk(operand)) named = operand;
        }
        if (!binder.names_length(op.dst, named)) {
          return Status(Code::kUnsupported, "a mapped program copies from or to a user's buffer");
        }
        for (uint32_t i = 0; i < op.count; ++i) {
          MappedOp bound;
          bound.reduce = reduce;
          bound.partial = op.partial;
          bound.when = op.when;
          bound.tree = op.tree;
          bound.result = op.tree && op.dst.space == Space::kOutput;
          bound.length_bytes = binder.length_bytes(op.dst, named, i);
          bound.dst = binder.place(op.dst, i);
          bound.first_operand = static_cast<uint32_t>(plan->operands_.size());
          bound.operand_count = reduce ? op.operand_count : 1;
          for (uint32_t k = 0; k < bound.operand_count; ++k) {
            const Ref ref = reduce ? program.operands[op.first_operand + k] : op.src;
            plan->operands_.push_back(binder.place(ref, i));
            if (ref.slot != sched::kNoSlot) {
              plan->operands_.back().stand_in = static_cast<uint32_t>(stand_ins.size());
              stand_ins.push_back(binder.place({ref.slot, ref.rank, Space::kStaging}, i));
            }
            // A pre-multiplied sum scales the rank's own input at each place where it is read.
            if (call.scaled && ref.space == Space::kInput && ref.rank == program.rank) {
              bound.scaled_operand = k;
              bound.reduce = true;
            }
          }
          // What another rank has folded is only copied where it has the type of the result: of
          // several leaves, Staging holds single operands of a tree only then.
          if (op.tree && op.operand_count == 1 && call.leaf_count > 1 && !call.average &&
              plan->output_shift_ == 0 && named.space == Space::kStaging) {
            bound.reduce = bound.tree = bound.result = false;
          }
          // A reduction to the output and a copy of it into staging: one pass writes both.
          if (!reduce && !plan->ops_.empty() && plan->ops_.size() > stage.first_op) {
            MappedOp& before = plan->ops_.back();
            if (before.reduce && !before.tree && !before.second &&
                before.length_bytes == bound.length_bytes && before.when == bound.when &&
                same_place(before.dst, plan->operands_.back())) {
              before.second = true;
              before.second_dst = bound.dst;
              plan->operands_.pop_back();
              continue;
            }
          }
          plan->ops_.push_back(bound);
        }
        break;
      }
      case OpCode::kSend:
      case OpCode::kRecv:
        return Status(Code::kUnsupported, "a mapped program has no messages");
    }
  }
  end_stage();
  if (plan->writes_to_scratch()) {
    plan->write_past_scratch();
    if (plan->writes_to_scratch()) {
      plan->scratch_.reset(new unsigned char[program.shape.scratch_slots * slicing.ring_bytes]);
    }
  }
  const auto operand_count = static_cast<uint32_t>(plan->operands_.size());
  for (Place& operand : plan->operands_) {
    if (operand.stand_in != kNoSource) operand.stand_in += operand_count;
  }
  plan->operands_.insert(plan->operands_.end(), stand_ins.begin(), stand_ins.end());
  plan->find_measured_stages();

  std::vector<bool> heard(program.rank_count, false);
  for (const Stage& s : plan->stages_) {
    if (s.wait_when != sched::When::kAlways) continue;
    for (const Rank p : s.wait_ranks) heard[p] = true;
  }
  heard[program.rank] = true;
  plan->hears_all_ = std::all_of(heard.begin(), heard.end(), [](bool h) { return h; });
  plan->mutual_ = !is_rooted(call.collective);
  WEIR_CHECK(!slicing.embedded_flags || !plan->mutual_ || plan->hears_all_,
             "a mutual operation by lines hears every rank");
  return plan;
}

}  // namespace weir::engine
