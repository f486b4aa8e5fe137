// SPDX-License-Identifier: Apache-2.0
// TurnedAway: the connections that were refused, counted by reason, for the error that names
// missing ranks. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "net/stream.h"

namespace weir::net {

class TurnedAway {
 public:
  enum class Why : uint8_t { kNoSecret, kOtherVersion, kMalformed, kNoTls, kSilent, kOtherUser };

  // `from`: an address or a process; `detail`: of kOtherVersion and kOtherUser, which.
  void add(Why why, std::string from, uint32_t detail = 0);
  // Why a connection inside TLS has failed. False: TLS does not say why.
  static bool why_of(Stream::Failure failure, Why* why);
  // The text that follows one about missing ranks, or "".
  std::string text() const;

 private:
  struct Count {
    uint32_t connections = 0;
    uint32_t detail = 0;  // of the latest
  };
  std::array<Count, 6> counts_{};
  std::string last_;
};

}  // namespace weir::net
