// SPDX-License-Identifier: Apache-2.0
// MeshLink: one end of a connection of a control mesh, fed with bytes, without sockets: the proof,
// the cards, the notices, the words and the goodbye of mesh_wire.h. Before the proof it keeps at most one frame of
// fixed size; what it allocates for a card is bounded and comes after it; notices allocate nothing. One
// thread at a time per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "net/mesh_wire.h"

namespace weir::net::mesh {

// What all connections of a rank have in common.
struct Identity {
  Mac key{};  // mesh_key
  uint64_t comm_id = 0;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
};

class MeshLink {
 public:
  enum class State : uint8_t {
    kBusy,
    kChallenged,    // a guest: the host speaks our protocol; `prove` goes on
    kProven,        // both ends hold the secret; peer() has shown who it is; its card is awaited
    kJoined,        // its card is there
    kLeft,          // it has said goodbye
    kRefused,       // the secret, the communicator or the rank count differ, or we reached another
                    // rank than we meant to
    kOtherVersion,  // other_version() tells which
    kMalformed,     // the other end speaks something else, or a seal is wrong
  };

  // The host's end: it learns the peer from the guest. `card` outlives the link's proof.
  MeshLink(const Identity& identity, const Nonce& nonce, const Bytes* card);
  // The guest's end, whose hello is ready in out().
  MeshLink(const Identity& identity, const Nonce& nonce, const Bytes* card, uint32_t peer);

  State state() const { return state_; }
  // Of a host's end: the guest has said nothing yet that is of this protocol.
  bool is_silent() const { return expected_ == Kind::kHello; }
  bool proven() const { return state_ == State::kProven || state_ == State::kJoined; }
  // Bytes that may be fed next; 0 when nothing is to be read.
  size_t wanted() const;
  // `bytes` is at most wanted().
  State feed(const unsigned char* data, size_t bytes);
  // A guest that was challenged sends its proof.
  void prove();
  // Once joined, and when all that was said before has been `sent`; at most kNoticeBytesMax bytes.
  void say_notice(const unsigned char* notice, size_t bytes);
  // Once joined; behind what has not been `sent` yet; at most kWordBytesMax bytes.
  void say_word(const unsigned char* word, size_t bytes);
  // The oldest word of the peer that was not heard yet; false: there is none. More than kWordCountMax
  // that wait to be heard end the link.
  bool hear_word(Bytes* word);
  // Once joined; behind what has not been `sent` yet.
  void say_goodbye(const unsigned char* farewell, size_t bytes);

  // What is to be sent; taken when the caller has `sent` it.
  const unsigned char* out() const { return out_.data() + sent_; }
  size_t out_bytes() const { return out_.size() - sent_; }
  void sent(size_t bytes) { sent_ += bytes; }

  uint32_t peer() const { return is_host_ ? claim_.guest : claim_.host; }
  uint32_t other_version() const { return other_version_; }
  const Bytes& card() const { return card_; }          // of the peer, from kJoined on
  const Bytes& notice() const { return notice_; }      // the latest of the peer; empty before
  const Bytes& farewell() const { return farewell_; }  // of the peer, at kLeft
  // Known to both ends of this connection and to nobody else, from the proof on: the session key
  // under which the end `of_host` or the other one sends.
  const Mac& own_key() const { return is_host_ ? host_key_ : guest_key_; }
  const Mac& peer_key() const { return is_host_ ? guest_key_ : host_key_; }

 private:
  void refuse(Refusal reason, State state);
  bool expects(Kind kind) const;
  void finish_frame();
  void take_word(const unsigned char* numbered, size_t bytes);
  void begin_to_say();
  void judge_proof();
  void judge_welcome();
  void become_proven();

  Identity identity_;
  bool is_host_;
  State state_ = State::kBusy;
  Kind expected_;
  Claim claim_;
  Header header_;
  Mac guest_key_{};
  Mac host_key_{};
  uint32_t other_version_ = 0;
  const Bytes* own_card_;
  Bytes in_;
  size_t frame_bytes_ = kHeaderBytes;
  Bytes out_;
  size_t sent_ = 0;
  Bytes card_;
  Bytes farewell_;
  Bytes notice_;
  uint32_t notices_got_ = 0;
  uint32_t notices_said_ = 0;
  std::deque<Bytes> words_;  // that were not heard
  uint32_t words_got_ = 0;
  uint32_t words_said_ = 0;
};

}  // namespace weir::net::mesh
