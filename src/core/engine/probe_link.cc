// SPDX-License-Identifier: Apache-2.0
#include "core/engine/probe_link.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/probe_messages.h"

namespace weir::engine {

namespace {

constexpr uint32_t kRounds = 5;
constexpr uint64_t kPhaseNs = 2'000'000;  // the most that a round of pings may take
constexpr uint32_t kPingsMax = 200;
constexpr uint32_t kBurstMax = 8;
constexpr double kRepeatedNsMax = 20e6;  // a bulk that takes longer is not repeated
constexpr timespec kNap{0, 20'000};
// No exchange begins that, by the earlier measurements, would end later than this after the start;
// an exchange that has begun is completed.
constexpr double kBudgetNs = 3e9;

// The first bulks only show whether a link can carry the others in time.
struct Bulk {
  uint64_t bytes;
  double predicted_ns_max;  // above it, this one and the larger ones are left out
  int regime;               // index of a figure; -1: none
};
constexpr std::array<Bulk, 6> kBulks = {{{1024, 1e18, -1},
                                         {8 * 1024, 1.5e9, -1},
                                         {64 * 1024, 1e9, -1},
                                         {256 * 1024, 400e6, 0},
                                         {1024 * 1024, 400e6, 1},
                                         {8 * 1024 * 1024, 40e6, 2}}};

constexpr std::array<uint64_t, 4> kBriefBulks = {8 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024};
constexpr double kBriefNsMax = 200e6;
// Where a small message takes longer, what so few bytes take tells nothing of the wire.
constexpr double kBriefMessageNsMax = 50e6;
// A larger bulk that takes so much longer per byte is measured again.
constexpr double kInterrupted = 1.3;
// That a table may hold.
constexpr double kMessageNsMax = 1e9;
constexpr double kWireNsPerByteMax = 1e6;

// The leader's next request to its peer.
enum class Phase : uint64_t { kPing = 1, kBurst = 2, kBulk = 3, kQuietBulk = 4, kStop = 5 };
struct Ask {
  Phase phase = Phase::kStop;
  uint64_t count = 0;  // pings or messages; bytes of a bulk
};
static_assert(sizeof(Ask) <= ProbeMessages::kSmallBytes);

double cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

// Times per byte for one size of bulk.
struct BulkTimes {
  double total = 1e18;  // from the first to the last
  double in = 1e18;     // of the sender's core
  double out = 1e18;    // of the receiver's core
  bool has_cores = false;
};

class LinkProbe {
 public:
  LinkProbe(Context& context, Rank peer, uint64_t deadline_ns, const ProbeWatch& watch)
      : context_(context),
        peer_(peer),
        patience_(context, peer, deadline_ns, watch),
        messages_(context, peer, patience_) {}

  Status lead(bool is_network, cost::LinkTimes* link, bool* complete) {
    const cost::LinkTimes built_in = *link;
    double message_ns = 0;
    WEIR_RETURN_IF_ERROR(small_messages(link, &message_ns));
    // The peer stood still meanwhile: that is no property of the link.
    if (message_ns > kMessageNsMax) {
      *link = built_in;
      *complete = false;
      log_info(fmt::format(
          "ranks {} and {} did not get to measure the link between them ({:.3g} s for a small "
          "message): built-in figures are used",
          context_.rank, peer_, message_ns * 1e-9));
      return ask({Phase::kStop, 0});
    }
    double per_byte = 0;  // of the latest bulk, without the round trip
    double wire = 0;      // of the largest: small ones may pass in a burst
    bool has_regime = false;
    for (const Bulk& bulk : kBulks) {
      const auto bytes = static_cast<double>(bulk.bytes);
      const double predicted_ns = 2 * message_ns + bytes * per_byte;
      const bool first = &bulk == kBulks.data();
      if (!first && (predicted_ns > bulk.predicted_ns_max || !fits(predicted_ns))) break;
      BulkTimes times;
      WEIR_RETURN_IF_ERROR(measure_bulk(bulk, predicted_ns, &times));
      per_byte = std::max(0.0, times.total - 2 * message_ns / bytes);
      wire = bulk.regime >= 0 ? times.total : per_byte;
      if (bulk.regime < 0 || !times.has_cores) continue;
      has_regime = true;
      // Within a host no wire is shared: time that the two cores' times do not explain is divided
      // between them.
      const double slower = std::max(times.in, times.out);
      const double scale =
          is_network || slower >= times.total ? 1 : times.total / std::max(slower, 1e-6);
      for (auto r = static_cast<size_t>(bulk.regime); r < cost::kRegimeCount; ++r) {
        link->slot_in_ns_per_byte[r] = std::min(times.in * scale, times.total);
        link->slot_out_ns_per_byte[r] = std::min(times.out * scale, times.total);
        link->window_ns_per_byte[r] = link->slot_out_ns_per_byte[r];
      }
    }
    link->wire_ns_per_byte = is_network ? std::min(wire, kWireNsPerByteMax) : 0;
    *complete = complete_ && has_regime;
    if (!*complete && !is_network) {
      // Within a host, slowness is not due to the link.
      *link = built_in;
      log_info(
          fmt::format("ranks {} and {} did not get enough of their cores to measure the link "
                      "within their host: built-in figures are used",
                      context_.rank, peer_));
    } else if (!has_regime) {
      log_info(
          fmt::format("the link between ranks {} and {} is slow ({:.3g} ms for a small message, "
                      "{:.3g} us per byte): built-in figures are used for large messages",
                      context_.rank, peer_, message_ns * 1e-6, wire * 1e-3));
    }
    return ask({Phase::kStop, 0});
  }

  // Larger ones while they are quick; the first may pass in a burst.
  Status lead_briefly(cost::LinkTimes* link) {
    double message_ns = 0;
    WEIR_RETURN_IF_ERROR(ping(1, &message_ns));
    WEIR_RETURN_IF_ERROR(ping(1, &message_ns));
    if (message_ns > kBriefMessageNsMax) {
      link->wire_ns_per_byte = 0;
      return ask({Phase::kStop, 0});
    }
    double per_byte = 0;
    const auto measure = [&](uint64_t bytes, double* result) {
      BulkTimes times;
      Status status = send_bulk(bytes, &times);
      *result = std::max(0.0, times.total - 2 * message_ns / static_cast<double>(bytes));
      return status;
    };
    double smaller = 0;  // of the size before
    uint64_t last = 0;
    for (const uint64_t bytes : kBriefBulks) {
      if (static_cast<double>(bytes) * per_byte > kBriefNsMax) break;
      smaller = per_byte;
      last = bytes;
      WEIR_RETURN_IF_ERROR(measure(bytes, &per_byte));
    }
    // A rank that was interrupted counts once only.
    if (per_byte > kInterrupted * smaller) {
      double again = 0;
      WEIR_RETURN_IF_ERROR(measure(last, &again));
      per_byte = std::min(per_byte, again);
    }
    link->wire_ns_per_byte = std::min(per_byte, kWireNsPerByteMax);
    return ask({Phase::kStop, 0});
  }

  Status serve() {
    for (;;) {
      Ask wanted;
      WEIR_RETURN_IF_ERROR(messages_.recv(&wanted, sizeof wanted));
      switch (wanted.phase) {
        case Phase::kPing:
          for (uint64_t i = 0; i < std::min<uint64_t>(wanted.count, kPingsMax); ++i) {
            uint64_t word = 0;
            WEIR_RETURN_IF_ERROR(messages_.recv(&word, sizeof word));
            WEIR_RETURN_IF_ERROR(messages_.send(&word, sizeof word));
          }
          break;
        case Phase::kBurst:
          WEIR_RETURN_IF_ERROR(take_burst(std::min<uint64_t>(wanted.count, kBurstMax)));
          break;
        case Phase::kBulk:
        case Phase::kQuietBulk: {
          if (wanted.count > kBulks.back().bytes) return refused();
          const double begin = cpu_ns();
          WEIR_RETURN_IF_ERROR(
              messages_.move(wanted.count, false, wanted.phase == Phase::kQuietBulk));
          const double spent = cpu_ns() - begin;
          WEIR_RETURN_IF_ERROR(messages_.send(&spent, sizeof spent));
          break;
        }
        case Phase::kStop:
          return Status();
        default:
          return refused();
      }
    }
  }

 private:
  Status refused() const {
    return Status(Code::kRefused,
                  fmt::format("the start-up probe: rank {} asks rank {} for an unknown "
                              "measurement; do both run the same version of Weir?",
                              peer_, context_.rank));
  }
  Status ask(const Ask& wanted) { return messages_.send(&wanted, sizeof wanted); }
  bool fits(double ns) {
    const bool it_does = static_cast<double>(now_ns() - began_ns_) + ns < kBudgetNs;
    complete_ = complete_ && it_does;
    return it_does;
  }

  // Runs as many rounds of pings and bursts as fit and takes the least of each.
  Status small_messages(cost::LinkTimes* link, double* message_ns) {
    // The first one may establish the connection.
    WEIR_RETURN_IF_ERROR(ping(1, message_ns));
    began_ns_ = now_ns();
    WEIR_RETURN_IF_ERROR(ping(1, message_ns));
    double send_ns = 1e18;
    double recv_ns = 1e18;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const auto count = static_cast<uint32_t>(
          std::clamp(static_cast<double>(kPhaseNs) / (2 * *message_ns + 1), 1.0, 1.0 * kPingsMax));
      // A third of the time, so that some is left for large messages.
      if (!fits(2 * *message_ns * (count + 1) + 2 * kBudgetNs / 3)) break;
      double round_ns = 0;
      WEIR_RETURN_IF_ERROR(ping(count, &round_ns));
      *message_ns = round == 0 ? round_ns : std::min(*message_ns, round_ns);
      double sent = 0;
      double received = 0;
      WEIR_RETURN_IF_ERROR(burst(&sent, &received));
      send_ns = std::min(send_ns, sent);
      recv_ns = std::min(recv_ns, received);
    }
    link->message_ns = link->signal_ns = *message_ns;
    if (send_ns < 1e18) link->send_ns = send_ns;
    if (recv_ns < 1e18) link->recv_ns = recv_ns;
    link->send_ns = std::min(link->send_ns, *message_ns / 2);
    link->recv_ns = std::min(link->recv_ns, *message_ns / 2);
    return Status();
  }

  // One-way time, on average.
  Status ping(uint32_t count, double* ns) {
    WEIR_RETURN_IF_ERROR(ask({Phase::kPing, count}));
    uint64_t word = 0;
    const uint64_t begin = now_ns();
    for (uint32_t i = 0; i < count; ++i) {
      WEIR_RETURN_IF_ERROR(messages_.send(&word, sizeof word));
      WEIR_RETURN_IF_ERROR(messages_.recv(&word, sizeof word));
    }
    *ns = static_cast<double>(now_ns() - begin) / count / 2;
    return Status();
  }

  // Small messages one after another, which the peer receives when all of them have arrived.
  Status burst(double* send_ns, double* recv_ns) {
    const uint32_t count = std::clamp(context_.transport->caps.credit, 1u, kBurstMax);
    WEIR_RETURN_IF_ERROR(ask({Phase::kBurst, count}));
    uint64_t word = 0;
    const uint64_t begin = now_ns();
    for (uint32_t i = 0; i < count; ++i) {
      WEIR_RETURN_IF_ERROR(messages_.send(&word, sizeof word));
    }
    *send_ns = static_cast<double>(now_ns() - begin) / count;
    return messages_.recv(recv_ns, sizeof *recv_ns);
  }
  Status take_burst(uint64_t count) {
    nanosleep(&kNap, nullptr);
    uint64_t word = 0;
    // The first may have to be waited for.
    WEIR_RETURN_IF_ERROR(messages_.recv(&word, sizeof word));
    const uint64_t begin = now_ns();
    for (uint64_t i = 1; i < count; ++i) {
      WEIR_RETURN_IF_ERROR(messages_.recv(&word, sizeof word));
    }
    const double spent =
        count > 1 ? static_cast<double>(now_ns() - begin) / static_cast<double>(count - 1) : 1e18;
    return messages_.send(&spent, sizeof spent);
  }

  Status measure_bulk(const Bulk& bulk, double predicted_ns, BulkTimes* times) {
    const bool is_figure = bulk.regime >= 0;
    const uint32_t rounds = !is_figure ? 1 : bulk.bytes == kBulks.back().bytes ? 2 : 4;
    double spent_ns = predicted_ns;
    for (uint32_t round = 0; round < rounds; ++round) {
      if (round > 0 && (spent_ns > kRepeatedNsMax || !fits(spent_ns))) break;
      WEIR_RETURN_IF_ERROR(send_bulk(bulk.bytes, times));
      spent_ns = times->total * static_cast<double>(bulk.bytes);
      if (is_figure && fits(spent_ns)) WEIR_RETURN_IF_ERROR(send_quiet_bulk(bulk.bytes, times));
    }
    return Status();
  }
  Status send_bulk(uint64_t bytes, BulkTimes* times) {
    WEIR_RETURN_IF_ERROR(ask({Phase::kBulk, bytes}));
    const uint64_t begin = now_ns();
    WEIR_RETURN_IF_ERROR(messages_.move(bytes, true, false));
    double peer_spent = 0;
    WEIR_RETURN_IF_ERROR(messages_.recv(&peer_spent, sizeof peer_spent));
    times->total =
        std::min(times->total, static_cast<double>(now_ns() - begin) / static_cast<double>(bytes));
    return Status();
  }
  // Both ends sleep while there is nothing to do, so that only work counts.
  Status send_quiet_bulk(uint64_t bytes, BulkTimes* times) {
    WEIR_RETURN_IF_ERROR(ask({Phase::kQuietBulk, bytes}));
    const double begin = cpu_ns();
    WEIR_RETURN_IF_ERROR(messages_.move(bytes, true, true));
    const double spent = cpu_ns() - begin;
    double peer_spent = 0;
    WEIR_RETURN_IF_ERROR(messages_.recv(&peer_spent, sizeof peer_spent));
    times->in = std::min(times->in, spent / static_cast<double>(bytes));
    times->out = std::min(times->out, peer_spent / static_cast<double>(bytes));
    times->has_cores = true;
    return Status();
  }

  Context& context_;
  const Rank peer_;
  uint64_t began_ns_ = 0;  // the peer has answered for the first time
  bool complete_ = true;
  ProbePatience patience_;
  ProbeMessages messages_;
};

}  // namespace

Status probe_link(Context& context, Rank peer, bool leads, const LinkProbeOptions& options,
                  uint64_t deadline_ns, const ProbeWatch& watch, cost::LinkTimes* link,
                  bool* complete) {
  LinkProbe probe(context, peer, deadline_ns, watch);
  if (!leads) return probe.serve();
  return options.brief ? probe.lead_briefly(link) : probe.lead(options.is_network, link, complete);
}

}  // namespace weir::engine
