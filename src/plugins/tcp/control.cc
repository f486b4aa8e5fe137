// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/control.h"

#include <errno.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace weir::plugins::tcp {
namespace {

bool is_temporary(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

}  // namespace

void Control::receive() {
  // Many notices may lie ready; each takes the place of the one before.
  while (!left_ && !lost_ && fd_ >= 0) {
    const ssize_t got = ::recv(fd_, in_ + in_bytes_, in_wanted_ - in_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && is_temporary(errno)) return;
    if (got <= 0) {
      lost_ = true;
      return;
    }
    in_bytes_ += static_cast<size_t>(got);
    if (in_bytes_ == in_wanted_) judge();
  }
}

void Control::judge() {
  if (in_wanted_ == wire::kHeaderBytes) {
    const bool good = wire::decode(in_, &in_header_) && in_header_.lane == kControlLane &&
                      in_header_.kind != wire::MessageKind::kMessage &&
                      in_header_.number == received_;
    if (!good) {
      lost_ = true;
      return;
    }
    if (in_header_.kind == wire::MessageKind::kGoodbye) {
      left_ = true;
      return;
    }
    in_wanted_ += in_header_.bytes;
    if (in_bytes_ < in_wanted_) return;
  }
  ++received_;
  notice_bytes_ = in_wanted_ - wire::kHeaderBytes;
  memcpy(notice_, in_ + wire::kHeaderBytes, notice_bytes_);
  in_bytes_ = 0;
  in_wanted_ = wire::kHeaderBytes;
}

bool Control::push() {
  while (out_sent_ < out_bytes_ && !broken_) {
    const ssize_t sent =
        ::send(fd_, out_ + out_sent_, out_bytes_ - out_sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && is_temporary(errno)) return false;
    if (sent < 0) {
      // Why is told by what can be read: the end, or a goodbye before it.
      broken_ = true;
      return false;
    }
    out_sent_ += static_cast<size_t>(sent);
  }
  return !broken_;
}

bool Control::send(const unsigned char* notice, size_t bytes, uint32_t version) {
  if (fd_ < 0 || left_ || broken_) return true;
  if (!push()) return broken_;
  if (sent_version_ == version) return true;
  wire::encode({wire::MessageKind::kNotice, kControlLane, sent_++, bytes}, out_);
  memcpy(out_ + wire::kHeaderBytes, notice, bytes);
  out_bytes_ = wire::kHeaderBytes + bytes;
  out_sent_ = 0;
  sent_version_ = version;
  return push() || broken_;
}

bool Control::arrived() {
  if (fd_ < 0 || left_ || lost_ || broken_ || arrived_version_ == sent_version_) return true;
  int waiting = 0;
  if (out_sent_ < out_bytes_ || (ioctl(fd_, SIOCOUTQ, &waiting) == 0 && waiting > 0)) return false;
  arrived_version_ = sent_version_;
  return true;
}

void Control::say_goodbye(const unsigned char* notice, size_t bytes, uint32_t version) {
  if (fd_ < 0) return;
  (void)send(notice, bytes, version);
  // A goodbye in the middle of a notice would be taken for a part of it.
  if (push()) {
    wire::encode({wire::MessageKind::kGoodbye, kControlLane, sent_, 0}, out_);
    out_bytes_ = wire::kHeaderBytes;
    out_sent_ = 0;
    (void)push();
  }
  // At most what a socket holds: a peer that goes on sending is not waited for.
  constexpr int kReadsMax = 4096;
  for (int i = 0; i < kReadsMax; ++i) {
    if (::recv(fd_, in_, sizeof in_, MSG_DONTWAIT) <= 0) break;
  }
}

}  // namespace weir::plugins::tcp
