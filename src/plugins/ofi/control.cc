// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/control.h"

namespace weir::plugins::ofi {

void Control::say_card(const Card& card) {
  unsigned char word[kWordBytesMax];
  mesh_->tell(peer_, word, encode_card(card, word));
}

void Control::say(Kind kind) {
  unsigned char word[kWordBytesMax];
  mesh_->tell(peer_, word, encode_word(kind, word));
}

void Control::say_goodbye(const Goodbye& goodbye) {
  unsigned char word[kWordBytesMax];
  mesh_->tell(peer_, word, encode_goodbye(goodbye, word));
}

void Control::drive() {
  if (mesh_ == nullptr || ended_) return;
  // Looked at first: what is heard behind the end is all that there will be.
  bool ends = mesh_->look(peer_) != net::ControlMesh::Life::kHere;
  while (mesh_->hear(peer_, &word_)) {
    if (take_word(word_.data(), word_.size())) continue;
    ends = true;
    break;
  }
  ended_ = ends;
}

bool Control::take_word(const unsigned char* word, size_t bytes) {
  Kind kind = Kind::kCard;
  if (!decode_kind(word, bytes, &kind)) return false;
  if (!has_card_ && kind != Kind::kCard && kind != Kind::kGoodbye) return false;
  switch (kind) {
    case Kind::kCard:
      has_card_ = !has_card_ && !left_ && decode_card(word, &card_);
      return has_card_;
    case Kind::kReady:
      if (ready_ || left_) return false;
      ready_ = true;
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
  }
  return false;
}

}  // namespace weir::plugins::ofi
