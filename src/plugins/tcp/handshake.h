// SPDX-License-Identifier: Apache-2.0
// Handshake: one end of the proof that opens a connection (wire.h), fed with bytes, without
// sockets. It never wants more bytes than the current frame still has, so that nothing of the
// messages that follow is read by mistake, and keeps one frame at most. One thread at a time per
// object.
#pragma once

#include <cstddef>
#include <cstdint>

#include "net/tls.h"
#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

// What all connections of a rank have in common.
struct Identity {
  net::Mac key{};  // wire::handshake_key
  uint64_t comm_id = 0;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  net::TlsMode tls_mode = net::TlsMode::kOff;
  const net::TlsContext* tls = nullptr;  // where that is not kOff
};

class Handshake {
 public:
  enum class State : uint8_t {
    kBusy,
    kChallenged,    // a guest: the host speaks our protocol; `prove` goes on
    kClaimed,       // a host that asks: the guest has proven itself; `welcome` goes on
    kProven,        // both ends hold the secret; the connection belongs to peer() and lane()
    kRefused,       // the secret, the communicator or the rank count differ, or we reached another
                    // rank than we meant to
    kOtherVersion,  // other_version() tells which
    kMalformed,     // the other end speaks something else
  };

  // The host's end: it learns peer and lane from the guest.
  Handshake(const Identity& identity, const wire::Nonce& nonce);
  // The guest's end, whose hello is ready in out().
  Handshake(const Identity& identity, const wire::Nonce& nonce, uint32_t peer, uint32_t lane);

  State state() const { return state_; }
  // Of a host's end: the guest has said nothing yet that is of this protocol.
  bool is_silent() const { return expected_ == wire::Kind::kHello; }
  // Bytes that may be fed next; 0 when nothing is to be read.
  size_t wanted() const;
  // `bytes` is at most wanted().
  State feed(const unsigned char* data, size_t bytes);
  // A guest that was challenged sends its proof.
  void prove();
  // A host that is asked whether it wants this connection before it says that it does.
  void ask_before_welcome() { asks_ = true; }
  void welcome();
  // Before `prove`: which of the peer's rails the connection is for; else it has but one.
  void set_rail(uint32_t rail, uint32_t rail_count, uint32_t returns);

  // What is to be sent; taken when the caller has `sent` it. A host that refuses has something to
  // send, too.
  const unsigned char* out() const { return out_.bytes + sent_; }
  size_t out_bytes() const { return out_.size - sent_; }
  void sent(size_t bytes) { sent_ += bytes; }

  // The connection was inside TLS for its proof only. From kProven on.
  bool ends_tls() const {
    return identity_.tls_mode == net::TlsMode::kControl && lane() != kControlLane;
  }

  uint32_t peer() const { return is_host_ ? claim_.guest : claim_.host; }
  uint32_t lane() const { return claim_.lane; }
  uint32_t rail() const { return claim_.rail; }
  uint32_t rail_count() const { return claim_.rail_count; }
  uint32_t returns() const { return claim_.returns; }
  uint32_t other_version() const { return other_version_; }

 private:
  void say(const wire::Frame& frame);
  void refuse(wire::Refusal reason, State state);
  void finish_frame();
  void judge_proof();
  void judge_welcome();

  Identity identity_;
  bool is_host_;
  bool asks_ = false;
  State state_ = State::kBusy;
  wire::Kind expected_;
  wire::Claim claim_;
  wire::Header header_;
  uint32_t other_version_ = 0;
  unsigned char in_[wire::kHeaderBytes + wire::kPayloadBytesMax] = {};
  size_t in_bytes_ = 0;
  size_t frame_bytes_ = wire::kHeaderBytes;
  wire::Frame out_{};
  size_t sent_ = 0;
};

}  // namespace weir::plugins::tcp
