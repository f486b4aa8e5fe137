// SPDX-License-Identifier: Apache-2.0
// Which lanes of a transport carry what: the first one messages (weir_send, weir_recv), the last
// one messages with tags, those between them the messages of programs. Pure; thread-safe.
#pragma once

#include <cstdint>

#include "weir/plugin.h"

namespace weir::engine {

inline constexpr uint32_t kMessageLane = 0;
inline constexpr uint32_t kFirstProgramLane = 1;

// A transport of one or two lanes has none for messages with tags.
constexpr bool has_tag_lane(const weir_transport_caps_t& caps) { return caps.lane_count >= 3; }
constexpr uint32_t tag_lane(const weir_transport_caps_t& caps) { return caps.lane_count - 1; }
constexpr uint32_t program_lanes(const weir_transport_caps_t& caps) {
  return caps.lane_count - (has_tag_lane(caps) ? 2 : 1);
}

}  // namespace weir::engine
