// SPDX-License-Identifier: Apache-2.0
// Channels: share one control network (weir_control_t) among several transports that a composite
// opens, so that they do not take each other's messages and connections. A message is preceded by
// one byte, its channel, so that it may be one byte shorter than the network's. A connection's
// subject has the channel in its highest byte. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::message {

class Channels {
 public:
  // `control` outlives it; if it is null, so are its channels.
  Channels(const weir_control_t* control, uint8_t count);
  ~Channels();
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  const weir_control_t* functions(uint8_t channel) const {
    return control_ == nullptr ? nullptr : &channels_[channel]->functions;
  }

 private:
  struct Channel {
    Channels* self = nullptr;
    uint8_t number = 0;
    weir_control_t functions{};
    // What other channels have read for this one: messages by peer, and connections.
    std::map<uint32_t, std::deque<std::string>> waiting{};
    std::deque<std::pair<weir_result_t, weir_control_connection_t>> connections{};
  };

  static const weir_control_t& outer(void* channel);
  weir_result_t send(uint8_t channel, uint32_t peer, const void* message, size_t bytes);
  weir_result_t connected(Channel* channel, weir_control_connection_t* connection);
  weir_result_t receive(Channel* channel, uint32_t peer, void* message, size_t* bytes);

  const weir_control_t* control_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::unique_ptr<char[]> room_;
};

}  // namespace weir::plugins::message
