// SPDX-License-Identifier: Apache-2.0
// An error of CUDA's driver as NCCL's. Stateless; thread-safe.
#pragma once

#include "core/comm/stream/cuda_error.h"
#include "nccl/base/outcome.h"

namespace weir::nccl {

// ncclUnhandledCudaError with CUDA's name of the error.
inline Outcome cuda_failed(const cuda::Driver& driver, const char* function, const char* call,
                           cuda::Result result) {
  return outcome_of(comm::cuda_failed(driver, function, call, result));
}

}  // namespace weir::nccl
