// SPDX-License-Identifier: Apache-2.0
// Programs of all ranks as one JSON document, so that programs made by a solver or by hand can be
// checked and run. Input is never trusted: every field is checked for type and range, and errors
// name the field by its path ("programs[1].ops[4].peer: …"). verify() decides whether the programs
// are right. Thread-safe.
//
//   { "format": "weir-programs", "version": 1,
//     "collective": "all_reduce", "rank_count": 2, "root": 0,
//     "access": { "mapped": false, "inputs_mapped": false, "outputs_mapped": false,
//                 "in_place": false },
//     "shape": { "chunk_count": 1, "scratch_slots": 1, "staging_slots": 0, "lane_count": 1,
//                "signal_count": 0 },
//     "programs": [
//       { "rank": 0, "ops": [
//         { "op": "send", "peer": 1, "src": ["in", 0] },
//         { "op": "recv", "peer": 1, "dst": ["scratch", 0] },
//         { "op": "reduce", "dst": ["out", 0], "operands": [["in", 0], ["scratch", 0]] } ] }, … ] }
//
// A reference is [space, chunk] or, at a peer, [space, chunk, rank]; spaces: in, out, scratch,
// staging. "lane" (0) and "count" (1) may be left out. signal: "peer" (a rank or "all"), "signal";
// wait: also "value". Unknown fields are errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/sched/layout.h"
#include "core/sched/program.h"

namespace weir::sched {

struct ProgramSet {
  Access access;
  std::vector<Program> programs;  // by rank
};

// The programs must be of one collective (validate_heads). Ends with a newline. On many lines, for
// people, or on one, which takes fewer bytes.
enum class JsonForm : uint8_t { kLines, kOneLine };
std::string to_json(const ProgramSet& set, JsonForm form = JsonForm::kLines);
// One entry of "programs", for people and tools; a set is needed to read programs back.
std::string to_json(const Program& program);
// The text may hold a document of any origin; at most `kJsonBytesMax` bytes.
inline constexpr size_t kJsonBytesMax = size_t{1} << 30;
Result<ProgramSet> from_json(std::string_view text);

}  // namespace weir::sched
