// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/process.h"

#include <sys/random.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "core/base/per_process.h"

namespace weir::nccl {

ProcessNumber this_process() {
  struct Known {
    ProcessNumber number;
    Known() {
      if (getrandom(number.data(), number.size(), 0) != static_cast<ssize_t>(number.size())) {
        throw std::runtime_error("no random number for this process");
      }
    }
  };
  static constinit PerProcess<Known> known;
  return known->number;
}

bool direct_allowed() {
  const char* text = std::getenv("NCCL_P2P_DISABLE");
  return text == nullptr || *text == '\0' || std::strcmp(text, "0") == 0;
}

}  // namespace weir::nccl
