// SPDX-License-Identifier: Apache-2.0
// failover: a transport made of several, of which one takes over when the one before it fails. See
// instance.h and docs/transports.md.
#include "plugins/hook_failover/failover.h"

#include <stdio.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "plugins/hook_failover/instance.h"

namespace weir::plugins::hook_failover {
namespace {

constexpr size_t kTables = 16;
constexpr uint64_t kCaps =
    WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_NOTICE | WEIR_CAP_SEALED;
constexpr uint64_t kNeededCaps = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_NOTICE;

struct Table {
  Chain chain;
  weir_transport_functions_t functions = {};
};

// Made once each and never destroyed; `open` and `viable` know their chain only by which table they
// are called through.
std::array<Table*, kTables> tables;

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

weir_result_t chain_viable(const Chain& chain, const weir_host_t* host, char* reason,
                           size_t reason_bytes) {
  std::string all;
  for (const weir_transport_functions_t* transport : chain.transports) {
    char one[512] = "";
    const weir_result_t result = transport->viable(host, one, sizeof one);
    all = result == WEIR_OK ? all + (all.empty() ? "" : "; ") + transport->name + " " + one
                            : std::string(transport->name) + ": " + one;
    if (result == WEIR_OK) continue;
    if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", all.c_str());
    return result;
  }
  if (reason_bytes != 0) snprintf(reason, reason_bytes, "%s", all.c_str());
  return WEIR_OK;
}

weir_result_t chain_open(const Chain& chain, const weir_host_t* host,
                         const weir_transport_config_t* config, weir_transport_t** instance) {
  const auto refuse = [&](weir_result_t code, const char* text) {
    if (host->error != nullptr) host->error(host->context, text);
    return code;
  };
  if (config->struct_bytes < sizeof *config || config->rank >= config->rank_count ||
      config->rank_count > chain.caps.rank_count_max) {
    return refuse(WEIR_ERROR_INVALID_ARGUMENT,
                  "failover: the configuration is of another version, or names a rank or a number "
                  "of ranks that cannot be");
  }
  try {
    auto self = std::make_unique<Instance>(host, chain, *config);
    const weir_result_t result = self->open(*config);
    if (result == WEIR_OK) *instance = reinterpret_cast<weir_transport_t*>(self.release());
    return result;
  } catch (const std::bad_alloc&) {
    return refuse(WEIR_ERROR_NO_MEMORY, "failover: no memory for an instance");
  }
}

template <size_t kIndex>
weir_result_t viable(const weir_host_t* host, char* reason, size_t reason_bytes) {
  return chain_viable(tables[kIndex]->chain, host, reason, reason_bytes);
}

template <size_t kIndex>
weir_result_t open(const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  return chain_open(tables[kIndex]->chain, host, config, instance);
}

struct Entry {
  decltype(weir_transport_functions_t::viable) viable;
  decltype(weir_transport_functions_t::open) open;
};

template <size_t... kIndices>
constexpr std::array<Entry, kTables> make_entries(std::index_sequence<kIndices...>) {
  return {Entry{viable<kIndices>, open<kIndices>}...};
}

constexpr std::array<Entry, kTables> kEntries = make_entries(std::make_index_sequence<kTables>{});

weir_transport_caps_t caps_of(const std::vector<const weir_transport_functions_t*>& transports) {
  weir_transport_caps_t caps = transports[0]->caps;
  uint64_t quiesce = 0;
  for (const weir_transport_functions_t* transport : transports) {
    const weir_transport_caps_t& other = transport->caps;
    caps.bits &= other.bits;
    caps.lane_count = std::min(caps.lane_count, other.lane_count);
    caps.message_bytes_max = std::min(caps.message_bytes_max, other.message_bytes_max);
    caps.rank_count_max = std::min(caps.rank_count_max, other.rank_count_max);
    caps.credit = std::min(caps.credit, other.credit);
    quiesce |= other.bits & WEIR_CAP_QUIESCE;
  }
  caps.bits = (caps.bits & kCaps) | quiesce;
  caps.memory_kinds = WEIR_MEMORY_HOST;  // copies are made
  caps.lane_count = std::min(caps.lane_count - 1, kLanesMax);
  caps.credit = std::min(caps.credit, kWindow);
  return caps;
}

weir_transport_functions_t functions_of(size_t index) {
  weir_transport_functions_t f = {};
  f.abi_version = WEIR_PLUGIN_ABI_VERSION;
  f.struct_bytes = sizeof f;
  f.name = tables[index]->chain.name.c_str();
  f.summary = "transports of which one takes over when the one before it fails";
  f.caps = tables[index]->chain.caps;
  f.viable = kEntries[index].viable;
  f.open = kEntries[index].open;
  f.address = [](weir_transport_t* t, unsigned char* a, size_t* b) {
    return from(t)->address(a, b);
  };
  f.connect = [](weir_transport_t* t, const unsigned char* const* a, const size_t* b, uint64_t d) {
    try {
      return from(t)->connect(a, b, d);
    } catch (const std::bad_alloc&) {
      return WEIR_ERROR_NO_MEMORY;
    }
  };
  f.close = [](weir_transport_t* t) { delete from(t); };
  f.send = [](weir_transport_t* t, uint32_t p, uint32_t l, const void* d, uint64_t b,
              weir_transport_op_t* o) {
    return from(t)->send(p, l, d, b, reinterpret_cast<Op*>(o));
  };
  f.recv = [](weir_transport_t* t, uint32_t p, uint32_t l, void* d, uint64_t b,
              weir_transport_op_t* o) {
    return from(t)->recv(p, l, d, b, reinterpret_cast<Op*>(o));
  };
  f.test = [](weir_transport_t* t, weir_transport_op_t* o) {
    return from(t)->test(reinterpret_cast<Op*>(o));
  };
  f.progress = [](weir_transport_t* t) { return from(t)->progress(); };
  f.peer_alive = [](weir_transport_t* t, uint32_t p) { return from(t)->peer_alive(p); };
  f.notice_show = [](weir_transport_t* t, const void* n, size_t b) {
    return from(t)->notice_show(n, b);
  };
  f.notice_read = [](weir_transport_t* t, uint32_t p, void* n, size_t* b) {
    return from(t)->notice_read(p, n, b);
  };
  if ((f.caps.bits & WEIR_CAP_QUIESCE) != 0) {
    f.quiesce = [](weir_transport_t* t) { from(t)->quiesce(); };
  }
  f.describe_peer = [](weir_transport_t* t, uint32_t p, char* text, size_t b) {
    from(t)->describe_peer(p, text, b);
  };
  return f;
}

}  // namespace

const weir_transport_functions_t* wrap(
    const std::vector<const weir_transport_functions_t*>& transports, std::string* reason) {
  for (const weir_transport_functions_t* transport : transports) {
    const bool good = (transport->caps.bits & kNeededCaps) == kNeededCaps &&
                      transport->caps.lane_count >= 2 &&
                      (transport->caps.bits & WEIR_CAP_SEGMENT) == 0;
    if (good) continue;
    *reason = std::string("transport '") + transport->name +
              "' cannot take part: messages on two lanes, reports of dead peers and notices are "
              "needed, and no mapped memory";
    return nullptr;
  }
  size_t index = 0;
  while (index < kTables && tables[index] != nullptr) {
    if (tables[index]->chain.transports == transports) return &tables[index]->functions;
    ++index;
  }
  if (transports.size() < 2 || transports.size() > kTransportsMax || index == kTables) {
    *reason = index == kTables ? "too many different lists of transports"
                               : "2 to " + std::to_string(kTransportsMax) + " are needed";
    return nullptr;
  }
  auto* table = new Table;
  table->chain.transports = transports;
  for (const weir_transport_functions_t* transport : transports) {
    table->chain.name += table->chain.name.empty() ? "failover(" : ",";
    table->chain.name += transport->name;
  }
  table->chain.name += ")";
  table->chain.caps = caps_of(transports);
  tables[index] = table;
  table->functions = functions_of(index);
  return &table->functions;
}

}  // namespace weir::plugins::hook_failover
