// SPDX-License-Identifier: Apache-2.0
// Several pretended devices, pools, kernels, the ways to the driver, and a device's end.
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <weir/hostcuda.h>

#include "hostcuda/support.h"

// What nvcc's code calls for every kernel of a program.
extern "C" {
// The names that nvcc gives them.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
void** __cudaRegisterFatBinary(void* binary);
void __cudaRegisterFunction(void** handle, const char* symbol, char* device, const char* name,
                            int limit, uint3* tid, uint3* bid, dim3* block, dim3* grid, int* size);
void __cudaUnregisterFatBinary(void** handle);
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
}

namespace weir::test {
namespace {

// The program runs with WEIR_HOSTCUDA_DEVICES=3 and WEIR_HOSTCUDA_MEMORY=64M.
TEST(HostCudaDevices, ThereAreAsManyAsAskedFor) {
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  ASSERT_EQ(count, 3);
  cudaDeviceProp first{};
  cudaDeviceProp second{};
  ASSERT_CUDA(cudaGetDeviceProperties(&first, 0));
  ASSERT_CUDA(cudaGetDeviceProperties(&second, 1));
  EXPECT_NE(std::memcmp(&first.uuid, &second.uuid, sizeof first.uuid), 0);
  EXPECT_NE(first.pciBusID, second.pciBusID);
  // A GPU keeps a part, too. nccl-tests subtracts whole GiB from the total; with a size of 2 GiB it
  // used to get 0, and ran for ever.
  EXPECT_EQ(first.totalGlobalMem, size_t{63} << 20);
  size_t total = 0;
  size_t free = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, first.totalGlobalMem);
  EXPECT_STRNE(first.name, "");
  EXPECT_CUDA_ERROR(101, cudaSetDevice(3));
  EXPECT_CUDA_ERROR(101, cudaSetDevice(-1));
  EXPECT_CUDA_ERROR(101, cudaGetDeviceProperties(&first, 3));
  char bus[32];
  int index = -1;
  ASSERT_CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, 2));
  ASSERT_CUDA(cudaDeviceGetByPCIBusId(&index, bus));
  EXPECT_EQ(index, 2);
  int value = 0;
  ASSERT_CUDA(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(41), 0));
  EXPECT_EQ(value, 1);  // unified addresses
}

TEST(HostCudaDevices, EachThreadChoosesAndEachDeviceCountsItsOwn) {
  ASSERT_CUDA(cudaSetDevice(0));
  const size_t first_before = free_bytes();
  ASSERT_CUDA(cudaSetDevice(1));
  const size_t second_before = free_bytes();
  void* const memory = allocate(1 << 20);
  EXPECT_LT(free_bytes(), second_before);
  int elsewhere = -1;
  std::thread([&] { EXPECT_CUDA(cudaGetDevice(&elsewhere)); }).join();
  EXPECT_EQ(elsewhere, 0);
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_EQ(free_bytes(), first_before);
  cudaPointerAttributes a{};
  ASSERT_CUDA(cudaPointerGetAttributes(&a, memory));
  EXPECT_EQ(a.device, 1);
  EXPECT_CUDA(cudaFree(memory));  // from any device
  ASSERT_CUDA(cudaSetDevice(1));
  EXPECT_EQ(free_bytes(), second_before);
  // An event is recorded in a stream of its device only, but any stream may wait for it.
  const cudaEvent_t event = make_event();
  const cudaStream_t mine = make_stream();
  ASSERT_CUDA(cudaSetDevice(0));
  const cudaStream_t other = make_stream();
  EXPECT_CUDA_ERROR(400, cudaEventRecord(event, other));
  EXPECT_CUDA(cudaEventRecord(event, mine));
  EXPECT_CUDA(cudaStreamWaitEvent(other, event, 0));
  EXPECT_CUDA(cudaStreamSynchronize(other));
  EXPECT_CUDA(cudaStreamDestroy(other));
  EXPECT_CUDA(cudaStreamDestroy(mine));
  EXPECT_CUDA(cudaEventDestroy(event));
}

TEST(HostCudaDevices, PeerAccessIsCountedPerPair) {
  ASSERT_CUDA(cudaSetDevice(0));
  int can = 0;
  ASSERT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
  EXPECT_EQ(can, 1);
  EXPECT_CUDA_ERROR(705, cudaDeviceDisablePeerAccess(1));
  EXPECT_CUDA(cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_CUDA_ERROR(704, cudaDeviceEnablePeerAccess(1, 0));
  EXPECT_CUDA_ERROR(101, cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_CUDA(cudaDeviceDisablePeerAccess(1));
}

TEST(HostCudaDevices, MappedMemoryIsGivenToEachDeviceByItself) {
  constexpr size_t kUnit = size_t{2} << 20;
  ASSERT_CUDA(cudaSetDevice(0));
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = 1;
  CUdeviceptr range = 0;
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_CUDA(cuMemAddressReserve(&range, kUnit, 0, 0, 0));
  ASSERT_CUDA(cuMemCreate(&memory, kUnit, &wanted, 0));
  ASSERT_CUDA(cuMemMap(range, kUnit, 0, memory, 0));
  const auto give = [&](int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = flags;
    EXPECT_CUDA(cuMemSetAccess(range, kUnit, &access, 1));
  };
  const auto access_of = [&](int device) {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device;
    unsigned long long flags = 7;
    EXPECT_CUDA(cuMemGetAccess(&flags, &location, range));
    return flags;
  };
  EXPECT_EQ(access_of(1), 0U);
  give(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  give(2, CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_EQ(access_of(0), 0U);
  EXPECT_EQ(access_of(1), 3U);
  EXPECT_EQ(access_of(2), 1U);
  give(1, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(access_of(1), 0U);
  EXPECT_EQ(access_of(2), 1U);
  ASSERT_CUDA(cuMemUnmap(range, kUnit));
  ASSERT_CUDA(cuMemRelease(memory));
  ASSERT_CUDA(cuMemAddressFree(range, kUnit));
}

TEST(HostCudaDevices, AResetDropsWhatWaitsAndFreesTheRest) {
  ASSERT_CUDA(cudaSetDevice(2));
  const cudaStream_t stream = make_stream(kNonBlocking);
  const size_t before = free_bytes();
  auto* const memory = static_cast<uint32_t*>(allocate(4096));
  ASSERT_CUDA(cudaMemset(memory, 0, 4096));
  ASSERT_CUDA(cudaStreamSynchronize(nullptr));
  // Nobody will ever write the value.
  ASSERT_CUDA(cuStreamWaitValue32_v2(stream, device_address(memory), 1, 1));
  ASSERT_CUDA(cudaDeviceReset());
  EXPECT_CUDA_ERROR(400, cudaStreamQuery(stream));
  EXPECT_CUDA_ERROR(1, cudaFree(memory));
  EXPECT_EQ(free_bytes(), before);
  // And the device serves again.
  const cudaStream_t again = make_stream();
  EXPECT_CUDA(cudaStreamSynchronize(again));
  EXPECT_CUDA(cudaMemset(allocate(16), 0, 16));
  EXPECT_CUDA(cudaDeviceReset());
  ASSERT_CUDA(cudaSetDevice(0));
}

TEST(HostCudaPools, MemoryIsFreedWhenTheStreamComesThere) {
  ASSERT_CUDA(cudaSetDevice(0));
  const cudaStream_t stream = make_stream(kNonBlocking);
  EXPECT_CUDA(cudaDeviceSynchronize());
  const size_t before = free_bytes();
  cudaMemPool_t pool = nullptr;
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  const auto used = [&] {
    uint64_t bytes = 0;
    EXPECT_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes));
    return bytes;
  };
  void* memory = nullptr;
  Gate gate;
  gate.close(stream);
  ASSERT_CUDA(cudaMallocAsync(&memory, 10000, stream));
  EXPECT_EQ(used(), 10000U);
  ASSERT_CUDA(cudaMemsetAsync(memory, 7, 10000, stream));
  ASSERT_CUDA(cudaFreeAsync(memory, stream));
  EXPECT_EQ(used(), 0U);
  EXPECT_LT(free_bytes(), before);
  EXPECT_CUDA_ERROR(1, cudaFreeAsync(memory, stream));
  // The same stream may have it again at once.
  void* again = nullptr;
  ASSERT_CUDA(cudaMallocAsync(&again, 10000, stream));
  EXPECT_EQ(again, memory);
  // Another stream may not.
  const cudaStream_t other = make_stream(kNonBlocking);
  void* apart = nullptr;
  ASSERT_CUDA(cudaFreeAsync(again, stream));
  ASSERT_CUDA(cudaMallocAsync(&apart, 10000, other));
  EXPECT_NE(apart, memory);
  ASSERT_CUDA(cudaFreeAsync(apart, other));
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaStreamSynchronize(other));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaStreamDestroy(other));
}

// What a pool says of itself, by the runtime; the driver says the same.
uint64_t of_pool(cudaMemPool_t pool, cudaMemPoolAttr attribute) {
  uint64_t bytes = 0;
  EXPECT_CUDA(cudaMemPoolGetAttribute(pool, attribute, &bytes));
  uint64_t by_driver = 0;
  EXPECT_CUDA(cuMemPoolGetAttribute(reinterpret_cast<CUmemoryPool>(pool),
                                    static_cast<CUmemPool_attribute>(attribute), &by_driver));
  EXPECT_EQ(by_driver, bytes);
  return bytes;
}

cudaMemPool_t make_pool(size_t bytes_max = 0) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 0;
  properties.maxSize = bytes_max;
  cudaMemPool_t pool = nullptr;
  EXPECT_CUDA(cudaMemPoolCreate(&pool, &properties));
  return pool;
}

TEST(HostCudaPools, FreeMemoryStaysReservedUpToTheThresholdAndUntilATrim) {
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaDeviceSynchronize());
  constexpr size_t kBytes = 1 << 20;
  const size_t before = free_bytes();
  const cudaMemPool_t pool = make_pool();
  const auto reserved = [&] { return of_pool(pool, cudaMemPoolAttrReservedMemCurrent); };
  const auto used = [&] { return of_pool(pool, cudaMemPoolAttrUsedMemCurrent); };
  const cudaStream_t stream = make_stream(kNonBlocking);
  uint64_t threshold = UINT64_MAX;
  EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  void* memory[2] = {};
  for (void*& it : memory) ASSERT_CUDA(cudaMallocFromPoolAsync(&it, kBytes, pool, stream));
  EXPECT_EQ(used(), 2 * kBytes);
  EXPECT_EQ(reserved(), 2 * kBytes);
  for (void* it : memory) EXPECT_CUDA(cudaFreeAsync(it, stream));
  EXPECT_EQ(used(), 0U);
  EXPECT_EQ(reserved(), 2 * kBytes);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(reserved(), 2 * kBytes);
  EXPECT_EQ(free_bytes(), before - 2 * kBytes);
  EXPECT_CUDA_ERROR(1, cudaMemset(memory[0], 0, 1));  // it is reserved, and yet freed
  // A later allocation uses what is reserved.
  ASSERT_CUDA(cudaMallocFromPoolAsync(&memory[0], kBytes, pool, stream));
  EXPECT_EQ(used(), kBytes);
  EXPECT_EQ(reserved(), 2 * kBytes);
  EXPECT_EQ(free_bytes(), before - 2 * kBytes);
  EXPECT_CUDA(cudaMemPoolTrimTo(pool, 2 * kBytes));
  EXPECT_EQ(reserved(), 2 * kBytes);
  EXPECT_CUDA(cudaMemPoolTrimTo(pool, kBytes + kBytes / 2));
  EXPECT_EQ(reserved(), kBytes + kBytes / 2);
  EXPECT_CUDA(cudaMemPoolTrimTo(pool, 0));  // not what is in use
  EXPECT_EQ(reserved(), kBytes);
  EXPECT_EQ(of_pool(pool, cudaMemPoolAttrReservedMemHigh), 2 * kBytes);
  EXPECT_EQ(of_pool(pool, cudaMemPoolAttrUsedMemHigh), 2 * kBytes);
  uint64_t none = 0;
  EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &none));
  EXPECT_EQ(of_pool(pool, cudaMemPoolAttrReservedMemHigh), kBytes);
  EXPECT_EQ(of_pool(pool, cudaMemPoolAttrUsedMemHigh), 2 * kBytes);
  EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &none));
  EXPECT_EQ(of_pool(pool, cudaMemPoolAttrUsedMemHigh), kBytes);
  EXPECT_CUDA(cudaFreeAsync(memory[0], stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(reserved(), kBytes);
  EXPECT_CUDA_ERROR(0, cuMemPoolTrimTo(reinterpret_cast<CUmemoryPool>(pool), 100));
  EXPECT_EQ(reserved(), 100U);
  EXPECT_CUDA(cudaMemPoolDestroy(pool));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaPools, EverySynchronizationReleasesWhatExceedsTheThreshold) {
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaDeviceSynchronize());
  constexpr size_t kBytes = 1 << 20;
  const size_t before = free_bytes();
  const cudaStream_t stream = make_stream(kNonBlocking);
  cudaEvent_t event = nullptr;
  ASSERT_CUDA(cudaEventCreate(&event));
  const auto by_stream = [&] { EXPECT_CUDA(cudaStreamSynchronize(stream)); };
  const auto by_event = [&] { EXPECT_CUDA(cudaEventSynchronize(event)); };
  const auto by_device = [&] { EXPECT_CUDA(cudaDeviceSynchronize()); };
  for (const std::function<void()>& synchronize :
       std::vector<std::function<void()>>{by_stream, by_event, by_device}) {
    for (const uint64_t threshold : {uint64_t{0}, uint64_t{kBytes / 4}}) {
      const cudaMemPool_t pool = make_pool();
      uint64_t value = threshold;
      EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
      void* memory = nullptr;
      ASSERT_CUDA(cudaMallocFromPoolAsync(&memory, kBytes, pool, stream));
      EXPECT_CUDA(cudaFreeAsync(memory, stream));
      EXPECT_CUDA(cudaEventRecord(event, stream));
      while (cudaStreamQuery(stream) != cudaSuccess) std::this_thread::yield();
      EXPECT_EQ(of_pool(pool, cudaMemPoolAttrReservedMemCurrent), kBytes);
      synchronize();
      EXPECT_EQ(of_pool(pool, cudaMemPoolAttrReservedMemCurrent), threshold);
      EXPECT_EQ(free_bytes(), before - threshold);
      EXPECT_CUDA(cudaMemPoolDestroy(pool));
    }
  }
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaPools, WhatIsKeptIsReleasedForAllocationsThatNeedItAndByAReset) {
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_CUDA(cudaDeviceSynchronize());
  const size_t before = free_bytes();
  const cudaMemPool_t pool = make_pool();
  uint64_t threshold = UINT64_MAX;
  EXPECT_CUDA(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  const size_t most = before / 4 * 3;
  for (int i = 0; i < 2; ++i) {
    void* memory = nullptr;
    ASSERT_CUDA(cudaMallocFromPoolAsync(&memory, most, pool, nullptr));
    EXPECT_CUDA(cudaFreeAsync(memory, nullptr));
    EXPECT_CUDA(cudaStreamSynchronize(nullptr));
    EXPECT_EQ(of_pool(pool, cudaMemPoolAttrReservedMemCurrent), most);
    if (i == 1) break;
    void* plain = nullptr;
    EXPECT_CUDA(cudaMalloc(&plain, most));
    EXPECT_EQ(of_pool(pool, cudaMemPoolAttrReservedMemCurrent), 0U);
    EXPECT_CUDA(cudaFree(plain));
  }
  EXPECT_CUDA(cudaDeviceReset());
  ASSERT_CUDA(cudaSetDevice(0));
  EXPECT_GE(free_bytes(), before);
}

TEST(HostCudaPools, APoolOfTheProgramsOwnHasItsLimit) {
  ASSERT_CUDA(cudaSetDevice(0));
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = 1;
  properties.maxSize = 1 << 20;
  cudaMemPool_t pool = nullptr;
  ASSERT_CUDA(cudaMemPoolCreate(&pool, &properties));
  void* memory = nullptr;
  void* more = nullptr;
  ASSERT_CUDA(cudaMallocFromPoolAsync(&memory, 1 << 20, pool, nullptr));
  EXPECT_CUDA_ERROR(2, cudaMallocFromPoolAsync(&more, 1, pool, nullptr));
  cudaPointerAttributes a{};
  ASSERT_CUDA(cudaPointerGetAttributes(&a, memory));
  EXPECT_EQ(a.device, 1);
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_CUDA(cudaMallocFromPoolAsync(&more, 1, pool, nullptr));
  EXPECT_CUDA(cudaMemPoolDestroy(pool));
  EXPECT_CUDA(cudaFreeAsync(more, nullptr));  // outlives its pool's handle
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));
  cudaMemPool_t standard = nullptr;
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&standard, 0));
  EXPECT_CUDA_ERROR(1, cudaMemPoolDestroy(standard));
}

const char add_symbol = 0;
const char other_symbol = 0;

void add_on_host(const weir_hostcuda_launch* launch, void* context) {
  auto* const sum = *static_cast<int**>(launch->arguments[0]);
  const int value = *static_cast<int*>(launch->arguments[1]);
  *sum += value * static_cast<int>(launch->grid[0] * launch->block[0]);
  ++*static_cast<int*>(context);
}

TEST(HostCudaKernels, AKernelWithAHostFunctionRunsInStreamOrderAndAnotherIsRefused) {
  ASSERT_CUDA(cudaSetDevice(0));
  void** const handle = __cudaRegisterFatBinary(nullptr);
  char name[] = "_ZN4sums3addEPii";
  char other[] = "_Z5othervv";
  __cudaRegisterFunction(handle, &add_symbol, name, name, -1, nullptr, nullptr, nullptr, nullptr,
                         nullptr);
  __cudaRegisterFunction(handle, &other_symbol, other, other, -1, nullptr, nullptr, nullptr,
                         nullptr, nullptr);
  int calls = 0;
  const size_t sizes[] = {sizeof(int*), sizeof(int)};
  EXPECT_EQ(weir_hostcuda_register_kernel(nullptr, add_on_host, &calls, sizes, 2), 1);
  ASSERT_EQ(weir_hostcuda_register_kernel("sums::add", add_on_host, &calls, sizes, 2), 0);
  const cudaStream_t stream = make_stream(kNonBlocking);
  auto* sum = static_cast<int*>(allocate(sizeof(int)));
  ASSERT_CUDA(cudaMemsetAsync(sum, 0, sizeof(int), stream));
  Gate gate;
  gate.close(stream);
  int value = 5;
  void* arguments[] = {&sum, &value};
  const dim3 grid{4, 1, 1};
  const dim3 block{8, 1, 1};
  ASSERT_CUDA(cudaLaunchKernel(&add_symbol, grid, block, arguments, 0, stream));
  value = 1000;  // the launch has its copy
  EXPECT_CUDA_ERROR(98, cudaLaunchKernel(&other_symbol, grid, block, nullptr, 0, stream));
  EXPECT_CUDA_ERROR(98, cudaGetLastError());
  const dim3 too_many{2048, 1, 1};
  EXPECT_CUDA_ERROR(9, cudaLaunchKernel(&add_symbol, grid, too_many, arguments, 0, stream));
  gate.open();
  int result = 0;
  ASSERT_CUDA(cudaMemcpyAsync(&result, sum, sizeof result, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(result, 160);
  EXPECT_EQ(calls, 1);
  EXPECT_CUDA(cudaFree(sum));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  __cudaUnregisterFatBinary(handle);
}

TEST(HostCudaKernels, AreNamedAsTheSourceWritesThem) {
  ASSERT_CUDA(cudaSetDevice(0));
  void** const handle = __cudaRegisterFatBinary(nullptr);
  struct Named {
    const char* compiled;
    const char* in_source;
    char symbol;
  };
  Named kernels[] = {
      {"_ZN12_GLOBAL__N_14fillEPfi", "(anonymous namespace)::fill", 0},
      {"_ZN12_GLOBAL__N_15scaleIfEEvPT_i", "(anonymous namespace)::scale<float>", 0},
      {"_Z5applyIFvifEEvPT_", "apply<void (int, float)>", 0},
      {"plain_c", "plain_c", 0},
  };
  for (Named& kernel : kernels) {
    std::string name = kernel.compiled;
    __cudaRegisterFunction(handle, &kernel.symbol, name.data(), name.data(), -1, nullptr, nullptr,
                           nullptr, nullptr, nullptr);
    const dim3 one{1, 1, 1};
    testing::internal::CaptureStderr();
    EXPECT_CUDA_ERROR(98, cudaLaunchKernel(&kernel.symbol, one, one, nullptr, 0, nullptr));
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find("'" + std::string(kernel.in_source) + "'"), std::string::npos) << text;
    EXPECT_NE(text.find(kernel.compiled), std::string::npos) << text;
    (void)cudaGetLastError();
    int calls = 0;
    ASSERT_EQ(weir_hostcuda_register_kernel(
                  kernel.in_source,
                  [](const weir_hostcuda_launch*, void* count) { ++*static_cast<int*>(count); },
                  &calls, nullptr, 0),
              0);
    EXPECT_CUDA(cudaLaunchKernel(&kernel.symbol, one, one, nullptr, 0, nullptr));
    EXPECT_CUDA(cudaDeviceSynchronize());
    EXPECT_EQ(calls, 1) << kernel.in_source;
  }
  __cudaUnregisterFatBinary(handle);
}

TEST(HostCudaDriver, FunctionsAreFoundByNameAndVersion) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  ASSERT_CUDA(
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &function, 12000, 0, &result));
  EXPECT_EQ(result, cudaDriverEntryPointSuccess);
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuStreamWriteValue32_v2));
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion("cuNoSuchThing", &function, 12000, 0, &result));
  EXPECT_EQ(result, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
  EXPECT_CUDA(cudaGetDriverEntryPointByVersion("cuStreamGetId", &function, 11000, 0, &result));
  EXPECT_EQ(result, cudaDriverEntryPointVersionNotSufficent);
  CUdriverProcAddressQueryResult state{};
  EXPECT_CUDA(cuGetProcAddress_v2("cuMemAlloc", &function, 13000, 0, &state));
  EXPECT_EQ(function, reinterpret_cast<void*>(&cuMemAlloc_v2));
}

TEST(HostCudaDriver, PoolsAreTheRuntimesAndCountTheirMemory) {
  ASSERT_CUDA(cuInit(0));
  ASSERT_CUDA(cudaSetDevice(0));
  CUmemoryPool by_driver = nullptr;
  cudaMemPool_t by_runtime = nullptr;
  ASSERT_CUDA(cuDeviceGetDefaultMemPool(&by_driver, 0));
  ASSERT_CUDA(cudaDeviceGetDefaultMemPool(&by_runtime, 0));
  EXPECT_EQ(static_cast<void*>(by_driver), static_cast<void*>(by_runtime));
  CUmemLocation place{};
  place.type = CU_MEM_LOCATION_TYPE_DEVICE;
  place.id = 0;
  CUmemoryPool by_location = nullptr;
  ASSERT_CUDA(cuMemGetDefaultMemPool(&by_location, &place, CU_MEM_ALLOCATION_TYPE_PINNED));
  EXPECT_EQ(by_location, by_driver);
  EXPECT_CUDA_ERROR(101, cuDeviceGetMemPool(&by_location, 17));

  CUmemPoolProps properties{};
  CUmemoryPool own = nullptr;
  EXPECT_CUDA_ERROR(1, cuMemPoolCreate(&own, &properties));
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = place;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_CUDA_ERROR(801, cuMemPoolCreate(&own, &properties));
  properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  properties.maxSize = 1 << 20;
  ASSERT_CUDA(cuMemPoolCreate(&own, &properties));
  ASSERT_CUDA(cuDeviceSetMemPool(0, own));
  ASSERT_CUDA(cuDeviceGetMemPool(&by_driver, 0));
  EXPECT_EQ(by_driver, own);
  const auto used = [&] {
    uint64_t bytes = 0;
    EXPECT_CUDA(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &bytes));
    return bytes;
  };
  CUdeviceptr first = 0;
  CUdeviceptr second = 0;
  ASSERT_CUDA(cuMemAllocFromPoolAsync(&first, 1000, own, nullptr));
  EXPECT_EQ(used(), 1000U);
  ASSERT_CUDA(cuMemAllocAsync(&second, 512, nullptr));  // from the current pool
  EXPECT_EQ(used(), 1512U);
  EXPECT_CUDA_ERROR(2, cuMemAllocFromPoolAsync(&second, 2 << 20, own, nullptr));
  void* of_first = nullptr;
  ASSERT_CUDA(cuPointerGetAttribute(&of_first, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, first));
  EXPECT_EQ(of_first, own);
  CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  place.id = 1;
  ASSERT_CUDA(cuMemPoolGetAccess(&flags, own, &place));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CUDA(cuMemFreeAsync(first, nullptr));
  ASSERT_CUDA(cuCtxSynchronize());
  EXPECT_EQ(used(), 512U);
  uint64_t kept = 4096;
  ASSERT_CUDA(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept));
  ASSERT_CUDA(cuMemPoolTrimTo(own, 0));
  ASSERT_CUDA(cuMemPoolDestroy(own));
  EXPECT_CUDA_ERROR(1, cuMemPoolTrimTo(own, 0));
  ASSERT_CUDA(cudaDeviceReset());
}

TEST(HostCudaDriver, ACapturedGraphIsInstantiatedUpdatedAndLaunched) {
  ASSERT_CUDA(cuInit(0));
  ASSERT_CUDA(cudaSetDevice(0));
  CUstream stream = nullptr;
  ASSERT_CUDA(cuStreamCreate(&stream, 1));
  const auto filled = [&](unsigned char value, CUdeviceptr address) {
    CUgraph graph = nullptr;
    EXPECT_CUDA(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EXPECT_CUDA(cuMemsetD8Async(address, value, 8, stream));
    EXPECT_CUDA(cuStreamEndCapture(stream, &graph));
    return graph;
  };
  auto* const memory = static_cast<unsigned char*>(allocate(8));
  CUgraph first = filled(1, device_address(memory));
  CUgraph second = filled(2, device_address(memory));
  CUgraphExec executable = nullptr;
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = 2;  // upload
  parameters.hUploadStream = stream;
  parameters.result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  ASSERT_CUDA(cuGraphInstantiateWithParams(&executable, first, &parameters));
  EXPECT_EQ(parameters.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  cuuint64_t flags = 0;
  ASSERT_CUDA(cuGraphExecGetFlags(executable, &flags));
  EXPECT_EQ(flags, 2U);
  ASSERT_CUDA(cuGraphLaunch(executable, stream));
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(memory[7], 1);
  CUgraphExecUpdateResultInfo updated{};
  updated.result = CU_GRAPH_EXEC_UPDATE_ERROR;
  ASSERT_CUDA(cuGraphExecUpdate_v2(executable, second, &updated));
  EXPECT_EQ(updated.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  ASSERT_CUDA(cuGraphUpload(executable, stream));
  ASSERT_CUDA(cuGraphLaunch(executable, stream));
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(memory[7], 2);
  CUgraph clone = nullptr;
  ASSERT_CUDA(cuGraphClone(&clone, first));
  ASSERT_CUDA(cuGraphDestroy(first));
  CUgraphExec of_clone = nullptr;
  ASSERT_CUDA(cuGraphInstantiateWithFlags(&of_clone, clone, 0));
  EXPECT_CUDA_ERROR(1, cuGraphInstantiateWithFlags(&of_clone, clone, 0x100));
  ASSERT_CUDA(cuGraphLaunch(of_clone, stream));
  ASSERT_CUDA(cuStreamSynchronize(stream));
  EXPECT_EQ(memory[7], 1);
  ASSERT_CUDA(cuGraphExecDestroy(of_clone));
  ASSERT_CUDA(cuGraphExecDestroy(executable));
  EXPECT_CUDA_ERROR(1, cuGraphUpload(executable, stream));
  ASSERT_CUDA(cuGraphDestroy(clone));
  ASSERT_CUDA(cuGraphDestroy(second));
  ASSERT_CUDA(cuGraphCreate(&clone, 0));
  ASSERT_CUDA(cuGraphDestroy(clone));
  ASSERT_CUDA(cuStreamDestroy_v2(stream));
  ASSERT_CUDA(cudaFree(memory));
}

TEST(HostCudaDriver, APrivateTableIsRefused) {
  ASSERT_CUDA(cuInit(0));
  using Look = CUresult (*)(const void**, const CUuuid*);
  void* function = nullptr;
  CUdriverProcAddressQueryResult state{};
  ASSERT_CUDA(cuGetProcAddress_v2("cuGetExportTable", &function, 12000, 0, &state));
  ASSERT_NE(function, nullptr);
  const CUuuid any{};
  const void* table = &any;
  EXPECT_CUDA_ERROR(801, reinterpret_cast<Look>(function)(&table, &any));
  EXPECT_EQ(table, nullptr);
  EXPECT_CUDA_ERROR(1, reinterpret_cast<Look>(function)(nullptr, &any));
}

TEST(HostCudaDriver, TheCurrentContextIsTheRuntimesDevice) {
  ASSERT_CUDA(cuInit(0));
  ASSERT_CUDA(cudaSetDevice(1));
  CUcontext context = nullptr;
  CUdevice device = -1;
  ASSERT_CUDA(cuCtxGetDevice(&device));
  EXPECT_EQ(device, 1);
  ASSERT_CUDA(cuDevicePrimaryCtxRetain(&context, 2));
  ASSERT_CUDA(cuCtxPushCurrent_v2(context));
  int chosen = -1;
  ASSERT_CUDA(cudaGetDevice(&chosen));
  EXPECT_EQ(chosen, 2);
  CUcontext popped = nullptr;
  ASSERT_CUDA(cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, context);
  ASSERT_CUDA(cudaGetDevice(&chosen));
  EXPECT_EQ(chosen, 1);
  EXPECT_CUDA(cuDevicePrimaryCtxRelease_v2(2));
  std::thread([] {
    CUdeviceptr address = 0;
    CUcontext none = nullptr;
    EXPECT_CUDA(cuCtxGetCurrent(&none));
    EXPECT_EQ(none, nullptr);
    EXPECT_CUDA_ERROR(201, cuMemAlloc_v2(&address, 16));
  }).join();
  const char* text = nullptr;
  EXPECT_CUDA(cuGetErrorName(static_cast<CUresult>(201), &text));
  EXPECT_STREQ(text, "CUDA_ERROR_INVALID_CONTEXT");
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(2)), "cudaErrorMemoryAllocation");
  ASSERT_CUDA(cudaSetDevice(0));
}

}  // namespace
}  // namespace weir::test
