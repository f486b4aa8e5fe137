// SPDX-License-Identifier: Apache-2.0
#include "core/comm/bootstrap_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace weir::comm {

void Channel::protect(const Secret& send_key, const Secret& receive_key) {
  protected_ = true;
  send_key_ = send_key;
  receive_key_ = receive_key;
}

bool Channel::secure(std::shared_ptr<const net::TlsContext> tls, net::Stream::Role role) {
  std::unique_ptr<net::Stream, Borrowed> stream(new net::Stream(fd_.get()));
  if (!stream->secure(*tls, role)) return false;
  tls_ = std::move(tls);
  stream_ = std::move(stream);
  return true;
}

short Channel::events() const {
  if (stream_ != nullptr) return stream_->events(sending());
  return static_cast<short>(sending() ? POLLIN | POLLOUT : POLLIN);
}

Channel::Read Channel::ended() const {
  if (stream_ == nullptr) return Read::kClosed;
  switch (stream_->failure()) {
    case net::Stream::Failure::kNone:
      return Read::kClosed;
    case net::Stream::Failure::kRefused:
      return Read::kNoSecret;
    case net::Stream::Failure::kNotTls:
    case net::Stream::Failure::kOversized:
      return Read::kMalformed;
    case net::Stream::Failure::kDamaged:
      return Read::kDamaged;
    case net::Stream::Failure::kBroken:
      break;
  }
  return stream_->reason().empty() ? Read::kClosed : Read::kDamaged;
}

std::string Channel::with_macs(std::string_view frames) {
  std::string bytes;
  while (!frames.empty()) {
    const size_t size = wire::frame_bytes(frames);
    const wire::Proof mac = wire::sign_frame(send_key_, sent_count_++, frames.substr(0, size), {});
    bytes.append(frames.substr(0, size));
    bytes.append(reinterpret_cast<const char*>(mac.data()), mac.size());
    frames.remove_prefix(size);
  }
  return bytes;
}

bool Channel::check_mac() {
  const std::string_view header(reinterpret_cast<const char*>(header_bytes_), sizeof header_bytes_);
  const wire::Proof right = wire::sign_frame(receive_key_, received_count_++, header, payload());
  return equal_in_constant_time(payload_.data() + header_.payload_bytes, right.data(),
                                right.size());
}

void Channel::send(std::string bytes) {
  if (bytes.empty()) return;
  outgoing_.push_back(protected_ ? with_macs(bytes) : std::move(bytes));
}

bool Channel::flush() {
  while (!outgoing_.empty()) {
    const std::string_view rest = std::string_view(outgoing_.front()).substr(sent_bytes_);
    const ssize_t sent = stream_ != nullptr
                             ? stream_->send(rest.data(), rest.size())
                             : ::send(fd_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
    }
    sent_bytes_ += static_cast<size_t>(sent);
    if (static_cast<size_t>(sent) == rest.size()) {
      outgoing_.pop_front();
      sent_bytes_ = 0;
    }
  }
  return true;
}

ssize_t Channel::receive(void* data, size_t bytes) {
  for (;;) {
    const ssize_t got =
        stream_ != nullptr ? stream_->recv(data, bytes) : recv(fd_.get(), data, bytes, 0);
    if (got > 0) return got;
    if (got == 0) return -1;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? 0 : -1;
  }
}

Channel::Read Channel::read(const std::vector<wire::Kind>& expected) {
  if (header_received_ == wire::kHeaderBytes && payload_received_ == payload_.size()) {
    header_received_ = 0;  // the frame before was handed out
  }
  while (header_received_ < wire::kHeaderBytes) {
    const ssize_t got =
        receive(header_bytes_ + header_received_, wire::kHeaderBytes - header_received_);
    if (got < 0) return ended();
    if (got == 0) return Read::kNothing;
    header_received_ += static_cast<size_t>(got);
    if (header_received_ < wire::kHeaderBytes) continue;
    if (!wire::decode_header(header_bytes_, &header_)) return Read::kMalformed;
    if (header_.version != wire::kProtocolVersion) return Read::kOtherVersion;
    const bool is_expected =
        std::find(expected.begin(), expected.end(), header_.kind) != expected.end();
    if (!is_expected || !wire::header_fits(header_)) return Read::kMalformed;
    payload_.resize(header_.payload_bytes + mac_bytes());
    payload_received_ = 0;
  }
  while (payload_received_ < payload_.size()) {
    const ssize_t got =
        receive(payload_.data() + payload_received_, payload_.size() - payload_received_);
    if (got < 0) return ended();
    if (got == 0) return Read::kNothing;
    payload_received_ += static_cast<size_t>(got);
  }
  if (protected_ && !check_mac()) return Read::kMalformed;
  return Read::kFrame;
}

}  // namespace weir::comm
