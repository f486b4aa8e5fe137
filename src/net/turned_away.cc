// SPDX-License-Identifier: Apache-2.0
#include "net/turned_away.h"

#include <unistd.h>

#include <utility>

#include "net/handshake.h"

namespace weir::net {

void TurnedAway::add(Why why, std::string from, uint32_t detail) {
  Count& count = counts_[static_cast<size_t>(why)];
  ++count.connections;
  count.detail = detail;
  last_ = std::move(from);
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

std::string TurnedAway::text() const {
  const auto detail = [this](Why why) {
    return std::to_string(counts_[static_cast<size_t>(why)].detail);
  };
  const std::string what[] = {
      "without the secret",
      "with protocol version " + detail(Why::kOtherVersion) + " (this is version " +
          std::to_string(Handshake::kProtocolVersion) + ")",
      "of another protocol",
      "without TLS",
      "silent",
      "of user " + detail(Why::kOtherUser) + ", not " + std::to_string(geteuid())};
  std::string text;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (counts_[i].connections == 0) continue;
    text += (text.empty() ? "" : ", ") + std::to_string(counts_[i].connections) + " " + what[i];
  }
  if (text.empty()) return "";
  return "; connections turned away meanwhile: " + text + " (last: " + last_ + ")";
}

}  // namespace weir::net
