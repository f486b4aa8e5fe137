// SPDX-License-Identifier: Apache-2.0
// Modules: images of device code that a program loads, and functions found in them by name. Only
// the kind of an image is examined; every module contains each name that has a host function
// (kernels.h). Thread-safe.
#pragma once

#include "hostcuda/core/error.h"

namespace weir::hostcuda {

// Loads a cubin, a fatbin or PTX; kInvalidImage for anything else.
Error load_module(const void* image, void** module);
// Its functions become invalid; work already launched still runs.
Error unload_module(void* module);
// The address that a launch names, the same for the same name. kNotFound, with a line on stderr
// once for each kernel, when there is no host function.
Error module_function(void* module, const char* name, void** function);

}  // namespace weir::hostcuda
