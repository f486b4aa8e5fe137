// SPDX-License-Identifier: Apache-2.0
// The bytes of this transport: a rank's address, its card, the words that two ranks send each other
// over the control network (message/control.h), and the tags of messages. Integers are
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
//
// Card, which all ranks gather when each has opened its endpoint:
//
//   offset  bytes  field
//        0      4  token: the upper bits of the tags of what is sent to this rank
//        4      n  the endpoint's name, 1 to kNameBytesMax
//
// A word starts with one byte, its kind, which determines its size. Words are sent to peers with
// which messages have been exchanged:
//
//   kind       offset  bytes  field
//   kGoodbye   1 + 16 i    8  messages that this rank has sent on lane i
//              9 + 16 i    8  messages that it has received on lane i
//   kTaken                    all that the other end's goodbye speaks of has been received
//   kEnded                    the endpoint has ended
//
// After kGoodbye come only kTaken and kEnded, which is the last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/message/control.h"

namespace weir::plugins::ofi {

inline constexpr uint16_t kProtocolVersion = 4;
inline constexpr uint32_t kLaneCount = 6;
inline constexpr size_t kNameBytesMax = 512;
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;

struct RankAddress {
  uint32_t rank = 0;
  std::vector<std::string> providers;
};

// Writes at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes and returns how many.
size_t encode(const RankAddress& address, unsigned char* out);
// False: these bytes are no address of this version.
bool decode(const unsigned char* bytes, size_t byte_count, RankAddress* address);

enum class Kind : char {
  kGiveUp = message::kGiveUpKind,
  kGoodbye = message::kOwnKind,
  kTaken,
  kEnded,
};

struct Card {
  uint32_t token = 0;
  std::vector<unsigned char> name;
};
struct Goodbye {
  std::array<uint64_t, kLaneCount> sent{};
  std::array<uint64_t, kLaneCount> received{};
};

std::string encode(const Card& card);
// False: these bytes are no card.
bool decode(const std::string& bytes, Card* card);

// False: these bytes are no word.
bool decode_kind(const std::string& word, Kind* kind);
std::string encode_word(Kind kind);
std::string encode_goodbye(const Goodbye& goodbye);
// Takes a word of its kind.
Goodbye decode_goodbye(const std::string& word);

// A tag says whose message it is: token (30 bits, 16 where a provider's tags are narrower) | lane
// (3) | sender (14) | number of the message on this lane and direction (15, wraps).
inline constexpr uint32_t kTagFixedBits = 32;
inline constexpr uint32_t kRankCountMax = 1u << 14;
static_assert(kLaneCount <= 8);
inline uint64_t make_tag(uint64_t token_mask, uint32_t token, uint32_t lane, uint32_t sender,
                         uint64_t number) {
  return (token & token_mask) << kTagFixedBits | uint64_t{lane & 0x7} << 29 |
         uint64_t{sender % kRankCountMax} << 15 | (number & 0x7fff);
}

}  // namespace weir::plugins::ofi
