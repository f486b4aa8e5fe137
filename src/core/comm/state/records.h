// SPDX-License-Identifier: Apache-2.0
// Records: what a communicator writes into its recorder beside its collectives: how it reaches its
// peers, which ranks it waits for, and its one-sided operations, which another communicator
// carries.
//
// `one_sided_*` may be called by any thread, and take the communicator's lock where they need it;
// the others are called with it held.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/comm/record/recorder.h"
#include "core/comm/record/start_times.h"
#include "core/comm/start/introduction.h"
#include "core/comm/state/comm_state.h"

namespace weir::comm {

class Records {
 public:
  explicit Records(CommState& state) : state_(state) {}
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  // Makes the recorder's file; `folder`: see Recorder::open.
  void open(uint64_t comm_id, const std::vector<Introduction>& all, const ClockReading& earlier,
            const StartTimes& start, const std::string& folder);

  // Called now and then: records what a transport finds out later, such as how it sends large
  // messages.
  void look_at_ways(uint64_t now_ns);

  // One-sided operations here belong to `owner`, and are recorded there from now on.
  void carry_for(Records& owner) { owner_ = &owner; }
  // The number is 0 where nothing is recorded. `units`: bytes, or signals of a wait. `waits` is to
  // be called again and again while it waits.
  uint64_t one_sided_begun(RecordKind kind, Rank peer, uint64_t units);
  void one_sided_waits(uint64_t number, RecordKind kind, uint64_t units, uint64_t since_ns,
                       std::span<const Rank> awaited);
  void one_sided_done(uint64_t number);

 private:
  // The transport's present description of the path; "": it has none.
  std::string way_to(Rank peer) const;

  CommState& state_;
  Records* owner_ = nullptr;
  uint64_t looked_ns_ = 0;
  Rank next_way_ = 0;  // whose way is looked at next
};

}  // namespace weir::comm
