// SPDX-License-Identifier: Apache-2.0
// Virtual memory of the driver API.
#include <unistd.h>

#include <cstring>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr size_t kUnit = size_t{2} << 20;

CUmemAllocationProp properties() {
  CUmemAllocationProp made{};
  made.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  made.location.id = 0;
  return made;
}

CUmemAccessDesc read_and_write() {
  CUmemAccessDesc made{};
  made.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  made.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return made;
}

TEST(HostCudaVirtual, MemoryIsMappedIntoAReservedRangeAndItsDescriptorMapsTheSame) {
  ASSERT_CUDA(cudaSetDevice(0));
  const size_t before = free_bytes();
  const CUmemAllocationProp wanted = properties();
  size_t unit = 0;
  ASSERT_CUDA(cuMemGetAllocationGranularity(&unit, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  ASSERT_EQ(unit, kUnit);
  CUdeviceptr range = 0;
  ASSERT_CUDA(cuMemAddressReserve(&range, 2 * unit, 0, 0, 0));
  EXPECT_EQ(range % unit, 0U);
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_CUDA(cuMemCreate(&memory, unit, &wanted, 0));
  EXPECT_EQ(free_bytes(), before - unit);
  int descriptor = -1;
  ASSERT_CUDA(cuMemExportToShareableHandle(&descriptor, memory,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle twin = 0;
  ASSERT_CUDA(cuMemImportFromShareableHandle(
      &twin, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(descriptor);
  ASSERT_CUDA(cuMemMap(range, unit, 0, memory, 0));
  ASSERT_CUDA(cuMemMap(range + unit, unit, 0, twin, 0));
  EXPECT_CUDA_ERROR(1, cuMemMap(range, unit, 0, memory, 0));  // is taken
  const CUmemAccessDesc access = read_and_write();
  ASSERT_CUDA(cuMemSetAccess(range, 2 * unit, &access, 1));
  unsigned long long flags = 0;
  ASSERT_CUDA(cuMemGetAccess(&flags, &access.location, range + 5));
  EXPECT_EQ(flags, 3U);

  auto* const first = reinterpret_cast<char*>(range);
  cudaPointerAttributes a{};
  ASSERT_CUDA(cudaPointerGetAttributes(&a, first + 100));
  EXPECT_EQ(a.type, cudaMemoryTypeDevice);
  ASSERT_CUDA(cudaMemset(first, 0x33, unit));
  uint32_t seen = 0;
  ASSERT_CUDA(cudaMemcpy(&seen, first + 2 * unit - 4, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(seen, 0x33333333U);

  // The memory is held by its mapping when its handle is gone.
  ASSERT_CUDA(cuMemRelease(memory));
  EXPECT_CUDA_ERROR(1, cuMemRelease(memory));
  EXPECT_EQ(free_bytes(), before - unit);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_CUDA(cuMemRetainAllocationHandle(&again, first + 10));
  EXPECT_EQ(again, memory);
  ASSERT_CUDA(cuMemRelease(again));
  EXPECT_CUDA_ERROR(1, cuMemAddressFree(range, 2 * unit));  // is mapped
  ASSERT_CUDA(cuMemUnmap(range, 2 * unit));
  ASSERT_CUDA(cuMemRelease(twin));
  EXPECT_EQ(free_bytes(), before);
  ASSERT_CUDA(cudaPointerGetAttributes(&a, first));
  EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
  ASSERT_CUDA(cuMemAddressFree(range, 2 * unit));
}

TEST(HostCudaVirtual, AnAddressTellsItsReservationItsMappingAndHowItsMemoryIsExported) {
  ASSERT_CUDA(cudaSetDevice(0));
  CUdeviceptr range = 0;
  ASSERT_CUDA(cuMemAddressReserve(&range, 4 * kUnit, 0, 0, 0));
  CUmemAllocationProp wanted = properties();
  for (const CUdeviceptr at : {range + kUnit, range + 2 * kUnit}) {
    CUmemGenericAllocationHandle memory = 0;
    ASSERT_CUDA(cuMemCreate(&memory, kUnit, &wanted, 0));
    ASSERT_CUDA(cuMemMap(at, kUnit, 0, memory, 0));
    ASSERT_CUDA(cuMemRelease(memory));
    wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  }
  for (const size_t second : {0, 1}) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    unsigned long long handles = 7;
    void* pool = &base;
    CUpointer_attribute attributes[] = {
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
    void* data[] = {&base, &bytes, &handles, &pool};
    const CUdeviceptr at = range + (1 + second) * kUnit + 100;
    ASSERT_CUDA(cuPointerGetAttributes(4, attributes, data, at));
    EXPECT_EQ(base, range);
    EXPECT_EQ(bytes, 4 * kUnit);
    EXPECT_EQ(handles, second == 0 ? 1U : 0U);
    EXPECT_EQ(pool, nullptr);
    ASSERT_CUDA(cuMemGetAddressRange_v2(&base, &bytes, at));
    EXPECT_EQ(base, range + (1 + second) * kUnit);
    EXPECT_EQ(bytes, kUnit);
  }
  ASSERT_CUDA(cuMemUnmap(range + kUnit, 2 * kUnit));
  ASSERT_CUDA(cuMemAddressFree(range, 4 * kUnit));

  CUdeviceptr pooled = 0;
  ASSERT_CUDA(cuMemAllocAsync(&pooled, 1000, nullptr));
  void* pool = nullptr;
  ASSERT_CUDA(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled));
  EXPECT_NE(pool, nullptr);
  ASSERT_CUDA(cuMemFreeAsync(pooled, nullptr));
}

// Memory of one unit at each of the addresses, as it is before access is given.
void map_at(const std::vector<CUdeviceptr>& addresses) {
  const CUmemAllocationProp wanted = properties();
  for (const CUdeviceptr at : addresses) {
    CUmemGenericAllocationHandle memory = 0;
    ASSERT_CUDA(cuMemCreate(&memory, kUnit, &wanted, 0));
    ASSERT_CUDA(cuMemMap(at, kUnit, 0, memory, 0));
    ASSERT_CUDA(cuMemRelease(memory));
  }
}

TEST(HostCudaVirtual, CopiesAndFillsStayInWhatIsMappedSideBySide) {
  ASSERT_CUDA(cudaSetDevice(0));
  CUdeviceptr range = 0;
  ASSERT_CUDA(cuMemAddressReserve(&range, 4 * kUnit, 0, 0, 0));
  map_at({range, range + kUnit, range + 3 * kUnit});
  const CUmemAccessDesc access = read_and_write();
  ASSERT_CUDA(cuMemSetAccess(range, 2 * kUnit, &access, 1));
  ASSERT_CUDA(cuMemSetAccess(range + 3 * kUnit, kUnit, &access, 1));
  auto* const first = reinterpret_cast<char*>(range);
  std::vector<char> host(4 * kUnit);
  const cudaStream_t stream = make_stream(kNonBlocking);
  EXPECT_CUDA(cudaMemcpy(first, host.data(), 2 * kUnit, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaMemset(first + 5, 1, 2 * kUnit - 5));
  EXPECT_CUDA(cudaMemset(first + 3 * kUnit, 1, kUnit));
  // Into the gap, over it, and from it.
  for (char* const at : {first, first + kUnit, first + 2 * kUnit, first + 2 * kUnit + 9}) {
    EXPECT_CUDA_ERROR(1, cudaMemcpy(at, host.data(), 2 * kUnit + 1, cudaMemcpyHostToDevice));
    EXPECT_CUDA_ERROR(1, cudaMemcpy(host.data(), at, 2 * kUnit + 1, cudaMemcpyDefault));
    EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(at, first, 2 * kUnit + 1, cudaMemcpyDefault, stream));
    EXPECT_CUDA_ERROR(1, cudaMemset(at, 0, 2 * kUnit + 1));
  }
  EXPECT_CUDA_ERROR(1, cudaMemcpy(host.data(), first + 4 * kUnit - 1, 2, cudaMemcpyDefault));
  EXPECT_CUDA_ERROR(1, cudaMemset(first + 2 * kUnit, 0, 1));
  ASSERT_CUDA(cuMemUnmap(range, 2 * kUnit));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(first, host.data(), 1, cudaMemcpyDefault));
  ASSERT_CUDA(cuMemUnmap(range + 3 * kUnit, kUnit));
  ASSERT_CUDA(cuMemAddressFree(range, 4 * kUnit));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaVirtual, MemoryWithoutAccessIsNotCopied) {
  ASSERT_CUDA(cudaSetDevice(0));
  CUdeviceptr range = 0;
  ASSERT_CUDA(cuMemAddressReserve(&range, kUnit, 0, 0, 0));
  map_at({range});
  char host[8] = {};
  EXPECT_CUDA_ERROR(1, cuMemcpyHtoD_v2(range, host, sizeof host));
  EXPECT_CUDA_ERROR(1, cuMemcpyDtoH_v2(host, range, sizeof host));
  EXPECT_CUDA_ERROR(1, cuMemsetD8_v2(range, 1, sizeof host));
  CUmemAccessDesc access = read_and_write();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  ASSERT_CUDA(cuMemSetAccess(range, kUnit, &access, 1));
  EXPECT_CUDA_ERROR(1, cuMemcpyHtoD_v2(range, host, sizeof host));
  EXPECT_CUDA_ERROR(1, cuMemsetD8_v2(range, 1, sizeof host));
  EXPECT_CUDA(cuMemcpyDtoH_v2(host, range, sizeof host));
  access = read_and_write();
  ASSERT_CUDA(cuMemSetAccess(range, kUnit, &access, 1));
  EXPECT_CUDA(cuMemcpyHtoD_v2(range, host, sizeof host));
  ASSERT_CUDA(cuMemUnmap(range, kUnit));
  ASSERT_CUDA(cuMemAddressFree(range, kUnit));
}

TEST(HostCudaVirtual, FreedMemoryIsNotCopied) {
  ASSERT_CUDA(cudaSetDevice(0));
  void* const freed = allocate(1000);
  ASSERT_CUDA(cudaFree(freed));
  char host[8] = {};
  EXPECT_CUDA_ERROR(1, cudaMemcpy(host, freed, sizeof host, cudaMemcpyDefault));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(freed, host, sizeof host, cudaMemcpyDefault));
  EXPECT_CUDA_ERROR(1, cudaMemset(freed, 0, sizeof host));
}

TEST(HostCudaVirtual, WhatDoesNotFitIsRefused) {
  ASSERT_CUDA(cudaSetDevice(0));
  const CUmemAllocationProp wanted = properties();
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle memory = 0;
  EXPECT_CUDA_ERROR(1, cuMemCreate(&memory, kUnit + 1, &wanted, 0));
  EXPECT_CUDA_ERROR(1, cuMemAddressReserve(&range, kUnit / 2, 0, 0, 0));
  EXPECT_CUDA_ERROR(2, cuMemCreate(&memory, size_t{1} << 40, &wanted, 0));
  ASSERT_CUDA(cuMemAddressReserve(&range, kUnit, 4 * kUnit, 0, 0));
  EXPECT_EQ(range % (4 * kUnit), 0U);
  ASSERT_CUDA(cuMemCreate(&memory, kUnit, &wanted, 0));
  EXPECT_CUDA_ERROR(1, cuMemMap(range, 2 * kUnit, 0, memory, 0));
  EXPECT_CUDA_ERROR(1, cuMemMap(range + kUnit, kUnit, 0, memory, 0));
  EXPECT_CUDA_ERROR(1, cuMemMap(range, kUnit, 0, 12345, 0));
  EXPECT_CUDA_ERROR(1, cuMemUnmap(range, kUnit));
  ASSERT_CUDA(cuMemMap(range, kUnit, 0, memory, 0));
  EXPECT_CUDA_ERROR(1, cuMemUnmap(range, kUnit / 2));
  ASSERT_CUDA(cuMemUnmap(range, kUnit));
  ASSERT_CUDA(cuMemRelease(memory));
  ASSERT_CUDA(cuMemAddressFree(range, kUnit));
  CUmemGenericAllocationHandle twin = 0;
  EXPECT_CUDA_ERROR(1, cuMemImportFromShareableHandle(&twin, reinterpret_cast<void*>(~uintptr_t{0}),
                                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

}  // namespace
}  // namespace weir::test
