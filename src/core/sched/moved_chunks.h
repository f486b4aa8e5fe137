// SPDX-License-Identifier: Apache-2.0
// MovedChunks: which grid chunk each operation of a program moves or folds, found from that program
// alone, unless the verifier has found it (Program::moved_chunks). A slot does not tell what it
// holds, but data keeps its chunk number wherever it goes (op.h), so every operation through which
// the data passes tells the chunk for all others: data that is received into scratch, folded with
// another slot and later written to Output is the same chunk throughout. Both ends of a message
// need this to agree on its length when chunks differ in length (uneven tails, v-variants).
// Immutable once made; any thread may read.
#pragma once

#include <cstdint>
#include <vector>

#include "core/sched/program.h"

namespace weir::sched {

class MovedChunks {
 public:
  static constexpr uint32_t kUnknown = 0xffffffffu;

  // The program must have passed validate.h and be right (verify.h). O(operations * chunks each).
  explicit MovedChunks(const Program& program);

  // The grid chunk of the k-th of an operation's `count` chunks. kUnknown where the data of a
  // message only passes through slots of this rank on its way between others (Bruck's all-to-all,
  // inner ranks of trees that gather or scatter), where slots are shared by lanes or peers, and for
  // operations that move nothing.
  uint32_t chunk(uint32_t op_index, uint32_t k) const { return chunks_[first_[op_index] + k]; }
  // Whether every chunk of every message is known.
  bool all_messages_known() const { return all_messages_known_; }

 private:
  void check_messages(const Program& program);

  std::vector<size_t> first_;  // by operation, into chunks_
  std::vector<uint32_t> chunks_;
  bool all_messages_known_ = true;
};

}  // namespace weir::sched
