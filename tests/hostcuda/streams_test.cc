// SPDX-License-Identifier: Apache-2.0
// Streams are asynchronous and in order, and the default streams are ordered as CUDA says.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr int kNotReady = 600;

TEST(HostCudaStreams, AHostFunctionMayWaitForWhatTheHostDoesAfterEnqueueing) {
  const cudaStream_t stream = make_stream();
  std::atomic<bool> released{false};
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream,
      [](void* data) {
        while (!static_cast<std::atomic<bool>*>(data)->load()) std::this_thread::yield();
      },
      &released));
  Words words(2);
  words.write(7, 0);
  // All of this returns although the stream stands.
  ASSERT_CUDA(cuStreamWriteValue32_v2(stream, device_address(words.at(1)), 9, 0));
  const cudaEvent_t event = make_event();
  ASSERT_CUDA(cudaEventRecord(event, stream));
  EXPECT_EQ(cudaStreamQuery(stream), kNotReady);
  EXPECT_EQ(cudaEventQuery(event), kNotReady);
  EXPECT_EQ(words.read(1), 0U);
  released.store(true);
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_EQ(words.read(1), 9U);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaStreamQuery(stream));
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaStreams, WorkOfOneStreamIsDoneInOrder) {
  const cudaStream_t stream = make_stream();
  struct Step {
    std::vector<int>* order;
    int index;
  };
  std::vector<int> order;
  std::vector<Step> steps;
  for (int i = 0; i < 200; ++i) steps.push_back({&order, i});
  for (Step& step : steps) {
    ASSERT_CUDA(cudaLaunchHostFunc(
        stream,
        [](void* data) {
          auto* const mine = static_cast<Step*>(data);
          mine->order->push_back(mine->index);
        },
        &step));
  }
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  ASSERT_EQ(order.size(), 200U);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaStreams, AnEventOrdersTwoStreamsByItsRecordAtTheTimeOfTheWait) {
  const cudaStream_t first = make_stream(kNonBlocking);
  const cudaStream_t second = make_stream(kNonBlocking);
  const cudaEvent_t event = make_event(2);
  Gate gate;
  Gate later;
  Words words;
  gate.close(first);
  ASSERT_CUDA(cudaEventRecord(event, first));
  ASSERT_CUDA(cudaStreamWaitEvent(second, event, 0));
  ASSERT_CUDA(cuStreamWriteValue32_v2(second, device_address(words.at()), 5, 0));
  EXPECT_EQ(cudaStreamQuery(second), kNotReady);
  // A further record does not hold up the wait that came before it.
  later.close(first);
  ASSERT_CUDA(cudaEventRecord(event, first));
  EXPECT_EQ(words.read(), 0U);
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(second));
  EXPECT_EQ(words.read(), 5U);
  EXPECT_EQ(cudaEventQuery(event), kNotReady);
  later.open();
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaStreamDestroy(first));
  EXPECT_CUDA(cudaStreamDestroy(second));
}

TEST(HostCudaStreams, TheLegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  const cudaStream_t blocking = make_stream();
  const cudaStream_t apart = make_stream(kNonBlocking);
  const cudaEvent_t in_legacy = make_event();
  const cudaEvent_t in_blocking = make_event();
  const cudaEvent_t in_apart = make_event();
  {
    Gate gate;
    gate.close(blocking);
    ASSERT_CUDA(cudaEventRecord(in_legacy, nullptr));
    ASSERT_CUDA(cudaEventRecord(in_apart, apart));
    EXPECT_CUDA(cudaEventSynchronize(in_apart));
    EXPECT_EQ(cudaEventQuery(in_legacy), kNotReady);
    EXPECT_EQ(cudaStreamQuery(nullptr), kNotReady);
    gate.open();
    EXPECT_CUDA(cudaEventSynchronize(in_legacy));
  }
  {
    Gate gate;
    gate.close(nullptr);
    ASSERT_CUDA(cudaEventRecord(in_blocking, blocking));
    ASSERT_CUDA(cudaEventRecord(in_apart, apart));
    EXPECT_CUDA(cudaEventSynchronize(in_apart));
    EXPECT_EQ(cudaEventQuery(in_blocking), kNotReady);
    gate.open();
    EXPECT_CUDA(cudaEventSynchronize(in_blocking));
  }
  for (const cudaEvent_t event : {in_legacy, in_blocking, in_apart}) {
    EXPECT_CUDA(cudaEventDestroy(event));
  }
  EXPECT_CUDA(cudaStreamDestroy(blocking));
  EXPECT_CUDA(cudaStreamDestroy(apart));
}

TEST(HostCudaStreams, AWaitInTheLegacyStreamJoinsBlockingStreamsWhateverBecameOfItsEvent) {
  const cudaStream_t first = make_stream();
  const cudaStream_t second = make_stream();
  const cudaStream_t apart = make_stream(kNonBlocking);
  const cudaEvent_t never = make_event();
  const cudaEvent_t done = make_event();
  const cudaEvent_t in_second = make_event();
  ASSERT_CUDA(cudaEventRecord(done, apart));
  ASSERT_CUDA(cudaEventSynchronize(done));
  for (const cudaEvent_t event : {never, done}) {
    Gate gate;
    gate.close(first);
    // In other streams it orders nothing.
    ASSERT_CUDA(cudaStreamWaitEvent(second, event, 0));
    ASSERT_CUDA(cudaEventRecord(in_second, second));
    ASSERT_CUDA(cudaEventSynchronize(in_second));
    ASSERT_CUDA(cudaStreamWaitEvent(nullptr, event, 0));
    ASSERT_CUDA(cudaEventRecord(in_second, second));
    EXPECT_CUDA_ERROR(kNotReady, cudaEventQuery(in_second));
    EXPECT_CUDA(cudaStreamQuery(apart));
    gate.open();
    EXPECT_CUDA(cudaEventSynchronize(in_second));
  }
  for (const cudaEvent_t event : {never, done, in_second}) EXPECT_CUDA(cudaEventDestroy(event));
  for (const cudaStream_t stream : {first, second, apart}) EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaStreams, ABlockingStreamIsNotDoneBeforeTheLegacyStream) {
  const cudaStream_t blocking = make_stream();
  const cudaStream_t apart = make_stream(kNonBlocking);
  Words words(1);
  Gate gate;
  gate.close(nullptr);
  ASSERT_CUDA(cuStreamWriteValue32_v2(nullptr, device_address(words.at()), 1, 0));
  EXPECT_CUDA_ERROR(kNotReady, cudaStreamQuery(blocking));
  EXPECT_CUDA_ERROR(kNotReady, cudaStreamQuery(kPerThread));
  EXPECT_CUDA(cudaStreamQuery(apart));
  EXPECT_CUDA(cudaStreamSynchronize(apart));
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  EXPECT_CUDA(cudaStreamSynchronize(blocking));
  EXPECT_EQ(words.read(), 1U);
  opener.join();
  EXPECT_CUDA(cudaStreamQuery(kPerThread));
  EXPECT_CUDA(cudaStreamDestroy(blocking));
  EXPECT_CUDA(cudaStreamDestroy(apart));
}

TEST(HostCudaStreams, EveryThreadHasADefaultStreamOfItsOwn) {
  const cudaEvent_t mine = make_event();
  const cudaEvent_t others = make_event();
  Gate gate;
  gate.close(kPerThread);
  ASSERT_CUDA(cudaEventRecord(mine, kPerThread));
  std::thread([&] {
    EXPECT_CUDA(cudaEventRecord(others, kPerThread));
    EXPECT_CUDA(cudaStreamSynchronize(kPerThread));
  }).join();
  EXPECT_CUDA(cudaEventQuery(others));
  EXPECT_EQ(cudaEventQuery(mine), kNotReady);
  gate.open();
  EXPECT_CUDA(cudaStreamSynchronize(kPerThread));
  EXPECT_CUDA(cudaEventQuery(mine));
  EXPECT_CUDA(cudaEventDestroy(mine));
  EXPECT_CUDA(cudaEventDestroy(others));
}

TEST(HostCudaStreams, ADestroyedStreamFinishesItsWork) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  const cudaEvent_t event = make_event();
  Gate gate;
  Words words;
  gate.close(stream);
  ASSERT_CUDA(cuStreamWriteValue32_v2(stream, device_address(words.at()), 3, 0));
  ASSERT_CUDA(cudaEventRecord(event, stream));
  ASSERT_CUDA(cudaStreamDestroy(stream));
  EXPECT_EQ(cudaEventQuery(event), kNotReady);
  EXPECT_CUDA_ERROR(400, cudaStreamQuery(stream));
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(event));
  EXPECT_EQ(words.read(), 3U);
  EXPECT_CUDA(cudaEventDestroy(event));
}

TEST(HostCudaStreams, ADeviceIsSynchronizedWhenAllItsStreamsAre) {
  const cudaStream_t first = make_stream();
  const cudaStream_t second = make_stream(kNonBlocking);
  Words words(2);
  ASSERT_CUDA(cuStreamWriteValue32_v2(first, device_address(words.at(0)), 1, 0));
  ASSERT_CUDA(cuStreamWriteValue32_v2(second, device_address(words.at(1)), 2, 0));
  EXPECT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(words.read(0), 1U);
  EXPECT_EQ(words.read(1), 2U);
  EXPECT_CUDA(cudaStreamDestroy(first));
  EXPECT_CUDA(cudaStreamDestroy(second));
}

TEST(HostCudaStreams, AHostFunctionMayNotCallCuda) {
  const cudaStream_t stream = make_stream();
  struct Outcome {
    cudaStream_t stream;
    int copied;
    int created;
  } outcome{stream, 0, 0};
  ASSERT_CUDA(cudaLaunchHostFunc(
      stream,
      [](void* data) {
        auto* const mine = static_cast<Outcome*>(data);
        mine->copied = cudaMemsetAsync(nullptr, 0, 0, mine->stream) == cudaSuccess
                           ? static_cast<int>(cudaStreamSynchronize(mine->stream))
                           : 800;
        cudaStream_t made = nullptr;
        mine->created = cudaStreamCreate(&made);
      },
      &outcome));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(outcome.copied, 800);
  EXPECT_EQ(outcome.created, 800);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaStreams, ACallbackGetsItsStreamAndComesInOrder) {
  const cudaStream_t stream = make_stream();
  struct Seen {
    cudaStream_t stream = nullptr;
    int status = -1;
  } seen;
  ASSERT_CUDA(cudaStreamAddCallback(
      stream,
      [](cudaStream_t given, cudaError_t status, void* data) {
        auto* const mine = static_cast<Seen*>(data);
        mine->stream = given;
        mine->status = status;
      },
      &seen, 0));
  ASSERT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(seen.stream, stream);
  EXPECT_EQ(seen.status, 0);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaStreams, TimeBetweenEventsIsOfWhenTheStreamCameThere) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t start = make_event();
  const cudaEvent_t end = make_event();
  const cudaEvent_t untimed = make_event(2);
  float ms = -1;
  EXPECT_CUDA_ERROR(400, cudaEventElapsedTime(&ms, start, end));  // never recorded
  ASSERT_CUDA(cudaEventRecord(start, stream));
  Gate gate;
  gate.close(stream);
  ASSERT_CUDA(cudaEventRecord(end, stream));
  EXPECT_CUDA(cudaEventSynchronize(start));
  EXPECT_CUDA_ERROR(600, cudaEventElapsedTime(&ms, start, end));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(end));
  EXPECT_CUDA(cudaEventElapsedTime(&ms, start, end));
  EXPECT_GE(ms, 5.0F);
  EXPECT_CUDA(cudaEventRecord(untimed, stream));
  EXPECT_CUDA_ERROR(400, cudaEventElapsedTime(&ms, start, untimed));
  for (const cudaEvent_t event : {start, end, untimed}) EXPECT_CUDA(cudaEventDestroy(event));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

// By the runtime and by the driver.
cudaLaunchAttributeValue attribute_of(cudaStream_t stream, cudaLaunchAttributeID attribute) {
  cudaLaunchAttributeValue value;
  std::memset(&value, 0xff, sizeof value);
  EXPECT_CUDA(cudaStreamGetAttribute(stream, attribute, &value));
  CUstreamAttrValue by_driver;
  std::memset(&by_driver, 0xee, sizeof by_driver);
  EXPECT_CUDA(cuStreamGetAttribute(stream, static_cast<CUstreamAttrID>(attribute), &by_driver));
  static_assert(sizeof value == 64 && sizeof by_driver == sizeof value);
  EXPECT_EQ(std::memcmp(&value, &by_driver, sizeof value), 0);
  return value;
}

TEST(HostCudaStreamAttributes, AreReturnedAsTheyWereSet) {
  const cudaStream_t stream = make_stream();
  EXPECT_EQ(attribute_of(stream, cudaLaunchAttributeSynchronizationPolicy).syncPolicy,
            cudaSyncPolicyAuto);
  EXPECT_EQ(
      attribute_of(stream, cudaLaunchAttributeAccessPolicyWindow).accessPolicyWindow.num_bytes, 0U);
  EXPECT_EQ(attribute_of(stream, cudaLaunchAttributeMemSyncDomainMap).memSyncDomainMap.remote, 1);
  cudaLaunchAttributeValue value{};
  value.accessPolicyWindow.base_ptr = &value;
  value.accessPolicyWindow.num_bytes = 4096;
  value.accessPolicyWindow.hitRatio = 0.5F;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  EXPECT_CUDA(cudaStreamSetAttribute(stream, cudaLaunchAttributeAccessPolicyWindow, &value));
  const auto window =
      attribute_of(stream, cudaLaunchAttributeAccessPolicyWindow).accessPolicyWindow;
  EXPECT_EQ(window.base_ptr, &value);
  EXPECT_EQ(window.num_bytes, 4096U);
  EXPECT_EQ(window.hitRatio, 0.5F);
  EXPECT_EQ(window.hitProp, cudaAccessPropertyPersisting);
  EXPECT_EQ(window.missProp, cudaAccessPropertyStreaming);
  value = {};
  value.syncPolicy = cudaSyncPolicyBlockingSync;
  EXPECT_CUDA(cudaStreamSetAttribute(stream, cudaLaunchAttributeSynchronizationPolicy, &value));
  value = {};
  value.memSyncDomainMap.default_ = 2;
  value.memSyncDomainMap.remote = 3;
  EXPECT_CUDA(cudaStreamSetAttribute(stream, cudaLaunchAttributeMemSyncDomainMap, &value));
  value = {};
  value.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  EXPECT_CUDA(cudaStreamSetAttribute(stream, cudaLaunchAttributeMemSyncDomain, &value));
  value = {};
  value.nvlinkUtilCentricScheduling = 1;
  EXPECT_CUDA(
      cudaStreamSetAttribute(stream, cudaLaunchAttributeNvlinkUtilCentricScheduling, &value));
  CUstreamAttrValue by_driver{};
  by_driver.priority = -3;
  EXPECT_CUDA(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &by_driver));
  // All of them go to a copy, which is not changed by what is set later.
  const cudaStream_t copy = make_stream();
  EXPECT_CUDA(cudaStreamCopyAttributes(copy, stream));
  value = {};
  value.syncPolicy = cudaSyncPolicySpin;
  EXPECT_CUDA(cudaStreamSetAttribute(stream, cudaLaunchAttributeSynchronizationPolicy, &value));
  EXPECT_EQ(attribute_of(copy, cudaLaunchAttributeSynchronizationPolicy).syncPolicy,
            cudaSyncPolicyBlockingSync);
  EXPECT_EQ(attribute_of(copy, cudaLaunchAttributeAccessPolicyWindow).accessPolicyWindow.num_bytes,
            4096U);
  const auto domains = attribute_of(copy, cudaLaunchAttributeMemSyncDomainMap).memSyncDomainMap;
  EXPECT_EQ(domains.default_, 2);
  EXPECT_EQ(domains.remote, 3);
  EXPECT_EQ(attribute_of(copy, cudaLaunchAttributeMemSyncDomain).memSyncDomain,
            cudaLaunchMemSyncDomainRemote);
  EXPECT_EQ(attribute_of(copy, cudaLaunchAttributeNvlinkUtilCentricScheduling)
                .nvlinkUtilCentricScheduling,
            1U);
  EXPECT_EQ(attribute_of(copy, cudaLaunchAttributePriority).priority, -3);
  int priority = 0;
  EXPECT_CUDA(cudaStreamGetPriority(copy, &priority));
  EXPECT_EQ(priority, -3);
  // The default streams have theirs.
  EXPECT_CUDA(cuStreamCopyAttributes(nullptr, copy));
  EXPECT_EQ(attribute_of(nullptr, cudaLaunchAttributePriority).priority, -3);
  EXPECT_EQ(attribute_of(cudaStreamPerThread, cudaLaunchAttributePriority).priority, 0);
  const cudaStream_t fresh = make_stream();
  EXPECT_CUDA(cuStreamCopyAttributes(nullptr, fresh));
  for (const cudaStream_t it : {stream, copy, fresh}) EXPECT_CUDA(cudaStreamDestroy(it));
}

TEST(HostCudaStreamAttributes, ValuesAndAttributesThatAreNoneOfAStreamAreRefused) {
  const cudaStream_t stream = make_stream();
  cudaLaunchAttributeValue value{};
  const auto expect_refused = [&](cudaLaunchAttributeID attribute) {
    EXPECT_CUDA_ERROR(1, cudaStreamSetAttribute(stream, attribute, &value)) << attribute;
  };
  value.accessPolicyWindow.missProp = cudaAccessPropertyPersisting;
  expect_refused(cudaLaunchAttributeAccessPolicyWindow);
  value = {};
  value.accessPolicyWindow.hitRatio = 1.5F;
  expect_refused(cudaLaunchAttributeAccessPolicyWindow);
  int bytes_max = 0;
  EXPECT_CUDA(cudaDeviceGetAttribute(&bytes_max, static_cast<cudaDeviceAttr>(109), 0));
  value = {};
  value.accessPolicyWindow.num_bytes = static_cast<size_t>(bytes_max) + 1;
  expect_refused(cudaLaunchAttributeAccessPolicyWindow);
  value = {};  // 0 is no policy
  expect_refused(cudaLaunchAttributeSynchronizationPolicy);
  value.memSyncDomainMap.remote = 4;
  expect_refused(cudaLaunchAttributeMemSyncDomainMap);
  value = {};
  value.nvlinkUtilCentricScheduling = 2;
  expect_refused(cudaLaunchAttributeMemSyncDomain);
  expect_refused(cudaLaunchAttributeNvlinkUtilCentricScheduling);
  value = {};
  testing::internal::CaptureStderr();
  expect_refused(cudaLaunchAttributeCooperative);
  EXPECT_CUDA_ERROR(1, cudaStreamGetAttribute(stream, cudaLaunchAttributeIgnore, &value));
  EXPECT_NE(testing::internal::GetCapturedStderr().find("Cooperative"), std::string::npos);
  EXPECT_CUDA_ERROR(1, cudaStreamGetAttribute(stream, cudaLaunchAttributePriority, nullptr));
  EXPECT_CUDA_ERROR(1, cudaStreamSetAttribute(stream, cudaLaunchAttributePriority, nullptr));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_CUDA_ERROR(400, cudaStreamGetAttribute(stream, cudaLaunchAttributePriority, &value));
  EXPECT_CUDA_ERROR(400, cudaStreamSetAttribute(stream, cudaLaunchAttributePriority, &value));
  EXPECT_CUDA_ERROR(400, cudaStreamCopyAttributes(nullptr, stream));
}

TEST(HostCudaStreams, HandlesThatAreNoneAreRefused) {
  int nothing = 0;
  auto* const stream = reinterpret_cast<cudaStream_t>(&nothing);
  auto* const event = reinterpret_cast<cudaEvent_t>(&nothing);
  EXPECT_CUDA_ERROR(400, cudaStreamSynchronize(stream));
  EXPECT_CUDA_ERROR(400, cudaStreamDestroy(stream));
  EXPECT_CUDA_ERROR(400, cudaEventRecord(event, nullptr));
  EXPECT_CUDA_ERROR(400, cudaEventSynchronize(event));
  EXPECT_CUDA_ERROR(400, cudaPeekAtLastError());
  EXPECT_CUDA_ERROR(400, cudaGetLastError());
  EXPECT_CUDA(cudaGetLastError());
  EXPECT_CUDA_ERROR(1, cudaStreamCreateWithFlags(nullptr, 0));
  cudaStream_t made = nullptr;
  EXPECT_CUDA_ERROR(1, cudaStreamCreateWithFlags(&made, 2));
  EXPECT_CUDA_ERROR(1, cudaLaunchHostFunc(nullptr, nullptr, nullptr));
}

}  // namespace
}  // namespace weir::test
