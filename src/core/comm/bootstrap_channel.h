// SPDX-License-Identifier: Apache-2.0
// Channel: frames over one nonblocking stream socket. Bytes arrive and leave in any pieces; a frame
// is judged by its header before memory is taken for its payload. One thread at a time per object.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/secret.h"
#include "core/comm/bootstrap_socket.h"
#include "core/comm/bootstrap_wire.h"

namespace weir::comm {

class Channel {
 public:
  enum class Read {
    kFrame,         // header() and payload() are valid until the next read
    kNothing,       // the rest has not arrived
    kClosed,        // the peer has closed the connection or died
    kOtherVersion,  // header().version is not ours
    kMalformed,     // no frame, not one of the kinds that are expected, or of a size it cannot have
  };

  Channel() = default;
  explicit Channel(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  bool is_open() const { return fd_.valid(); }
  void close() { *this = Channel(); }

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

  Fd fd_;
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
