// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/striping.h"

#include <algorithm>

namespace weir::plugins::tcp {

void share_out(const Flow* flows, uint32_t flow_count, uint64_t bytes, uint64_t* shares) {
  bool takes_part[kRailsMax];
  std::fill_n(takes_part, flow_count, true);
  const auto share_at = [&](uint32_t i, double end_ns) {
    return flows[i].rate * end_ns - static_cast<double>(flows[i].ahead_bytes);
  };
  const auto end_alone = [&](uint32_t i) {
    return static_cast<double>(flows[i].ahead_bytes + bytes) / flows[i].rate;
  };
  double end_ns = 0;
  for (;;) {
    auto total_bytes = static_cast<double>(bytes);
    double total_rate = 0;
    uint32_t left = 0;
    for (uint32_t i = 0; i < flow_count; ++i) {
      if (!takes_part[i]) continue;
      total_bytes += static_cast<double>(flows[i].ahead_bytes);
      total_rate += flows[i].rate;
      ++left;
    }
    end_ns = total_bytes / total_rate;
    if (left == 1) break;
    // The flow with the smallest share relative to its least_bytes is left out, and all is shared
    // out again.
    uint32_t worst = flow_count;
    double worst_part = 1;
    for (uint32_t i = 0; i < flow_count; ++i) {
      if (!takes_part[i]) continue;
      const double least = static_cast<double>(std::max<uint64_t>(flows[i].least_bytes, 1));
      const double part = share_at(i, end_ns) / least;
      if (part >= worst_part) continue;
      worst = i;
      worst_part = part;
    }
    if (worst == flow_count) break;
    takes_part[worst] = false;
  }
  // A flow that was left out may be better alone than those that remain.
  uint32_t best = 0;
  for (uint32_t i = 1; i < flow_count; ++i) {
    if (end_alone(i) < end_alone(best)) best = i;
  }
  std::fill_n(shares, flow_count, 0);
  if (end_alone(best) <= end_ns) {
    shares[best] = bytes;
    return;
  }
  uint64_t rest = bytes;
  uint32_t last = best;
  for (uint32_t i = 0; i < flow_count; ++i) {
    if (!takes_part[i]) continue;
    const double share = std::max(share_at(i, end_ns), 0.0);
    shares[i] = std::min(rest, static_cast<uint64_t>(share));
    rest -= shares[i];
    last = i;
  }
  shares[last] += rest;
}

bool parse_shares(const char* text, Shares* shares) {
  *shares = Shares();
  if (text == nullptr || *text == 0) return true;
  for (const char* at = text;; ++at) {
    uint32_t part = 0;
    for (; *at >= '0' && *at <= '9' && part <= kShareMax; ++at) {
      part = part * 10 + static_cast<uint32_t>(*at - '0');
    }
    if (part == 0 || part > kShareMax || shares->count == kRailsMax) return false;
    shares->part[shares->count++] = part;
    if (*at == 0) return shares->count > 1;
    if (*at != ':') return false;
  }
}

}  // namespace weir::plugins::tcp
