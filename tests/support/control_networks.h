// SPDX-License-Identifier: Apache-2.0
// Control networks for tests that drive transports without a communicator.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/control/host_control.h"
#include "core/control/network.h"
#include "net/tls.h"
#include "weir/plugin.h"

namespace weir::testing_support {

// One rank's network, between open and join. `config` is that of the transport.
class ControlRank {
 public:
  // `tls`: a value of WEIR_TLS, or null.
  explicit ControlRank(const weir_transport_config_t& config, bool leaves_host = true,
                       const char* tls = getenv("WEIR_TLS")) {
    control::NetworkConfig made;
    made.comm_id = config.comm_id;
    made.rank = config.rank;
    made.rank_count = config.rank_count;
    memcpy(made.secret.bytes.data(), config.secret,
           std::min(config.secret_bytes, made.secret.bytes.size()));
    made.leaves_host = leaves_host;
    (void)net::parse_tls_mode(tls, &made.tls);
    auto opened = control::Network::open(made);
    if (!opened.ok()) {
      problem = opened.status();
      return;
    }
    network = opened.take();
    host = std::make_unique<control::HostControl>(network.get(), uint8_t{0},
                                                  [this](const std::string& text) {
                                                    error = text;
                                                    if (error_copy != nullptr) *error_copy = text;
                                                  });
  }
  // Leaves in order.
  ~ControlRank() {
    if (network != nullptr) network->leave();
  }

  std::string address() const { return network == nullptr ? std::string() : network->address(); }
  Status join(const std::vector<std::string>& addresses, uint64_t deadline_ns) {
    return network == nullptr ? problem : network->join(addresses, deadline_ns);
  }
  const weir_control_t* functions() const { return host == nullptr ? nullptr : host->functions(); }

  Status problem;
  std::string error;
  std::string* error_copy = nullptr;  // where the transport's errors go
  std::unique_ptr<control::Network> network;
  std::unique_ptr<control::HostControl> host;
};

}  // namespace weir::testing_support
