// SPDX-License-Identifier: Apache-2.0
// NamedAlgorithms: what WEIR_PROGRAMS, WEIR_ALGORITHM and WEIR_TUNING_FILE say of algorithms, as
// every communicator reads it when it starts, and as weir-info doctor checks it. Thread-safe.
#pragma once

#include <vector>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/comm/start/program_files.h"
#include "core/cost/rules.h"
#include "core/engine/planner.h"

namespace weir::comm {

struct NamedAlgorithms {
  ProgramFiles programs;
  Status programs_status;  // of WEIR_PROGRAMS
  std::vector<engine::ForcedAlgorithm> forced;
  cost::Rules rules;
  // Of the other two. A name may be unknown because a program could not be read.
  Status names_status;
};

NamedAlgorithms read_named_algorithms(const Settings& settings);

}  // namespace weir::comm
