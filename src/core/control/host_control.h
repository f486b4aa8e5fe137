// SPDX-License-Identifier: Apache-2.0
// HostControl: a control network as a transport sees it (weir_control_t of weir/plugin.h). Each has
// a channel, so that two transports over one network do not take each other's messages. Lives at
// least as long as the transport's instance. Thread-safe, like the network.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/control/network.h"
#include "weir/plugin.h"

namespace weir::control {

class HostControl {
 public:
  // `tell` is called with the text of each error.
  HostControl(Network* network, uint8_t channel, std::function<void(const std::string&)> tell,
              Network::StillPossible still_possible = {});
  HostControl(const HostControl&) = delete;
  HostControl& operator=(const HostControl&) = delete;

  const weir_control_t* functions() const { return &functions_; }

 private:
  weir_result_t give(const Status& status);
  Purpose purpose_of(uint64_t subject) const;
  void connect(uint32_t peer, uint64_t subject, const weir_control_way_t* ways, size_t way_count,
               uint64_t deadline_ns);
  weir_result_t connected(weir_control_connection_t* connection);

  Network* network_;
  uint8_t channel_;
  std::function<void(const std::string&)> tell_;
  Network::StillPossible still_possible_;
  weir_control_t functions_{};
};

}  // namespace weir::control
