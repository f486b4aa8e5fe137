// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/control.h"

namespace weir::plugins::ofi {
namespace {

// How long a goodbye may arrive later than the news that its rank has left.
constexpr uint64_t kGoodbyeNs = 1'000'000'000;

}  // namespace

void Control::drive() {
  if (network_ == nullptr || lost_) return;
  // Asked before words are read: those read after an end are all that there will be.
  const int life = network_->life(peer_);
  while (network_->hear(peer_, &word_)) {
    if (!take_word(word_)) lost_ = ended_ = true;
  }
  if (life == WEIR_LIFE_HERE) return;
  ended_ = true;
  if (left_) return;
  if (life == WEIR_LIFE_LOST) {
    lost_ = left_ns_ == 0;
    left_ = left_ns_ != 0;
    return;
  }
  const uint64_t now = message::monotonic_ns();
  if (left_ns_ == 0) left_ns_ = now;
  left_ = now - left_ns_ > kGoodbyeNs;
}

bool Control::take_word(const std::string& word) {
  Kind kind = Kind::kGoodbye;
  if (!decode_kind(word, &kind) || ended_by_word_) return false;
  switch (kind) {
    case Kind::kGiveUp:
      if (left_) return false;
      left_ = ended_ = ended_by_word_ = true;
      return true;
    case Kind::kGoodbye:
      if (left_) return false;
      left_ = true;
      goodbye_ = decode_goodbye(word);
      return true;
    case Kind::kTaken:
      if (taken_) return false;
      taken_ = true;
      return true;
    case Kind::kEnded:
      if (!left_) return false;
      ended_ = ended_by_word_ = true;
      return true;
  }
  return false;
}

}  // namespace weir::plugins::ofi
