// SPDX-License-Identifier: Apache-2.0
// HealthTexts: the error texts of a communicator: which ranks made other calls, which were lost,
// which were waited for in vain. With the communicator's lock held.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/reports/peer_reports.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/wait_time.h"

namespace weir::comm {

class HealthTexts {
 public:
  // All outlive it.
  HealthTexts(const CommState& state, PeerReports& reports, const OperationStatus& operations,
              const WaitTime& wait_time)
      : state_(state), reports_(reports), operations_(operations), wait_time_(wait_time) {}
  HealthTexts(const HealthTexts&) = delete;
  HealthTexts& operator=(const HealthTexts&) = delete;

  // Another rank made another call: waits a moment for the ranks' descriptions of their calls.
  Status mismatch(const Request& request) const;
  Status timeout(const Request& request, int64_t timeout_ms,
                 const std::vector<Rank>& culprits) const;
  Status lost(const Request& request, const std::vector<Rank>& lost) const;
  // "rank 3 died, rank 5 could not be reached and rank 0 destroyed the communicator"
  std::string describe_lost(const std::vector<Rank>& lost) const;
  // What these ranks do instead of a call on memory of a device: collectives on memory of the host
  // that this rank has not called, "; rank 1 called ...", and waiting for this rank.
  std::string calls_elsewhere(const std::vector<Rank>& ranks) const;

 private:
  std::string silence_of(const std::vector<Rank>& ranks) const;
  std::string absence_of(const Request& request, const std::vector<Rank>& ranks) const;

  const CommState& state_;
  PeerReports& reports_;
  const OperationStatus& operations_;
  const WaitTime& wait_time_;
};

}  // namespace weir::comm
