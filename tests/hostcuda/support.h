// SPDX-License-Identifier: Apache-2.0
// What the tests of src/hostcuda share.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "hostcuda/cuda.h"

#define EXPECT_CUDA(call) EXPECT_EQ(static_cast<int>(call), 0)
#define ASSERT_CUDA(call) ASSERT_EQ(static_cast<int>(call), 0)
#define EXPECT_CUDA_ERROR(number, call) EXPECT_EQ(static_cast<int>(call), number)

namespace weir::test {

inline CUdeviceptr device_address(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// Pinned words that streams and the host read and write.
class Words {
 public:
  explicit Words(size_t count = 1) {
    void* memory = nullptr;
    EXPECT_CUDA(cudaHostAlloc(&memory, count * sizeof(uint32_t), 0));
    words_ = static_cast<uint32_t*>(memory);
    for (size_t i = 0; i < count; ++i) words_[i] = 0;
  }
  ~Words() { EXPECT_CUDA(cudaFreeHost(words_)); }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  uint32_t* at(size_t i = 0) { return words_ + i; }
  uint32_t read(size_t i = 0) {
    return std::atomic_ref<uint32_t>(words_[i]).load(std::memory_order_seq_cst);
  }
  void write(uint32_t value, size_t i = 0) {
    std::atomic_ref<uint32_t>(words_[i]).store(value, std::memory_order_seq_cst);
  }

 private:
  uint32_t* words_ = nullptr;
};

// Holds a stream up until the test opens it, without a host function.
class Gate {
 public:
  ~Gate() { open(); }
  void close(cudaStream_t stream) {
    EXPECT_CUDA(cuStreamWaitValue32_v2(stream, device_address(word_.at()), 1, 1));
  }
  void open() { word_.write(1); }

 private:
  Words word_;
};

inline cudaStream_t make_stream(unsigned flags = 0) {
  cudaStream_t stream = nullptr;
  EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

inline cudaEvent_t make_event(unsigned flags = 0) {
  cudaEvent_t event = nullptr;
  EXPECT_CUDA(cudaEventCreateWithFlags(&event, flags));
  return event;
}

inline void* allocate(size_t bytes) {
  void* memory = nullptr;
  EXPECT_CUDA(cudaMalloc(&memory, bytes));
  return memory;
}

inline size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

inline const cudaStream_t kPerThread = reinterpret_cast<cudaStream_t>(2);
constexpr unsigned kNonBlocking = 1;

}  // namespace weir::test
