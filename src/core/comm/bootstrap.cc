// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_guest.h"
#include "core/comm/bootstrap_host.h"

namespace weir::comm {
namespace {

constexpr Rank kRankCountMax = 1u << 20;
constexpr uint64_t kPauseNsMin = 200'000;
constexpr uint64_t kPauseNsMax = 5'000'000;
// Between two looks at another host.
constexpr uint64_t kNetworkPauseNs = 10'000'000;

// The only rank of its communicator: no sockets.
class Alone final : public Bootstrap {
 public:
  Result<std::vector<std::string>> all_gather(std::string_view blob, uint64_t) override {
    if (blob.size() > kBlobBytesMax) {
      return invalid_argument(fmt::format("all_gather: a blob of {} bytes is above the limit of {}",
                                          blob.size(), kBlobBytesMax));
    }
    return std::vector<std::string>{std::string(blob)};
  }
};

// Rank 0 comes here when its place is taken: either another rank calls itself 0, and the host will
// say so and fail for all, or the place is about to become free.
Result<std::unique_ptr<Bootstrap>> join_as_guest(std::unique_ptr<Guest> guest,
                                                 uint64_t deadline_ns) {
  WEIR_RETURN_IF_ERROR(guest->await_ready(deadline_ns));
  return std::unique_ptr<Bootstrap>(std::move(guest));
}

Status nobody_listens(Rank rank, Rank rank_count, uint64_t start_ns, const Place& place) {
  const double seconds = static_cast<double>(now_ns() - start_ns) * 1e-9;
  const std::string who = rank == 0 ? "the place of rank 0 stayed taken by a process that does not "
                                      "answer"
                                    : fmt::format("rank 0 of {} has not joined", rank_count);
  if (!place.empty()) {
    std::string where;
    for (const net::IpAddress& address : place.addresses) where += " " + net::to_string(address);
    return Status(
        Code::kTimeout,
        fmt::format("timed out: {} within {:.3g} s (seen by rank {}), neither on this host nor at"
                    "{}; rank 0 must run on the host that made the id, and its ports {} to {} be "
                    "open to the others (WEIR_IFNAME chooses its interfaces)",
                    who, seconds, rank, where, kPlacePortFirst,
                    kPlacePortFirst + kPlacePortRange - 1));
  }
  return Status(
      Code::kTimeout,
      fmt::format("timed out: {} within {:.3g} s (seen by rank {}); start all ranks on this "
                  "machine, in one network namespace, as the same user, with the same id",
                  who, seconds, rank));
}

}  // namespace

Result<std::unique_ptr<Bootstrap>> Bootstrap::join(const Secret& secret, Rank rank, Rank rank_count,
                                                   uint64_t deadline_ns, const Place& place) {
  if (rank_count == 0 || rank_count > kRankCountMax) {
    return invalid_argument(
        fmt::format("rank_count {} is not in 1..{}", rank_count, kRankCountMax));
  }
  if (rank >= rank_count) {
    return invalid_argument(fmt::format("rank {} is not below rank_count {}", rank, rank_count));
  }
  if (rank_count == 1) return std::unique_ptr<Bootstrap>(new Alone);

  const uint64_t start_ns = now_ns();
  uint64_t pause_ns = kPauseNsMin;
  uint64_t next_look_ns = 0;
  uint32_t look_count = 0;
  for (;;) {
    if (rank == 0) {
      Result<std::unique_ptr<Door>> door = Door::open(secret, rank_count, DoorLimits(), place);
      if (!door.ok()) return door.status();
      if (door.value() != nullptr) return Host::join(door.take(), rank_count, deadline_ns);
    }
    Result<std::unique_ptr<Guest>> guest = Guest::knock(secret, rank, rank_count, deadline_ns);
    if (!guest.ok()) return guest.status();
    if (guest.value() != nullptr) return join_as_guest(guest.take(), deadline_ns);
    if (rank != 0 && !place.empty() && now_ns() >= next_look_ns) {
      guest = Guest::knock_at(place, look_count++, secret, rank, rank_count, deadline_ns);
      if (!guest.ok()) return guest.status();
      if (guest.value() != nullptr) return join_as_guest(guest.take(), deadline_ns);
      next_look_ns = now_ns() + kNetworkPauseNs;
    }
    if (now_ns() >= deadline_ns) return nobody_listens(rank, rank_count, start_ns, place);
    sleep_ns(pause_ns, deadline_ns);
    pause_ns = std::min(pause_ns * 3 / 2, kPauseNsMax);
  }
}

}  // namespace weir::comm
