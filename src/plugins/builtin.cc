// SPDX-License-Identifier: Apache-2.0
#include "plugins/builtin.h"

#include "plugins/hook_failover/failover.h"
#include "plugins/hook_fault/plan.h"

namespace weir::plugins {

namespace self {
const weir_transport_functions_t* transport();
}
namespace shm {
const weir_transport_functions_t* transport();
}
namespace tcp {
const weir_transport_functions_t* transport();
}
namespace hook_check {
const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner);
}
namespace hook_fault {
const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner);
}
namespace hook_seal {
const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner);
}
namespace hook_sum {
const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner);
}
namespace hook_trace {
const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner);
}
namespace hook_hosts {
const weir_transport_functions_t* make(const weir_transport_functions_t* network,
                                       const weir_transport_functions_t* local);
}

namespace {

using Parts = std::vector<const weir_transport_functions_t*>;

template <const weir_transport_functions_t* (*wrap)(const weir_transport_functions_t*)>
const weir_transport_functions_t* hook(const Parts& parts, std::string*) {
  return wrap(parts[0]);
}

const weir_transport_functions_t* hosts(const Parts& parts, std::string*) {
  return hook_hosts::make(parts[0], parts[1]);
}

}  // namespace

std::span<const TransportFunction> builtin_transports() {
  static constexpr TransportFunction kTransports[] = {shm::transport, tcp::transport,
                                                      self::transport};
  return kTransports;
}

std::span<const BuiltinComposite> builtin_composites() {
  static constexpr const char* kHook = "it is a hook, which WEIR_HOOKS names";
  static constexpr BuiltinComposite kComposites[] = {
      {"check", true, kHook, hook<hook_check::wrap>},
      {"fault", true, kHook, hook<hook_fault::wrap>},
      {"seal", true, kHook, hook<hook_seal::wrap>},
      {"sum", true, kHook, hook<hook_sum::wrap>},
      {"trace", true, kHook, hook<hook_trace::wrap>},
      {"hosts", false,
       "Weir makes it by itself of a network transport and shm where ranks share hosts; to choose "
       "these, list both, such as WEIR_TRANSPORT=shm,tcp",
       hosts},
      {"failover", false,
       "Weir makes it where WEIR_FAILOVER lists the transports that take over from that of "
       "WEIR_TRANSPORT",
       hook_failover::make}};
  return kComposites;
}

std::string fault_problem(std::string_view text) {
  hook_fault::Plan plan;
  return hook_fault::parse_plan(text, &plan);
}

}  // namespace weir::plugins
