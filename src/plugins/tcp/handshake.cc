// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/handshake.h"

#include <string.h>

namespace weir::plugins::tcp {

using wire::Kind;

namespace {

bool fits_a_rail(const wire::Claim& claim) {
  if (claim.rail_count == 1) {
    return claim.lane < kConnectionsPerPeer && claim.rail == 0 && claim.returns == 0;
  }
  return claim.rail_count != 0 && claim.rail_count <= kRailsMax && claim.rail < claim.rail_count &&
         (claim.lane == kControlLane || claim.lane == kRailLane);
}

}  // namespace

Handshake::Handshake(const Identity& identity, const wire::Nonce& nonce)
    : identity_(identity), is_host_(true), expected_(Kind::kHello) {
  claim_.host_nonce = nonce;
  claim_.comm_id = identity.comm_id;
}

Handshake::Handshake(const Identity& identity, const wire::Nonce& nonce, uint32_t peer,
                     uint32_t lane)
    : identity_(identity), is_host_(false), expected_(Kind::kChallenge) {
  claim_.guest_nonce = nonce;
  claim_.comm_id = identity.comm_id;
  claim_.guest = identity.rank;
  claim_.host = peer;
  claim_.rank_count = identity.rank_count;
  claim_.lane = lane;
  say(wire::encode_nonce(Kind::kHello, nonce));
}

size_t Handshake::wanted() const { return state_ == State::kBusy ? frame_bytes_ - in_bytes_ : 0; }

void Handshake::say(const wire::Frame& frame) {
  out_ = frame;
  sent_ = 0;
}

void Handshake::refuse(wire::Refusal reason, State state) {
  state_ = state;
  if (is_host_) say(wire::encode_refused(reason));
}

Handshake::State Handshake::feed(const unsigned char* data, size_t bytes) {
  if (bytes == 0 || bytes > wanted()) return state_;
  memcpy(in_ + in_bytes_, data, bytes);
  in_bytes_ += bytes;
  if (in_bytes_ < frame_bytes_) return state_;
  if (frame_bytes_ > wire::kHeaderBytes) {
    finish_frame();
    return state_;
  }
  switch (wire::decode_header(in_, &header_)) {
    case wire::Judgement::kMalformed:
      state_ = State::kMalformed;
      return state_;
    case wire::Judgement::kOtherVersion:
      other_version_ = header_.version;
      refuse(wire::Refusal::kVersion, State::kOtherVersion);
      return state_;
    case wire::Judgement::kGood:
      break;
  }
  const bool refusal = !is_host_ && header_.kind == Kind::kRefused;
  if (header_.kind != expected_ && !refusal) {
    state_ = State::kMalformed;
    return state_;
  }
  frame_bytes_ += wire::payload_bytes(header_.kind);
  return state_;
}

void Handshake::finish_frame() {
  const unsigned char* payload = in_ + wire::kHeaderBytes;
  in_bytes_ = 0;
  frame_bytes_ = wire::kHeaderBytes;
  switch (header_.kind) {
    case Kind::kHello:
      claim_.guest_nonce = wire::decode_nonce(payload);
      expected_ = Kind::kProof;
      say(wire::encode_nonce(Kind::kChallenge, claim_.host_nonce));
      return;
    case Kind::kChallenge:
      claim_.host_nonce = wire::decode_nonce(payload);
      state_ = State::kChallenged;
      return;
    case Kind::kProof:
      judge_proof();
      return;
    case Kind::kWelcome:
      judge_welcome();
      return;
    case Kind::kRefused: {
      uint32_t reason = 0;
      wire::decode_refused(payload, &reason, &other_version_);
      const bool version = reason == static_cast<uint32_t>(wire::Refusal::kVersion);
      state_ = version ? State::kOtherVersion : State::kRefused;
      return;
    }
  }
}

void Handshake::set_rail(uint32_t rail, uint32_t rail_count, uint32_t returns) {
  claim_.rail = static_cast<uint16_t>(rail);
  claim_.rail_count = static_cast<uint16_t>(rail_count);
  claim_.returns = returns;
}

void Handshake::prove() {
  if (state_ != State::kChallenged) return;
  state_ = State::kBusy;
  expected_ = Kind::kWelcome;
  say(wire::encode_proof(claim_, wire::prove(identity_.key, wire::Role::kGuest, claim_)));
}

void Handshake::judge_proof() {
  const net::Mac given = wire::decode_proof(in_ + wire::kHeaderBytes, &claim_);
  const net::Mac right = wire::prove(identity_.key, wire::Role::kGuest, claim_);
  const bool proven = net::equal_in_constant_time(given.data(), right.data(), right.size());
  // Only a rank of the communicator can be wrong in what follows.
  const bool fits = claim_.host == identity_.rank && claim_.rank_count == identity_.rank_count &&
                    claim_.guest > identity_.rank && claim_.guest < identity_.rank_count &&
                    fits_a_rail(claim_);
  if (!proven || !fits) {
    refuse(wire::Refusal::kProof, State::kRefused);
    return;
  }
  state_ = State::kClaimed;
  if (!asks_) welcome();
}

void Handshake::welcome() {
  if (state_ != State::kClaimed) return;
  say(wire::encode_welcome(wire::prove(identity_.key, wire::Role::kHost, claim_)));
  state_ = State::kProven;
}

void Handshake::judge_welcome() {
  const net::Mac given = wire::decode_welcome(in_ + wire::kHeaderBytes);
  const net::Mac right = wire::prove(identity_.key, wire::Role::kHost, claim_);
  const bool proven = net::equal_in_constant_time(given.data(), right.data(), right.size());
  state_ = proven ? State::kProven : State::kRefused;
}

}  // namespace weir::plugins::tcp
