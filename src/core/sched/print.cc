// SPDX-License-Identifier: Apache-2.0
#include "core/sched/print.h"

#include <fmt/format.h>

#include <iterator>

namespace weir::sched {
namespace {

void append_ref(const Ref& ref, uint32_t count, Rank self, std::string* text) {
  auto out = std::back_inserter(*text);
  if (count == 1) {
    fmt::format_to(out, "{}[{}]", name_of(ref.space), ref.chunk);
  } else if (count == 0) {
    fmt::format_to(out, "nothing");
    return;
  } else {
    fmt::format_to(out, "{}[{}..{}]", name_of(ref.space), ref.chunk,
                   uint64_t{ref.chunk} + count - 1);
  }
  if (ref.node > 0) fmt::format_to(out, " of node {}", ref.node);
  if (ref.rank != self) fmt::format_to(out, "@{}", ref.rank);
  if (ref.slot != kNoSlot) fmt::format_to(out, " or staging[{}]@{}", ref.slot, ref.rank);
}

const char* condition(When when) {
  switch (when) {
    case When::kAlways:
      return "";
    case When::kInputOpen:
      return " if in is open";
    case When::kInputClosed:
      return " if in is closed";
  }
  return "";
}

std::string plural(uint32_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string name_of_peer(uint32_t peer) {
  return peer == kAllRanks ? "all" : fmt::format("rank {}", peer);
}

void append_op(const Program& program, const Op& op, std::string* text) {
  auto out = std::back_inserter(*text);
  switch (op.code) {
    case OpCode::kSend:
      append_ref(op.src, op.count, program.rank, text);
      fmt::format_to(out, " -> rank {}", op.peer);
      return;
    case OpCode::kRecv:
      append_ref(op.dst, op.count, program.rank, text);
      fmt::format_to(out, " <- rank {}", op.peer);
      return;
    case OpCode::kCopy:
      append_ref(op.dst, op.count, program.rank, text);
      *text += " <- ";
      append_ref(op.src, op.count, program.rank, text);
      return;
    case OpCode::kReduce:
      append_ref(op.dst, op.count, program.rank, text);
      *text += " <- ";
      for (uint64_t i = 0; i < op.operand_count; ++i) {
        const uint64_t index = op.first_operand + i;
        if (i > 0) *text += op.tree ? " " : " + ";
        if (index >= program.operands.size()) {
          *text += "(no such operand)";
          return;
        }
        append_ref(program.operands[index], op.count, program.rank, text);
        if (op.tree) text->append(program.operands[index].folds, '+');
      }
      return;
    case OpCode::kSignal:
      fmt::format_to(out, "#{} -> {}", op.signal, name_of_peer(op.peer));
      return;
    case OpCode::kWait:
      fmt::format_to(out, "#{} of {} >= {}", op.signal, name_of_peer(op.peer), op.value);
      return;
  }
}

}  // namespace

const char* name_of(OpCode code) {
  switch (code) {
    case OpCode::kSend:
      return "send";
    case OpCode::kRecv:
      return "recv";
    case OpCode::kCopy:
      return "copy";
    case OpCode::kReduce:
      return "reduce";
    case OpCode::kSignal:
      return "signal";
    case OpCode::kWait:
      return "wait";
  }
  return "unknown";
}

const char* name_of(Space space) {
  switch (space) {
    case Space::kInput:
      return "in";
    case Space::kOutput:
      return "out";
    case Space::kScratch:
      return "scratch";
    case Space::kStaging:
      return "staging";
  }
  return "unknown";
}

std::string describe(const Program& program, const Op& op) {
  std::string text = name_of(op.code);
  text += ' ';
  append_op(program, op, &text);
  return text + condition(op.when);
}

std::string locate(const Program& program, uint32_t op_index) {
  if (op_index >= program.ops.size()) return fmt::format("rank {}", program.rank);
  const Op& op = program.ops[op_index];
  return fmt::format("rank {} op {} (lane {}: {})", program.rank, op_index, op.lane,
                     describe(program, op));
}

std::string print(const Program& program) {
  const Shape& shape = program.shape;
  std::string text = fmt::format("rank {} of {}, {}", program.rank, program.rank_count,
                                 weir::name_of(program.collective));
  switch (program.collective) {
    case Collective::kBroadcast:
    case Collective::kReduce:
    case Collective::kGather:
    case Collective::kScatter:
      text += fmt::format(", root {}", program.root);
      break;
    default:
      break;
  }
  text += ": " + plural(shape.chunk_count, "chunk");
  if (shape.scratch_slots > 0) text += ", " + plural(shape.scratch_slots, "scratch slot");
  if (shape.staging_slots > 0) text += ", " + plural(shape.staging_slots, "staging slot");
  text += ", " + plural(shape.lane_count, "lane");
  if (shape.signal_count > 0) text += ", " + plural(shape.signal_count, "signal");
  if (shape.leaf_count > 0) text += fmt::format(", {} leaves", shape.leaf_count);
  text += '\n';
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    std::string body;
    append_op(program, op, &body);
    body += condition(op.when);
    std::string line = fmt::format("{:>5}  lane {}  {:<7} {}", i, op.lane, name_of(op.code), body);
    while (line.back() == ' ') line.pop_back();
    text += line;
    text += '\n';
  }
  return text;
}

}  // namespace weir::sched
