// SPDX-License-Identifier: Apache-2.0
// The functions of a table (weir/plugin.h) for a transport whose instance is an object of a class
// T: each calls the method of its name. Those that open, connect or register return
// WEIR_ERROR_NO_MEMORY when memory runs out. T has these members, with the parameters of plugin.h
// except the instance:
//
//   using Op                   what it makes of weir_transport_op_t
//   address, connect, send, recv, test, progress
//
// for table_of also
//
//   kName, kRankCountMax       of the table, and of configurations, which are checked here
//   Report report
//   static bool viable(host, std::string* text); the text: why not, or what it would use
//   static weir_result_t open(host, config, std::unique_ptr<T>*)
//
// and those of the following that it supports:
//
//   peer_alive, quiesce, peer_leave
//   segment, with window_open and window_close
//   std::string describe(peer); "" where there is nothing to tell
//   std::string device_gap(); "", or why no message may lie on a device
//   device_message(sending, peer, lane, data, bytes, device, op)
//   using OneSided             whose operations are those of plugin.h from memory_register on
//     struct Inside            made of a T& for the time that a call of them is under way
//     std::string remote_gap(); "", or why there are none
//     OneSided* one_sided(); null where they have ended, or not begun; then a call returns
//     weir_result_t no_one_sided(), which tells the error
#pragma once

#include <stdio.h>

#include <memory>
#include <new>
#include <string>

#include "plugins/common/config.h"
#include "plugins/common/report.h"
#include "weir/plugin.h"

namespace weir::plugins::common {

template <class T>
T* instance_of(weir_transport_t* instance) {
  return reinterpret_cast<T*>(instance);
}

// Runs `body`, which may allocate.
template <class Body>
weir_result_t guarded(const Report& report, const char* what, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return report.fail(WEIR_ERROR_NO_MEMORY, std::string("no memory ") + what);
  }
}

inline void write_text(const std::string& text, char* out, size_t out_bytes) {
  if (out_bytes != 0) snprintf(out, out_bytes, "%s", text.c_str());
}

// The functions that every transport and every hook has.
template <class T>
constexpr void add_messages(weir_transport_functions_t* f) {
  using Op = typename T::Op;
  f->address = [](weir_transport_t* t, unsigned char* out, size_t* bytes) {
    return instance_of<T>(t)->address(out, bytes);
  };
  f->send = [](weir_transport_t* t, uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
               weir_transport_op_t* op) {
    return instance_of<T>(t)->send(peer, lane, data, bytes, reinterpret_cast<Op*>(op));
  };
  f->recv = [](weir_transport_t* t, uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
               weir_transport_op_t* op) {
    return instance_of<T>(t)->recv(peer, lane, data, bytes, reinterpret_cast<Op*>(op));
  };
  f->test = [](weir_transport_t* t, weir_transport_op_t* op) {
    return instance_of<T>(t)->test(reinterpret_cast<Op*>(op));
  };
  f->progress = [](weir_transport_t* t) { return instance_of<T>(t)->progress(); };
}

template <class T>
constexpr void add_peer_alive(weir_transport_functions_t* f) {
  f->peer_alive = [](weir_transport_t* t, uint32_t p) { return instance_of<T>(t)->peer_alive(p); };
}

template <class T>
constexpr void add_quiesce(weir_transport_functions_t* f) {
  f->quiesce = [](weir_transport_t* t) { instance_of<T>(t)->quiesce(); };
}

template <class T>
constexpr void add_peer_leave(weir_transport_functions_t* f) {
  f->peer_leave = [](weir_transport_t* t, uint32_t p) { return instance_of<T>(t)->peer_leave(p); };
}

// `T::device_message(sending, peer, lane, data, bytes, device, op)`.
template <class T>
constexpr void add_device_messages(weir_transport_functions_t* f) {
  using Op = typename T::Op;
  f->device_send = [](weir_transport_t* t, uint32_t peer, uint32_t lane, const void* data,
                      uint64_t bytes, int device, weir_transport_op_t* op) {
    return instance_of<T>(t)->device_message(true, peer, lane, const_cast<void*>(data), bytes,
                                             device, reinterpret_cast<Op*>(op));
  };
  f->device_recv = [](weir_transport_t* t, uint32_t peer, uint32_t lane, void* data, uint64_t bytes,
                      int device, weir_transport_op_t* op) {
    return instance_of<T>(t)->device_message(false, peer, lane, data, bytes, device,
                                             reinterpret_cast<Op*>(op));
  };
}

// One-sided operations as `T::OneSided` has them.
template <class T>
struct OneSidedCalls {
  using OneSided = typename T::OneSided;
  using Region = typename OneSided::Region;
  using Remote = typename OneSided::Remote;
  using Op = typename OneSided::Op;

  // Const for the caller, but not here: the object counts its operations.
  static Remote* of(const weir_transport_remote_t* remote) {
    return const_cast<Remote*>(reinterpret_cast<const Remote*>(remote));
  }
  static const Region& of(const weir_transport_memory_t* memory) {
    return *reinterpret_cast<const Region*>(memory);
  }
  static Op* of(weir_transport_op_t* op) { return reinterpret_cast<Op*>(op); }

  template <class Call>
  static weir_result_t with(weir_transport_t* t, const Call& call) {
    T* const self = instance_of<T>(t);
    OneSided* const one_sided = self->one_sided();
    if (one_sided == nullptr) [[unlikely]]
      return self->no_one_sided();
    const typename T::Inside inside(*self);
    return guarded(self->report, "for remote memory", [&] { return call(one_sided); });
  }

  static constexpr void add(weir_transport_functions_t* f) {
    f->remote_caps = [](weir_transport_t* t, char* reason, size_t reason_bytes) {
      const std::string gap = instance_of<T>(t)->remote_gap();
      write_text(gap, reason, reason_bytes);
      return gap.empty() ? uint64_t{WEIR_CAP_PUT | WEIR_CAP_GET | WEIR_CAP_SIGNAL} : 0;
    };
    f->memory_register = [](weir_transport_t* t, void* base, uint64_t bytes,
                            weir_transport_memory_t** memory) {
      return with(t, [&](OneSided* it) {
        Region* region = nullptr;
        const weir_result_t result = it->memory_register(base, bytes, &region);
        *memory = reinterpret_cast<weir_transport_memory_t*>(region);
        return result;
      });
    };
    f->memory_key = [](weir_transport_t* t, const weir_transport_memory_t* memory,
                       unsigned char* key, size_t* bytes) {
      return with(t, [&](OneSided* it) { return it->memory_key(of(memory), key, bytes); });
    };
    f->memory_deregister = [](weir_transport_t* t, weir_transport_memory_t* memory) {
      OneSided* const it = instance_of<T>(t)->one_sided();
      if (it == nullptr) return;  // it has ended already
      const typename T::Inside inside(*instance_of<T>(t));
      it->memory_deregister(reinterpret_cast<Region*>(memory));
    };
    f->remote_open = [](weir_transport_t* t, uint32_t peer, const unsigned char* key, size_t bytes,
                        weir_transport_remote_t** remote) {
      return with(t, [&](OneSided* it) {
        Remote* opened = nullptr;
        const weir_result_t result = it->remote_open(peer, key, bytes, &opened);
        *remote = reinterpret_cast<weir_transport_remote_t*>(opened);
        return result;
      });
    };
    f->remote_close = [](weir_transport_t* t, weir_transport_remote_t* remote) {
      OneSided* const it = instance_of<T>(t)->one_sided();
      if (it != nullptr) it->remote_close(of(remote));
    };
    f->put = [](weir_transport_t* t, const weir_transport_remote_t* remote, uint64_t offset_bytes,
                const void* data, uint64_t bytes, weir_transport_op_t* op) {
      return with(t, [&](OneSided* it) {
        return it->access(of(remote), offset_bytes, const_cast<void*>(data), bytes, false, of(op));
      });
    };
    f->get = [](weir_transport_t* t, const weir_transport_remote_t* remote, uint64_t offset_bytes,
                void* data, uint64_t bytes, weir_transport_op_t* op) {
      return with(t, [&](OneSided* it) {
        return it->access(of(remote), offset_bytes, data, bytes, true, of(op));
      });
    };
    f->put_signal = [](weir_transport_t* t, const weir_transport_remote_t* remote,
                       uint64_t offset_bytes, const void* data, uint64_t bytes,
                       const weir_transport_remote_t* signal, uint64_t word_offset_bytes,
                       uint64_t value, weir_transport_op_t* op) {
      return with(t, [&](OneSided* it) {
        return it->put_signal(of(remote), offset_bytes, data, bytes, of(signal), word_offset_bytes,
                              value, of(op));
      });
    };
    f->signal_read = [](weir_transport_t* t, const weir_transport_memory_t* memory,
                        uint64_t offset_bytes, uint64_t* value) {
      const weir_result_t moved = instance_of<T>(t)->progress();
      if (moved != WEIR_OK) return moved;
      return with(t,
                  [&](OneSided* it) { return it->signal_read(of(memory), offset_bytes, value); });
    };
  }
};

template <class T>
constexpr weir_transport_functions_t table_of(const char* summary,
                                              const weir_transport_caps_t& caps) {
  weir_transport_functions_t f = {};
  f.abi_version = WEIR_PLUGIN_ABI_VERSION;
  f.struct_bytes = sizeof f;
  f.name = T::kName;
  f.summary = summary;
  f.caps = caps;
  f.viable = [](void*, const weir_host_t* host, char* reason, size_t reason_bytes) {
    try {
      std::string text;
      const bool is_viable = T::viable(host, &text);
      write_text(text, reason, reason_bytes);
      return is_viable ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
    } catch (const std::bad_alloc&) {
      write_text("no memory", reason, reason_bytes);
      return WEIR_ERROR_UNSUPPORTED;
    }
  };
  f.open = [](void*, const weir_host_t* host, const weir_transport_config_t* config,
              weir_transport_t** instance) {
    const Report report = {host, T::kName};
    return guarded(report, "for an instance", [&] {
      const std::string problem = config_problem(*config, T::kRankCountMax);
      if (!problem.empty()) return report.fail(WEIR_ERROR_INVALID_ARGUMENT, problem);
      std::unique_ptr<T> made;
      const weir_result_t result = T::open(host, *config, &made);
      if (result == WEIR_OK) *instance = reinterpret_cast<weir_transport_t*>(made.release());
      return result;
    });
  };
  f.connect = [](weir_transport_t* t, const unsigned char* const* addresses,
                 const size_t* address_bytes, uint64_t deadline_ns) {
    T* const self = instance_of<T>(t);
    return guarded(self->report, "while joining the ranks",
                   [&] { return self->connect(addresses, address_bytes, deadline_ns); });
  };
  f.close = [](weir_transport_t* t) { delete instance_of<T>(t); };
  add_messages<T>(&f);
  if constexpr (requires { &T::peer_alive; }) add_peer_alive<T>(&f);
  if constexpr (requires { &T::quiesce; }) add_quiesce<T>(&f);
  if constexpr (requires { &T::peer_leave; }) add_peer_leave<T>(&f);
  if constexpr (requires { &T::segment; }) {
    f.segment = [](weir_transport_t* t, weir_segment_t* out) {
      return instance_of<T>(t)->segment(out);
    };
    f.window_open = [](weir_transport_t* t, const unsigned char* key, uint64_t bytes_per_rank,
                       uint64_t deadline_ns, weir_segment_t* window) {
      T* const self = instance_of<T>(t);
      return guarded(self->report, "while opening a window",
                     [&] { return self->window_open(key, bytes_per_rank, deadline_ns, window); });
    };
    f.window_close = [](weir_transport_t* t, const weir_segment_t* window) {
      instance_of<T>(t)->window_close(window);
    };
  }
  if constexpr (requires { &T::describe; }) {
    f.describe_peer = [](weir_transport_t* t, uint32_t peer, char* text, size_t text_bytes) {
      write_text(instance_of<T>(t)->describe(peer), text, text_bytes);
    };
  }
  if constexpr (requires { &T::device_gap; }) {
    f.device_viable = [](weir_transport_t* t, uint32_t, int, char* reason, size_t reason_bytes) {
      const std::string gap = instance_of<T>(t)->device_gap();
      write_text(gap, reason, reason_bytes);
      return gap.empty() ? WEIR_OK : WEIR_ERROR_UNSUPPORTED;
    };
    add_device_messages<T>(&f);
  }
  if constexpr (requires { typename T::OneSided; }) OneSidedCalls<T>::add(&f);
  return f;
}

}  // namespace weir::plugins::common
