// SPDX-License-Identifier: Apache-2.0
// The transports (best first) and composites that are linked into the library, listed by hand in
// builtin.cc, so that nothing depends on static constructors. Constant data; thread-safe.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins {

using TransportFunction = const weir_transport_functions_t* (*)();

// Makes a transport from others. The table that `make` returns is never freed; null, with the
// reason, if the parts do not fit.
struct BuiltinComposite {
  const char* name;
  bool is_hook;        // WEIR_HOOKS may name it: it wraps one part
  const char* remedy;  // for who names it where it does not belong
  const weir_transport_functions_t* (*make)(
      const std::vector<const weir_transport_functions_t*>& parts, std::string* reason);
};

std::span<const TransportFunction> builtin_transports();
// The hooks, which pass everything on to one part; `hosts`, made of a network transport and one
// within a host; and `failover`, made of several, each of which takes over when the one before it
// fails.
std::span<const BuiltinComposite> builtin_composites();

// "" or what is wrong with the text of WEIR_FAULT, which tells the hook `fault` what to do.
std::string fault_problem(std::string_view text);

}  // namespace weir::plugins
