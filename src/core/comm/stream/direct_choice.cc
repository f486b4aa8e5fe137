// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/direct_choice.h"

#include <cstdlib>
#include <cstring>

#include "core/base/settings.h"
#include "cuda/driver.h"

namespace weir::comm {

DirectChoice direct_choice(const std::string& requested, bool stand_in) {
  if (requested == "0") return DirectChoice::kTurnedOff;
  return requested == "1" || stand_in ? DirectChoice::kDemanded : DirectChoice::kAllowed;
}

DirectChoice direct_choice_here() {
  const cuda::Driver* driver = cuda::driver_in_use();
  if (driver == nullptr) return DirectChoice::kNoCuda;
  if (!peer_access_allowed()) return DirectChoice::kP2pDisabled;
  const Result<Settings>& settings = process_settings();
  // The call that needs the settings reports those that do not parse.
  return direct_choice(settings.ok() ? settings.value().direct : "0", driver->is_stand_in);
}

bool peer_access_allowed() {
  const char* text = std::getenv("NCCL_P2P_DISABLE");
  return text == nullptr || *text == '\0' || std::strcmp(text, "0") == 0;
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

}  // namespace weir::comm
