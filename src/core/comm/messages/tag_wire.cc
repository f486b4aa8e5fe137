// SPDX-License-Identifier: Apache-2.0
#include "core/comm/messages/tag_wire.h"

#include <fmt/format.h>

#include <cstring>

namespace weir::comm {

namespace {
constexpr char kMagic[4] = {'W', 'T', 'A', 'G'};
}

TagHeader make_tag_header(TagKind kind) {
  TagHeader header;
  std::memset(&header, 0, sizeof header);
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.kind = kind;
  return header;
}

std::string wrong_with(const TagHeader& header) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return "it does not begin with WTAG";
  const auto kind = static_cast<uint16_t>(header.kind);
  if (kind < static_cast<uint16_t>(TagKind::kShort) ||
      kind > static_cast<uint16_t>(TagKind::kReceived)) {
    return fmt::format("its kind is {}", kind);
  }
  if (header.zero != 0 || header.zero_too != 0) return "a reserved field is not zero";
  if (header.tag < 0) return fmt::format("its tag is {}", header.tag);
  const bool is_short = header.kind == TagKind::kShort;
  const bool is_long = header.kind == TagKind::kReady || header.kind == TagKind::kData;
  if (is_short && header.bytes > kTagShortBytesMax) {
    return fmt::format("it has {} bytes, and a short one {} at most", header.bytes,
                       kTagShortBytesMax);
  }
  if (is_long && header.bytes > PTRDIFF_MAX) {
    return fmt::format("it has {} bytes", header.bytes);
  }
  return "";
}

}  // namespace weir::comm
