// SPDX-License-Identifier: Apache-2.0
#include "core/cost/plausible.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace weir::cost {

namespace {

// Who waits for a signal in the probe keeps its core for a thousand pauses of up to 60 ns.
constexpr double kPausesNs = 100e3;

constexpr std::array kWithinHost = {Link::kShmSharedCache, Link::kShmSameSocket,
                                    Link::kShmCrossSocket};

double greatest(const ByRegime& figures) {
  return *std::max_element(figures.begin(), figures.end());
}

class Check {
 public:
  void time(const std::string& name, double value, double bound) {
    if (!reason_.empty() || value <= bound) return;
    reason_ =
        fmt::format("{} is {:.6g}, and at most {:.6g} on an idle machine", name, value, bound);
  }
  // `built_in`: of the slowest regime.
  void per_byte(const std::string& name, const ByRegime& value, double built_in) {
    time(name, greatest(value), kTimesBuiltInMax * built_in);
  }
  std::string take() { return std::move(reason_); }

 private:
  std::string reason_;
};

}  // namespace

std::string why_implausible(const Table& table, const Circumstances& circumstances) {
  const TaskTimes built_in = built_in_table().times;
  // The slowest kind of link that the figures can be of.
  const LinkTimes& slowest =
      built_in.link(circumstances.by_messages ? Link::kTcp : Link::kShmCrossSocket);
  const double message_ns =
      kTimesBuiltInMax * (std::max(slowest.message_ns, slowest.signal_ns) +
                          (circumstances.shared_cores ? built_in.switch_ns : 0));
  const double signal_ns = message_ns + (circumstances.shared_cores ? kPausesNs : 0);
  const double slot =
      std::max({greatest(slowest.slot_in_ns_per_byte), greatest(slowest.slot_out_ns_per_byte),
                greatest(slowest.window_ns_per_byte)});
  Check check;
  for (const Link kind : kWithinHost) {
    const LinkTimes& link = table.times.link(kind);
    const std::string prefix = std::string(name_of(kind)) + ".";
    check.time(prefix + "message_ns", link.message_ns, message_ns);
    check.time(prefix + "send_ns", link.send_ns, message_ns);
    check.time(prefix + "recv_ns", link.recv_ns, message_ns);
    check.time(prefix + "signal_ns", link.signal_ns, signal_ns);
    check.per_byte(prefix + "slot_in_ns_per_byte", link.slot_in_ns_per_byte, slot);
    check.per_byte(prefix + "slot_out_ns_per_byte", link.slot_out_ns_per_byte, slot);
    check.per_byte(prefix + "window_ns_per_byte", link.window_ns_per_byte, slot);
    check.time(prefix + "wire_ns_per_byte", link.wire_ns_per_byte,
               kTimesBuiltInMax * std::max(slowest.wire_ns_per_byte, slot));
  }
  check.per_byte("copy_ns_per_byte", table.times.copy_ns_per_byte,
                 greatest(built_in.copy_ns_per_byte));
  for (size_t i = 0; i < kReduceSources.size(); ++i) {
    check.per_byte(fmt::format("reduce{}_ns_per_byte", kReduceSources[i]),
                   table.times.reduce_ns_per_byte[i], greatest(built_in.reduce_ns_per_byte[i]));
  }
  return check.take();
}

}  // namespace weir::cost
