// SPDX-License-Identifier: Apache-2.0
#include "net/handshake.h"

#include <string.h>

#include <string>

#include "net/little_endian.h"

namespace weir::net {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'E', 'I', 'R'};
constexpr size_t kLabelBytes = 8;
constexpr size_t kSignedBytes = 108;

}  // namespace

Mac key_for(const void* secret, size_t secret_bytes, std::string_view purpose) {
  const std::string label = "weir handshake " + std::string(purpose);
  return hmac_sha256(secret, secret_bytes, label.data(), label.size());
}

Handshake::Handshake(const Identity& identity, const Nonce& nonce)
    : identity_(identity), is_server_(true), expected_(Kind::kHello) {
  claim_.server_nonce = nonce;
}

Handshake::Handshake(const Identity& identity, const Nonce& nonce, uint32_t peer,
                     const Subject& subject)
    : identity_(identity), is_server_(false), expected_(Kind::kChallenge) {
  claim_.client_nonce = nonce;
  claim_.client = identity.rank;
  claim_.server = peer;
  claim_.rank_count = identity.rank_count;
  claim_.subject = subject;
  put(begin(Kind::kHello), nonce);
}

size_t Handshake::payload_bytes(Kind kind) {
  switch (kind) {
    case Kind::kHello:
    case Kind::kChallenge:
      return kNonceBytes;
    case Kind::kProof:
      return 24 + kMacBytes;
    case Kind::kWelcome:
      return kMacBytes;
    case Kind::kRefused:
      return 8;
  }
  return 0;
}

// A frame that is to be sent; gives the place of its payload.
unsigned char* Handshake::begin(Kind kind) {
  memcpy(out_, kMagic, sizeof kMagic);
  unsigned char* at = put(out_ + 4, kProtocolVersion);
  at = put(at, static_cast<uint16_t>(kind));
  at = put(at, static_cast<uint32_t>(payload_bytes(kind)));
  at = put(at, uint32_t{0});
  out_bytes_ = kHeaderBytes + payload_bytes(kind);
  sent_ = 0;
  return at;
}

Mac Handshake::sign(const char* label, Role role) const {
  unsigned char message[kSignedBytes];
  memcpy(message, label, kLabelBytes);
  unsigned char* at = put(message + kLabelBytes, kProtocolVersion);
  at = put(at, static_cast<uint16_t>(role));
  at = put(at, identity_.comm_id);
  at = put(at, claim_.client_nonce);
  at = put(at, claim_.server_nonce);
  at = put(at, claim_.client);
  at = put(at, claim_.server);
  at = put(at, claim_.rank_count);
  for (const uint32_t word : claim_.subject) at = put(at, word);
  return hmac_sha256(identity_.key.data(), identity_.key.size(), message, sizeof message);
}

void Handshake::refuse(Refusal reason, State state) {
  state_ = state;
  if (!is_server_) return;
  unsigned char* const at = put(begin(Kind::kRefused), static_cast<uint32_t>(reason));
  put(at, uint32_t{kProtocolVersion});
}

Handshake::State Handshake::feed(const unsigned char* data, size_t bytes) {
  if (bytes == 0 || bytes > wanted()) return state_;
  memcpy(in_ + in_bytes_, data, bytes);
  in_bytes_ += bytes;
  if (in_bytes_ < frame_bytes_) return state_;
  if (frame_bytes_ == kHeaderBytes) {
    if (judge_header()) frame_bytes_ += payload_bytes(kind_);
    return state_;
  }
  in_bytes_ = 0;
  frame_bytes_ = kHeaderBytes;
  finish_frame(in_ + kHeaderBytes);
  return state_;
}

bool Handshake::judge_header() {
  const uint16_t version = get<uint16_t>(in_ + 4);
  kind_ = static_cast<Kind>(get<uint16_t>(in_ + 6));
  const bool is_ours = memcmp(in_, kMagic, sizeof kMagic) == 0;
  const bool is_due = kind_ == expected_ || (!is_server_ && kind_ == Kind::kRefused);
  if (is_ours && version != kProtocolVersion) {
    other_version_ = version;
    refuse(Refusal::kVersion, State::kOtherVersion);
  } else if (!is_ours || !is_due || get<uint32_t>(in_ + 8) != payload_bytes(kind_) ||
             get<uint32_t>(in_ + 12) != 0) {
    state_ = State::kMalformed;
  }
  return state_ == State::kBusy;
}

void Handshake::finish_frame(const unsigned char* payload) {
  switch (kind_) {
    case Kind::kHello:
      memcpy(claim_.client_nonce.data(), payload, kNonceBytes);
      expected_ = Kind::kProof;
      put(begin(Kind::kChallenge), claim_.server_nonce);
      return;
    case Kind::kChallenge:
      memcpy(claim_.server_nonce.data(), payload, kNonceBytes);
      state_ = State::kChallenged;
      return;
    case Kind::kProof:
      return judge_proof(payload);
    case Kind::kWelcome: {
      const Mac right = sign(kProofLabel, kServer);
      const bool proven = equal_in_constant_time(payload, right.data(), right.size());
      state_ = proven ? State::kProven : State::kRefused;
      return;
    }
    case Kind::kRefused: {
      other_version_ = get<uint32_t>(payload + 4);
      const bool version = get<uint32_t>(payload) == static_cast<uint32_t>(Refusal::kVersion);
      state_ = version ? State::kOtherVersion : State::kRefused;
      return;
    }
  }
}

void Handshake::prove() {
  if (state_ != State::kChallenged) return;
  state_ = State::kBusy;
  expected_ = Kind::kWelcome;
  unsigned char* at = put(begin(Kind::kProof), claim_.client);
  at = put(at, claim_.server);
  at = put(at, claim_.rank_count);
  for (const uint32_t word : claim_.subject) at = put(at, word);
  put(at, sign(kProofLabel, kClient));
}

void Handshake::judge_proof(const unsigned char* payload) {
  claim_.client = get<uint32_t>(payload);
  claim_.server = get<uint32_t>(payload + 4);
  claim_.rank_count = get<uint32_t>(payload + 8);
  for (size_t i = 0; i < claim_.subject.size(); ++i) {
    claim_.subject[i] = get<uint32_t>(payload + 12 + 4 * i);
  }
  const Mac right = sign(kProofLabel, kClient);
  const bool proven = equal_in_constant_time(payload + 24, right.data(), right.size());
  // Only a rank that holds the secret can be wrong in what follows.
  const bool fits = identity_.is_of_strangers
                        ? claim_.server == kAnyRank
                        : claim_.server == identity_.rank && claim_.client != identity_.rank &&
                              claim_.client < identity_.rank_count &&
                              claim_.rank_count == identity_.rank_count;
  if (proven && fits) {
    state_ = State::kClaimed;
  } else {
    refuse(Refusal::kProof, State::kRefused);
  }
}

void Handshake::welcome() {
  if (state_ != State::kClaimed) return;
  put(begin(Kind::kWelcome), sign(kProofLabel, kServer));
  state_ = State::kProven;
}

}  // namespace weir::net
