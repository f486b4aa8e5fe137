// SPDX-License-Identifier: Apache-2.0
// For tests of what goes from device to device between processes, on Weir's stand-in for CUDA,
// whose devices' memory other processes can map. Programs of their own: nothing here starts a
// thread, or CUDA, before it forks.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "hostcuda/driver/functions.h"
#include "nccl/direct/mapped_memory.h"
#include "nccl/processes.h"

namespace weir::nccl::test {

inline const bool kEnvironment = [] {
  setenv("WEIR_NCCL_CHUNK_BYTES", "64KiB", 1);
  setenv("WEIR_EXPLAIN", "1", 1);
  setenv("WEIR_DETERMINISTIC", "1", 1);  // also what is staged is folded in the order of the ranks
  setenv("WEIR_HOSTCUDA_DEVICES", "2", 1);
  setenv("WEIR_HOSTCUDA_MEMORY", "256M", 1);
  return true;
}();

inline constexpr size_t kCount = 30011;
inline constexpr const char* kDirectly = "device memory is copied directly between the ranks";
inline constexpr const char* kReduced = "device memory is reduced directly on the devices";
inline constexpr const char* kReductionsGivenUp = "device memory is reduced through host memory";
inline constexpr const char* kMessages = "on device memory are copied directly";

// A communicator that is made when the process uses a device.
inline ncclComm_t use_device_in(ncclComm_t first, int rank, int device) {
  use_device(device);
  ncclComm_t comm = nullptr;
  EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
  EXPECT_NCCL(ncclCommDestroy(first));
  return comm;
}

enum class Kind {
  kAllocated,
  kPooled,  // which cannot be handed to another process
  kMapped,
  kMappedSideBySide,  // over several allocations
  kMappedForOne,      // made by mapping, without a handle for others
  kOfMemAlloc,        // ncclMemAlloc's, which makes it by mapping
};

// `count` numbers on the current device.
class Numbers {
 public:
  explicit Numbers(size_t count, Kind kind = Kind::kAllocated) : count_(count), kind_(kind) {
    if (kind == Kind::kPooled) {
      EXPECT_CUDA(cuMemAllocAsync(&device_, bytes(), nullptr));
    } else if (kind == Kind::kAllocated) {
      EXPECT_CUDA(cuMemAlloc_v2(&device_, bytes()));
    } else if (kind == Kind::kOfMemAlloc) {
      void* memory = nullptr;
      EXPECT_NCCL(ncclMemAlloc(&memory, bytes()));
      device_ = reinterpret_cast<uintptr_t>(memory);
    } else {
      CUdevice here = -1;
      EXPECT_CUDA(cuCtxGetDevice(&here));
      const size_t units = (bytes() + kSkipBytes + kMappedUnit - 1) / kMappedUnit;
      const bool one = kind != Kind::kMappedSideBySide;
      mapped_ = std::make_unique<MappedMemory>(
          one ? std::vector<size_t>{units} : std::vector<size_t>(units, 1), here,
          kind != Kind::kMappedForOne);
      device_ = mapped_->address() + kSkipBytes;
    }
  }
  ~Numbers() {
    if (kind_ == Kind::kPooled) {
      EXPECT_CUDA(cuMemFreeAsync(device_, nullptr));
    } else if (kind_ == Kind::kAllocated) {
      EXPECT_CUDA(cuMemFree_v2(device_));
    } else if (kind_ == Kind::kOfMemAlloc) {
      EXPECT_NCCL(ncclMemFree(data()));
    }
  }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  int* data() const { return reinterpret_cast<int*>(static_cast<uintptr_t>(device_)); }
  void set(const std::vector<int>& values) {
    EXPECT_CUDA(cuMemcpyHtoD_v2(device_, values.data(), bytes()));
  }
  std::vector<int> get() const {
    std::vector<int> values(count_);
    EXPECT_CUDA(cuMemcpyDtoH_v2(values.data(), device_, bytes()));
    return values;
  }

 private:
  static constexpr size_t kSkipBytes = 4096;  // of what is mapped: it need not begin with a buffer
  size_t bytes() const { return count_ * sizeof(int); }
  size_t count_;
  Kind kind_;
  std::unique_ptr<MappedMemory> mapped_;
  CUdeviceptr device_ = 0;
};

inline std::vector<int> values_of(int rank, size_t count, int seed) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = rank * 1000003 + static_cast<int>(i) * 7 + seed;
  return values;
}

inline size_t count_of(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
    ++count;
  return count;
}

}  // namespace weir::nccl::test
