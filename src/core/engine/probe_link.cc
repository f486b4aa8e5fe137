// SPDX-License-Identifier: Apache-2.0
#include "core/engine/probe_link.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/engine/slicing.h"

namespace weir::engine {

namespace {

constexpr std::array<uint64_t, cost::kRegimeCount> kBulkBytes = {256 * 1024, 1024 * 1024,
                                                                 8 * 1024 * 1024};
constexpr uint32_t kRounds = 5;
constexpr uint64_t kPhaseNs = 2'000'000;  // that a round of pings may take
constexpr double kRepeatedNsMax = 20e6;   // a bulk that takes longer is not repeated
// How long a bulk may take for a larger one to follow.
constexpr std::array<double, cost::kRegimeCount> kFollowedNsMax = {100e6, 5e6, 0};
constexpr uint32_t kPingsMax = 200;
constexpr uint32_t kInFlight = 4;  // lanes, as a LaneRun uses them
constexpr uint32_t kAskLane = 0;
constexpr timespec kNap{0, 20'000};

// What the driver asks of its peer next.
enum class Phase : uint64_t { kPing = 1, kBurst = 2, kBulk = 3, kQuietBulk = 4, kEnd = 5 };
struct Ask {
  Phase phase = Phase::kEnd;
  uint64_t count = 0;  // pings or messages; bytes of a bulk
};

double cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

class LinkProbe {
 public:
  LinkProbe(Context& context, Rank peer, uint64_t deadline_ns)
      : context_(context), peer_(peer), deadline_ns_(deadline_ns) {}

  Status drive(bool is_network, cost::LinkTimes* link) {
    double message_ns = 0;
    WEIR_RETURN_IF_ERROR(ping(10, &message_ns));
    const auto count = static_cast<uint32_t>(
        std::clamp(static_cast<double>(kPhaseNs) / (2 * message_ns + 1), 4.0, 1.0 * kPingsMax));
    double send_ns = 1e18;
    double recv_ns = 1e18;
    for (uint32_t round = 0; round < kRounds; ++round) {
      double round_ns = 0;
      WEIR_RETURN_IF_ERROR(ping(count, &round_ns));
      message_ns = std::min(message_ns, round_ns);
      double sent = 0;
      double received = 0;
      WEIR_RETURN_IF_ERROR(burst(&sent, &received));
      send_ns = std::min(send_ns, sent);
      recv_ns = std::min(recv_ns, received);
    }
    link->message_ns = link->signal_ns = message_ns;
    link->send_ns = std::min(send_ns, message_ns / 2);
    link->recv_ns = std::min(recv_ns, message_ns / 2);

    double wire = 0;  // of the largest: small ones may pass in a burst
    bool goes_on = true;
    for (size_t r = 0; r < cost::kRegimeCount; ++r) {
      if (goes_on) {
        double total = 0;
        double in = 0;
        double out = 0;
        WEIR_RETURN_IF_ERROR(bulk(kBulkBytes[r], &total, &in, &out));
        goes_on = total * static_cast<double>(kBulkBytes[r]) < kFollowedNsMax[r];
        wire = total;
        // Within a host no wire is shared. What the two cores' time does not explain is shared
        // between them.
        const double slower = std::max(in, out);
        const double scale = is_network || slower >= total ? 1 : total / std::max(slower, 1e-6);
        link->slot_in_ns_per_byte[r] = std::min(in * scale, total);
        link->slot_out_ns_per_byte[r] = std::min(out * scale, total);
      } else {
        link->slot_in_ns_per_byte[r] = link->slot_in_ns_per_byte[r - 1];
        link->slot_out_ns_per_byte[r] = link->slot_out_ns_per_byte[r - 1];
      }
      link->window_ns_per_byte[r] = link->slot_out_ns_per_byte[r];
    }
    link->wire_ns_per_byte = is_network ? wire : 0;
    return ask({Phase::kEnd, 0});
  }

  Status serve() {
    for (;;) {
      Ask wanted;
      WEIR_RETURN_IF_ERROR(recv(kAskLane, &wanted, sizeof wanted));
      switch (wanted.phase) {
        case Phase::kPing:
          for (uint64_t i = 0; i < wanted.count; ++i) {
            uint64_t word = 0;
            WEIR_RETURN_IF_ERROR(recv(kAskLane, &word, sizeof word));
            WEIR_RETURN_IF_ERROR(send(kAskLane, &word, sizeof word));
          }
          break;
        case Phase::kBurst:
          WEIR_RETURN_IF_ERROR(take_burst(wanted.count));
          break;
        case Phase::kBulk:
        case Phase::kQuietBulk: {
          if (wanted.count > kBulkBytes.back()) return refused();
          const double begin = cpu_ns();
          WEIR_RETURN_IF_ERROR(move(wanted.count, false, wanted.phase == Phase::kQuietBulk));
          const double spent = cpu_ns() - begin;
          WEIR_RETURN_IF_ERROR(send(kAskLane, &spent, sizeof spent));
          break;
        }
        case Phase::kEnd:
          return Status();
        default:
          return refused();
      }
    }
  }

 private:
  Status refused() const {
    return Status(Code::kRefused, "the probe: the other rank asks for what is not known here");
  }

  Status wait(weir_result_t result, weir_transport_op_t& op, bool naps) const {
    for (uint32_t tries = 1; result == WEIR_IN_PROGRESS; ++tries) {
      context_.transport->progress(context_.instance);
      result = context_.transport->test(context_.instance, &op);
      if (result != WEIR_IN_PROGRESS) break;
      if (naps) {
        nanosleep(&kNap, nullptr);
      } else if (tries % 64 == 0) {
        sched_yield();
      }
      if (tries % 64 == 0 && now_ns() > deadline_ns_) {
        context_.quiesce();  // messages lie on the stack
        return Status(Code::kTimeout, "the probe: two ranks did not meet within the deadline");
      }
    }
    if (result == WEIR_OK) return Status();
    context_.quiesce();
    return Status(static_cast<Code>(result), "the probe: a message failed");
  }
  Status send(uint32_t lane, const void* data, uint64_t bytes) const {
    weir_transport_op_t op{};
    return wait(context_.transport->send(context_.instance, peer_, lane, data, bytes, &op), op,
                false);
  }
  Status recv(uint32_t lane, void* data, uint64_t bytes) const {
    weir_transport_op_t op{};
    return wait(context_.transport->recv(context_.instance, peer_, lane, data, bytes, &op), op,
                false);
  }
  Status ask(const Ask& wanted) const { return send(kAskLane, &wanted, sizeof wanted); }

  // One way, on average.
  Status ping(uint32_t count, double* ns) const {
    WEIR_RETURN_IF_ERROR(ask({Phase::kPing, count}));
    uint64_t word = 0;
    const uint64_t begin = now_ns();
    for (uint32_t i = 0; i < count; ++i) {
      WEIR_RETURN_IF_ERROR(send(kAskLane, &word, sizeof word));
      WEIR_RETURN_IF_ERROR(recv(kAskLane, &word, sizeof word));
    }
    *ns = static_cast<double>(now_ns() - begin) / count / 2;
    return Status();
  }

  // Small messages one after another, which the peer takes when all of them lie ready.
  Status burst(double* send_ns, double* recv_ns) {
    const uint32_t count = std::clamp(context_.transport->caps.credit, 1u, 8u);
    WEIR_RETURN_IF_ERROR(ask({Phase::kBurst, count}));
    uint64_t word = 0;
    const uint64_t begin = now_ns();
    for (uint32_t i = 0; i < count; ++i) {
      WEIR_RETURN_IF_ERROR(send(kAskLane, &word, sizeof word));
    }
    *send_ns = static_cast<double>(now_ns() - begin) / count;
    return recv(kAskLane, recv_ns, sizeof *recv_ns);
  }
  Status take_burst(uint64_t count) {
    nanosleep(&kNap, nullptr);
    uint64_t word = 0;
    // The first may have to be waited for.
    WEIR_RETURN_IF_ERROR(recv(kAskLane, &word, sizeof word));
    const uint64_t begin = now_ns();
    for (uint64_t i = 1; i < count; ++i) {
      WEIR_RETURN_IF_ERROR(recv(kAskLane, &word, sizeof word));
    }
    const double spent =
        count > 1 ? static_cast<double>(now_ns() - begin) / static_cast<double>(count - 1) : 1e18;
    return send(kAskLane, &spent, sizeof spent);
  }

  // `total`: per byte from the first to the last. `in`, `out`: time of the sender's and the
  // receiver's core per byte, found with both asleep while there is nothing to do.
  Status bulk(uint64_t bytes, double* total, double* in, double* out) {
    *total = *in = *out = 1e18;
    const uint32_t rounds = bytes == kBulkBytes.back() ? 2 : 4;
    for (uint32_t round = 0; round < rounds; ++round) {
      for (const bool naps : {false, true}) {
        WEIR_RETURN_IF_ERROR(ask({naps ? Phase::kQuietBulk : Phase::kBulk, bytes}));
        const uint64_t begin = now_ns();
        const double begin_cpu = cpu_ns();
        WEIR_RETURN_IF_ERROR(move(bytes, true, naps));
        const double spent = cpu_ns() - begin_cpu;
        double peer_spent = 0;
        WEIR_RETURN_IF_ERROR(recv(kAskLane, &peer_spent, sizeof peer_spent));
        const double per_byte = 1 / static_cast<double>(bytes);
        if (naps) {
          *in = std::min(*in, spent * per_byte);
          *out = std::min(*out, peer_spent * per_byte);
        } else {
          *total = std::min(*total, static_cast<double>(now_ns() - begin) * per_byte);
        }
      }
      if (*total * static_cast<double>(bytes) > kRepeatedNsMax) break;
    }
    return Status();
  }

  Status move(uint64_t bytes, bool sends, bool naps) {
    if (buffer_.size() < bytes) buffer_.assign(bytes, 1);
    const uint32_t lanes =
        std::max(1u, std::min(kInFlight, context_.transport->caps.lane_count - 1));
    const uint32_t first = context_.transport->caps.lane_count > 1 ? 1 : 0;
    std::array<weir_transport_op_t, kInFlight> ops{};
    std::array<weir_result_t, kInFlight> results{};
    uint32_t index = 0;
    for (uint64_t at = 0; at < bytes; at += kMessageSliceBytes, ++index) {
      const uint32_t slot = index % lanes;
      if (index >= lanes) WEIR_RETURN_IF_ERROR(wait(results[slot], ops[slot], naps));
      const uint64_t part = std::min<uint64_t>(kMessageSliceBytes, bytes - at);
      ops[slot] = {};
      results[slot] = sends ? context_.transport->send(context_.instance, peer_, first + slot,
                                                       buffer_.data() + at, part, &ops[slot])
                            : context_.transport->recv(context_.instance, peer_, first + slot,
                                                       buffer_.data() + at, part, &ops[slot]);
    }
    for (uint32_t slot = 0; slot < std::min(index, lanes); ++slot) {
      WEIR_RETURN_IF_ERROR(wait(results[slot], ops[slot], naps));
    }
    return Status();
  }

  Context& context_;
  Rank peer_;
  uint64_t deadline_ns_;
  std::vector<unsigned char> buffer_;
};

}  // namespace

Status probe_link(Context& context, Rank peer, bool drives, bool is_network, uint64_t deadline_ns,
                  cost::LinkTimes* link) {
  LinkProbe probe(context, peer, deadline_ns);
  return drives ? probe.drive(is_network, link) : probe.serve();
}

}  // namespace weir::engine
