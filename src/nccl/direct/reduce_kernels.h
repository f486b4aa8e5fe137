// SPDX-License-Identifier: Apache-2.0
// ReduceKernels: the reduction kernels (kernels/reduce.cu) as this process's CUDA has loaded them, once
// for each context, and kept until the process ends. Where the library was built without nvcc there are
// none. Thread-safe.
#pragma once

#include <string>

#include "nccl/cuda/driver.h"
#include "nccl/kernels/reduce_arguments.h"
#include "weir/weir.h"

namespace weir::nccl {

struct ReduceKernels {
  cuda::Context context = nullptr;
  cuda::Function functions[kernels::kReduceCount] = {};
  std::string failure;  // not "": they could not be loaded

  cuda::Function of(weir_datatype_t type) const { return functions[static_cast<size_t>(type)]; }
};

// Whether this library and this CUDA have what it takes; if not, why.
bool has_reduce_kernels(const cuda::Driver& driver, std::string* reason);

// For the current context; loads them at the first call, which may wait for the device: call it before
// streams wait for this library. nullptr where they cannot be had, and why.
const ReduceKernels* reduce_kernels(const cuda::Driver& driver, std::string* reason);

}  // namespace weir::nccl
