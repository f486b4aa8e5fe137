// SPDX-License-Identifier: Apache-2.0
// Participant: the common base of instances over a message network (ucx, ofi, ncclnet): the rank,
// the host, the control network, and the checks that all of them make. One thread at a time.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <string>

#include "plugins/common/report.h"
#include "plugins/message/control.h"

namespace weir::plugins::message {

// WEIR_TLS, for the connections of the control network. False, with the reason: it is not possible.
bool read_tls(const common::Report& report, bool* is_on, std::string* reason);

struct Participant {
  common::Report report;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  pid_t owner = getpid();
  bool joined = false;
  Control control;

  // Called by open, with a checked configuration. An error has been reported.
  weir_result_t begin(const weir_host_t* host, const char* name,
                      const weir_transport_config_t& config);

  // Checks the peer of a call: WEIR_OK, or an error that has been reported; `allows_self`: it may
  // be this rank.
  weir_result_t check_peer(const char* call, uint32_t peer, bool allows_self) const;
  // The same for a message.
  weir_result_t check_lane(uint32_t peer, uint32_t lane, uint32_t lane_count) const {
    if (joined && peer < rank_count && lane < lane_count) [[likely]]
      return WEIR_OK;
    return refuse_lane(peer, lane, lane_count);
  }
  weir_result_t not_connected() const {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "not connected");
  }
  weir_result_t never_posted() const {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "test of an operation never posted");
  }
  weir_result_t too_long(uint64_t bytes) const;
  // For peer_alive.
  weir_result_t is_dead(uint32_t peer) const;

 private:
  weir_result_t refuse_lane(uint32_t peer, uint32_t lane, uint32_t lane_count) const;
};

}  // namespace weir::plugins::message
