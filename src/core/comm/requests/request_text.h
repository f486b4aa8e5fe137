// SPDX-License-Identifier: Apache-2.0
// What the operation of a request is, as text for errors.
#pragma once

#include <string>

#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"

namespace weir::comm {

// "all_reduce of 4 f32 (operation 7 of 'name')". With the communicator's lock held.
std::string describe(const Request& request, const CommState& state);

}  // namespace weir::comm
