// SPDX-License-Identifier: Apache-2.0
// TagHeader: the message by which ranks tell each other of messages with tags. Every header has
// the same length, since both ends of a message name its length; bytes that do not fit follow as a
// message of their own. Pure; thread-safe.
//
//   offset  bytes  field (integers in the byte order of the machine)
//        0      4  "WTAG"
//        4      2  TagKind
//        6      2  zero
//        8      4  tag, of kShort and kReady
//       12      4  ticket of the sender's message: given by kReady, and given back by kClear
//       16      4  ticket of the receive: given by kClear, and given back by kData
//       20      4  zero
//       24      8  bytes of the user's message
//       32      8  of all kShort messages that came from the receiver of this header, what has been
//                  received: their `held_bytes`
//       40    216  the user's message, of kShort, where it fits
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace weir::comm {

enum class TagKind : uint16_t {
  kShort = 1,     // a message, in the header or right behind it
  kReady = 2,     // there is one of any length that was not sent at once
  kClear = 3,     // it may come
  kData = 4,      // it follows
  kReceived = 5,  // for `received_bytes` alone
};

inline constexpr uint64_t kTagInlineBytes = 216;
// Longer messages wait for their receive. Each costs a round trip before its data, which is small
// beside copying it twice where its receive comes late.
inline constexpr uint64_t kTagShortBytesMax = 16384;

struct TagHeader {
  char magic[4];
  TagKind kind;
  uint16_t zero;
  int32_t tag;
  uint32_t ticket;
  uint32_t receive_ticket;
  uint32_t zero_too;
  uint64_t bytes;
  uint64_t received_bytes;
  unsigned char data[kTagInlineBytes];
};
static_assert(sizeof(TagHeader) == 256);
static_assert(offsetof(TagHeader, data) == 40);

// All but the kind is zero.
TagHeader make_tag_header(TagKind kind);
// "" or what is wrong with it, whichever rank sent it. The receiver looks up tickets.
std::string wrong_with(const TagHeader& header);

// The bytes of the message that follow the header as a message of their own.
constexpr bool has_payload(const TagHeader& header) {
  return (header.kind == TagKind::kData && header.bytes > 0) ||
         (header.kind == TagKind::kShort && header.bytes > kTagInlineBytes);
}

// The memory that a short message takes at its receiver until it is received.
constexpr uint64_t held_bytes(uint64_t message_bytes) { return 256 + message_bytes; }

}  // namespace weir::comm
