// SPDX-License-Identifier: Apache-2.0
// check_mapped: whether the engine can run a set of programs in memory of peers. What it can run
// (MappedPlan) is less than what the verifier accepts, and a plan is bound by each rank alone: a
// set is checked as a whole before any rank chooses it. Pure function; thread-safe.
#pragma once

#include "core/algo/imported.h"
#include "core/base/status.h"

namespace weir::engine {

// kUnsupported, naming the rank; ok for programs of messages.
Status check_mapped(const algo::Imported& imported);

}  // namespace weir::engine
