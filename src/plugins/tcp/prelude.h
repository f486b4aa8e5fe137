// SPDX-License-Identifier: Apache-2.0
// Prelude: what the lanes to one peer exchange over its control connection before they have connections
// of their own (wire.h): early messages both ways, how many of them were taken, and who waits for a
// connection. It keeps what has come until a receive takes it, in memory of its owner; a peer that sends
// more than may be kept is no honest one. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

class Prelude {
 public:
  // Taken messages are told of in parts of so many, so that as many as a sender may always have under
  // way fit besides.
  static constexpr uint32_t kTellCount = kEarlyCount / 2;
  static constexpr size_t kMemoryBytes = size_t{kLaneCount} * kEarlyCount * kEarlyBytesMax;

  // `is_host`: the peer makes the connections. Else `*news` is set when one is to be made.
  Prelude(unsigned char* memory, bool is_host, bool* news)
      : memory_(memory), is_host_(is_host), news_(news) {}

  // What came from the peer.
  // Where the bytes of an early message go; null: there may be none now.
  unsigned char* place(uint32_t lane, uint64_t bytes);
  void arrived(uint32_t lane, uint64_t bytes);
  // False: no honest peer says so now.
  bool hear(const wire::MessageHeader& word);

  // Receiving: the oldest message that no receive has taken.
  bool has_message(uint32_t lane) const { return lanes_[lane].taken != lanes_[lane].got; }
  const unsigned char* message(uint32_t lane, uint64_t* bytes) const;
  void take(uint32_t lane) { ++lanes_[lane].taken; }
  // There are no early messages to come.
  bool peer_began(uint32_t lane) const { return lanes_[lane].peer_began; }

  // Sending.
  bool may_send(uint32_t lane) const {
    return !lanes_[lane].begins && lanes_[lane].sent - lanes_[lane].peer_took < kEarlyCount;
  }
  void sent(uint32_t lane) { ++lanes_[lane].sent; }
  uint64_t sent_count(uint32_t lane) const { return lanes_[lane].sent; }
  // The connection is there: nothing more is sent early.
  void begin(uint32_t lane) { lanes_[lane].begins = true; }
  // The peer has been told so, once what Control has taken has left.
  bool began(uint32_t lane) const { return lanes_[lane].told_begin; }
  // Some lane may still send early.
  bool in_use() const;

  // A connection is needed: the guest makes it, a host has something to say. True at the first time.
  bool want(uint32_t lane);
  // It is, by either end as far as is known here.
  bool is_wanted(uint32_t lane) const { return lanes_[lane].wanted; }

  // What is to be said next, its number left open; false: nothing.
  bool next_word(wire::MessageHeader* word);

 private:
  struct Lane {
    uint64_t got = 0;
    uint64_t taken = 0;
    uint64_t told_taken = 0;
    uint64_t sent = 0;
    uint64_t peer_took = 0;
    bool peer_began = false;
    bool wanted = false;
    bool told_wish = false;
    bool begins = false;
    bool told_begin = false;
    uint16_t bytes[kEarlyCount] = {};
  };
  unsigned char* at(uint32_t lane, uint64_t number) const {
    return memory_ + (lane * kEarlyCount + number % kEarlyCount) * size_t{kEarlyBytesMax};
  }

  unsigned char* memory_;
  bool is_host_;
  bool* news_;
  Lane lanes_[kLaneCount];
};

}  // namespace weir::plugins::tcp
