// SPDX-License-Identifier: Apache-2.0
// A machine's links and their load as a picture. Pure; thread-safe.
#pragma once

#include <string>

#include "core/sim/report.h"

namespace weir::sim {

// An SVG document: each host as a box with its vertices, the network as a bar between the hosts,
// and each direction of a link as a line whose colour and width say how much of the time it was
// busy. Hosts that do not fit into the width of a page are left out, which the picture says. The
// report is of a simulation over the machine's graph, which is not null.
std::string machine_svg(const Report& report, const Machine& machine, const std::string& title);

}  // namespace weir::sim
