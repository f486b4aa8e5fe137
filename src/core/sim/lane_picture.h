// SPDX-License-Identifier: Apache-2.0
// What the lanes and links of one rank do over time, as a picture. Pure; thread-safe.
#pragma once

#include <string>

#include "core/sim/report.h"

namespace weir::sim {

// An SVG document from Report::lanes and Report::transfers, which are of one rank: a row for each
// of its lanes, with what its core does and waits for, and a row for each of its ports or links,
// with the messages that take it. Numbers in the bars are the ranks at the other end.
std::string lanes_svg(const Report& report, Rank rank, const Machine& machine,
                      const std::string& title);

}  // namespace weir::sim
