// SPDX-License-Identifier: Apache-2.0
// StartTimes: how long the parts of making a communicator took on this rank. A value.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/types.h"
#include "core/comm/bootstrap.h"

namespace weir::comm {

struct StartTimes {
  uint64_t exchange_ns = 0;  // opening the transport and telling each other about ourselves
  uint64_t connect_ns = 0;   // of the transport
  uint64_t costs_ns = 0;     // agreeing on measured costs, and measuring them where none are kept

  // Gives the time since the last mark to `part`, or drops it.
  void mark(uint64_t* part);
  // One line for the log.
  std::string describe(const std::string& communicator, Rank rank, Rank rank_count,
                       const JoinTimes& join) const;

 private:
  uint64_t last_ns_ = 0;
};

}  // namespace weir::comm
