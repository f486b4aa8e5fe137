// SPDX-License-Identifier: Apache-2.0
// Ranks that are processes and use devices of the strict libcuda directly: all of them device 0, or
// each its own (WEIR_TEST_DEVICES=own).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <vector>

#include "nccl/processes.h"
#include "nccl/stream/stream_support.h"

// Null on another libcuda.
extern "C" __attribute__((weak)) int strict_cuda_host_copies();
extern "C" __attribute__((weak)) void strict_cuda_load_lazily();

namespace weir::nccl::test {

inline const bool kProcessesAreDirect = [] {
  setenv("WEIR_DIRECT", "1", 1);
  // Slots of 64 KiB, so that most collectives have several rounds; of 3 KiB and less for messages.
  setenv("WEIR_SCRATCH_BYTES", "192KiB", 1);
  return true;
}();

inline int host_copies() {
  return strict_cuda_host_copies == nullptr ? 0 : strict_cuda_host_copies();
}

// The communicator of a process that uses its device.
class Rank {
 public:
  Rank(int rank, ncclComm_t first) : rank_(rank) {
    use_device_of(rank);
    EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm_, nullptr));
    EXPECT_NCCL(ncclCommDestroy(first));
    EXPECT_NCCL(ncclCommCount(comm_, &n_));
  }
  ~Rank() { EXPECT_NCCL(ncclCommDestroy(comm_)); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;
  ncclComm_t comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return n_; }

 private:
  int rank_;
  int n_ = 0;
  ncclComm_t comm_ = nullptr;
};

inline void run_on(int n, const std::function<void(const Rank&)>& body) {
  ASSERT_TRUE(kProcessesAreDirect);
  EXPECT_EQ(run_processes(n,
                          [&](int rank, ncclComm_t first) {
                            const Rank on(rank, first);
                            body(on);
                          }),
            std::vector<int>(static_cast<size_t>(n), 0));
}

}  // namespace weir::nccl::test
