// SPDX-License-Identifier: Apache-2.0
// A picture of a run: bus bandwidth over message size (logarithmic), one line per type, reduction,
// root and place, labelled at its end. Pure; thread-safe.
#pragma once

#include <string>

#include "perf/harness/report.h"

namespace weir::perf {

// A whole SVG document. A report without rows gives axes without lines.
std::string plot_svg(const Report& report);

}  // namespace weir::perf
