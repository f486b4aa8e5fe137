// SPDX-License-Identifier: Apache-2.0
// The bytes of this transport: a rank's address, the frames on the control connection between two
// ranks once both have proven themselves (plugins/ofi/meeting.h), and the tags of messages. Integers are
// little-endian. Pure functions; thread-safe.
//
// Address:
//
//   offset  bytes  field
//        0      4  magic "WOFI"
//        4      2  protocol version
//        6      1  bytes of the list of providers, at most kProviderListBytesMax
//        7      1  zero
//        8      4  rank
//       12         list of providers, the preferred one first, with commas
//                  where the rank listens (plugins/ofi/meeting.h)
//
// Each control frame starts with 8 bytes; the size of its payload is fixed by its kind, but for kNotice:
//
//   offset  bytes  field
//        0      2  magic "WO"
//        2      1  kind
//        3      1  zero
//        4      4  payload bytes
//
//   payload   offset  bytes  field
//   kCard          0      4  token: the upper bits of the tags of what is sent to this rank
//                  4      4  bytes of the endpoint's name, 1 to kNameBytesMax
//                  8    512  the endpoint's name, zeros behind it
//   kReady                   every peer's first message has been received
//   kGoodbye      16 i     8  messages that this rank has sent on lane i
//               16 i+8     8  messages that it has received on lane i
//   kNotice        0      4  number: 0, 1, 2, … on this connection in this direction
//                  4      n  what the sender shows now, n at most kNoticeBytesMax
//   kTaken                   all that the other end's goodbye speaks of has been received
//
// kCard is the first frame in each direction, kReady the second. After kReady notices may come, after
// kGoodbye only kTaken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/ofi/meeting.h"

namespace weir::plugins::ofi {

inline constexpr uint16_t kProtocolVersion = 2;
inline constexpr uint32_t kLaneCount = 5;
inline constexpr size_t kNameBytesMax = 512;
inline constexpr size_t kNoticeBytesMax = 1024;
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;

struct RankAddress {
  uint32_t rank = 0;
  std::vector<std::string> providers;
  Place place;
};

// Writes at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes and returns how many.
size_t encode(const RankAddress& address, unsigned char* out);
// False: these bytes are no address of this version.
bool decode(const unsigned char* bytes, size_t byte_count, RankAddress* address);

enum class Kind : uint8_t { kCard = 1, kReady = 2, kGoodbye = 3, kTaken = 4, kNotice = 5 };

inline constexpr size_t kHeaderBytes = 8;
inline constexpr size_t kPayloadBytesMax = 4 + kNoticeBytesMax;
static_assert(8 + kNameBytesMax <= kPayloadBytesMax && 16 * kLaneCount <= kPayloadBytesMax);

struct Card {
  uint32_t token = 0;
  std::vector<unsigned char> name;
};
struct Goodbye {
  std::array<uint64_t, kLaneCount> sent{};
  std::array<uint64_t, kLaneCount> received{};
};

// False: these bytes begin no frame, or one whose payload has not the size of its kind.
bool decode_header(const unsigned char* bytes, Kind* kind, size_t* payload_bytes);
// Each writes a frame and returns its size; a payload has kPayloadBytesMax bytes at most.
size_t encode_frame(Kind kind, unsigned char* out);
size_t encode_card(const Card& card, unsigned char* out);
size_t encode_goodbye(const Goodbye& goodbye, unsigned char* out);
// `bytes` is at most kNoticeBytesMax.
size_t encode_notice(uint32_t number, const unsigned char* notice, size_t bytes,
                     unsigned char* out);
uint32_t decode_notice_number(const unsigned char* payload);
bool decode_card(const unsigned char* payload, Card* card);
Goodbye decode_goodbye(const unsigned char* payload);

// A tag says whose message it is: token (30 bits, 16 where a provider's tags are narrower) | lane (4) |
// sender (12) | number of the message on this lane and direction (16, wraps).
inline constexpr uint32_t kTagFixedBits = 32;
inline uint64_t make_tag(uint64_t token_mask, uint32_t token, uint32_t lane, uint32_t sender,
                         uint64_t number) {
  return (token & token_mask) << kTagFixedBits | uint64_t{lane & 0xf} << 28 |
         uint64_t{sender & 0xfff} << 16 | (number & 0xffff);
}

}  // namespace weir::plugins::ofi
