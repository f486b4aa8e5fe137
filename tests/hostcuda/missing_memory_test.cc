// SPDX-License-Identifier: Apache-2.0
// Copies, fills and memory operations on memory that is not there: an error of the call when it is
// seen then, and otherwise an error of the device that stays.
#include <sys/mman.h>

#include <cstdlib>
#include <string>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr size_t kUnit = size_t{2} << 20;
constexpr int kIllegalAddress = 700;

// Memory of device 0 at an address of its own, as ncclMemAlloc makes it.
CUdeviceptr map_memory() {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle memory = 0;
  EXPECT_CUDA(cudaFree(nullptr));
  EXPECT_CUDA(cuMemAddressReserve(&address, kUnit, 0, 0, 0));
  EXPECT_CUDA(cuMemCreate(&memory, kUnit, &wanted, 0));
  EXPECT_CUDA(cuMemMap(address, kUnit, 0, memory, 0));
  EXPECT_CUDA(cuMemRelease(memory));
  EXPECT_CUDA(cuMemSetAccess(address, kUnit, &access, 1));
  return address;
}

void unmap_memory(CUdeviceptr address) {
  EXPECT_CUDA(cuMemUnmap(address, kUnit));
  EXPECT_CUDA(cuMemAddressFree(address, kUnit));
}

TEST(HostCudaMissingMemory, MappedMemoryThatWasFreedIsRefused) {
  const cudaStream_t stream = make_stream();
  void* const device = allocate(64);
  uint32_t host = 0;
  const CUdeviceptr address = map_memory();
  auto* const gone = reinterpret_cast<void*>(address);
  unmap_memory(address);
  EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(device, gone, 64, cudaMemcpyDefault, stream));
  EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(gone, device, 64, cudaMemcpyDefault, stream));
  EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(gone, &host, 4, cudaMemcpyDefault, stream));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(&host, gone, 4, cudaMemcpyDefault));
  EXPECT_CUDA_ERROR(1, cudaMemsetAsync(gone, 0, 64, stream));
  EXPECT_CUDA_ERROR(1, cuStreamWriteValue32_v2(stream, address, 1, 0));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaMissingMemory, FreedReservationsAreUsedAgainAndNeverByTheHost) {
  constexpr size_t kUnits[] = {1, 4, 2};
  EXPECT_CUDA(cudaFree(nullptr));
  CUdeviceptr first = 0;
  ASSERT_CUDA(cuMemAddressReserve(&first, 8 * kUnit, 8 * kUnit, 0, 0));
  ASSERT_CUDA(cuMemAddressFree(first, 8 * kUnit));
  for (size_t round = 0; round < 12; ++round) {
    CUdeviceptr ranges[3];
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_CUDA(cuMemAddressReserve(&ranges[i], kUnits[i] * kUnit, kUnits[i] * kUnit, 0, 0));
      EXPECT_EQ(ranges[i] % (kUnits[i] * kUnit), 0U);
    }
    EXPECT_TRUE(ranges[0] + kUnit <= ranges[1] || ranges[1] + 4 * kUnit <= ranges[0]);
    EXPECT_TRUE(ranges[1] + 4 * kUnit <= ranges[2] || ranges[2] + 2 * kUnit <= ranges[1]);
    EXPECT_TRUE(ranges[2] + 2 * kUnit <= ranges[0] || ranges[0] + kUnit <= ranges[2]);
    for (size_t i = 0; i < 3; ++i) {  // in another order in each round
      const size_t at = (round % 2 == 0 ? i + round : 2 * i + round) % 3;
      EXPECT_CUDA(cuMemAddressFree(ranges[at], kUnits[at] * kUnit));
      EXPECT_CUDA_ERROR(1, cuMemAddressFree(ranges[at], kUnits[at] * kUnit));
      // What the host maps now lies elsewhere.
      void* const host = mmap(reinterpret_cast<void*>(ranges[at]), kUnit, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(host, MAP_FAILED);
      EXPECT_NE(device_address(host), ranges[at]);
      munmap(host, kUnit);
    }
  }
  // Neighbours have become one range again.
  CUdeviceptr whole = 0;
  ASSERT_CUDA(cuMemAddressReserve(&whole, 8 * kUnit, 8 * kUnit, 0, 0));
  EXPECT_EQ(whole, first);
  EXPECT_CUDA(cuMemAddressFree(whole, 8 * kUnit));
}

TEST(HostCudaMissingMemory, HostMemoryThatWasFreedIsRefused) {
  const cudaStream_t stream = make_stream();
  auto* const device = static_cast<char*>(allocate(kUnit));
  void* pinned = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, 4 * kUnit));
  ASSERT_CUDA(cudaFreeHost(pinned));
  EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(device, pinned, kUnit, cudaMemcpyDefault, stream));
  EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(pinned, device, kUnit, cudaMemcpyDefault, stream));
  // The last page is missing.
  void* const host =
      mmap(nullptr, 2 * kUnit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(host, MAP_FAILED);
  auto* const end = static_cast<char*>(host) + kUnit;
  ASSERT_EQ(munmap(end, kUnit), 0);
  EXPECT_CUDA_ERROR(1, cudaMemcpyAsync(device, end - 4, 8, cudaMemcpyDefault, stream));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(end - 4, device, 8, cudaMemcpyDefault));
  EXPECT_CUDA(cudaMemcpy(end - 8, device, 8, cudaMemcpyDefault));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(munmap(host, kUnit), 0);
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

// ---- Memory that goes after the call: in processes of their own, whose device is lost ----------

// A stream fails, and with it all of the device, whose other work ends.
void expect_failure(cudaStream_t stream) {
  EXPECT_CUDA_ERROR(kIllegalAddress, cudaStreamSynchronize(stream));
  EXPECT_CUDA_ERROR(kIllegalAddress, cudaDeviceSynchronize());
  void* memory = nullptr;
  EXPECT_CUDA_ERROR(kIllegalAddress, cudaMalloc(&memory, 16));
  EXPECT_CUDA_ERROR(kIllegalAddress, cudaMemsetAsync(nullptr, 0, 0, stream));
  EXPECT_CUDA_ERROR(kIllegalAddress, cudaGetLastError());
  EXPECT_CUDA_ERROR(kIllegalAddress, cuStreamSynchronize(stream));
}

[[noreturn]] void leave() { std::_Exit(::testing::Test::HasFailure() ? 1 : 0); }

cudaGraphExec_t capture(cudaStream_t stream, void (*body)(cudaStream_t, void*), void* gone) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  body(stream, gone);
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  return executable;
}

void launch_without_mapped_memory(void (*body)(cudaStream_t, void*)) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  const cudaStream_t other = make_stream(kNonBlocking);
  const cudaEvent_t event = make_event();
  const CUdeviceptr address = map_memory();
  const cudaGraphExec_t executable = capture(stream, body, reinterpret_cast<void*>(address));
  EXPECT_CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  unmap_memory(address);
  Gate gate;  // nothing opens it
  gate.close(other);
  EXPECT_CUDA(cudaEventRecord(event, other));
  EXPECT_CUDA(cudaGraphLaunch(executable, stream));
  expect_failure(stream);
  EXPECT_CUDA_ERROR(kIllegalAddress, cudaEventSynchronize(event));
  leave();
}

void check_launch(const char* use, void (*body)(cudaStream_t, void*)) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(launch_without_mapped_memory(body), ::testing::ExitedWithCode(0),
              std::string("device 0: ") + use + " (4|64) bytes at 0x");
}

TEST(HostCudaMissingMemoryDeathTest, AGraphThatCopiesFromItFails) {
  check_launch("copy from", [](cudaStream_t stream, void* gone) {
    EXPECT_CUDA(cudaMemcpyAsync(allocate(64), gone, 64, cudaMemcpyDefault, stream));
  });
}
TEST(HostCudaMissingMemoryDeathTest, AGraphThatCopiesToItFails) {
  check_launch("copy to", [](cudaStream_t stream, void* gone) {
    EXPECT_CUDA(cudaMemcpyAsync(gone, allocate(64), 64, cudaMemcpyDefault, stream));
  });
}
TEST(HostCudaMissingMemoryDeathTest, AGraphThatFillsItFails) {
  check_launch("fill of", [](cudaStream_t stream, void* gone) {
    EXPECT_CUDA(cudaMemsetAsync(gone, 1, 64, stream));
  });
}
TEST(HostCudaMissingMemoryDeathTest, AGraphThatWritesItsValueFails) {
  check_launch("write of the value of", [](cudaStream_t stream, void* gone) {
    EXPECT_CUDA(cuStreamWriteValue32_v2(stream, device_address(gone), 1, 0));
  });
}
TEST(HostCudaMissingMemoryDeathTest, AGraphThatWaitsForItsValueFails) {
  check_launch("wait for the value of", [](cudaStream_t stream, void* gone) {
    EXPECT_CUDA(cuStreamWaitValue32_v2(stream, device_address(gone), 0, 1));
  });
}

TEST(HostCudaMissingMemoryDeathTest, HostMemoryThatGoesBeforeItsCopyIsAnErrorOfTheDevice) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const cudaStream_t stream = make_stream(kNonBlocking);
        void* const device = allocate(kUnit);
        void* const host =
            mmap(nullptr, kUnit, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        EXPECT_CUDA(cudaHostRegister(host, kUnit, 0));
        Gate gate;
        gate.close(stream);
        EXPECT_CUDA(cudaMemcpyAsync(device, host, kUnit, cudaMemcpyDefault, stream));
        munmap(host, kUnit);  // without cudaHostUnregister, which would wait
        gate.open();
        expect_failure(stream);
        leave();
      },
      ::testing::ExitedWithCode(0), "device 0: copy from 2097152 bytes at 0x");
}

}  // namespace
}  // namespace weir::test
