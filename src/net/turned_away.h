// SPDX-License-Identifier: Apache-2.0
// TurnedAway: who came to a meeting of ranks and was not let in, counted by why, for the error that tells
// of missing ranks. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "net/ip_address.h"
#include "net/stream.h"

namespace weir::net {

class TurnedAway {
 public:
  enum class Why : uint8_t { kNoSecret, kOtherVersion, kMalformed, kNoTls, kSilent };

  void add(Why why, const IpAddress& from);
  // Why a connection inside TLS has failed. False: TLS does not tell.
  static bool why_of(Stream::Failure failure, Why* why);
  // "" or what follows a text about missing ranks; `with_tls`: those without count by themselves.
  std::string text(bool with_tls) const;

 private:
  uint32_t count(Why why) const { return counts_[static_cast<size_t>(why)]; }

  std::array<uint32_t, 5> counts_{};
  IpAddress last_;
};

}  // namespace weir::net
