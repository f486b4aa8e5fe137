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
  return hook_hosts::make(parts[0], parts.size() > 1 ? parts[1] : shm::transport());
}

}  // namespace

std::span<const TransportFunction> builtin_transports() {
  static constexpr TransportFunction kTransports[] = {shm::transport, tcp::transport,
                                                      self::transport};
  return kTransports;
}

std::span<const BuiltinComposite> builtin_composites() {
  static constexpr BuiltinComposite kComposites[] = {
      {"check", true, hook<hook_check::wrap>}, {"fault", true, hook<hook_fault::wrap>},
      {"seal", true, hook<hook_seal::wrap>},   {"sum", true, hook<hook_sum::wrap>},
      {"trace", true, hook<hook_trace::wrap>}, {"hosts", true, hosts},
      {"failover", false, hook_failover::make}};
  return kComposites;
}

std::string fault_problem(std::string_view text) {
  hook_fault::Plan plan;
  return hook_fault::parse_plan(text, &plan);
}

}  // namespace weir::plugins
