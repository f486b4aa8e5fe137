// SPDX-License-Identifier: Apache-2.0
#include "core/comm/record/start_times.h"

#include <fmt/format.h>

#include "core/base/clock.h"

namespace weir::comm {

uint64_t StartTimes::total_ns() const {
  return rendezvous_ns + handshake_ns + exchange_ns + connect_ns + costs_ns;
}

void StartTimes::mark(uint64_t* part) {
  const uint64_t now = now_ns();
  if (part != nullptr) *part += now - last_ns_;
  last_ns_ = now;
}

std::string StartTimes::describe() const {
  const auto ms = [](uint64_t ns) { return static_cast<double>(ns) * 1e-6; };
  return fmt::format(
      "{:.2f} ms: rendezvous {:.2f}, handshake {:.2f}, exchange {:.2f}, connect {:.2f}, costs "
      "{:.2f}",
      ms(total_ns()), ms(rendezvous_ns), ms(handshake_ns), ms(exchange_ns), ms(connect_ns),
      ms(costs_ns));
}

}  // namespace weir::comm
