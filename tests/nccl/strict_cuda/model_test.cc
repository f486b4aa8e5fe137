// SPDX-License-Identifier: Apache-2.0
// The strict libcuda itself, with two hardware queues for each device.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

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

}  // namespace
}  // namespace weir::nccl::test
