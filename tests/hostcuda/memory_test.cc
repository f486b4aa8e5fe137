// SPDX-License-Identifier: Apache-2.0
// Memory: where it is, how much there is, copies and fills, and what an address is.
#include <cstring>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

std::vector<char> pattern(size_t bytes, int seed) {
  std::vector<char> made(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    made[i] = static_cast<char>((i * 31 + static_cast<size_t>(seed)) % 251);
  }
  return made;
}

TEST(HostCudaMemory, BytesComeBackAsTheyWentIn) {
  constexpr size_t kBytes = 3 << 20;
  const std::vector<char> sent = pattern(kBytes, 1);
  std::vector<char> received(kBytes);
  void* const first = allocate(kBytes);
  void* const second = allocate(kBytes);
  ASSERT_CUDA(cudaMemcpy(first, sent.data(), kBytes, cudaMemcpyHostToDevice));
  ASSERT_CUDA(cudaMemcpy(second, first, kBytes, cudaMemcpyDeviceToDevice));
  ASSERT_CUDA(cudaMemcpy(received.data(), second, kBytes, cudaMemcpyDefault));
  EXPECT_EQ(received, sent);
  EXPECT_CUDA(cudaFree(first));
  EXPECT_CUDA(cudaFree(second));
}

TEST(HostCudaMemory, PageableMemoryMayChangeOnceAnAsynchronousCopyHasReturned) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  void* const device = allocate(1000);
  std::vector<char> source = pattern(1000, 2);
  const std::vector<char> as_it_was = source;
  Gate gate;
  gate.close(stream);
  ASSERT_CUDA(cudaMemcpyAsync(device, source.data(), 1000, cudaMemcpyHostToDevice, stream));
  source.assign(1000, 0);
  gate.open();
  std::vector<char> received(1000);
  // Into pageable memory: returns when it is done.
  ASSERT_CUDA(cudaMemcpyAsync(received.data(), device, 1000, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(received, as_it_was);
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaMemory, ACopyFromPinnedMemoryReadsItWhenTheStreamComesThere) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  Words words(1);
  Words result(1);
  void* const device = allocate(4);
  Gate gate;
  gate.close(stream);
  ASSERT_CUDA(cudaMemcpyAsync(device, words.at(), 4, cudaMemcpyHostToDevice, stream));
  ASSERT_CUDA(cudaMemcpyAsync(result.at(), device, 4, cudaMemcpyDeviceToHost, stream));
  words.write(77);
  gate.open();
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(result.read(), 77U);
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaMemory, RowsAndBoxesAreCopiedWithTheirPitches) {
  constexpr size_t kWidth = 13;
  constexpr size_t kHeight = 5;
  void* device = nullptr;
  size_t pitch = 0;
  ASSERT_CUDA(cudaMallocPitch(&device, &pitch, kWidth, kHeight));
  EXPECT_GE(pitch, kWidth);
  ASSERT_CUDA(cudaMemset(device, 0x55, pitch * kHeight));
  const std::vector<char> sent = pattern(kWidth * kHeight, 3);
  ASSERT_CUDA(
      cudaMemcpy2D(device, pitch, sent.data(), kWidth, kWidth, kHeight, cudaMemcpyHostToDevice));
  std::vector<char> all(pitch * kHeight);
  ASSERT_CUDA(cudaMemcpy(all.data(), device, all.size(), cudaMemcpyDeviceToHost));
  for (size_t y = 0; y < kHeight; ++y) {
    EXPECT_EQ(std::memcmp(&all[y * pitch], &sent[y * kWidth], kWidth), 0);
    EXPECT_EQ(all[y * pitch + kWidth], 0x55);
  }
  cudaMemcpy3DParms box{};
  std::vector<char> received(kWidth * kHeight);
  box.srcPtr = {device, pitch, kWidth, kHeight};
  box.dstPtr = {received.data(), kWidth, kWidth, kHeight};
  box.srcPos = {2, 1, 0};
  box.extent = {4, 3, 1};
  box.kind = cudaMemcpyDeviceToHost;
  ASSERT_CUDA(cudaMemcpy3D(&box));
  for (size_t y = 0; y < 3; ++y) {
    EXPECT_EQ(std::memcmp(&received[y * kWidth], &sent[(y + 1) * kWidth + 2], 4), 0);
  }
  EXPECT_CUDA_ERROR(
      12, cudaMemcpy2D(device, 4, sent.data(), kWidth, kWidth, kHeight, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaFree(device));
}

TEST(HostCudaMemory, BoxesAreFilledAndCopiedBetweenDevices) {
  // Layers of four rows of eight bytes.
  const auto box = [](void* at) { return cudaPitchedPtr{at, 8, 8, 4}; };
  void* const first = allocate(64);
  void* const second = allocate(64);
  ASSERT_CUDA(cudaMemset(first, 0, 64));
  ASSERT_CUDA(cudaMemset(second, 0, 64));
  ASSERT_CUDA(cudaMemset3D(box(first), 7, {3, 2, 2}));
  cudaMemcpy3DPeerParms copy{};
  copy.srcPtr = box(first);
  copy.dstPtr = box(second);
  copy.dstPos = {1, 1, 0};
  copy.extent = {3, 2, 2};
  ASSERT_CUDA(cudaMemcpy3DPeer(&copy));
  char expected[64] = {};
  for (const size_t layer : {0, 1}) {
    for (const size_t row : {1, 2}) std::memset(expected + 32 * layer + 8 * row + 1, 7, 3);
  }
  char got[64];
  ASSERT_CUDA(cudaMemcpy(got, second, 64, cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::memcmp(got, expected, 64), 0);
  EXPECT_CUDA_ERROR(1, cudaMemset3D(box(first), 7, {3, 2, 3}));  // has no third layer
  copy.srcDevice = 99;
  EXPECT_CUDA_ERROR(101, cudaMemcpy3DPeer(&copy));
  EXPECT_CUDA(cudaFree(first));
  EXPECT_CUDA(cudaFree(second));
}

TEST(HostCudaMemory, FillsWriteTheirElementsAndNothingElse) {
  auto* const device = static_cast<char*>(allocate(64));
  ASSERT_CUDA(cudaMemset(device, 0, 64));
  ASSERT_CUDA(cuMemsetD32_v2(device_address(device + 8), 0x01020304, 2));
  ASSERT_CUDA(cuMemsetD16_v2(device_address(device + 24), 0x0506, 3));
  ASSERT_CUDA(cudaMemset2D(device + 40, 8, 9, 3, 2));
  unsigned char got[64];
  ASSERT_CUDA(cudaMemcpy(got, device, 64, cudaMemcpyDeviceToHost));
  unsigned char expected[64] = {};
  const uint32_t words[] = {0x01020304, 0x01020304};
  std::memcpy(expected + 8, words, 8);
  const uint16_t halves[] = {0x0506, 0x0506, 0x0506};
  std::memcpy(expected + 24, halves, 6);
  for (const size_t row : {40, 48}) std::memset(expected + row, 9, 3);
  EXPECT_EQ(std::memcmp(got, expected, 64), 0);
  EXPECT_CUDA(cudaFree(device));
}

TEST(HostCudaMemory, WhatIsFreeFollowsWhatIsAllocated) {
  EXPECT_CUDA(cudaDeviceSynchronize());
  const size_t before = free_bytes();
  std::vector<void*> all;
  for (const size_t bytes : {size_t{1}, size_t{511}, size_t{4096}, size_t{5} << 20}) {
    all.push_back(allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(all.back()) % 256, 0U);
  }
  EXPECT_LE(free_bytes(), before - 4 * 512);
  EXPECT_CUDA(cudaFree(all[2]));
  EXPECT_CUDA(cudaFree(all[0]));
  EXPECT_CUDA(cudaFree(all[3]));
  EXPECT_CUDA(cudaFree(all[1]));
  EXPECT_EQ(free_bytes(), before);
  void* whole = nullptr;
  EXPECT_CUDA(cudaMalloc(&whole, before));  // nothing is left in pieces
  EXPECT_CUDA_ERROR(2, cudaMalloc(&all[0], 1));
  EXPECT_CUDA(cudaFree(whole));
  EXPECT_CUDA_ERROR(2, cudaMalloc(&whole, before + 1));
  EXPECT_CUDA_ERROR(1, cudaMalloc(nullptr, 1));
  EXPECT_CUDA(cudaMalloc(&whole, 0));
  EXPECT_EQ(whole, nullptr);
  EXPECT_CUDA(cudaFree(nullptr));
}

TEST(HostCudaMemory, AnAddressTellsWhatItIs) {
  auto* const device = static_cast<char*>(allocate(100));
  void* pinned = nullptr;
  void* managed = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, 100));
  ASSERT_CUDA(cudaMallocManaged(&managed, 100, 1));
  alignas(64) static char own[128];
  cudaPointerAttributes a{};
  ASSERT_CUDA(cudaPointerGetAttributes(&a, device + 50));
  EXPECT_EQ(a.type, cudaMemoryTypeDevice);
  EXPECT_EQ(a.device, 0);
  EXPECT_EQ(a.devicePointer, device + 50);
  EXPECT_EQ(a.hostPointer, nullptr);
  ASSERT_CUDA(cudaPointerGetAttributes(&a, device + 100));  // one past its end
  EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
  ASSERT_CUDA(cudaPointerGetAttributes(&a, pinned));
  EXPECT_EQ(a.type, cudaMemoryTypeHost);
  EXPECT_EQ(a.hostPointer, pinned);
  ASSERT_CUDA(cudaPointerGetAttributes(&a, managed));
  EXPECT_EQ(a.type, cudaMemoryTypeManaged);
  ASSERT_CUDA(cudaPointerGetAttributes(&a, own));
  EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
  ASSERT_CUDA(cudaHostRegister(own, sizeof own, 0));
  ASSERT_CUDA(cudaPointerGetAttributes(&a, own + 5));
  EXPECT_EQ(a.type, cudaMemoryTypeHost);
  EXPECT_CUDA_ERROR(712, cudaHostRegister(own + 8, 8, 0));
  EXPECT_CUDA(cudaHostUnregister(own));
  EXPECT_CUDA_ERROR(713, cudaHostUnregister(own));

  unsigned type = 0;
  ASSERT_CUDA(
      cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device_address(device)));
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_CUDA_ERROR(
      1, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device_address(own)));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_CUDA(cuMemGetAddressRange_v2(&base, &bytes, device_address(device + 9)));
  EXPECT_EQ(base, device_address(device));
  EXPECT_EQ(bytes, 100U);
  EXPECT_CUDA(cudaFree(managed));
  EXPECT_CUDA(cudaFreeHost(pinned));
  EXPECT_CUDA(cudaFree(device));
}

TEST(HostCudaMemory, CopiesThatCannotBeRightAreRefused) {
  auto* const device = static_cast<char*>(allocate(100));
  char host[200] = {};
  EXPECT_CUDA_ERROR(1, cudaMemcpy(device, host, 101, cudaMemcpyHostToDevice));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(device + 90, host, 11, cudaMemcpyHostToDevice));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(host, host + 100, 10, cudaMemcpyDeviceToHost));
  EXPECT_CUDA_ERROR(1, cudaMemcpy(nullptr, host, 1, cudaMemcpyDefault));
  EXPECT_CUDA_ERROR(21, cudaMemcpy(device, host, 1, static_cast<cudaMemcpyKind>(5)));
  EXPECT_CUDA_ERROR(1, cudaMemset(device, 0, 101));
  EXPECT_CUDA_ERROR(1, cudaMemset(host, 0, 1));
  EXPECT_CUDA_ERROR(1, cudaFree(device + 1));
  EXPECT_CUDA_ERROR(1, cudaFree(host));
  EXPECT_CUDA_ERROR(1, cudaFreeHost(device));
  EXPECT_CUDA(cudaMemcpy(device, host, 0, cudaMemcpyHostToDevice));
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA_ERROR(1, cudaFree(device));
  EXPECT_CUDA_ERROR(1, cudaGetLastError());
}

}  // namespace
}  // namespace weir::test
