// SPDX-License-Identifier: Apache-2.0
#include "core/algo/imported.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/sched/validate.h"
#include "core/sched/verify.h"

namespace weir::algo {
namespace {

using sched::Op;
using sched::OpCode;
using sched::Program;
using sched::ProgramSet;
using sched::Ref;
using sched::Space;

constexpr uint32_t kOpsPerStep = 256;

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

Status check_name(const std::string& name, Collective collective) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
  if (name.empty() || name.size() > kImportedNameBytesMax || !plain) {
    return invalid_argument(
        fmt::format("the name of a set of programs has 1 to {} letters, digits, '_', '-' and '.'; "
                    "give it another name",
                    kImportedNameBytesMax));
  }
  if (find_algorithm(collective, name) != nullptr) {
    return invalid_argument(
        fmt::format("'{}' is the name of an algorithm of {} that Weir has; give it another name",
                    name, weir::name_of(collective)));
  }
  return {};
}

Status check_limits(const ProgramSet& set) {
  const Program& head = set.programs[0];
  const sched::Shape& shape = head.shape;
  const auto above = [](const char* what, uint64_t count, uint64_t max) {
    return invalid_argument(
        fmt::format("{} {} are more than the {} of programs that can run", count, what, max));
  };
  if (head.rank_count > kImportedRankCountMax) {
    return above("ranks", head.rank_count, kImportedRankCountMax);
  }
  const uint64_t pairs = uint64_t{head.rank_count} * head.rank_count;
  if (head.rank_count * shape.lane_count > kImportedThreadCountMax) {
    return above("lanes of all ranks", head.rank_count * shape.lane_count, kImportedThreadCountMax);
  }
  if (pairs * std::max(shape.lane_count, shape.signal_count) > kImportedCounterCountMax) {
    return above("lanes, or signals, between all pairs of ranks",
                 pairs * std::max(shape.lane_count, shape.signal_count), kImportedCounterCountMax);
  }
  uint64_t op_count = 0;
  for (const Program& program : set.programs) {
    op_count += program.ops.size() + program.operands.size();
    for (const Op& op : program.ops) op_count += op.count > 1 ? op.count - 1 : 0;
  }
  if (op_count > kImportedOpCountMax) {
    return above("operations (each chunk and operand counts)", op_count, kImportedOpCountMax);
  }
  if (shape.scratch_slots > kImportedScratchSlotCountMax) {
    return above("scratch slots", shape.scratch_slots, kImportedScratchSlotCountMax);
  }
  if (shape.staging_slots > kImportedStagingSlotCountMax) {
    return above("staging slots", shape.staging_slots, kImportedStagingSlotCountMax);
  }
  const uint64_t held = head.collective == Collective::kAllToAll
                            ? shape.chunk_count / head.rank_count
                            : shape.chunk_count;
  const uint64_t places =
      (2 * held + shape.scratch_slots + shape.staging_slots) * uint64_t{head.rank_count};
  if (places > kImportedPlaceCountMax) {
    return above("chunks and slots of all ranks", places, kImportedPlaceCountMax);
  }
  return {};
}

Status check_set(const ProgramSet& set, ImportFor use) {
  const sched::Flaw flaw = sched::validate_heads(set.programs);
  if (flaw.found()) return invalid_argument(flaw.text);
  if (use == ImportFor::kRunning) WEIR_RETURN_IF_ERROR(check_limits(set));
  const Program& head = set.programs[0];
  const sched::Layout layout(head.collective, head.rank_count, head.root, head.shape, false);
  for (const Program& program : set.programs) {
    const sched::Flaw found = sched::validate_ops(program, layout, set.access);
    if (found.found()) return invalid_argument("the programs are wrong (bounds): " + found.text);
  }
  return {};
}

// Calls visit(ref) for every reference of an operation.
template <typename Visit>
void for_each_ref(const Program& program, const Op& op, Visit&& visit) {
  switch (op.code) {
    case OpCode::kSend:
      return visit(op.src);
    case OpCode::kRecv:
      return visit(op.dst);
    case OpCode::kCopy:
      visit(op.dst);
      return visit(op.src);
    case OpCode::kReduce:
      visit(op.dst);
      for (uint32_t k = 0; k < op.operand_count; ++k) {
        visit(program.operands[op.first_operand + k]);
      }
      return;
    case OpCode::kSignal:
    case OpCode::kWait:
      return;
  }
}

// What the operations of a set use.
struct Uses {
  bool messages = false;
  bool staging = false;  // of peers, or signals to them
  bool windows = false;  // users' memory of peers
};

Uses uses_of(const ProgramSet& set) {
  Uses uses;
  for (const Program& program : set.programs) {
    for (const Op& op : program.ops) {
      if (op.code == OpCode::kSend || op.code == OpCode::kRecv) uses.messages = true;
      if ((op.code == OpCode::kSignal || op.code == OpCode::kWait) && op.peer != program.rank) {
        uses.staging = true;
      }
      for_each_ref(program, op, [&](const Ref& ref) {
        if (ref.space == Space::kStaging) uses.staging = true;
        if (ref.rank != program.rank && ref.space <= Space::kOutput) uses.windows = true;
      });
    }
  }
  return uses;
}

// A fold of one operand is a copy; engines divide the result of a fold for an average.
void copy_single_operands(ProgramSet* set) {
  for (Program& program : set->programs) {
    for (Op& op : program.ops) {
      if (op.code != OpCode::kReduce || op.operand_count != 1) continue;
      op.code = OpCode::kCopy;
      op.src = program.operands[op.first_operand];
      op.operand_count = 0;
    }
  }
}

Op signal_to_self(Rank self, uint32_t lane, uint32_t index) {
  Op op;
  op.code = OpCode::kSignal;
  op.lane = static_cast<uint8_t>(lane);
  op.peer = self;
  op.signal = static_cast<uint8_t>(index);
  return op;
}

Op wait_for_self(Rank self, uint32_t lane, uint32_t index) {
  Op op = signal_to_self(self, lane, index);
  op.code = OpCode::kWait;
  op.value = 1;
  return op;
}

Status take_signals(ProgramSet* set, uint32_t count, uint32_t* first) {
  *first = set->programs[0].shape.signal_count;
  if (*first + count > sched::kSignalCountMax) {
    return invalid_argument(
        fmt::format("signal_count {} is too large: {} more of {} are needed to order the lanes of "
                    "a rank at its end",
                    *first, count, sched::kSignalCountMax));
  }
  for (Program& program : set->programs) program.shape.signal_count += count;
  return {};
}

bool lanes_share_scratch(const ProgramSet& set) {
  constexpr uint32_t kNoLane = 0xffffffffu;
  std::vector<uint32_t> lane_of_slot;
  for (const Program& program : set.programs) {
    lane_of_slot.assign(program.shape.scratch_slots, kNoLane);
    for (const Op& op : program.ops) {
      bool shared = false;
      for_each_ref(program, op, [&](const Ref& ref) {
        if (ref.space != Space::kScratch) return;
        for (uint64_t slot = ref.chunk; slot < uint64_t{ref.chunk} + op.count; ++slot) {
          if (slot >= lane_of_slot.size()) return;
          uint32_t& lane = lane_of_slot[slot];
          shared = shared || (lane != kNoLane && lane != op.lane);
          lane = op.lane;
        }
      });
      if (shared) return true;
    }
  }
  return false;
}

// The engine runs a program again for the next slices, lane by lane. Where lanes share slots, no
// lane may begin again before all lanes of its rank have ended.
Status join_lanes(ProgramSet* set) {
  const uint32_t lane_count = set->programs[0].shape.lane_count;
  if (lane_count == 1 || !lanes_share_scratch(*set)) return {};
  uint32_t first = 0;
  WEIR_RETURN_IF_ERROR(take_signals(set, lane_count, &first));
  for (Program& program : set->programs) {
    for (uint32_t lane = 0; lane < lane_count; ++lane) {
      program.ops.push_back(signal_to_self(program.rank, lane, first + lane));
    }
    for (uint32_t lane = 0; lane < lane_count; ++lane) {
      for (uint32_t other = 0; other < lane_count; ++other) {
        if (other == lane) continue;
        program.ops.push_back(wait_for_self(program.rank, lane, first + other));
      }
    }
  }
  return {};
}

// The chunks that Input of a program's rank holds: first and count.
std::pair<uint32_t, uint32_t> input_of(const Program& program) {
  const uint32_t chunks = program.shape.chunk_count;
  const uint32_t block = chunks / program.rank_count;
  switch (program.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kAllToAll:
      return {program.rank * block, block};
    case Collective::kBroadcast:
    case Collective::kScatter:
      return {0, program.rank == program.root ? chunks : 0};
    default:
      return {0, chunks};
  }
}

// Every rank copies its Input into slots first and reads only these: right in place as well.
Status copy_input_first(ProgramSet* set) {
  const sched::Shape before = set->programs[0].shape;
  uint32_t slots = 0;
  for (const Program& program : set->programs) slots = std::max(slots, input_of(program).second);
  if (before.scratch_slots + slots > kImportedScratchSlotCountMax) {
    return invalid_argument(fmt::format(
        "the programs are right only where Input and Output are apart, and to copy Input first "
        "they would need {} scratch slots of at most {}",
        before.scratch_slots + slots, kImportedScratchSlotCountMax));
  }
  uint32_t signal = 0;
  if (before.lane_count > 1) WEIR_RETURN_IF_ERROR(take_signals(set, 1, &signal));
  for (Program& program : set->programs) {
    program.shape.scratch_slots += slots;
    const auto [first, count] = input_of(program);
    if (count == 0) continue;
    const auto redirect = [&, first = first](Ref& ref) {
      if (ref.space != Space::kInput) return;
      ref = {before.scratch_slots + (ref.chunk - first), program.rank, Space::kScratch};
    };
    for (Op& op : program.ops) {
      if (op.code == OpCode::kSend || op.code == OpCode::kCopy) redirect(op.src);
    }
    for (Ref& operand : program.operands) redirect(operand);
    std::vector<Op> ops(1);
    ops[0].code = OpCode::kCopy;
    ops[0].count = count;
    ops[0].dst = {before.scratch_slots, program.rank, Space::kScratch};
    ops[0].src = {first, program.rank, Space::kInput};
    if (before.lane_count > 1) {
      ops.push_back(signal_to_self(program.rank, 0, signal));
      for (uint32_t lane = 1; lane < before.lane_count; ++lane) {
        ops.push_back(wait_for_self(program.rank, lane, signal));
      }
    }
    program.ops.insert(program.ops.begin(), ops.begin(), ops.end());
  }
  return {};
}

sched::Verdict verify(const ProgramSet& set, bool in_place,
                      std::vector<std::vector<uint32_t>>* moved_chunks = nullptr) {
  sched::VerifyOptions options{.access = set.access};
  options.access.in_place = in_place;
  options.moved_chunks = moved_chunks;
  return sched::verify(set.programs, options);
}

Status refusal(const sched::Verdict& verdict, const char* when) {
  return invalid_argument(fmt::format("the programs are wrong{} ({}): {}", when,
                                      sched::name_of(verdict.flaw.kind), verdict.flaw.text));
}

// The engine divides for an average in each fold of mapped memory, and scales a rank's input where
// it is read: such folds must be complete, and Input must not be read again after it was changed in
// place.
Status check_mapped_reduction(const ProgramSet& set) {
  for (const Program& program : set.programs) {
    if (!reduces(program.collective) || program.rank_count == 1) return {};
    for (uint32_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      const bool partial = op.code == OpCode::kReduce && op.operand_count != program.rank_count;
      const bool passes_on = op.code == OpCode::kCopy && op.src.space == Space::kInput &&
                             op.dst.space == Space::kOutput;
      if (!partial && !passes_on) continue;
      return invalid_argument(fmt::format(
          "rank {} op {}: {}; in memory of peers a reduction folds all ranks in one reduce, whose "
          "operands no Output holds. Write it with messages, or with one fold",
          program.rank, i,
          partial
              ? fmt::format("folds {} operands of {} ranks", op.operand_count, program.rank_count)
              : std::string("copies Input to Output")));
    }
  }
  return {};
}

}  // namespace

Imported::Imported(ProgramSet set, std::string name)
    : name_(std::move(name)),
      set_(std::move(set)),
      algorithm_{.name = name_.c_str(),
                 .summary = "programs from elsewhere",
                 .collective = set_.programs[0].collective,
                 .needs_mapped = false,
                 .needs_user_windows = false,
                 .rank_order = false,
                 .supports = {&Imported::supports, *this},
                 .shape = {&Imported::shape, *this},
                 .step_count = {&Imported::step_count, *this},
                 .step = {&Imported::step, *this},
                 .imported = this} {}

Result<std::shared_ptr<const Imported>> Imported::make(ProgramSet set, std::string name,
                                                       ImportFor use) {
  WEIR_RETURN_IF_ERROR(check_set(set, use));
  WEIR_RETURN_IF_ERROR(check_name(name, set.programs[0].collective));
  std::shared_ptr<Imported> made(new Imported(std::move(set), std::move(name)));
  WEIR_RETURN_IF_ERROR(made->prove());
  return std::shared_ptr<const Imported>(std::move(made));
}

Status Imported::prove() {
  copy_single_operands(&set_);
  const bool says_in_place = set_.access.in_place;
  // The operations that are added below stand behind those given, so that a flaw names these.
  const ProgramSet given = set_;
  WEIR_RETURN_IF_ERROR(join_lanes(&set_));
  std::vector<std::vector<uint32_t>> moved;
  sched::Verdict verdict = verify(set_, false, &moved);
  if (!verdict.ok()) return refusal(verdict, "");
  const Uses uses = uses_of(given);
  const bool mapped = uses.staging || uses.windows;
  if (mapped && uses.messages) {
    return invalid_argument(
        "the programs use both messages and memory of peers or Staging; no transport runs both in "
        "one operation: use either");
  }
  if (set_.programs[0].collective != Collective::kBarrier) {
    sched::Verdict aliased = verify(set_, true);
    if (!aliased.ok() && (says_in_place || mapped)) {
      return refusal(aliased, says_in_place ? " in place, where the file says that they are right"
                                            : " in place");
    }
    if (!aliased.ok()) {
      set_ = given;
      copies_input_ = true;
      WEIR_RETURN_IF_ERROR(copy_input_first(&set_));
      WEIR_RETURN_IF_ERROR(join_lanes(&set_));
      verdict = verify(set_, false, &moved);
      if (!verdict.ok()) return refusal(verdict, " with Input copied first");
      aliased = verify(set_, true);
      if (!aliased.ok()) return refusal(aliased, " in place, also with Input copied first");
    }
  }
  if (mapped) {
    WEIR_RETURN_IF_ERROR(check_mapped_reduction(set_));
  } else {
    for (Rank rank = 0; rank < set_.programs.size(); ++rank) {
      set_.programs[rank].moved_chunks = std::move(moved[rank]);
    }
  }
  algorithm_.needs_mapped = uses.staging;
  algorithm_.needs_user_windows = uses.windows;
  // Only then may a fold divide for an average.
  const Rank n = set_.programs[0].rank_count;
  const bool whole_folds =
      std::all_of(set_.programs.begin(), set_.programs.end(), [n](const Program& program) {
        return std::all_of(program.ops.begin(), program.ops.end(), [n](const Op& op) {
          return op.code != OpCode::kReduce || op.operand_count == n;
        });
      });
  algorithm_.rank_order = verdict.rank_order && whole_folds && n > 1;
  return {};
}

bool Imported::supports(const Imported& self, const Problem& problem) {
  const Program& head = self.set_.programs[0];
  return problem.collective == head.collective && problem.rank_count == head.rank_count &&
         (!is_rooted(head.collective) || problem.root == head.root) &&
         (!self.algorithm_.needs_mapped || problem.mapped) &&
         (!self.algorithm_.needs_user_windows ||
          (problem.mapped && problem.inputs_mapped && problem.outputs_mapped));
}

sched::Shape Imported::shape(const Imported& self, const Problem& /*problem*/) {
  return self.set_.programs[0].shape;
}

uint32_t Imported::step_count(const Imported& self, const Problem& /*problem*/, Rank rank) {
  const size_t count = self.set_.programs[rank].ops.size();
  return static_cast<uint32_t>((count + kOpsPerStep - 1) / kOpsPerStep);
}

void Imported::step(const Imported& self, const Problem& /*problem*/, Rank rank, uint32_t step,
                    sched::Builder& builder) {
  const Program& program = self.set_.programs[rank];
  const size_t begin = size_t{step} * kOpsPerStep;
  const size_t end = std::min(program.ops.size(), begin + kOpsPerStep);
  for (size_t i = begin; i < end; ++i) {
    const Op& op = program.ops[i];
    builder.lane(op.lane);
    switch (op.code) {
      case OpCode::kSend:
        builder.send(op.peer, op.src, op.count);
        break;
      case OpCode::kRecv:
        builder.recv(op.peer, op.dst, op.count);
        break;
      case OpCode::kCopy:
        builder.copy(op.dst, op.src, op.count);
        break;
      case OpCode::kReduce:
        builder.reduce(op.dst, {program.operands.data() + op.first_operand, op.operand_count},
                       op.count);
        break;
      case OpCode::kSignal:
        builder.signal(op.peer, op.signal);
        break;
      case OpCode::kWait:
        builder.wait(op.peer, op.signal, op.value);
        break;
    }
  }
}

}  // namespace weir::algo
