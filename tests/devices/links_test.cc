// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that have a device each: the links between the devices of the machine, which
// WEIR_TOPOLOGY_FILE names, decide whether trees are offered, and whether collectives on device
// memory go along rings. WEIR_TEST_EXPECTED is the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "hostcuda/cuda.h"
#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

constexpr int kRanks = 8;

using Body = std::function<void(int rank, weir_comm_t comm)>;
void run_on_devices(const Body& body, weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  const weir_unique_id_t id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
      ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
      run_rank(kRanks, rank, id, body, config);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DeviceLinks, DecideWhetherTreesAreOffered) {
  const char* const expected = std::getenv("WEIR_TEST_EXPECTED");
  ASSERT_NE(expected, nullptr) << "run it with ctest";
  testing::internal::CaptureStderr();
  run_on_devices([](int, weir_comm_t comm) {
    for (const size_t count : {size_t{1}, size_t{50'001}}) check_every_collective(comm, count);
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::ContainsRegex(expected));
}

// An array on the device of the calling thread.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, size_ * sizeof(T)), cudaSuccess);
    data_ = static_cast<T*>(data);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  T* data() const { return data_; }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

constexpr size_t kLarge = 2'500'003;  // elements of 4 bytes

// Where the expected text says so, large sums are folded in other orders than that of the ranks,
// which the last bits show: 1e8 and -1e8 hide a 1 between them.
TEST(DeviceLinks, LargeReductionsGoAlongTheRingsUnlessTheyAreInTheOrderOfTheRanks) {
  const char* const expected = std::getenv("WEIR_TEST_EXPECTED");
  ASSERT_NE(expected, nullptr) << "run it with ctest";
  const bool along_rings = std::string(expected).find("rings") != std::string::npos;
  for (const bool deterministic : {false, true}) {
    weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
    config.flags = deterministic ? WEIR_COMM_DETERMINISTIC : 0;
    run_on_devices(
        [&](int rank, weir_comm_t comm) {
          const float own = rank == 0 ? 1e8F : rank == 1 ? 1.0F : rank == 2 ? -1e8F : 0.0F;
          const OnDevice<float> data(std::vector<float>(kLarge, own));
          ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), kLarge, WEIR_FLOAT32, WEIR_SUM,
                                    nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
          const std::vector<float> sums = data.get();
          const bool any_one = std::find(sums.begin(), sums.end(), 1.0F) != sums.end();
          EXPECT_EQ(any_one, along_rings && !deterministic);
        },
        config);
  }
}

// The stream of rank 5 stands before the call: all others name it, not the ranks that wait as they
// do, whichever of these they read of.
TEST(DeviceLinks, ARankWhoseStreamIsLateIsNamedAtTheDeadline) {
  std::atomic<bool> may_go_on{false};
  std::atomic<int> told{0};
  run_on_devices([&](int rank, weir_comm_t comm) {
    EXPECT_EQ(weir_comm_set_timeout(comm, 1000), WEIR_OK);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    const OnDevice<float> data(std::vector<float>(kLarge, 1));
    if (rank == 5) {
      const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
      ASSERT_EQ(cudaLaunchHostFunc(stream, wait, &may_go_on), cudaSuccess);
    }
    ASSERT_EQ(weir_comm_set_stream(comm, stream), WEIR_OK);
    ASSERT_EQ(
        weir_all_reduce(comm, data.data(), data.data(), kLarge, WEIR_FLOAT32, WEIR_SUM, nullptr),
        WEIR_OK);
    weir_result_t error = WEIR_OK;
    for (int i = 0; i < 2000 && error == WEIR_OK; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_EQ(weir_comm_async_error(comm, &error), WEIR_OK);
    }
    EXPECT_EQ(error, WEIR_ERROR_TIMEOUT);
    if (rank != 5) {
      EXPECT_THAT(weir_last_error(comm),
                  testing::HasSubstr("; rank 5 has not come to it in its stream"));
    }
    if (++told == kRanks) {
      may_go_on = true;
      may_go_on.notify_all();
    }
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(weir_comm_set_stream(comm, WEIR_NO_STREAM), WEIR_OK);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

TEST(DeviceLinks, LargeCollectivesHoldTheirValues) {
  run_on_devices([](int rank, weir_comm_t comm) {
    const auto value = [](int of, size_t i) { return static_cast<int32_t>(i * 3 + 1000 * of); };
    const size_t block = kLarge / kRanks;
    for (const bool small : {false, true, false}) {
      const size_t count = small ? 1001 : kLarge;
      const size_t each = small ? 77 : block;
      std::vector<int32_t> own(kRanks * each > count ? kRanks * each : count);
      for (size_t i = 0; i < own.size(); ++i) own[i] = value(rank, i);
      const OnDevice<int32_t> input(own);
      const OnDevice<int32_t> output(std::vector<int32_t>(own.size()));
      const auto sum = [&](size_t i) {
        int32_t all = 0;
        for (int of = 0; of < kRanks; ++of) all += value(of, i);
        return all;
      };
      ASSERT_EQ(
          weir_all_reduce(comm, input.data(), output.data(), count, WEIR_INT32, WEIR_SUM, nullptr),
          WEIR_OK);
      std::vector<int32_t> got = output.get();
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(i)) << "element " << i;
      ASSERT_EQ(
          weir_all_reduce(comm, input.data(), output.data(), count, WEIR_INT32, WEIR_AVG, nullptr),
          WEIR_OK);
      got = output.get();
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(got[i], sum(i) / kRanks) << "element " << i;
      ASSERT_EQ(weir_reduce_scatter(comm, input.data(), output.data(), each, WEIR_INT32, WEIR_MAX,
                                    nullptr),
                WEIR_OK);
      got = output.get();
      for (size_t i = 0; i < each; ++i) ASSERT_EQ(got[i], value(kRanks - 1, rank * each + i));
      ASSERT_EQ(weir_all_gather(comm, input.data(), output.data(), each, WEIR_INT32, nullptr),
                WEIR_OK);
      got = output.get();
      for (size_t i = 0; i < kRanks * each; ++i) {
        ASSERT_EQ(got[i], value(static_cast<int>(i / each), i % each)) << "element " << i;
      }
    }
  });
}

}  // namespace
}  // namespace weir::test
