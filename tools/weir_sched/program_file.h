// SPDX-License-Identifier: Apache-2.0
// Files of programs, as the subcommands read them.
#pragma once

#include <string>

#include "core/algo/program_text.h"
#include "core/base/status.h"

namespace weir::sched_tool {

// JSON, or MSCCL's XML; the errors name the file.
Result<algo::ProgramText> read_program_file(const std::string& path);

}  // namespace weir::sched_tool
