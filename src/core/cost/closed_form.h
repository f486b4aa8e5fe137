// SPDX-License-Identifier: Apache-2.0
// Evaluates an algorithm's closed form (algo/formula.h), for comparison with simulated or measured
// times. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>

#include "core/algo/algorithm.h"

namespace weir::cost {

struct LinkFigures {
  double send_overhead_ns = 0;
  double latency_ns = 0;
  double recv_overhead_ns = 0;
  double ns_per_byte = 0;
  double signal_ns = 0;
  double remote_ns_per_byte = 0;
  double copy_ns_per_byte = 0;
  double reduce_ns_per_byte = 0;
};

struct ClosedForm {
  double ns = 0;
  const char* formula = "";
  // The simulation gives exactly this figure on a uniform network. Otherwise it is the usual
  // estimate: for rank counts or sizes that do not divide evenly, or where ranks wait for each
  // other in a way that no simple formula describes.
  bool exact = false;
};

// Without slicing. nullopt: none is known.
std::optional<ClosedForm> closed_form(const algo::Algorithm& algorithm,
                                      const algo::Problem& problem, uint64_t bytes,
                                      const LinkFigures& link);

}  // namespace weir::cost
