// SPDX-License-Identifier: Apache-2.0
// Handshake: one end of the proof that opens a control connection, fed with bytes, without
// sockets. It never wants more bytes than the current frame still has, so that nothing of what
// follows the proof is read by mistake. Integers on the wire are little-endian. One thread at a
// time per object.
//
// Who has the higher rank connects:
//
//   guest (higher rank)             host (lower rank)
//   kHello      ->                                  guest's nonce
//                               <-  kChallenge      host's nonce
//   kProof      ->                                  who, to whom, rank count, guest's proof
//                               <-  kWelcome        host's proof
//                               <-  kRefused        instead of kChallenge or kWelcome: reason,
//                                                   version; the connection ends
//
// Each frame starts with 16 bytes; the size of its payload is fixed by its kind.
//
//   offset  bytes  field
//        0      4  magic "WEIM"
//        4      2  protocol version
//        6      2  kind
//        8      4  payload bytes
//       12      4  zero
//
//   payload      offset  bytes  field
//   kHello            0     32  nonce
//   kChallenge        0     32  nonce
//   kProof            0      4  rank of the guest
//                     4      4  rank of the host, as the guest believes
//                     8      4  rank count
//                    12     32  proof, role "guest"
//   kWelcome          0     32  proof, role "host"
//   kRefused          0      4  reason
//                     4      4  protocol version of the host
//
// A proof is HMAC-SHA256 with the key HMAC-SHA256(secret, "weir ofi handshake") over
//
//        0      8  "weir ofi"
//        8      2  protocol version
//       10      2  role: 1 guest, 2 host
//       12      8  communicator
//       20     32  guest's nonce
//       52     32  host's nonce
//       84      4  rank of the guest
//       88      4  rank of the host
//       92      4  rank count
//
// The role keeps a proof from being reflected, the nonces keep it from being replayed, and the
// host's rank keeps a connection that went astray from being taken for another one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "net/auth.h"

namespace weir::plugins::ofi {

inline constexpr uint16_t kHandshakeVersion = 1;
inline constexpr size_t kHandshakeFrameBytesMax = 16 + 44;

using net::Mac;

using Nonce = std::array<unsigned char, 32>;

// What all handshakes of a rank have in common.
struct Identity {
  Mac key{};  // handshake_key
  uint64_t comm_id = 0;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
};

Mac handshake_key(const void* secret, size_t secret_bytes);

class Handshake {
 public:
  enum class State : uint8_t {
    kBusy,
    kChallenged,    // a guest: the host speaks our protocol; `prove` goes on
    kProven,        // both ends hold the secret; the connection belongs to peer()
    kRefused,       // the secret, the group or the rank count differ, or it is another rank
    kOtherVersion,  // other_version() tells which
    kMalformed,     // the other end speaks something else
  };

  // The host's end: it learns the peer from the guest.
  Handshake(const Identity& identity, const Nonce& nonce);
  // The guest's end, whose hello is ready in out().
  Handshake(const Identity& identity, const Nonce& nonce, uint32_t peer);

  State state() const { return state_; }
  // Bytes that may be fed next; 0 when nothing is to be read.
  size_t wanted() const { return state_ == State::kBusy ? frame_bytes_ - in_bytes_ : 0; }
  // `bytes` is at most wanted().
  State feed(const unsigned char* data, size_t bytes);
  // A guest that was challenged sends its proof.
  void prove();

  // What is to be sent; taken when the caller has `sent` it. A host that refuses has something to
  // send, too.
  const unsigned char* out() const { return out_ + sent_; }
  size_t out_bytes() const { return out_size_ - sent_; }
  void sent(size_t bytes) { sent_ += bytes; }

  uint32_t peer() const { return is_host_ ? guest_ : host_; }
  uint32_t other_version() const { return other_version_; }

 private:
  enum class Kind : uint16_t { kHello = 1, kChallenge, kProof, kWelcome, kRefused };
  enum class Role : uint16_t { kGuest = 1, kHost = 2 };

  static size_t payload_bytes(Kind kind);
  Mac proof_of(Role role) const;
  unsigned char* begin(Kind kind);  // the frame to be said; returns where its payload goes
  void refuse(uint32_t reason, State state);
  void judge_header();
  void judge_payload();
  void judge_proof(const unsigned char* payload);

  Identity identity_;
  bool is_host_;
  State state_ = State::kBusy;
  Kind expected_;
  Kind kind_ = Kind::kHello;  // of the frame that is being read
  Nonce guest_nonce_{};
  Nonce host_nonce_{};
  uint32_t guest_ = 0;
  uint32_t host_ = 0;
  uint32_t rank_count_ = 0;
  uint32_t other_version_ = 0;
  unsigned char in_[kHandshakeFrameBytesMax] = {};
  size_t in_bytes_ = 0;
  size_t frame_bytes_ = 16;
  unsigned char out_[kHandshakeFrameBytesMax] = {};
  size_t out_size_ = 0;
  size_t sent_ = 0;
};

}  // namespace weir::plugins::ofi
