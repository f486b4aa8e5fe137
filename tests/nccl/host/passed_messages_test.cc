// SPDX-License-Identifier: Apache-2.0
// ncclSend and ncclRecv on memory of devices over a transport that takes it (device_double), which
// holds the library to giving it such memory by the calls for it alone. As between hosts, messages
// are no work of their streams alone (WEIR_DIRECT=0), except in the last test. Ranks are processes
// on the stand-in for CUDA; nothing here starts a thread, or CUDA, before it forks.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "hostcuda/driver/functions.h"
#include "nccl/processes.h"

#define EXPECT_CUDA(call) EXPECT_EQ(call, CUDA_SUCCESS)

namespace weir::nccl::test {
namespace {

const bool kEnvironment = [] {
  setenv("WEIR_DIRECT", "0", 1);
  setenv("WEIR_NCCL_CHUNK_BYTES", "64KiB", 1);
  setenv("WEIR_EXPLAIN", "1", 1);
  setenv("WEIR_HOSTCUDA_DEVICES", "2", 1);
  setenv("WEIR_HOSTCUDA_MEMORY", "64M", 1);
  setenv("WEIR_PLUGIN_PATH", WEIR_TEST_DEVICE_DOUBLES, 1);
  setenv("WEIR_TRANSPORT", "device_double", 1);
  return true;
}();

constexpr const char* kPassed = "the transport itself performs the messages of rank";
constexpr const char* kDirectly = "on device memory are copied directly";

std::vector<int> values_of(int rank, size_t count) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = rank * 1000003 + static_cast<int>(i) * 7;
  return values;
}

// Memory of the current device, or the host's.
class Numbers {
 public:
  Numbers(bool on_device, size_t count) : count_(count), host_(on_device ? 0 : count) {
    EXPECT_CUDA(on_device ? cuMemAlloc_v2(&device_, bytes()) : CUDA_SUCCESS);
  }
  ~Numbers() { EXPECT_CUDA(device_ != 0 ? cuMemFree_v2(device_) : CUDA_SUCCESS); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;
  int* data() {
    return device_ != 0 ? reinterpret_cast<int*>(static_cast<uintptr_t>(device_)) : host_.data();
  }
  void set(const std::vector<int>& values) {
    if (device_ == 0) {
      host_ = values;
    } else {
      EXPECT_CUDA(cuMemcpyHtoD_v2(device_, values.data(), bytes()));
    }
  }
  std::vector<int> get() const {
    std::vector<int> values = host_;
    if (device_ != 0) {
      values.resize(count_);
      EXPECT_CUDA(cuMemcpyDtoH_v2(values.data(), device_, bytes()));
    }
    return values;
  }

 private:
  size_t bytes() const { return count_ * sizeof(int); }
  size_t count_;
  std::vector<int> host_;
  CUdeviceptr device_ = 0;
};

// To the peer and from it, in one group beside a collective, and then one after the other.
void exchange(ncclComm_t comm, int rank, bool on_device, size_t count) {
  const int peer = 1 - rank;
  CUstream stream = nullptr;
  EXPECT_CUDA(cuStreamCreate(&stream, 0));
  const auto on = reinterpret_cast<cudaStream_t>(stream);
  {
    Numbers out(on_device, count);
    Numbers in(on_device, count);
    Numbers all(on_device, 2 * count);
    out.set(values_of(rank, count));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(out.data(), count, ncclInt, peer, comm, on));
    EXPECT_NCCL(ncclAllGather(out.data(), all.data(), count, ncclInt, comm, on));
    EXPECT_NCCL(ncclRecv(in.data(), count, ncclInt, peer, comm, on));
    EXPECT_NCCL(ncclGroupEnd());
    EXPECT_CUDA(cuStreamSynchronize(stream));
    EXPECT_EQ(in.get(), values_of(peer, count));
    auto wanted = values_of(0, count);
    const auto second = values_of(1, count);
    wanted.insert(wanted.end(), second.begin(), second.end());
    EXPECT_EQ(all.get(), wanted);
    in.set(std::vector<int>(count, -1));
    for (const int sender : {0, 1}) {
      EXPECT_NCCL(rank == sender ? ncclSend(out.data(), count, ncclInt, peer, comm, on)
                                 : ncclRecv(in.data(), count, ncclInt, peer, comm, on));
    }
    EXPECT_CUDA(cuStreamSynchronize(stream));
    EXPECT_EQ(in.get(), values_of(peer, count));
  }
  EXPECT_CUDA(cuStreamDestroy_v2(stream));
}

// Both ranks of a communicator that is made when the processes use devices; `on_device` by rank.
// Whether the transport performs a rank's messages, or they are work of their streams alone, as the
// rank must say.
void run(std::vector<bool> on_device, std::vector<bool> passed, bool directly = false) {
  ASSERT_TRUE(kEnvironment);
  EXPECT_EQ(run_processes(2,
                          [&](int rank, ncclComm_t first) {
                            const auto me = static_cast<size_t>(rank);
                            CUcontext context = nullptr;
                            EXPECT_CUDA(cuInit(0));
                            EXPECT_CUDA(cuDevicePrimaryCtxRetain(&context, rank));
                            EXPECT_CUDA(cuCtxSetCurrent(context));
                            ncclComm_t comm = nullptr;
                            EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                            testing::internal::CaptureStderr();
                            for (const size_t count : {1, 100, 30011, 200000}) {
                              exchange(comm, rank, on_device[me], count);
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(told.find(kPassed) != std::string::npos, passed[me]) << told;
                            EXPECT_EQ(told.find(kDirectly) != std::string::npos, directly) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                            EXPECT_NCCL(ncclCommDestroy(first));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclMessagesOnDevices, AreTheTransportsWhereItTakesThem) { run({true, true}, {true, true}); }

TEST(NcclMessagesOnDevices, MeetThoseInMemoryOfTheHost) { run({true, false}, {true, false}); }

TEST(NcclMessagesOnDevices, AreStagedOnTheRankWhoseDeviceTheTransportDoesNotTake) {
  setenv("DEVICE_DOUBLE_REFUSES", "1", 1);
  run({true, true}, {true, false});
  unsetenv("DEVICE_DOUBLE_REFUSES");
}

TEST(NcclMessagesOnDevices, AreWorkOfTheirStreamsOnOneMachineWhateverTheTransportTakes) {
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  setenv("WEIR_DIRECT", "auto", 1);
  run({true, true}, {false, false}, true);
  setenv("WEIR_DIRECT", "0", 1);
}

}  // namespace
}  // namespace weir::nccl::test
