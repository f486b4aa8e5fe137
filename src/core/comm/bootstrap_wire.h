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
// A guest is a rank that looks for its parent in the tree, a host one that lets children in.
//
//   guest                           host
//   kHello      ->                                  guest's nonce
//                               <-  kChallenge      host's nonce
//   kProof      ->                                  rank, rank_count, patience, guest's proof
//                               <-  kWelcome        rank_count, rank of the host, host's proof
//                               <-  kAdmit          the guest is a child of this host now, or
//                               <-  kRedirect       it is to ask another: rank, place, port; last
//                               <-  kTurnedAway     instead of kChallenge or kWelcome: reason,
//                                                   version; last
//
//   child                           parent
//   kDoor       ->                                  where the child takes children: place, port
//   kMembers    ->                                  ranks that have joined below the parent:
//                                                   for each rank, rank_count, process, patience
//                               <-  kReady          all ranks have joined
//   kGive       ->                                  round k: patience, records
//                               <-  kTake           round k: records, all ranks in rank order
//   kFailure   <->                                  at any time after kAdmit: code, text; the
//                                                   last frame of its direction
//
//   payload      offset  bytes  field
//   kHello            0     32  nonce
//   kChallenge        0     32  nonce
//   kProof            0      4  rank
//                     4      4  rank_count
//                     8      8  patience: how long the guest is willing to wait, us
//                    16     32  proof, role "guest"
//   kWelcome          0      4  rank_count
//                     4      4  rank of the host
//                     8     32  proof, role "host"
//   kTurnedAway       0      4  reason
//                     4      4  protocol version of the host
//   kAdmit                      empty
//   kRedirect         0      4  rank
//                     4      2  port
//                     6     77  place (bootstrap_place.h)
//   kDoor             0      2  port
//                     2     77  place
//   kMembers          0     24  for each, at most kMembersMax: rank (4), rank_count (4), process
//                               (8, -1: on another host), patience (8), us
//   kReady                      empty
//   kGive             0      8  patience, us
//                     8    ...  records, at most kRecordsBytesMax
//   kTake             0    ...  records, at most kRecordsBytesMax
//   kFailure          0      4  code
//                     4    ...  text, at most kFailureTextBytesMax
//
//   a record          0      4  rank
//                     4      4  bytes of the blob, at most kBlobBytesMax
//                     8    ...  blob
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
//      100      4  rank of the host; 0 in the guest's proof
//
// The role keeps a proof from being reflected, the two nonces keep it from being replayed, and
// everything that either side goes on to believe is under it. With WEIR_TLS=control and all, a network socket is inside
// TLS 1.3 from its first byte on (bootstrap_tls.h), and all that follows is said inside. After kWelcome frames are not signed
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
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/bootstrap.h"
#include "core/comm/bootstrap_place.h"

namespace weir::comm::wire {

inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr size_t kHeaderBytes = 16;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr size_t kFailureTextBytesMax = 4096;
inline constexpr size_t kMemberBytes = 24;
inline constexpr size_t kMembersMax = 2048;  // in one frame
inline constexpr size_t kRecordHeaderBytes = 8;
inline constexpr size_t kRecordsBytesMax = kRecordHeaderBytes + kBlobBytesMax;

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
  kAdmit = 10,
  kRedirect = 11,
  kDoor = 12,
  kMembers = 13,
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
  Rank host_rank = 0;
};

// Where a rank takes children: on its own host by name, from others at the place and port.
struct DoorAddress {
  Rank rank = 0;  // in kRedirect
  uint16_t port = 0;
  Place place;
};

struct Member {
  Rank rank = 0;
  Rank rank_count = 0;
  int64_t pid = 0;
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
std::string encode_admit();
std::string encode_redirect(const DoorAddress& address);
std::string encode_door(const DoorAddress& address);
std::string encode_members(const Member* members, size_t count);
void append_record(Rank rank, std::string_view blob, std::string* records);
std::string encode_give(uint32_t round, uint64_t patience_us, std::string_view records);
std::string encode_take(uint32_t round, std::string_view records);
std::string encode_failure(uint32_t round, const Status& status);

// Decoders take a payload whose size `header_fits` has accepted for the kind.
Nonce decode_nonce(std::string_view payload);
// Fills rank, rank_count and patience_us of `claim` and returns the proof that was sent.
Proof decode_proof(std::string_view payload, Claim* claim);
Proof decode_welcome(std::string_view payload, Rank* rank_count, Rank* host_rank);
void decode_turned_away(std::string_view payload, uint32_t* reason, uint32_t* version);
// False when the place in it is none.
bool decode_redirect(std::string_view payload, DoorAddress* address);
bool decode_door(std::string_view payload, DoorAddress* address);
std::vector<Member> decode_members(std::string_view payload);
// The records of the payload.
std::string_view decode_give(std::string_view payload, uint64_t* patience_us);
// Takes the first record off `records`, which is not empty; false when it is not whole.
bool take_record(std::string_view* records, Rank* rank, std::string_view* blob);
// Text from a peer that holds the secret; bytes that are not printable become '?'. A code that does
// not exist becomes kInternal.
Status decode_failure(std::string_view payload);

}  // namespace weir::comm::wire
