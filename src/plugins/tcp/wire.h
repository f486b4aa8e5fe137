// SPDX-License-Identifier: Apache-2.0
// The bytes that this transport puts on a connection, and nothing about sockets. Integers are
// little-endian. Pure functions; thread-safe.
//
// A connection belongs to one pair of ranks and is made at its first use by whichever of them needs
// it, through the control network, which authenticates it. Where a pair has one rail, each lane has
// a connection of its own. Where it has several, each rail has two: kRailLane carries fragments of
// the messages of all lanes, kControlLane states and goodbyes. The subject with which a connection
// is made is a Subject, below.
//
// From then on either end sends messages, goodbyes and states, each after a header of 16 bytes:
//
//   offset  bytes  field
//        0      2  magic "WT"
//        2      1  kind: 16 message, 17 goodbye, 19 state
//        3      1  lane; on a control connection kControlLane
//        4      4  number of the frame on this connection and direction, from 0, modulo 2^32
//        8      8  of a message: bytes that follow, at most kMessageBytesMax
//        8      4  of the others: bytes that follow: of a goodbye 0, of a state 40 + 16 * number of
//                  rails
//       12      4  zero
//
// Goodbye is the last frame of a rank that ends in order, so that the end of its connections is not
// taken for a death. States are sent on control connections only. A state is all that a sender must
// know of its receiver; each one is complete and replaces those before:
//
//        0   5 * 8  for each lane: receives that were posted so far
//       40      16  for each rail:
//                   0   4  how often the rail has been connected
//                   4   4  1: this end has closed the rail
//                   8   8  fragments that this end has received on it since it was connected
//
// On a rail's other connection each fragment of a message follows a header of 48 bytes:
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
// A rail that was taken out is connected again by the higher rank. The lower one says that it takes
// it by one byte, kWelcome, before all fragments.
//
// Under WEIR_TLS all of a rail's control connection, and the proofs of the others, are inside TLS;
// with `all` the messages, too. Messages outside of TLS are not signed: an attacker that can write
// into the connection can change them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weir::plugins::tcp {

// The version of what follows the proof; it is part of the address.
inline constexpr uint16_t kProtocolVersion = 8;
inline constexpr uint32_t kLaneCount = 6;
inline constexpr uint32_t kControlLane = kLaneCount;
inline constexpr uint32_t kRailLane = kLaneCount + 1;
inline constexpr uint32_t kRailsMax = 8;
inline constexpr uint32_t kFragmentBytesMax = uint32_t{1} << 20;
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;
inline constexpr size_t kControlFrameBytesMax = 1024;
inline constexpr unsigned char kWelcome = 'W';

// What a connection between two ranks is for.
//
//   bits      field
//   0 to 7    lane
//   8 to 15   rail
//   16 to 23  number of rails of the two ranks
//   24 to 55  how often the rail has been connected, with this time; of a lane 0
struct Subject {
  uint32_t lane = 0;
  uint32_t rail = 0;
  uint32_t rail_count = 1;
  uint32_t returns = 0;

  uint64_t pack() const {
    return lane | uint64_t{rail} << 8 | uint64_t{rail_count} << 16 | uint64_t{returns} << 24;
  }
  // False: no rank sends such bits.
  static bool unpack(uint64_t bits, Subject* subject);
};

namespace wire {

inline constexpr size_t kHeaderBytes = 16;

// The header of a message, or of a frame on the control lane.
enum class MessageKind : uint8_t {
  kMessage = 16,
  kGoodbye = 17,
  kState = 19,
  kFragment = 20,  // has a header of its own
};
struct MessageHeader {
  MessageKind kind = MessageKind::kMessage;
  uint8_t lane = 0;
  uint32_t number = 0;
  uint64_t bytes = 0;
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
