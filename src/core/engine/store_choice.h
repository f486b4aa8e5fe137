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
// So the choice is based on measurements while the plan runs: the stores that are not in use are
// tried now and then. Each rank chooses for itself. One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir::engine {

class StoreChoice {
 public:
  // Plain stores may take `plain_worth` times as long, since they leave the data in a cache.
  explicit StoreChoice(double plain_worth) : plain_worth_(plain_worth) {}

  // For the next slice.
  bool streams() const { return streams_; }

  // Records that the slice took `ns` for `bytes`; it ended at `now_ns`.
  void wrote(uint64_t bytes, uint64_t ns, uint64_t now_ns) {
    const double cost = static_cast<double>(ns) / static_cast<double>(bytes);
    if (trial_left_ > 0) {
      if (trial_left_ <= kMeasuredSlices) trial_cost_ = std::min(trial_cost_, cost);
      if (--trial_left_ == 0) end_trial(now_ns);
      return;
    }
    if (streams_) {
      streamed_cost_ = blend(streamed_cost_, cost);
      if (now_ns - latest_trial_ns_ > kTrialEveryNs) begin_trial(false);
    } else {
      plain_cost_ = blend(plain_cost_, cost);
      if (plain_cost_ > plain_worth_ * streamed_cost_) {
        streams_ = true;
        latest_trial_ns_ = now_ns;
      }
    }
  }

 private:
  // The first slices of a trial are not measured: they find the ring as the other stores left it.
  static constexpr uint32_t kTrialSlices = 24;
  static constexpr uint32_t kMeasuredSlices = 8;
  static constexpr uint64_t kTrialEveryNs = 100'000'000;
  static constexpr double kUnknown = 1e30;

  // One slice that was interrupted must not decide.
  static double blend(double average, double cost) {
    return average + (std::min(cost, 2 * average) - average) / 8;
  }
  void begin_trial(bool streams) {
    streams_ = streams;
    trial_left_ = kTrialSlices;
    trial_cost_ = kUnknown;
  }
  void end_trial(uint64_t now_ns) {
    (streams_ ? streamed_cost_ : plain_cost_) = trial_cost_;
    if (streamed_cost_ == kUnknown) return begin_trial(true);
    streams_ = plain_cost_ > plain_worth_ * streamed_cost_;
    latest_trial_ns_ = now_ns;
  }

  double plain_worth_;
  bool streams_ = false;
  uint32_t trial_left_ = kTrialSlices;  // begins with a trial of each
  double trial_cost_ = kUnknown;        // ns per byte, the best
  double plain_cost_ = kUnknown;
  double streamed_cost_ = kUnknown;
  uint64_t latest_trial_ns_ = 0;
};

}  // namespace weir::engine
