// SPDX-License-Identifier: Apache-2.0
// Hook: a transport that wraps another one and passes every call on. A derived class overrides what
// it wants to see or to change; the rest forwards. Pool turns such a class into function tables:
// `open` and `viable` know their inner transport only by which table they are called through, so
// the tables are made from a fixed number of instantiations.
//
// Threads as in plugin.h; Pool::wrap is called under the registry's lock.
#pragma once

#include <stdint.h>
#include <stdio.h>

#include <array>
#include <memory>
#include <new>
#include <utility>

#include "weir/plugin.h"

namespace weir::plugins::hook {

// All traffic must pass the hook: memory that peers load and store directly would go around it.
inline constexpr uint64_t kHiddenCaps = WEIR_CAP_SEGMENT | WEIR_CAP_WINDOW;

class Hook {
 public:
  Hook(const weir_host_t* host, const weir_transport_functions_t* inner,
       const weir_transport_config_t& config)
      : host_(host), inner_(inner), rank_(config.rank), rank_count_(config.rank_count) {}
  virtual ~Hook() = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  // Before anything else; an error ends `open` with it.
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
  virtual weir_result_t notice_show(const void* notice, size_t bytes) {
    return inner_->notice_show(instance_, notice, bytes);
  }
  virtual weir_result_t notice_read(uint32_t peer, void* notice, size_t* bytes) {
    return inner_->notice_read(instance_, peer, notice, bytes);
  }
  // The inner transport may have nothing to end.
  virtual void quiesce() {
    if ((inner_->caps.bits & WEIR_CAP_QUIESCE) != 0) inner_->quiesce(instance_);
  }
  // Closes the inner instance; afterwards the hook itself is disposed of.
  virtual void close() { inner_->close(instance_); }
  virtual void dispose() { delete this; }

  weir_result_t open_inner(const weir_transport_config_t& config) {
    return inner_->open(host_, &config, &instance_);
  }

 protected:
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

// `kName` and a constructor like Hook's are asked of HookClass; `limit`, if it has one, may take away
// from the inner transport's capabilities.
template <class HookClass>
class Pool {
 public:
  static constexpr size_t kTables = 16;

  // Null when all tables are taken.
  static const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner) {
    static size_t used = 0;
    if (used == kTables) return nullptr;
    const size_t index = used++;
    Table& table = tables_[index];
    table.inner = inner;
    snprintf(table.name, sizeof table.name, "%s(%s)", HookClass::kName, inner->name);
    weir_transport_functions_t& f = table.functions;
    f = {};
    f.abi_version = WEIR_PLUGIN_ABI_VERSION;
    f.struct_bytes = sizeof f;
    f.name = table.name;
    f.summary = inner->summary;
    f.caps = inner->caps;
    f.caps.bits &= ~kHiddenCaps;
    if constexpr (requires { HookClass::limit(&f.caps); }) HookClass::limit(&f.caps);
    f.viable = kEntries[index].viable;
    f.open = kEntries[index].open;
    f.address = [](weir_transport_t* t, unsigned char* a, size_t* b) {
      return from(t)->address(a, b);
    };
    f.connect = [](weir_transport_t* t, const unsigned char* const* a, const size_t* b,
                   uint64_t d) { return from(t)->connect(a, b, d); };
    f.close = [](weir_transport_t* t) {
      from(t)->close();
      from(t)->dispose();
    };
    f.send = [](weir_transport_t* t, uint32_t p, uint32_t l, const void* d, uint64_t b,
                weir_transport_op_t* o) { return from(t)->send(p, l, d, b, o); };
    f.recv = [](weir_transport_t* t, uint32_t p, uint32_t l, void* d, uint64_t b,
                weir_transport_op_t* o) { return from(t)->recv(p, l, d, b, o); };
    f.test = [](weir_transport_t* t, weir_transport_op_t* o) { return from(t)->test(o); };
    f.progress = [](weir_transport_t* t) { return from(t)->progress(); };
    if (inner->peer_alive != nullptr) {
      f.peer_alive = [](weir_transport_t* t, uint32_t p) { return from(t)->peer_alive(p); };
    }
    // The inner table may end before these.
    if ((inner->caps.bits & WEIR_CAP_NOTICE) != 0) {
      f.notice_show = [](weir_transport_t* t, const void* n, size_t b) {
        return from(t)->notice_show(n, b);
      };
      f.notice_read = [](weir_transport_t* t, uint32_t p, void* n, size_t* b) {
        return from(t)->notice_read(p, n, b);
      };
    }
    if ((f.caps.bits & WEIR_CAP_QUIESCE) != 0) {
      f.quiesce = [](weir_transport_t* t) { from(t)->quiesce(); };
    }
    return &f;
  }

 private:
  struct Table {
    const weir_transport_functions_t* inner;
    char name[80];
    weir_transport_functions_t functions;
  };
  struct Entry {
    decltype(weir_transport_functions_t::viable) viable;
    decltype(weir_transport_functions_t::open) open;
  };

  static Hook* from(weir_transport_t* instance) { return reinterpret_cast<Hook*>(instance); }

  template <size_t kIndex>
  static weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
    return tables_[kIndex].inner->viable(host, reason, reason_bytes);
  }

  template <size_t kIndex>
  static weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                            weir_transport_t** instance) {
    try {
      auto hook = std::make_unique<HookClass>(host, tables_[kIndex].inner, *config);
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

  template <size_t... kIndices>
  static constexpr std::array<Entry, kTables> entries(std::index_sequence<kIndices...>) {
    return {Entry{viable<kIndices>, open<kIndices>}...};
  }

  static inline Table tables_[kTables];
  static constexpr std::array<Entry, kTables> kEntries =
      entries(std::make_index_sequence<kTables>{});
};

}  // namespace weir::plugins::hook
