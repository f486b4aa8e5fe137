// SPDX-License-Identifier: Apache-2.0
#include "net/mesh_link.h"

#include <string.h>

#include <utility>

namespace weir::net::mesh {

MeshLink::MeshLink(const Identity& identity, const Nonce& nonce, const Bytes* card)
    : identity_(identity), is_host_(true), expected_(Kind::kHello), own_card_(card) {
  claim_.host_nonce = nonce;
  claim_.comm_id = identity.comm_id;
}

MeshLink::MeshLink(const Identity& identity, const Nonce& nonce, const Bytes* card, uint32_t peer)
    : identity_(identity), is_host_(false), expected_(Kind::kChallenge), own_card_(card) {
  claim_.guest_nonce = nonce;
  claim_.comm_id = identity.comm_id;
  claim_.guest = identity.rank;
  claim_.host = peer;
  claim_.rank_count = identity.rank_count;
  put_nonce(&out_, Kind::kHello, nonce);
}

size_t MeshLink::wanted() const {
  const bool reads = state_ == State::kBusy || state_ == State::kProven || state_ == State::kJoined;
  return reads ? frame_bytes_ - in_.size() : 0;
}

bool MeshLink::expects(Kind kind) const {
  switch (state_) {
    case State::kBusy:
      return kind == expected_ || (!is_host_ && kind == Kind::kRefused);
    case State::kProven:
      return kind == Kind::kCard;
    case State::kJoined:
      return kind == Kind::kGoodbye || kind == Kind::kNotice || kind == Kind::kWord;
    default:
      return false;
  }
}

void MeshLink::refuse(Refusal reason, State state) {
  state_ = state;
  if (is_host_) put_refused(&out_, reason);
}

MeshLink::State MeshLink::feed(const unsigned char* data, size_t bytes) {
  if (bytes == 0 || bytes > wanted()) return state_;
  in_.insert(in_.end(), data, data + bytes);
  if (in_.size() < frame_bytes_) return state_;
  if (frame_bytes_ > kHeaderBytes) {
    finish_frame();
    in_.clear();
    frame_bytes_ = kHeaderBytes;
    return state_;
  }
  switch (decode_header(in_.data(), &header_)) {
    case Judgement::kMalformed:
      state_ = State::kMalformed;
      return state_;
    case Judgement::kOtherVersion:
      other_version_ = header_.version;
      refuse(Refusal::kVersion, State::kOtherVersion);
      return state_;
    case Judgement::kGood:
      break;
  }
  if (!expects(header_.kind)) {
    state_ = State::kMalformed;
    return state_;
  }
  frame_bytes_ += header_.payload_bytes;
  return state_;
}

void MeshLink::finish_frame() {
  const unsigned char* payload = in_.data() + kHeaderBytes;
  switch (header_.kind) {
    case Kind::kHello:
      claim_.guest_nonce = get_nonce(payload);
      expected_ = Kind::kProof;
      put_nonce(&out_, Kind::kChallenge, claim_.host_nonce);
      return;
    case Kind::kChallenge:
      claim_.host_nonce = get_nonce(payload);
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
      get_refused(payload, &reason, &other_version_);
      const bool version = reason == static_cast<uint32_t>(Refusal::kVersion);
      state_ = version ? State::kOtherVersion : State::kRefused;
      return;
    }
    case Kind::kNotice:
      if (get_number(payload) != notices_got_++) {
        state_ = State::kMalformed;
        return;
      }
      notice_.assign(payload + 4, payload + header_.payload_bytes);
      return;
    case Kind::kCard:
    case Kind::kWord:
    case Kind::kGoodbye: {
      const unsigned char* data = payload + kMacBytes;
      const size_t bytes = header_.payload_bytes - kMacBytes;
      const Mac right = seal(peer_key(), header_.kind, data, bytes);
      if (!equal_in_constant_time(payload, right.data(), right.size())) {
        state_ = State::kMalformed;
        return;
      }
      if (header_.kind == Kind::kWord) {
        take_word(data, bytes);
        return;
      }
      const bool is_card = header_.kind == Kind::kCard;
      (is_card ? card_ : farewell_).assign(data, data + bytes);
      state_ = is_card ? State::kJoined : State::kLeft;
      return;
    }
  }
}

void MeshLink::prove() {
  if (state_ != State::kChallenged) return;
  state_ = State::kBusy;
  expected_ = Kind::kWelcome;
  put_proof(&out_, claim_, net::mesh::prove(identity_.key, Role::kGuest, claim_));
}

void MeshLink::judge_proof() {
  const Mac given = get_proof(in_.data() + kHeaderBytes, &claim_);
  const Mac right = net::mesh::prove(identity_.key, Role::kGuest, claim_);
  const bool proven = equal_in_constant_time(given.data(), right.data(), right.size());
  // Only a rank of the communicator can be wrong in what follows.
  const bool fits = claim_.host == identity_.rank && claim_.rank_count == identity_.rank_count &&
                    claim_.guest > identity_.rank && claim_.guest < identity_.rank_count;
  if (!proven || !fits) {
    refuse(Refusal::kProof, State::kRefused);
    return;
  }
  put_welcome(&out_, net::mesh::prove(identity_.key, Role::kHost, claim_));
  become_proven();
}

void MeshLink::judge_welcome() {
  const Mac given = get_mac(in_.data() + kHeaderBytes);
  const Mac right = net::mesh::prove(identity_.key, Role::kHost, claim_);
  if (!equal_in_constant_time(given.data(), right.data(), right.size())) {
    state_ = State::kRefused;
    return;
  }
  become_proven();
}

void MeshLink::become_proven() {
  guest_key_ = session_key(identity_.key, Role::kGuest, claim_);
  host_key_ = session_key(identity_.key, Role::kHost, claim_);
  state_ = State::kProven;
  // Notices come when nothing may be allocated.
  in_.reserve(kNoticeFrameBytesMax);
  out_.reserve(kNoticeFrameBytesMax);
  notice_.reserve(kNoticeBytesMax);
  put_sealed(&out_, Kind::kCard, own_key(), own_card_->data(), own_card_->size());
}

void MeshLink::take_word(const unsigned char* numbered, size_t bytes) {
  if (get_number(numbered) != words_got_++ || words_.size() >= kWordCountMax) {
    state_ = State::kMalformed;
    return;
  }
  words_.emplace_back(numbered + 4, numbered + bytes);
}

bool MeshLink::hear_word(Bytes* word) {
  if (words_.empty()) return false;
  *word = std::move(words_.front());
  words_.pop_front();
  return true;
}

// What was sent takes no room any more.
void MeshLink::begin_to_say() {
  if (out_bytes() != 0) return;
  out_.clear();
  sent_ = 0;
}

void MeshLink::say_notice(const unsigned char* notice, size_t bytes) {
  if (state_ != State::kJoined || out_bytes() != 0 || bytes > kNoticeBytesMax) return;
  begin_to_say();
  put_notice(&out_, notices_said_++, notice, bytes);
}

void MeshLink::say_word(const unsigned char* word, size_t bytes) {
  if ((state_ != State::kJoined && state_ != State::kLeft) || bytes > kWordBytesMax) return;
  begin_to_say();
  put_word(&out_, words_said_++, own_key(), word, bytes);
}

void MeshLink::say_goodbye(const unsigned char* farewell, size_t bytes) {
  if (state_ != State::kJoined && state_ != State::kLeft) return;
  begin_to_say();
  put_sealed(&out_, Kind::kGoodbye, own_key(), farewell, bytes);
}

}  // namespace weir::net::mesh
