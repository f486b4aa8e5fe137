// SPDX-License-Identifier: Apache-2.0
// StartTimes: how long the parts of making a communicator took on this rank. A value.
#pragma once

#include <cstdint>
#include <string>

namespace weir::comm {

// In the order in which they happen.
struct StartTimes {
  uint64_t rendezvous_ns = 0;  // until this rank had its place in the bootstrap
  uint64_t handshake_ns = 0;   // until all ranks had one
  uint64_t exchange_ns = 0;    // opening the transport and exchanging introductions
  uint64_t connect_ns = 0;     // connecting the transport
  uint64_t costs_ns = 0;       // agreeing on measured costs, and measuring them where none are kept

  uint64_t total_ns() const;
  // Gives the time since the last mark to `part`, or drops it.
  void mark(uint64_t* part);
  // "12.34 ms: rendezvous 1.00, handshake 2.00, …"
  std::string describe() const;

 private:
  uint64_t last_ns_ = 0;
};

}  // namespace weir::comm
