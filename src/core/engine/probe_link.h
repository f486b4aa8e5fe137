// SPDX-License-Identifier: Apache-2.0
// Measures what messages between two ranks cost over the transport of a communicator that has just
// been made: for ranks that share no memory. Called by both ranks at the same time, before any
// operation. Takes some ten milliseconds, on a slow link as long as a few megabytes take.
#pragma once

#include "core/base/status.h"
#include "core/cost/table.h"
#include "core/engine/context.h"

namespace weir::engine {

// `drives`: exactly one of the two; it gets the figures in `link`, the other leaves it as it was.
// `is_network`: the ranks are on different hosts, so that a wire between them is shared by all
// messages of a host. kTimeout when the peer does not answer.
Status probe_link(Context& context, Rank peer, bool drives, bool is_network, uint64_t deadline_ns,
                  cost::LinkTimes* link);

}  // namespace weir::engine
