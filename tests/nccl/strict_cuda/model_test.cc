// SPDX-License-Identifier: Apache-2.0
// The strict libcuda itself, with two hardware queues for each device.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

const bool kEnvironment = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2", 1) == 0;

// A call in a thread of its own, with the device.
class Call {
 public:
  explicit Call(const std::function<void()>& body, int device = 0)
      : thread_([this, body, device] {
          use_device(device);
          body();
          ended_ = true;
        }) {}
  ~Call() { thread_.join(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool has_ended() const { return ended_; }
  // `expected`: otherwise a busy machine has time to come to its end.
  bool is_held_up(bool expected = true) const {
    for (int i = 0; i < (expected ? 3 : 1000) && !ended_; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return !ended_;
  }

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

class StrictCuda : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kEnvironment);
    use_device(0);
  }
  void TearDown() override { strict_cuda_queue(1024); }
};

void write(const Stream& stream) {
  static void* const word = [] {
    void* pinned = nullptr;
    EXPECT_CUDA(cuMemHostAlloc(&pinned, sizeof(uint32_t), cuda::kHostPortable));
    return pinned;
  }();
  EXPECT_CUDA(cuStreamWriteValue32_v2(stream.get(), reinterpret_cast<uintptr_t>(word), 7,
                                      cuda::kWriteDefault));
}

// Streams are given the two queues in turn.
TEST_F(StrictCuda, AHardwareQueueHasRoomForSoManyCallsOfAllItsStreams) {
  strict_cuda_queue(10);
  const Stream first;
  const Stream other;
  const Stream second;  // in the queue of the first one
  Gate gate(first);
  for (int i = 0; i < 5; ++i) write(first);
  for (int i = 0; i < 4; ++i) write(second);
  for (int i = 0; i < 10; ++i) write(other);
  other.synchronize();
  const Call full([&] { write(second); });
  EXPECT_TRUE(full.is_held_up());
  // It has the context's lock, and no other context's.
  const Call locked_out([&] { write(other); });
  EXPECT_TRUE(locked_out.is_held_up());
  use_device(1);
  const Stream elsewhere;
  write(elsewhere);
  elsewhere.synchronize();
  gate.open();
}

// What `call` does while a stream of its device waits: returns `waits`.
void expect_waits(bool waits, const char* name, const std::function<void()>& call) {
  const Stream stream;
  const Stream other;
  write(other);  // what it has at the first time is there
  other.synchronize();
  Gate gate(stream);
  {
    const Call called(call);
    EXPECT_EQ(called.is_held_up(waits), waits) << name;
    const Call others([&] { write(other); });
    EXPECT_EQ(others.is_held_up(waits), waits) << "beside " << name;
    gate.open();
  }
  stream.synchronize();
}

TEST_F(StrictCuda, WhatEndsMemoryWaitsForTheDeviceWithTheContextsLock) {
  cuda::DevicePointer memory = 0;
  expect_waits(false, "cuMemAlloc", [&] { EXPECT_CUDA(cuMemAlloc_v2(&memory, 64)); });
  expect_waits(true, "cuMemFree", [&] { EXPECT_CUDA(cuMemFree_v2(memory)); });

  void* pinned = nullptr;
  expect_waits(false, "cuMemHostAlloc",
               [&] { EXPECT_CUDA(cuMemHostAlloc(&pinned, 64, cuda::kHostPortable)); });
  expect_waits(true, "cuMemFreeHost", [&] { EXPECT_CUDA(cuMemFreeHost(pinned)); });

  std::vector<char> plain(64);
  expect_waits(false, "cuMemHostRegister",
               [&] { EXPECT_CUDA(cuMemHostRegister_v2(plain.data(), 64, 0)); });
  expect_waits(true, "cuMemHostUnregister",
               [&] { EXPECT_CUDA(cuMemHostUnregister(plain.data())); });
  EXPECT_EQ(cuMemHostUnregister(plain.data()), cuda::kErrorInvalidValue);

  constexpr size_t kUnit = size_t{2} << 20;
  cuda::AllocationProperties wanted;
  wanted.type = cuda::kAllocationPinned;
  wanted.handle_types = cuda::kHandleDescriptor;
  wanted.location = {cuda::kLocationDevice, 0};
  cuda::AllocationHandle handle = 0;
  const cuda::MemoryAccess access{wanted.location, cuda::kAccessReadWrite};
  expect_waits(false, "cuMemMap", [&] {
    EXPECT_CUDA(cuMemCreate(&handle, kUnit, &wanted, 0));
    EXPECT_CUDA(cuMemAddressReserve(&memory, kUnit, 0, 0, 0));
    EXPECT_CUDA(cuMemMap(memory, kUnit, 0, handle, 0));
    EXPECT_CUDA(cuMemRelease(handle));
    EXPECT_CUDA(cuMemSetAccess(memory, kUnit, &access, 1));
  });
  expect_waits(true, "cuMemUnmap", [&] { EXPECT_CUDA(cuMemUnmap(memory, kUnit)); });
  EXPECT_CUDA(cuMemAddressFree(memory, kUnit));
}

// Two allocations side by side, of which the second one is mapped once more by its descriptor.
TEST_F(StrictCuda, MemoryMadeByMappingPassesByADescriptor) {
  constexpr size_t kUnit = size_t{2} << 20;
  cuda::AllocationProperties wanted;
  wanted.type = cuda::kAllocationPinned;
  wanted.handle_types = cuda::kHandleDescriptor;
  wanted.location = {cuda::kLocationDevice, 3};
  const cuda::MemoryAccess access[2] = {{wanted.location, cuda::kAccessReadWrite},
                                        {{cuda::kLocationDevice, 0}, cuda::kAccessReadWrite}};
  cuda::DevicePointer range = 0;
  EXPECT_CUDA(cuMemAddressReserve(&range, 4 * kUnit, 0, 0, 0));
  const cuda::DevicePointer first = range + kUnit;
  for (const cuda::DevicePointer at : {first, first + kUnit}) {
    cuda::AllocationHandle handle = 0;
    EXPECT_CUDA(cuMemCreate(&handle, kUnit, &wanted, 0));
    EXPECT_CUDA(cuMemMap(at, kUnit, 0, handle, 0));
    EXPECT_EQ(cuMemMap(at, kUnit, 0, handle, 0), cuda::kErrorInvalidValue);
    EXPECT_CUDA(cuMemRelease(handle));
  }
  EXPECT_CUDA(cuMemSetAccess(first, 2 * kUnit, access, 2));
  const auto given_to = [&](int device) {
    unsigned long long flags = 9;
    const cuda::MemoryLocation location{cuda::kLocationDevice, device};
    EXPECT_CUDA(cuMemGetAccess(&flags, &location, first));
    return flags == cuda::kAccessReadWrite;
  };
  EXPECT_TRUE(given_to(0) && given_to(3));
  EXPECT_FALSE(given_to(1));

  cuda::DevicePointer base = 0;
  size_t bytes = 0;
  EXPECT_CUDA(cuMemGetAddressRange_v2(&base, &bytes, first + kUnit + 5));
  EXPECT_EQ(base, first + kUnit);
  EXPECT_EQ(bytes, kUnit);
  cuda::AllocationHandle handle = 0;
  int descriptor = -1;
  EXPECT_CUDA(
      cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(static_cast<uintptr_t>(base))));
  EXPECT_CUDA(cuMemExportToShareableHandle(&descriptor, handle, cuda::kHandleDescriptor, 0));
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_CUDA(cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<uintptr_t>(descriptor)),
      cuda::kHandleDescriptor));
  close(descriptor);
  cuda::DevicePointer again = 0;
  EXPECT_CUDA(cuMemAddressReserve(&again, kUnit, 0, 0, 0));
  EXPECT_CUDA(cuMemMap(again, kUnit, 0, handle, 0));
  EXPECT_CUDA(cuMemRelease(handle));
  EXPECT_CUDA(cuMemSetAccess(again, kUnit, &access[1], 1));

  const Stream stream;
  std::vector<int> values = numbers(2000, 1, 1);
  const auto copy = [&](cuda::DevicePointer to, cuda::DevicePointer from, size_t count) {
    EXPECT_CUDA(cuMemcpyAsync(to, from, count * sizeof(int), stream.get()));
    stream.synchronize();
  };
  copy(base - 1000 * sizeof(int), reinterpret_cast<uintptr_t>(values.data()), 2000);
  std::vector<int> got(1000);
  copy(reinterpret_cast<uintptr_t>(got.data()), again, 1000);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), values.begin() + 1000));

  EXPECT_EQ(cuMemAddressFree(range, 4 * kUnit), cuda::kErrorInvalidValue);  // part is mapped
  EXPECT_CUDA(cuMemUnmap(first, 2 * kUnit));
  EXPECT_CUDA(cuMemUnmap(again, kUnit));
  EXPECT_CUDA(cuMemAddressFree(range, 4 * kUnit));
  EXPECT_CUDA(cuMemAddressFree(again, kUnit));
}

// A launch waits for the record that was the latest one when it was made, and is a record itself.
TEST_F(StrictCuda, ExternalEventsOrderLaunchesOfGraphs) {
  const Stream stream;
  const Stream other;
  cuda::Event event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, 0), cuda::kSuccess);
  EXPECT_EQ(cuStreamWaitEvent(stream.get(), event, cuda::kEventWaitExternal),
            cuda::kErrorInvalidValue)
      << "outside of a capture";
  EXPECT_CUDA(cuStreamBeginCapture_v2(stream.get(), 1));
  EXPECT_CUDA(cuStreamWaitEvent(stream.get(), event, cuda::kEventWaitExternal));
  EXPECT_CUDA(cuEventRecordWithFlags(event, stream.get(), cuda::kEventRecordExternal));
  cuda::Graph graph = nullptr;
  EXPECT_CUDA(cuStreamEndCapture(stream.get(), &graph));
  cuda::GraphExec exec = nullptr;
  ASSERT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), cuda::kSuccess);
  EXPECT_CUDA(cuGraphLaunch(exec, stream.get()));
  EXPECT_CUDA(cuStreamSynchronize(stream.get()));
  Gate gate(other);
  EXPECT_CUDA(cuEventRecord(event, other.get()));
  EXPECT_CUDA(cuGraphLaunch(exec, stream.get()));
  const Stream third;
  EXPECT_CUDA(cuStreamWaitEvent(third.get(), event, 0));
  {
    const Call waits([&] { EXPECT_CUDA(cuStreamSynchronize(third.get())); });
    EXPECT_TRUE(waits.is_held_up());
    gate.open();
  }
  EXPECT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_CUDA(cuStreamSynchronize(other.get()));
  EXPECT_CUDA(cuGraphExecDestroy(exec));
  EXPECT_CUDA(cuGraphDestroy(graph));
  EXPECT_CUDA(cuEventDestroy_v2(event));
}

TEST_F(StrictCuda, StreamsOfAPriorityHaveHardwareQueuesOfTheirOwn) {
  int least = 1;
  int greatest = 1;
  EXPECT_CUDA(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, least);
  const bool shares = std::getenv("STRICT_CUDA_PRIORITIES") != nullptr;
  const Stream waits;
  Gate gate(waits);
  const Stream urgent[2] = {Stream(greatest), Stream(greatest - 1)};
  const Stream others[2] = {Stream(), Stream()};
  int stuck_urgent = 0;
  int stuck_others = 0;
  for (size_t i = 0; i < 2; ++i) {
    int priority = 1;
    EXPECT_CUDA(cuStreamGetPriority(urgent[i].get(), &priority));
    EXPECT_EQ(priority, greatest);
    write(urgent[i]);
    write(others[i]);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (size_t i = 0; i < 2; ++i) {
    stuck_urgent += urgent[i].idle() ? 0 : 1;
    stuck_others += others[i].idle() ? 0 : 1;
  }
  EXPECT_EQ(stuck_urgent, shares ? 1 : 0);
  EXPECT_EQ(stuck_others, 1);
  gate.open();
  for (const Stream& it : others) it.synchronize();
}

}  // namespace
}  // namespace weir::nccl::test
