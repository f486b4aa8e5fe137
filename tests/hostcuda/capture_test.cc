// SPDX-License-Identifier: Apache-2.0
// Stream capture and replay, and the errors that CUDA gives for what is illegal meanwhile.
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "hostcuda/support.h"

namespace weir::test {
namespace {

constexpr int kUnsupported = 900;
constexpr int kInvalidated = 901;
constexpr int kMerge = 902;
constexpr int kUnmatched = 903;
constexpr int kUnjoined = 904;
constexpr int kIsolation = 905;
constexpr int kImplicit = 906;
constexpr int kCapturedEvent = 907;
constexpr int kWrongThread = 908;

cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t executable = nullptr;
  EXPECT_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  return executable;
}

size_t node_count(cudaGraph_t graph) {
  size_t count = 0;
  EXPECT_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  return count;
}

void increment(void* data) { static_cast<std::atomic<int>*>(data)->fetch_add(1); }

// A capture that has gone wrong ends with this error and no graph.
void expect_end(cudaStream_t stream, int error) {
  cudaGraph_t graph = reinterpret_cast<cudaGraph_t>(1);
  EXPECT_CUDA_ERROR(error, cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(graph, nullptr);
  cudaStreamCaptureStatus status{};
  EXPECT_CUDA(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST(HostCudaCapture, NothingIsDoneUntilTheGraphIsLaunchedAndThenEveryTime) {
  const cudaStream_t stream = make_stream();
  Words words(2);
  void* const device = allocate(4);
  std::atomic<int> calls{0};
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaMemcpyAsync(device, words.at(0), 4, cudaMemcpyHostToDevice, stream));
  EXPECT_CUDA(cudaLaunchHostFunc(stream, increment, &calls));
  EXPECT_CUDA(cudaMemcpyAsync(words.at(1), device, 4, cudaMemcpyDeviceToHost, stream));
  cudaStreamCaptureStatus status{};
  EXPECT_CUDA(cudaStreamIsCapturing(stream, &status));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(node_count(graph), 3U);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(calls.load(), 0);
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_CUDA(cudaGraphDestroy(graph));  // the executable needs it no more
  for (uint32_t i = 1; i <= 3; ++i) {
    words.write(i * 11, 0);
    ASSERT_CUDA(cudaGraphLaunch(executable, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(calls.load(), static_cast<int>(i));
    EXPECT_EQ(words.read(1), i * 11);
  }
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaCapture, StreamsForkAndJoinByEvents) {
  const cudaStream_t main = make_stream();
  const cudaStream_t side = make_stream(kNonBlocking);
  const cudaEvent_t fork = make_event(2);
  const cudaEvent_t join = make_event(2);
  Words words(3);
  ASSERT_CUDA(cudaStreamBeginCapture(main, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaEventRecord(fork, main));
  EXPECT_CUDA(cudaStreamWaitEvent(side, fork, 0));
  // The branches need each other, so they must run beside each other.
  EXPECT_CUDA(cuStreamWaitValue32_v2(main, device_address(words.at(0)), 1, 1));
  EXPECT_CUDA(cuStreamWriteValue32_v2(side, device_address(words.at(0)), 1, 0));
  EXPECT_CUDA(cuStreamWaitValue32_v2(side, device_address(words.at(1)), 1, 1));
  EXPECT_CUDA(cuStreamWriteValue32_v2(main, device_address(words.at(1)), 1, 0));
  EXPECT_CUDA(cudaEventRecord(join, side));
  EXPECT_CUDA(cudaStreamWaitEvent(main, join, 0));
  EXPECT_CUDA(cuStreamWriteValue32_v2(main, device_address(words.at(2)), 1, 0));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(main, &graph));
  EXPECT_EQ(node_count(graph), 5U);
  const cudaGraphExec_t executable = instantiate(graph);
  for (int i = 0; i < 20; ++i) {
    for (size_t word = 0; word < 3; ++word) words.write(0, word);
    ASSERT_CUDA(cudaGraphLaunch(executable, main));
    ASSERT_CUDA(cudaStreamSynchronize(main));
    EXPECT_EQ(words.read(2), 1U);
  }
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaEventDestroy(fork));
  EXPECT_CUDA(cudaEventDestroy(join));
  EXPECT_CUDA(cudaStreamDestroy(main));
  EXPECT_CUDA(cudaStreamDestroy(side));
}

TEST(HostCudaCapture, AForkThatIsNotJoinedIsAnError) {
  const cudaStream_t main = make_stream();
  const cudaStream_t side = make_stream();
  const cudaEvent_t fork = make_event(2);
  std::atomic<int> calls{0};
  ASSERT_CUDA(cudaStreamBeginCapture(main, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaEventRecord(fork, main));
  EXPECT_CUDA(cudaStreamWaitEvent(side, fork, 0));
  EXPECT_CUDA(cudaLaunchHostFunc(side, increment, &calls));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA_ERROR(kUnmatched, cudaStreamEndCapture(side, &graph));
  expect_end(main, kInvalidated);
  ASSERT_CUDA(cudaStreamBeginCapture(main, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaEventRecord(fork, main));
  EXPECT_CUDA(cudaStreamWaitEvent(side, fork, 0));
  EXPECT_CUDA(cudaLaunchHostFunc(side, increment, &calls));
  expect_end(main, kUnjoined);
  EXPECT_CUDA(cudaStreamSynchronize(side));  // captures no more
  EXPECT_EQ(calls.load(), 0);
  EXPECT_CUDA(cudaEventDestroy(fork));
  EXPECT_CUDA(cudaStreamDestroy(main));
  EXPECT_CUDA(cudaStreamDestroy(side));
}

TEST(HostCudaCapture, AskingOrWaitingForACapturingStreamSpoilsTheCapture) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  const auto spoils = [&](int error, auto call) {
    ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    EXPECT_CUDA_ERROR(error, call());
    cudaStreamCaptureStatus status{};
    EXPECT_CUDA(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    EXPECT_CUDA_ERROR(kInvalidated, cudaLaunchHostFunc(stream, increment, nullptr));
    expect_end(stream, kInvalidated);
  };
  spoils(kUnsupported, [&] { return cudaStreamSynchronize(stream); });
  spoils(kUnsupported, [&] { return cudaStreamQuery(stream); });
  spoils(kUnsupported, [&] { return cudaDeviceSynchronize(); });
  spoils(kUnsupported, [&] {
    return cudaStreamAddCallback(
        stream, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 0);
  });
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaCapture, TheModeSaysWhichThreadsMayMakeUnsafeCalls) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  void* memory = nullptr;
  const auto other_thread = [&](cudaStreamCaptureMode mode) {
    int result = -1;
    std::thread([&] {
      EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
      EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);  // what a thread begins with
      void* mine = nullptr;
      result = cudaMalloc(&mine, 16);
      if (result == 0) {
        EXPECT_CUDA(cudaFree(mine));
      }
    }).join();
    return result;
  };
  cudaGraph_t graph = nullptr;
  // Global: nobody may, but for threads that have said that they know.
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_EQ(other_thread(cudaStreamCaptureModeRelaxed), 0);
  EXPECT_EQ(other_thread(cudaStreamCaptureModeThreadLocal), 0);
  EXPECT_EQ(other_thread(cudaStreamCaptureModeGlobal), kUnsupported);
  expect_end(stream, kInvalidated);
  // Thread-local: others may.
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_EQ(other_thread(cudaStreamCaptureModeGlobal), 0);
  EXPECT_CUDA_ERROR(kUnsupported, cudaMalloc(&memory, 16));
  expect_end(stream, kInvalidated);
  // Relaxed: all may.
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaMalloc(&memory, 16));
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_EQ(other_thread(cudaStreamCaptureModeGlobal), 0);
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(node_count(graph), 0U);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  // And this thread may once it has said that it knows.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA(cudaMalloc(&memory, 16));
  EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  EXPECT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaFree(memory));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaCapture, TheLegacyStreamCannotBeCapturedNorUsedBesideABlockingCapture) {
  const cudaStream_t blocking = make_stream();
  const cudaStream_t apart = make_stream(kNonBlocking);
  void* const device = allocate(4);
  uint32_t host = 0;
  EXPECT_CUDA_ERROR(kUnsupported, cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal));
  ASSERT_CUDA(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA_ERROR(kImplicit, cudaMemsetAsync(device, 0, 4, nullptr));
  expect_end(blocking, kInvalidated);
  ASSERT_CUDA(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA_ERROR(kImplicit, cudaMemcpy(&host, device, 4, cudaMemcpyDeviceToHost));
  expect_end(blocking, kInvalidated);
  ASSERT_CUDA(cudaStreamBeginCapture(apart, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaMemsetAsync(device, 0, 4, nullptr));
  EXPECT_CUDA(cudaStreamSynchronize(nullptr));
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA(cudaStreamEndCapture(apart, &graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaFree(device));
  EXPECT_CUDA(cudaStreamDestroy(blocking));
  EXPECT_CUDA(cudaStreamDestroy(apart));
}

TEST(HostCudaCapture, CapturesKeepApartFromEachOtherAndFromWorkOutside) {
  const cudaStream_t first = make_stream(kNonBlocking);
  const cudaStream_t second = make_stream(kNonBlocking);
  const cudaStream_t outside = make_stream(kNonBlocking);
  const cudaEvent_t event = make_event(2);
  const auto mode = cudaStreamCaptureModeRelaxed;
  ASSERT_CUDA(cudaStreamBeginCapture(first, mode));
  EXPECT_CUDA_ERROR(401, cudaStreamBeginCapture(first, mode));
  ASSERT_CUDA(cudaStreamBeginCapture(second, mode));
  EXPECT_CUDA(cudaEventRecord(event, first));
  EXPECT_CUDA_ERROR(kCapturedEvent, cudaEventQuery(event));
  EXPECT_CUDA_ERROR(kCapturedEvent, cudaEventSynchronize(event));
  EXPECT_CUDA_ERROR(kMerge, cudaStreamWaitEvent(second, event, 0));
  expect_end(first, kInvalidated);
  expect_end(second, kInvalidated);
  EXPECT_CUDA(cudaEventRecord(event, outside));
  ASSERT_CUDA(cudaStreamBeginCapture(first, mode));
  EXPECT_CUDA_ERROR(kIsolation, cudaStreamWaitEvent(first, event, 0));
  expect_end(first, kInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_CUDA_ERROR(401, cudaStreamEndCapture(first, &graph));
  EXPECT_CUDA(cudaEventDestroy(event));
  for (const cudaStream_t stream : {first, second, outside}) {
    EXPECT_CUDA(cudaStreamDestroy(stream));
  }
}

TEST(HostCudaCapture, OnlyARelaxedCaptureMayEndInAnotherThread) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  std::thread([&] {
    EXPECT_CUDA_ERROR(kWrongThread, cudaStreamEndCapture(stream, &graph));
  }).join();
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  std::thread([&] { EXPECT_CUDA(cudaStreamEndCapture(stream, &graph)); }).join();
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaCapture, ExternalEventsJoinAGraphWithWorkOutsideOfIt) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  const cudaStream_t outside = make_stream(kNonBlocking);
  const cudaEvent_t before = make_event(2);
  const cudaEvent_t after = make_event(2);
  Words words(1);
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  EXPECT_CUDA(cudaStreamWaitEvent(stream, before, 1));
  EXPECT_CUDA(cuStreamWriteValue32_v2(stream, device_address(words.at()), 6, 0));
  EXPECT_CUDA(cudaEventRecordWithFlags(after, stream, 1));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  const cudaGraphExec_t executable = instantiate(graph);
  Gate gate;
  gate.close(outside);
  ASSERT_CUDA(cudaEventRecord(before, outside));
  ASSERT_CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_CUDA_ERROR(600, cudaEventQuery(after));
  EXPECT_EQ(words.read(), 0U);
  gate.open();
  EXPECT_CUDA(cudaEventSynchronize(after));
  EXPECT_EQ(words.read(), 6U);
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaEventDestroy(before));
  EXPECT_CUDA(cudaEventDestroy(after));
  EXPECT_CUDA(cudaStreamDestroy(stream));
  EXPECT_CUDA(cudaStreamDestroy(outside));
}

TEST(HostCudaCapture, WhatAGraphKeepsGoesWithTheLastOfGraphAndExecutable) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  std::atomic<int> destroyed{0};
  cudaUserObject_t object = nullptr;
  ASSERT_CUDA(cudaUserObjectCreate(&object, &destroyed, increment, 1, 1));
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  cudaStreamCaptureStatus status{};
  cudaGraph_t capturing = nullptr;
  const cudaGraphNode_t* nodes = nullptr;
  size_t count = 1;
  unsigned long long id = 0;
  EXPECT_CUDA(cudaStreamGetCaptureInfo(stream, &status, &id, &capturing, &nodes, nullptr, &count));
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_NE(id, 0U);
  EXPECT_EQ(count, 0U);
  EXPECT_CUDA(
      cudaGraphRetainUserObject(capturing, object, 1, 1));  // the program's own is handed over
  EXPECT_CUDA_ERROR(1, cudaUserObjectRelease(object, 1));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  EXPECT_EQ(graph, capturing);
  const cudaGraphExec_t executable = instantiate(graph);
  ASSERT_CUDA(cudaGraphLaunch(executable, stream));
  EXPECT_CUDA(cudaGraphDestroy(graph));
  EXPECT_CUDA(cudaStreamSynchronize(stream));
  EXPECT_EQ(destroyed.load(), 0);
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_EQ(destroyed.load(), 1);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

TEST(HostCudaCapture, MemoryOfAGraphLivesWithIt) {
  const cudaStream_t stream = make_stream(kNonBlocking);
  EXPECT_CUDA(cudaDeviceSynchronize());
  const size_t before = free_bytes();
  Words words(1);
  ASSERT_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  void* memory = nullptr;
  EXPECT_CUDA(cudaMallocAsync(&memory, 4096, stream));
  EXPECT_CUDA(cudaMemsetAsync(memory, 1, 4096, stream));
  EXPECT_CUDA(cudaMemcpyAsync(words.at(), memory, 4, cudaMemcpyDeviceToHost, stream));
  EXPECT_CUDA(cudaFreeAsync(memory, stream));
  cudaGraph_t graph = nullptr;
  ASSERT_CUDA(cudaStreamEndCapture(stream, &graph));
  const cudaGraphExec_t executable = instantiate(graph);
  EXPECT_CUDA(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) {
    words.write(0);
    ASSERT_CUDA(cudaGraphLaunch(executable, stream));
    ASSERT_CUDA(cudaStreamSynchronize(stream));
    EXPECT_EQ(words.read(), 0x01010101U);
  }
  EXPECT_CUDA(cudaGraphExecDestroy(executable));
  EXPECT_EQ(free_bytes(), before);
  EXPECT_CUDA(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace weir::test
