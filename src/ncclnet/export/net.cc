// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/net.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "core/base/clock.h"
#include "core/base/settings.h"
#include "core/comm/start/job_secret.h"
#include "core/plugin/registry.h"
#include "ncclnet/export/attempt.h"
#include "ncclnet/export/devices.h"

namespace weir::ncclnet {

struct Context {
  Logger log = nullptr;
  int traffic_class = kUndefined;
};

namespace {

constexpr uint64_t kMessageBytesMax = uint64_t{1} << 40;  // the most that NCCL allows
constexpr char kDefaultTransport[] = "tcp";

// The kind of an NCCL comm.
enum class Kind : uint32_t { kListen = 0x57454c31, kSend = 0x57455331, kRecv = 0x57455231 };

struct Comm {
  Kind kind;
  Logger log;
  std::shared_ptr<Attempt> attempt;  // of a listener
  bool accepted = false;             // of a listener
  std::unique_ptr<Link> link;
};

// A connect that NCCL will repeat with the same handle.
struct Pending {
  std::shared_ptr<Attempt> attempt;
  const Context* context;
  uint64_t asked_ns;
};

// The state of the process; made at first use and never destroyed: detached threads may outlive
// main.
struct Library {
  std::mutex mutex;
  const weir_transport_functions_t* transport = nullptr;  // null before the first init
  std::optional<net::Mac> job_secret;
  int64_t timeout_ms = 0;
  net::TlsMode tls = net::TlsMode::kOff;
  Devices devices;
  std::map<std::string, Pending> pending;
  std::atomic<Logger> log = nullptr;  // the latest
  Context* process_context = nullptr;
  uint32_t context_count = 0;
};

Library& library() {
  static auto* made = new Library;
  return *made;
}

Result fail(Logger log, Result result, const std::string& text) {
  if (log != nullptr) {
    log(kLogWarn, kLogNet, __FILE__, __LINE__, "NET/Weir: %s", text.c_str());
  }
  return result;
}

Result fail(Result result, const std::string& text) { return fail(library().log, result, text); }

void inform(Logger log, const std::string& text) {
  if (log != nullptr) {
    log(kLogInfo, kLogNet, __FILE__, __LINE__, "NET/Weir: %s", text.c_str());
  }
}

Result no_memory(Logger log) { return fail(log, kSystemError, "no memory"); }

const char* host_setting(void*, const char* name) { return getenv(name); }

std::string wanted_transport() {
  const char* wanted = getenv("WEIR_NCCL_NET_TRANSPORT");
  return wanted != nullptr && *wanted != 0 ? wanted : kDefaultTransport;
}

// Sets up the library; called with its lock held.
Result set_up(Library* self, Logger log) {
  const weir::Result<Settings> settings = parse_settings(environ);
  if (!settings.ok()) return fail(log, kInvalidUsage, settings.status().text());
  self->timeout_ms = settings.value().timeout_ms;
  const std::string name = wanted_transport();
  if (name == "ncclnet" || name.size() > kTransportNameBytes) {
    return fail(log, kInvalidUsage,
                "WEIR_NCCL_NET_TRANSPORT=" + name +
                    ": no transport that could be used; take tcp, ucx or ofi");
  }
  const auto found = plugin::find_transport(name);
  if (!found.ok()) {
    return fail(log, kInvalidUsage, "WEIR_NCCL_NET_TRANSPORT: " + found.status().text());
  }
  const weir_transport_functions_t* functions = found.value();
  const weir_host_t host = {sizeof host, nullptr, [](void*, const char*) {},
                            [](void*, int, const char*) {}, host_setting};
  char reason[512] = "";
  if (functions->viable(functions->context, &host, reason, sizeof reason) != WEIR_OK) {
    return fail(log, kSystemError, "the transport " + name + " does not work here: " + reason);
  }
  if ((functions->caps.bits & WEIR_CAP_SEND_RECV) == 0 || functions->caps.rank_count_max < 2) {
    return fail(log, kInvalidUsage, "the transport " + name + " cannot send to other ranks");
  }
  // The transport decides whether it supports the requested mode; the control network supports
  // every one.
  if (!net::parse_tls_mode(getenv("WEIR_TLS"), &self->tls)) {
    return fail(log, kInvalidUsage, "WEIR_TLS must be off, control or all");
  }
  const auto secret = comm::job_secret(now_ns() + 10'000'000'000);
  if (!secret.ok()) return fail(log, kSystemError, secret.status().text());
  self->job_secret.reset();
  if (secret.value().has_value()) {
    self->job_secret = secret.value()->secret.derive("nccl net").bytes;
  }
  net::InterfaceFilter filter;
  std::string text;
  Devices devices;
  if (!net::filter_from(getenv("WEIR_IFNAME"), getenv("NCCL_SOCKET_IFNAME"), &filter, &text) ||
      !devices.find(name, name == kDefaultTransport, filter, &text)) {
    return fail(log, kSystemError, text);
  }
  self->devices = std::move(devices);
  self->transport = functions;
  text = "transport " + name + " (" + functions->summary + "), ";
  text += self->job_secret ? "with the job's secret; devices:" : "without a job's secret; devices:";
  for (int i = 0; i < self->devices.count(); ++i) text += " " + self->devices[i].name;
  inform(log, text);
  return kSuccess;
}

Comm* comm_of(void* pointer, Kind kind) {
  auto* comm = static_cast<Comm*>(pointer);
  return comm != nullptr && comm->kind == kind ? comm : nullptr;
}

Result no_comm(const char* function) {
  return fail(kInternalError,
              std::string(function) + " of a pointer that is not a connection of this plugin");
}

// Drops attempts that NCCL has not polled for the longest time that a connection may take; called
// with the lock held.
void drop_forgotten(Library* self) {
  const uint64_t now = now_ns();
  const uint64_t patience_ns = static_cast<uint64_t>(self->timeout_ms) * 1'000'000;
  std::erase_if(self->pending, [&](const auto& entry) {
    const bool forgotten = now - entry.second.asked_ns > patience_ns;
    if (forgotten) entry.second.attempt->cancel();
    return forgotten;
  });
}

// Makes a new attempt for the handle; called with the lock held.
Result begin_connect(Library* self, const Context& context, int device, const unsigned char* bytes,
                     std::shared_ptr<Attempt>* attempt) {
  Handle handle;
  if (!decode(bytes, &handle)) {
    return fail(context.log, kInternalError,
                "connect: the handle was not made by NET/Weir of this version; do all ranks load "
                "the same libnccl-net-weir.so?");
  }
  if (handle.transport != self->transport->name) {
    return fail(context.log, kInvalidUsage,
                "the peer uses another transport than " + std::string(self->transport->name) +
                    "; WEIR_NCCL_NET_TRANSPORT must be the same everywhere");
  }
  if (handle.needs_job_secret != self->job_secret.has_value()) {
    return fail(context.log, kInvalidUsage,
                std::string("the peer has ") + (handle.needs_job_secret ? "a" : "no") +
                    " job secret, and this process has " +
                    (handle.needs_job_secret ? "none" : "one") +
                    "; set WEIR_SECRET_FILE, WEIR_SECRET_FD or WEIR_SECRET everywhere or nowhere");
  }
  Attempt::Config config;
  config.functions = self->transport;
  config.meet_over = self->devices[device].meet_over;
  config.move_over = self->devices[device].move_over;
  config.secret = connection_secret(handle.key, self->job_secret ? &*self->job_secret : nullptr);
  config.timeout_ms = self->timeout_ms;
  config.tls = self->tls;
  std::string reason;
  *attempt = Attempt::connect(config, handle.address, &reason);
  if (*attempt == nullptr) return fail(context.log, kSystemError, "connect: " + reason);
  return kSuccess;
}

Comm* make_comm(Kind kind, Logger log, std::unique_ptr<Link> link) {
  auto comm = std::make_unique<Comm>();
  comm->kind = kind;
  comm->log = log;
  comm->link = std::move(link);
  return comm.release();
}

Result close(void* pointer, Kind kind, const char* function) {
  Comm* comm = comm_of(pointer, kind);
  if (comm == nullptr) return no_comm(function);
  if (comm->attempt != nullptr) comm->attempt->cancel();
  delete comm;
  return kSuccess;
}

Result tell(const Comm& comm, Result result, const char* what) {
  return fail(comm.log, result, std::string(what) + ": " + comm.link->text());
}

}  // namespace

Context* process_context() { return library().process_context; }
void set_process_context(Context* context) { library().process_context = context; }

Result net_init(Context** context, int traffic_class, Logger log) try {
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  self.log = log;
  // While no communicator existed, devices may have come and gone.
  if (self.context_count == 0) {
    const Result result = set_up(&self, log);
    if (result != kSuccess) return result;
  }
  if (traffic_class != kUndefined) {
    inform(log, "traffic class " + std::to_string(traffic_class) + " has no effect over " +
                    self.transport->name);
  }
  *context = new Context{log, traffic_class};
  ++self.context_count;
  return kSuccess;
} catch (const std::bad_alloc&) {
  return no_memory(log);
}

Result net_finalize(Context* context) {
  if (context == nullptr) return fail(kInternalError, "finalize without a context");
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  std::erase_if(self.pending, [&](const auto& entry) {
    const bool ours = entry.second.context == context;
    if (ours) entry.second.attempt->cancel();
    return ours;
  });
  delete context;
  --self.context_count;
  return kSuccess;
}

Result net_devices(int* count) {
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  *count = self.devices.count();
  return self.transport != nullptr ? kSuccess : fail(kInternalError, "devices before init");
}

Result net_properties(int device, Properties<12>* properties) {
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  if (!self.devices.has(device)) {
    return fail(kInternalError, "there is no device " + std::to_string(device));
  }
  const NetDevice& one = self.devices[device];
  *properties = {};
  // NCCL only reads the strings.
  properties->name = const_cast<char*>(one.name.c_str());
  properties->pci_path = one.pci_path.empty() ? nullptr : const_cast<char*>(one.pci_path.c_str());
  properties->guid = one.guid;
  properties->pointer_kinds = kPointerHost;
  properties->registration_is_global = 1;
  properties->speed_mbits = one.speed_mbits;
  properties->connection_count_max = kConnectionCountMax;
  properties->grouped_receives_max = 1;
  properties->offload_type = kDeviceIsHost;
  properties->virtual_device.count = static_cast<int>(one.members.size());
  for (size_t i = 0; i < one.members.size() && i < 8; ++i) {
    properties->virtual_device.devices[i] = one.members[i];
  }
  properties->message_bytes_max =
      std::min(kMessageBytesMax, self.transport->caps.message_bytes_max);
  properties->collective_bytes_max = properties->message_bytes_max;
  properties->requests_in_one_max = 1;
  properties->rail_id = kUndefined;
  properties->plane_id = kUndefined;
  return kSuccess;
}

Result net_join_devices(int* device, const int* members, int member_count, int member_count_max) {
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  std::string reason;
  const int made = self.devices.join(members, member_count, member_count_max, &reason);
  if (made < 0) return fail(kInvalidUsage, reason);
  *device = made;
  return kSuccess;
}

Result net_listen(Context* context, int device, void* handle, void** listen_comm) try {
  *listen_comm = nullptr;
  if (context == nullptr || handle == nullptr) {
    return fail(kInternalError, "listen without a context or handle");
  }
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  if (!self.devices.has(device)) {
    return fail(context->log, kInternalError,
                "listen: there is no device " + std::to_string(device));
  }
  Handle made;
  made.needs_job_secret = self.job_secret.has_value();
  made.transport = self.transport->name;
  if (!net::fill_random(made.key.data(), made.key.size())) {
    return fail(context->log, kSystemError, "listen: getrandom failed");
  }
  Attempt::Config config;
  config.functions = self.transport;
  config.meet_over = self.devices[device].meet_over;
  config.move_over = self.devices[device].move_over;
  config.secret = connection_secret(made.key, self.job_secret ? &*self.job_secret : nullptr);
  config.timeout_ms = self.timeout_ms;
  config.tls = self.tls;
  std::string reason;
  auto attempt = Attempt::listen(config, &made.address, &reason);
  if (attempt == nullptr) return fail(context->log, kSystemError, "listen: " + reason);
  encode(made, static_cast<unsigned char*>(handle));
  Comm* comm = make_comm(Kind::kListen, context->log, nullptr);
  comm->attempt = std::move(attempt);
  *listen_comm = comm;
  return kSuccess;
} catch (const std::bad_alloc&) {
  return no_memory(library().log);
}

Result net_connect(Context* context, int device, int traffic_class, const void* handle,
                   void** send_comm) try {
  *send_comm = nullptr;
  if (context == nullptr || handle == nullptr) {
    return fail(kInternalError, "connect without a context or handle");
  }
  Library& self = library();
  const std::lock_guard lock(self.mutex);
  if (!self.devices.has(device)) {
    return fail(context->log, kInternalError,
                "connect: there is no device " + std::to_string(device));
  }
  drop_forgotten(&self);
  const auto* bytes = static_cast<const unsigned char*>(handle);
  std::string key(reinterpret_cast<const char*>(bytes), kHandleBytes);
  key += std::to_string(device);
  auto at = self.pending.find(key);
  if (at == self.pending.end()) {
    std::shared_ptr<Attempt> attempt;
    const Result begun = begin_connect(&self, *context, device, bytes, &attempt);
    if (begun != kSuccess) return begun;
    if (traffic_class != kUndefined && traffic_class != context->traffic_class) {
      inform(context->log, "traffic class " + std::to_string(traffic_class) +
                               " has no effect over " + self.transport->name);
    }
    at = self.pending.emplace(key, Pending{std::move(attempt), context, 0}).first;
  }
  at->second.asked_ns = now_ns();
  if (!at->second.attempt->finished()) return kSuccess;
  const std::shared_ptr<Attempt> attempt = at->second.attempt;
  self.pending.erase(at);
  if (attempt->result() != kSuccess) {
    return fail(context->log, attempt->result(), "connect: " + attempt->text());
  }
  *send_comm = make_comm(Kind::kSend, context->log, attempt->take_link());
  return kSuccess;
} catch (const std::bad_alloc&) {
  return no_memory(library().log);
}

Result net_accept(void* listen_comm, void** recv_comm) try {
  *recv_comm = nullptr;
  Comm* comm = comm_of(listen_comm, Kind::kListen);
  if (comm == nullptr) return no_comm("accept");
  if (comm->accepted) {
    return fail(comm->log, kInvalidUsage,
                "a second accept: a listener of NET/Weir takes one connection; listen again");
  }
  Attempt& attempt = *comm->attempt;
  if (!attempt.started() && !Attempt::start(comm->attempt)) {
    return fail(comm->log, kSystemError, "accept: no thread can be started");
  }
  if (!attempt.finished()) return kSuccess;
  comm->accepted = true;
  if (attempt.result() != kSuccess) {
    return fail(comm->log, attempt.result(), "accept: " + attempt.text());
  }
  *recv_comm = make_comm(Kind::kRecv, comm->log, attempt.take_link());
  return kSuccess;
} catch (const std::bad_alloc&) {
  return no_memory(library().log);
}

Result net_close_listen(void* comm) { return close(comm, Kind::kListen, "closeListen"); }
Result net_close_send(void* comm) { return close(comm, Kind::kSend, "closeSend"); }
Result net_close_recv(void* comm) { return close(comm, Kind::kRecv, "closeRecv"); }

// The kernel or the transport needs no registration.
Result net_register(void* comm, void* data, size_t bytes, int kind, void** memory) {
  if (comm == nullptr) return no_comm("regMr");
  if (kind != kPointerHost) {
    return fail(static_cast<Comm*>(comm)->log, kInvalidUsage,
                "regMr of memory of kind " + std::to_string(kind) +
                    ": only host memory is supported, as the properties of the devices say");
  }
  if (data == nullptr && bytes != 0) {
    return fail(static_cast<Comm*>(comm)->log, kInternalError,
                "regMr: data is NULL, but bytes is not 0");
  }
  *memory = data;
  return kSuccess;
}

Result net_deregister(void* comm, void*) { return comm != nullptr ? kSuccess : no_comm("deregMr"); }

Result net_isend(void* send_comm, void* data, size_t bytes, void** request) {
  Comm* comm = comm_of(send_comm, Kind::kSend);
  if (comm == nullptr) return no_comm("isend");
  Request* posted = nullptr;
  const Result result = comm->link->isend(data, bytes, &posted);
  *request = posted;
  return result == kSuccess ? result : tell(*comm, result, "isend");
}

Result net_irecv(void* recv_comm, int count, void** data, const size_t* bytes, void** request) {
  Comm* comm = comm_of(recv_comm, Kind::kRecv);
  if (comm == nullptr) return no_comm("irecv");
  if (count != 1) {
    return fail(comm->log, kInternalError,
                "a group of " + std::to_string(count) + " receives; the devices declare 1");
  }
  Request* posted = nullptr;
  const Result result = comm->link->irecv(data[0], bytes[0], &posted);
  *request = posted;
  return result == kSuccess ? result : tell(*comm, result, "irecv");
}

// Host memory needs no flush.
Result net_iflush(void* recv_comm, void** request) {
  *request = nullptr;
  return comm_of(recv_comm, Kind::kRecv) != nullptr ? kSuccess : no_comm("iflush");
}

Result net_test(void* pointer, int* done, int* bytes) {
  auto* request = static_cast<Request*>(pointer);
  if (request == nullptr || request->state == Request::State::kFree) {
    return fail(kInternalError, "test of a pointer that is not a request in flight");
  }
  Link& link = *request->link;
  bool is_done = false;
  uint64_t size = 0;
  const Result result = link.test(request, &is_done, &size);
  *done = is_done ? 1 : 0;
  if (is_done && bytes != nullptr) *bytes = static_cast<int>(std::min<uint64_t>(size, INT_MAX));
  if (result == kSuccess) return result;
  return fail(result, std::string(link.receives() ? "a receive: " : "a send: ") + link.text());
}

}  // namespace weir::ncclnet
