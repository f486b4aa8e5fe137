// SPDX-License-Identifier: Apache-2.0
// The ranks that a rank blames at the deadline of an operation: among the ranks that it waits for,
// those that these wait for, and so on, the ones that are silent or that wait for no other rank.
//
// Used with the communicator's lock held.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/reports/peer_reports.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/wait_time.h"

namespace weir::comm {

class Culprits {
 public:
  // All outlive it.
  Culprits(const CommState& state, const PeerReports& reports) : state_(state), reports_(reports) {}
  Culprits(const Culprits&) = delete;
  Culprits& operator=(const Culprits&) = delete;

  // A wait whose deadline has passed.
  struct Late {
    std::vector<Rank> awaited;         // the ranks that it is for
    std::vector<Rank> awaited_by_all;  // those of all operations of this rank
    const WaitTime& time;
    uint64_t timeout_ns = 0;
    bool ends_in_circle = false;  // no patience where all live, and each waits for another one
    uint64_t deadline_ns() const { return time.began_ns() + timeout_ns; }
  };
  // False: it is too early to say. None: all live, and wait for each other, or ranks tell nothing.
  bool find(const Late& late, uint64_t now_ns, std::vector<Rank>* culprits) const;

 private:
  // No notice of this rank has reached the peer's host for `while_ns`.
  bool is_unreached(Rank peer, const WaitTime& time, uint64_t now_ns, uint64_t while_ns) const;

  const CommState& state_;
  const PeerReports& reports_;
};

}  // namespace weir::comm
