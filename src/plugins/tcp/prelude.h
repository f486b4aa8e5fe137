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
  // What was taken is told of in parts of so many bytes; the rest of the window a sender always has.
  static constexpr uint64_t kTellBytes = kEarlyWindowBytes / 4;
  // A lane that has sent so many messages needs a connection.
  static constexpr uint32_t kFewCount = 8;
  static constexpr size_t kMemoryBytes = size_t{kLaneCount} * kEarlyWindowBytes;

  // `is_host`: the peer makes the connections. Else `*news` is set when one is to be made.
  Prelude(unsigned char* memory, bool is_host, bool* news)
      : memory_(memory), is_host_(is_host), news_(news) {}

  // What came from the peer.
  // Whether an early message of so many bytes may come now, and its bytes, then.
  bool may_arrive(uint32_t lane, uint64_t bytes) const;
  void arrived(uint32_t lane, const unsigned char* data, uint64_t bytes);
  // False: no honest peer says so now.
  bool hear(const wire::MessageHeader& word);

  // Receiving: the oldest message that no receive has taken.
  bool has_message(uint32_t lane) const { return lanes_[lane].taken != lanes_[lane].got; }
  uint64_t message_bytes(uint32_t lane) const;
  // Copies it to `data`.
  void take(uint32_t lane, void* data);
  // There are no early messages to come.
  bool peer_began(uint32_t lane) const { return lanes_[lane].peer_began; }

  // Sending.
  bool may_send(uint32_t lane, uint64_t bytes) const {
    const Lane& one = lanes_[lane];
    return !one.begins && bytes <= kEarlyBytesMax &&
           one.sent_bytes - one.peer_took_bytes + wire::kHeaderBytes + bytes <= kEarlyWindowBytes;
  }
  void sent(uint32_t lane, uint64_t bytes) {
    ++lanes_[lane].sent;
    lanes_[lane].sent_bytes += wire::kHeaderBytes + bytes;
  }
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
  // Bytes with a header for each message.
  struct Lane {
    uint64_t got = 0;
    uint64_t got_bytes = 0;
    uint64_t taken = 0;
    uint64_t taken_bytes = 0;
    uint64_t told_taken_bytes = 0;
    uint64_t sent = 0;
    uint64_t sent_bytes = 0;
    uint64_t peer_took_bytes = 0;
    bool peer_began = false;
    bool wanted = false;
    bool told_wish = false;
    bool begins = false;
    bool told_begin = false;
    // What is kept, of each message its length and its bytes, at these places modulo the window.
    uint64_t kept_begin = 0;
    uint64_t kept_end = 0;
  };
  static constexpr size_t kLengthBytes = sizeof(uint32_t);
  static_assert(kLengthBytes <= wire::kHeaderBytes && kEarlyBytesMax <= UINT32_MAX);
  void put(uint32_t lane, uint64_t at, const void* data, size_t bytes);
  void get(uint32_t lane, uint64_t at, void* data, size_t bytes) const;

  unsigned char* memory_;
  bool is_host_;
  bool* news_;
  Lane lanes_[kLaneCount];
};

}  // namespace weir::plugins::tcp
