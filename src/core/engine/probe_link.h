// SPDX-License-Identifier: Apache-2.0
// Measures the cost of messages between two ranks that share no memory, over the transport of a
// communicator that has just been made. Called by both ranks at the same time, before any
// operation. Takes some ten milliseconds; on a slow link a few seconds at most, and then the
// built-in figures for large messages stay.
//
// One of the two leads: it requests one exchange after the other, and decides before each, by its
// own clock, whether to go on or to stop. The other one does what it is asked until it is told to
// stop. So neither ever gives up within an exchange, and nothing is posted at the end: a rank that
// is stopped for a while only makes the probe longer. A failure is final: the communicator no
// longer carries messages.
#pragma once

#include "core/base/status.h"
#include "core/cost/table.h"
#include "core/engine/context.h"
#include "core/engine/probe_messages.h"

namespace weir::engine {

// `leads`: exactly one of the two; it gets the figures in `link`, which holds the built-in ones
// before, and in `complete` whether there was time for all of them; if not, the built-in ones stay
// within a host. The other leaves both as they were. kTimeout when the peer
// does not answer by the deadline, kPeerLost when it has died, and any error of the transport or of
// `watch`.
struct LinkProbeOptions {
  // The ranks are on different hosts, so that a wire between them is shared by all messages of a
  // host.
  bool is_network = false;
  // Only what the leader sends on the wire: a few milliseconds; 0 where a small message takes more
  // than 50 ms.
  bool brief = false;
};
Status probe_link(Context& context, Rank peer, bool leads, const LinkProbeOptions& options,
                  uint64_t deadline_ns, const ProbeWatch& watch, cost::LinkTimes* link,
                  bool* complete);

}  // namespace weir::engine
