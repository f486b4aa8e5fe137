// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/wire.h"

#include <string.h>

#include <utility>

namespace weir::plugins::tcp::wire {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'E', 'I', 'T'};
constexpr char kProofLabel[] = "weir tcp";
constexpr char kKeyLabel[] = "weir tcp handshake";

template <typename Integer>
unsigned char* put(unsigned char* out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return out + sizeof value;
}

template <size_t kBytes>
unsigned char* put(unsigned char* out, const std::array<unsigned char, kBytes>& array) {
  memcpy(out, array.data(), kBytes);
  return out + kBytes;
}

template <typename Integer>
Integer get(const unsigned char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(value);
}

Frame begin(Kind kind) {
  Frame frame{};
  memcpy(frame.bytes, kMagic, sizeof kMagic);
  unsigned char* at = put(frame.bytes + 4, kProtocolVersion);
  at = put(at, static_cast<uint16_t>(kind));
  at = put(at, static_cast<uint32_t>(payload_bytes(kind)));
  put(at, uint32_t{0});
  frame.size = kHeaderBytes + payload_bytes(kind);
  return frame;
}

}  // namespace

size_t payload_bytes(Kind kind) {
  switch (kind) {
    case Kind::kHello:
    case Kind::kChallenge:
      return kNonceBytes;
    case Kind::kProof:
      return 24 + net::kMacBytes;
    case Kind::kWelcome:
      return net::kMacBytes;
    case Kind::kRefused:
      return 8;
  }
  return 0;
}

Judgement decode_header(const unsigned char* bytes, Header* header) {
  if (memcmp(bytes, kMagic, sizeof kMagic) != 0) return Judgement::kMalformed;
  header->version = get<uint16_t>(bytes + 4);
  header->kind = static_cast<Kind>(get<uint16_t>(bytes + 6));
  if (header->version != kProtocolVersion) return Judgement::kOtherVersion;
  const size_t expected = payload_bytes(header->kind);
  const bool good = expected != 0 && get<uint32_t>(bytes + 8) == expected;
  return good && get<uint32_t>(bytes + 12) == 0 ? Judgement::kGood : Judgement::kMalformed;
}

net::Mac handshake_key(const void* secret, size_t secret_bytes) {
  return net::hmac_sha256(secret, secret_bytes, kKeyLabel, sizeof kKeyLabel - 1);
}

net::Mac prove(const net::Mac& key, Role role, const Claim& claim) {
  unsigned char message[108];
  memcpy(message, kProofLabel, 8);
  unsigned char* at = put(message + 8, kProtocolVersion);
  at = put(at, static_cast<uint16_t>(role));
  at = put(at, claim.comm_id);
  at = put(at, claim.guest_nonce);
  at = put(at, claim.host_nonce);
  at = put(at, claim.guest);
  at = put(at, claim.host);
  at = put(at, claim.rank_count);
  at = put(at, claim.lane);
  at = put(at, claim.rail);
  at = put(at, claim.rail_count);
  put(at, claim.returns);
  return net::hmac_sha256(key.data(), key.size(), message, sizeof message);
}

Frame encode_nonce(Kind kind, const Nonce& nonce) {
  Frame frame = begin(kind);
  put(frame.bytes + kHeaderBytes, nonce);
  return frame;
}

Frame encode_proof(const Claim& claim, const net::Mac& proof) {
  Frame frame = begin(Kind::kProof);
  unsigned char* at = put(frame.bytes + kHeaderBytes, claim.guest);
  at = put(at, claim.host);
  at = put(at, claim.rank_count);
  at = put(at, claim.lane);
  at = put(at, claim.rail);
  at = put(at, claim.rail_count);
  at = put(at, claim.returns);
  put(at, proof);
  return frame;
}

Frame encode_welcome(const net::Mac& proof) {
  Frame frame = begin(Kind::kWelcome);
  put(frame.bytes + kHeaderBytes, proof);
  return frame;
}

Frame encode_refused(Refusal reason) {
  Frame frame = begin(Kind::kRefused);
  unsigned char* at = put(frame.bytes + kHeaderBytes, static_cast<uint32_t>(reason));
  put(at, static_cast<uint32_t>(kProtocolVersion));
  return frame;
}

Nonce decode_nonce(const unsigned char* payload) {
  Nonce nonce;
  memcpy(nonce.data(), payload, nonce.size());
  return nonce;
}

net::Mac decode_proof(const unsigned char* payload, Claim* claim) {
  claim->guest = get<uint32_t>(payload);
  claim->host = get<uint32_t>(payload + 4);
  claim->rank_count = get<uint32_t>(payload + 8);
  claim->lane = get<uint32_t>(payload + 12);
  claim->rail = get<uint16_t>(payload + 16);
  claim->rail_count = get<uint16_t>(payload + 18);
  claim->returns = get<uint32_t>(payload + 20);
  net::Mac proof;
  memcpy(proof.data(), payload + 24, proof.size());
  return proof;
}

net::Mac decode_welcome(const unsigned char* payload) {
  net::Mac proof;
  memcpy(proof.data(), payload, proof.size());
  return proof;
}

void decode_refused(const unsigned char* payload, uint32_t* reason, uint32_t* version) {
  *reason = get<uint32_t>(payload);
  *version = get<uint32_t>(payload + 4);
}

void encode(const MessageHeader& header, unsigned char* out) {
  out[0] = 'W';
  out[1] = 'T';
  out[2] = static_cast<unsigned char>(header.kind);
  out[3] = header.lane;
  const bool counts = header.kind == MessageKind::kTaken || header.kind == MessageKind::kBegin;
  put(put(out + 4, header.number),
      counts ? header.count : header.bytes | uint64_t{header.version} << 32);
}

bool decode(const unsigned char* bytes, MessageHeader* header) {
  header->kind = static_cast<MessageKind>(bytes[2]);
  header->lane = bytes[3];
  header->number = get<uint32_t>(bytes + 4);
  header->bytes = get<uint64_t>(bytes + 8);
  header->version = 0;
  header->count = 0;
  if (bytes[0] != 'W' || bytes[1] != 'T') return false;
  switch (header->kind) {
    case MessageKind::kMessage:
      return header->bytes <= kMessageBytesMax;
    case MessageKind::kGoodbye:
      return header->bytes == 0;
    case MessageKind::kNotice:
      header->version = static_cast<uint32_t>(header->bytes >> 32);
      header->bytes = static_cast<uint32_t>(header->bytes);
      return header->bytes <= kNoticeBytesMax;
    case MessageKind::kState:
      return header->bytes > kLaneCount * 8 && header->bytes <= kStateBytesMax &&
             (header->bytes - kLaneCount * 8) % 16 == 0;
    case MessageKind::kEarly:
      return header->bytes <= kEarlyBytesMax && header->lane < kLaneCount;
    case MessageKind::kWish:
      return header->bytes == 0 && header->lane < kLaneCount;
    case MessageKind::kTaken:
    case MessageKind::kBegin:
      header->count = std::exchange(header->bytes, 0);
      return header->lane < kLaneCount;
    case MessageKind::kFragment:
      break;
  }
  return false;
}

void encode(const FragmentHeader& header, unsigned char* out) {
  out[0] = 'W';
  out[1] = 'T';
  out[2] = static_cast<unsigned char>(MessageKind::kFragment);
  out[3] = header.lane;
  unsigned char* at = put(out + 4, header.fragment_number);
  at = put(at, header.message_number);
  at = put(at, header.message_bytes);
  at = put(at, header.offset);
  at = put(at, header.bytes);
  at = put(at, header.received);
  put(at, header.posted);
}

bool decode(const unsigned char* bytes, FragmentHeader* header) {
  header->lane = bytes[3];
  header->fragment_number = get<uint32_t>(bytes + 4);
  header->message_number = get<uint64_t>(bytes + 8);
  header->message_bytes = get<uint64_t>(bytes + 16);
  header->offset = get<uint64_t>(bytes + 24);
  header->bytes = get<uint32_t>(bytes + 32);
  header->received = get<uint32_t>(bytes + 36);
  header->posted = get<uint64_t>(bytes + 40);
  return bytes[0] == 'W' && bytes[1] == 'T' &&
         bytes[2] == static_cast<unsigned char>(MessageKind::kFragment) &&
         header->lane < kLaneCount && header->bytes <= kFragmentBytesMax &&
         header->message_bytes <= kMessageBytesMax && header->offset <= header->message_bytes &&
         header->bytes <= header->message_bytes - header->offset &&
         (header->bytes != 0 || header->message_bytes == 0);
}

size_t encode(const PeerState& state, unsigned char* out) {
  unsigned char* at = out;
  for (const uint64_t posted : state.posted) at = put(at, posted);
  for (uint32_t i = 0; i < state.rail_count; ++i) {
    at = put(at, state.rails[i].returns);
    at = put(at, static_cast<uint32_t>(state.rails[i].closed ? 1 : 0));
    at = put(at, state.rails[i].received);
  }
  return static_cast<size_t>(at - out);
}

bool decode(const unsigned char* bytes, size_t byte_count, PeerState* state) {
  if (byte_count <= kLaneCount * 8 || byte_count > kStateBytesMax ||
      (byte_count - kLaneCount * 8) % 16 != 0) {
    return false;
  }
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    state->posted[lane] = get<uint64_t>(bytes + lane * 8);
  }
  state->rail_count = static_cast<uint32_t>((byte_count - kLaneCount * 8) / 16);
  const unsigned char* at = bytes + kLaneCount * 8;
  for (uint32_t i = 0; i < state->rail_count; ++i, at += 16) {
    if (get<uint32_t>(at + 4) > 1) return false;
    state->rails[i] = {get<uint32_t>(at), get<uint32_t>(at + 4) == 1, get<uint64_t>(at + 8)};
  }
  return true;
}

}  // namespace weir::plugins::tcp::wire
