// SPDX-License-Identifier: Apache-2.0
// Streams of the caller that wait for each other or cannot be used, and devices that are reset. On
// the stand-in for CUDA, whose default stream waits for blocking streams as CUDA's does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hostcuda/cuda.h"
#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

using testing::HasSubstr;

constexpr size_t kCount = 20'000;
// cudaStreamLegacy of CUDA's headers: the default stream's other name.
cudaStream_t legacy_stream() { return reinterpret_cast<cudaStream_t>(uintptr_t{1}); }

// Memory of the current device, which may be reset.
int* make_array(int value) {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, kCount * sizeof(int)), cudaSuccess);
  const std::vector<int> values(kCount, value);
  EXPECT_EQ(cudaMemcpy(data, values.data(), kCount * sizeof(int), cudaMemcpyHostToDevice),
            cudaSuccess);
  return static_cast<int*>(data);
}

void expect_values(const int* data, int value) {
  std::vector<int> values(kCount);
  EXPECT_EQ(cudaMemcpy(values.data(), data, kCount * sizeof(int), cudaMemcpyDeviceToHost),
            cudaSuccess);
  EXPECT_EQ(values, std::vector<int>(kCount, value));
}

weir_result_t sum(weir_comm_t comm, int* data) {
  return weir_all_reduce(comm, data, data, kCount, WEIR_INT32, WEIR_SUM, nullptr);
}

// Ranks are processes with a device each.
void run_on_devices(const std::function<void(weir_comm_t comm, int n, int rank)>& body) {
  run_processes(2, [&](int rank, weir_comm_t comm) {
    ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
    EXPECT_EQ(weir_comm_set_timeout(comm, 10'000), WEIR_OK);
    body(comm, 2, rank);
  });
}

TEST(CallersStreams, ThatWaitForEachOtherMayComeInAnyOrderInAGroup) {
  run_on_devices([](weir_comm_t comm, int, int rank) {
    cudaStream_t blocking = nullptr;
    ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
    const std::pair<cudaStream_t, cudaStream_t> pairs[] = {{legacy_stream(), nullptr},
                                                           {nullptr, legacy_stream()},
                                                           {nullptr, nullptr},
                                                           {blocking, nullptr},
                                                           {legacy_stream(), blocking}};
    for (const auto& [a, b] : pairs) {
      weir_comm_t comms[2] = {};
      for (weir_comm_t& it : comms) {
        ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &it), WEIR_OK);
      }
      EXPECT_EQ(weir_comm_set_stream(comms[0], a), WEIR_OK);
      EXPECT_EQ(weir_comm_set_stream(comms[1], b), WEIR_OK);
      int* const data[2] = {make_array(rank + 1), make_array(rank + 10)};
      // The first calls make what direct calls use.
      for (int round = 0; round < 3; ++round) {
        EXPECT_EQ(weir_group_start(), WEIR_OK);
        for (int i = 0; i < 2; ++i) {
          const int which = (i + rank) % 2;
          EXPECT_EQ(sum(comms[which], data[which]), WEIR_OK);
        }
        EXPECT_EQ(weir_group_end(), WEIR_OK);
        for (cudaStream_t stream : {a, b}) EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      }
      expect_values(data[0], 3 * 4);
      expect_values(data[1], 21 * 4);
      for (weir_comm_t it : comms) EXPECT_EQ(weir_comm_destroy(it), WEIR_OK);
      for (int* it : data) EXPECT_EQ(cudaFree(it), cudaSuccess);
    }
    EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
  });
}

// On rank 1; the communicator goes on with a stream that can be used.
void expect_refused(cudaStream_t stream, weir_comm_t comm, int rank, weir_result_t expected,
                    const char* text, const std::function<void()>& before = {},
                    const std::function<void()>& after = {}) {
  int* const data = make_array(rank + 1);
  if (rank == 1) {
    EXPECT_EQ(weir_comm_set_stream(comm, stream), WEIR_OK);
    if (before) before();
    EXPECT_EQ(sum(comm, data), expected);
    EXPECT_THAT(weir_last_error(comm), HasSubstr(text));
    EXPECT_THAT(weir_last_error(comm), HasSubstr("may be repeated"));
    if (after) after();
  }
  cudaStream_t good = nullptr;
  ASSERT_EQ(cudaStreamCreate(&good), cudaSuccess);
  EXPECT_EQ(weir_comm_set_stream(comm, good), WEIR_OK);
  EXPECT_EQ(sum(comm, data), WEIR_OK) << weir_last_error(comm);
  EXPECT_EQ(cudaStreamSynchronize(good), cudaSuccess);
  expect_values(data, 3);
  EXPECT_EQ(weir_comm_set_stream(comm, WEIR_NO_STREAM), WEIR_OK);
  EXPECT_EQ(cudaStreamDestroy(good), cudaSuccess);
  EXPECT_EQ(cudaFree(data), cudaSuccess);
}

TEST(CallersStreams, TheDefaultStreamIsRefusedWhileAStreamForWhichItWaitsIsCaptured) {
  run_on_devices([](weir_comm_t comm, int, int rank) {
    cudaStream_t captured = nullptr;
    ASSERT_EQ(cudaStreamCreate(&captured), cudaSuccess);
    int* const first = make_array(rank + 1);
    EXPECT_EQ(sum(comm, first), WEIR_OK);  // so that the next one goes directly at once
    const auto begin = [&] {
      EXPECT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed), cudaSuccess);
    };
    const auto end = [&] {
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    };
    expect_refused(nullptr, comm, rank, WEIR_ERROR_INVALID_USAGE, "end that capture first", begin,
                   end);
  });
}

TEST(CallersStreams, AStreamOfAnotherDeviceIsRefusedWherePeersAreOtherProcesses) {
  run_on_devices([](weir_comm_t comm, int, int rank) {
    int* const first = make_array(rank + 1);
    EXPECT_EQ(sum(comm, first), WEIR_OK);
    ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
    cudaStream_t other = nullptr;
    ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
    ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
    expect_refused(other, comm, rank, WEIR_ERROR_INVALID_ARGUMENT, "a stream of another device");
  });
}

TEST(CallersStreams, ABufferThatWentWithItsDeviceTellsOfTheReset) {
  const SharedCounter have_summed;
  run_on_devices([&](weir_comm_t comm, int n, int rank) {
    int* const data = make_array(rank + 1);
    EXPECT_EQ(sum(comm, data), WEIR_OK);
    have_summed.meet(n);
    if (rank == 1) {
      ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
    }
    EXPECT_EQ(sum(comm, data), WEIR_ERROR_SYSTEM) << weir_last_error(comm);
    EXPECT_THAT(weir_last_error(comm), HasSubstr("rank 1: CUDA has lost the context"));
  });
}

}  // namespace
}  // namespace weir::test
