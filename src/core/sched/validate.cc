// SPDX-License-Identifier: Apache-2.0
#include "core/sched/validate.h"

#include <fmt/format.h>

#include "core/base/leaves.h"
#include "core/sched/print.h"

namespace weir::sched {
namespace {

Flaw bounds(const Program& program, uint32_t op_index, const std::string& what) {
  return {Flaw::Kind::kBounds, program.rank, op_index,
          fmt::format("{}: {}", locate(program, op_index), what)};
}

const char* long_name(Space space) {
  switch (space) {
    case Space::kInput:
      return "Input";
    case Space::kOutput:
      return "Output";
    case Space::kScratch:
      return "Scratch";
    case Space::kStaging:
      return "Staging";
  }
  return "unknown";
}

// Checks the operations of one program. Every function returns the text of the first flaw, or "".
class OpChecker {
 public:
  OpChecker(const Program& program, const Layout& layout, const Access& access)
      : program_(program), layout_(layout), access_(access) {}

  std::string check(const Op& op) {
    if (op.lane >= program_.shape.lane_count) {
      return fmt::format("lane {} is out of range, the program has {}", op.lane,
                         program_.shape.lane_count);
    }
    switch (op.code) {
      case OpCode::kSend:
        return check_message(op, op.src, "src", false);
      case OpCode::kRecv:
        return check_message(op, op.dst, "dst", true);
      case OpCode::kCopy:
        return check_copy(op);
      case OpCode::kReduce:
        return check_reduce(op);
      case OpCode::kSignal:
      case OpCode::kWait:
        return check_signal(op);
    }
    return "unknown operation code";
  }

 private:
  // Checks a reference: the memory exists, holds the chunks, and is reachable.
  std::string check_ref(const Ref& ref, uint32_t count, const char* field, bool is_written) {
    if (ref.rank >= program_.rank_count) {
      return fmt::format("{}.rank {} is out of range, there are {} ranks", field, ref.rank,
                         program_.rank_count);
    }
    if (ref.space > Space::kStaging) return fmt::format("{}.space is unknown", field);
    if (is_written && ref.space == Space::kInput) {
      return fmt::format("{} is in the user's send buffer, which is never written", field);
    }
    if (ref.rank != program_.rank) {
      if (ref.space == Space::kScratch) {
        return fmt::format("{} is private scratch of rank {}", field, ref.rank);
      }
      const bool reachable = ref.space == Space::kStaging ? access_.mapped
                             : ref.space == Space::kInput ? access_.inputs_mapped
                                                          : access_.outputs_mapped;
      if (!reachable) {
        return fmt::format("{} is at rank {}, whose {} is not mapped", field, ref.rank,
                           long_name(ref.space));
      }
    }
    if (layout_.find(ref, count) == Layout::kNowhere) {
      return fmt::format("{}: {} of rank {} does not hold {}", field, long_name(ref.space),
                         ref.rank,
                         count == 1 ? fmt::format("chunk {}", ref.chunk)
                                    : fmt::format("the {} chunks from {}", count, ref.chunk));
    }
    return "";
  }

  std::string check_count(const Op& op) const {
    return op.count == 0 ? "count is 0: only messages may be empty" : "";
  }

  std::string check_overlap(const Op& op, const Ref& src) const {
    const uint64_t to = layout_.find(op.dst, op.count);
    const uint64_t from = layout_.find(src, op.count);
    if (to != from && to < from + op.count && from < to + op.count) {
      return "source and destination overlap in part";
    }
    return "";
  }

  std::string check_message(const Op& op, const Ref& ref, const char* field, bool is_written) {
    if (op.peer >= program_.rank_count) {
      return fmt::format("peer {} is out of range, there are {} ranks", op.peer,
                         program_.rank_count);
    }
    if (op.peer == program_.rank) return "a rank does not send to itself, use copy";
    if (op.count == 0) return "";
    if (ref.rank != program_.rank) return fmt::format("{} of a message must be local", field);
    return check_ref(ref, op.count, field, is_written);
  }

  std::string check_copy(const Op& op) {
    std::string text = check_count(op);
    if (text.empty()) text = check_ref(op.dst, op.count, "dst", true);
    if (text.empty()) text = check_ref(op.src, op.count, "src", false);
    if (text.empty() && op.dst.rank != program_.rank && op.src.rank != program_.rank) {
      text = "source and destination are both at peers";
    }
    if (text.empty() && program_.shape.leaf_count > 0 &&
        (op.dst.space == Space::kOutput || op.src.space == Space::kOutput)) {
      text = "with leaves, a copy is of partial results, and Output holds rounded ones";
    }
    return text.empty() ? check_overlap(op, op.src) : text;
  }

  std::string check_reduce(const Op& op) {
    if (op.operand_count == 0) return "operand_count is 0";
    if (uint64_t{op.first_operand} + op.operand_count > program_.operands.size()) {
      return fmt::format("operands {}..{} are out of range, the program has {}", op.first_operand,
                         uint64_t{op.first_operand} + op.operand_count - 1,
                         program_.operands.size());
    }
    std::string text = check_count(op);
    if (text.empty() && op.dst.rank != program_.rank) text = "dst of a reduce must be local";
    if (text.empty()) text = check_ref(op.dst, op.count, "dst", true);
    for (uint32_t i = 0; text.empty() && i < op.operand_count; ++i) {
      const Ref& operand = program_.operands[op.first_operand + i];
      text = check_ref(operand, op.count, "operand", false);
      if (text.empty()) text = check_overlap(op, operand);
      if (!text.empty()) text = fmt::format("operand {} of {}: {}", i, op.operand_count, text);
    }
    return text.empty() ? check_tree(op) : text;
  }

  std::string check_tree(const Op& op) const {
    if (op.tree != (program_.shape.leaf_count > 0)) {
      return op.tree ? "a tree of folds, but there are no leaves"
                     : "with leaves, a reduce is a tree of folds";
    }
    if (!op.tree) return "";
    uint32_t depth = 0;
    for (uint32_t i = 0; i < op.operand_count; ++i) {
      const Ref& operand = program_.operands[op.first_operand + i];
      if (operand.space == Space::kOutput) return "an operand is a rounded result";
      if (++depth > kTreeDepthMax) return fmt::format("the stack holds {} operands", depth);
      if (operand.folds >= depth) return fmt::format("operand {} has no operand to its left", i);
      depth -= operand.folds;
    }
    return depth == 1 ? "" : fmt::format("{} operands are not folded", depth);
  }

  std::string check_signal(const Op& op) const {
    if (op.signal >= program_.shape.signal_count) {
      return fmt::format("signal {} is out of range, the program has {}", op.signal,
                         program_.shape.signal_count);
    }
    if (op.peer >= program_.rank_count && op.peer != kAllRanks) {
      return fmt::format("peer {} is out of range, there are {} ranks", op.peer,
                         program_.rank_count);
    }
    if (op.peer != kAllRanks && op.peer != program_.rank && !access_.mapped) {
      return "signals to and from peers need mapped memory";
    }
    if (op.peer == kAllRanks && program_.rank_count > 1 && !access_.mapped) {
      return "signals to and from peers need mapped memory";
    }
    if (op.code == OpCode::kWait && op.value == 0) return "value is 0: a wait for nothing";
    return "";
  }

  const Program& program_;
  const Layout& layout_;
  const Access& access_;
};

}  // namespace

const char* name_of(Flaw::Kind kind) {
  switch (kind) {
    case Flaw::Kind::kNone:
      return "none";
    case Flaw::Kind::kBounds:
      return "bounds";
    case Flaw::Kind::kDeadlock:
      return "deadlock";
    case Flaw::Kind::kRace:
      return "race";
    case Flaw::Kind::kValue:
      return "value";
    case Flaw::Kind::kOrder:
      return "order";
  }
  return "unknown";
}

Flaw validate_head(const Program& program) {
  const Shape& shape = program.shape;
  const auto flaw = [&program](const std::string& what) {
    return bounds(program, Flaw::kNoOp, what);
  };
  if (program.rank_count == 0 || program.rank_count > kVerifiedRankCountMax) {
    return flaw(
        fmt::format("rank_count {} is not in 1..{}", program.rank_count, kVerifiedRankCountMax));
  }
  if (program.rank >= program.rank_count) {
    return flaw(fmt::format("rank is out of range, there are {} ranks", program.rank_count));
  }
  if (program.root >= program.rank_count) {
    return flaw(fmt::format("root {} is out of range, there are {} ranks", program.root,
                            program.rank_count));
  }
  if (program.collective >= Collective::kSendRecv) return flaw("collective is not known");
  if (shape.lane_count == 0 || shape.lane_count > kLaneCountMax) {
    return flaw(fmt::format("lane_count {} is not in 1..{}", shape.lane_count, kLaneCountMax));
  }
  if (program.rank_count * shape.lane_count > kVerifiedThreadCountMax) {
    return flaw(fmt::format("{} lanes of {} ranks are more than the {} threads that can be checked",
                            shape.lane_count, program.rank_count, kVerifiedThreadCountMax));
  }
  if (shape.signal_count > kSignalCountMax) {
    return flaw(fmt::format("signal_count {} is above {}", shape.signal_count, kSignalCountMax));
  }
  const bool is_barrier = program.collective == Collective::kBarrier;
  if (is_barrier != (shape.chunk_count == 0)) {
    return flaw(fmt::format("chunk_count {} does not suit {}", shape.chunk_count,
                            weir::name_of(program.collective)));
  }
  if (!is_barrier &&
      chunks_per_block(program.collective, program.rank_count, shape.chunk_count) == 0) {
    return flaw(fmt::format("chunk_count {} is not a multiple of the number of blocks of {}",
                            shape.chunk_count, weir::name_of(program.collective)));
  }
  // all_to_all has n^2 blocks, of which a rank holds n in each buffer.
  const uint64_t held = program.collective == Collective::kAllToAll
                            ? shape.chunk_count / program.rank_count
                            : shape.chunk_count;
  const bool reduces = program.collective == Collective::kAllReduce ||
                       program.collective == Collective::kReduceScatter ||
                       program.collective == Collective::kReduce;
  if (shape.leaf_count > kLeafCountMax || (shape.leaf_count > 0 && !reduces)) {
    return flaw(fmt::format("leaf_count {} does not suit {}", shape.leaf_count,
                            weir::name_of(program.collective)));
  }
  const uint64_t node_count_max = shape.leaf_count > 0 ? 2 * kLeafLevelMax + 1 : 1;
  const uint64_t places =
      (1 + node_count_max) * held + shape.scratch_slots + uint64_t{shape.staging_slots};
  if (places * program.rank_count > kVerifiedPlaceCountMax) {
    return flaw(
        fmt::format("{} chunks and slots per rank on {} ranks are more than the {} that can "
                    "be checked",
                    places, program.rank_count, kVerifiedPlaceCountMax));
  }
  return {};
}

Flaw validate_heads(std::span<const Program> programs) {
  if (programs.empty()) return {Flaw::Kind::kBounds, 0, Flaw::kNoOp, "there is no program"};
  const Program& first = programs[0];
  Flaw flaw = validate_head(first);
  if (flaw.found()) return flaw;
  if (programs.size() != first.rank_count) {
    return bounds(first, Flaw::kNoOp,
                  fmt::format("rank_count is {} but there are {} programs", first.rank_count,
                              programs.size()));
  }
  const Shape& expected = first.shape;
  for (Rank rank = 0; rank < first.rank_count; ++rank) {
    const Program& program = programs[rank];
    const Shape& shape = program.shape;
    if (program.rank != rank) {
      return bounds(program, Flaw::kNoOp,
                    fmt::format("is in the place of the program of rank {}", rank));
    }
    const char* field = program.collective != first.collective          ? "collective"
                        : program.rank_count != first.rank_count        ? "rank_count"
                        : program.root != first.root                    ? "root"
                        : shape.chunk_count != expected.chunk_count     ? "chunk_count"
                        : shape.scratch_slots != expected.scratch_slots ? "scratch_slots"
                        : shape.staging_slots != expected.staging_slots ? "staging_slots"
                        : shape.lane_count != expected.lane_count       ? "lane_count"
                        : shape.signal_count != expected.signal_count   ? "signal_count"
                        : shape.leaf_count != expected.leaf_count       ? "leaf_count"
                                                                        : nullptr;
    if (field != nullptr) {
      return bounds(program, Flaw::kNoOp, fmt::format("{} is not that of rank 0", field));
    }
  }
  return {};
}

Flaw validate_ops(const Program& program, const Layout& layout, const Access& access) {
  OpChecker checker(program, layout, access);
  for (uint32_t i = 0; i < program.ops.size(); ++i) {
    const std::string text = checker.check(program.ops[i]);
    if (!text.empty()) return bounds(program, i, text);
  }
  return {};
}

}  // namespace weir::sched
