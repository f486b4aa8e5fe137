// SPDX-License-Identifier: Apache-2.0
// Hook: a transport that wraps another one and passes every call on. A derived class overrides what
// it wants to see or to change; the rest forwards. make_table turns such a class and the transports
// that it is made of into a table of functions.
//
// Threads as in plugin.h; make_table is thread-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "plugins/common/table.h"
#include "weir/plugin.h"

namespace weir::plugins::hook {

// All traffic must pass the hook: memory that peers load and store directly would bypass it.
inline constexpr uint64_t kHiddenCaps = WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW | WEIR_CAP_COLLECTIVES;
// With any of these, the inner table has the functions from remote_caps on.
inline constexpr uint64_t kRemoteCaps = WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL;

// The arguments of put, get and put_signal; `signal` is null except for put_signal.
struct RemoteRequest {
  const weir_transport_remote_t* remote;
  uint64_t offset_bytes;
  void* data;  // only read, except by get
  uint64_t bytes;
  const weir_transport_remote_t* signal;
  uint64_t signal_offset_bytes;
  uint64_t value;
  bool is_get;

  const char* name() const { return is_get ? "get" : signal != nullptr ? "put_signal" : "put"; }
};

// The arguments of device_send and device_recv.
struct DeviceMessage {
  bool sending;
  uint32_t peer;
  uint32_t lane;
  void* data;  // only read, except by device_recv
  uint64_t bytes;
  int device;
};

// The table may end before this function.
inline bool can_leave(const weir_transport_functions_t& inner) {
  constexpr size_t kEnd = offsetof(weir_transport_functions_t, peer_leave) + sizeof(void*);
  return inner.struct_bytes >= kEnd && inner.peer_leave != nullptr;
}

class Hook {
 public:
  using Op = weir_transport_op_t;

  // `parts` as in the table: the first one is wrapped.
  Hook(const weir_host_t* host, const weir_transport_part_t* parts,
       const weir_transport_config_t& config)
      : host_(host),
        inner_(parts[0].transport),
        rank_(config.rank),
        rank_count_(config.rank_count) {}
  virtual ~Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // Called before anything else; if it returns an error, so does `open`.
  virtual weir_result_t start(const weir_transport_config_t&) { return WEIR_OK; }
  virtual weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
    return inner_->connect(instance_, addresses, address_bytes, deadline_ns);
  }
  virtual weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                             weir_transport_op_t* op) {
    return inner_->send(instance_, peer, lane, data, bytes, op);
  }
  virtual weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                             weir_transport_op_t* op) {
    return inner_->recv(instance_, peer, lane, data, bytes, op);
  }
  virtual weir_result_t test(weir_transport_op_t* op) { return inner_->test(instance_, op); }
  virtual weir_result_t progress() { return inner_->progress(instance_); }
  virtual weir_result_t address(unsigned char* address, size_t* bytes) {
    return inner_->address(instance_, address, bytes);
  }
  virtual weir_result_t peer_alive(uint32_t peer) { return inner_->peer_alive(instance_, peer); }
  // The inner transport may lack this function.
  virtual void quiesce() {
    if ((inner_->caps.bits & WEIR_CAP_QUIESCE) != 0) inner_->quiesce(instance_);
  }
  virtual uint64_t remote_caps(char* reason, size_t reason_bytes) {
    return inner_->remote_caps(instance_, reason, reason_bytes) & kRemoteCaps;
  }
  virtual weir_result_t memory_register(void* base, uint64_t bytes,
                                        weir_transport_memory_t** memory) {
    return inner_->memory_register(instance_, base, bytes, memory);
  }
  virtual weir_result_t memory_key(const weir_transport_memory_t* memory, unsigned char* key,
                                   size_t* bytes) {
    return inner_->memory_key(instance_, memory, key, bytes);
  }
  virtual void memory_deregister(weir_transport_memory_t* memory) {
    inner_->memory_deregister(instance_, memory);
  }
  virtual weir_result_t remote_open(uint32_t peer, const unsigned char* key, size_t key_bytes,
                                    weir_transport_remote_t** remote) {
    return inner_->remote_open(instance_, peer, key, key_bytes, remote);
  }
  virtual void remote_close(weir_transport_remote_t* remote) {
    inner_->remote_close(instance_, remote);
  }
  // put_signal: without a signal's memory it would be taken for a put.
  weir_result_t signal(const RemoteRequest& request, weir_transport_op_t* op) {
    if (request.signal != nullptr) return access(request, op);
    return fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: put_signal without memory of the signal",
                inner_->name);
  }
  // put, get and put_signal.
  virtual weir_result_t access(const RemoteRequest& request, weir_transport_op_t* op) {
    return access_inner(request, op);
  }
  virtual weir_result_t signal_read(const weir_transport_memory_t* memory, uint64_t offset_bytes,
                                    uint64_t* value) {
    return inner_->signal_read(instance_, memory, offset_bytes, value);
  }
  virtual void describe_peer(uint32_t peer, char* text, size_t text_bytes) {
    if (text_bytes == 0) return;
    text[0] = 0;
    constexpr size_t kEnd = offsetof(weir_transport_functions_t, describe_peer) + sizeof(void*);
    if (inner_->struct_bytes < kEnd || inner_->describe_peer == nullptr) return;
    inner_->describe_peer(instance_, peer, text, text_bytes);
  }
  virtual weir_result_t device_viable(uint32_t peer, int device, char* reason,
                                      size_t reason_bytes) {
    return inner_->device_viable(instance_, peer, device, reason, reason_bytes);
  }
  // device_send and device_recv. Only of hooks that pass them, see make_table.
  virtual weir_result_t device_message(const DeviceMessage& message, weir_transport_op_t* op) {
    return device_message_inner(message, op);
  }
  weir_result_t device_message(bool sending, uint32_t peer, uint32_t lane, void* data,
                               uint64_t bytes, int device, weir_transport_op_t* op) {
    return device_message({sending, peer, lane, data, bytes, device}, op);
  }
  // A hook that can release what it holds of operations in flight overrides this; others refuse.
  virtual weir_result_t peer_leave(uint32_t) {
    return fail(WEIR_ERROR_UNSUPPORTED, "a hook around %s cannot leave one peer only",
                inner_->name);
  }
  // Closes the inner instance; afterwards the hook itself is disposed of.
  virtual void close() { inner_->close(instance_); }
  virtual void dispose() { delete this; }

  weir_result_t open_inner(const weir_transport_config_t& config) {
    return inner_->open(inner_->context, host_, &config, &instance_);
  }

 protected:
  weir_result_t access_inner(const RemoteRequest& r, weir_transport_op_t* op) {
    if (r.is_get) return inner_->get(instance_, r.remote, r.offset_bytes, r.data, r.bytes, op);
    if (r.signal == nullptr) {
      return inner_->put(instance_, r.remote, r.offset_bytes, r.data, r.bytes, op);
    }
    return inner_->put_signal(instance_, r.remote, r.offset_bytes, r.data, r.bytes, r.signal,
                              r.signal_offset_bytes, r.value, op);
  }
  weir_result_t device_message_inner(const DeviceMessage& m, weir_transport_op_t* op) {
    return m.sending
               ? inner_->device_send(instance_, m.peer, m.lane, m.data, m.bytes, m.device, op)
               : inner_->device_recv(instance_, m.peer, m.lane, m.data, m.bytes, m.device, op);
  }
  weir_result_t leave_inner(uint32_t peer) {
    return inner_->peer_leave(instance_, peer);  // a hook has it where the inner transport has it
  }
  [[gnu::format(printf, 3, 4)]] weir_result_t fail(weir_result_t code, const char* format,
                                                   ...) const;
  [[gnu::format(printf, 2, 3)]] void warn(const char* format, ...) const;
  // Value of a variable, or null.
  const char* setting(const char* name) const;

  const weir_host_t* host_;
  const weir_transport_functions_t* inner_;
  weir_transport_t* instance_ = nullptr;
  uint32_t rank_;
  uint32_t rank_count_;
};

uint64_t monotonic_ns();

// For a composite that needs all of its parts: the reason of the first part that is not viable, or
// what all parts would use.
weir_result_t parts_viable(const weir_transport_part_t* parts, const weir_host_t* host,
                           char* reason, size_t reason_bytes);

// HookClass has `kName` and a constructor like Hook's. Its `limit`, if there is one, may remove
// capabilities of the inner transport; its `viable`, if there is one, replaces the inner one's.
// Messages on memory of devices are passed on only with a `kPassesDevices`, since other hooks read
// or copy messages.
template <class HookClass>
class Table {
 public:
  explicit Table(std::vector<weir_transport_part_t> parts) : parts_(std::move(parts)) {
    const weir_transport_functions_t* const inner = parts_[0].transport;
    name_ = std::string(HookClass::kName) + "(" + inner->name + ")";
    parts_.push_back({nullptr, nullptr});
    weir_transport_functions_t& f = functions_;
    f.abi_version = WEIR_PLUGIN_ABI_VERSION;
    f.struct_bytes = sizeof f;
    f.name = name_.c_str();
    f.summary = inner->summary;
    f.caps = inner->caps;
    f.caps.bits &= ~kHiddenCaps;
    f.context = this;
    f.parts = parts_.data();
    if constexpr (!requires { HookClass::kPassesDevices; }) {
      if ((f.caps.bits & WEIR_CAP_DEVICE_MEMORY) != 0) f.caps.memory_kinds &= WEIR_MEMORY_HOST;
      f.caps.bits &= ~uint64_t{WEIR_CAP_DEVICE_MEMORY};
    }
    if constexpr (requires { &HookClass::limit; }) HookClass::limit(f.parts, &f.caps);
    f.viable = viable;
    f.open = open;
    common::add_messages<Hook>(&f);
    f.connect = [](weir_transport_t* t, const unsigned char* const* a, const size_t* b,
                   uint64_t d) { return from(t)->connect(a, b, d); };
    f.close = [](weir_transport_t* t) {
      from(t)->close();
      from(t)->dispose();
    };
    if (inner->peer_alive != nullptr) common::add_peer_alive<Hook>(&f);
    // The inner table may end before these.
    if ((f.caps.bits & WEIR_CAP_QUIESCE) != 0) common::add_quiesce<Hook>(&f);
    if ((f.caps.bits & kRemoteCaps) != 0) add_remote(inner->caps.bits, &f);
    f.describe_peer = [](weir_transport_t* t, uint32_t p, char* text, size_t b) {
      from(t)->describe_peer(p, text, b);
    };
    if ((f.caps.bits & WEIR_CAP_DEVICE_MEMORY) != 0) add_devices(&f);
    if (can_leave(*inner)) common::add_peer_leave<Hook>(&f);
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const weir_transport_functions_t* functions() const { return &functions_; }

 private:
  static void add_remote(uint64_t bits, weir_transport_functions_t* f) {
    f->remote_caps = [](weir_transport_t* t, char* r, size_t b) {
      return from(t)->remote_caps(r, b);
    };
    f->memory_register = [](weir_transport_t* t, void* d, uint64_t b, weir_transport_memory_t** m) {
      return from(t)->memory_register(d, b, m);
    };
    f->memory_key = [](weir_transport_t* t, const weir_transport_memory_t* m, unsigned char* k,
                       size_t* b) { return from(t)->memory_key(m, k, b); };
    f->memory_deregister = [](weir_transport_t* t, weir_transport_memory_t* m) {
      from(t)->memory_deregister(m);
    };
    f->remote_open = [](weir_transport_t* t, uint32_t p, const unsigned char* k, size_t b,
                        weir_transport_remote_t** r) { return from(t)->remote_open(p, k, b, r); };
    f->remote_close = [](weir_transport_t* t, weir_transport_remote_t* r) {
      from(t)->remote_close(r);
    };
    if ((bits & WEIR_CAP_PUT) != 0) {
      f->put = [](weir_transport_t* t, const weir_transport_remote_t* r, uint64_t at, const void* d,
                  uint64_t b, weir_transport_op_t* o) {
        return from(t)->access({r, at, const_cast<void*>(d), b, nullptr, 0, 0, false}, o);
      };
    }
    if ((bits & WEIR_CAP_GET) != 0) {
      f->get = [](weir_transport_t* t, const weir_transport_remote_t* r, uint64_t at, void* d,
                  uint64_t b, weir_transport_op_t* o) {
        return from(t)->access({r, at, d, b, nullptr, 0, 0, true}, o);
      };
    }
    if ((bits & WEIR_CAP_SIGNAL) != 0) {
      f->put_signal = [](weir_transport_t* t, const weir_transport_remote_t* r, uint64_t at,
                         const void* d, uint64_t b, const weir_transport_remote_t* s, uint64_t word,
                         uint64_t value, weir_transport_op_t* o) {
        return from(t)->signal({r, at, const_cast<void*>(d), b, s, word, value, false}, o);
      };
      f->signal_read = [](weir_transport_t* t, const weir_transport_memory_t* m, uint64_t at,
                          uint64_t* v) { return from(t)->signal_read(m, at, v); };
    }
  }

  static void add_devices(weir_transport_functions_t* f) {
    f->device_viable = [](weir_transport_t* t, uint32_t p, int d, char* r, size_t b) {
      return from(t)->device_viable(p, d, r, b);
    };
    common::add_device_messages<Hook>(f);
  }

  static Hook* from(weir_transport_t* instance) { return reinterpret_cast<Hook*>(instance); }

  static weir_result_t viable(void* context, const weir_host_t* host, char* reason,
                              size_t reason_bytes) {
    const weir_transport_part_t* const parts = static_cast<const Table*>(context)->parts_.data();
    if constexpr (requires { &HookClass::viable; }) {
      return HookClass::viable(parts, host, reason, reason_bytes);
    } else {
      const weir_transport_functions_t* const inner = parts[0].transport;
      return inner->viable(inner->context, host, reason, reason_bytes);
    }
  }

  static weir_result_t open(void* context, const weir_host_t* host,
                            const weir_transport_config_t* config, weir_transport_t** instance) {
    const weir_transport_part_t* const parts = static_cast<const Table*>(context)->parts_.data();
    try {
      auto hook = std::make_unique<HookClass>(host, parts, *config);
      weir_result_t result = hook->start(*config);
      if (result == WEIR_OK) result = hook->open_inner(*config);
      if (result == WEIR_OK) {
        *instance = reinterpret_cast<weir_transport_t*>(static_cast<Hook*>(hook.release()));
      }
      return result;
    } catch (const std::bad_alloc&) {
      return WEIR_ERROR_NO_MEMORY;
    }
  }

  std::vector<weir_transport_part_t> parts_;
  std::string name_;
  weir_transport_functions_t functions_ = {};
};

// A table that is never freed.
template <class HookClass>
const weir_transport_functions_t* make_table(std::vector<weir_transport_part_t> parts) {
  return (new Table<HookClass>(std::move(parts)))->functions();
}
template <class HookClass>
const weir_transport_functions_t* make_table(const weir_transport_functions_t* inner) {
  return make_table<HookClass>(std::vector<weir_transport_part_t>{{inner, "wrapped"}});
}

}  // namespace weir::plugins::hook
