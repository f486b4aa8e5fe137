// SPDX-License-Identifier: Apache-2.0
// The peephole pass: marks neighbours in a lane that an engine may execute in one pass over the
// data. A mark (kFusedWithNext on the first of two) is a permission, never an obligation: executing
// the two one after the other means the same. Algorithms never set marks, and the verifier ignores
// them. Pure; thread-safe.
//
// Two neighbours (next to each other in their lane; other lanes may stand between) are marked when
// both have the same `count` and
//
//   recv d; reduce x <- … d …   d is a Scratch slot, an operand exactly once, and what was received
//                               is not needed after the reduce: no operation of its lane reads it
//                               before it is overwritten (x may be d itself), and no other lane
//                               touches it. The engine may fold out of the message and need not
//                               write d.
//   recv d; send d              d is written, and what arrives may be passed on in the same pass.
//   recv d; copy x <- d         d and x are written in one pass.
//   reduce d <- …; send d       d is written and sent in one pass.
//   reduce d <- …; copy x <- d  d and x are written in one pass (ReduceArgs::second_dst).
//
// where "d" is exactly the same reference in both. So recv, reduce, send may carry two marks:
// receive, fold and forward at once.
#pragma once

#include <cstdint>
#include <string>

#include "core/sched/program.h"

namespace weir::sched {

// Sets all marks that are allowed and clears all others. Returns how many are set. The program must
// have passed validate.h.
uint32_t mark_fused(Program* program);

// Empty when every mark of the program is one that mark_fused would set; else says which is not.
std::string check_marks(const Program& program);

}  // namespace weir::sched
