// SPDX-License-Identifier: Apache-2.0
// The bytes that this transport puts on a connection, and nothing about sockets. Integers are
// little-endian. Pure functions; thread-safe.
//
// A connection belongs to one pair of ranks and one lane. Where a pair has one rail, each lane has
// a connection of its own for its messages; kControlLane carries what is said beside them, and
// early messages of lanes whose connections are made when they are needed. Where a pair has several
// rails, each rail has two: kRailLane carries fragments of the messages of all lanes, kControlLane
// what is said about them; where connections are made when they are needed, the former may come
// later on all but the first rail. Who has the higher rank connects. First the two ends prove
// themselves:
//
//   guest (higher rank)             host (lower rank)
//   kHello      ->                                  guest's nonce
//                               <-  kChallenge      host's nonce
//   kProof      ->                                  who, to whom, which lane, guest's proof
//                               <-  kWelcome        host's proof
//                               <-  kRefused        instead of kChallenge or kWelcome: reason,
//                                                   version; the connection ends
//
// Each of these frames starts with 16 bytes; the size of its payload is fixed by its kind.
//
//   offset  bytes  field
//        0      4  magic "WEIT"
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
//                    12      4  lane
//                    16      2  rail
//                    18      2  number of rails of this pair of ranks
//                    20      4  how often this rail has come back; 0 at the first time
//                    24     32  proof, role "guest"
//   kWelcome          0     32  proof, role "host"
//   kRefused          0      4  reason
//                     4      4  protocol version of the host
//
// A proof is HMAC-SHA256 with the key HMAC-SHA256(secret, "weir tcp handshake") over
//
//        0      8  "weir tcp"
//        8      2  protocol version
//       10      2  role: 1 guest, 2 host
//       12      8  communicator
//       20     32  guest's nonce
//       52     32  host's nonce
//       84      4  rank of the guest
//       88      4  rank of the host
//       92      4  rank count
//       96      4  lane
//      100      2  rail
//      102      2  number of rails
//      104      4  how often the rail has come back
//
// The role keeps a proof from being reflected, the nonces keep it from being replayed, the host's
// rank keeps a connection that went astray (two hosts may have the same private address) from being
// taken for another one.
//
// From then on either end sends messages and what is said beside them, each behind 16 bytes:
//
//   offset  bytes  field
//        0      2  magic "WT"
//        2      1  kind: 16 message, 17 goodbye, 18 notice, 19 state, 21 early message, 22 taken,
//                  23 wish, 24 begin
//        3      1  lane; of a goodbye, a notice and a state kControlLane
//        4      4  of a message: its number on this lane and direction, from 0, modulo 2^32; of the
//                  others: that of the frame on this connection and direction, likewise
//        8      8  of a message: bytes that follow, at most kMessageBytesMax
//        8      4  of the others: bytes that follow: of a notice at most kNoticeBytesMax, of a
//                  goodbye 0, of a state 40 + 16 * number of rails, of an early message at most
//                  kEarlyBytesMax
//       12      4  of a notice: its version, which grows; else 0
//        8      8  of taken, wish and begin, which nothing follows: a count (below); of a wish 0
//
// All but messages are sent on the control lane only, and are numbered together. A notice is what
// the rank wants all others to know (plugin.h); its bytes mean nothing here. With several rails it
// is sent on each, and the latest version holds. Goodbye is the last frame of a rank that ends in
// order, so that the end of its connections is not taken for a death. A state is all that a sender
// must know of its receiver; each one holds by itself and takes the place of those before:
//
//        0   5 * 8  for each lane: receives that were posted so far
//       40      16  for each rail:
//                   0   4  how often the rail has come back
//                   4   4  1: this end has closed the rail
//                   8   8  fragments that this end has received on it since it came back
//
// A lane without a connection sends its messages of up to kEarlyBytesMax early: they are its first
// ones, in order. `taken` tells how many bytes of them receives have taken so far; no more than
// kEarlyWindowBytes may be sent beyond that. Each message counts with the 16 bytes of its header. A
// guest connects a lane when it needs it, or when it hears a wish. When the connection is proven,
// each end says `begin` with the number of its first message on it, and sends nothing early on this
// lane any more.
//
// On a rail's other connection each fragment of a message is behind 48 bytes:
//
//        0      2  magic "WT"
//        2      1  kind: 20
//        3      1  lane
//        4      4  number of the fragment on this connection and direction, from 0, modulo 2^32
//        8      8  number of the message on this lane, from 0
//       16      8  bytes of the message, at most kMessageBytesMax
//       24      8  where in the message the fragment begins
//       32      4  bytes that follow, at most kFragmentBytesMax; 0 only of a message without bytes
//       36      4  fragments that this end has received on this connection, modulo 2^32
//       40      8  receives that this end has posted on this lane; it keeps no room for
//                   their messages any more
//
// Under WEIR_TLS all of a control connection, and the proofs of the others, are inside TLS; with
// `all` the messages, too. Messages outside are not signed: who can write into the connection on
// its way can change them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "net/auth.h"

namespace weir::plugins::tcp {

inline constexpr uint16_t kProtocolVersion = 6;
inline constexpr uint32_t kLaneCount = 5;
inline constexpr uint32_t kControlLane = kLaneCount;
inline constexpr uint32_t kConnectionsPerPeer = kLaneCount + 1;  // that has one rail
inline constexpr uint32_t kRailLane = kLaneCount + 1;
inline constexpr uint32_t kConnectionsPerRail = 2;  // where there are several
inline constexpr uint32_t kRailsMax = 8;
inline constexpr uint32_t kFragmentBytesMax = uint32_t{1} << 20;
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;
inline constexpr size_t kNoticeBytesMax = 1024;
inline constexpr uint32_t kEarlyBytesMax = 1024;
inline constexpr uint64_t kEarlyWindowBytes = uint64_t{64} << 10;

namespace wire {

inline constexpr size_t kHeaderBytes = 16;
inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kPayloadBytesMax = 56;

enum class Kind : uint16_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kRefused = 5,
};
enum class Role : uint16_t { kGuest = 1, kHost = 2 };
enum class Refusal : uint32_t { kVersion = 1, kProof = 2 };

using Nonce = std::array<unsigned char, kNonceBytes>;

struct Header {
  uint16_t version = kProtocolVersion;
  Kind kind = Kind::kHello;
};

// What a proof is about.
struct Claim {
  uint64_t comm_id = 0;
  Nonce guest_nonce{};
  Nonce host_nonce{};
  uint32_t guest = 0;
  uint32_t host = 0;
  uint32_t rank_count = 0;
  uint32_t lane = 0;
  uint16_t rail = 0;
  uint16_t rail_count = 1;
  uint32_t returns = 0;  // how often the rail has come back
};

// A frame of the handshake, ready to be sent.
struct Frame {
  unsigned char bytes[kHeaderBytes + kPayloadBytesMax];
  size_t size = 0;
};

// Bytes of the payload of `kind`; 0 for what is no kind.
size_t payload_bytes(Kind kind);

enum class Judgement { kGood, kOtherVersion, kMalformed };
// Judges the first 16 bytes of a frame, before anything that follows is read.
Judgement decode_header(const unsigned char* bytes, Header* header);

net::Mac handshake_key(const void* secret, size_t secret_bytes);
net::Mac prove(const net::Mac& key, Role role, const Claim& claim);

Frame encode_nonce(Kind kind, const Nonce& nonce);
Frame encode_proof(const Claim& claim, const net::Mac& proof);
Frame encode_welcome(const net::Mac& proof);
Frame encode_refused(Refusal reason);

// Each takes a payload of the size that its kind has.
Nonce decode_nonce(const unsigned char* payload);
net::Mac decode_proof(const unsigned char* payload, Claim* claim);
net::Mac decode_welcome(const unsigned char* payload);
void decode_refused(const unsigned char* payload, uint32_t* reason, uint32_t* version);

// The header of a message, or of what is said on the control lane.
enum class MessageKind : uint8_t {
  kMessage = 16,
  kGoodbye = 17,
  kNotice = 18,
  kState = 19,
  kFragment = 20,  // has a header of its own
  kEarly = 21,
  kTaken = 22,
  kWish = 23,
  kBegin = 24,
};
struct MessageHeader {
  MessageKind kind = MessageKind::kMessage;
  uint8_t lane = 0;
  uint32_t number = 0;
  uint64_t bytes = 0;
  uint32_t version = 0;  // of a notice
  uint64_t count = 0;    // of kTaken (bytes) and kBegin (messages)
};
void encode(const MessageHeader& header, unsigned char* out);
// False: these bytes are no header, or promise more than a frame of their kind may have.
bool decode(const unsigned char* bytes, MessageHeader* header);

struct FragmentHeader {
  uint8_t lane = 0;
  uint32_t fragment_number = 0;
  uint64_t message_number = 0;
  uint64_t message_bytes = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint32_t received = 0;
  uint64_t posted = 0;
};
inline constexpr size_t kFragmentHeaderBytes = 48;
void encode(const FragmentHeader& header, unsigned char* out);
// False: these bytes are no header, or the fragment does not lie in its message.
bool decode(const unsigned char* bytes, FragmentHeader* header);

struct RailState {
  uint32_t returns = 0;
  bool closed = false;
  uint64_t received = 0;
};
struct PeerState {
  uint64_t posted[kLaneCount] = {};
  uint32_t rail_count = 0;
  RailState rails[kRailsMax];
};
inline constexpr size_t kStateBytesMax = kLaneCount * 8 + kRailsMax * 16;
// Returns the number of bytes.
size_t encode(const PeerState& state, unsigned char* out);
// False: no state of so many bytes.
bool decode(const unsigned char* bytes, size_t byte_count, PeerState* state);

}  // namespace wire
}  // namespace weir::plugins::tcp
