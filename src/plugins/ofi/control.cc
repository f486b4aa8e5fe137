// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/control.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

namespace weir::plugins::ofi {
namespace {

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

Control::~Control() {
  if (fd_ >= 0) close(fd_);
}

void Control::say_card(const Card& card) {
  out_end_ += encode_card(card, out_ + out_end_);
  flush();
}

void Control::say(Kind kind) {
  out_end_ += encode_frame(kind, out_ + out_end_);
  flush();
}

void Control::say_goodbye(const Goodbye& goodbye) {
  out_end_ += encode_goodbye(goodbye, out_ + out_end_);
  flush();
}

void Control::flush() {
  while (fd_ >= 0 && !ended_ && out_begin_ < out_end_) {
    const ssize_t sent =
        send(fd_, out_ + out_begin_, out_end_ - out_begin_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // An end is found by reading, behind what the peer has said before.
      return;
    }
    out_begin_ += static_cast<size_t>(sent);
  }
}

bool Control::drive() {
  if (fd_ < 0 || ended_) return false;
  flush();
  bool moved = false;
  for (;;) {
    Kind kind = Kind::kCard;
    size_t wanted = kHeaderBytes;
    if (in_bytes_ >= kHeaderBytes) {
      size_t payload = 0;
      if (!decode_header(in_, &kind) || !payload_bytes(kind, &payload)) {
        ended_ = true;
        return true;
      }
      wanted += payload;
      if (in_bytes_ == wanted) {
        in_bytes_ = 0;
        moved = true;
        if (!take_frame(kind, in_ + kHeaderBytes)) {
          ended_ = true;
          return true;
        }
        continue;
      }
    }
    const ssize_t got = recv(fd_, in_ + in_bytes_, wanted - in_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && is_temporary(errno)) return moved;
    if (got <= 0) {
      ended_ = true;
      return true;
    }
    in_bytes_ += static_cast<size_t>(got);
  }
}

bool Control::take_frame(Kind kind, const unsigned char* payload) {
  if (!has_card_ && kind != Kind::kCard && kind != Kind::kGoodbye) return false;
  switch (kind) {
    case Kind::kCard:
      has_card_ = !has_card_ && !left_ && decode_card(payload, &card_);
      return has_card_;
    case Kind::kReady:
      if (ready_ || left_) return false;
      ready_ = true;
      return true;
    case Kind::kGoodbye:
      if (left_) return false;
      left_ = true;
      goodbye_ = decode_goodbye(payload);
      return true;
    case Kind::kTaken:
      if (taken_) return false;
      taken_ = true;
      return true;
  }
  return false;
}

void Control::shut() {
  if (fd_ >= 0) shutdown(fd_, SHUT_WR);
}

}  // namespace weir::plugins::ofi
