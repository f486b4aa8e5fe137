// SPDX-License-Identifier: Apache-2.0
// The bytes of this transport: a rank's address, the words that two ranks tell each other over the control
// mesh (net/control_mesh.h), and the tags of messages. Integers are little-endian. Pure functions;
// thread-safe.
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
//                  address in the mesh (net/mesh_wire.h)
//
// A word starts with one byte, its kind, and has a size that is fixed by it:
//
//   kind       offset  bytes  field
//   kCard           1      4  token: the upper bits of the tags of what is sent to this rank
//                   5      4  bytes of the endpoint's name, 1 to kNameBytesMax
//                   9    512  the endpoint's name, zeros behind it
//   kReady                    every peer's first message has been received
//   kGoodbye   1 + 16 i    8  messages that this rank has sent on lane i
//              9 + 16 i    8  messages that it has received on lane i
//   kTaken                    all that the other end's goodbye speaks of has been received
//
// kCard is the first word in each direction, kReady the second; after kGoodbye comes only kTaken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "net/mesh_wire.h"

namespace weir::plugins::ofi {

inline constexpr uint16_t kProtocolVersion = 3;
inline constexpr uint32_t kLaneCount = 5;
inline constexpr size_t kNameBytesMax = 512;
inline constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;

struct RankAddress {
  uint32_t rank = 0;
  std::vector<std::string> providers;
  net::mesh::Address place;
};

// Writes at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes and returns how many.
size_t encode(const RankAddress& address, unsigned char* out);
// False: these bytes are no address of this version.
bool decode(const unsigned char* bytes, size_t byte_count, RankAddress* address);

enum class Kind : uint8_t { kCard = 1, kReady = 2, kGoodbye = 3, kTaken = 4 };

inline constexpr size_t kWordBytesMax = 1 + 8 + kNameBytesMax;
static_assert(16 * kLaneCount < kWordBytesMax && kWordBytesMax <= net::mesh::kWordBytesMax);

struct Card {
  uint32_t token = 0;
  std::vector<unsigned char> name;
};
struct Goodbye {
  std::array<uint64_t, kLaneCount> sent{};
  std::array<uint64_t, kLaneCount> received{};
};

// False: these bytes are no word.
bool decode_kind(const unsigned char* word, size_t bytes, Kind* kind);
// Each writes a word of at most kWordBytesMax bytes and returns its size.
size_t encode_word(Kind kind, unsigned char* out);
size_t encode_card(const Card& card, unsigned char* out);
size_t encode_goodbye(const Goodbye& goodbye, unsigned char* out);
// Each takes a word of its kind.
bool decode_card(const unsigned char* word, Card* card);
Goodbye decode_goodbye(const unsigned char* word);

// A tag says whose message it is: token (30 bits, 16 where a provider's tags are narrower) | lane (4) |
// sender (12) | number of the message on this lane and direction (16, wraps).
inline constexpr uint32_t kTagFixedBits = 32;
inline uint64_t make_tag(uint64_t token_mask, uint32_t token, uint32_t lane, uint32_t sender,
                         uint64_t number) {
  return (token & token_mask) << kTagFixedBits | uint64_t{lane & 0xf} << 28 |
         uint64_t{sender & 0xfff} << 16 | (number & 0xffff);
}

}  // namespace weir::plugins::ofi
