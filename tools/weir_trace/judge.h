// SPDX-License-Identifier: Apache-2.0
// The verdict on a communicator: which rank diverged from the others first, in which operation, and
// how. It is based on what each rank has called, in order, and on which rank waits for which; a
// rank is blamed only where the others waited long for it, failed, or saw another call. Functions;
// thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir_trace/group.h"

namespace weir::trace {

enum class Finding : uint8_t {
  kNothing,          // no fault is visible
  kCalledOtherwise,  // another operation, type, reduction, count or root than the others
  kNeverCalled,      // the others wait for a call that it did not make
  kDied,
  kStopped,
  kStuckInside,  // it began the operation and did not complete it
  kFailed,       // the communicator failed, and no rank stands out
};
const char* name_of(Finding finding);  // "called otherwise"

struct Verdict {
  Finding finding = Finding::kNothing;
  std::vector<Rank> ranks;  // that diverged; empty: not known
  uint64_t sequence = 0;    // of the operation; 0: none
  std::string text;         // one sentence or two
};

struct JudgeOptions {
  uint64_t now_ns = 0;                       // wall clock
  uint64_t stuck_after_ns = 1'000'000'000u;  // shorter waits are not suspicious
};

Verdict judge(const Group& group, const JudgeOptions& options);

// The verdict for communicators of the real NCCL whose ranks made the same calls as far as each
// went: waits are not visible there, but an operation that one rank called long ago and another has
// not called holds up the first. nullopt: no verdict.
std::optional<Verdict> judge_forwarded(const Group& group, const JudgeOptions& options);

// Verdicts on all groups, in their order. If the rank that one communicator waits for is itself
// held up in another, the text says so.
std::vector<Verdict> judge_all(const std::vector<Group>& groups, const JudgeOptions& options);

// The index of the verdict to read first, which is not held up by another; -1: nothing is wrong.
int first_cause(const std::vector<Group>& groups, const std::vector<Verdict>& verdicts);

// How long the rank has waited, up to now or its end; 0: it does not wait.
uint64_t waited_ns(const Group& group, const comm::Record& record, uint64_t now_ns);

}  // namespace weir::trace
