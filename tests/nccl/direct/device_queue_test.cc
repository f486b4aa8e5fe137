// SPDX-License-Identifier: Apache-2.0
// A DeviceQueue on Weir's stand-in for CUDA.
#include "nccl/direct/device_queue.h"

#include <gtest/gtest.h>

#include <thread>

#include "hostcuda/driver/functions.h"

namespace weir::nccl {
namespace {

TEST(NcclDeviceQueue, AThreadWithoutAContextAsksHowFarItIsAsOftenAsItLikes) {
  CUcontext context = nullptr;
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  const cuda::Driver* driver = cuda::driver_in_use();
  ASSERT_NE(driver, nullptr);
  std::shared_ptr<DeviceQueue> queue;
  ASSERT_TRUE(DeviceQueue::make(*driver, "test", &queue).ok());
  std::thread proxy([&] {
    for (int look = 0; look < 20000; ++look) ASSERT_FALSE(queue->passed(1));
    EXPECT_TRUE(queue->failure("test").ok());
    {
      const cuda::ContextScope scope(*driver, nullptr, queue->context());
      ASSERT_TRUE(queue->mark("test").ok());
    }
    while (!queue->passed(1)) std::this_thread::yield();
    EXPECT_TRUE(queue->failure("test").ok());
    queue.reset();
  });
  proxy.join();
}

}  // namespace
}  // namespace weir::nccl
