// SPDX-License-Identifier: Apache-2.0
// Closed forms: what algebra says an algorithm takes on like links without contention, to stand
// beside what is simulated or measured. Pure functions; thread-safe.
//
// Symbols of the formulas: n ranks, k = ceil(log2 n), m bytes of the largest buffer, c bytes of a
// chunk; a = o + L + r: a message's send overhead, latency and receive overhead; b, y, x: ns per
// byte of a link, of a reduction per operand after the first, of a copy; z: what a byte at a peer
// costs more; s: a signal.
#pragma once

#include <cstdint>
#include <optional>

#include "core/algo/algorithm.h"

namespace weir::cost {

// Formulas of recursive algorithms are for powers of two; for other rank counts the figure has the
// rounds of the pairs on top.
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
  // The simulation gives this very figure on a uniform network. Else it is the usual estimate: for
  // rank counts or sizes that do not divide evenly, or where ranks wait for each other in a way
  // that no simple formula has.
  bool exact = false;
};

// Without slicing. nullopt: none is known.
std::optional<ClosedForm> closed_form(const algo::Algorithm& algorithm,
                                      const algo::Problem& problem, uint64_t bytes,
                                      const LinkFigures& link);

}  // namespace weir::cost
