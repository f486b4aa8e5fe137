// SPDX-License-Identifier: Apache-2.0
// Loader: opens a shared object only after it has been found safe to open, and takes its function
// table only after it has been found complete. No state; thread-safe.
#pragma once

#include <string>

#include "core/base/status.h"
#include "weir/plugin.h"

namespace weir::plugin {

// The table of the plugin in `path`. An object that was opened stays loaded until the process ends,
// also one that is refused: what its constructors have started may still run. Does not look at the
// name's uniqueness: that is the registry's.
Result<const weir_transport_functions_t*> open_plugin(const std::string& path);

// All that can be said about a table without calling it: version, size, functions for the declared
// capabilities, sane limits. The text has no file name.
Status check_functions(const weir_transport_functions_t* functions);

}  // namespace weir::plugin
