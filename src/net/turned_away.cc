// SPDX-License-Identifier: Apache-2.0
#include "net/turned_away.h"

#include <numeric>

namespace weir::net {

void TurnedAway::add(Why why, const IpAddress& from) {
  ++counts_[static_cast<size_t>(why)];
  last_ = from;
}

bool TurnedAway::why_of(Stream::Failure failure, Why* why) {
  switch (failure) {
    case Stream::Failure::kRefused:
      *why = Why::kNoSecret;
      return true;
    case Stream::Failure::kNotTls:
      *why = Why::kNoTls;
      return true;
    case Stream::Failure::kOversized:
    case Stream::Failure::kDamaged:
      *why = Why::kMalformed;
      return true;
    case Stream::Failure::kNone:
    case Stream::Failure::kBroken:
      break;
  }
  return false;
}

std::string TurnedAway::text(bool with_tls) const {
  if (std::accumulate(counts_.begin(), counts_.end(), 0u) == 0) return "";
  const auto of = [this](Why why) { return std::to_string(count(why)); };
  return "; connections turned away meanwhile: " + of(Why::kNoSecret) + " without the secret, " +
         of(Why::kOtherVersion) + " of another version, " + of(Why::kMalformed) +
         " of another protocol, " + (with_tls ? of(Why::kNoTls) + " without TLS, " : "") +
         of(Why::kSilent) + " silent (last: " + to_string(last_) + ")";
}

}  // namespace weir::net
