// SPDX-License-Identifier: Apache-2.0
// For tests of what goes from device to device: what the strict libcuda counts of it; on another libcuda, nothing.
#pragma once

#include "nccl/stream_support.h"

extern "C" __attribute__((weak)) int strict_cuda_host_copies();
extern "C" __attribute__((weak)) int strict_cuda_kernels();

namespace weir::nccl::test {

inline int host_copies() {
  return strict_cuda_host_copies == nullptr ? 0 : strict_cuda_host_copies();
}
inline int kernels() { return strict_cuda_kernels == nullptr ? 0 : strict_cuda_kernels(); }

}  // namespace weir::nccl::test
