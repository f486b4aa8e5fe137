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
const weir_transport_functions_t* wrap(const weir_transport_functions_t* inner,
                                       const weir_transport_functions_t* local);
}

std::span<const TransportFunction> builtin_transports() {
  static constexpr TransportFunction kTransports[] = {shm::transport, tcp::transport,
                                                      self::transport};
  return kTransports;
}

std::span<const BuiltinHook> builtin_hooks() {
  static constexpr BuiltinHook kHooks[] = {{"check", hook_check::wrap},
                                           {"fault", hook_fault::wrap},
                                           {"seal", hook_seal::wrap},
                                           {"sum", hook_sum::wrap},
                                           {"trace", hook_trace::wrap},
                                           {"hosts", [](const weir_transport_functions_t* inner) {
                                              return hook_hosts::wrap(inner, shm::transport());
                                            }}};
  return kHooks;
}

std::string fault_problem(std::string_view text) {
  hook_fault::Plan plan;
  return hook_fault::parse_plan(text, &plan);
}

const weir_transport_functions_t* builtin_failover(
    const std::vector<const weir_transport_functions_t*>& transports, std::string* reason) {
  return hook_failover::wrap(transports, reason);
}

}  // namespace weir::plugins
