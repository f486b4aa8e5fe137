// SPDX-License-Identifier: Apache-2.0
// The transport `ofi`: ranks on one or many hosts, over libfabric. See docs/transports.md.
#include <stdio.h>
#include <string.h>

#include <memory>
#include <new>
#include <string>

#include "net/interfaces.h"
#include "plugins/common/config.h"
#include "plugins/ofi/instance.h"
#include "plugins/ofi/library.h"
#include "plugins/ofi/providers.h"

namespace weir::plugins::ofi {
namespace {

constexpr uint32_t kRankCountMax = 512;  // every rank holds a control connection to each other
constexpr uint32_t kCredit = 8;

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }
Op* from(weir_transport_op_t* op) { return reinterpret_cast<Op*>(op); }

weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
  const auto tell = [&](weir_result_t result, const std::string& text) {
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", text.c_str());
    return result;
  };
  try {
    const Report report = {host};
    std::string text;
    const Library* library = load_library(&text);
    std::vector<std::string> names;
    if (library == nullptr ||
        !list_providers(*library, report.setting("WEIR_OFI_PROVIDER"), &names, &text)) {
      return tell(WEIR_ERROR_UNSUPPORTED, text);
    }
    net::TlsMode tls = net::TlsMode::kOff;
    if (!net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kControl, &tls, &text)) {
      return tell(WEIR_ERROR_UNSUPPORTED, text);
    }
    net::InterfaceFilter filter;
    std::vector<net::Interface> interfaces;
    if (!net::filter_from(report.setting("WEIR_IFNAME"), report.setting("NCCL_SOCKET_IFNAME"),
                          &filter, &text) ||
        !net::list_interfaces(filter, &interfaces, &text)) {
      return tell(WEIR_ERROR_UNSUPPORTED, text);
    }
    if (interfaces.empty()) {
      return tell(WEIR_ERROR_UNSUPPORTED,
                  "no network interface that is allowed is up and has an address, and the ranks "
                  "meet over TCP");
    }
    const uint32_t version = library->version();
    text = "libfabric " + text_of(FI_MAJOR(version)) + "." + text_of(FI_MINOR(version)) + ": ";
    for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : ", else ") + names[i];
    if (tls != net::TlsMode::kOff) text += "; control connections inside TLS 1.3";
    return tell(WEIR_OK, text);
  } catch (const std::bad_alloc&) {
    return tell(WEIR_ERROR_UNSUPPORTED, "no memory");
  }
}

weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  const Report report = {host};
  try {
    const std::string problem = common::config_problem(*config, kRankCountMax);
    if (!problem.empty()) return report.fail(WEIR_ERROR_INVALID_ARGUMENT, problem);
    std::string reason;
    const Library* library = load_library(&reason);
    if (library == nullptr) return report.fail(WEIR_ERROR_UNSUPPORTED, reason);
    Identity identity;
    identity.comm_id = config->comm_id;
    identity.rank = config->rank;
    identity.rank_count = config->rank_count;
    auto self = std::make_unique<Instance>(report, *library, identity);
    self->set_key_proof(
        remote::proof_key(config->secret, config->secret_bytes, "ofi", config->comm_id));
    const weir_result_t result = self->listen(config->secret, config->secret_bytes);
    if (result != WEIR_OK) return result;
    *instance = reinterpret_cast<weir_transport_t*>(self.release());
    return WEIR_OK;
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, "no memory for an instance");
  }
}

weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes) {
  return from(instance)->address(out, bytes);
}

weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns) {
  try {
    return from(instance)->join(addresses, address_bytes, deadline_ns);
  } catch (const std::bad_alloc&) {
    return from(instance)->report().fail(WEIR_ERROR_NO_MEMORY, "no memory while joining the ranks");
  }
}

void close(weir_transport_t* instance) { delete from(instance); }

weir_result_t send(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  return from(instance)->send(peer, lane, data, bytes, from(op));
}

weir_result_t recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                   uint64_t bytes, weir_transport_op_t* op) {
  return from(instance)->recv(peer, lane, data, bytes, from(op));
}

weir_result_t test(weir_transport_t* instance, weir_transport_op_t* op) {
  return from(instance)->test(from(op));
}

weir_result_t progress(weir_transport_t* instance) { return from(instance)->progress(); }

weir_result_t peer_alive(weir_transport_t* instance, uint32_t peer) {
  return from(instance)->peer_alive(peer);
}

void quiesce(weir_transport_t* instance) { from(instance)->quiesce(); }

weir_result_t notice_show(weir_transport_t* instance, const void* notice, size_t bytes) {
  return from(instance)->notice_show(notice, bytes);
}

weir_result_t notice_read(weir_transport_t* instance, uint32_t peer, void* notice, size_t* bytes) {
  return from(instance)->notice_read(peer, notice, bytes);
}

constexpr uint64_t kRemoteCaps = WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL;

uint64_t remote_caps(weir_transport_t* instance, char* reason, size_t reason_bytes) {
  const Instance& self = *from(instance);
  const std::string gap = self.joined() ? self.remote_gap() : "not connected";
  if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", gap.c_str());
  return gap.empty() ? kRemoteCaps : 0;
}

// Runs `call`, which may allocate, where there is an endpoint.
template <typename Call>
weir_result_t with_memory(weir_transport_t* instance, const Call& call) {
  Instance* self = from(instance);
  if (!self->has_endpoint()) {
    return self->report().fail(WEIR_ERROR_INVALID_USAGE,
                               self->joined() ? "the instance was quiesced" : "not connected");
  }
  try {
    return call(self->one_sided());
  } catch (const std::bad_alloc&) {
    return self->report().fail(WEIR_ERROR_NO_MEMORY, "no memory for remote memory");
  }
}

// The caller's is const, its count of operations is not.
Remote* from(const weir_transport_remote_t* remote) {
  return const_cast<Remote*>(reinterpret_cast<const Remote*>(remote));
}
const remote::Region& from(const weir_transport_memory_t* memory) {
  return *reinterpret_cast<const remote::Region*>(memory);
}
RemoteOp* remote_from(weir_transport_op_t* op) { return reinterpret_cast<RemoteOp*>(op); }

weir_result_t memory_register(weir_transport_t* instance, void* base, uint64_t bytes,
                              weir_transport_memory_t** memory) {
  return with_memory(instance, [&](OneSided* one_sided) {
    remote::Region* region = nullptr;
    const weir_result_t result = one_sided->memory_register(base, bytes, &region);
    *memory = reinterpret_cast<weir_transport_memory_t*>(region);
    return result;
  });
}

weir_result_t memory_key(weir_transport_t* instance, const weir_transport_memory_t* memory,
                         unsigned char* key, size_t* bytes) {
  return with_memory(instance, [&](OneSided* one_sided) {
    return one_sided->memory_key(from(memory), key, bytes);
  });
}

void memory_deregister(weir_transport_t* instance, weir_transport_memory_t* memory) {
  // Registrations end with the endpoint.
  if (!from(instance)->has_endpoint()) return;
  from(instance)->one_sided()->memory_deregister(reinterpret_cast<remote::Region*>(memory));
}

weir_result_t remote_open(weir_transport_t* instance, uint32_t peer, const unsigned char* key,
                          size_t key_bytes, weir_transport_remote_t** remote) {
  return with_memory(instance, [&](OneSided* one_sided) {
    Remote* it = nullptr;
    const weir_result_t result = one_sided->remote_open(peer, key, key_bytes, &it);
    *remote = reinterpret_cast<weir_transport_remote_t*>(it);
    return result;
  });
}

void remote_close(weir_transport_t* instance, weir_transport_remote_t* remote) {
  if (!from(instance)->has_endpoint()) return;
  from(instance)->one_sided()->remote_close(from(remote));
}

weir_result_t put(weir_transport_t* instance, const weir_transport_remote_t* remote,
                  uint64_t offset_bytes, const void* data, uint64_t bytes,
                  weir_transport_op_t* op) {
  return with_memory(instance, [&](OneSided* one_sided) {
    return one_sided->access(from(remote), offset_bytes, const_cast<void*>(data), bytes, false,
                             remote_from(op));
  });
}

weir_result_t get(weir_transport_t* instance, const weir_transport_remote_t* remote,
                  uint64_t offset_bytes, void* data, uint64_t bytes, weir_transport_op_t* op) {
  return with_memory(instance, [&](OneSided* one_sided) {
    return one_sided->access(from(remote), offset_bytes, data, bytes, true, remote_from(op));
  });
}

weir_result_t put_signal(weir_transport_t* instance, const weir_transport_remote_t* remote,
                         uint64_t offset_bytes, const void* data, uint64_t bytes,
                         const weir_transport_remote_t* signal, uint64_t signal_offset_bytes,
                         uint64_t value, weir_transport_op_t* op) {
  return with_memory(instance, [&](OneSided* one_sided) {
    return one_sided->put_signal(from(remote), offset_bytes, data, bytes, from(signal),
                                 signal_offset_bytes, value, remote_from(op));
  });
}

weir_result_t signal_read(weir_transport_t* instance, const weir_transport_memory_t* memory,
                          uint64_t offset_bytes, uint64_t* value) {
  const weir_result_t moved = from(instance)->progress();
  if (moved != WEIR_OK) return moved;
  return from(instance)->one_sided()->signal_read(from(memory), offset_bytes, value);
}

void describe_peer(weir_transport_t* instance, uint32_t peer, char* text, size_t text_bytes) {
  snprintf(text, text_bytes, "%s", from(instance)->describe(peer).c_str());
}

weir_result_t device_viable(weir_transport_t* instance, uint32_t, int, char* reason,
                            size_t reason_bytes) {
  const std::string gap = from(instance)->device_gap();
  if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", gap.c_str());
  return gap.empty() ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
}

weir_result_t device_send(weir_transport_t* instance, uint32_t peer, uint32_t lane,
                          const void* data, uint64_t bytes, int device, weir_transport_op_t* op) {
  return from(instance)->device_message(true, peer, lane, const_cast<void*>(data), bytes, device,
                                        from(op));
}

weir_result_t device_recv(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                          uint64_t bytes, int device, weir_transport_op_t* op) {
  return from(instance)->device_message(false, peer, lane, data, bytes, device, from(op));
}

constexpr weir_transport_functions_t kFunctions = {
    .abi_version = WEIR_PLUGIN_ABI_VERSION,
    .struct_bytes = sizeof(weir_transport_functions_t),
    .name = "ofi",
    .summary = "ranks on one or many hosts, over libfabric's reliable datagram endpoints",
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
    .peer_leave = [](weir_transport_t* instance,
                     uint32_t peer) { return from(instance)->peer_leave(peer); },
    .collectives = nullptr,
    .device_viable = device_viable,
    .device_send = device_send,
    .device_recv = device_recv,
};

}  // namespace
}  // namespace weir::plugins::ofi

extern "C" __attribute__((visibility("default"))) const weir_transport_functions_t*
weir_transport_plugin(void) {
  return &weir::plugins::ofi::kFunctions;
}
