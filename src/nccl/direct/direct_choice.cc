// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/direct_choice.h"

namespace weir::nccl {

DirectChoice direct_choice(const std::string& requested, bool stand_in, uint32_t queue_count) {
  if (requested == "0") return DirectChoice::kTurnedOff;
  if (requested != "1" && !stand_in) return DirectChoice::kCollectives;
  return queue_count == 1 ? DirectChoice::kOneQueue : DirectChoice::kOn;
}

std::string reason_of(DirectChoice choice) {
  switch (choice) {
    case DirectChoice::kOn:
      return "";
    case DirectChoice::kNoCuda:
      return "it does not use CUDA";
    case DirectChoice::kP2pDisabled:
      return "NCCL_P2P_DISABLE is set";
    case DirectChoice::kTurnedOff:
      return "WEIR_DIRECT=0";
    case DirectChoice::kCollectives:
      return "with a real CUDA driver, direct messages can hang, and are off unless "
             "WEIR_DIRECT=1";
    case DirectChoice::kOneQueue:
      return "with CUDA_DEVICE_MAX_CONNECTIONS=1 the copies of direct messages would stand behind "
             "the stream that waits for them";
  }
  return "unknown";
}

}  // namespace weir::nccl
