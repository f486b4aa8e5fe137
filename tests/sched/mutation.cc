// SPDX-License-Identifier: Apache-2.0
#include "sched/mutation.h"

#include <fmt/format.h>

#include "core/sched/print.h"

namespace weir::sched {
namespace {

// Calls emit(name) after each single change of a field of `op` or of its operands, and undoes it.
class Retargeter {
 public:
  Retargeter(Program* program, Op* op, const std::function<void(const std::string&)>& emit)
      : program_(*program), op_(*op), emit_(emit) {}

  void run() {
    const Rank n = program_.rank_count;
    switch (op_.code) {
      case OpCode::kSend:
        change_peer(n);
        change_ref("src", &op_.src);
        change_count();
        break;
      case OpCode::kRecv:
        change_peer(n);
        change_ref("dst", &op_.dst);
        change_count();
        break;
      case OpCode::kCopy:
        change_ref("src", &op_.src);
        change_ref("dst", &op_.dst);
        change_count();
        break;
      case OpCode::kReduce:
        change_ref("dst", &op_.dst);
        for (uint32_t k = 0; k < op_.operand_count; ++k) {
          change_ref(fmt::format("operand {}", k).c_str(),
                     &program_.operands[op_.first_operand + k]);
        }
        change("operand_count", &op_.operand_count, op_.operand_count - 1);
        change_count();
        break;
      case OpCode::kWait:
        change("value", &op_.value, op_.value + 1);
        change("value", &op_.value, op_.value - 1);
        [[fallthrough]];
      case OpCode::kSignal:
        change("signal", &op_.signal, static_cast<uint8_t>(op_.signal + 1));
        if (op_.signal > 0) change("signal", &op_.signal, static_cast<uint8_t>(op_.signal - 1));
        if (op_.peer == kAllRanks) {
          change("peer", &op_.peer, (program_.rank + 1) % n);
        } else {
          change_peer(n);
        }
        break;
    }
    if (program_.shape.lane_count > 1) {
      change("lane", &op_.lane, static_cast<uint8_t>((op_.lane + 1u) % program_.shape.lane_count));
    }
  }

 private:
  template <typename T>
  void change(const char* name, T* field, T value) {
    const T before = *field;
    if (before == value) return;
    *field = value;
    emit_(fmt::format("{} from {} to {}", name, before, value));
    *field = before;
  }
  void change_peer(Rank n) {
    change("peer", &op_.peer, (op_.peer + 1) % n);
    change("peer", &op_.peer, (op_.peer + n - 1) % n);
  }
  void change_count() {
    change("count", &op_.count, op_.count + 1);
    change("count", &op_.count, op_.count - 1);
  }
  void change_ref(const char* name, Ref* ref) {
    const std::string field = name;
    change((field + ".chunk").c_str(), &ref->chunk, ref->chunk + 1);
    if (ref->chunk > 0) change((field + ".chunk").c_str(), &ref->chunk, ref->chunk - 1);
    change((field + ".rank").c_str(), &ref->rank, (ref->rank + 1) % program_.rank_count);
    const Ref before = *ref;
    ref->space = ref->space == Space::kInput ? Space::kOutput : Space::kInput;
    emit_(fmt::format("{}.space from {} to {}", name, name_of(before.space), name_of(ref->space)));
    *ref = before;
  }

  Program& program_;
  Op& op_;
  const std::function<void(const std::string&)>& emit_;
};

}  // namespace

void for_each_mutant(const std::vector<Program>& original, const std::vector<Rank>& ranks,
                     const std::function<void(const Mutant&)>& visit) {
  std::vector<Program> programs = original;
  for (const Rank rank : ranks) {
    Program& program = programs[rank];
    for (uint32_t i = 0; i < original[rank].ops.size(); ++i) {
      const std::string where = locate(original[rank], i);

      program.ops.erase(program.ops.begin() + i);
      visit({MutationKind::kDrop, "drop " + where, rank, i, &programs});
      program = original[rank];

      uint32_t next = i + 1;
      while (next < program.ops.size() && program.ops[next].lane != program.ops[i].lane) ++next;
      if (next < program.ops.size()) {
        std::swap(program.ops[i], program.ops[next]);
        visit({MutationKind::kSwap, fmt::format("swap {} and op {}", where, next), rank, i,
               &programs});
        program = original[rank];
      }

      Retargeter(&program, &program.ops[i], [&](const std::string& what) {
        visit({MutationKind::kRetarget, fmt::format("change {}: {}", where, what), rank, i,
               &programs});
      }).run();
    }
  }
}

}  // namespace weir::sched
