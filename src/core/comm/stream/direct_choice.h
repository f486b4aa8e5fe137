// SPDX-License-Identifier: Apache-2.0
// Whether a process's operations go directly from device to device, decided by WEIR_DIRECT and its
// CUDA driver. Stateless; thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::comm {

// Crosses the wire: the numbers are fixed.
enum class DirectChoice : uint32_t {
  kDemanded,     // WEIR_DIRECT=1, or the driver is Weir's stand-in
  kNoCuda,       // the process does not use CUDA
  kP2pDisabled,  // NCCL_P2P_DISABLE
  kTurnedOff,    // WEIR_DIRECT=0
  kAllowed,      // not where ranks share a process and a device
};

// `requested`: the value of WEIR_DIRECT, auto where it is not set. For a process that uses CUDA.
DirectChoice direct_choice(const std::string& requested, bool stand_in);

// Of this process.
DirectChoice direct_choice_here();

inline bool is_demanded(DirectChoice choice) { return choice == DirectChoice::kDemanded; }
inline bool is_allowed(DirectChoice choice) {
  return is_demanded(choice) || choice == DirectChoice::kAllowed;
}

// False with NCCL_P2P_DISABLE: no rank uses another's memory, not even within a process.
bool peer_access_allowed();

// Why not; "" where it is allowed. The number may come from another rank.
std::string reason_of(DirectChoice choice);

}  // namespace weir::comm
