// SPDX-License-Identifier: Apache-2.0
// Checks of what callers pass in.
#pragma once

#include "api/errors.h"
#include "api/handles.h"
#include "core/base/types.h"
#include "core/comm/requests/callbacks.h"

namespace weir::api {

inline bool valid_type(int type) { return type >= 0 && type < static_cast<int>(kDataTypeCount); }

// The error of a handle that is not alive in this process.
weir_result_t no_communicator(weir_comm_t comm, const char* function);
// The error of a handle that belongs to a communicator of the process from which this one was
// forked. The communicator is not touched: its locks may be held for ever.
weir_result_t of_parent(const comm::Communicator& comm, const char* function);

// The error of a function that a callback may not call; see weir_request_on_complete.
weir_result_t inside_callback(const char* function, weir_comm_t comm);

}  // namespace weir::api

// Returns from the calling function when it is called inside a callback.
#define WEIR_REFUSE_IN_CALLBACK(function, handle)            \
  do {                                                       \
    if (::weir::comm::in_callback()) [[unlikely]] {          \
      return ::weir::api::inside_callback(function, handle); \
    }                                                        \
  } while (false)

// Returns from the calling function when the handle does not belong to this process.
#define WEIR_CHECK_COMM(comm, function)                          \
  do {                                                           \
    if ((comm) == nullptr || !(comm)->is_alive()) [[unlikely]] { \
      return ::weir::api::no_communicator(comm, function);       \
    }                                                            \
  } while (false)
