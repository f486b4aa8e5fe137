// SPDX-License-Identifier: Apache-2.0
// Memory of the stand-in's devices that is made by mapping.
#pragma once

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <utility>
#include <vector>

#include "hostcuda/driver/functions.h"

#define EXPECT_CUDA(call) EXPECT_EQ(call, CUDA_SUCCESS)

namespace weir::nccl::test {

inline constexpr size_t kMappedUnit = size_t{2} << 20;

inline void use_device(int device) {
  CUcontext context = nullptr;
  EXPECT_CUDA(cuInit(0));
  EXPECT_CUDA(cuDevicePrimaryCtxRetain(&context, device));
  EXPECT_CUDA(cuCtxSetCurrent(context));
}

// Allocations side by side.
class MappedMemory {
 public:
  // `unit_counts`: of kMappedUnit, for each allocation. `exportable`: by descriptors.
  explicit MappedMemory(std::vector<size_t> unit_counts, int device = 0, bool exportable = true)
      : unit_counts_(std::move(unit_counts)) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    if (exportable) properties_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    for (const size_t units : unit_counts_) bytes_ += units * kMappedUnit;
    // More is reserved than is mapped, on both sides.
    EXPECT_CUDA(cuMemAddressReserve(&reserved_, bytes_ + 2 * kMappedUnit, 0, 0, 0));
    map();
  }
  ~MappedMemory() {
    unmap();
    EXPECT_CUDA(cuMemAddressFree(reserved_, bytes_ + 2 * kMappedUnit));
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  // Other allocations at the same address.
  void renew() {
    unmap();
    map();
  }
  // For kernels of another device.
  void give_to(int device) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_CUDA(cuMemSetAccess(address(), bytes_, &access, 1));
  }
  CUdeviceptr address() const { return reserved_ + kMappedUnit; }
  char* data() const { return reinterpret_cast<char*>(static_cast<uintptr_t>(address())); }
  size_t bytes() const { return bytes_; }

 private:
  void map() {
    CUdeviceptr at = address();
    for (const size_t units : unit_counts_) {
      CUmemGenericAllocationHandle memory = 0;
      EXPECT_CUDA(cuMemCreate(&memory, units * kMappedUnit, &properties_, 0));
      EXPECT_CUDA(cuMemMap(at, units * kMappedUnit, 0, memory, 0));
      EXPECT_CUDA(cuMemRelease(memory));
      at += units * kMappedUnit;
    }
    give_to(properties_.location.id);
  }
  void unmap() { EXPECT_CUDA(cuMemUnmap(address(), bytes_)); }

  CUmemAllocationProp properties_{};
  std::vector<size_t> unit_counts_;
  size_t bytes_ = 0;
  CUdeviceptr reserved_ = 0;
};

// Of this process.
inline size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

}  // namespace weir::nccl::test
