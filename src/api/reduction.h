// SPDX-License-Identifier: Apache-2.0
// The reductions of weir.h, as the core knows them.
#pragma once

#include <string>

#include "core/engine/call.h"
#include "weir/weir.h"

namespace weir::api {

// Fills the reduction of a call, whose type is known. Returns what is wrong with it, or "".
std::string set_reduction(weir_comm_t comm, weir_redop_t op, engine::Call& call);

}  // namespace weir::api
