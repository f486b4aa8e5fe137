// SPDX-License-Identifier: Apache-2.0
// failover: a transport made of several, of which one takes over when the one before it fails. See
// instance.h and docs/transports.md.
#include "plugins/hook_failover/failover.h"

#include <stdio.h>

#include <algorithm>
#include <new>

#include "plugins/common/table.h"
#include "plugins/hook/hook.h"
#include "plugins/hook_failover/instance.h"

namespace weir::plugins::hook_failover {
namespace {

constexpr uint64_t kCaps =
    WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE | WEIR_CAP_SELF | WEIR_CAP_SEALED;
constexpr uint64_t kNeededCaps = WEIR_CAP_SEND_RECV | WEIR_CAP_PEER_FAILURE;

struct Table {
  Chain chain;
  weir_transport_functions_t functions = {};
};

const Chain& chain_of(void* context) { return static_cast<const Table*>(context)->chain; }

Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

weir_result_t viable(void* context, const weir_host_t* host, char* reason, size_t reason_bytes) {
  return hook::parts_viable(chain_of(context).parts.data(), host, reason, reason_bytes);
}

weir_result_t open(void* context, const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance) {
  const Chain& chain = chain_of(context);
  const auto refuse = [&](weir_result_t code, const char* text) {
    if (host->error != nullptr) host->error(host->context, text);
    return code;
  };
  if (config->struct_bytes < sizeof *config || config->rank >= config->rank_count ||
      config->rank_count > chain.caps.rank_count_max) {
    return refuse(WEIR_ERROR_INVALID_ARGUMENT,
                  "failover: the configuration is of another version, or its rank or number of "
                  "ranks is invalid");
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

weir_transport_functions_t functions_of(Table* table) {
  weir_transport_functions_t f = {};
  f.abi_version = WEIR_PLUGIN_ABI_VERSION;
  f.struct_bytes = sizeof f;
  f.name = table->chain.name.c_str();
  f.summary = "transports of which one takes over when the one before it fails";
  f.caps = table->chain.caps;
  f.context = table;
  f.parts = table->chain.parts.data();
  f.viable = viable;
  f.open = open;
  common::add_messages<Instance>(&f);
  common::add_peer_alive<Instance>(&f);
  if ((f.caps.bits & WEIR_CAP_QUIESCE) != 0) common::add_quiesce<Instance>(&f);
  f.connect = [](weir_transport_t* t, const unsigned char* const* a, const size_t* b, uint64_t d) {
    try {
      return from(t)->connect(a, b, d);
    } catch (const std::bad_alloc&) {
      return WEIR_ERROR_NO_MEMORY;
    }
  };
  f.close = [](weir_transport_t* t) { delete from(t); };
  f.describe_peer = [](weir_transport_t* t, uint32_t p, char* text, size_t b) {
    from(t)->describe_peer(p, text, b);
  };
  return f;
}

}  // namespace

const weir_transport_functions_t* make(
    const std::vector<const weir_transport_functions_t*>& transports, std::string* reason) {
  for (const weir_transport_functions_t* transport : transports) {
    const bool good = (transport->caps.bits & kNeededCaps) == kNeededCaps &&
                      transport->caps.lane_count >= 2 &&
                      (transport->caps.bits & WEIR_CAP_SEGMENT) == 0;
    if (good) continue;
    *reason = std::string("transport '") + transport->name +
              "' cannot take part: messages on two lanes and reports of dead peers are "
              "needed, and no mapped memory";
    return nullptr;
  }
  if (transports.size() < 2 || transports.size() > kTransportsMax) {
    *reason = "2 to " + std::to_string(kTransportsMax) + " are needed";
    return nullptr;
  }
  auto* table = new Table;
  for (const weir_transport_functions_t* transport : transports) {
    table->chain.name += table->chain.name.empty() ? "failover(" : ",";
    table->chain.name += transport->name;
    table->chain.parts.push_back(
        {transport, table->chain.parts.empty() ? "first" : "when it fails"});
  }
  table->chain.name += ")";
  table->chain.parts.push_back({nullptr, nullptr});
  table->chain.caps = caps_of(transports);
  table->functions = functions_of(table);
  return &table->functions;
}

}  // namespace weir::plugins::hook_failover
