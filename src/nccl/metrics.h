// SPDX-License-Identifier: Apache-2.0
// Counting and timing of calls, on request (WEIR_METRICS): then the tables of functions are replaced
// by ones whose functions count. Off, nothing is on the way of a call. Thread-safe.
#pragma once

#include <string>

namespace weir::nccl {

struct Backend;

// `path` "": off. %p in it stands for the number of the process, %h for the name of the host.
void wrap_with_metrics(const std::string& path, Backend* backend);

}  // namespace weir::nccl
