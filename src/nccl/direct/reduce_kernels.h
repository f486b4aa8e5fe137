// SPDX-License-Identifier: Apache-2.0
// ReduceKernels: the reduction kernels (cuda/kernels/reduce.cu) as loaded by this process's CUDA,
// once for each context, and kept until the process ends. A library that was built without nvcc has
// none. Thread-safe.
#pragma once

#include <string>

#include "cuda/kernels/reduce_arguments.h"
#include "nccl/cuda/driver.h"
#include "weir/weir.h"

namespace weir::nccl {

struct ReduceKernels {
  cuda::Context context = nullptr;
  cuda::Function functions[kernels::kReduceCount] = {};
  std::string failure;  // not "": they could not be loaded

  cuda::Function of(weir_datatype_t type) const { return functions[static_cast<size_t>(type)]; }
};

// Whether this library has kernels and this CUDA can launch them; if not, why.
bool has_reduce_kernels(const cuda::Driver& driver, std::string* reason);

// For the current context; loads them at the first call, which may wait for the device: call it
// before streams wait for this library. nullptr: they cannot be loaded, and `reason` says why.
const ReduceKernels* reduce_kernels(const cuda::Driver& driver, std::string* reason);

}  // namespace weir::nccl
