// SPDX-License-Identifier: Apache-2.0
// Checks of what callers pass in.
#pragma once

#include "api/errors.h"
#include "api/handles.h"
#include "core/base/types.h"

namespace weir::api {

inline bool valid_type(int type) { return type >= 0 && type < static_cast<int>(kDataTypeCount); }

}  // namespace weir::api

// Returns from the calling function when the handle is none.
#define WEIR_CHECK_COMM(comm, function)                                                         \
  do {                                                                                          \
    if ((comm) == nullptr) return ::weir::api::invalid(function ": the communicator is NULL");  \
    if ((comm)->mark != kCommMark) {                                                            \
      return ::weir::api::invalid(function ": the communicator is destroyed or was never one"); \
    }                                                                                           \
  } while (false)
