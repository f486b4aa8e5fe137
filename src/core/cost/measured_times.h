// SPDX-License-Identifier: Apache-2.0
// MeasuredTimes: how long the calls of one decision took on this rank with one algorithm. A value.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace weir::cost {

struct MeasuredTimes {
  // Of the latest calls, for their median; odd.
  static constexpr size_t kLatest = 31;

  uint64_t count = 0;
  double first_ns = 0;
  double least_ns = 0;
  double sum_ns = 0;
  std::array<float, kLatest> latest_ns{};

  void add(double ns) {
    if (count == 0) first_ns = least_ns = ns;
    latest_ns[count % kLatest] = static_cast<float>(ns);
    ++count;
    sum_ns += ns;
    least_ns = std::min(least_ns, ns);
  }
  // 0: nothing was measured.
  double average_ns() const { return count == 0 ? 0 : sum_ns / static_cast<double>(count); }
  // The median of the latest calls. Unlike the average it does not follow the few calls during
  // which another program held the core.
  double middle_ns() const {
    if (count == 0) return 0;
    std::array<float, kLatest> sorted = latest_ns;
    const auto size = static_cast<std::ptrdiff_t>(std::min<uint64_t>(count, kLatest));
    const auto middle = sorted.begin() + size / 2;
    std::nth_element(sorted.begin(), middle, sorted.begin() + size);
    return static_cast<double>(*middle);
  }
};

}  // namespace weir::cost
