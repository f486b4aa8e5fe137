// SPDX-License-Identifier: Apache-2.0
// Handshake: the mutual proof with which every connection between two ranks begins; it is fed with
// bytes and uses no sockets. Both ends show that they hold the same secret, and agree on their
// ranks and on the purpose of the connection, before either trusts anything else from the other. It
// asks for no more bytes than the current frame still has, so it never reads data that follows the
// handshake. One thread at a time per object.
//
// The client connects, the server accepts. Integers are little-endian.
//
//   client                          server
//   kHello      ->                                  client's nonce
//                               <-  kChallenge      server's nonce
//   kProof      ->                                  claim, client's proof
//                               <-  kWelcome        server's proof
//                               <-  kRefused        instead of kChallenge or kWelcome: reason,
//                                                   version; the connection ends
//
// Each frame starts with 16 bytes; its kind fixes the size of its payload. The first eight of them
// and the frame kRefused stay as they are in all versions, so that two versions can tell each other
// apart.
//
//   offset  bytes  field
//        0      4  magic "WEIR"
//        4      2  protocol version
//        6      2  kind
//        8      4  payload bytes
//       12      4  zero
//
//   payload      offset  bytes  field
//   kHello            0     32  nonce
//   kChallenge        0     32  nonce
//   kProof            0      4  rank of the client
//                     4      4  rank of the server, as the client believes, or kAnyRank
//                     8      4  rank count
//                    12     12  subject: what the connection is for, three words
//                    24     32  client's proof
//   kWelcome          0     32  server's proof
//   kRefused          0      4  reason
//                     4      4  protocol version of the server
//
// A proof is HMAC-SHA256 with the key of the purpose (`key_for`) over
//
//        0      8  "weirhand"
//        8      2  protocol version
//       10      2  role: 1 client, 2 server
//       12      8  communicator
//       20     32  client's nonce
//       52     32  server's nonce
//       84      4  rank of the client
//       88      4  rank of the server
//       92      4  rank count
//       96     12  subject
//
// The role prevents reflection, the nonces prevent replay, and the server's rank prevents that a
// connection to the wrong host (two hosts may have the same private address) is accepted. A session
// key is the same HMAC with "weirsess" in place of "weirhand" and the sender's role.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "net/auth.h"

namespace weir::net {

// What all connections of a rank have in common.
struct Identity {
  Mac key{};  // key_for
  uint64_t comm_id = 0;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  // The ranks do not know each other's addresses yet: clients connect to kAnyRank, and a server
  // accepts these only. The client's rank and rank count are proven, and left to the server's owner
  // to judge.
  bool is_of_strangers = false;
};

// As the server's rank: any rank that holds the secret.
inline constexpr uint32_t kAnyRank = UINT32_MAX;

// The key for one purpose; proofs made with it are invalid for another purpose.
Mac key_for(const void* secret, size_t secret_bytes, std::string_view purpose);

using Subject = std::array<uint32_t, 3>;

class Handshake {
 public:
  static constexpr uint16_t kProtocolVersion = 4;
  static constexpr size_t kNonceBytes = 32;
  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kFrameBytesMax = kHeaderBytes + 24 + kMacBytes;
  using Nonce = std::array<unsigned char, kNonceBytes>;

  enum class State : uint8_t {
    kBusy,
    kChallenged,    // client: the server speaks this protocol; `prove` continues
    kClaimed,       // server: the client has proven its claim; `welcome` continues
    kProven,        // both ends hold the secret
    kRefused,       // secret, communicator or rank count differ, or this is another rank
    kOtherVersion,  // other_version() tells which
    kMalformed,     // the other end speaks another protocol
  };

  // The server's end: it learns peer and subject from the client.
  Handshake(const Identity& identity, const Nonce& nonce);
  // The client's end; its first frame is ready in out().
  Handshake(const Identity& identity, const Nonce& nonce, uint32_t peer, const Subject& subject);

  State state() const { return state_; }
  bool is_server() const { return is_server_; }
  // Server: no frame has arrived yet.
  bool is_silent() const { return expected_ == Kind::kHello; }
  // Bytes that may be fed next; 0 when nothing is to be read.
  size_t wanted() const { return state_ == State::kBusy ? frame_bytes_ - in_bytes_ : 0; }
  // `bytes` is at most wanted().
  State feed(const unsigned char* data, size_t bytes);
  // Client, challenged: sends its proof.
  void prove();
  // Client, before `prove`: changes the purpose of the connection.
  void set_subject(const Subject& subject) { claim_.subject = subject; }
  // Server, claimed: accepts the connection, or refuses a claim that no honest rank makes. A server
  // that does not need the connection closes it instead.
  void welcome();
  void refuse() {
    if (state_ == State::kClaimed) refuse(Refusal::kProof, State::kRefused);
  }

  // What is to be sent, until the caller has `sent` it. A server that refuses has a frame to send.
  const unsigned char* out() const { return out_ + sent_; }
  size_t out_bytes() const { return out_bytes_ - sent_; }
  void sent(size_t bytes) { sent_ += bytes; }

  uint32_t rank() const { return identity_.rank; }
  uint32_t peer() const { return is_server_ ? claim_.client : claim_.server; }
  const Subject& subject() const { return claim_.subject; }
  // The rank count that the client has claimed.
  uint32_t rank_count() const { return claim_.rank_count; }
  uint32_t other_version() const { return other_version_; }
  // Client, kRefused: true if the server has refused, false if it did not prove that it holds the
  // secret.
  bool is_refused_by_peer() const { return kind_ == Kind::kRefused; }
  // Keys of this connection, one for each direction, known to its two ends only. From the proof on.
  Mac own_key() const { return sign(kSessionLabel, is_server_ ? kServer : kClient); }
  Mac peer_key() const { return sign(kSessionLabel, is_server_ ? kClient : kServer); }

 private:
  enum class Kind : uint16_t { kHello = 1, kChallenge = 2, kProof = 3, kWelcome = 4, kRefused = 5 };
  enum class Refusal : uint32_t { kVersion = 1, kProof = 2 };
  enum Role : uint16_t { kClient = 1, kServer = 2 };
  static constexpr char kProofLabel[] = "weirhand";
  static constexpr char kSessionLabel[] = "weirsess";
  struct Claim {
    Nonce client_nonce{};
    Nonce server_nonce{};
    uint32_t client = 0;
    uint32_t server = 0;
    uint32_t rank_count = 0;
    Subject subject{};
  };

  static size_t payload_bytes(Kind kind);
  Mac sign(const char* label, Role role) const;
  unsigned char* begin(Kind kind);
  void refuse(Refusal reason, State state);
  bool judge_header();
  void finish_frame(const unsigned char* payload);
  void judge_proof(const unsigned char* payload);

  Identity identity_;
  bool is_server_;
  State state_ = State::kBusy;
  Kind expected_;
  Kind kind_ = Kind::kHello;  // of the frame that is being read
  Claim claim_;
  uint32_t other_version_ = 0;
  unsigned char in_[kFrameBytesMax] = {};
  size_t in_bytes_ = 0;
  size_t frame_bytes_ = kHeaderBytes;
  unsigned char out_[kFrameBytesMax] = {};
  size_t out_bytes_ = 0;
  size_t sent_ = 0;
};

}  // namespace weir::net
