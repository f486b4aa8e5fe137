// SPDX-License-Identifier: Apache-2.0
#include "core/base/process_number.h"

#include <sys/random.h>

#include <stdexcept>

#include "core/base/per_process.h"

namespace weir {

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

}  // namespace weir
