// SPDX-License-Identifier: Apache-2.0
// Transports by name: the built-in ones (listed by hand), external ones (loaded from
// WEIR_PLUGIN_PATH after checks), modules (files next to the library, loaded on request after the
// same checks), and composites of them, such as hooks. The same parts give the same composite. All
// tables live until the process ends. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "weir/plugin.h"

namespace weir::plugin {

struct Viability {
  const weir_transport_functions_t* transport;
  bool viable;
  std::string reason;  // why not; for a viable one, what it would use, if it says so
  std::string origin;  // "built in" or the file
};

// All loaded transports, with their viability on this machine, best first. Where WEIR_TLS requires
// sealed messages, the viability is that of sealed_for's result.
std::vector<Viability> list_transports(const weir_host_t& host);
// The same, one after another, until `take` returns false: the others are not asked, which for some
// takes as long as the rest of the choice. `take` must call no function of this header.
void visit_transports(const weir_host_t& host, const std::function<bool(const Viability&)>& take);

// Loads every module of the library (module_folder.h), for a caller that lists all transports. A
// program that requests no module never runs code of the libraries that modules need.
void load_modules();

// Finds a transport by name, also "self"; loads a module of that name. kUnsupported, with the known
// names, when there is none; kRefused when the module fails its checks.
Result<const weir_transport_functions_t*> find_transport(std::string_view name);

// `hooks` is a comma list such as "trace,check": the outermost first. Returns `inner` when it is
// empty. A wrapped transport keeps its capabilities except mapped memory (WEIR_CAP_SEGMENT and
// WINDOW): all traffic must pass through the hook. Unknown hook names are an error.
Result<const weir_transport_functions_t*> wrap_with_hooks(const weir_transport_functions_t* inner,
                                                          std::string_view hooks);

// WEIR_FAULT is checked whether or not the hook that uses it is there; if nothing uses it, a
// warning is logged once.
Status check_fault(std::string_view fault, std::string_view hooks);

// `transport` itself, or, where WEIR_TLS is "all" and it does not encrypt its messages
// (WEIR_CAP_SEALED), that transport wrapped in the hook seal. `tls` is the value of WEIR_TLS, null
// or "" where it is unset.
Result<const weir_transport_functions_t*> sealed_for(const char* tls,
                                                     const weir_transport_functions_t* transport);

// A transport that sends messages between ranks of one host over `local`, all others over
// `network`.
Result<const weir_transport_functions_t*> make_hosts(const weir_transport_functions_t* network,
                                                     const weir_transport_functions_t* local);

// A transport that carries all messages over the first of `transports`, and over the next one when
// that fails between two ranks. kUnsupported when one of them cannot take part.
Result<const weir_transport_functions_t*> make_failover(
    const std::vector<const weir_transport_functions_t*>& transports);

// For people, the parts of a transport that has several, from the outside in: "hosts(ucx): ucx
// between hosts, shm within a host"; "" for others. Nested composites are listed too.
std::string describe_parts(const weir_transport_functions_t& transport);

// Loads one shared object: absolute path, owned by root or by us, not writable by others, right ABI
// version, struct size, name not taken. Errors name file and reason.
Result<const weir_transport_functions_t*> load_transport(const std::string& path);

}  // namespace weir::plugin
