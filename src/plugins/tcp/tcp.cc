// SPDX-License-Identifier: Apache-2.0
// The transport `tcp`: ranks on one or many hosts, over one TCP connection per peer and lane. See
// docs/transports.md.
//
// Progress is made by nonblocking calls on the connections that have something to do, without
// epoll: with few of them the call that moves the bytes is also the cheapest way to ask whether
// there are any. From kDirectMax connections up one poll asks for all.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "net/tls.h"
#include "plugins/tcp/address.h"
#include "plugins/tcp/channel.h"
#include "plugins/tcp/control.h"
#include "plugins/tcp/meeting.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint32_t kRankCountMax = 512;  // every rank holds kConnectionsPerPeer to each other
constexpr uint32_t kCredit = 8;  // of 1 KiB; the least socket buffer holds several times that
constexpr size_t kSecretBytesMin = 8;
constexpr size_t kSecretBytesMax = 4096;
constexpr size_t kDirectMax = 8;
constexpr uint64_t kGoodbyePatienceNs = 500'000'000;

struct Instance {
  Report report;
  Identity identity;
  pid_t owner = getpid();
  std::unique_ptr<Meeting> meeting;
  bool joined = false;
  std::vector<Channel> channels;               // [peer * kLaneCount + lane]
  std::vector<Control> controls;               // [peer]
  unsigned char notice[kNoticeBytesMax] = {};  // that this rank shows
  size_t notice_bytes = 0;
  uint32_t notice_version = 0;
  bool notice_waits = false;  // it could not leave for every peer yet
  Channel* active = nullptr;  // channels with queued operations
  size_t active_count = 0;
  std::vector<pollfd> entries;  // room for two per channel

  ~Instance() {
    // A forked child has copies of the connections, which are its parent's to end.
    const bool ends = owner == getpid();
    for (Control& control : controls) {
      if (control.fd() < 0) continue;
      if (ends) {
        control.say_goodbye(notice, notice_bytes, notice_version);
        shutdown(control.fd(), SHUT_WR);
      }
      ::close(control.fd());
    }
    for (Channel& channel : channels) {
      if (channel.send_fd() < 0) continue;
      // What the kernel has taken still arrives.
      if (ends) shutdown(channel.send_fd(), SHUT_WR);
      ::close(channel.send_fd());
      if (channel.recv_fd() != channel.send_fd()) ::close(channel.recv_fd());
    }
    explicit_bzero(identity.key.data(), identity.key.size());
  }
};

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

std::string text_of(uint64_t number) { return std::to_string(number); }

std::string reason_of(int error_number) {
  char buffer[128];
  return strerror_r(error_number, buffer, sizeof buffer);
}

weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
  const auto tell = [&](const std::string& text) {
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", text.c_str());
  };
  try {
    const Report report = {host};
    net::InterfaceFilter filter;
    std::vector<net::Interface> interfaces;
    std::string text;
    net::TlsMode tls = net::TlsMode::kOff;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kOff, &tls, &text) ||
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
    tell(text);
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    tell("no memory");
    return WEIR_ERROR_UNSUPPORTED;
  }
}

weir_result_t check_config(const Report& report, const weir_transport_config_t& config) {
  if (config.struct_bytes < sizeof config) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "tcp: the configuration has " +
                                                        text_of(config.struct_bytes) +
                                                        " bytes, not " + text_of(sizeof config));
  }
  if (config.rank_count == 0 || config.rank_count > kRankCountMax ||
      config.rank >= config.rank_count) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                       "tcp: rank " + text_of(config.rank) + " of " + text_of(config.rank_count) +
                           ": there may be 1 to " + text_of(kRankCountMax) +
                           " ranks, counted from 0");
  }
  if (config.secret == nullptr || config.secret_bytes < kSecretBytesMin ||
      config.secret_bytes > kSecretBytesMax) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "tcp: a secret of " +
                                                        text_of(config.secret_bytes) + " bytes; " +
                                                        text_of(kSecretBytesMin) + " to " +
                                                        text_of(kSecretBytesMax) + " are needed");
  }
  const uint64_t needed =
      uint64_t{config.rank_count - 1} * kConnectionsPerPeer + 2 * kLaneCount + 2 * kOffersMax;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
    return report.fail(WEIR_ERROR_SYSTEM, "tcp: " + text_of(config.rank_count) + " ranks need " +
                                              text_of(needed) +
                                              " open files in each, and this process may have " +
                                              text_of(limit.rlim_cur) + "; raise `ulimit -n`");
  }
  return WEIR_OK;
}

weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  const Report report = {host};
  try {
    const weir_result_t checked = check_config(report, *config);
    if (checked != WEIR_OK) return checked;
    std::string reason;
    net::TlsMode tls = net::TlsMode::kOff;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kOff, &tls, &reason)) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "tcp: " + reason);
    }
    auto self = std::make_unique<Instance>();
    self->report = report;
    self->identity.key = wire::handshake_key(config->secret, config->secret_bytes);
    self->identity.comm_id = config->comm_id;
    self->identity.rank = config->rank;
    self->identity.rank_count = config->rank_count;
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
    self->channels[self->identity.rank * kLaneCount + lane].attach(fds[0], fds[1],
                                                                   static_cast<uint8_t>(lane));
  }
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
    result = meeting->meet(peers, deadline_ns);
    if (result != WEIR_OK) return result;
    const uint32_t n = self->identity.rank_count;
    self->channels.resize(size_t{n} * kLaneCount);
    self->controls.resize(n);
    self->entries.resize(self->channels.size() * 2);
    for (uint32_t peer = 0; peer < n; ++peer) {
      if (peer == self->identity.rank) continue;
      for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
        const int fd = meeting->take_connection(peer, lane);
        self->channels[peer * kLaneCount + lane].attach(fd, fd, static_cast<uint8_t>(lane));
      }
      self->controls[peer].attach(meeting->take_connection(peer, kControlLane));
    }
    result = join_self(self);
    self->joined = result == WEIR_OK;
    return result;
  } catch (const std::bad_alloc&) {
    return self->report.fail(WEIR_ERROR_NO_MEMORY, "tcp: no memory while joining the ranks");
  }
}

void close(weir_transport_t* instance) { delete from(instance); }

// The channel to a peer, or null with the error told.
Channel* channel_of(Instance* self, uint32_t peer, uint32_t lane) {
  if (!self->joined || peer >= self->identity.rank_count || lane >= kLaneCount) [[unlikely]] {
    if (!self->joined) {
      self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: not connected");
    } else {
      self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "tcp: peer " + text_of(peer) + ", lane " + text_of(lane) + ": there are " +
                            text_of(self->identity.rank_count) + " ranks and " +
                            text_of(kLaneCount) + " lanes");
    }
    return nullptr;
  }
  return &self->channels[peer * kLaneCount + lane];
}

// Names the parties of a failed direction of a channel.
weir_result_t tell(Instance* self, Channel* channel, bool is_send) {
  Failure& failure = is_send ? channel->send_failure() : channel->recv_failure();
  failure.reported = true;
  const auto index = static_cast<size_t>(channel - self->channels.data());
  const std::string peer = text_of(index / kLaneCount);
  const std::string lane = text_of(index % kLaneCount);
  const std::string me = text_of(self->identity.rank);
  switch (failure.result) {
    case WEIR_ERROR_MISMATCH:
      return self->report.fail(failure.result, "tcp: rank " + peer + " sent a message of " +
                                                   text_of(failure.sent_bytes) +
                                                   " bytes where rank " + me + " expected " +
                                                   text_of(failure.expected_bytes) + " (lane " +
                                                   lane + ")");
    case WEIR_ERROR_PEER_LOST: {
      Control& control = self->controls[index / kLaneCount];
      control.receive();
      if (!control.left() && control.lane_ended_ns == 0) control.lane_ended_ns = monotonic_ns();
      const std::string how =
          control.left()
              ? "has closed the communicator"
              : "was lost: its connection " + (failure.error_number == 0
                                                   ? std::string("was closed")
                                                   : "failed, " + reason_of(failure.error_number));
      return self->report.fail(failure.result,
                               "tcp: rank " + peer + " " + how +
                                   (is_send ? ", while rank " + me + " sent to it"
                                            : ", while rank " + me + " waited for a message") +
                                   " (lane " + lane + ")");
    }
    default:
      return self->report.fail(
          failure.result, "tcp: what rank " + peer + " sent to rank " + me + " on lane " + lane +
                              " is no message of this protocol: it was damaged on its "
                              "way, or something else wrote into the connection");
  }
}

weir_result_t settle(Instance* self, Channel* channel, bool is_send, weir_result_t result) {
  if (result == WEIR_OK) return result;
  if (result != WEIR_IN_PROGRESS) return tell(self, channel, is_send);
  if (!channel->active) {
    channel->active = true;
    channel->next_active = self->active;
    self->active = channel;
    ++self->active_count;
  }
  return result;
}

weir_result_t usage_error(const Instance* self) {
  return self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
}

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  Channel* channel = channel_of(self, peer, lane);
  if (channel == nullptr) return usage_error(self);
  if (bytes > kMessageBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                             "tcp: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  return settle(self, channel, true, channel->post_send(data, bytes, reinterpret_cast<Op*>(op)));
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  Channel* channel = channel_of(self, peer, lane);
  if (channel == nullptr) return usage_error(self);
  if (bytes > kMessageBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                             "tcp: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  return settle(self, channel, false, channel->post_recv(data, bytes, reinterpret_cast<Op*>(op)));
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  Instance* self = from(instance);
  auto* entry = reinterpret_cast<Op*>(op);
  auto* channel = reinterpret_cast<Channel*>(entry->channel);
  if (entry->state == kOpPending) {
    if (entry->is_send != 0) {
      channel->drive_send();
    } else {
      channel->drive_recv();
    }
  }
  if (entry->state == kOpDone) return WEIR_OK;
  if (entry->state == kOpPending) return WEIR_IN_PROGRESS;
  if (entry->state > kOpFailed) return tell(self, channel, entry->is_send != 0);
  return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: test of an operation never posted");
}

// Asks for all active channels at once, and drives those that can move.
void drive_ready(Instance* self) {
  nfds_t count = 0;
  for (Channel* channel = self->active; channel != nullptr; channel = channel->next_active) {
    if (channel->sending()) self->entries[count++] = {channel->send_fd(), POLLOUT, 0};
    if (channel->receiving()) self->entries[count++] = {channel->recv_fd(), POLLIN, 0};
  }
  const int ready = poll(self->entries.data(), count, 0);
  if (ready <= 0) return;
  const pollfd* entry = self->entries.data();
  for (Channel* channel = self->active; channel != nullptr; channel = channel->next_active) {
    const bool receiving = channel->receiving();
    if (channel->sending() && (entry++)->revents != 0) channel->drive_send();
    if (receiving && (entry++)->revents != 0) channel->drive_recv();
  }
}

weir_result_t progress(weir_transport_t* instance) {
  Instance* self = from(instance);
  weir_result_t result = WEIR_OK;
  const bool directly = self->active_count <= kDirectMax;
  if (!directly) drive_ready(self);
  Channel** link = &self->active;
  while (*link != nullptr) {
    Channel* channel = *link;
    if (directly) {
      if (channel->sending()) channel->drive_send();
      if (channel->receiving()) channel->drive_recv();
    }
    for (const bool is_send : {true, false}) {
      const Failure& failure = is_send ? channel->send_failure() : channel->recv_failure();
      if (failure.result != WEIR_OK && !failure.reported) result = tell(self, channel, is_send);
    }
    if (channel->idle()) {
      channel->active = false;
      --self->active_count;
      *link = channel->next_active;
    } else {
      link = &channel->next_active;
    }
  }
  return result;
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->identity.rank_count) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "tcp: peer_alive of rank " + text_of(peer) + " of " + text_of(self->identity.rank_count));
  }
  Control& control = self->controls[peer];
  control.receive();
  // A goodbye leaves before any connection ends, but may take longer on its way.
  const bool without_goodbye = control.lane_ended_ns != 0 && !control.left() &&
                               monotonic_ns() - control.lane_ended_ns > kGoodbyePatienceNs;
  if (!control.lost() && !without_goodbye) return WEIR_OK;
  return self->report.fail(
      WEIR_ERROR_PEER_LOST,
      "tcp: rank " + text_of(peer) + " is dead: its connections ended without a goodbye");
}

void send_notice(Instance* self) {
  self->notice_waits = false;
  for (Control& control : self->controls) {
    const bool left = control.send(self->notice, self->notice_bytes, self->notice_version);
    self->notice_waits = self->notice_waits || !left;
  }
}

weir_result_t notice_show(weir_transport_t* instance, const void* notice, size_t bytes) {
  Instance* self = from(instance);
  if (!self->joined) return self->report.fail(WEIR_ERROR_INVALID_USAGE, "tcp: not connected");
  if (bytes > kNoticeBytesMax) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "tcp: a notice of " + text_of(bytes) + " bytes; there may be " + text_of(kNoticeBytesMax));
  }
  if (bytes != 0) memcpy(self->notice, notice, bytes);
  self->notice_bytes = bytes;
  ++self->notice_version;
  send_notice(self);
  return WEIR_OK;
}

weir_result_t notice_read(weir_transport_t* instance, uint32_t peer, void* notice, size_t* bytes) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->identity.rank_count) {
    return self->report.fail(
        self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "tcp: notice_read of rank " + text_of(peer) + " of " + text_of(self->identity.rank_count));
  }
  if (peer == self->identity.rank) {
    memcpy(notice, self->notice, self->notice_bytes);
    *bytes = self->notice_bytes;
    return WEIR_OK;
  }
  Control& control = self->controls[peer];
  control.receive();
  if (self->notice_waits) send_notice(self);
  memcpy(notice, control.notice(), control.notice_bytes());
  *bytes = control.notice_bytes();
  return control.arrived() ? WEIR_OK : WEIR_IN_PROGRESS;
}

constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "tcp",
    .summary = "ranks on one or many hosts, over a TCP connection per peer and lane",
    .caps = {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_NOTICE,
             .memory_kinds = WEIR_MEMORY_HOST,
             .lane_count = kLaneCount,
             .message_bytes_max = kMessageBytesMax,
             .rank_count_max = kRankCountMax,
             .credit = kCredit},
    .viable = viable,
    .open = open,
    .address = address,
    .connect = connect,
    .close = close,
    .send = send,
    .recv = recv,
    .test = test,
    .progress = progress,
    .segment = nullptr,
    .window_open = nullptr,
    .window_close = nullptr,
    .peer_alive = peer_alive,
    .notice_show = notice_show,
    .notice_read = notice_read,
    .quiesce = nullptr,
};
static_assert(kNoticeBytesMax == WEIR_TRANSPORT_NOTICE_BYTES_MAX);

}  // namespace

const weir_transport_functions_t* transport() { return &kFunctions; }

}  // namespace weir::plugins::tcp
