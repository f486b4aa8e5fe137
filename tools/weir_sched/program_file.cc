// SPDX-License-Identifier: Apache-2.0
#include "weir_sched/program_file.h"

#include <cstdio>

#include "core/sched/json.h"

namespace weir::sched_tool {
namespace {

Result<std::string> read_file(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return system_error("opening " + path);
  std::string text;
  char buffer[1 << 16];
  size_t bytes = 0;
  while ((bytes = std::fread(buffer, 1, sizeof buffer, file)) > 0 &&
         text.size() <= sched::kJsonBytesMax) {
    text.append(buffer, bytes);
  }
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) return system_error("reading " + path);
  return text;
}

}  // namespace

Result<algo::ProgramText> read_program_file(const std::string& path) {
  const Result<std::string> text = read_file(path);
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
