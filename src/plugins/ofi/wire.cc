// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/wire.h"

#include <string.h>

#include "plugins/ofi/providers.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'O', 'F', 'I'};
constexpr size_t kFixedBytes = 12;
static_assert(kFixedBytes + kProviderListBytesMax + kPlaceBytesMax <=
              WEIR_TRANSPORT_ADDRESS_BYTES_MAX);

void put(unsigned char* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint64_t get(const unsigned char* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{in[i]} << (8 * i);
  return value;
}

// Bytes of the payload of a kind that has always as many.
size_t fixed_bytes(Kind kind) {
  if (kind == Kind::kCard) return 8 + kNameBytesMax;
  return kind == Kind::kGoodbye ? 16 * kLaneCount : 0;
}

unsigned char* begin(Kind kind, size_t bytes, unsigned char* out) {
  memset(out, 0, kHeaderBytes + bytes);
  out[0] = 'W';
  out[1] = 'O';
  out[2] = static_cast<unsigned char>(kind);
  put(out + 4, bytes, 4);
  return out + kHeaderBytes;
}

}  // namespace

size_t encode(const RankAddress& address, unsigned char* out) {
  const std::string names = join_names(address.providers);
  memset(out, 0, kFixedBytes);
  memcpy(out, kMagic, sizeof kMagic);
  put(out + 4, kProtocolVersion, 2);
  put(out + 6, names.size(), 1);
  put(out + 8, address.rank, 4);
  memcpy(out + kFixedBytes, names.data(), names.size());
  const size_t head = kFixedBytes + names.size();
  return head + encode(address.place, out + head);
}

bool decode(const unsigned char* bytes, size_t byte_count, RankAddress* address) {
  if (bytes == nullptr || byte_count < kFixedBytes || memcmp(bytes, kMagic, sizeof kMagic) != 0 ||
      get(bytes + 4, 2) != kProtocolVersion) {
    return false;
  }
  const size_t name_bytes = bytes[6];
  const size_t head = kFixedBytes + name_bytes;
  if (name_bytes < 1 || name_bytes > kProviderListBytesMax || byte_count < head) return false;
  address->rank = static_cast<uint32_t>(get(bytes + 8, 4));
  address->providers =
      split_names({reinterpret_cast<const char*>(bytes) + kFixedBytes, name_bytes});
  const size_t rest = byte_count - head;
  return !address->providers.empty() && decode(bytes + head, rest, &address->place) == rest &&
         rest > 0;
}

bool decode_header(const unsigned char* bytes, Kind* kind, size_t* payload_bytes) {
  *kind = static_cast<Kind>(bytes[2]);
  *payload_bytes = get(bytes + 4, 4);
  if (bytes[0] != 'W' || bytes[1] != 'O' || bytes[3] != 0) return false;
  switch (*kind) {
    case Kind::kCard:
    case Kind::kReady:
    case Kind::kTaken:
    case Kind::kGoodbye:
      return *payload_bytes == fixed_bytes(*kind);
    case Kind::kNotice:
      return *payload_bytes >= 4 && *payload_bytes <= 4 + kNoticeBytesMax;
  }
  return false;
}

size_t encode_frame(Kind kind, unsigned char* out) {
  return static_cast<size_t>(begin(kind, fixed_bytes(kind), out) - out);
}

size_t encode_card(const Card& card, unsigned char* out) {
  unsigned char* payload = begin(Kind::kCard, fixed_bytes(Kind::kCard), out);
  put(payload, card.token, 4);
  put(payload + 4, card.name.size(), 4);
  memcpy(payload + 8, card.name.data(), card.name.size());
  return kHeaderBytes + 8 + kNameBytesMax;
}

size_t encode_notice(uint32_t number, const unsigned char* notice, size_t bytes,
                     unsigned char* out) {
  unsigned char* payload = begin(Kind::kNotice, 4 + bytes, out);
  put(payload, number, 4);
  if (bytes != 0) memcpy(payload + 4, notice, bytes);
  return kHeaderBytes + 4 + bytes;
}

uint32_t decode_notice_number(const unsigned char* payload) {
  return static_cast<uint32_t>(get(payload, 4));
}

bool decode_card(const unsigned char* payload, Card* card) {
  card->token = static_cast<uint32_t>(get(payload, 4));
  const uint64_t bytes = get(payload + 4, 4);
  if (bytes < 1 || bytes > kNameBytesMax) return false;
  // Zeros follow, so that a provider that reads a whole structure reads within the vector.
  card->name.assign(payload + 8, payload + 8 + kNameBytesMax);
  return true;
}

size_t encode_goodbye(const Goodbye& goodbye, unsigned char* out) {
  unsigned char* payload = begin(Kind::kGoodbye, fixed_bytes(Kind::kGoodbye), out);
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    put(payload + 16 * lane, goodbye.sent[lane], 8);
    put(payload + 16 * lane + 8, goodbye.received[lane], 8);
  }
  return kHeaderBytes + 16 * kLaneCount;
}

Goodbye decode_goodbye(const unsigned char* payload) {
  Goodbye goodbye;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    goodbye.sent[lane] = get(payload + 16 * lane, 8);
    goodbye.received[lane] = get(payload + 16 * lane + 8, 8);
  }
  return goodbye;
}

}  // namespace weir::plugins::ofi
