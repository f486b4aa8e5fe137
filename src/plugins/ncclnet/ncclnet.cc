// SPDX-License-Identifier: Apache-2.0
// The transport `ncclnet`: ranks on one or many hosts, over somebody's network plugin for NCCL, in memory of the
// host. See docs/nccl_net.md.
#include <stdio.h>
#include <string.h>

#include <memory>
#include <new>
#include <string>

#include "plugins/common/config.h"
#include "plugins/ncclnet/instance.h"
#include "weir/plugin.h"

namespace weir::plugins::ncclnet {
namespace {

constexpr uint64_t kMessageBytesMax = uint64_t{1} << 46;

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

std::string text_of(uint64_t number) { return std::to_string(number); }

bool read_filter(const Report& report, net::InterfaceFilter* filter, std::string* reason) {
  return net::filter_from(report.setting("WEIR_IFNAME"), report.setting("NCCL_SOCKET_IFNAME"),
                          filter, reason);
}

// The plugin is loaded, and not begun with: some do not work in a process that forks afterwards.
weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
  const Report report = {host};
  const auto tell = [&](const std::string& text) {
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", text.c_str());
  };
  try {
    const char* wanted = report.setting("WEIR_NCCL_NET_PLUGIN");
    if (wanted == nullptr || *wanted == 0) {
      tell("WEIR_NCCL_NET_PLUGIN is not set: no plugin to load");
      return WEIR_ERROR_UNSUPPORTED;
    }
    net::InterfaceFilter filter;
    std::string text;
    net::TlsMode tls = net::TlsMode::kOff;
    LoadedPlugin* plugin = nullptr;
    if (read_filter(report, &filter, &text) &&
        net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kControl, &tls, &text)) {
      plugin = weir::ncclnet::open_plugin(wanted, 0, &text);
    }
    tell(plugin != nullptr ? plugin->description() : text);
    return plugin != nullptr ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
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
    if (!problem.empty()) return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ncclnet: " + problem);
    auto self = std::make_unique<Instance>();
    self->report = report;
    self->rank = config->rank;
    self->rank_count = config->rank_count;
    std::string reason;
    net::InterfaceFilter filter;
    if (!read_filter(report, &filter, &reason)) {
      return report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ncclnet: " + reason);
    }
    net::MeshConfig mesh;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kControl, &mesh.tls, &reason)) {
      return report.fail(WEIR_ERROR_UNSUPPORTED, "ncclnet: " + reason);
    }
    const weir_result_t result = self->open_plugin(config->comm_id);
    if (result != WEIR_OK) return result;
    mesh.stop = [it = self.get()] { return it->hears_bad_news(); };
    mesh.purpose = "ncclnet";
    mesh.comm_id = config->comm_id;
    mesh.rank = config->rank;
    mesh.rank_count = config->rank_count;
    mesh.secret = config->secret;
    mesh.secret_bytes = config->secret_bytes;
    self->mesh = std::make_unique<net::ControlMesh>(mesh);
    const auto outcome = self->mesh->listen(filter);
    if (outcome != net::ControlMesh::Outcome::kOk) {
      const bool none = outcome == net::ControlMesh::Outcome::kUnsupported;
      return report.fail(none ? WEIR_ERROR_UNSUPPORTED : WEIR_ERROR_SYSTEM,
                         "ncclnet: its control connections: " + self->mesh->text());
    }
    *instance = reinterpret_cast<weir_transport_t*>(self.release());
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "ncclnet: no memory for an instance");
  }
}

weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  const Instance& self = *from(instance);
  if (self.joined) {
    return self.report.fail(WEIR_ERROR_INVALID_USAGE, "ncclnet: address after connect");
  }
  static_assert(net::mesh::kAddressBytesMax <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX);
  *bytes = self.mesh->address(out);
  return WEIR_OK;
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns) {
  Instance* self = from(instance);
  if (self->joined || !self->peers.empty()) {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE, "ncclnet: connect was called twice");
  }
  try {
    return self->connect(addresses, address_bytes, deadline_ns);
  } catch (const std::bad_alloc&) {
    return self->report.fail(WEIR_ERROR_NO_MEMORY, "ncclnet: no memory while joining the ranks");
  }
}

void close(weir_transport_t* instance) { delete from(instance); }

// False with the error told.
bool may_post(Instance* self, uint32_t peer, uint32_t lane, uint64_t bytes, weir_result_t* result) {
  if (!self->joined) [[unlikely]] {
    *result = self->report.fail(WEIR_ERROR_INVALID_USAGE, "ncclnet: not connected");
    return false;
  }
  if (peer >= self->rank_count || peer == self->rank || lane >= kLaneCount) [[unlikely]] {
    *result = self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "ncclnet: peer " + text_of(peer) + ", lane " + text_of(lane) + ": there are " +
            text_of(self->rank_count) + " ranks, of which this one is " + text_of(self->rank) +
            " and does not send to itself, and " + text_of(kLaneCount) + " lanes");
    return false;
  }
  if (bytes > kMessageBytesMax) [[unlikely]] {
    *result =
        self->report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                          "ncclnet: a message of " + text_of(bytes) + " bytes is above the limit");
    return false;
  }
  return true;
}

// The end of an operation whose flow has failed. Why the plugin gave a peer up is only known when its goodbye or
// its death has been heard, which takes a moment; until then the operation is under way.
weir_result_t fail_operation(Instance* self, Flow* flow, Op* op) {
  if (self->is_unexplained(flow)) {
    self->move();
    if (self->is_unexplained(flow)) {
      op->state = kOpFailed + static_cast<uint64_t>(flow->failure().result);
      op->flow = reinterpret_cast<uint64_t>(flow);
      return WEIR_IN_PROGRESS;
    }
  }
  return self->tell(flow);
}

weir_result_t post(Instance* self, Flow* flow, void* data, uint64_t bytes, Op* op) {
  const weir_result_t result = flow->post(data, bytes, op);
  if (result == WEIR_OK || result == WEIR_IN_PROGRESS) [[likely]] {
    if (!flow->idle()) self->make_active(flow);
    return result;
  }
  return fail_operation(self, flow, op);
}

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  weir_result_t result = WEIR_OK;
  if (!may_post(self, peer, lane, bytes, &result)) [[unlikely]]
    return result;
  return post(self, &self->sends[peer * kLaneCount + lane], const_cast<void*>(data), bytes,
              reinterpret_cast<Op*>(op));
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  Instance* self = from(instance);
  weir_result_t result = WEIR_OK;
  if (!may_post(self, peer, lane, bytes, &result)) [[unlikely]]
    return result;
  return post(self, &self->recvs[peer * kLaneCount + lane], data, bytes, reinterpret_cast<Op*>(op));
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  Instance* self = from(instance);
  auto* entry = reinterpret_cast<Op*>(op);
  if (entry->state == 0) [[unlikely]] {
    return self->report.fail(WEIR_ERROR_INVALID_USAGE,
                             "ncclnet: test of an operation never posted");
  }
  if (entry->state < kOpDone) {
    auto* flow = reinterpret_cast<Flow*>(entry->flow);
    if (!flow->drive()) self->move();
  }
  if (entry->state == kOpDone) [[likely]]
    return WEIR_OK;
  if (entry->state < kOpFailed) return WEIR_IN_PROGRESS;
  return fail_operation(self, reinterpret_cast<Flow*>(entry->flow), entry);
}

weir_result_t progress(weir_transport_t* instance) {
  Instance* self = from(instance);
  if (self->joined) self->move();
  return WEIR_OK;
}

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->rank_count) {
    return self->report.fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "ncclnet: peer_alive of rank " + text_of(peer) + " of " + text_of(self->rank_count));
  }
  self->look_at(peer);
  if (self->troubled_count != 0) self->move();
  if (self->peers[peer].state != Peer::State::kLost) return WEIR_OK;
  return self->report.fail(
      WEIR_ERROR_PEER_LOST,
      "ncclnet: rank " + text_of(peer) + " is dead: its connections ended without a goodbye");
}

void quiesce(weir_transport_t* instance) {
  if (from(instance)->joined) from(instance)->quiesce();
}

weir_result_t notice_show(weir_transport_t* instance, const void* notice, size_t bytes) {
  static_assert(net::mesh::kNoticeBytesMax == WEIR_TRANSPORT_NOTICE_BYTES_MAX);
  Instance* self = from(instance);
  if (!self->joined) return self->report.fail(WEIR_ERROR_INVALID_USAGE, "ncclnet: not connected");
  if (bytes > net::mesh::kNoticeBytesMax) {
    return self->report.fail(WEIR_ERROR_INVALID_ARGUMENT, "ncclnet: a notice of " + text_of(bytes) +
                                                              " bytes; there may be " +
                                                              text_of(net::mesh::kNoticeBytesMax));
  }
  self->mesh->show(static_cast<const unsigned char*>(notice), bytes);
  return WEIR_OK;
}

// What the mesh learns of the peer's end on the way is for a later call of another function: this one leaves
// operations alone.
weir_result_t notice_read(weir_transport_t* instance, uint32_t peer, void* notice, size_t* bytes) {
  Instance* self = from(instance);
  if (!self->joined || peer >= self->rank_count) {
    return self->report.fail(
        self->joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
        "ncclnet: notice_read of rank " + text_of(peer) + " of " + text_of(self->rank_count));
  }
  bool arrived = true;
  const net::mesh::Bytes& latest =
      peer == self->rank ? self->mesh->own_notice() : self->mesh->read_notice(peer, &arrived);
  if (!latest.empty()) memcpy(notice, latest.data(), latest.size());
  *bytes = latest.size();
  return arrived ? WEIR_OK : WEIR_IN_PROGRESS;
}

constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "ncclnet",
    .summary = "ranks on one or many hosts, over a network plugin made for NCCL",
    .caps = {.bits =
                 WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_NOTICE | WEIR_CAP_QUIESCE,
             .memory_kinds = WEIR_MEMORY_HOST,
             .lane_count = kLaneCount,
             .message_bytes_max = kMessageBytesMax,
             .rank_count_max = kRankCountMax,
             .credit = Flow::kSlotCount},
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
};

}  // namespace
}  // namespace weir::plugins::ncclnet

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void);
extern "C" const weir_transport_functions_t* weir_transport_plugin(void) {
  return &weir::plugins::ncclnet::kFunctions;
}
