// SPDX-License-Identifier: Apache-2.0
// Trace: all that happens in a simulated run, in order, with virtual time. Its hash covers every
// event; the text is kept only where somebody asked for it. One thread.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "simnet/random.h"

namespace weir::simnet {

enum class What : uint8_t {
  kSend,      // peer, lane, bytes: posted
  kRecv,      // peer, lane, bytes: posted
  kSent,      // peer, lane, bytes: the whole message has left the sender's memory
  kReceived,  // peer, lane, bytes: the whole message is in the receiver's memory
  kPiece,     // peer, lane, bytes: on its way
  kFailed,    // peer, lane, code: an operation
  kNotice,    // -, -, bytes: shown
  kHeard,     // peer, -, bytes: a notice has been read for the first time
  kDied,
  kStopped,
  kResumed,
  kClosed,
  kEnded,
};

inline const char* name_of(What what) {
  constexpr const char* kNames[] = {"send",    "recv",   "sent", "received", "piece",
                                    "failed",  "show",   "hear", "died",     "stopped",
                                    "resumed", "closed", "ended"};
  return kNames[static_cast<size_t>(what)];
}

class Trace {
 public:
  explicit Trace(bool keeps_text) : keeps_text_(keeps_text) {}

  void add(uint64_t at_ns, uint32_t rank, What what, uint32_t peer = 0, uint32_t lane = 0,
           uint64_t bytes = 0) {
    hash_ = mix(hash_, at_ns, uint64_t{rank} << 32 | static_cast<uint64_t>(what));
    hash_ = mix(hash_, uint64_t{peer} << 32 | lane, bytes);
    if (!keeps_text_) return;
    text_ += fmt::format("{:>14} rank {} {} peer {} lane {} {}\n", at_ns, rank, name_of(what), peer,
                         lane, bytes);
  }
  void say(uint64_t at_ns, uint32_t rank, std::string_view words) {
    hash_ = mix(hash_, at_ns, rank);
    for (const char c : words) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    if (keeps_text_) text_ += fmt::format("{:>14} rank {} {}\n", at_ns, rank, words);
  }

  uint64_t hash() const { return hash_; }
  const std::string& text() const { return text_; }

 private:
  bool keeps_text_;
  uint64_t hash_ = 0;
  std::string text_;
};

}  // namespace weir::simnet
