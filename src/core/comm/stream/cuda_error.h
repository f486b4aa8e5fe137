// SPDX-License-Identifier: Apache-2.0
// An error of CUDA's driver as a Status. Stateless; thread-safe.
#pragma once

#include <string>

#include "core/base/status.h"
#include "cuda/driver.h"

namespace weir::comm {

// kSystem: "function: call: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
inline Status cuda_failed(const cuda::Driver& driver, const char* function, const char* call,
                          cuda::Result result) {
  std::string text = function;
  text.append(": ").append(call).append(": ").append(cuda::describe_error(driver, result));
  return Status(Code::kSystem, std::move(text));
}

}  // namespace weir::comm
