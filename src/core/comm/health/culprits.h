// SPDX-License-Identifier: Apache-2.0
// The ranks that a rank blames at the deadline of an operation: among the ranks that it waits for,
// those that these wait for, and so on, the ones that are silent or that wait for no other rank.
// With the communicator's lock held.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/health/wait_time.h"
#include "core/comm/reports/peer_reports.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"

namespace weir::comm {

class Culprits {
 public:
  // All outlive it.
  Culprits(const CommState& state, const PeerReports& reports, const OperationStatus& operations,
           const WaitTime& wait_time)
      : state_(state), reports_(reports), operations_(operations), wait_time_(wait_time) {}
  Culprits(const Culprits&) = delete;
  Culprits& operator=(const Culprits&) = delete;

  // After the deadline of `request`, which had `timeout_ns`. False: it is too early to say.
  bool find(const Request& request, uint64_t timeout_ns, uint64_t now_ns,
            std::vector<Rank>* culprits) const;

 private:
  // No notice of this rank has reached the peer's host for `while_ns`.
  bool is_unreached(Rank peer, uint64_t now_ns, uint64_t while_ns) const;

  const CommState& state_;
  const PeerReports& reports_;
  const OperationStatus& operations_;
  const WaitTime& wait_time_;
};

}  // namespace weir::comm
