// SPDX-License-Identifier: Apache-2.0
// The programs of `window` where buffers are told (Problem::told, sched/op.h). Each rank reads its
// peers' buffers, or what these have staged instead, and writes only its own memory: a rank that
// has given up never changes another's. Signal 0 says "my buffers can be read", with where they
// lie; the last one says "I no longer read yours", and a rank whose buffer is open returns only
// once all that read it have given that signal. What is staged needs no such wait, since a slot is
// reused only after all ranks have finished the run that used it.
#pragma once

#include "core/algo/algorithm.h"

namespace weir::algo::told {

// Whether there is such a program. all_reduce and reduce would have to write to their peers, whose
// memory each frees alone, also after an error that others have not noticed yet; to read results
// instead is slower than slots where the cores share no cache (docs/performance.md).
constexpr bool serves(Collective collective) {
  return collective != Collective::kAllReduce && collective != Collective::kReduce &&
         collective != Collective::kBarrier;
}

sched::Shape shape(const Problem& problem);
// More than one rank.
void emit(const Problem& problem, Rank rank, sched::Builder& builder);

}  // namespace weir::algo::told
