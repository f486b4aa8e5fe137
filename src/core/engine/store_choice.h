// SPDX-License-Identifier: Apache-2.0
// StoreChoice: whether a rank writes its staging slots with plain or with non-temporal stores.
//
// A slot's lines were last read by a peer. Where the two cores share a cache, plain stores are good:
// the peer reads the data from that cache. Where they do not, each plain store waits for a round trip
// and non-temporal ones are several times as fast. A virtual machine's cores move between the two
// within seconds, so the choice is measured, plan by plan and while the plan runs: the stores that
// are not in use are tried now and then. Each rank chooses for itself. One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir::engine {

class StoreChoice {
 public:
  // For the next slice.
  bool streams() const { return streams_; }

  // The slice took `ns` for `bytes`; `now_ns` is when it ended.
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
      if (plain_cost_ > kPlainWorth * streamed_cost_) {
        streams_ = true;
        latest_trial_ns_ = now_ns;
      }
    }
  }

 private:
  // Data that plain stores leave in a shared cache are read so much faster that these may take so
  // many times as long (docs/performance.md).
  static constexpr double kPlainWorth = 4.5;
  // The first slices of a trial find the ring as the other stores left it: not measured.
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
    streams_ = plain_cost_ > kPlainWorth * streamed_cost_;
    latest_trial_ns_ = now_ns;
  }

  bool streams_ = false;
  uint32_t trial_left_ = kTrialSlices;  // begins with a trial of each
  double trial_cost_ = kUnknown;        // ns per byte, the best
  double plain_cost_ = kUnknown;
  double streamed_cost_ = kUnknown;
  uint64_t latest_trial_ns_ = 0;
};

}  // namespace weir::engine
