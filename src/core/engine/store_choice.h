// SPDX-License-Identifier: Apache-2.0
// StoreChoice: whether a rank writes with plain or with non-temporal stores. A plan has two:
//
// - For its staging slots, whose lines were last read by a peer. Where the two cores share a cache,
//   plain stores are good: the peer reads the data from that cache. Where they do not, each plain
//   store waits for a round trip and non-temporal ones are several times as fast. A virtual
//   machine's cores move between the two within seconds.
// - For the user's output, which may lie in a cache (then plain stores are good) or not (then they
//   fetch lines only to overwrite them). Only the caller's program knows.
//
// So the choice is based on measurements while the plan runs: now and then both kinds are tried,
// one directly after the other, since what the machine does at other times is no measure for
// either. An operation has one kind from its start to its end. Each rank chooses for itself. One
// thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir::engine {

class StoreChoice {
 public:
  // Plain stores may take `plain_worth` times as long, since they leave the data in a cache.
  explicit StoreChoice(double plain_worth) : plain_worth_(plain_worth) {}

  // For the operation that began last.
  bool streams() const { return streams_; }

  // Whether the slices of the operation are to be timed.
  bool measures() const { return step_ != Step::kRest; }

  // An operation begins, and with it the one before has ended. Reads the clock rarely: `clock()`,
  // in ns.
  template <typename Clock>
  void begin_operation(Clock clock) {
    if (step_ == Step::kRest) {
      if (++rested_ % kRestedPerClock == 0) rest(clock());
    } else if (slices_ > 0) {
      end_operation();
    }
    slices_ = bytes_ = ns_ = 0;
  }

  // A slice of the operation took `ns` for `bytes`; it ended at `now_ns`.
  void wrote(uint64_t bytes, uint64_t ns, uint64_t ended_ns) {
    bytes_ += bytes;
    ns_ += ns;
    ended_ns_ = ended_ns;
    ++slices_;
  }

 private:
  // The first operations of a kind find the ring, and the output, as the other kind left them.
  enum class Step : uint8_t { kSettle, kMeasure, kRest };
  static constexpr uint64_t kSettleOperations = 2;
  static constexpr uint64_t kSettleSlices = 24;
  static constexpr uint64_t kMeasuredOperations = 2;
  static constexpr uint64_t kMeasuredSlices = 8;
  // Between two trials.
  static constexpr uint64_t kRestNsMin = 100'000'000;
  static constexpr uint64_t kRestPerTrial = 16;
  static constexpr uint32_t kRestedPerClock = 16;  // operations
  static constexpr double kUnknown = 1e30;

  void end_operation() {
    step_slices_ += slices_;
    ++step_operations_;
    switch (step_) {
      case Step::kRest:
        break;
      case Step::kSettle:
        if (latest_ns_ == 0) latest_ns_ = ended_ns_;
        if (step_operations_ < kSettleOperations || step_slices_ < kSettleSlices) return;
        begin_step(Step::kMeasure);
        break;
      case Step::kMeasure: {
        // The least: one that was interrupted must not decide.
        double& cost = streams_ ? streamed_cost_ : plain_cost_;
        cost = std::min(cost, static_cast<double>(ns_) / static_cast<double>(bytes_));
        if (step_operations_ < kMeasuredOperations || step_slices_ < kMeasuredSlices) return;
        end_measuring();
        break;
      }
    }
  }
  void rest(uint64_t at_ns) {
    if (at_ns - latest_ns_ < std::max(kRestNsMin, kRestPerTrial * trial_ns_)) return;
    latest_ns_ = at_ns;
    plain_cost_ = streamed_cost_ = kUnknown;
    begin_step(Step::kMeasure);  // the kind in use needs no settling
  }
  void begin_step(Step step) {
    step_ = step;
    step_slices_ = step_operations_ = 0;
  }
  void end_measuring() {
    if (plain_cost_ == kUnknown || streamed_cost_ == kUnknown) {
      streams_ = !streams_;
      return begin_step(Step::kSettle);
    }
    streams_ = plain_cost_ > plain_worth_ * streamed_cost_;
    trial_ns_ = ended_ns_ - latest_ns_;
    latest_ns_ = ended_ns_;
    begin_step(Step::kRest);
  }

  double plain_worth_;
  bool streams_ = false;
  Step step_ = Step::kSettle;  // begins with a trial
  // Of the operation, and of the step.
  uint64_t slices_ = 0;
  uint64_t bytes_ = 0;
  uint64_t ns_ = 0;
  uint64_t step_slices_ = 0;
  uint64_t step_operations_ = 0;
  double plain_cost_ = kUnknown;  // ns per byte, in the latest trial
  double streamed_cost_ = kUnknown;
  uint32_t rested_ = 0;  // operations
  uint64_t ended_ns_ = 0;
  uint64_t latest_ns_ = 0;  // the latest trial began or ended
  uint64_t trial_ns_ = 0;   // how long it took
};

}  // namespace weir::engine
