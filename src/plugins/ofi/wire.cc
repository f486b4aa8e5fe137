// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/wire.h"

#include <string.h>

#include "plugins/ofi/providers.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'O', 'F', 'I'};
constexpr size_t kFixedBytes = 12;
static_assert(kFixedBytes + kProviderListBytesMax + net::mesh::kAddressBytesMax <=
              WEIR_TRANSPORT_ADDRESS_BYTES_MAX);

void put(unsigned char* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint64_t get(const unsigned char* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{in[i]} << (8 * i);
  return value;
}

// Bytes of a word of a kind.
size_t word_bytes(Kind kind) {
  if (kind == Kind::kCard) return kWordBytesMax;
  return 1 + (kind == Kind::kGoodbye ? 16 * kLaneCount : 0);
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
  return head + net::mesh::encode(address.place, out + head);
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
  return !address->providers.empty() &&
         net::mesh::decode(bytes + head, byte_count - head, &address->place) &&
         address->place.rank == address->rank;
}

bool decode_kind(const unsigned char* word, size_t bytes, Kind* kind) {
  if (bytes == 0) return false;
  *kind = static_cast<Kind>(word[0]);
  switch (*kind) {
    case Kind::kCard:
    case Kind::kReady:
    case Kind::kGoodbye:
    case Kind::kTaken:
      return bytes == word_bytes(*kind);
  }
  return false;
}

size_t encode_word(Kind kind, unsigned char* out) {
  memset(out, 0, word_bytes(kind));
  out[0] = static_cast<unsigned char>(kind);
  return word_bytes(kind);
}

size_t encode_card(const Card& card, unsigned char* out) {
  const size_t bytes = encode_word(Kind::kCard, out);
  put(out + 1, card.token, 4);
  put(out + 5, card.name.size(), 4);
  memcpy(out + 9, card.name.data(), card.name.size());
  return bytes;
}

bool decode_card(const unsigned char* word, Card* card) {
  card->token = static_cast<uint32_t>(get(word + 1, 4));
  const uint64_t bytes = get(word + 5, 4);
  if (bytes < 1 || bytes > kNameBytesMax) return false;
  // Zeros follow, so that a provider that reads a whole structure reads within the vector.
  card->name.assign(word + 9, word + 9 + kNameBytesMax);
  return true;
}

size_t encode_goodbye(const Goodbye& goodbye, unsigned char* out) {
  const size_t bytes = encode_word(Kind::kGoodbye, out);
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    put(out + 1 + 16 * lane, goodbye.sent[lane], 8);
    put(out + 9 + 16 * lane, goodbye.received[lane], 8);
  }
  return bytes;
}

Goodbye decode_goodbye(const unsigned char* word) {
  Goodbye goodbye;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    goodbye.sent[lane] = get(word + 1 + 16 * lane, 8);
    goodbye.received[lane] = get(word + 9 + 16 * lane, 8);
  }
  return goodbye;
}

}  // namespace weir::plugins::ofi
