// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/program_file.h"

#include "core/base/private_files.h"
#include "core/sched/json.h"

namespace weir::sched_tool {

Result<algo::ProgramText> read_program_file(const std::string& path) {
  const Result<std::string> text = read_any_file(path, sched::kJsonBytesMax);
  if (!text.ok()) return text.status();
  // What is only verified may be larger than what runs.
  if (text.value().size() > algo::kProgramTextBytesMax) {
    Result<sched::ProgramSet> set = sched::from_json(text.value());
    if (!set.ok()) return set.status().with_context(path);
    return algo::ProgramText{set.take(), {}};
  }
  return algo::read_programs(text.value(), path);
}

}  // namespace weir::sched_tool
