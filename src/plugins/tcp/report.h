// SPDX-License-Identifier: Apache-2.0
// Parts of the texts for the host. Thread-safe.
#pragma once

#include <string.h>

#include <string>

#include "plugins/common/report.h"

namespace weir::plugins::tcp {

using common::Report;
using common::text_of;

// Of an errno.
inline std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

}  // namespace weir::plugins::tcp
