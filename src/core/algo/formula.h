// SPDX-License-Identifier: Apache-2.0
// Formula: the time of an algorithm in closed form, on equal links without contention; part of the
// algorithm's descriptor. cost/closed_form.h evaluates it. Pure functions; thread-safe.
//
// Formulas of recursive algorithms are for powers of two; for other rank counts the rounds of the
// pairs (recursive_group.h) are added.
#pragma once

#include <algorithm>

namespace weir::algo {

// The symbols of a formula. Times in ns, sizes in bytes.
struct Symbols {
  double n, k;     // ranks; ceil(log2 n)
  double m, c;     // the largest buffer; a chunk
  double o, L, r;  // a message's send overhead, latency and receive overhead
  double a;        // o + L + r
  double b;        // ns per byte of a link
  double s;        // a signal
  double z;        // extra ns per byte for reading from or writing to a peer
  double x;        // ns per byte of a copy
  double y;        // ns per byte of a reduction, per operand after the first
  double p, h;     // the largest power of two <= n, and its logarithm
  bool power_of_two;
  bool root_is_first;

  // All blocks but one, of one chunk each.
  double rest() const { return c * (n - 1); }
  // The cost of the rounds before and after where n is not a power of two.
  double pairs(double before_ns, double after_ns) const {
    return power_of_two ? 0 : 2 * a + before_ns + after_ns;
  }
};

struct Formula {
  const char* text = nullptr;  // "(n-1) (a + c b)"; nullptr: the algorithm has none
  double (*ns)(const Symbols& q) = nullptr;
  // Whether a simulation gives exactly this figure on a uniform network when the data divides
  // evenly into chunks. Otherwise it is the usual estimate.
  bool (*exact)(const Symbols& q) = nullptr;
};

// Formula::exact
inline bool always_exact(const Symbols& /*q*/) { return true; }
inline bool never_exact(const Symbols& /*q*/) { return false; }
inline bool exact_for_powers_of_two(const Symbols& q) { return q.power_of_two; }
inline bool exact_from_root_0(const Symbols& q) { return q.root_is_first; }

}  // namespace weir::algo
