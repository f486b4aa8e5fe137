// SPDX-License-Identifier: Apache-2.0
// Whether a measured table can be that of an idle machine. A probe under load finds figures that
// are too long by orders of magnitude; they must not decide for later runs. Pure; thread-safe.
#pragma once

#include <string>

#include "core/cost/table.h"

namespace weir::cost {

// How the links of a host were measured.
struct Circumstances {
  // There were more ranks than cores: a message may wait until its receiver gets the core.
  bool shared_cores = false;
  // By messages of a transport, not in mapped memory.
  bool by_messages = false;
};

// Only the figures that a probe measures within a host are looked at. Each may be up to this many
// times the built-in one, that of the slowest link or regime of its kind: boards with 1/10 of a
// server's memory bandwidth and virtual machines with slow caches stay below, while a wait for a
// core that another program holds is a time slice (milliseconds) or a wake-up (50 us).
inline constexpr double kTimesBuiltInMax = 16;

// Names the first figure that is beyond its bound, and the bound; empty: there is none.
std::string why_implausible(const Table& table, const Circumstances& circumstances);

}  // namespace weir::cost
