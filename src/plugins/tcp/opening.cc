// SPDX-License-Identifier: Apache-2.0
// How an instance begins: whether it is viable, the peers' addresses, and the connections that are
// made at the start.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "net/listening.h"
#include "net/missing_ranks.h"
#include "net/tls.h"
#include "plugins/common/config.h"
#include "plugins/common/look.h"
#include "plugins/message/control.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/instance.h"

namespace weir::plugins::tcp {
namespace {

// With more ranks, most pairs never use most of their lanes.
constexpr uint32_t kEagerRanksMax = 8;
// The pause between two checks of the connections; other ranks may be threads beside this one.
constexpr long kPauseNsMin = 50'000;
constexpr long kPauseNsMax = 20'000'000;
// Time from one rail to a peer for the next one.
constexpr uint64_t kGatherNs = 250'000'000;

weir_result_t time_out(const Instance& self, const std::vector<uint32_t>& ranks) {
  net::MissingRanks missing;
  for (const uint32_t rank : ranks) (void)missing.add(rank);
  return self.report.fail(WEIR_ERROR_TIMEOUT, "tcp: " + missing.text(self.rank, self.rank_count));
}

// The number that this process has open now; 0 if it is not known.
uint64_t count_descriptors() {
  uint64_t count = 0;
  if (DIR* directory = opendir("/proc/self/fd"); directory != nullptr) {
    while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.' ? 1u : 0u;
    closedir(directory);
    --count;  // that of the directory
  }
  return count;
}

// Checked before the first connection, so that the error says what to do; for ranks that connect at
// the start.
weir_result_t check_descriptors(const Instance& self, const std::vector<PeerAddress>& peers) {
  uint64_t needed = 0;
  for (const PeerAddress& peer : peers) {
    if (peer.rank == self.own.rank || is_lazy(self.own, peer)) continue;
    const bool is_lower = peer.rank < self.own.rank;
    const size_t pairs =
        is_lower ? rails_between(peer, self.own).size() : rails_between(self.own, peer).size();
    const uint32_t rails = rail_count_between(self.own, peer, pairs);
    needed += rails > 1 ? uint64_t{2} * rails : kLaneCount;
  }
  rlimit limit = {};
  if (needed == 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return WEIR_OK;
  }
  const uint64_t open = count_descriptors();
  if (open + needed <= limit.rlim_cur) return WEIR_OK;
  return self.report.fail(
      WEIR_ERROR_SYSTEM,
      "tcp: rank " + text_of(self.rank) + " of " + text_of(peers.size()) + " needs " +
          text_of(needed) + " file descriptors for its connections, beside the " + text_of(open) +
          " that its process has open; the limit of the process is " + text_of(limit.rlim_cur) +
          "; raise `ulimit -n`, or set WEIR_TCP_LAZY=1 on all ranks");
}

weir_result_t read_addresses(Instance* self, const unsigned char* const* addresses,
                             const size_t* address_bytes, std::vector<PeerAddress>* peers) {
  peers->resize(self->rank_count);
  self->all_here = self->own.host.known();
  for (uint32_t i = 0; i < self->rank_count; ++i) {
    PeerAddress& peer = (*peers)[i];
    if (!decode(addresses[i], address_bytes[i], &peer) || peer.rank != i) {
      return self->report.fail(
          WEIR_ERROR_INVALID_ARGUMENT,
          "tcp: the address of rank " + text_of(i) + " is not an address of rank " + text_of(i) +
              " of this version of the transport; do all ranks run the same version of Weir?");
    }
    self->addresses.emplace_back(reinterpret_cast<const char*>(addresses[i]), address_bytes[i]);
    self->all_here = self->all_here && peer.host == self->own.host;
  }
  for (const PeerAddress& peer : *peers) {
    if (peer.rank == self->rank ||
        !ways_to(self->own, self->interfaces, peer, self->all_here).empty()) {
      continue;
    }
    return self->report.fail(
        WEIR_ERROR_UNSUPPORTED,
        "tcp: rank " + text_of(peer.rank) + " is on another host than rank " + text_of(self->rank) +
            " and offers only its loopback interface; is its network up, and does WEIR_IFNAME "
            "allow it?");
  }
  return WEIR_OK;
}

// Peers connect from now on. If all share a host, they use one loopback address, if it is offered.
weir_result_t give_listeners(Instance* self) {
  const std::vector<Offer>& offers = self->own.offers;
  const bool only_loopback =
      self->all_here && std::any_of(offers.begin(), offers.end(),
                                    [](const Offer& offer) { return offer.is_loopback; });
  const std::vector<int> listeners = std::exchange(self->listeners, {});
  weir_result_t result = WEIR_OK;
  bool any = false;
  for (size_t i = 0; i < listeners.size(); ++i) {
    const bool is_needed = self->rank_count > 1 && result == WEIR_OK &&
                           (only_loopback ? offers[i].is_loopback && !any : true);
    any = any || is_needed;
    if (is_needed) {
      result = self->control->listen(self->control->context, listeners[i]);
    } else {
      close(listeners[i]);
    }
  }
  return result;
}

// Waits until all ranks have reached this point.
weir_result_t meet(Instance* self, uint64_t deadline_ns) {
  message::Control control;
  control.attach(self->report.host, self->rank, self->rank_count);
  std::vector<std::string> nothing;
  const auto outcome = control.gather("", deadline_ns, &nothing);
  if (outcome.result == WEIR_OK || outcome.ranks.empty()) return outcome.result;
  if (outcome.result != WEIR_ERROR_TIMEOUT) {
    return self->report.fail(outcome.result, "tcp: rank " + text_of(outcome.ranks[0]) +
                                                 " was lost while rank " + text_of(self->rank) +
                                                 " waited for it");
  }
  return time_out(*self, outcome.ranks);
}

bool is_connected(const Instance& self, uint32_t peer) {
  const Peer* it = self.peers[peer].get();
  if (it == nullptr) return false;
  if (it->bundle != nullptr) return it->bundle->up_count() == it->bundle->rail_count();
  return std::all_of(it->lanes.get(), it->lanes.get() + kLaneCount,
                     [](const Channel& lane) { return lane.is_connected(); });
}

// The connections to those that are not lazy. Rails that do not come soon after another one are
// waited for no longer.
weir_result_t connect_all(Instance* self, const std::vector<PeerAddress>& peers,
                          uint64_t deadline_ns) {
  std::vector<uint32_t> missing;
  for (const PeerAddress& peer : peers) {
    if (peer.rank != self->rank && !is_lazy(self->own, peer)) missing.push_back(peer.rank);
  }
  for (const uint32_t rank : missing) {
    Peer* peer = self->use(rank);
    if (peer == nullptr) return WEIR_ERROR_NO_MEMORY;
    for (uint32_t lane = 0; peer->bundle == nullptr && rank < self->rank && lane < kLaneCount;
         ++lane) {
      self->connect_lane(peer, lane);
    }
  }
  uint64_t looked_ns = 0;
  struct Rails {
    uint32_t count = 0;
    uint64_t since_ns = 0;
  };
  std::vector<Rails> rails(self->rank_count);
  long pause_ns = kPauseNsMin;
  while (!missing.empty()) {
    const uint64_t now_ns = monotonic_ns();
    self->step(now_ns);
    std::erase_if(missing, [&](uint32_t rank) {
      const Bundle* bundle = self->bundle_of(rank);
      if (bundle == nullptr || !bundle->has_begun()) return is_connected(*self, rank);
      if (bundle->up_count() != rails[rank].count) {
        rails[rank] = {bundle->up_count(), now_ns};
        pause_ns = kPauseNsMin;
      }
      return is_connected(*self, rank) || now_ns - rails[rank].since_ns > kGatherNs;
    });
    if (missing.empty()) break;
    for (const uint32_t rank : missing) {
      if (!self->peers[rank]->problem.empty()) {
        return self->report.fail(WEIR_ERROR_SYSTEM, "tcp: rank " + text_of(self->rank) +
                                                        " cannot connect to rank " + text_of(rank) +
                                                        ": " + self->peers[rank]->problem);
      }
    }
    if (now_ns >= deadline_ns) return time_out(*self, missing);
    if (now_ns - looked_ns > common::kLookNs) {
      looked_ns = now_ns;
      const weir_result_t heard = common::look(self->report.host);
      if (heard != WEIR_OK) return heard;
    }
    const timespec pause = {0, pause_ns};
    nanosleep(&pause, nullptr);
    pause_ns = std::min(pause_ns * 2, kPauseNsMax);
  }
  return WEIR_OK;
}

void choose_io(Instance* self) {
  const bool few = uint64_t{self->rank_count - 1} * kLaneCount <= kDirectMax;
  if (self->io_mode == IoMode::kPoll || (self->io_mode == IoMode::kAuto && few)) return;
  std::string reason;
  self->batch = Batch::make(&reason);
  if (self->batch != nullptr) return;
  self->report.log(self->io_mode == IoMode::kUring ? Report::kWarning : Report::kInformation,
                   "tcp: connections are polled one by one, not by io_uring: " + reason);
}

}  // namespace

weir_result_t viable(void*, const weir_host_t* host, char* reason, size_t reason_bytes) {
  const auto tell = [&](const std::string& text) {
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", text.c_str());
  };
  try {
    const Report report = {host};
    net::InterfaceFilter filter;
    std::vector<net::Interface> interfaces;
    std::string text, reason_of_io;
    net::TlsMode tls = net::TlsMode::kOff;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kAll, &tls, &text) ||
        !net::filter_from(report.setting("WEIR_IFNAME"), report.setting("NCCL_SOCKET_IFNAME"),
                          &filter, &text) ||
        !net::list_interfaces(filter, &interfaces, &text)) {
      tell(text);
      return WEIR_ERROR_UNSUPPORTED;
    }
    if (interfaces.empty()) {
      tell("no network interface that is allowed is up and has an address");
      return WEIR_ERROR_UNSUPPORTED;
    }
    for (const net::Interface& one : interfaces) {
      text += (text.empty() ? "offers " : ", ") + one.name + " " + net::to_string(one.address);
      if (one.speed_mbits != 0) text += " (" + text_of(one.speed_mbits) + " Mbit/s)";
      if (one.is_loopback) text += filter.asks_for(one.name) ? " (asked for)" : " (on one host)";
    }
    IoMode io = IoMode::kAuto;
    if (parse_io(report.setting("WEIR_TCP_IO"), &io) && io != IoMode::kPoll &&
        !Batch::allowed(&reason_of_io)) {
      text += "; no io_uring: " + reason_of_io;
    }
    tell(text);
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    tell("no memory");
    return WEIR_ERROR_UNSUPPORTED;
  }
}

namespace {

// Listens at the address of every interface that the settings allow.
weir_result_t listen(Instance* self, const weir_transport_config_t& config) {
  const Report& report = self->report;
  net::InterfaceFilter filter;
  std::string reason;
  if (!net::filter_from(report.setting("WEIR_IFNAME"), report.setting("NCCL_SOCKET_IFNAME"),
                        &filter, &reason)) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "tcp: " + reason);
  }
  std::vector<net::Interface> interfaces;
  if (!net::list_interfaces(filter, &interfaces, &reason)) {
    return report.fail(WEIR_ERROR_SYSTEM, "tcp: " + reason);
  }
  put_near_first(common::names_in(config.interface), &interfaces);
  PeerAddress& own = self->own;
  own.rank = self->rank;
  if (const char* text = report.setting("WEIR_TCP_CONNECTIONS"); text != nullptr && *text != 0) {
    if (text[0] < '1' || text[0] > '0' + static_cast<char>(kRailsMax) || text[1] != 0) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         std::string("tcp: WEIR_TCP_CONNECTIONS is '") + text +
                             "', not a number from 1 to " + text_of(kRailsMax));
    }
    own.connections = static_cast<uint32_t>(text[0] - '0');
  }
  const char* lazy = report.setting("WEIR_TCP_LAZY");
  const std::string mode = lazy != nullptr && *lazy != 0 ? lazy : "auto";
  if (mode != "auto" && mode != "0" && mode != "1") {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                       "tcp: WEIR_TCP_LAZY is '" + mode + "', not auto, 0 or 1");
  }
  own.is_lazy = mode == "1" || (mode == "auto" && self->rank_count > kEagerRanksMax);
  own.host = net::this_host();
  // All peers may come at once, each with a connection for every lane, or two for one rail.
  const uint64_t connection_count = uint64_t{kLaneCount} * self->rank_count;
  const std::vector<net::Listening> all =
      net::listen_at_all(interfaces, filter, kOffersMax, connection_count, &reason);
  if (all.empty()) return report.fail(WEIR_ERROR_UNSUPPORTED, "tcp: " + reason);
  const std::vector<uint32_t> numbers = numbers_of(interfaces);
  for (const net::Listening& listening : all) {
    const net::Interface& one = interfaces[listening.interface];
    self->listeners.push_back(listening.fd);
    self->interfaces.push_back(one);
    own.offers.push_back({one.address, listening.port, one.speed_mbits, one.prefix_bits,
                          numbers[listening.interface], one.is_loopback,
                          filter.asks_for(one.name)});
  }
  return WEIR_OK;
}

}  // namespace

weir_result_t open(void*, const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  const Report report = {host};
  try {
    const std::string problem = common::config_problem(*config, UINT32_MAX);
    if (!problem.empty()) return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "tcp: " + problem);
    std::string reason;
    net::TlsMode tls = net::TlsMode::kOff;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kAll, &tls, &reason)) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "tcp: " + reason);
    }
    auto self = std::make_unique<Instance>();
    self->report = report;
    self->control = common::control_of(host);
    if (!ZeroCopy::parse(report.setting("WEIR_TCP_ZEROCOPY"), &self->zero_copy)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         "tcp: WEIR_TCP_ZEROCOPY must be auto, on or off");
    }
    if (!parse_io(report.setting("WEIR_TCP_IO"), &self->io_mode)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         "tcp: WEIR_TCP_IO must be auto, io_uring or poll");
    }
    if (!parse_shares(report.setting("WEIR_TCP_SHARES"), &self->shares)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         "tcp: WEIR_TCP_SHARES must be 2 to 8 numbers from 1 to 1000, such as 2:1");
    }
    self->rank = config->rank;
    self->rank_count = config->rank_count;
    const weir_result_t result = listen(self.get(), *config);
    if (result != WEIR_OK) return result;
    *instance = reinterpret_cast<weir_transport_t*>(self.release());
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "tcp: no memory for an instance");
  }
}

weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  *bytes = encode(from(instance)->own, out);
  return WEIR_OK;
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns) {
  Instance* self = from(instance);
  if (!self->peers.empty()) {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: connect was called twice");
  }
  if (self->rank_count > 1 && self->control == nullptr) {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: the host offers no control network");
  }
  try {
    self->peers.resize(self->rank_count);
    std::vector<PeerAddress> peers;
    weir_result_t result = read_addresses(self, addresses, address_bytes, &peers);
    if (result == WEIR_OK) result = check_descriptors(*self, peers);
    if (result == WEIR_OK) result = give_listeners(self);
    if (result == WEIR_OK && self->rank_count > 1) result = meet(self, deadline_ns);
    if (result == WEIR_OK) result = connect_all(self, peers, deadline_ns);
    if (result != WEIR_OK) return result;
    self->active_bundles.reserve(self->rank_count);
    choose_io(self);
    self->joined = true;
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return self->report.fail(WEIR_ERROR_NO_MEMORY, "tcp: no memory while joining the ranks");
  }
}

}  // namespace weir::plugins::tcp
