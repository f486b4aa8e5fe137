// SPDX-License-Identifier: Apache-2.0
// How the ranks of one machine agree on the links between their devices, which decide whether
// collectives go along rings (stream_ways.h): rank 0 asks the topology of its machine, and tells
// what it found. One thread of each rank.
//
// What rank 0 tells (integers little-endian): straight and rings (8 each, IEEE 754), and the rings
// (graph/search_record.h).
#pragma once

#include <memory>
#include <string>

#include "core/base/settings.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/stream/window_setup.h"
#include "core/graph/device_ways.h"

namespace weir::comm {

struct DeviceLinks {
  std::shared_ptr<const graph::DeviceWays> ways;  // nullptr: not known
  std::string reason;  // rank 0: what the topology says, for people; "": nothing is known
};

// Collective. `device`: of this rank, as cuda::told_device says it; "": not known. Fails where the
// ranks cannot tell each other; kRefused: rank 0 has told what is no such answer.
Result<DeviceLinks> agree_on_device_links(const Settings& settings, Rank rank, Rank rank_count,
                                          const std::string& device, const GatherFromRanks& gather);

}  // namespace weir::comm
