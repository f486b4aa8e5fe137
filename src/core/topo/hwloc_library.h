// SPDX-License-Identifier: Apache-2.0
// hwloc, opened at run time, so that Weir loads where it is not installed. Nothing else of the
// project calls it. Thread-safe.
#pragma once

#include <string>

#include "core/base/status.h"

namespace weir::topo {

inline constexpr const char* kHwlocLibrary = "libhwloc.so.15";

// Its version, "2.9.0". The error says why it cannot be used.
Result<std::string> hwloc_version(const std::string& library = kHwlocLibrary);

// hwloc's view of this machine as XML. The code is kUnsupported when the library cannot be used.
Result<std::string> hwloc_view(const std::string& library);

}  // namespace weir::topo
