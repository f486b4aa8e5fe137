// SPDX-License-Identifier: Apache-2.0
// How an instance begins: may it be here, who are the peers, and the connections to them.
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <new>
#include <utility>

#include "net/tls.h"
#include "plugins/common/config.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/instance.h"

namespace weir::plugins::tcp {
namespace {

// Those that this process has open now; 0 when it cannot be told.
uint64_t count_descriptors() {
  uint64_t count = 0;
  if (DIR* directory = opendir("/proc/self/fd"); directory != nullptr) {
    while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.' ? 1u : 0u;
    closedir(directory);
    --count;  // that of the directory
  }
  return count;
}

// Before the first connection, so that the error says what to do. With several interfaces it is known
// only later how many are needed.
weir_result_t check_descriptors(const Instance& self, const PeerAddress& own,
                                const std::vector<PeerAddress>& peers) {
  uint64_t least = 2 * kLaneCount;  // to itself
  uint64_t most = least;
  for (const PeerAddress& peer : peers) {
    if (peer.rank == own.rank) continue;
    const ConnectionCount count = connections_between(own, peer);
    least += count.least;
    most += count.most;
  }
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return WEIR_OK;
  const uint64_t open = count_descriptors();
  if (open + most <= limit.rlim_cur) return WEIR_OK;
  const std::string needed =
      least == most ? text_of(most) : text_of(least) + " to " + text_of(most);
  const std::string text = "tcp: rank " + text_of(own.rank) + " of " + text_of(peers.size()) +
                           " needs " + needed + " open files for its connections, beside the " +
                           text_of(open) + " that its process has, which may have " +
                           text_of(limit.rlim_cur) + " in all; raise `ulimit -n`";
  if (open + least > limit.rlim_cur) return self.report.fail(WEIR_ERROR_SYSTEM, text);
  // Lazy ones hardly ever need all.
  self.report.log(own.is_lazy ? Report::kInformation : Report::kWarning, text);
  return WEIR_OK;
}

weir_result_t read_addresses(const Instance& self, const unsigned char* const* addresses,
                             const size_t* address_bytes, std::vector<PeerAddress>* peers) {
  peers->resize(self.identity.rank_count);
  for (uint32_t i = 0; i < self.identity.rank_count; ++i) {
    PeerAddress& peer = (*peers)[i];
    if (!decode(addresses[i], address_bytes[i], &peer) || peer.rank != i) {
      return self.report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              "tcp: the address given for rank " + text_of(i) +
                                  " is not that of a rank " + text_of(i) + " of this version");
    }
    const net::TlsMode own = self.identity.tls_mode;
    if (peer.tls_mode != own) {
      return self.report.fail(
          WEIR_ERROR_REFUSED,
          "tcp: rank " + text_of(i) + " runs with WEIR_TLS=" + net::name_of(peer.tls_mode) +
              ", rank " + text_of(self.identity.rank) + " with WEIR_TLS=" + net::name_of(own) +
              "; it must be the same on all ranks");
    }
  }
  return WEIR_OK;
}

// A rank's lanes to itself are socket pairs, so that they behave as all others.
weir_result_t join_self(Instance* self) {
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) {
      return self->report.fail(WEIR_ERROR_SYSTEM, "tcp: socketpair: " + reason_of(errno));
    }
    self->channels[self->identity.rank * kLaneCount + lane].attach(
        Stream(fds[0]), Stream(fds[1]), static_cast<uint8_t>(lane), ZeroCopy::Wish::kOff);
  }
  return WEIR_OK;
}

// A peer with several rails; those of one below our rank are ours to bring back.
void join_rails(Instance* self, Meeting* meeting, uint32_t peer) {
  const uint32_t count = meeting->rail_count(peer);
  self->bundles[peer] = std::make_unique<Bundle>(count);
  Bundle* bundle = self->bundles[peer].get();
  std::vector<Way> ways;
  for (uint32_t rail = 0; rail < count; ++rail) {
    const Stream control = meeting->take_connection(peer, kControlLane, rail);
    if (rail > 0 && meeting->is_lazy(peer)) {
      bundle->attach_control(rail, control);
    } else {
      bundle->attach(rail, meeting->take_connection(peer, kRailLane, rail), control, 0);
    }
    if (peer < self->identity.rank) ways.push_back(meeting->way(peer, rail));
  }
  if (self->rejoin == nullptr) {
    self->rejoin = std::make_unique<Rejoin>(self->report, self->joiner.get());
  }
  self->rejoin->add(peer, bundle, std::move(ways));
}

// A peer with one rail.
void join_lanes(Instance* self, Meeting* meeting, uint32_t peer) {
  self->controls[peer].attach(meeting->take_connection(peer, kControlLane));
  if (meeting->is_lazy(peer)) {
    if (self->lazy == nullptr) {
      self->lazy = std::make_unique<Lazy>(self->identity.rank, self->identity.rank_count,
                                          self->channels.data(), self->joiner.get());
    }
    const Way way = peer < self->identity.rank ? meeting->way(peer, 0) : Way();
    return self->lazy->add(peer, &self->controls[peer], self->zero_copy, way);
  }
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    const Stream stream = meeting->take_connection(peer, lane);
    self->channels[peer * kLaneCount + lane].attach(stream, stream, static_cast<uint8_t>(lane),
                                                    self->zero_copy);
  }
}

// What others have begun to make while this rank waited for the last ones.
void join_early(Instance* self, Meeting* meeting) {
  self->joiner->set_owners(self->rejoin.get(), self->lazy.get());
  for (Meeting::Early& one : meeting->take_early()) {
    if (self->bundles[one.peer] != nullptr) {
      self->rejoin->take(one.peer, one.rail, one.stream);
    } else if (self->channels[size_t{one.peer} * kLaneCount + one.lane].is_connected()) {
      one.stream.close();
    } else {
      self->lazy->take(one.peer, one.lane, one.stream);
    }
  }
}

void choose_io(Instance* self) {
  const bool few = uint64_t{self->identity.rank_count - 1} * kLaneCount <= kDirectMax;
  if (self->io_wish == IoWish::kPoll || (self->io_wish == IoWish::kAuto && few)) return;
  std::string reason;
  self->batch = Batch::make(&reason);
  if (self->batch != nullptr) return;
  self->report.log(self->io_wish == IoWish::kUring ? Report::kWarning : Report::kInformation,
                   "tcp: connections are asked one by one, not by io_uring: " + reason);
}

}  // namespace

weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
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
    IoWish io = IoWish::kAuto;
    if (parse_io(report.setting("WEIR_TCP_IO"), &io) && io != IoWish::kPoll &&
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

weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  const Report report = {host};
  try {
    const std::string problem = common::config_problem(*config, kRankCountMax);
    if (!problem.empty()) return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "tcp: " + problem);
    std::string reason;
    net::TlsMode tls = net::TlsMode::kOff;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kAll, &tls, &reason)) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "tcp: " + reason);
    }
    auto self = std::make_unique<Instance>();
    self->report = report;
    if (!ZeroCopy::parse(report.setting("WEIR_TCP_ZEROCOPY"), &self->zero_copy)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         "tcp: WEIR_TCP_ZEROCOPY is none of auto, on and off");
    }
    if (!parse_io(report.setting("WEIR_TCP_IO"), &self->io_wish)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         "tcp: WEIR_TCP_IO is none of auto, io_uring and poll");
    }
    self->identity.key = wire::handshake_key(config->secret, config->secret_bytes);
    self->identity.comm_id = config->comm_id;
    self->identity.rank = config->rank;
    self->identity.rank_count = config->rank_count;
    if (tls != net::TlsMode::kOff) {
      char id[17];
      (void)snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(config->comm_id));
      self->tls = net::TlsContext::make(config->secret, config->secret_bytes,
                                        std::string("tcp ") + id, &reason);
      if (self->tls == nullptr) return report.fail(WEIR_ERROR_SYSTEM, "tcp: " + reason);
      self->identity.tls_mode = tls;
      self->identity.tls = self->tls.get();
    }
    self->meeting = std::make_unique<Meeting>(report, self->identity);
    const weir_result_t result = self->meeting->listen();
    if (result != WEIR_OK) return result;
    *instance = reinterpret_cast<weir_transport_t*>(self.release());
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "tcp: no memory for an instance");
  }
}

weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  const Instance& self = *from(instance);
  if (self.meeting == nullptr) {
    return self.report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: address after connect");
  }
  *bytes = encode(self.meeting->own_address(), out);
  return WEIR_OK;
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns) {
  Instance* self = from(instance);
  if (self->meeting == nullptr) {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: connect was called twice");
  }
  try {
    const std::unique_ptr<Meeting> meeting = std::move(self->meeting);
    std::vector<PeerAddress> peers;
    weir_result_t result = read_addresses(*self, addresses, address_bytes, &peers);
    if (result != WEIR_OK) return result;
    result = check_descriptors(*self, meeting->own_address(), peers);
    if (result != WEIR_OK) return result;
    result = meeting->meet(peers, deadline_ns);
    if (result != WEIR_OK) return result;
    const uint32_t n = self->identity.rank_count;
    self->channels.resize(size_t{n} * kLaneCount);
    self->controls.resize(n);
    self->bundles.resize(n);
    self->ways.resize(n);
    self->active_bundles.reserve(n);
    self->entries.resize(self->channels.size() * 2);
    self->joiner = std::make_unique<Joiner>(self->identity, meeting->take_acceptor());
    for (uint32_t peer = 0; peer < n; ++peer) {
      if (peer == self->identity.rank) continue;
      self->ways[peer] = meeting->way_text(peer);
      if (meeting->rail_count(peer) > 1) {
        join_rails(self, meeting.get(), peer);
        continue;
      }
      join_lanes(self, meeting.get(), peer);
    }
    join_early(self, meeting.get());
    choose_io(self);
    result = join_self(self);
    self->joined = result == WEIR_OK;
    return result;
  } catch (const std::bad_alloc&) {
    return self->report.fail(WEIR_ERROR_NO_MEMORY, "tcp: no memory while joining the ranks");
  }
}

}  // namespace weir::plugins::tcp
