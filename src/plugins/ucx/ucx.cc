// SPDX-License-Identifier: Apache-2.0
// The transport `ucx`: ranks on one or many hosts, over whatever UCX finds between them. See
// docs/transports.md.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <memory>
#include <new>
#include <string>

#include "plugins/common/config.h"
#include "plugins/ucx/instance.h"
#include "weir/plugin.h"

namespace weir::plugins::ucx {
namespace {

constexpr uint32_t kRankCountMax = 1024;  // every rank holds a control connection to each other
constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;
constexpr uint32_t kCredit = 8;               // network.h makes room for it
constexpr uint64_t kDescriptorsBesides = 64;  // of UCX itself, at least

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

std::string text_of(uint64_t number) { return std::to_string(number); }

bool read_filter(const Report& report, net::InterfaceFilter* filter, std::string* reason) {
  return net::filter_from(report.setting("WEIR_IFNAME"), report.setting("NCCL_SOCKET_IFNAME"),
                          filter, reason);
}

weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
  const auto tell = [&](const std::string& text) {
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", text.c_str());
  };
  try {
    net::InterfaceFilter filter;
    std::string text;
    net::TlsMode tls = net::TlsMode::kOff;
    if (!read_filter({host}, &filter, &text) ||
        !net::tls_mode_of(Report{host}.setting("WEIR_TLS"), net::TlsMode::kControl, &tls, &text)) {
      tell(text);
      return WEIR_ERROR_UNSUPPORTED;
    }
    Network network;
    text = network.open(1);
    if (!text.empty()) {
      tell("UCX " + library_version() + " does not work here: " + text);
      return WEIR_ERROR_UNSUPPORTED;
    }
    tell("UCX " + library_version() +
         (tls == net::TlsMode::kOff ? "" : "; control connections inside TLS 1.3"));
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    tell("no memory");
    return WEIR_ERROR_UNSUPPORTED;
  }
}

weir_result_t check_config(const Report& report, const weir_transport_config_t& config) {
  const std::string problem = common::config_problem(config, kRankCountMax);
  if (!problem.empty()) return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ucx: " + problem);
  const uint64_t needed = config.rank_count - 1 + kDescriptorsBesides;
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < needed) {
    return report.fail(WEIR_ERROR_SYSTEM, "ucx: " + text_of(config.rank_count) + " ranks need " +
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
    auto self = std::make_unique<Instance>();
    self->report = report;
    self->rank = config->rank;
    self->rank_count = config->rank_count;
    std::string reason;
    net::InterfaceFilter filter;
    if (!read_filter(report, &filter, &reason)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ucx: " + reason);
    }
    net::MeshConfig mesh;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kControl, &mesh.tls, &reason)) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "ucx: " + reason);
    }
    reason = self->network.open(config->rank_count);
    if (!reason.empty()) return report.fail(WEIR_ERROR_UNSUPPORTED, "ucx: " + reason);
    mesh.stop = [it = self.get()] { return it->hears_bad_news(); };
    mesh.purpose = "ucx";
    mesh.comm_id = config->comm_id;
    mesh.rank = config->rank;
    mesh.rank_count = config->rank_count;
    mesh.secret = config->secret;
    mesh.secret_bytes = config->secret_bytes;
    self->key_proof =
        remote::proof_key(config->secret, config->secret_bytes, "ucx", config->comm_id);
    self->mesh = std::make_unique<net::ControlMesh>(mesh);
    const auto outcome = self->mesh->listen(filter);
    if (outcome != net::ControlMesh::Outcome::kOk) {
      const bool none = outcome == net::ControlMesh::Outcome::kUnsupported;
      return report.fail(none ? WEIR_ERROR_UNSUPPORTED : WEIR_ERROR_SYSTEM,
                         "ucx: its control connections: " + self->mesh->text());
    }
    *instance = reinterpret_cast<weir_transport_t*>(self.release());
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "ucx: no memory for an instance");
  }
}

weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  const Instance& self = *from(instance);
  if (self.joined) {
    return self.report.fail(WEIR_ERROR_INVALID_USAGE, "ucx: address after connect");
  }
  static_assert(net::mesh::kAddressBytesMax <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX);
  *bytes = self.mesh->address(out);
  return WEIR_OK;
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns) {
  Instance* self = from(instance);
  if (self->joined || !self->peers.empty()) {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE, "ucx: connect was called twice");
  }
  try {
    return self->connect(addresses, address_bytes, deadline_ns);
  } catch (const std::bad_alloc&) {
    return self->report.fail(WEIR_ERROR_NO_MEMORY, "ucx: no memory while joining the ranks");
  }
}

void close(weir_transport_t* instance) { delete from(instance); }

// False with the error told.
bool may_post(Instance* self, uint32_t peer, uint32_t lane, uint64_t bytes, weir_result_t* result) {
  if (!self->joined) [[unlikely]] {
    *result = self->report.fail(WEIR_ERROR_INVALID_USAGE, "ucx: not connected");
    return false;
  }
  if (peer >= self->rank_count || lane >= kLaneCount) [[unlikely]] {
    *result = self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                                "ucx: peer " + text_of(peer) + ", lane " + text_of(lane) +
                                    ": there are " + text_of(self->rank_count) + " ranks and " +
                                    text_of(kLaneCount) + " lanes");
    return false;
  }
  if (bytes > kMessageBytesMax) [[unlikely]] {
    *result = self->report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ucx: a message of " + text_of(bytes) +
                                                                 " bytes is above the limit");
    return false;
  }
  return true;
}

// The end of an operation whose flow has failed. Why UCX gave a peer up is only known when its goodbye
// or its death has been heard, which takes a moment; until then the operation is under way.
weir_result_t fail_operation(Instance* self, Flow* flow, Op* op) {
  if (flow->failure().result == WEIR_ERROR_PEER_LOST && self->is_unexplained(flow)) {
    self->move();
    if (self->is_unexplained(flow)) {
      op->state = kOpFailed + WEIR_ERROR_PEER_LOST;
      op->flow = reinterpret_cast<uint64_t>(flow);
      return WEIR_IN_PROGRESS;
    }
  }
  return self->tell(flow);
}

weir_result_t post_send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                        uint64_t bytes, ucs_memory_type_t memory, weir_transport_op_t* op) {
  Instance* self = from(instance);
  weir_result_t result = WEIR_OK;
  if (!may_post(self, peer, lane, bytes, &result)) [[unlikely]]
    return result;
  const Listening listening(&self->network.heard());
  Flow* flow = &self->sends[peer * kLaneCount + lane];
  result = flow->send(data, bytes, reinterpret_cast<Op*>(op), memory);
  if (result == WEIR_OK || result == WEIR_IN_PROGRESS) [[likely]]
    return result;
  return fail_operation(self, flow, reinterpret_cast<Op*>(op));
}

weir_result_t post_recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                        uint64_t bytes, ucs_memory_type_t memory, weir_transport_op_t* op) {
  Instance* self = from(instance);
  weir_result_t result = WEIR_OK;
  if (!may_post(self, peer, lane, bytes, &result)) [[unlikely]]
    return result;
  const Listening listening(&self->network.heard());
  Flow* flow = &self->recvs[peer * kLaneCount + lane];
  result = flow->recv(data, bytes, reinterpret_cast<Op*>(op), memory);
  if (result == WEIR_OK || result == WEIR_IN_PROGRESS) [[likely]]
    return result;
  return fail_operation(self, flow, reinterpret_cast<Op*>(op));
}

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  return post_send(instance, peer, lane, data, bytes, UCS_MEMORY_TYPE_UNKNOWN, op);
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  return post_recv(instance, peer, lane, data, bytes, UCS_MEMORY_TYPE_UNKNOWN, op);
}

// Why UCX moves no memory of devices here; "": it does.
std::string device_gap(const Instance& self) {
  if (self.network.takes_cuda()) return "";
  const char* transports = getenv("UCX_TLS");
  const bool all = transports == nullptr || strcmp(transports, "all") == 0;
  return "UCX " + library_version() +
         " has no CUDA memory here: it was built without CUDA, or finds no device" +
         (all ? "" : ", or UCX_TLS=" + std::string(transports) + " leaves it out");
}

weir_result_t device_viable(weir_transport_t* instance, uint32_t, int, char* reason,
                            size_t reason_bytes) {
  const std::string gap = device_gap(*from(instance));
  if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", gap.c_str());
  return gap.empty() ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
}

// UCX finds the device by the address.
weir_result_t device_send(weir_transport_t* instance, uint32_t peer, uint32_t lane,
                          const void* data, uint64_t bytes, int, weir_transport_op_t* op) {
  const std::string gap = device_gap(*from(instance));
  if (!gap.empty()) return from(instance)->report.fail(WEIR_ERROR_UNSUPPORTED, "ucx: " + gap);
  return post_send(instance, peer, lane, data, bytes, UCS_MEMORY_TYPE_CUDA, op);
}

weir_result_t device_recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                          uint64_t bytes, int, weir_transport_op_t* op) {
  const std::string gap = device_gap(*from(instance));
  if (!gap.empty()) return from(instance)->report.fail(WEIR_ERROR_UNSUPPORTED, "ucx: " + gap);
  return post_recv(instance, peer, lane, data, bytes, UCS_MEMORY_TYPE_CUDA, op);
}

// The end of a one-sided operation that has failed; under way until it is known why.
weir_result_t fail_remote_operation(Instance* self, const weir_transport_op_t* op) {
  const auto& entry = *reinterpret_cast<const RemoteOp*>(op);
  const weir_result_t result = self->one_sided.outcome(entry);
  if (result != WEIR_IN_PROGRESS) return result;
  const Listening listening(&self->network.heard());
  self->move();
  return self->one_sided.outcome(entry);
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  Instance* self = from(instance);
  auto* entry = reinterpret_cast<Op*>(op);
  const auto is_open = [&] { return entry->state != kOpDone && entry->state <= kOpFailed; };
  if (entry->state == 0) [[unlikely]] {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE, "ucx: test of an operation never posted");
  }
  if (is_open()) {
    const Listening listening(&self->network.heard());
    self->move();
    if (is_open()) return WEIR_IN_PROGRESS;
  }
  if (entry->state == kOpDone) return WEIR_OK;
  if (entry->state >= kRemoteFailed) return fail_remote_operation(self, op);
  return fail_operation(self, reinterpret_cast<Flow*>(entry->flow), entry);
}

weir_result_t progress(weir_transport_t* instance) {
  Instance* self = from(instance);
  if (!self->joined) return WEIR_OK;
  const Listening listening(&self->network.heard());
  self->move();
  return WEIR_OK;
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->rank_count) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "ucx: peer_alive of rank " + text_of(peer) + " of " + text_of(self->rank_count));
  }
  const Listening listening(&self->network.heard());
  self->look_at(peer);
  if (self->troubled_count != 0 && self->network.worker() != nullptr) self->move();
  if (self->peers[peer].state != Peer::State::kLost) return WEIR_OK;
  return self->report.fail(
      WEIR_ERROR_PEER_LOST,
      "ucx: rank " + text_of(peer) + " is dead: its connections ended without a goodbye");
}

void quiesce(weir_transport_t* instance) {
  if (from(instance)->joined) from(instance)->quiesce();
}

weir_result_t notice_show(weir_transport_t* instance, const void* notice, size_t bytes) {
  static_assert(net::mesh::kNoticeBytesMax == WEIR_TRANSPORT_NOTICE_BYTES_MAX);
  Instance* self = from(instance);
  if (!self->joined) return self->report.fail(WEIR_ERROR_INVALID_USAGE, "ucx: not connected");
  if (bytes > net::mesh::kNoticeBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ucx: a notice of " + text_of(bytes) +
                                                              " bytes; there may be " +
                                                              text_of(net::mesh::kNoticeBytesMax));
  }
  self->mesh->show(static_cast<const unsigned char*>(notice), bytes);
  return WEIR_OK;
}

// What the mesh learns of the peer's end on the way is for a later call of another function: this one
// leaves operations alone.
weir_result_t notice_read(weir_transport_t* instance, uint32_t peer, void* notice, size_t* bytes) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->rank_count) {
    return self->report.fail(
        self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "ucx: notice_read of rank " + text_of(peer) + " of " + text_of(self->rank_count));
  }
  bool arrived = true;
  const net::mesh::Bytes& latest =
      peer == self->rank ? self->mesh->own_notice() : self->mesh->read_notice(peer, &arrived);
  if (!latest.empty()) memcpy(notice, latest.data(), latest.size());
  *bytes = latest.size();
  return arrived ? WEIR_OK : WEIR_IN_PROGRESS;
}

constexpr uint64_t kRemoteCaps = WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL;

// UCX makes up in software for what a network cannot, so all of it is there wherever UCX is.
uint64_t remote_caps(weir_transport_t*, char* reason, size_t reason_bytes) {
  if (reason_bytes != 0) reason[0] = 0;
  return kRemoteCaps;
}

// Runs `call`, which may allocate.
template <typename Call>
weir_result_t with_memory(weir_transport_t* instance, const Call& call) {
  Instance* self = from(instance);
  if (!self->joined) return self->report.fail(WEIR_ERROR_INVALID_USAGE, "ucx: not connected");
  const Listening listening(&self->network.heard());
  try {
    return call(self);
  } catch (const std::bad_alloc&) {
    return self->report.fail(WEIR_ERROR_NO_MEMORY, "ucx: no memory for remote memory");
  }
}

remote::Region* from(weir_transport_memory_t* memory) {
  return reinterpret_cast<remote::Region*>(memory);
}
const remote::Region* from(const weir_transport_memory_t* memory) {
  return reinterpret_cast<const remote::Region*>(memory);
}
// The caller's is const, its count of operations is not.
Remote* from(const weir_transport_remote_t* remote) {
  return const_cast<Remote*>(reinterpret_cast<const Remote*>(remote));
}
RemoteOp* from(weir_transport_op_t* op) { return reinterpret_cast<RemoteOp*>(op); }

weir_result_t memory_register(weir_transport_t* instance, void* base, uint64_t bytes,
                              weir_transport_memory_t** memory) {
  return with_memory(instance, [&](Instance* self) {
    remote::Region* region = nullptr;
    const weir_result_t result = self->one_sided.memory_register(base, bytes, &region);
    *memory = reinterpret_cast<weir_transport_memory_t*>(region);
    return result;
  });
}

weir_result_t memory_key(weir_transport_t* instance, const weir_transport_memory_t* memory,
                         unsigned char* key, size_t* bytes) {
  return with_memory(instance, [&](Instance* self) {
    return self->one_sided.memory_key(*from(memory), key, bytes);
  });
}

void memory_deregister(weir_transport_t* instance, weir_transport_memory_t* memory) {
  const Listening listening(&from(instance)->network.heard());
  from(instance)->one_sided.memory_deregister(from(memory));
}

weir_result_t remote_open(weir_transport_t* instance, uint32_t peer, const unsigned char* key,
                          size_t key_bytes, weir_transport_remote_t** remote) {
  return with_memory(instance, [&](Instance* self) {
    Remote* it = nullptr;
    const weir_result_t result = self->one_sided.remote_open(peer, key, key_bytes, &it);
    *remote = reinterpret_cast<weir_transport_remote_t*>(it);
    return result;
  });
}

void remote_close(weir_transport_t* instance, weir_transport_remote_t* remote) {
  from(instance)->one_sided.remote_close(from(remote));
}

weir_result_t put(weir_transport_t* instance, const weir_transport_remote_t* remote,
                  uint64_t offset_bytes, const void* data, uint64_t bytes,
                  weir_transport_op_t* op) {
  Instance* self = from(instance);
  const Listening listening(&self->network.heard());
  return self->one_sided.put(from(remote), offset_bytes, data, bytes, from(op));
}

weir_result_t get(weir_transport_t* instance, const weir_transport_remote_t* remote,
                  uint64_t offset_bytes, void* data, uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  const Listening listening(&self->network.heard());
  return self->one_sided.get(from(remote), offset_bytes, data, bytes, from(op));
}

weir_result_t put_signal(weir_transport_t* instance, const weir_transport_remote_t* remote,
                         uint64_t offset_bytes, const void* data, uint64_t bytes,
                         const weir_transport_remote_t* signal, uint64_t signal_offset_bytes,
                         uint64_t value, weir_transport_op_t* op) {
  Instance* self = from(instance);
  const Listening listening(&self->network.heard());
  return self->one_sided.put_signal(from(remote), offset_bytes, data, bytes, from(signal),
                                    signal_offset_bytes, value, from(op));
}

weir_result_t signal_read(weir_transport_t* instance, const weir_transport_memory_t* memory,
                          uint64_t offset_bytes, uint64_t* value) {
  Instance* self = from(instance);
  const Listening listening(&self->network.heard());
  self->move();
  return self->one_sided.signal_read(*from(memory), offset_bytes, value);
}

void describe_peer(weir_transport_t* instance, uint32_t peer, char* text, size_t text_bytes) {
  const Instance& self = *from(instance);
  const std::string way = self.joined ? self.mesh->describe(peer) : "";
  snprintf(text, text_bytes, "%s%s", way.c_str(), way.empty() ? "" : "; its data as UCX chose");
}

weir_result_t peer_leave(weir_transport_t* instance, uint32_t peer) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->rank_count || peer == self->rank) {
    return self->report.fail(self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
                             "ucx: peer_leave of rank " + std::to_string(peer) + " of " +
                                 std::to_string(self->rank_count) + " by rank " +
                                 std::to_string(self->rank));
  }
  if (self->leave(peer)) return WEIR_OK;
  return self->report.fail(WEIR_ERROR_UNSUPPORTED,
                           "ucx: UCX has begun with messages of rank " + std::to_string(peer) +
                               " and lets go of their buffers only when it ends");
}

// device_viable tells whether it is more than memory of the host.
constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "ucx",
    .summary = "ranks on one or many hosts, over UCX: InfiniBand, RoCE, shared memory or TCP",
    .caps = {.bits = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_NOTICE |
                     WEIR_CAP_QUIESCE | WEIR_CAP_DEVICE_MEMORY | kRemoteCaps,
             .memory_kinds = WEIR_MEMORY_HOST | WEIR_MEMORY_CUDA,
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
    .quiesce = quiesce,
    .remote_caps = remote_caps,
    .memory_register = memory_register,
    .memory_key = memory_key,
    .memory_deregister = memory_deregister,
    .remote_open = remote_open,
    .remote_close = remote_close,
    .put = put,
    .get = get,
    .put_signal = put_signal,
    .signal_read = signal_read,
    .describe_peer = describe_peer,
    .peer_leave = peer_leave,
    .collectives = nullptr,
    .device_viable = device_viable,
    .device_send = device_send,
    .device_recv = device_recv,
};

}  // namespace
}  // namespace weir::plugins::ucx

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void);
extern "C" const weir_transport_functions_t* weir_transport_plugin(void) {
  weir::plugins::ucx::be_quiet();
  return &weir::plugins::ucx::kFunctions;
}
