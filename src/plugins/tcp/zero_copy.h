// SPDX-License-Identifier: Apache-2.0
// ZeroCopy: whether a connection's large messages leave from the caller's memory itself
// (MSG_ZEROCOPY), and which of those calls' buffers the kernel still holds.
//
// The kernel numbers a connection's zero-copy calls from 0 and tells on the socket's error queue
// which of them it is done with; until then it may read the buffer, also after close. It tells,
// too, when it has copied after all, as it does wherever both ends share a kernel (loopback, veth):
// then the pages were pinned for nothing.
//
// With `auto` the first large messages of a connection leave in both ways in turn. A send never
// waits, so what either way costs is the time within its calls (of zero-copy also those that ask
// for the kernel's word); what costs less per byte is kept.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace weir::plugins::tcp {

class ZeroCopy {
 public:
  enum class Mode : uint8_t { kOff, kAuto, kOn };
  // Below that pinning pages costs more than copying them.
  static constexpr uint64_t kBytesMin = 64 * 1024;
  static constexpr uint32_t kHeldMax = 32;     // calls
  static constexpr uint32_t kTrialCount = 16;  // messages of each way

  // Of WEIR_TCP_ZEROCOPY, null or "" for auto. False: none of them.
  static bool parse(const char* text, Mode* mode);

  // A connection that nothing was sent on yet.
  void attach(int fd, Mode mode);
  // Not on this connection; `why` is static text.
  void turn_off(const char* why);

  // Whether the trial is over.
  bool knows() const { return state_ != State::kTrial; }
  bool is_off() const { return state_ == State::kOff; }
  // Whether a message of so many bytes, about to begin, is to be sent with zero-copy.
  bool choose(uint64_t bytes);
  // One more call may be begun.
  bool has_room() const { return state_ != State::kOff && begun_ - oldest_ < kHeldMax; }
  // The number of a call that has taken bytes.
  uint64_t begin() { return begun_++; }
  // The kernel had no room for the pages of such a call, which did nothing.
  void refused();
  // A message of at least kBytesMin has left within so much time spent in calls.
  bool on_trial() const { return state_ == State::kTrial; }
  void measured(bool zero_copy, uint64_t bytes, uint64_t ns);

  // The kernel holds buffers.
  bool holds() const { return oldest_ != begun_; }
  // Asks the kernel which buffers it has given back.
  void collect();
  bool is_back(uint64_t number) const {
    return number < oldest_ || (back_ >> (number - oldest_) & 1) != 0;
  }
  // The kernel has given back calls `first` to `last`, as it numbers them; `copied`: it had copied.
  void given_back(uint32_t first, uint32_t last, bool copied);
  // Gets all buffers back: those of what the peer's host takes until `patience_ns` (of
  // CLOCK_MONOTONIC), then the connection is broken off. False: a network interface holds one
  // still.
  bool recall(uint64_t patience_ns);

  // A text that says what was chosen and why.
  std::string describe() const;

 private:
  enum class State : uint8_t { kOff, kTrial, kOn };
  struct Way {
    double ns_per_byte[kTrialCount];
    uint32_t count = 0;
  };

  void judge();
  bool wait_until(uint64_t end_ns);

  int fd_ = -1;
  State state_ = State::kOff;
  bool forced_ = false;
  const char* why_ = "";
  uint64_t begun_ = 0;
  uint64_t oldest_ = 0;  // the first that is held
  uint64_t back_ = 0;    // bit k: call oldest_ + k is back
  uint64_t refused_ = 0;
  uint64_t messages_ = 0;
  Way copying_;
  Way sharing_;
  uint64_t collecting_ns_ = 0;  // of calls that had the kernel's word, until a sample counts them
  double copying_cost_ = 0;     // ns per KiB; 0: was not measured
  double sharing_cost_ = 0;
};

}  // namespace weir::plugins::tcp
