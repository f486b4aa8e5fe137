// SPDX-License-Identifier: Apache-2.0
// Kernels: those that a program's compiled code registers, and the host functions that implement
// some of them. Thread-safe.
#pragma once

#include <cstddef>

#include "hostcuda/core/error.h"
#include "hostcuda/core/operation.h"

namespace weir::hostcuda {

// The address that a launch names, and the kernel's name: from __cudaRegisterFunction, or of a
// module.
void add_kernel_symbol(const void* symbol, const char* name);
void remove_kernel_symbol(const void* symbol);
// nullptr when the address is not a kernel's.
const char* kernel_name(const void* symbol);

// False, with a line on stderr once for each kernel, when there is none.
bool has_host_function(const char* name);

struct LaunchShape {
  unsigned grid[3];
  unsigned block[3];
  size_t shared_bytes;
};

// kInvalidDeviceFunction, with a line on stderr once for each kernel, when there is no host
// function.
Error make_kernel(const void* symbol, const LaunchShape& shape, void* const* arguments,
                  KernelOperation* operation);

}  // namespace weir::hostcuda
