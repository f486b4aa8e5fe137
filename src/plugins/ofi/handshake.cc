// SPDX-License-Identifier: Apache-2.0
#include "plugins/ofi/handshake.h"

#include <cstring>

namespace weir::plugins::ofi {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'E', 'I', 'M'};
constexpr size_t kHeaderBytes = 16;
constexpr uint32_t kReasonVersion = 1;
constexpr uint32_t kReasonProof = 2;

void put(unsigned char* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint32_t get(const unsigned char* in, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint32_t{in[i]} << (8 * i);
  return value;
}

}  // namespace

Mac handshake_key(const void* secret, size_t secret_bytes) {
  constexpr char kLabel[] = "weir ofi handshake";
  return net::hmac_sha256(secret, secret_bytes, kLabel, sizeof kLabel - 1);
}

Handshake::Handshake(const Identity& identity, const Nonce& nonce)
    : identity_(identity), is_host_(true), expected_(Kind::kHello), host_nonce_(nonce) {}

Handshake::Handshake(const Identity& identity, const Nonce& nonce, uint32_t peer)
    : identity_(identity),
      is_host_(false),
      expected_(Kind::kChallenge),
      guest_nonce_(nonce),
      guest_(identity.rank),
      host_(peer),
      rank_count_(identity.rank_count) {
  std::memcpy(begin(Kind::kHello), nonce.data(), nonce.size());
}

size_t Handshake::payload_bytes(Kind kind) {
  switch (kind) {
    case Kind::kHello:
    case Kind::kChallenge:
      return sizeof(Nonce);
    case Kind::kProof:
      return 12 + net::kMacBytes;
    case Kind::kWelcome:
      return net::kMacBytes;
    case Kind::kRefused:
      return 8;
  }
  return 0;
}

Mac Handshake::proof_of(Role role) const {
  unsigned char message[96];
  std::memcpy(message, "weir ofi", 8);
  put(message + 8, kHandshakeVersion, 2);
  put(message + 10, static_cast<uint16_t>(role), 2);
  put(message + 12, identity_.comm_id, 8);
  std::memcpy(message + 20, guest_nonce_.data(), guest_nonce_.size());
  std::memcpy(message + 52, host_nonce_.data(), host_nonce_.size());
  put(message + 84, guest_, 4);
  put(message + 88, host_, 4);
  put(message + 92, rank_count_, 4);
  return net::hmac_sha256(identity_.key.data(), identity_.key.size(), message, sizeof message);
}

unsigned char* Handshake::begin(Kind kind) {
  std::memcpy(out_, kMagic, sizeof kMagic);
  put(out_ + 4, kHandshakeVersion, 2);
  put(out_ + 6, static_cast<uint16_t>(kind), 2);
  put(out_ + 8, payload_bytes(kind), 4);
  put(out_ + 12, 0, 4);
  out_size_ = kHeaderBytes + payload_bytes(kind);
  sent_ = 0;
  return out_ + kHeaderBytes;
}

void Handshake::refuse(uint32_t reason, State state) {
  state_ = state;
  if (!is_host_) return;
  unsigned char* payload = begin(Kind::kRefused);
  put(payload, reason, 4);
  put(payload + 4, kHandshakeVersion, 4);
}

Handshake::State Handshake::feed(const unsigned char* data, size_t bytes) {
  if (bytes == 0 || bytes > wanted()) return state_;
  std::memcpy(in_ + in_bytes_, data, bytes);
  in_bytes_ += bytes;
  if (in_bytes_ < frame_bytes_) return state_;
  if (frame_bytes_ == kHeaderBytes) {
    judge_header();
  } else {
    in_bytes_ = 0;
    frame_bytes_ = kHeaderBytes;
    judge_payload();
  }
  return state_;
}

void Handshake::judge_header() {
  if (std::memcmp(in_, kMagic, sizeof kMagic) != 0) {
    state_ = State::kMalformed;
    return;
  }
  if (const uint32_t version = get(in_ + 4, 2); version != kHandshakeVersion) {
    other_version_ = version;
    refuse(kReasonVersion, State::kOtherVersion);
    return;
  }
  kind_ = static_cast<Kind>(get(in_ + 6, 2));
  const bool awaited = kind_ == expected_ || (!is_host_ && kind_ == Kind::kRefused);
  if (!awaited || get(in_ + 8, 4) != payload_bytes(kind_) || get(in_ + 12, 4) != 0) {
    state_ = State::kMalformed;
    return;
  }
  frame_bytes_ += payload_bytes(kind_);
}

void Handshake::judge_payload() {
  const unsigned char* payload = in_ + kHeaderBytes;
  switch (kind_) {
    case Kind::kHello:
      std::memcpy(guest_nonce_.data(), payload, guest_nonce_.size());
      expected_ = Kind::kProof;
      std::memcpy(begin(Kind::kChallenge), host_nonce_.data(), host_nonce_.size());
      return;
    case Kind::kChallenge:
      std::memcpy(host_nonce_.data(), payload, host_nonce_.size());
      state_ = State::kChallenged;
      return;
    case Kind::kProof:
      judge_proof(payload);
      return;
    case Kind::kWelcome: {
      const Mac right = proof_of(Role::kHost);
      const bool proven = net::equal_in_constant_time(payload, right.data(), right.size());
      state_ = proven ? State::kProven : State::kRefused;
      return;
    }
    case Kind::kRefused:
      other_version_ = get(payload + 4, 4);
      state_ = get(payload, 4) == kReasonVersion ? State::kOtherVersion : State::kRefused;
      return;
  }
}

void Handshake::judge_proof(const unsigned char* payload) {
  guest_ = get(payload, 4);
  host_ = get(payload + 4, 4);
  rank_count_ = get(payload + 8, 4);
  const Mac right = proof_of(Role::kGuest);
  const bool proven = net::equal_in_constant_time(payload + 12, right.data(), right.size());
  // Only a rank of the group can be wrong in what follows.
  const bool fits = host_ == identity_.rank && rank_count_ == identity_.rank_count &&
                    guest_ > identity_.rank && guest_ < identity_.rank_count;
  if (!proven || !fits) {
    refuse(kReasonProof, State::kRefused);
    return;
  }
  const Mac own = proof_of(Role::kHost);
  std::memcpy(begin(Kind::kWelcome), own.data(), own.size());
  state_ = State::kProven;
}

void Handshake::prove() {
  if (state_ != State::kChallenged) return;
  state_ = State::kBusy;
  expected_ = Kind::kWelcome;
  unsigned char* payload = begin(Kind::kProof);
  put(payload, guest_, 4);
  put(payload + 4, host_, 4);
  put(payload + 8, rank_count_, 4);
  const Mac own = proof_of(Role::kGuest);
  std::memcpy(payload + 12, own.data(), own.size());
}

}  // namespace weir::plugins::ofi
