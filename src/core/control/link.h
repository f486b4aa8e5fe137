// SPDX-License-Identifier: Apache-2.0
// Link: one proven connection of the control network, over a Unix socket between ranks of a host or
// over TCP, plain or inside TLS. It begins with the handshake (net/handshake.h); after that both
// ends send frames. Nothing waits. One thread at a time.
//
// A frame is a header of 16 bytes and its payload. On TCP outside TLS it is followed by 32 bytes,
// HMAC-SHA256 with the sender's session key over the number of the frame in its direction (8 bytes,
// from 0) and the frame. Integers are little-endian.
//
//   offset  bytes  field
//        0      2  magic "WC"
//        2      1  kind
//        3      1  of kState: Life; of kMessage: its channel; of kStart: which message; of
//                  kDescriptor: 0 or 1 (below)
//        4      4  payload bytes
//        8      4  of kState: the rank that it is about; of kStart: a rank
//       12      4  of kState: its version; of kStart: the round
//
//   kind               payload
//   1 kState           what that rank shows, at most kNoticeBytesMax
//   2 kMessage         a message to this rank, at most kMessageBytesMax
//   3 kBye             none; the sender closes this link and lives on
//   4 kWantDescriptor  its key, kDescriptorKeyBytes
//   5 kDescriptor      the key; carries the descriptor (SCM_RIGHTS), but 1: its process could not
//                      copy it. Only on a Unix socket
//   6 kStart           while ranks look for each other (core/comm/start/bootstrap_node.h); at most
//                      kStartBytesMax
//   7 kReceived        none; version: how many messages of the peer have come, over all its links
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/types.h"
#include "net/handshake.h"
#include "net/stream.h"

namespace weir::control {

inline constexpr size_t kNoticeBytesMax = 1024;
inline constexpr size_t kMessageBytesMax = size_t{1} << 17;
inline constexpr size_t kDescriptorKeyBytes = 16;
inline constexpr size_t kStartBytesMax = (size_t{1} << 20) + 16;

struct Frame {
  enum class Kind : uint8_t {
    kState = 1,
    kMessage = 2,
    kBye = 3,
    kWantDescriptor = 4,
    kDescriptor = 5,
    kStart = 6,
    kReceived = 7,
  };
  static constexpr uint8_t kWithoutDescriptor = 1;

  Kind kind = Kind::kState;
  uint8_t detail = 0;
  Rank rank = 0;
  uint32_t version = 0;
  std::string_view payload{};

  // Header and payload, without the MAC that follows them over TCP.
  void append_to(std::string* bytes) const;
};

class Link {
 public:
  enum class Step : uint8_t { kGoesOn, kEnded };

  // `is_local`: a Unix socket, whose other end runs as the same user.
  Link(net::Stream stream, bool is_local, const net::Handshake& handshake);
  ~Link();
  Link(Link&&) noexcept = default;
  Link& operator=(Link&&) = delete;

  int fd() const { return stream_.fd(); }
  bool is_local() const { return is_local_; }
  const net::Stream& stream() const { return stream_; }
  net::Handshake& handshake() { return handshake_; }
  const net::Handshake& handshake() const { return handshake_; }
  bool is_proven() const { return proven_; }
  // Events of epoll to wait for.
  uint32_t events() const;

  // Before the proof: moves the handshake. kEnded: handshake().state() or `*error_number` tells
  // why. After the proof `is_proven` holds, and only the functions below are called.
  Step advance(int* error_number);

  void queue(const Frame& frame);
  // The descriptor is copied; if that fails the peer is told that none will come.
  void queue_descriptor(std::string_view key, int fd);
  size_t queued_bytes() const { return out_.size() - sent_; }
  // Sends what the socket takes. False: the connection has ended.
  bool flush();
  // Reads what has come and gives each frame to `take`, which returns false where the frame is not
  // one that an honest peer sends. False: the connection has ended or is unusable.
  bool receive(const std::function<bool(const Frame&)>& take);
  // `receive` has ended because the bytes were no frame, or not one of the peer.
  bool is_malformed() const { return malformed_; }
  // The descriptor of the kDescriptor frame that is being taken, the caller's; -1: none came.
  int take_descriptor();
  // There are bytes that poll does not report.
  bool has_unread() const { return stream_.has_unread(); }
  // The peer is told that nothing more comes; for the process that made the link.
  void shut() { stream_.shut(); }
  // The stream of a connection that carries no frames; the link must not be used afterwards.
  net::Stream take_stream() { return std::move(stream_); }
  // The peer's host has acknowledged all that was sent, or cannot tell.
  bool is_acknowledged() const;
  // It has not answered for so long, although something was sent again.
  bool is_stalled(uint32_t patience_ms) const;

 private:
  bool read_more(bool* any);
  bool parse(const std::function<bool(const Frame&)>& take);
  bool check_mac(std::string_view frame);
  bool has_mac() const { return !is_local_ && !stream_.is_secured(); }

  net::Stream stream_;
  bool is_local_;
  bool proven_ = false;
  bool malformed_ = false;
  net::Handshake handshake_;
  net::Mac send_key_{};
  net::Mac receive_key_{};
  uint64_t sent_count_ = 0;
  uint64_t received_count_ = 0;
  std::string out_;
  size_t sent_ = 0;
  struct Attached {
    uint64_t at;  // byte of the stream with which it is sent
    int fd;
  };
  std::deque<Attached> attached_;
  uint64_t out_base_ = 0;  // byte of the stream at which out_ begins
  std::string in_;
  std::deque<int> descriptors_;  // descriptors that have arrived
};

}  // namespace weir::control
