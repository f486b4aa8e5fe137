// SPDX-License-Identifier: Apache-2.0
// The transport `shm`: ranks on one machine, over a sealed memfd that all of them map. See
// docs/transports.md.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "plugins/common/look.h"
#include "plugins/common/table.h"
#include "plugins/shm/channel.h"
#include "plugins/shm/memory.h"
#include "plugins/shm/segment_setup.h"
#include "weir/plugin.h"

namespace weir::plugins::shm {
namespace {

constexpr uint64_t kHugeChannelBytesMax = uint64_t{16} << 20;
constexpr uint64_t kCollapseBytesMax = uint64_t{64} << 20;  // per rank; more stays lazy

struct FreeIt {
  void operator()(Channel* channels) const { free(channels); }
};

struct Instance {
  static constexpr char kName[] = "shm";
  // Of more ranks the channels of each pair would take too much of the address space.
  static constexpr uint32_t kRankCountMax = 1024;
  using Op = shm::Op;

  common::Report report;
  Party party;
  uint64_t stride_bytes = 0;
  bool huge_pages = false;
  int32_t numa_node = -1;
  bool joined = false;
  bool quiet = false;  // quiesce was called
  uint64_t comm_id = 0;
  Layout layout;
  Mapping memory;                               // segments, then channels
  std::unique_ptr<Channel[], FreeIt> channels;  // [direction][lane][peer]
  Channel* active = nullptr;                    // channels with queued operations
  std::vector<Mapping> windows;

  Instance() = default;
  ~Instance() {
    for (Mapping& window : windows) unmap_memory(&window);
    unmap_memory(&memory);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  static bool viable(const weir_host_t* host, std::string* text);
  static weir_result_t open(const weir_host_t* host, const weir_transport_config_t& config,
                            std::unique_ptr<Instance>* made);
  weir_result_t address(unsigned char* out, size_t* bytes) const;
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);
  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes, Op* op);
  weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op);
  weir_result_t test(Op* op);
  weir_result_t progress();
  void quiesce();
  weir_result_t segment(weir_segment_t* out) const;
  weir_result_t window_open(const unsigned char* key, uint64_t bytes_per_rank, uint64_t deadline_ns,
                            weir_segment_t* window);
  void window_close(const weir_segment_t* window);
  weir_result_t peer_alive(uint32_t peer) const;

 private:
  weir_result_t check_peers(const size_t* address_bytes) const;
  Channel* channel_of(bool sending, uint32_t peer, uint32_t lane);
  bool is_send(const Channel* channel) const;
  weir_result_t tell(Channel* channel, weir_result_t result) const;
  weir_result_t settle(Channel* channel, weir_result_t result);
  weir_result_t usage_error() const;
  void drive(Channel* channel) const;
};

// Whether the huge pages of a part of `stride` bytes are requested at once.
bool collapses(uint64_t stride) {
  return stride % kHugePageBytes == 0 && stride <= kCollapseBytesMax;
}

// Tries on one page what connect will do.
bool Instance::viable(const weir_host_t*, std::string* text) {
  const Report report = {nullptr, text};
  int fd = -1;
  Mapping mapping;
  const uint64_t bytes = round_to_pages(1);
  if (create_memory(report, bytes, 0, false, &fd) != WEIR_OK) return false;
  const weir_result_t result = map_memory(report, fd, bytes, 0, &mapping);
  ::close(fd);
  unmap_memory(&mapping);
  return result == WEIR_OK;
}

weir_result_t Instance::open(const weir_host_t* host, const weir_transport_config_t& config,
                             std::unique_ptr<Instance>* made) {
  const uint64_t stride = round_to_pages(config.segment_bytes);
  if (stride == 0 || stride > (uint64_t{1} << 46) / config.rank_count) {
    return Report{host}.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "shm: %llu bytes of segment for each of %u ranks exceed the address space",
        static_cast<unsigned long long>(config.segment_bytes), config.rank_count);
  }
  auto self = std::make_unique<Instance>();
  self->report = {host, kName};
  self->party.report = Report{host};
  self->party.rank = config.rank;
  self->party.rank_count = config.rank_count;
  self->comm_id = config.comm_id;
  self->huge_pages = config.huge_pages != 0;
  self->numa_node = config.numa_node;
  self->stride_bytes = stride;
  self->layout = Layout(config.rank_count);
  *made = std::move(self);
  return WEIR_OK;
}

// Empty: the memory comes over the control network, which knows the ranks.
weir_result_t Instance::address(unsigned char*, size_t* bytes) const {
  *bytes = 0;
  return WEIR_OK;
}

// All ranks must be on this machine.
weir_result_t Instance::check_peers(const size_t* address_bytes) const {
  const weir_control_t* const control = common::control_of(report.host);
  for (uint32_t i = 0; i < party.rank_count; ++i) {
    if (address_bytes[i] != 0) {
      return party.report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                               "shm: the address of rank %u has %zu bytes, not 0", i,
                               address_bytes[i]);
    }
    if (control != nullptr && control->shares_host(control->context, i) == 0) {
      return party.report.fail(
          WEIR_ERROR_UNSUPPORTED,
          "shm: rank %u is on another machine than rank %u, or in another network "
          "namespace",
          i, party.rank);
    }
  }
  return WEIR_OK;
}

weir_result_t Instance::connect(const unsigned char* const*, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  if (joined) return report.fail(WEIR_ERROR_INVALID_USAGE, "connect was called twice");
  const weir_result_t checked = check_peers(address_bytes);
  if (checked != WEIR_OK) return checked;
  const uint32_t n = party.rank_count;
  const uint64_t segments = stride_bytes * n;
  Wanted wanted;
  wanted.bytes = round_to_pages(segments + layout.bytes());
  wanted.part_bytes = stride_bytes;
  wanted.numa_node = numa_node;
  if (huge_pages) {
    // The core asks for them when it uses the segment.
    if (stride_bytes >= kHugePageBytes) wanted.huge_bytes = segments;
    // Channels are used here and there: with many of them huge pages would be mostly waste.
    if (layout.bytes() <= kHugeChannelBytesMax) wanted.huge_bytes = wanted.bytes;
  }
  // Zeros are channels that are not attached; those that are never used take no memory.
  static_assert(std::is_trivially_copyable_v<Channel> && WEIR_OK == 0);
  channels.reset(static_cast<Channel*>(calloc(size_t{2} * kLaneCount * n, sizeof(Channel))));
  if (channels == nullptr) throw std::bad_alloc();
  unsigned char key[kKeyBytes] = {'w', 'e', 'i', 'r', '-', 's', 'h', 'm'};
  static_assert(sizeof comm_id == kKeyBytes / 2);
  memcpy(key + kKeyBytes / 2, &comm_id, sizeof comm_id);
  const weir_result_t result = share_memory(&party, key, wanted, deadline_ns, &memory);
  joined = result == WEIR_OK;
  return result;
}

// The channel to or from a peer, or null with the error reported.
Channel* Instance::channel_of(bool sending, uint32_t peer, uint32_t lane) {
  const uint32_t n = party.rank_count;
  if (!joined || quiet || peer >= n || lane >= kLaneCount) [[unlikely]] {
    if (!joined || quiet) {
      party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: %s",
                        quiet ? "the instance was quiesced" : "not connected");
    } else {
      party.report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "shm: peer %u, lane %u: there are %u ranks and %u lanes", peer, lane, n,
                        kLaneCount);
    }
    return nullptr;
  }
  Channel* channel = &channels[((sending ? 0 : kLaneCount) + lane) * size_t{n} + peer];
  if (!channel->attached()) [[unlikely]] {
    const uint32_t me = party.rank;
    channel->attach(memory.base + stride_bytes * n, layout, sending ? me : peer,
                    sending ? peer : me, lane);
  }
  return channel;
}

bool Instance::is_send(const Channel* channel) const {
  return channel < channels.get() + size_t{kLaneCount} * party.rank_count;
}

// Names the parties of a failed channel, once.
weir_result_t Instance::tell(Channel* channel, weir_result_t result) const {
  const uint32_t n = party.rank_count;
  const size_t index = static_cast<size_t>(channel - channels.get());
  const unsigned peer = static_cast<unsigned>(index % n);
  const unsigned lane = static_cast<unsigned>(index / n % kLaneCount);
  channel->reported = true;
  if (result == WEIR_ERROR_MISMATCH) {
    return party.report.fail(
        result, "shm: rank %u sent a message of %llu bytes where rank %u expected %llu (lane %u)",
        peer, static_cast<unsigned long long>(channel->sent_bytes()), party.rank,
        static_cast<unsigned long long>(channel->expected_bytes()), lane);
  }
  return party.report.fail(
      result,
      "shm: the FIFO between ranks %u and %u (lane %u) is damaged: other code wrote over it",
      party.rank, peer, lane);
}

weir_result_t Instance::settle(Channel* channel, weir_result_t result) {
  if (result == WEIR_OK) return result;
  if (result != WEIR_IN_PROGRESS) return tell(channel, result);
  if (!channel->active) {
    channel->active = true;
    channel->next_active = active;
    active = channel;
  }
  return result;
}

weir_result_t Instance::usage_error() const {
  return joined && !quiet ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE;
}

weir_result_t Instance::send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                             Op* op) {
  Channel* channel = channel_of(true, peer, lane);
  if (channel == nullptr) return usage_error();
  op->channel = reinterpret_cast<uint64_t>(channel);
  return settle(channel, channel->post_send(data, bytes, op));
}

weir_result_t Instance::recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op) {
  Channel* channel = channel_of(false, peer, lane);
  if (channel == nullptr) return usage_error();
  op->channel = reinterpret_cast<uint64_t>(channel);
  return settle(channel, channel->post_recv(data, bytes, op));
}

void Instance::drive(Channel* channel) const {
  if (is_send(channel)) {
    channel->drive_send();
  } else {
    channel->drive_recv();
  }
}

weir_result_t Instance::test(Op* op) {
  if (quiet) [[unlikely]] {
    return party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: the instance was quiesced");
  }
  if (op->state == kOpPending) drive(reinterpret_cast<Channel*>(op->channel));
  if (op->state == kOpDone) return WEIR_OK;
  if (op->state == kOpPending) return WEIR_IN_PROGRESS;
  if (op->state > kOpFailed) {
    return tell(reinterpret_cast<Channel*>(op->channel),
                static_cast<weir_result_t>(op->state - kOpFailed));
  }
  return party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: test of an operation never posted");
}

weir_result_t Instance::progress() {
  weir_result_t result = WEIR_OK;
  Channel** link = &active;
  while (*link != nullptr) {
    Channel* channel = *link;
    drive(channel);
    if (channel->failure() != WEIR_OK && !channel->reported) {
      result = tell(channel, channel->failure());
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

// Data move only within calls; from now on they do not move within later calls, either.
void Instance::quiesce() {
  quiet = true;
  active = nullptr;
  const size_t count = joined ? size_t{2} * kLaneCount * party.rank_count : 0;
  for (size_t i = 0; i < count; ++i) {
    if (channels[i].attached()) channels[i].forget();
  }
}

weir_result_t Instance::segment(weir_segment_t* out) const {
  if (!joined) return party.report.fail(WEIR_ERROR_INVALID_USAGE, "shm: not connected");
  *out = {memory.base, stride_bytes, stride_bytes, memory.numa_node};
  return WEIR_OK;
}

weir_result_t Instance::window_open(const unsigned char* key, uint64_t bytes_per_rank,
                                    uint64_t deadline_ns, weir_segment_t* window) {
  if (!joined) return report.fail(WEIR_ERROR_INVALID_USAGE, "not connected");
  const uint64_t stride = round_to_pages(bytes_per_rank);
  if (stride == 0 || stride > (uint64_t{1} << 46) / party.rank_count) {
    return party.report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "shm: a window of %llu bytes for each of %u ranks exceeds the address space",
        static_cast<unsigned long long>(bytes_per_rank), party.rank_count);
  }
  windows.reserve(windows.size() + 1);
  Mapping mapping;
  const uint64_t bytes = stride * party.rank_count;
  Wanted wanted = {bytes, 0, stride, false, numa_node};
  if (huge_pages && stride >= kHugePageBytes) {
    wanted.huge_bytes = bytes;
    wanted.collapses = collapses(stride);
  }
  const weir_result_t result = share_memory(&party, key, wanted, deadline_ns, &mapping);
  if (result != WEIR_OK) return result;
  windows.push_back(mapping);
  *window = {mapping.base, stride, stride, mapping.numa_node};
  return WEIR_OK;
}

void Instance::window_close(const weir_segment_t* window) {
  for (size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].base != window->base) continue;
    unmap_memory(&windows[i]);
    windows.erase(windows.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
  party.report.warn("shm: window_close of a window that is not open");
}

weir_result_t Instance::peer_alive(uint32_t peer) const {
  if (!joined || peer >= party.rank_count) {
    return party.report.fail(WEIR_ERROR_INVALID_ARGUMENT, "shm: peer_alive of rank %u of %u", peer,
                             party.rank_count);
  }
  const weir_control_t* const control = common::control_of(party.report.host);
  if (control == nullptr || control->life(control->context, peer) != WEIR_LIFE_LOST) return WEIR_OK;
  return party.report.fail(WEIR_ERROR_PEER_LOST, "shm: rank %u is dead", peer);
}

constexpr weir_transport_functions_t kFunctions = common::table_of<Instance>(
    "ranks on one machine, over sealed memory that has no name",
    {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW | WEIR_CAP_PEER_FAILURE |
             WEIR_CAP_SELF | WEIR_CAP_QUIESCE | WEIR_CAP_SEALED,
     .memory_kinds = WEIR_MEMORY_HOST,
     .lane_count = kLaneCount,
     .message_bytes_max = uint64_t{1} << 62,
     .rank_count_max = Instance::kRankCountMax,
     .credit = kSlotCount});

}  // namespace

const weir_transport_functions_t* transport() { return &kFunctions; }

}  // namespace weir::plugins::shm
