// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start_times.h"

#include <fmt/format.h>

#include "core/base/clock.h"

namespace weir::comm {

void StartTimes::mark(uint64_t* part) {
  const uint64_t now = now_ns();
  if (part != nullptr) *part += now - last_ns_;
  last_ns_ = now;
}

std::string StartTimes::describe(const std::string& communicator, Rank rank, Rank rank_count,
                                 const JoinTimes& join) const {
  const auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  const uint64_t total_ns =
      join.rendezvous_ns + join.handshake_ns + exchange_ns + connect_ns + costs_ns;
  return fmt::format(
      "communicator '{}': rank {} of {} started in {:.2f} ms: rendezvous {:.2f}, handshake {:.2f}, "
      "exchange {:.2f}, connect {:.2f}, costs {:.2f}",
      communicator, rank, rank_count, ms(total_ns), ms(join.rendezvous_ns), ms(join.handshake_ns),
      ms(exchange_ns), ms(connect_ns), ms(costs_ns));
}

}  // namespace weir::comm
