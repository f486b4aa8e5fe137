// SPDX-License-Identifier: Apache-2.0
// Tells whether polled completions (IOPOLL) work in a directory by doing one small transfer, since
// neither the kernel nor the file system says so beforehand. Thread-safe.
// Only in builds with liburing (WEIR_HAVE_URING).
#pragma once

#include <string>

#include "core/base/status.h"

namespace weir::offload {

// Ok, or why not. Its file has no name, so that nothing is left behind.
Status probe_iopoll(const std::string& directory);

}  // namespace weir::offload
