// SPDX-License-Identifier: Apache-2.0
// Counting and timing of calls, on request (WEIR_METRICS): the tables of functions are then
// replaced by ones whose functions count. When off, it adds nothing to a call. Thread-safe.
#pragma once

#include <string>

namespace weir::nccl {

struct Backend;

// `path` "": off. %p in it stands for the number of the process, %h for the name of the host.
void wrap_with_metrics(const std::string& path, Backend* backend);

}  // namespace weir::nccl
