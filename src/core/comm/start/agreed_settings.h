// SPDX-License-Identifier: Apache-2.0
// The settings on which all ranks of a communicator must agree, as the text that each rank tells in
// its Introduction: one setting a line, then kProgramsMark and one file of programs a line. Pure
// functions; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/start/introduction.h"
#include "core/cost/rules.h"

namespace weir::comm {

// Introductions tell the programs of a rank after all settings, one file a line.
inline constexpr std::string_view kProgramsMark = "\nprograms:\n";

// The parts of a tuning file on which ranks must agree.
std::string describe_rules(const cost::Rules& rules);

// kMismatch, naming the rank and what differs, where a rank has told others than rank 0.
Status check_same_settings(const std::vector<Introduction>& all);

}  // namespace weir::comm
