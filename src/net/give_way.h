// SPDX-License-Identifier: Apache-2.0
// Chooses the connection that gives way when a listener has as many without proof as it can hold.
// Neither strangers nor many ranks that come at once may keep the ranks of a communicator from
// meeting. So each connection is read as soon as it is accepted; one that has sent nothing gives
// way first, whichever it is, and one that has begun its proof has some time to continue. An honest
// rank that had to give way comes again. No state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::net {

// How long a connection that has sent something does not give way.
inline constexpr uint64_t kHeardSparedNs = 100'000'000;

struct GivesWay {
  static constexpr size_t kNobody = SIZE_MAX;
  // kNobody: a newcomer waits in the kernel's queue, until `room_ns` at the latest.
  size_t index = kNobody;
  uint64_t room_ns = UINT64_MAX;
};

// Of `count` connections, the oldest first. is_unproven(i), is_silent(i): it has said nothing;
// accepted_ns(i): when it came.
template <typename IsUnproven, typename IsSilent, typename AcceptedNs>
GivesWay who_gives_way(size_t count, uint64_t now_ns, const IsUnproven& is_unproven,
                       const IsSilent& is_silent, const AcceptedNs& accepted_ns) {
  GivesWay result;
  for (size_t i = 0; i < count; ++i) {
    if (!is_unproven(i)) continue;
    if (is_silent(i)) return {i, now_ns};
    if (result.room_ns != UINT64_MAX) continue;
    result.room_ns = accepted_ns(i) + kHeardSparedNs;
    if (result.room_ns <= now_ns) result.index = i;
  }
  return result;
}

}  // namespace weir::net
