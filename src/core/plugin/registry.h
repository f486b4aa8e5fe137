// SPDX-License-Identifier: Apache-2.0
// Transports by name: the built-in ones (listed by hand), external ones (loaded from
// WEIR_PLUGIN_PATH after checks), modules (files beside the library, loaded after the same checks
// when somebody asks for them), and hooks that wrap any of them. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "weir/plugin.h"

namespace weir::plugin {

struct Viability {
  const weir_transport_functions_t* transport;
  bool viable;
  std::string reason;  // why not; of a viable one, what it would use, if it says so
  std::string origin;  // "built in" or the file
};

// All transports that are loaded, with their viability on this machine, best first: of those whose messages
// WEIR_TLS wants sealed, as sealed_for tells.
std::vector<Viability> list_transports(const weir_host_t& host);

// Loads every module that lies beside the library (module_folder.h), for who wants to see them all. A
// program that asks for none never runs a line of the libraries that they stand on.
void load_modules();

// By name; also "self". A module of that name is loaded. The struct lives for ever. kUnsupported
// with the known names otherwise, kRefused when there is a module that cannot be taken.
Result<const weir_transport_functions_t*> find_transport(std::string_view name);

// `hooks` is a comma list such as "trace,check": the outermost first. Returns `inner` when it is
// empty. A wrapped transport keeps its capabilities but mapped memory (WEIR_CAP_SEGMENT and
// WINDOW): all traffic must pass the hook. The struct lives for ever. Unknown hook names are an
// error.
Result<const weir_transport_functions_t*> wrap_with_hooks(const weir_transport_functions_t* inner,
                                                          std::string_view hooks);

// WEIR_FAULT is checked whether the hook that heeds it is there or not; one that nothing heeds is
// warned of, once.
Status check_fault(std::string_view fault, std::string_view hooks);

// `transport` itself, or, where WEIR_TLS is "all" and it does not encrypt its messages (WEIR_CAP_SEALED), the hook
// seal around it. `tls` is the value of WEIR_TLS, null or "" where it is unset. The struct lives for ever.
Result<const weir_transport_functions_t*> sealed_for(const char* tls,
                                                     const weir_transport_functions_t* transport);

// A transport that carries all messages over the first of `transports`, and over the next one when that fails
// between two ranks. kUnsupported when one of them cannot take part. The struct lives for ever.
Result<const weir_transport_functions_t*> make_failover(
    const std::vector<const weir_transport_functions_t*>& transports);

// Loads one shared object: absolute path, owned by root or by us, not writable by others, right ABI
// version, struct size, name not taken. Errors name file and reason.
Result<const weir_transport_functions_t*> load_transport(const std::string& path);

}  // namespace weir::plugin
