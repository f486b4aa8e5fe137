// SPDX-License-Identifier: Apache-2.0
// For tests of what goes from device to device, with what the strict libcuda counts of it; on
// another libcuda, nothing.
#pragma once

#include <cstdlib>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {

inline int host_copies() {
  return strict_cuda_host_copies == nullptr ? 0 : strict_cuda_host_copies();
}
inline int kernels() { return strict_cuda_kernels == nullptr ? 0 : strict_cuda_kernels(); }

// The strict libcuda is none that the library knows, as a real driver.
inline const int kTurnedOn = strict_cuda_kernels == nullptr ? 0 : setenv("WEIR_DIRECT", "1", 1);
// What is staged after all is so in several pieces; settings are read at the first call.
inline const int kStagedInPieces = setenv("WEIR_NCCL_CHUNK_BYTES", "64KiB", 1);

class DirectTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(kTurnedOn, 0);
    ASSERT_EQ(kStagedInPieces, 0);
    use_device(0);
  }
};

}  // namespace weir::nccl::test
