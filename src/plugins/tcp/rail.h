// SPDX-License-Identifier: Apache-2.0
// Rail: one of several connections between two ranks that carry the fragments of their messages
// (wire.h), and how fast it is. The fragments that it was given are kept here until the peer has
// confirmed them, so that they can go over another rail when this one fails.
//
// It reads a fragment's bytes straight to where its Receiver wants them. It never waits, allocates
// only when it is made, and decides nothing: a rail that breaks reports that, and its owner acts on
// it. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "plugins/tcp/channel.h"
#include "plugins/tcp/stream.h"
#include "plugins/tcp/wire.h"

namespace weir::plugins::tcp {

// Takes what arrives.
class Receiver {
 public:
  // Where the fragment's bytes go: null with `*good` when they are not wanted, with false when no
  // correct peer could have sent it now.
  virtual unsigned char* place(const wire::FragmentHeader& header, bool* good) = 0;
  // All of the fragment has arrived there.
  virtual void finish(const wire::FragmentHeader& header) = 0;
  // The other contents of the header: how many of the fragments sent on this rail the peer has, and
  // how many receives it has posted on the lane.
  virtual bool hear(uint32_t rail, const wire::FragmentHeader& header) = 0;

 protected:
  ~Receiver() = default;
};

// A part of a message that was given to a rail.
struct Fragment {
  static constexpr uint32_t kGone = UINT32_MAX;

  Op* op = nullptr;   // null: the bytes are a copy, and the send has completed
  uint32_t copy = 0;  // which, then; kGone: the owner has taken the bytes and the operation back
  const unsigned char* data = nullptr;
  uint64_t message_number = 0;
  uint64_t message_bytes = 0;
  uint64_t offset = 0;
  uint32_t bytes = 0;
  uint8_t lane = 0;
};

class Rail {
 public:
  enum class Health : uint8_t { kUp, kEnded, kFailed, kDamaged };
  static constexpr uint32_t kFragmentsMax = 256;  // known at a time
  static constexpr uint64_t kWindowBytesLeast = 1024 * 1024;
  static constexpr uint64_t kTrialBytes = 1024;

  explicit Rail(uint32_t index);
  // Begins anew on this connection, which stays the owner's.
  void attach(Stream stream, uint64_t now_ns);
  // The connection is given up.
  void detach() { stream_ = Stream(); }

  bool is_open() const { return stream_.is_open(); }
  int fd() const { return stream_.fd(); }
  Stream& stream() { return stream_; }
  Health health() const { return health_; }
  int error_number() const { return error_number_; }  // of kFailed

  // Sending.
  bool has_room() const { return queued_ - acknowledged_ < kFragmentsMax; }
  void enqueue(const Fragment& fragment, uint64_t posted, uint64_t now_ns);
  void push(uint64_t now_ns);
  bool has_unwritten() const { return written_ < queued_; }
  bool has_outstanding() const { return acknowledged_ < queued_; }
  uint64_t outstanding_bytes() const { return outstanding_bytes_; }
  // Of those, the bytes that have not reached the peer's host, as of the last look and with what
  // came since.
  uint64_t ahead_bytes() const { return ahead_bytes_; }
  void look_ahead(uint64_t now_ns);
  // The same, when it is time to measure how fast the rail is.
  void watch(uint64_t now_ns) {
    if (is_marked_ && now_ns - looked_ns_ >= kWatchNs) look_ahead(now_ns);
  }
  // With more than that ahead, the rail is given no parts of messages: bytes in a socket cannot be
  // taken back. The limit is what the rail carries in a short time, and half as much again as it
  // has carried at a time since it began, or was found to be slow: kTrialBytes at first.
  uint64_t ahead_bytes_max() const;
  // A rail that is too slow to be used may be tried when it has rested for much longer than it took
  // for its latest bytes. Its next bytes then show how fast it is.
  bool is_due_for_trial(uint64_t now_ns) const { return idle_ns(now_ns) > took_ns_ * kRestFactor; }
  void begin_trial() {
    sample_count_ = 0;
    sample_bytes_ = sample_ns_ = 0;
  }
  // Since when the latest bytes were under way, if they took so long that the rail is less than
  // half as fast as its rate says, or something else held them up; 0: they did not, or this was
  // asked before.
  uint64_t take_behind_since_ns() { return std::exchange(behind_since_ns_, 0); }
  // When bytes last arrived in the time that the rate gives them.
  uint64_t kept_pace_ns() const { return kept_pace_ns_; }
  // Of a rail that was behind: it is as slow as that.
  void take_latest_pace();
  // Asks the kernel how long the peer's host takes to answer.
  void look_at_answers();
  // That time, in steps of which each is twice the one before; 0: less than a millisecond.
  uint64_t answer_ns() const { return answer_step_ns_; }
  // Since when nothing is on its way; 0: something is.
  uint64_t idle_ns(uint64_t now_ns) const {
    return outstanding_bytes_ == 0 && now_ns > busy_since_ns_ ? now_ns - busy_since_ns_ : 0;
  }
  // The peer has received so many of them (modulo 2^32); `drop` takes each one off. False: more
  // than were sent.
  template <typename Drop>
  bool acknowledge(uint32_t count, uint64_t now_ns, Drop drop) {
    const uint32_t fresh = count - static_cast<uint32_t>(acknowledged_);
    if (fresh > queued_ - acknowledged_) return static_cast<int32_t>(fresh) < 0;
    if (fresh == 0) return true;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < fresh; ++i) {
      const Fragment& fragment = sent_[acknowledged_++ % kFragmentsMax].fragment;
      bytes += fragment.bytes + wire::kFragmentHeaderBytes;
      drop(fragment);
    }
    if (written_ < acknowledged_) return false;
    measure(bytes, now_ns);
    return true;
  }
  // Takes off the remaining ones, in order.
  template <typename Take>
  void take_back(Take take) {
    while (acknowledged_ < queued_) take(sent_[acknowledged_++ % kFragmentsMax].fragment);
    written_ = queued_;
    outstanding_bytes_ = unwritten_bytes_ = ahead_bytes_ = 0;
    is_marked_ = false;
  }

  // Forgets fragments sent from memory that its owner may use again, and all fragments after them.
  void drop_owned();
  // There are copies of which the peer has not said that it has them.
  bool has_outstanding_copies() const;

  // Receiving: what can be had without waiting, within a bound that keeps others served. True:
  // there may be more.
  bool read(Receiver* receiver);
  uint64_t received() const { return received_; }  // whole fragments
  uint64_t received_bytes() const { return received_bytes_; }
  uint64_t sent_bytes() const { return sent_bytes_; }
  // What is arriving; null: nothing.
  const wire::FragmentHeader* current() const { return in_fragment_ ? &current_ : nullptr; }
  // What is arriving of this message goes to `data`, where its first bytes have been copied.
  void redirect(uint8_t lane, uint64_t message_number, unsigned char* data);
  // What is arriving for this lane is not wanted any more.
  void forget_lane(uint8_t lane);

  // Bytes per ns, by the mean time of a byte in the latest measurements: what a token bucket lets
  // through after a pause takes no time, but as a rate would count for more than all else. A
  // measurement is the kernel's, made when the link was the bottleneck, or the time that bytes take
  // to leave the socket, if that was not seen late: the faster one, since a rail that is given
  // little has gaps. If the kernel reports nothing for long, bytes that leave the socket count.
  //
  // Before the first measurement, the rate is the fastest at which bytes were seen to leave the
  // socket. When they leave it at less than half of the rate for 50 ms, although the peer reads,
  // the rate becomes what was seen, and measuring begins anew; likewise when bytes that have all
  // arrived took that long (take_latest_pace).
  double rate() const { return rate_; }
  bool is_measured() const { return is_measured_; }  // else it is a guess
  // Longest fragment that is good for this rail, and the shortest that is good for one so fast.
  uint32_t fragment_bytes() const;
  static uint32_t fragment_bytes_least(double rate);
  uint64_t window_bytes() const;

 private:
  static constexpr size_t kAheadBytes = 1024;
  static constexpr uint64_t kRestFactor = 32;
  static constexpr uint64_t kWatchNs = 50'000;
  struct Sent {
    Fragment fragment;
    unsigned char header[wire::kFragmentHeaderBytes];
  };

  void fail(Health health, int error_number);
  // Whether so much is in flight that it must be looked after.
  bool has_much_outstanding() const;
  void write();
  void mark(uint64_t now_ns);
  void judge_pace(uint64_t now_ns);
  void take_pace(uint64_t bytes, uint64_t end_ns);
  void become_slow(double pace);
  void compare_to_rate(uint64_t bytes, uint64_t end_ns);
  bool was_held_up_by_peer();
  void measure(uint64_t bytes, uint64_t now_ns);
  double take_sample();
  bool take_ahead(Receiver* receiver);
  bool begin_fragment(Receiver* receiver);
  void end_fragment(Receiver* receiver);

  uint32_t index_;
  Stream stream_;
  Health health_ = Health::kUp;
  int error_number_ = 0;

  std::unique_ptr<Sent[]> sent_;  // fragment number k in [k % kFragmentsMax]
  uint64_t acknowledged_ = 0;     // numbers: acknowledged_ <= written_ <= queued_
  uint64_t written_ = 0;
  uint64_t queued_ = 0;
  size_t part_ = 0;  // bytes of fragment `written_` that have left, with its header
  uint64_t outstanding_bytes_ = 0;
  uint64_t unwritten_bytes_ = 0;
  uint64_t ahead_bytes_ = 0;
  uint64_t sent_bytes_ = 0;

  static constexpr uint32_t kSamples = 16;
  static constexpr uint32_t kSamplesLeast = 3;
  static constexpr uint32_t kSlowLeast = 2;  // samples: the rail has become slow
  double rate_;
  bool is_measured_ = false;
  double byte_ns_ = 0;         // the mean of the latest samples
  uint32_t sample_count_ = 0;  // at most kSamples
  uint32_t slow_count_ = 0;    // of several times the mean, one after the other
  uint64_t busy_since_ns_ = 0;
  uint64_t sample_bytes_ = 0;
  uint64_t sample_ns_ = 0;
  uint64_t kernel_rate_ = 0;   // bytes per second, the latest that it told
  uint32_t silent_count_ = 0;  // samples since then

  uint64_t proven_bytes_ = kTrialBytes;
  uint32_t failures_ = 0;       // one after the other, before much was proven
  uint64_t arrived_bytes_ = 0;  // at the peer's host, of sent_bytes_
  // What was in the socket at some moment, until it has arrived.
  bool is_marked_ = false;
  uint64_t looked_ns_ = 0;
  uint64_t mark_ns_ = 0;
  uint64_t mark_arrived_ = 0;  // arrived_bytes_ then
  uint64_t mark_sent_ = 0;     // sent_bytes_ then
  uint64_t mark_began_ns_ = 0;
  uint64_t took_ns_ = 0;  // that the latest of them took
  uint64_t kept_pace_ns_ = 0;
  uint64_t behind_since_ns_ = 0;
  double latest_pace_ = 0;        // bytes per ns, of a rail that was behind
  uint64_t answer_us_ = 0;        // the kernel's smoothed time
  uint64_t answer_least_us_ = 0;  // the least lately
  uint64_t answer_step_ns_ = 0;
  uint64_t looked_sent_bytes_ = 0;  // sent_bytes_ when these were asked for
  uint64_t held_up_us_ = 0;         // by the peer's window, so far

  uint64_t received_ = 0;
  uint64_t received_bytes_ = 0;
  bool in_fragment_ = false;
  wire::FragmentHeader current_;
  unsigned char* to_ = nullptr;
  uint32_t got_ = 0;  // of the current fragment
  size_t ahead_begin_ = 0;
  size_t ahead_end_ = 0;
  unsigned char ahead_[kAheadBytes];
};

}  // namespace weir::plugins::tcp
