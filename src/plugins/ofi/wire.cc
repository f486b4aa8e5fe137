// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/wire.h"

#include <string.h>

#include "net/little_endian.h"
#include "plugins/ofi/providers.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'O', 'F', 'I'};
constexpr size_t kFixedBytes = 12;
static_assert(kFixedBytes + kProviderListBytesMax <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX);

// Bytes of a word of a kind; 0: there is no such kind.
size_t word_bytes(Kind kind) {
  switch (kind) {
    case Kind::kGiveUp:
    case Kind::kTaken:
    case Kind::kEnded:
      return 1;
    case Kind::kGoodbye:
      return 1 + 16 * kLaneCount;
  }
  return 0;
}

}  // namespace

size_t encode(const RankAddress& address, unsigned char* out) {
  const std::string names = join_names(address.providers);
  memset(out, 0, kFixedBytes);
  memcpy(out, kMagic, sizeof kMagic);
  net::put(out + 4, kProtocolVersion);
  out[6] = static_cast<unsigned char>(names.size());
  net::put(out + 8, address.rank);
  memcpy(out + kFixedBytes, names.data(), names.size());
  return kFixedBytes + names.size();
}

bool decode(const unsigned char* bytes, size_t byte_count, RankAddress* address) {
  if (bytes == nullptr || byte_count < kFixedBytes || memcmp(bytes, kMagic, sizeof kMagic) != 0 ||
      net::get<uint16_t>(bytes + 4) != kProtocolVersion) {
    return false;
  }
  const size_t name_bytes = bytes[6];
  if (name_bytes < 1 || name_bytes > kProviderListBytesMax ||
      byte_count != kFixedBytes + name_bytes) {
    return false;
  }
  address->rank = net::get<uint32_t>(bytes + 8);
  address->providers =
      split_names({reinterpret_cast<const char*>(bytes) + kFixedBytes, name_bytes});
  return !address->providers.empty();
}

std::string encode(const Card& card) {
  std::string bytes(sizeof card.token, 0);
  net::put(reinterpret_cast<unsigned char*>(bytes.data()), card.token);
  return bytes.append(card.name.begin(), card.name.end());
}

bool decode(const std::string& bytes, Card* card) {
  constexpr size_t kTokenBytes = sizeof card->token;
  if (bytes.size() <= kTokenBytes || bytes.size() > kTokenBytes + kNameBytesMax) return false;
  card->token = net::get<uint32_t>(reinterpret_cast<const unsigned char*>(bytes.data()));
  card->name.assign(bytes.begin() + kTokenBytes, bytes.end());
  // Zeros follow, so that a provider that reads a whole structure reads within the vector.
  card->name.resize(kNameBytesMax);
  return true;
}

bool decode_kind(const std::string& word, Kind* kind) {
  if (word.empty()) return false;
  *kind = static_cast<Kind>(word[0]);
  return word.size() == word_bytes(*kind);
}

std::string encode_word(Kind kind) {
  std::string word(word_bytes(kind), 0);
  word[0] = static_cast<char>(kind);
  return word;
}

std::string encode_goodbye(const Goodbye& goodbye) {
  std::string word = encode_word(Kind::kGoodbye);
  auto* const out = reinterpret_cast<unsigned char*>(word.data()) + 1;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    net::put(out + 16 * lane, goodbye.sent[lane]);
    net::put(out + 16 * lane + 8, goodbye.received[lane]);
  }
  return word;
}

Goodbye decode_goodbye(const std::string& word) {
  Goodbye goodbye;
  const auto* const in = reinterpret_cast<const unsigned char*>(word.data()) + 1;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    goodbye.sent[lane] = net::get<uint64_t>(in + 16 * lane);
    goodbye.received[lane] = net::get<uint64_t>(in + 16 * lane + 8);
  }
  return goodbye;
}

}  // namespace weir::plugins::ofi
