// SPDX-License-Identifier: Apache-2.0
// Whether a process goes from device to device directly: by WEIR_DIRECT and the driver that it
// uses. Without state; thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::nccl {

// Ranks tell each other these numbers.
enum class DirectChoice : uint32_t {
  kOn,
  kNoCuda,       // the process does not use CUDA
  kP2pDisabled,  // NCCL_P2P_DISABLE
  kTurnedOff,    // WEIR_DIRECT=0
  kRealDriver,   // WEIR_DIRECT is not set, and the driver is not Weir's stand-in
};

// `wish`: the value of WEIR_DIRECT, auto where it is not set. Of a process that uses CUDA.
DirectChoice direct_choice(const std::string& wish, bool stand_in);

// Why it does not, or, of kOn, "". Numbers come from other ranks.
std::string reason_of(DirectChoice choice);

}  // namespace weir::nccl
