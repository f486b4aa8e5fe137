// SPDX-License-Identifier: Apache-2.0
// What of a process's operations goes directly from device to device, decided by WEIR_DIRECT and
// its CUDA driver. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::nccl {

// Crosses the wire: the numbers are fixed.
enum class DirectChoice : uint32_t {
  kOn,           // collectives and messages
  kNoCuda,       // the process does not use CUDA
  kP2pDisabled,  // NCCL_P2P_DISABLE
  kTurnedOff,    // WEIR_DIRECT=0
  kCollectives,  // not messages: WEIR_DIRECT is not set, and the driver is not Weir's stand-in
  kOneQueue,     // not messages, though WEIR_DIRECT=1: they need a second hardware queue
};

// `requested`: the value of WEIR_DIRECT, auto where it is not set. `queue_count`: of a device's
// hardware queues; 0: without an end. For a process that uses CUDA.
DirectChoice direct_choice(const std::string& requested, bool stand_in, uint32_t queue_count);

inline bool allows_collectives(DirectChoice choice) {
  return choice == DirectChoice::kOn || choice == DirectChoice::kCollectives ||
         choice == DirectChoice::kOneQueue;
}

// WEIR_DIRECT=1, or the stand-in.
inline bool is_demanded(DirectChoice choice) {
  return choice == DirectChoice::kOn || choice == DirectChoice::kOneQueue;
}

// Why not all of them; "" for kOn. The number may come from another rank.
std::string reason_of(DirectChoice choice);

}  // namespace weir::nccl
