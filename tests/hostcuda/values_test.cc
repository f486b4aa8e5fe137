// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: each comparison, both widths, batches, and what is refused.
#include <cstdint>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr unsigned kGreaterOrEqual = 0;
constexpr unsigned kEqual = 1;
constexpr unsigned kAnd = 2;
constexpr unsigned kNor = 3;

// The stream passes the wait exactly when the word goes from `before` to `after`.
void passes_from(unsigned condition, uint32_t value, uint32_t before, uint32_t after) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  Words words(2);
  words.write(before);
  ASSERT_CUDA(cuStreamWaitValue32_v2(stream, device_address(words.at()), value, condition));
  ASSERT_CUDA(cuStreamWriteValue32_v2(stream, device_address(words.at(1)), 1, 0));
  EXPECT_EQ(static_cast<int>(cudaStreamQuery(stream)), 600);
  EXPECT_EQ(words.read(1), 0U);
  words.write(after);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(words.read(1), 1U);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaValues, WaitsCompareAsCudaSays) {
  passes_from(kGreaterOrEqual, 5, 4, 5);
  passes_from(kGreaterOrEqual, 5, 4, 6);
  passes_from(kGreaterOrEqual, 2, 0xfffffff0U, 3);            // around the end of the numbers
  passes_from(kGreaterOrEqual, 0xfffffff0U, 0xffffffefU, 1);  // and beyond it
  passes_from(kEqual, 5, 6, 5);
  passes_from(kAnd, 6, 9, 2);
  passes_from(kNor, 0xf0f0f0f0U, 0x0f0f0f0fU, 0x0f0f0f0eU);
}

TEST(HostCudaValues, WordsOf64BitsAreComparedWhole) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  Words words(4);
  const CUdeviceptr flag = device_address(words.at(0));
  const CUdeviceptr result = device_address(words.at(2));
  ASSERT_CUDA(cuStreamWaitValue64_v2(stream, flag, uint64_t{1} << 40, kEqual));
  ASSERT_CUDA(cuStreamWriteValue64_v2(stream, result, 0x1122334455667788U, 0));
  words.write(1, 0);  // the low half alone is not it
  EXPECT_EQ(static_cast<int>(cudaStreamQuery(stream)), 600);
  words.write(0, 0);
  words.write(1 << 8, 1);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(words.read(2), 0x55667788U);
  EXPECT_EQ(words.read(3), 0x11223344U);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaValues, TwoStreamsHandWorkToEachOther) {
  const cudaStream_t ping = make_stream(kNonBlocking);
  const cudaStream_t pong = make_stream(kNonBlocking);
  auto* const words = static_cast<uint32_t*>(allocate(8));  // memory of the device
  ASSERT_CUDA(cudaMemset(words, 0, 8));
  ASSERT_CUDA(cudaDeviceSynchronize());
  for (uint32_t i = 1; i <= 50; ++i) {
    ASSERT_CUDA(cuStreamWaitValue32_v2(pong, device_address(words), i, kGreaterOrEqual));
    ASSERT_CUDA(cuStreamWriteValue32_v2(pong, device_address(words + 1), i, 0));
  }
  for (uint32_t i = 1; i <= 50; ++i) {
    ASSERT_CUDA(cuStreamWriteValue32_v2(ping, device_address(words), i, 0));
    ASSERT_CUDA(cuStreamWaitValue32_v2(ping, device_address(words + 1), i, kEqual));
  }
  EXPECT_CUDA(cudaStreamSynchronize(ping));
  EXPECT_CUDA(cudaStreamSynchronize(pong));
  EXPECT_CUDA(cudaFree(words));
  EXPECT_CUDA(cudaStreamDestroy(ping));
  EXPECT_CUDA(cudaStreamDestroy(pong));
}

CUstreamBatchMemOpParams operation(CUstreamBatchMemOpType type, const void* address, uint32_t value,
                                   unsigned flags) {
  CUstreamBatchMemOpParams made{};
  made.waitValue.operation = type;
  made.waitValue.address = device_address(address);
  made.waitValue.value = value;
  made.waitValue.flags = flags;
  return made;
}

TEST(HostCudaValues, ABatchIsDoneInItsOrder) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  Words words(3);
  CUstreamBatchMemOpParams batch[] = {
      operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.at(0), 1, 0),
      operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, words.at(1), 1, kEqual),
      operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.at(2), 1, 0),
  };
  ASSERT_CUDA(cuStreamBatchMemOp_v2(stream, 3, batch, 0));
  while (words.read(0) == 0) std::this_thread::yield();
  EXPECT_EQ(words.read(2), 0U);
  words.write(1, 1);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(words.read(2), 1U);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaValues, WhatCudaForbidsIsRefused) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  Words words(4);
  uint32_t pageable = 0;
  const CUdeviceptr word = device_address(words.at());
  EXPECT_CUDA_ERROR(1, cuStreamWriteValue32_v2(stream, device_address(&pageable), 1, 0));
  EXPECT_CUDA_ERROR(1, cuStreamWriteValue32_v2(stream, 0, 1, 0));
  EXPECT_CUDA_ERROR(1, cuStreamWriteValue32_v2(stream, word + 2, 1, 0));
  EXPECT_CUDA_ERROR(1, cuStreamWriteValue64_v2(stream, word + 4, 1, 0));
  EXPECT_CUDA_ERROR(1, cuStreamWriteValue32_v2(stream, word, 1, 8));
  EXPECT_CUDA_ERROR(1, cuStreamWaitValue32_v2(stream, word, 1, 8));
  std::vector<CUstreamBatchMemOpParams> many(
      256, operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, words.at(), 1, 0));
  EXPECT_CUDA_ERROR(1, cuStreamBatchMemOp_v2(stream, 256, many.data(), 0));
  EXPECT_CUDA_ERROR(1, cuStreamBatchMemOp_v2(stream, 0, many.data(), 0));
  EXPECT_CUDA(cuStreamBatchMemOp_v2(stream, 255, many.data(), 0));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  // Host memory of the program's own serves once it is registered.
  alignas(64) static uint32_t own[16] = {};
  ASSERT_CUDA(cudaHostRegister(own, sizeof own, 0));
  EXPECT_CUDA(cuStreamWriteValue32_v2(stream, device_address(own), 4, 0));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(own[0], 4U);
  EXPECT_CUDA(cudaHostUnregister(own));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace weir::test
