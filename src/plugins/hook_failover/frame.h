// SPDX-License-Identifier: Apache-2.0
// Frame: the message that two ranks exchange on the control lane of a transport, its last lane. A
// frame is a snapshot: it may report several things, and a later one replaces all earlier ones.
// Values; thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WFOV"
//        4      1  version, 1
//        5      1  number of lanes, 1 to kLanesMax
//        6      1  number of the transport that the sender uses with the receiver, from 0 on
//        7      1  zero
//        8      4  ping: number of the latest question of the sender on this transport; 0: none
//       12      4  pong: number of the latest question of the receiver that has come on this
//                  transport
//       16      4  rank of the sender
//       20      4  zero
//       24     64  for each lane 8 bytes: messages of the receiver that the sender has received
//                  completely; zero for lanes that are not there
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::plugins::hook_failover {

inline constexpr uint32_t kLanesMax = 8;
inline constexpr size_t kFrameBytes = 24 + 8 * kLanesMax;

struct Frame {
  uint32_t lane_count = 0;
  uint32_t level = 0;
  uint32_t ping = 0;
  uint32_t pong = 0;
  uint32_t rank = 0;
  uint64_t received[kLanesMax] = {};

  bool operator==(const Frame&) const = default;
};

// Writes kFrameBytes.
void encode(const Frame& frame, unsigned char* out);
// False: these kFrameBytes are no frame of this version.
bool decode(const unsigned char* in, Frame* frame);

}  // namespace weir::plugins::hook_failover
