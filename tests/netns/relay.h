// SPDX-License-Identifier: Apache-2.0
// Relay: a slow network between two interfaces of this namespace, in user space: it takes the
// frames that come out of one, holds each for a while, and gives them to the other no faster than
// its rate, either way. What does not fit into its queue is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weir::test {

struct RelayOptions {
  uint64_t bits_per_second = 0;  // of each direction; 0: there is no relay
  int delay_ms = 0;              // each way
  size_t queue_bytes = 32 * 1024;
};

// Until the process ends; false when the interfaces cannot be opened.
bool run_relay(const std::string& first, const std::string& second, const RelayOptions& options);

}  // namespace weir::test
