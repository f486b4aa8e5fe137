// SPDX-License-Identifier: Apache-2.0
// DeviceKernels: the library's kernels (cuda/kernels/kernels.cu) as loaded by this process's CUDA,
// once for each context, and kept until the process ends. A library that was built without nvcc has
// none. Thread-safe.
#pragma once

#include <string>

#include "core/base/types.h"
#include "cuda/driver.h"
#include "cuda/kernels/reduce_arguments.h"

namespace weir::comm {

struct DeviceKernels {
  cuda::Context context = nullptr;
  cuda::Function functions[kernels::kReduceCount] = {};
  cuda::Function copies = nullptr;
  cuda::Function messages = nullptr;
  std::string failure;  // not "": they could not be loaded

  cuda::Function of(DataType type) const { return functions[static_cast<size_t>(type)]; }
};

// Whether this library has kernels and this CUDA can launch them; if not, why.
bool has_device_kernels(const cuda::Driver& driver, std::string* reason);

// For the current context; loads them at the first call, which may wait for the device: call it
// before streams wait for this library. nullptr: they cannot be loaded, and `reason` says why.
const DeviceKernels* device_kernels(const cuda::Driver& driver, std::string* reason);

}  // namespace weir::comm
