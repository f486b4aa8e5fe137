// SPDX-License-Identifier: Apache-2.0
// The verifier: executes the programs of all ranks on symbols instead of data and says whether they
// are a correct collective. Pure function; thread-safe.
//
// The checks:
//   bounds    every lane, peer, signal, operand, chunk and slot is in range and reachable
//             (validate.h)
//   deadlock  the programs end when a sender may be `credit` messages ahead of a receiver, when it
//             may be only one ahead, and where nothing is kept for a receiver: there a lane
//             continues after a send, but the memory that the send reads may be written only once
//             the message has been received. No message is left over. More credit cannot harm, so
//             the executions at credit one and without any credit represent all; the flaw names
//             the cycle of ranks and operations.
//   race      no two accesses of different lanes or ranks to the same place, one of them a write,
//             are unordered by lanes, messages and signals; the user's memory of a peer is touched
//             only between a signal of that peer and one that reaches it; a barrier's ranks leave
//             after all have come
//   value     every Output chunk that the table in op.h gives to a rank ends as that chunk, with
//             exactly the contributors that the collective asks for, each once; nothing is read
//             before it is written, and chunks of different numbers are never mixed
//   order     ranks that receive the same chunk of a reduction receive the same expression, so the
//             same bits; `rank_order` says whether every one of them is the single fold in rank
//             order. With leaves (op.h): every result is the tree over all leaves, of folds of
//             two, whichever rank does them, and is rounded once
//
// The result does not depend on the interleaving that is executed: with no any-source receive and
// no race, what each operation reads is determined by the programs, and running one operation never
// disables another.
//
// One run is checked. The engine runs a program slice by slice and call after call on the same
// slots, and reuses a slot only after all ranks have finished the run that used it before; verify()
// relies on that for Staging (a first write to a peer's Staging needs no signal), but not for
// users' memory.
//
// A copy from a place to itself (in place) is not an access: the engine skips it.
//
// Memory: 36 bytes per place, 12 per (sender, receiver, lane), 4 per (sender, receiver, signal),
// and 4 n^2 bytes of clocks per lane^2 where lanes or mapped memory make races possible.
// Collisions: see expression.h. Time is linear in operations and operands, plus n per wait where
// clocks are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/sched/layout.h"
#include "core/sched/program.h"
#include "core/sched/validate.h"

namespace weir::sched {

struct VerifyOptions {
  Access access;
  uint32_t credit = 1;        // of the transport; >= 1
  bool keeps_nothing = true;  // also where nothing is kept for a receiver
  // Set, where there is no flaw, to the Program::moved_chunks of every rank; nullptr: not wanted.
  std::vector<std::vector<uint32_t>>* moved_chunks = nullptr;
};

struct Verdict {
  Flaw flaw;  // the first that was found

  // Valid when there is no flaw.
  bool rank_order = false;   // every result is one fold over all ranks in rank order
  uint64_t result_hash = 0;  // of all Output expressions: equal hashes mean equal bits
  uint64_t op_count = 0;     // of all ranks
  uint64_t message_count = 0;

  bool ok() const { return !flaw.found(); }
};

// programs[r] is the program of rank r.
Verdict verify(std::span<const Program> programs, const VerifyOptions& options);

}  // namespace weir::sched
