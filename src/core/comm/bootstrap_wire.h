// SPDX-License-Identifier: Apache-2.0
// The frames of the bootstrap: their bytes, and nothing about sockets. Integers are little-endian.
// Pure functions; thread-safe.
//
// Every frame starts with 16 bytes:
//
//   offset  bytes  field
//        0      4  magic "WEIR"
//        4      2  protocol version
//        6      2  kind
//        8      4  payload bytes
//       12      4  round: 0 while joining, k = 1, 2, … in the k-th all_gather
//
// The first six bytes and the frame kTurnedAway stay as they are in all versions, so that two
// versions can tell each other apart.
//
//   guest (rank i)                  host (rank 0)
//   kHello      ->                                  guest's nonce
//                               <-  kChallenge      host's nonce
//   kProof      ->                                  rank, rank_count, patience, guest's proof
//                               <-  kWelcome        rank_count, host's proof
//                                   waits until all ranks are welcome
//                               <-  kReady
//   kGive       ->                                  round k: patience, blob
//                               <-  kTake           once for each rank, in rank order: rank, blob
//   kFailure   <->                                  at any time after kWelcome: code, text; the
//                                                   last frame of its direction
//                               <-  kTurnedAway     instead of kChallenge or kWelcome: reason,
//                                                   version
//
//   payload      offset  bytes  field
//   kHello            0     32  nonce
//   kChallenge        0     32  nonce
//   kProof            0      4  rank
//                     4      4  rank_count
//                     8      8  patience: how long the guest is willing to wait, us
//                    16     32  proof, role "guest"
//   kWelcome          0      4  rank_count
//                     4     32  proof, role "host"
//   kTurnedAway       0      4  reason
//                     4      4  protocol version of the host
//   kReady                      empty
//   kGive             0      8  patience, us
//                     8    ...  blob, at most kBlobBytesMax
//   kTake             0      4  rank
//                     4    ...  blob, at most kBlobBytesMax
//   kFailure          0      4  code
//                     4    ...  text, at most kFailureTextBytesMax
//
// A proof is HMAC-SHA256 with key derive("bootstrap proof") over
//
//        0     14  "weir bootstrap"
//       14      2  protocol version
//       16      4  role: 1 guest, 2 host
//       20     32  guest's nonce
//       52     32  host's nonce
//       84      4  rank of the guest
//       88      4  rank_count, as the signer has it
//       92      8  patience of the guest, us
//
// The role keeps a proof from being reflected, the two nonces keep it from being replayed, and
// everything that either side goes on to believe is under it. After kWelcome frames are not signed
// on a socket of one machine: nobody else can write into the connection. On a network socket each
// is followed by 32 bytes, HMAC-SHA256 over
//
//        0      8  number of the frame after kWelcome in its direction, from 0
//        8    ...  the frame, header and payload
//
// with one key for each direction, HMAC-SHA256 with key derive("bootstrap frames") over
//
//        0      4  role of the sender
//        4     32  guest's nonce
//       36     32  host's nonce
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/bootstrap.h"

namespace weir::comm::wire {

inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr size_t kHeaderBytes = 16;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kFailureTextBytesMax = 4096;

enum class Kind : uint16_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kTurnedAway = 5,
  kReady = 6,
  kGive = 7,
  kTake = 8,
  kFailure = 9,
};
const char* name_of(Kind kind);

enum class TurnedAway : uint32_t { kVersion = 1, kProof = 2 };
enum class Role : uint32_t { kGuest = 1, kHost = 2 };

using Nonce = std::array<unsigned char, kNonceBytes>;
using Proof = std::array<unsigned char, kProofBytes>;

struct Header {
  uint16_t version = kProtocolVersion;
  Kind kind = Kind::kHello;
  uint32_t payload_bytes = 0;
  uint32_t round = 0;
};

// What a proof is about.
struct Claim {
  Role role = Role::kGuest;
  Nonce guest_nonce{};
  Nonce host_nonce{};
  Rank rank = 0;
  Rank rank_count = 0;
  uint64_t patience_us = 0;
};

// False: these are not the first 16 bytes of a frame of any version. A kind or size that does not
// exist in this version is not judged here but by `header_fits`.
bool decode_header(const unsigned char (&bytes)[kHeaderBytes], Header* header);

// Whether `header` names a kind of this version with a size and round that it may have; decided
// before memory for the payload is allocated.
bool header_fits(const Header& header);

Proof prove(const Secret& secret, const Claim& claim);

// The key of the frames that `role` sends over a network after this handshake.
Secret frame_key(const Secret& secret, Role role, const Claim& claim);
// MAC of the frame whose bytes are `start` and `rest`.
Proof sign_frame(const Secret& key, uint64_t number, std::string_view start, std::string_view rest);
// Size of the first of the frames that were encoded here.
size_t frame_bytes(std::string_view frames);

std::string encode_hello(const Nonce& nonce);
std::string encode_challenge(const Nonce& nonce);
std::string encode_proof(const Secret& secret, const Claim& claim);
std::string encode_welcome(const Secret& secret, const Claim& claim);
std::string encode_turned_away(TurnedAway reason);
std::string encode_ready();
std::string encode_give(uint32_t round, uint64_t patience_us, std::string_view blob);
// Appends, so that the frames of all ranks form one run of bytes.
void append_take(uint32_t round, Rank rank, std::string_view blob, std::string* bytes);
std::string encode_failure(uint32_t round, const Status& status);

// Decoders take a payload whose size `header_fits` has accepted for the kind.
Nonce decode_nonce(std::string_view payload);
// Fills rank, rank_count and patience_us of `claim` and returns the proof that was sent.
Proof decode_proof(std::string_view payload, Claim* claim);
Proof decode_welcome(std::string_view payload, Rank* rank_count);
void decode_turned_away(std::string_view payload, uint32_t* reason, uint32_t* version);
std::string_view decode_give(std::string_view payload, uint64_t* patience_us);
std::string_view decode_take(std::string_view payload, Rank* rank);
// Text from a peer that holds the secret; bytes that are not printable become '?'. A code that does
// not exist becomes kInternal.
Status decode_failure(std::string_view payload);

}  // namespace weir::comm::wire
