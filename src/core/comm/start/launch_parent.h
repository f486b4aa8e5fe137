// SPDX-License-Identifier: Apache-2.0
// The process that started the ranks, found through /proc: it names a job whose launcher leaves no
// job number in the environment. Thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"

namespace weir::comm {

// The nearest ancestor of this process that is not itself a rank of the job, so that a wrapper
// script between the launcher and the rank does not change the result. An ancestor counts as a part
// of the rank while its environment holds `rank_variable` with `rank_text` and it is not a launcher
// known by name; one whose environment may not be read is taken. "process 1234 started 567890 in
// 4026531836": id, start time in clock ticks since boot (ids are used again), and process-id
// namespace.
Result<std::string> describe_launcher_process(std::string_view rank_variable,
                                              std::string_view rank_text);

}  // namespace weir::comm
