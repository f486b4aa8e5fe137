// SPDX-License-Identifier: Apache-2.0
#include "core/graph/fair_shares.h"

#include <algorithm>

namespace weir::graph {

std::vector<KilobytesPerSecond> fair_shares(
    const std::vector<std::vector<uint64_t>>& flows,
    const std::map<uint64_t, KilobytesPerSecond>& capacity) {
  std::vector<KilobytesPerSecond> shares(flows.size(), kBandwidthMax);
  std::vector<bool> settled(flows.size());
  struct State {
    KilobytesPerSecond left = 0;
    int64_t open = 0;
  };
  std::map<uint64_t, State> states;
  for (const auto& [link, bandwidth] : capacity) states[link].left = bandwidth;
  for (const auto& flow : flows) {
    for (const uint64_t link : flow) {
      if (const auto it = states.find(link); it != states.end()) ++it->second.open;
    }
  }
  for (;;) {
    // The link that gives the least to each of its flows settles them.
    auto tightest = states.end();
    for (auto it = states.begin(); it != states.end(); ++it) {
      if (it->second.open == 0) continue;
      if (tightest == states.end() ||
          it->second.left / it->second.open < tightest->second.left / tightest->second.open) {
        tightest = it;
      }
    }
    if (tightest == states.end()) return shares;
    const uint64_t link = tightest->first;
    const KilobytesPerSecond share = tightest->second.left / tightest->second.open;
    for (size_t i = 0; i < flows.size(); ++i) {
      if (settled[i] || std::find(flows[i].begin(), flows[i].end(), link) == flows[i].end()) {
        continue;
      }
      settled[i] = true;
      shares[i] = share;
      for (const uint64_t passed : flows[i]) {
        if (const auto it = states.find(passed); it != states.end()) {
          it->second.left -= share;
          --it->second.open;
        }
      }
    }
  }
}

}  // namespace weir::graph
