// SPDX-License-Identifier: Apache-2.0
// Loader: opens a shared object only after checking that it is safe to open, and accepts its
// function table only after checking that it is complete. No state; thread-safe.
#pragma once

#include <string>

#include "core/base/status.h"
#include "weir/plugin.h"

namespace weir::plugin {

// The table of the plugin in `path`. An opened object stays loaded until the process ends, even if
// it is refused: threads that its constructors have started may still run. The registry checks that
// the name is unique.
Result<const weir_transport_functions_t*> open_plugin(const std::string& path);

// Checks a plugin's table as far as possible without calling it: version, size, functions for the
// declared capabilities, sane limits, and that it is not a composite. The text has no file name.
Status check_functions(const weir_transport_functions_t* functions);

}  // namespace weir::plugin
