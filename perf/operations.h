// SPDX-License-Identifier: Apache-2.0
// The table of the operations that the *_perf programs of the collectives measure, one row each.
// Constants.
#pragma once

#include <span>
#include <string_view>

#include "perf/harness/operation.h"

namespace weir::perf {

std::span<const Operation> operations();
// Finds an operation by Operation::program; nullptr when there is none.
const Operation* find_operation(std::string_view program);

}  // namespace weir::perf
