// SPDX-License-Identifier: Apache-2.0
// The transport `shm`: ranks on one machine, over a sealed memfd that all of them map. See
// docs/transports.md.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "plugins/shm/channel.h"
#include "plugins/shm/memory.h"
#include "plugins/shm/notices.h"
#include "plugins/shm/rendezvous.h"
#include "plugins/shm/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::shm {
namespace {

constexpr uint32_t kRankCountMax = 512;  // rank 0 holds a connection to each while they meet
constexpr uint32_t kTokenBytesMin = 8;
constexpr uint64_t kHugeChannelBytesMax = uint64_t{16} << 20;
constexpr uint64_t kCollapseBytesMax = uint64_t{64} << 20;  // per rank; more stays lazy

struct Address {
  uint64_t magic;
  unsigned char name[kNameBytes];  // of rank 0's socket; zero elsewhere
  char boot_id[36];                // of the running kernel: another machine has another one
  uint32_t rank;
};
static_assert(sizeof(Address) <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX);

struct Instance {
  Party party;
  uint64_t stride_bytes = 0;
  bool huge_pages = false;
  bool joined = false;
  bool quiet = false;  // quiesce was called
  Layout layout;
  Mapping memory;  // segments, then channels, then notices
  Notices notices;
  std::vector<Channel> channels;  // [direction][lane][peer]
  Channel* active = nullptr;      // channels with queued operations
  std::vector<int> pidfds;        // per rank; -1: none needed or none to be had
  std::vector<Member> members;
  std::vector<Mapping> windows;

  ~Instance() {
    for (int fd : pidfds) {
      if (fd >= 0) close(fd);
    }
    if (party.listener >= 0) close(party.listener);
    for (Mapping& window : windows) unmap_memory(&window);
    unmap_memory(&memory);
    explicit_bzero(party.token, sizeof party.token);
  }
};

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

void read_boot_id(char* id, size_t bytes) {
  memset(id, 0, bytes);
  const int fd = ::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  if (read(fd, id, bytes) < 0) memset(id, 0, bytes);
  ::close(fd);
}

// Bytes of a part of `stride` whose huge pages are asked for at once.
uint64_t collapsible(uint64_t stride) {
  return stride % kHugePageBytes == 0 && stride <= kCollapseBytesMax ? stride : 0;
}

weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
  // Try what connect will do, on one page and without telling the host of an error.
  weir_host_t silent = {};
  silent.struct_bytes = sizeof silent;
  struct Reason {
    char* text;
    size_t bytes;
  } target = {reason, reason_bytes};
  silent.context = &target;
  silent.error = [](void* context, const char* text) {
    auto* out = static_cast<Reason*>(context);
    snprintf(out->text, out->bytes, "%s", text);
  };
  (void)host;
  if (reason_bytes != 0) reason[0] = 0;
  Party party;
  party.report.host = &silent;
  party.rank_count = 1;
  if (start_listening(&party) != WEIR_OK) return WEIR_ERROR_UNSUPPORTED;
  ::close(party.listener);
  int fd = -1;
  Mapping mapping;
  const uint64_t bytes = round_to_pages(1);
  if (create_memory(party.report, bytes, false, &fd) != WEIR_OK) return WEIR_ERROR_UNSUPPORTED;
  const weir_result_t result = map_memory(party.report, fd, bytes, 0, &mapping);
  ::close(fd);
  unmap_memory(&mapping);
  return result == WEIR_OK ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
}

weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  const Report report = {host};
  if (config->struct_bytes < sizeof *config) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "shm: the configuration has %zu bytes, not %zu",
                       config->struct_bytes, sizeof *config);
  }
  if (config->rank_count == 0 || config->rank_count > kRankCountMax ||
      config->rank >= config->rank_count) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                       "shm: rank %u of %u: there may be 1 to %u ranks, counted from 0",
                       config->rank, config->rank_count, kRankCountMax);
  }
  if (config->secret == nullptr || config->secret_bytes < kTokenBytesMin ||
      config->secret_bytes > kTokenBytesMax) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                       "shm: a secret of %zu bytes; %u to %u are needed", config->secret_bytes,
                       kTokenBytesMin, kTokenBytesMax);
  }
  const uint64_t stride = round_to_pages(config->segment_bytes);
  const Layout layout(config->rank_count);
  if (stride == 0 || stride > (uint64_t{1} << 46) / config->rank_count) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                       "shm: %llu bytes of segment for each of %u ranks exceed the address space",
                       static_cast<unsigned long long>(config->segment_bytes), config->rank_count);
  }
  auto* self = new (std::nothrow) Instance;
  if (self == nullptr) return report.fail(WEIR_ERROR_NO_MEMORY, "shm: no memory for an instance");
  self->party.report = report;
  self->party.rank = config->rank;
  self->party.rank_count = config->rank_count;
  self->party.comm_id = config->comm_id;
  self->party.token_bytes = static_cast<uint32_t>(config->secret_bytes);
  self->huge_pages = config->huge_pages != 0;
  memcpy(self->party.token, config->secret, config->secret_bytes);
  self->stride_bytes = stride;
  self->layout = layout;
  if (config->rank == 0) {
    const weir_result_t result = start_listening(&self->party);
    if (result != WEIR_OK) {
      delete self;
      return result;
    }
  }
  *instance = reinterpret_cast<weir_transport_t*>(self);
  return WEIR_OK;
}

weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  const Instance& self = *from(instance);
  Address blob = {};
  blob.magic = kWireMagic;
  blob.rank = self.party.rank;
  memcpy(blob.name, self.party.name, kNameBytes);
  read_boot_id(blob.boot_id, sizeof blob.boot_id);
  memcpy(out, &blob, sizeof blob);
  *bytes = sizeof blob;
  return WEIR_OK;
}

// All ranks must be on this machine; rank 0's address tells the socket's name.
weir_result_t read_addresses(Instance* self, const unsigned char* const* addresses,
                             const size_t* address_bytes) {
  const Report& report = self->party.report;
  char boot_id[sizeof Address::boot_id];
  read_boot_id(boot_id, sizeof boot_id);
  for (uint32_t i = 0; i < self->party.rank_count; ++i) {
    Address blob;
    if (addresses[i] == nullptr || address_bytes[i] != sizeof blob) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                         "shm: the address of rank %u has %zu bytes, not %zu", i,
                         addresses[i] == nullptr ? size_t{0} : address_bytes[i], sizeof blob);
    }
    memcpy(&blob, addresses[i], sizeof blob);
    if (blob.magic != kWireMagic || blob.rank != i) {
      return report.fail(
          WEIR_ERROR_INVALID_ARGUMENT,
          "shm: the address given for rank %u is not that of a rank %u of this version", i, i);
    }
    if (boot_id[0] != 0 && blob.boot_id[0] != 0 &&
        memcmp(blob.boot_id, boot_id, sizeof boot_id) != 0) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "shm: rank %u is on another machine than rank %u",
                         i, self->party.rank);
    }
    if (i == 0) memcpy(self->party.name, blob.name, kNameBytes);
  }
  return WEIR_OK;
}

// A descriptor per other process tells of its death at once, and cannot mean a later process with
// the same number. Where the kernel refuses, peer_alive falls back to asking by number.
void watch_peers(Instance* self) {
  const Member me = this_process();
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  const uint32_t n = self->party.rank_count;
  self->pidfds.assign(n, -1);
  if (n > limit.rlim_cur / 2) return;
#ifdef SYS_pidfd_open
  for (uint32_t i = 0; i < n; ++i) {
    const Member& peer = self->members[i];
    if (peer.pid == me.pid || peer.pid <= 0) continue;
    if (peer.pid_namespace != me.pid_namespace || me.pid_namespace == 0) continue;
    self->pidfds[i] = static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(peer.pid), 0));
  }
#endif
}

weir_result_t join(Instance* self, uint64_t deadline_ns) {
  const uint32_t n = self->party.rank_count;
  const uint64_t segments = self->stride_bytes * n;
  Wanted wanted;
  const uint64_t channels = segments + self->layout.bytes();
  wanted.bytes = round_to_pages(channels + Notices::bytes(n));
  if (self->huge_pages) {
    if (self->stride_bytes >= kHugePageBytes) wanted.huge_bytes = segments;
    wanted.part_bytes = collapsible(self->stride_bytes);
    // Channels are used here and there: with many of them huge pages would be mostly waste.
    if (self->layout.bytes() <= kHugeChannelBytesMax) wanted.huge_bytes = wanted.bytes;
  }
  unsigned char key[kKeyBytes] = {};
  const weir_result_t result =
      share_memory(self->party, key, wanted, deadline_ns, &self->memory, &self->members);
  if (result != WEIR_OK) return result;
  self->channels.resize(size_t{2} * kLaneCount * n);
  self->notices = Notices(self->memory.base + channels);
  watch_peers(self);
  self->joined = true;
  return WEIR_OK;
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns) {
  Instance* self = from(instance);
  if (self->joined) {
    return self->party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: connect was called twice");
  }
  try {
    const weir_result_t result = read_addresses(self, addresses, address_bytes);
    return result != WEIR_OK ? result : join(self, deadline_ns);
  } catch (const std::bad_alloc&) {
    return self->party.report.fail(WEIR_ERROR_NO_MEMORY, "shm: no memory while joining the ranks");
  }
}

void close(weir_transport_t* instance) { delete from(instance); }

// The channel to or from a peer, or null with the error told.
Channel* channel_of(Instance* self, bool sending, uint32_t peer, uint32_t lane) {
  const uint32_t n = self->party.rank_count;
  if (!self->joined || self->quiet || peer >= n || lane >= kLaneCount) [[unlikely]] {
    if (!self->joined || self->quiet) {
      self->party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: %s",
                              self->quiet ? "the instance was quiesced" : "not connected");
    } else {
      self->party.report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                              "shm: peer %u, lane %u: there are %u ranks and %u lanes", peer, lane,
                              n, kLaneCount);
    }
    return nullptr;
  }
  Channel* channel = &self->channels[((sending ? 0 : kLaneCount) + lane) * size_t{n} + peer];
  if (!channel->attached()) [[unlikely]] {
    const uint32_t me = self->party.rank;
    channel->attach(self->memory.base + self->stride_bytes * n, self->layout, sending ? me : peer,
                    sending ? peer : me, lane);
  }
  return channel;
}

bool is_send(const Instance* self, const Channel* channel) {
  return channel < self->channels.data() + size_t{kLaneCount} * self->party.rank_count;
}

// Names the parties of a failed channel, once.
weir_result_t tell(const Instance* self, Channel* channel, weir_result_t result) {
  const uint32_t n = self->party.rank_count;
  const size_t index = static_cast<size_t>(channel - self->channels.data());
  const unsigned peer = static_cast<unsigned>(index % n);
  const unsigned lane = static_cast<unsigned>(index / n % kLaneCount);
  channel->reported = true;
  if (result == WEIR_ERROR_MISMATCH) {
    return self->party.report.fail(
        result, "shm: rank %u sent a message of %llu bytes where rank %u expected %llu (lane %u)",
        peer, static_cast<unsigned long long>(channel->sent_bytes()), self->party.rank,
        static_cast<unsigned long long>(channel->expected_bytes()), lane);
  }
  return self->party.report.fail(
      result,
      "shm: the FIFO between ranks %u and %u (lane %u) was damaged: something wrote over it",
      self->party.rank, peer, lane);
}

weir_result_t settle(Instance* self, Channel* channel, weir_result_t result) {
  if (result == WEIR_OK) return result;
  if (result != WEIR_IN_PROGRESS) return tell(self, channel, result);
  if (!channel->active) {
    channel->active = true;
    channel->next_active = self->active;
    self->active = channel;
  }
  return result;
}

weir_result_t usage_error(const Instance* self) {
  return self->joined && !self->quiet ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
}

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  Channel* channel = channel_of(self, true, peer, lane);
  if (channel == nullptr) return usage_error(self);
  auto* entry = reinterpret_cast<Op*>(op);
  entry->channel = reinterpret_cast<uint64_t>(channel);
  return settle(self, channel, channel->post_send(data, bytes, entry));
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  Channel* channel = channel_of(self, false, peer, lane);
  if (channel == nullptr) return usage_error(self);
  auto* entry = reinterpret_cast<Op*>(op);
  entry->channel = reinterpret_cast<uint64_t>(channel);
  return settle(self, channel, channel->post_recv(data, bytes, entry));
}

void drive(const Instance* self, Channel* channel) {
  if (is_send(self, channel)) {
    channel->drive_send();
  } else {
    channel->drive_recv();
  }
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  Instance* self = from(instance);
  if (self->quiet) [[unlikely]] {
    return self->party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: the instance was quiesced");
  }
  auto* entry = reinterpret_cast<Op*>(op);
  if (entry->state == kOpPending) drive(self, reinterpret_cast<Channel*>(entry->channel));
  if (entry->state == kOpDone) return WEIR_OK;
  if (entry->state == kOpPending) return WEIR_IN_PROGRESS;
  if (entry->state > kOpFailed) {
    return tell(self, reinterpret_cast<Channel*>(entry->channel),
                static_cast<weir_result_t>(entry->state - kOpFailed));
  }
  return self->party.report.fail(WEIR_ERROR_INVALID_USAGE,
                                 "shm: test of an operation never posted");
}

weir_result_t progress(weir_transport_t* instance) {
  Instance* self = from(instance);
  weir_result_t result = WEIR_OK;
  Channel** link = &self->active;
  while (*link != nullptr) {
    Channel* channel = *link;
    drive(self, channel);
    if (channel->failure() != WEIR_OK && !channel->reported) {
      result = tell(self, channel, channel->failure());
    }
    if (channel->idle()) {
      channel->active = false;
      *link = channel->next_active;
    } else {
      link = &channel->next_active;
    }
  }
  return result;
}

// Nothing moves outside of calls; this holds even for a caller that goes on to call.
void quiesce(weir_transport_t* instance) {
  Instance* self = from(instance);
  self->quiet = true;
  self->active = nullptr;
  for (Channel& channel : self->channels) channel.forget();
}

weir_result_t segment(weir_transport_t* instance, weir_segment_t* out) {
  const Instance* self = from(instance);
  if (!self->joined) return self->party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: not connected");
  *out = {self->memory.base, self->stride_bytes, self->stride_bytes};
  return WEIR_OK;
}

weir_result_t window_open(weir_transport_t* instance, const unsigned char* key,
                          uint64_t bytes_per_rank, uint64_t deadline_ns, weir_segment_t* window) {
  Instance* self = from(instance);
  const Report& report = self->party.report;
  if (!self->joined) return report.fail(WEIR_ERROR_INVALID_USAGE, "shm: not connected");
  const uint64_t stride = round_to_pages(bytes_per_rank);
  if (stride == 0 || stride > (uint64_t{1} << 46) / self->party.rank_count) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                       "shm: a window of %llu bytes for each of %u ranks exceeds the address space",
                       static_cast<unsigned long long>(bytes_per_rank), self->party.rank_count);
  }
  try {
    self->windows.reserve(self->windows.size() + 1);
    Mapping mapping;
    const uint64_t bytes = stride * self->party.rank_count;
    Wanted wanted = {bytes, 0, 0};
    if (self->huge_pages && stride >= kHugePageBytes) {
      wanted.huge_bytes = bytes;
      wanted.part_bytes = collapsible(stride);
    }
    const weir_result_t result =
        share_memory(self->party, key, wanted, deadline_ns, &mapping, nullptr);
    if (result != WEIR_OK) return result;
    self->windows.push_back(mapping);
    *window = {mapping.base, stride, stride};
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "shm: no memory while opening a window");
  }
}

void window_close(weir_transport_t* instance, const weir_segment_t* window) {
  Instance* self = from(instance);
  for (size_t i = 0; i < self->windows.size(); ++i) {
    if (self->windows[i].base != window->base) continue;
    unmap_memory(&self->windows[i]);
    self->windows.erase(self->windows.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
  self->party.report.warn("shm: window_close of a window that is not open");
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  const Instance* self = from(instance);
  if (!self->joined || peer >= self->party.rank_count) {
    return self->party.report.fail(WEIR_ERROR_INVALID_ARGUMENT, "shm: peer_alive of rank %u of %u",
                                   peer, self->party.rank_count);
  }
  const Member& member = self->members[peer];
  bool dead = false;
  if (self->pidfds[peer] >= 0) {
    pollfd entry = {self->pidfds[peer], POLLIN, 0};
    dead = poll(&entry, 1, 0) > 0 && entry.revents != 0;
  } else if (member.pid_namespace != 0 && member.pid > 0 &&
             member.pid_namespace == self->members[self->party.rank].pid_namespace) {
    dead = kill(static_cast<pid_t>(member.pid), 0) != 0 && errno == ESRCH;
  }
  if (!dead) return WEIR_OK;
  return self->party.report.fail(WEIR_ERROR_PEER_LOST, "shm: rank %u (process %lld) is dead", peer,
                                 static_cast<long long>(member.pid));
}

weir_result_t notice_show(weir_transport_t* instance, const void* notice, size_t bytes) {
  Instance* self = from(instance);
  const Report& report = self->party.report;
  if (!self->joined) return report.fail(WEIR_ERROR_INVALID_USAGE, "shm: not connected");
  if (bytes > WEIR_TRANSPORT_NOTICE_BYTES_MAX) {
    return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "shm: a notice of %zu bytes; there may be %u",
                       bytes, WEIR_TRANSPORT_NOTICE_BYTES_MAX);
  }
  self->notices.show(self->party.rank, notice, bytes);
  return WEIR_OK;
}

weir_result_t notice_read(weir_transport_t* instance, uint32_t peer, void* notice, size_t* bytes) {
  const Instance* self = from(instance);
  if (!self->joined || peer >= self->party.rank_count) {
    return self->party.report.fail(
        self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "shm: notice_read of rank %u of %u", peer, self->party.rank_count);
  }
  *bytes = self->notices.read(peer, notice);
  return WEIR_OK;
}

constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "shm",
    .summary = "ranks on one machine, over sealed memory that has no name",
    .caps = {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW |
                     WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_NOTICE | WEIR_CAP_QUIESCE |
                     WEIR_CAP_SEALED,
             .memory_kinds = WEIR_MEMORY_HOST,
             .lane_count = kLaneCount,
             .message_bytes_max = uint64_t{1} << 62,
             .rank_count_max = kRankCountMax,
             .credit = kSlotCount},
    .viable = viable,
    .open = open,
    .address = address,
    .connect = connect,
    .close = close,
    .send = send,
    .recv = recv,
    .test = test,
    .progress = progress,
    .segment = segment,
    .window_open = window_open,
    .window_close = window_close,
    .peer_alive = peer_alive,
    .notice_show = notice_show,
    .notice_read = notice_read,
    .quiesce = quiesce,
};

}  // namespace

const weir_transport_functions_t* transport() { return &kFunctions; }

}  // namespace weir::plugins::shm
