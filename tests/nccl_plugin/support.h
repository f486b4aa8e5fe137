// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, each with a device of the stand-in for CUDA, and a double of the real NCCL
// behind the transport `nccl`. Nothing may use CUDA before the ranks are forked.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hostcuda/cuda.h"
#include "support/ranks.h"
#include "support/shared_counter.h"
#include "weir/weir.h"

namespace weir::test {

inline constexpr const char* kDouble = WEIR_TEST_DOUBLE;             // plays 2.31
inline constexpr const char* kOlderDouble = WEIR_TEST_DOUBLE_OLDER;  // plays 2.27

// All collectives are NCCL's, unless WEIR_TEST_DIRECT says otherwise: then only the v-variants are.
inline Environment with_double(const char* library = kDouble, Environment more = {}) {
  const char* const direct = std::getenv("WEIR_TEST_DIRECT");
  more.emplace_back("WEIR_NCCL_LIBRARY", library);
  more.emplace_back("WEIR_DIRECT", direct != nullptr ? direct : "0");
  more.emplace_back("WEIR_HOSTCUDA_DEVICES", "8");
  more.emplace_back("WEIR_HOSTCUDA_MEMORY", "64M");
  return more;
}

// Ranks on devices of their own.
inline void run_on_devices(int n, const Body& body, const Environment& environment) {
  run_processes(
      n,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        body(rank, comm);
      },
      environment);
}

// An array on the current device.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(size_t count) : count_(count) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(memory);
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(values.size()) { write(values); }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return data_; }
  void write(const std::vector<T>& values) {
    EXPECT_EQ(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

#define EXPECT_WEIR(comm, call) EXPECT_EQ(call, WEIR_OK) << weir_last_error(comm)
#define ASSERT_WEIR(comm, call) ASSERT_EQ(call, WEIR_OK) << weir_last_error(comm)

// 1 + rank at each element, summed over n ranks.
inline int sum_of_ranks(int n) { return n * (n + 1) / 2; }

// The sum of one number of each rank, by device memory.
inline void expect_sum_on_device(weir_comm_t comm, int rank, int n) {
  OnDevice<int> data(std::vector<int>(100, rank + 1));
  ASSERT_WEIR(comm,
              weir_all_reduce(comm, data.data(), data.data(), 100, WEIR_INT32, WEIR_SUM, nullptr));
  EXPECT_EQ(data.read(), std::vector<int>(100, sum_of_ranks(n)));
}

inline void expect_sum_on_host(weir_comm_t comm, int rank, int n) {
  int value = rank + 1;
  ASSERT_WEIR(comm, weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, nullptr));
  EXPECT_EQ(value, sum_of_ranks(n));
}

inline void expect_text(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace weir::test
