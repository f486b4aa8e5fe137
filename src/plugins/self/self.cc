// SPDX-License-Identifier: Apache-2.0
// The transport `self`: a communicator of one rank. A send is matched with its recv by a memory
// copy; up to kCredit short messages per lane are kept until the recv comes, so that a send need
// not wait.
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "net/copy.h"
#include "weir/plugin.h"

namespace weir::plugins::self {
namespace {

constexpr uint32_t kCredit = 8;
constexpr uint64_t kKeptBytesMax = 1024;

// Meaning of weir_transport_op_t::word in this transport.
struct Op {
  uint64_t state;  // 0: never posted; then kOpPending, kOpDone or kOpFailed + result
  uint64_t next;   // Op*
  uint64_t data;
  uint64_t bytes;
  uint64_t unused[4];
};
static_assert(sizeof(Op) == sizeof(weir_transport_op_t::word));
constexpr uint64_t kOpPending = 1;
constexpr uint64_t kOpDone = 2;
constexpr uint64_t kOpFailed = 16;

struct Queue {
  Op* head = nullptr;
  Op* tail = nullptr;

  void push(Op* op) {
    op->next = 0;
    op->state = kOpPending;
    if (tail != nullptr) {
      tail->next = reinterpret_cast<uint64_t>(op);
    } else {
      head = op;
    }
    tail = op;
  }
  Op* pop(uint64_t state) {
    Op* op = head;
    head = reinterpret_cast<Op*>(op->next);
    if (head == nullptr) tail = nullptr;
    op->state = state;
    return op;
  }
};

struct Kept {
  uint64_t bytes;
  unsigned char data[kKeptBytesMax];
};

struct Lane {
  Queue sends;  // not kept: longer, or more than the credit
  Queue recvs;
  uint64_t kept_in = 0;
  uint64_t kept_out = 0;
  weir_result_t failure = WEIR_OK;
  Kept kept[kCredit];
};

struct Instance {
  const weir_host_t* host = nullptr;
  uint64_t segment_bytes = 0;
  unsigned char* segment = nullptr;
  bool joined = false;
  struct Window {
    void* base;
    uint64_t bytes;
  };
  std::vector<Window> windows;
  Lane lanes[WEIR_TRANSPORT_LANES_MAX];

  ~Instance() {
    for (const Window& window : windows) munmap(window.base, window.bytes);
    if (segment != nullptr) munmap(segment, segment_bytes);
  }
};

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

[[gnu::format(printf, 3, 4)]] weir_result_t fail(const weir_host_t* host, weir_result_t code,
                                                 const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (host != nullptr && host->error != nullptr) host->error(host->context, text);
  return code;
}

uint64_t whole_pages(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0) return page;
  if (bytes > (uint64_t{1} << 62)) return 0;
  return (bytes + page - 1) / page * page;
}

unsigned char* map_zeros(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

weir_result_t viable(void*, const weir_host_t*, char* reason, size_t reason_bytes) {
  if (reason_bytes != 0) reason[0] = 0;
  return WEIR_OK;
}

weir_result_t open(void*, const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  if (config->struct_bytes < sizeof *config) {
    return fail(host, WEIR_ERROR_INVALID_ARGUMENT, "self: the configuration has %zu bytes, not %zu",
                config->struct_bytes, sizeof *config);
  }
  if (config->rank_count != 1 || config->rank != 0) {
    return fail(host, WEIR_ERROR_INVALID_ARGUMENT, "self: rank %u of %u: it serves one rank only",
                config->rank, config->rank_count);
  }
  auto* self = new (std::nothrow) Instance;
  if (self == nullptr) return fail(host, WEIR_ERROR_NO_MEMORY, "self: no memory for an instance");
  self->host = host;
  self->segment_bytes = whole_pages(config->segment_bytes);
  self->segment = self->segment_bytes == 0 ? nullptr : map_zeros(self->segment_bytes);
  if (self->segment == nullptr) {
    delete self;
    return fail(host, WEIR_ERROR_NO_MEMORY, "self: no memory for a segment of %llu bytes",
                static_cast<unsigned long long>(config->segment_bytes));
  }
  *instance = reinterpret_cast<weir_transport_t*>(self);
  return WEIR_OK;
}

weir_result_t address(weir_transport_t*, unsigned char* out, size_t* bytes) {
  memcpy(out, "self", 4);
  *bytes = 4;
  return WEIR_OK;
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t) {
  Instance* self = from(instance);
  if (self->joined)
    return fail(self->host, WEIR_ERROR_INVALID_USAGE, "self: connect was called twice");
  if (addresses[0] == nullptr || address_bytes[0] != 4 || memcmp(addresses[0], "self", 4) != 0) {
    return fail(self->host, WEIR_ERROR_INVALID_ARGUMENT,
                "self: the address of rank 0 is not one of self");
  }
  self->joined = true;
  return WEIR_OK;
}

void close(weir_transport_t* instance) { delete from(instance); }

weir_result_t check(const Instance* self, uint32_t peer, uint32_t lane) {
  if (!self->joined) return fail(self->host, WEIR_ERROR_INVALID_USAGE, "self: not connected");
  if (peer == 0 && lane < WEIR_TRANSPORT_LANES_MAX) return WEIR_OK;
  return fail(self->host, WEIR_ERROR_INVALID_ARGUMENT,
              "self: peer %u, lane %u: there are 1 rank and %u lanes", peer, lane,
              WEIR_TRANSPORT_LANES_MAX);
}

weir_result_t mismatch(const Instance* self, Lane* lane, uint64_t sent, uint64_t expected) {
  lane->failure = WEIR_ERROR_MISMATCH;
  while (lane->sends.head != nullptr) lane->sends.pop(kOpFailed + WEIR_ERROR_MISMATCH);
  while (lane->recvs.head != nullptr) lane->recvs.pop(kOpFailed + WEIR_ERROR_MISMATCH);
  return fail(self->host, WEIR_ERROR_MISMATCH,
              "self: a message of %llu bytes was sent where %llu were expected (lane %d)",
              static_cast<unsigned long long>(sent), static_cast<unsigned long long>(expected),
              static_cast<int>(lane - self->lanes));
}

void copy(void* target, const void* source, uint64_t bytes) {
  if (bytes != 0) net::copy(target, source, bytes);
}

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane_index, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  const weir_result_t checked = check(self, peer, lane_index);
  if (checked != WEIR_OK) return checked;
  Lane& lane = self->lanes[lane_index];
  if (lane.failure != WEIR_OK) return lane.failure;
  auto* entry = reinterpret_cast<Op*>(op);
  entry->state = kOpDone;
  if (lane.recvs.head != nullptr) {  // a waiting recv means that nothing is kept or queued
    Op* recv = lane.recvs.head;
    if (recv->bytes != bytes) return mismatch(self, &lane, bytes, recv->bytes);
    copy(reinterpret_cast<void*>(recv->data), data, bytes);
    lane.recvs.pop(kOpDone);
    return WEIR_OK;
  }
  if (lane.sends.head == nullptr && bytes <= kKeptBytesMax &&
      lane.kept_in - lane.kept_out < kCredit) {
    Kept& kept = lane.kept[lane.kept_in++ % kCredit];
    kept.bytes = bytes;
    copy(kept.data, data, bytes);
    return WEIR_OK;
  }
  entry->data = reinterpret_cast<uint64_t>(data);
  entry->bytes = bytes;
  lane.sends.push(entry);
  return WEIR_IN_PROGRESS;
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane_index, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  const weir_result_t checked = check(self, peer, lane_index);
  if (checked != WEIR_OK) return checked;
  Lane& lane = self->lanes[lane_index];
  if (lane.failure != WEIR_OK) return lane.failure;
  auto* entry = reinterpret_cast<Op*>(op);
  entry->state = kOpDone;
  if (lane.kept_in != lane.kept_out) {
    const Kept& kept = lane.kept[lane.kept_out % kCredit];
    if (kept.bytes != bytes) return mismatch(self, &lane, kept.bytes, bytes);
    copy(data, kept.data, bytes);
    ++lane.kept_out;
    return WEIR_OK;
  }
  if (lane.sends.head != nullptr) {
    Op* sent = lane.sends.head;
    if (sent->bytes != bytes) return mismatch(self, &lane, sent->bytes, bytes);
    copy(data, reinterpret_cast<const void*>(sent->data), bytes);
    lane.sends.pop(kOpDone);
    return WEIR_OK;
  }
  entry->data = reinterpret_cast<uint64_t>(data);
  entry->bytes = bytes;
  lane.recvs.push(entry);
  return WEIR_IN_PROGRESS;
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  const auto* entry = reinterpret_cast<const Op*>(op);
  if (entry->state == kOpDone) return WEIR_OK;
  if (entry->state == kOpPending) return WEIR_IN_PROGRESS;
  if (entry->state > kOpFailed) return static_cast<weir_result_t>(entry->state - kOpFailed);
  return fail(from(instance)->host, WEIR_ERROR_INVALID_USAGE,
              "self: test of an operation never posted");
}

weir_result_t progress(weir_transport_t*) { return WEIR_OK; }  // all moves when it is posted

weir_result_t segment(weir_transport_t* instance, weir_segment_t* out) {
  const Instance* self = from(instance);
  *out = {self->segment, self->segment_bytes, self->segment_bytes};
  return WEIR_OK;
}

weir_result_t window_open(weir_transport_t* instance, const unsigned char*, uint64_t bytes_per_rank,
                          uint64_t, weir_segment_t* window) {
  Instance* self = from(instance);
  const uint64_t bytes = whole_pages(bytes_per_rank);
  try {
    self->windows.reserve(self->windows.size() + 1);
  } catch (const std::bad_alloc&) {
    return fail(self->host, WEIR_ERROR_NO_MEMORY, "self: no memory for a window");
  }
  unsigned char* base = bytes == 0 ? nullptr : map_zeros(bytes);
  if (base == nullptr) {
    return fail(self->host, WEIR_ERROR_NO_MEMORY, "self: no memory for a window of %llu bytes",
                static_cast<unsigned long long>(bytes_per_rank));
  }
  self->windows.push_back({base, bytes});
  *window = {base, bytes, bytes};
  return WEIR_OK;
}

void window_close(weir_transport_t* instance, const weir_segment_t* window) {
  Instance* self = from(instance);
  for (size_t i = 0; i < self->windows.size(); ++i) {
    if (self->windows[i].base != window->base) continue;
    munmap(self->windows[i].base, self->windows[i].bytes);
    self->windows.erase(self->windows.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  return check(from(instance), peer, 0);
}

constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "self",
    .summary = "one rank alone, by memory copies",
    .caps = {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW |
                     WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF,
             .memory_kinds = WEIR_MEMORY_HOST,
             .lane_count = WEIR_TRANSPORT_LANES_MAX,
             .message_bytes_max = uint64_t{1} << 62,
             .rank_count_max = 1,
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
    .segment = segment,
    .window_open = window_open,
    .window_close = window_close,
    .peer_alive = peer_alive,
};

}  // namespace

const weir_transport_functions_t* transport() { return &kFunctions; }

}  // namespace weir::plugins::self
