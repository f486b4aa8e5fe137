// SPDX-License-Identifier: Apache-2.0
// Programs from elsewhere as text, in either format that is read: our JSON (sched/json.h) or
// MSCCL's XML (msccl.h). Input is never trusted. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/sched/json.h"

namespace weir::algo {

// The longest text that is read where programs are to run.
inline constexpr size_t kProgramTextBytesMax = size_t{32} << 20;

struct ProgramText {
  sched::ProgramSet set;
  // Of XML: where each operation comes from, by rank and operation ("thread block 1 step 2, line
  // 17"); an operation that was added has "". Of JSON: empty.
  std::vector<std::vector<std::string>> origins;
};

// `name` is what errors call the text: usually the path of the file. The programs are of known
// fields in range; whether they are right is another question (verify.h).
Result<ProgramText> read_programs(std::string_view text, std::string_view name);

// A text about the programs with what they come from: each "rank 1 op 4" in it is explained at its
// end, if there is more to say.
std::string with_origins(const std::string& text, const ProgramText& programs);

}  // namespace weir::algo
