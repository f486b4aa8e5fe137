// SPDX-License-Identifier: Apache-2.0
// What is linked into the library: transports, best first, and hooks. Listed by hand in builtin.cc,
// so that nothing depends on static constructors. Constant data; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins {

using TransportFunction = const weir_transport_functions_t* (*)();

// A hook makes a transport that passes everything on to `inner`. Null when its pool is used up.
struct BuiltinHook {
  const char* name;
  const weir_transport_functions_t* (*wrap)(const weir_transport_functions_t* inner);
};

std::span<const TransportFunction> builtin_transports();
std::span<const BuiltinHook> builtin_hooks();

// "" or what is wrong with the text of WEIR_FAULT, which tells the hook `fault` what to do.
std::string fault_problem(std::string_view text);

// A transport of which each but the first takes over when the one before it fails. The same list gives the
// same one; null with the reason.
const weir_transport_functions_t* builtin_failover(
    const std::vector<const weir_transport_functions_t*>& transports, std::string* reason);

}  // namespace weir::plugins
