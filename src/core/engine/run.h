// SPDX-License-Identifier: Apache-2.0
// Run: one execution of a Plan. It never waits: `advance` does what is possible now. The
// communicator decides how to wait in between (core/comm/state/wait.h). Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/engine/context.h"

namespace weir::engine {

// The most that one `advance` does, in stages or program steps: a call that must not block returns
// soon even when the peers keep pace with it.
constexpr uint32_t kStepsPerAdvance = 32;

enum class Advance : uint8_t {
  kDone,
  kMoved,    // something was done; call again
  kBlocked,  // nothing can be done until a peer has done something
  kFailed,   // see Run::status()
};

// The progress of a run, for reports: the step that is not done, and its slice.
struct RunPosition {
  uint32_t step = 0, step_count = 0;
  uint64_t slice = 0, slice_count = 0;
};

class Run {
 public:
  virtual ~Run() = default;
  virtual Advance advance(Context& context) = 0;
  // The ranks whose progress the run waits for, ascending; for reports, not for speed. `ranks` is
  // overwritten: when it is reused, nothing is allocated.
  virtual void collect_awaited(const Context& context, std::vector<Rank>* ranks) const = 0;
  virtual RunPosition position() const = 0;
  const Status& status() const { return status_; }

 protected:
  Status status_;
};

}  // namespace weir::engine
