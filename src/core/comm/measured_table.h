// SPDX-License-Identifier: Apache-2.0
// The table of task times that the ranks of a new communicator agree on: the cached one of this
// machine's topology, else measured now and kept, else the built-in figures. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/comm/bootstrap.h"
#include "core/comm/introduction.h"
#include "core/cost/table.h"
#include "core/engine/context.h"

namespace weir::comm {

// Collective, after every rank has mapped the segment; also a barrier. Where no memory is shared,
// the table's shared-memory links get the figures of messages within a host, and its network the
// figures of messages between two. Where the probe fails there is no table, on any rank, and every
// rank has the reason: the communicator cannot be used. `transport_error`: where the transport's
// texts go.
Result<cost::Table> agree_on_table(Bootstrap& bootstrap, engine::Context& context,
                                   const Settings& settings, const std::vector<Introduction>& all,
                                   uint64_t deadline_ns, const std::string& transport_error);

}  // namespace weir::comm
