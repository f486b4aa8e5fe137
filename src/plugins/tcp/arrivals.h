// SPDX-License-Identifier: Apache-2.0
// Arrivals: which of many rails something has arrived on, by one call (epoll(7), edge-triggered)
// instead of a call for each of them. One thread at a time.
#pragma once

#include <cstdint>

namespace weir::plugins::tcp {

class Arrivals {
 public:
  struct Connection {
    uint32_t peer = 0;
    uint32_t rail = 0;
    bool is_control = false;
  };

  Arrivals() = default;
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  // Until the descriptor is closed. Once that has failed, for want of memory or descriptors,
  // `is_complete` is false for ever.
  void watch(int fd, const Connection& connection);
  bool is_complete() const { return is_complete_; }
  // Calls take(connection) for each on which something has arrived since the last call, or since
  // `watch`: bytes, the end, or an error. What is left unread is not told again.
  template <typename Take>
  void collect(Take take) {
    uint64_t words[kWordsMax];
    for (;;) {
      const uint32_t count = collect_words(words);
      for (uint32_t i = 0; i < count; ++i) take(connection_of(words[i]));
      if (count < kWordsMax) return;
    }
  }

 private:
  static constexpr uint32_t kWordsMax = 64;

  static uint64_t word_of(const Connection& one) {
    return uint64_t{one.peer} << 32 | uint64_t{one.rail} << 1 | (one.is_control ? 1 : 0);
  }
  static Connection connection_of(uint64_t word) {
    return {static_cast<uint32_t>(word >> 32), static_cast<uint32_t>(word) >> 1, (word & 1) != 0};
  }
  uint32_t collect_words(uint64_t* words) const;

  int epoll_ = -1;
  bool is_complete_ = true;
};

}  // namespace weir::plugins::tcp
