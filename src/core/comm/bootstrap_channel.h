// SPDX-License-Identifier: Apache-2.0
// Channel: frames over one nonblocking stream socket, plain or inside TLS. Bytes arrive and leave in any pieces; a
// frame is judged by its header before memory is taken for its payload. One thread at a time per object.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/secret.h"
#include "core/comm/bootstrap_socket.h"
#include "core/comm/bootstrap_wire.h"
#include "net/stream.h"

namespace weir::comm {

class Channel {
 public:
  enum class Read {
    kFrame,         // header() and payload() are valid until the next read
    kNothing,       // the rest has not arrived
    kClosed,        // the peer has closed the connection or died
    kOtherVersion,  // header().version is not ours
    kMalformed,     // no frame, not one of the kinds that are expected, or of a size it cannot have
    kNoSecret,      // TLS: the peer does not hold the secret, or says that we do not
    kDamaged,       // TLS: what came is not what was sent
  };

  Channel() = default;
  explicit Channel(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool is_open() const { return fd_.valid(); }
  void close() { *this = Channel(); }

  // Before the first byte: all of the connection is inside TLS. False: no memory. It is bounded before the peer has
  // shown that it holds the secret (stream.h).
  bool secure(std::shared_ptr<const net::TlsContext> tls, net::Stream::Role role);
  bool is_secured() const { return stream_ != nullptr; }
  // What to poll for.
  short events() const;
  // Bytes have come that poll does not tell of: read before waiting.
  bool has_unread() const { return stream_ != nullptr && stream_->has_unread(); }

  // From now on every frame in either direction is followed by a MAC of it and of its number in
  // that direction; a frame without the right one is kMalformed.
  void protect(const Secret& send_key, const Secret& receive_key);

  // Queues bytes of whole frames.
  void send(std::string bytes);
  bool sending() const { return !outgoing_.empty(); }
  // Writes as much as the socket takes. False: the peer is gone.
  bool flush();

  // Reads at most one frame. After anything but kFrame and kNothing the stream is of no more use.
  Read read(const std::vector<wire::Kind>& expected);
  const wire::Header& header() const { return header_; }
  std::string_view payload() const {
    return std::string_view(payload_).substr(0, header_.payload_bytes);
  }

 private:
  std::string with_macs(std::string_view frames);
  bool check_mac();
  size_t mac_bytes() const { return protected_ ? wire::kProofBytes : 0; }
  // Reads up to `bytes` bytes; the count, 0 when none has arrived, -1 when the peer is gone.
  ssize_t receive(void* data, size_t bytes);
  // What an end of the connection is.
  Read ended() const;

  // The descriptor is the channel's.
  struct Borrowed {
    void operator()(net::Stream* stream) const {
      (void)stream->release();
      delete stream;
    }
  };

  Fd fd_;
  std::shared_ptr<const net::TlsContext> tls_;
  std::unique_ptr<net::Stream, Borrowed> stream_;  // null: plain
  std::deque<std::string> outgoing_;
  size_t sent_bytes_ = 0;  // of outgoing_.front()
  unsigned char header_bytes_[wire::kHeaderBytes] = {};
  size_t header_received_ = 0;
  wire::Header header_;
  std::string payload_;  // and the MAC of the frame
  size_t payload_received_ = 0;
  bool protected_ = false;
  Secret send_key_;
  Secret receive_key_;
  uint64_t sent_count_ = 0;
  uint64_t received_count_ = 0;
};

}  // namespace weir::comm
