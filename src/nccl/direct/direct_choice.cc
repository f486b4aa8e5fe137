// SPDX-License-Identifier: Apache-2.0
#include "nccl/direct/direct_choice.h"

namespace weir::nccl {

DirectChoice direct_choice(const std::string& requested, bool stand_in) {
  if (requested == "0") return DirectChoice::kTurnedOff;
  return requested == "1" || stand_in ? DirectChoice::kDemanded : DirectChoice::kAllowed;
}

std::string reason_of(DirectChoice choice) {
  switch (choice) {
    case DirectChoice::kDemanded:
    case DirectChoice::kAllowed:
      return "";
    case DirectChoice::kNoCuda:
      return "it does not use CUDA";
    case DirectChoice::kP2pDisabled:
      return "NCCL_P2P_DISABLE is set";
    case DirectChoice::kTurnedOff:
      return "WEIR_DIRECT=0";
  }
  return "unknown";
}

}  // namespace weir::nccl
