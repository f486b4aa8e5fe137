// SPDX-License-Identifier: Apache-2.0
// What a test needs of CUDA's driver, for programs that are linked with a stand-in and run on other
// drivers, too: where that is not there the test is skipped, with the reason. The macros call CUDA,
// so not before a fork.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <climits>

#include "nccl/strict_cuda/strict_cuda.h"

namespace weir::cuda {

// Of the process. The strict libcuda has as many as a test asks for, and no function for it.
inline int device_count() {
  const auto get = reinterpret_cast<Result (*)(int*)>(dlsym(RTLD_DEFAULT, "cuDeviceGetCount"));
  if (get == nullptr) return INT_MAX;
  int count = 0;
  return cuInit(0) == kSuccess && get(&count) == kSuccess ? count : 0;
}
inline bool is_strict() { return strict_cuda_fail != nullptr; }
// Weir's stand-in (weir/hostcuda.h).
inline bool devices_are_host_memory() {
  return dlsym(RTLD_DEFAULT, "weir_hostcuda_has_memory") != nullptr;
}

}  // namespace weir::cuda

#define WEIR_NEEDS_DEVICES(count)                      \
  if (weir::cuda::device_count() < (count)) {          \
    GTEST_SKIP() << "needs " << (count) << " devices"; \
  }
#define WEIR_NEEDS_STRICT_CUDA()                                                        \
  if (!weir::cuda::is_strict()) {                                                       \
    GTEST_SKIP() << "needs a driver that fails as a test says: tests/nccl/strict_cuda"; \
  }
#define WEIR_NEEDS_DEVICE_MEMORY()                                        \
  if (weir::cuda::devices_are_host_memory()) {                            \
    GTEST_SKIP() << "needs devices whose memory the host does not reach"; \
  }
#define WEIR_NEEDS_HARDWARE_QUEUES()                                      \
  if (weir::cuda::devices_are_host_memory()) {                            \
    GTEST_SKIP() << "needs a driver whose streams share hardware queues"; \
  }
