// SPDX-License-Identifier: Apache-2.0
// Modules: images of device code that a program loads, and functions found in them by name. An image is
// not looked into but for its kind; a name is in every module when it has a host function (kernels.h).
// Thread-safe.
#pragma once

#include "hostcuda/core/error.h"

namespace weir::hostcuda {

// Of a cubin, a fatbin or PTX; kInvalidImage when it is none.
Error load_module(const void* image, void** module);
// Functions of it are unknown from then on; what was launched still runs.
Error unload_module(void* module);
// The address that a launch names, the same for the same name. kNotFound, with a line on stderr once for
// each kernel, when there is no host function.
Error module_function(void* module, const char* name, void** function);

}  // namespace weir::hostcuda
