// SPDX-License-Identifier: Apache-2.0
#include "net/mesh_wire.h"

#include <string.h>

#include <algorithm>

namespace weir::net::mesh {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'E', 'I', 'M'};
constexpr unsigned char kAddressMagic[4] = {'W', 'E', 'M', 'A'};
constexpr size_t kFixedBytes = 36;
constexpr size_t kOfferBytes = 25;
constexpr unsigned char kLoopbackFlag = 1;
constexpr unsigned char kAskedForFlag = 2;
static_assert(kFixedBytes + kOffersMax * kOfferBytes <= kAddressBytesMax);

template <typename Integer>
void store(unsigned char* out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <typename Integer>
Integer load(const unsigned char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(value);
}

template <typename Integer>
void append(Bytes* out, Integer value) {
  unsigned char bytes[sizeof value];
  store(bytes, value);
  out->insert(out->end(), bytes, bytes + sizeof value);
}

template <size_t kBytes>
void append(Bytes* out, const std::array<unsigned char, kBytes>& array) {
  out->insert(out->end(), array.begin(), array.end());
}

void begin(Bytes* out, Kind kind, size_t payload_bytes) {
  out->insert(out->end(), kMagic, kMagic + sizeof kMagic);
  append(out, kProtocolVersion);
  append(out, static_cast<uint16_t>(kind));
  append(out, static_cast<uint32_t>(payload_bytes));
  append(out, uint32_t{0});
}

bool may_have(Kind kind, uint32_t bytes) {
  switch (kind) {
    case Kind::kHello:
    case Kind::kChallenge:
      return bytes == kNonceBytes;
    case Kind::kProof:
      return bytes == 16 + kMacBytes;
    case Kind::kWelcome:
      return bytes == kMacBytes;
    case Kind::kRefused:
      return bytes == 8;
    case Kind::kCard:
      return bytes >= kMacBytes && bytes <= kMacBytes + kCardBytesMax;
    case Kind::kGoodbye:
      return bytes >= kMacBytes && bytes <= kMacBytes + kFarewellBytesMax;
    case Kind::kNotice:
      return bytes >= 4 && bytes <= 4 + kNoticeBytesMax;
    case Kind::kWord:
      return bytes >= kMacBytes + 4 && bytes <= kMacBytes + 4 + kWordBytesMax;
  }
  return false;
}

Mac sign(const Mac& key, const char* label, Role role, const Claim& claim) {
  Bytes message(label, label + 8);
  append(&message, kProtocolVersion);
  append(&message, static_cast<uint16_t>(role));
  append(&message, claim.comm_id);
  append(&message, claim.guest_nonce);
  append(&message, claim.host_nonce);
  append(&message, claim.guest);
  append(&message, claim.host);
  append(&message, claim.rank_count);
  return hmac_sha256(key.data(), key.size(), message.data(), message.size());
}

}  // namespace

Judgement decode_header(const unsigned char* bytes, Header* header) {
  if (memcmp(bytes, kMagic, sizeof kMagic) != 0) return Judgement::kMalformed;
  header->version = load<uint16_t>(bytes + 4);
  header->kind = static_cast<Kind>(load<uint16_t>(bytes + 6));
  header->payload_bytes = load<uint32_t>(bytes + 8);
  if (header->version != kProtocolVersion) return Judgement::kOtherVersion;
  const bool good = may_have(header->kind, header->payload_bytes);
  return good && load<uint32_t>(bytes + 12) == 0 ? Judgement::kGood : Judgement::kMalformed;
}

Mac mesh_key(const void* secret, size_t secret_bytes, const std::string& purpose) {
  const std::string label = "weir mesh " + purpose;
  return hmac_sha256(secret, secret_bytes, label.data(), label.size());
}

Mac prove(const Mac& key, Role role, const Claim& claim) {
  return sign(key, "weirmesh", role, claim);
}

Mac session_key(const Mac& key, Role role, const Claim& claim) {
  return sign(key, "weirsess", role, claim);
}

Mac seal(const Mac& session_key, Kind kind, const unsigned char* data, size_t bytes) {
  Bytes message;
  message.reserve(2 + bytes);
  append(&message, static_cast<uint16_t>(kind));
  if (bytes != 0) message.insert(message.end(), data, data + bytes);
  return hmac_sha256(session_key.data(), session_key.size(), message.data(), message.size());
}

void put_nonce(Bytes* out, Kind kind, const Nonce& nonce) {
  begin(out, kind, nonce.size());
  append(out, nonce);
}

void put_proof(Bytes* out, const Claim& claim, const Mac& proof) {
  begin(out, Kind::kProof, 16 + proof.size());
  append(out, claim.guest);
  append(out, claim.host);
  append(out, claim.rank_count);
  append(out, uint32_t{0});
  append(out, proof);
}

void put_welcome(Bytes* out, const Mac& proof) {
  begin(out, Kind::kWelcome, proof.size());
  append(out, proof);
}

void put_refused(Bytes* out, Refusal reason) {
  begin(out, Kind::kRefused, 8);
  append(out, static_cast<uint32_t>(reason));
  append(out, static_cast<uint32_t>(kProtocolVersion));
}

void put_sealed(Bytes* out, Kind kind, const Mac& key, const unsigned char* data, size_t bytes) {
  begin(out, kind, kMacBytes + bytes);
  append(out, seal(key, kind, data, bytes));
  if (bytes != 0) out->insert(out->end(), data, data + bytes);
}

void put_notice(Bytes* out, uint32_t number, const unsigned char* notice, size_t bytes) {
  begin(out, Kind::kNotice, 4 + bytes);
  append(out, number);
  if (bytes != 0) out->insert(out->end(), notice, notice + bytes);
}

void put_word(Bytes* out, uint32_t number, const Mac& key, const unsigned char* word,
              size_t bytes) {
  Bytes numbered;
  numbered.reserve(4 + bytes);
  append(&numbered, number);
  if (bytes != 0) numbered.insert(numbered.end(), word, word + bytes);
  put_sealed(out, Kind::kWord, key, numbered.data(), numbered.size());
}

uint32_t get_number(const unsigned char* payload) { return load<uint32_t>(payload); }

Nonce get_nonce(const unsigned char* payload) {
  Nonce nonce;
  memcpy(nonce.data(), payload, nonce.size());
  return nonce;
}

Mac get_mac(const unsigned char* payload) {
  Mac mac;
  memcpy(mac.data(), payload, mac.size());
  return mac;
}

Mac get_proof(const unsigned char* payload, Claim* claim) {
  claim->guest = load<uint32_t>(payload);
  claim->host = load<uint32_t>(payload + 4);
  claim->rank_count = load<uint32_t>(payload + 8);
  return get_mac(payload + 16);
}

void get_refused(const unsigned char* payload, uint32_t* reason, uint32_t* version) {
  *reason = load<uint32_t>(payload);
  *version = load<uint32_t>(payload + 4);
}

size_t encode(const Address& address, unsigned char* out) {
  const size_t count = std::min(address.offers.size(), kOffersMax);
  memset(out, 0, kFixedBytes + count * kOfferBytes);
  memcpy(out, kAddressMagic, sizeof kAddressMagic);
  store(out + 4, kProtocolVersion);
  out[6] = static_cast<unsigned char>(count);
  out[7] = static_cast<unsigned char>(address.tls);
  store(out + 8, address.rank);
  memcpy(out + 12, address.host.bytes.data(), address.host.bytes.size());
  unsigned char* at = out + kFixedBytes;
  for (size_t i = 0; i < count; ++i, at += kOfferBytes) {
    const Offer& offer = address.offers[i];
    at[0] = offer.address.family;
    at[1] = static_cast<unsigned char>((offer.is_loopback ? kLoopbackFlag : 0) |
                                       (offer.is_asked_for ? kAskedForFlag : 0));
    store(at + 2, offer.port);
    store(at + 4, offer.speed_mbits);
    at[8] = static_cast<unsigned char>(offer.prefix_bits);
    memcpy(at + 9, offer.address.bytes.data(), offer.address.bytes.size());
  }
  return static_cast<size_t>(at - out);
}

bool decode(const unsigned char* bytes, size_t byte_count, Address* address) {
  if (bytes == nullptr || byte_count < kFixedBytes ||
      memcmp(bytes, kAddressMagic, sizeof kAddressMagic) != 0 ||
      load<uint16_t>(bytes + 4) != kProtocolVersion) {
    return false;
  }
  const size_t count = bytes[6];
  if (count < 1 || count > kOffersMax || byte_count != kFixedBytes + count * kOfferBytes) {
    return false;
  }
  if (bytes[7] >= kTlsModeCount) return false;
  address->tls = static_cast<TlsMode>(bytes[7]);
  address->rank = load<uint32_t>(bytes + 8);
  memcpy(address->host.bytes.data(), bytes + 12, address->host.bytes.size());
  address->offers.clear();
  const unsigned char* at = bytes + kFixedBytes;
  for (size_t i = 0; i < count; ++i, at += kOfferBytes) {
    Offer offer;
    offer.address.family = at[0];
    offer.is_loopback = (at[1] & kLoopbackFlag) != 0;
    offer.is_asked_for = (at[1] & kAskedForFlag) != 0;
    offer.port = load<uint16_t>(at + 2);
    offer.speed_mbits = load<uint32_t>(at + 4);
    offer.prefix_bits = at[8];
    memcpy(offer.address.bytes.data(), at + 9, offer.address.bytes.size());
    if (!offer.address.is_host() || offer.port == 0 ||
        offer.prefix_bits > offer.address.byte_count() * 8) {
      return false;
    }
    address->offers.push_back(offer);
  }
  return true;
}

}  // namespace weir::net::mesh
