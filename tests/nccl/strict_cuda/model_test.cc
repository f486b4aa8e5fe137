// SPDX-License-Identifier: Apache-2.0
// The strict libcuda itself, with two hardware queues for each device.
#include <gtest/gtest.h>

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
  bool is_held_up() const {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
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
    EXPECT_EQ(called.is_held_up(), waits) << name;
    const Call others([&] { write(other); });
    EXPECT_EQ(others.is_held_up(), waits) << "beside " << name;
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
