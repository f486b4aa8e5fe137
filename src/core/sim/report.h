// SPDX-License-Identifier: Apache-2.0
// A simulation's result as text, JSON and SVG. Pure functions; thread-safe.
#pragma once

#include <optional>
#include <string>

#include "core/cost/closed_form.h"
#include "core/sim/simulator.h"

namespace weir::sim {

// "12.3 us"
std::string text_of_time(uint64_t ps);

// The closed form for the network that the problem uses: all ranks on one node, or one rank on each
// node. nullopt with several ranks on several nodes, with slices or with faults.
std::optional<cost::ClosedForm> expected(const algo::Algorithm& algorithm,
                                         const algo::Problem& problem, uint64_t bytes,
                                         const Options& options);

// Several lines: total, closed form, critical path, traffic, ports, and who is blocked on whom.
std::string to_text(const Report& report, const std::optional<cost::ClosedForm>& closed_form);

// The same as a JSON object, with `finish_ns` of every rank.
std::string to_json(const Report& report, const std::optional<cost::ClosedForm>& closed_form);

// Rows of ranks over time, from Report::timeline; sends, receives, computation, waits.
std::string to_svg(const Report& report, const std::string& title);

}  // namespace weir::sim
