// SPDX-License-Identifier: Apache-2.0
// Measures what messages between two ranks cost over the transport of a communicator that has just
// been made: for ranks that share no memory. Called by both ranks at the same time, before any
// operation. Takes some ten milliseconds; on a slow link a few seconds at most, and of what is
// large the built-in figures then stay.
//
// One of the two leads: it asks for one exchange after the other, and by its own clock decides
// before each whether there is another one, or the end. The other one does what it is asked for
// until it is told to stop. So neither ever gives up within an exchange, and nothing is posted at
// the end: a rank that is stopped for a while only makes it longer. What fails is final: the
// communicator carries no messages any more.
#pragma once

#include "core/base/status.h"
#include "core/cost/table.h"
#include "core/engine/context.h"
#include "core/engine/probe_messages.h"

namespace weir::engine {

// `leads`: exactly one of the two; it gets the figures in `link`, which holds the built-in ones
// before, and in `complete` whether there was time for all of them; within a host the built-in ones
// stay where there was not. The other leaves both as they were. `is_network`: the ranks are on
// different hosts, so that a wire between them is shared by all messages of a host. kTimeout when
// the peer does not answer by the deadline, kPeerLost when it has died, and what the transport or
// `watch` says.
Status probe_link(Context& context, Rank peer, bool leads, bool is_network, uint64_t deadline_ns,
                  const ProbeWatch& watch, cost::LinkTimes* link, bool* complete);

}  // namespace weir::engine
