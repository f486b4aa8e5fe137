// SPDX-License-Identifier: Apache-2.0
// For tests of the C API on memory of devices of the strict libcuda (tests/nccl/strict_cuda):
// ranks, memory, streams and graphs. There is no NCCL.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/driver_needs.h"
#include "support/ranks.h"
#include "support/shared_counter.h"
#include "weir/weir.h"

#define EXPECT_CUDA(call) EXPECT_EQ(call, weir::cuda::kSuccess)
#define EXPECT_WEIR(comm, call) EXPECT_EQ(call, WEIR_OK) << weir_last_error(comm)
#define ASSERT_WEIR(comm, call) ASSERT_EQ(call, WEIR_OK) << weir_last_error(comm)

namespace weir::test {

inline const bool kEnvironment = [] {
  setenv("WEIR_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  setenv("WEIR_SCRATCH_BYTES", "192KiB", 1);  // slots of 64 KiB: most calls have several rounds
  return true;
}();

// The calling thread uses a device.
inline void use_device(int device) {
  cuda::Context context = nullptr;
  EXPECT_CUDA(cuInit(0));
  EXPECT_CUDA(cuDevicePrimaryCtxRetain(&context, device));
  EXPECT_CUDA(cuCtxSetCurrent(context));
}

inline bool has_own_devices() {
  const char* devices = std::getenv("WEIR_TEST_DEVICES");
  return devices != nullptr && std::string(devices) == "own";
}

// The hardware queues of a device.
inline int queue_count() {
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return connections != nullptr ? std::atoi(connections) : 8;
}

// ---- Ranks --------------------------------------------------------------------------------------

using DeviceBody = std::function<void(weir_comm_t comm, int n, int rank)>;

// Threads, each with a device of its own.
inline void run_threads_on_devices(int n, const DeviceBody& body,
                                   weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  ASSERT_TRUE(kEnvironment);
  WEIR_NEEDS_DEVICES(n);
  run_threads(
      n,
      [&](int rank, weir_comm_t comm) {
        use_device(rank);
        body(comm, n, rank);
      },
      config);
}
inline void run_threads_on_one_device(int n, const DeviceBody& body) {
  run_threads(n, [&](int rank, weir_comm_t comm) {
    use_device(0);
    body(comm, n, rank);
  });
}

// Processes that share a device, or with WEIR_TEST_DEVICES=own have one each. `more`: of the
// environment of a rank.
inline std::vector<int> run_processes_on_device_status(
    int n, const DeviceBody& body, const EnvironmentOf& more = [](int) { return Environment(); }) {
  return run_processes_each(
      n,
      [&](int rank, weir_comm_t comm) {
        use_device(has_own_devices() ? rank : 0);
        body(comm, n, rank);
      },
      more);
}
inline void run_processes_on_device(
    int n, const DeviceBody& body, const EnvironmentOf& more = [](int) { return Environment(); }) {
  EXPECT_EQ(run_processes_on_device_status(n, body, more),
            std::vector<int>(static_cast<size_t>(n), 0));
}

// ---- Streams and memory -------------------------------------------------------------------------

class Stream {
 public:
  Stream() { EXPECT_CUDA(cuStreamCreate(&stream_, cuda::kStreamNonBlocking)); }
  ~Stream() { EXPECT_CUDA(cuStreamDestroy_v2(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cuda::Stream get() const { return stream_; }
  void synchronize() const { EXPECT_CUDA(cuStreamSynchronize(stream_)); }

 private:
  cuda::Stream stream_ = nullptr;
};

// Of the calling thread: ranks that made one for each copy would soon have some in each other's
// hardware queues.
inline const Stream& copy_stream() {
  static thread_local const Stream stream;
  return stream;
}

// What comes after it in the stream waits for open().
class Gate {
 public:
  explicit Gate(const Stream& stream) {
    void* pinned = nullptr;
    EXPECT_CUDA(cuMemHostAlloc(&pinned, sizeof(uint32_t), cuda::kHostPortable));
    value_ = static_cast<uint32_t*>(pinned);
    *value_ = 0;
    EXPECT_CUDA(cuStreamWaitValue32_v2(stream.get(), reinterpret_cast<uintptr_t>(value_), 1,
                                       cuda::kWaitEqual));
  }
  // Its memory stays: to free it may wait for the device.
  ~Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() { std::atomic_ref(*value_).store(1); }

 private:
  uint32_t* value_ = nullptr;
};

// An array on the current device. Its memory stays: to free it may wait for the device.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    cuda::DevicePointer address = 0;
    EXPECT_CUDA(cuMemAlloc_v2(&address, size_ * sizeof(T)));
    data_ = reinterpret_cast<T*>(static_cast<uintptr_t>(address));
    set(values);
  }

  T* data() const { return data_; }
  // In stream order.
  void copy_of(const DeviceArray& other, const Stream& stream) const {
    copy(data_, other.data_, stream);
  }
  // Waited for.
  void set(const std::vector<T>& values) const {
    copy(data_, values.data(), copy_stream());
    copy_stream().synchronize();
  }
  std::vector<T> get() const {
    std::vector<T> values(size_);
    copy(values.data(), data_, copy_stream());
    copy_stream().synchronize();
    return values;
  }

 private:
  void copy(void* to, const void* from, const Stream& stream) const {
    EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                              size_ * sizeof(T), stream.get()));
  }

  size_t size_;
  T* data_ = nullptr;
};
using DeviceBytes = DeviceArray<unsigned char>;

// A graph of what `body` enqueues on the stream.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& body) {
    EXPECT_CUDA(cuStreamBeginCapture_v2(stream.get(), 1));
    body();
    cuda::Graph graph = nullptr;
    EXPECT_CUDA(cuStreamEndCapture(stream.get(), &graph));
    EXPECT_CUDA(cuGraphInstantiateWithFlags(&exec_, graph, 0));
    EXPECT_CUDA(cuGraphDestroy(graph));
  }
  ~Graph() { EXPECT_CUDA(cuGraphExecDestroy(exec_)); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(const Stream& stream) const { EXPECT_CUDA(cuGraphLaunch(exec_, stream.get())); }

 private:
  cuda::GraphExec exec_ = nullptr;
};

// ---- Calls --------------------------------------------------------------------------------------

enum class Way { kBlocking, kRequest, kStream, kStreamAndRequest };

// Calls, and waits until the result is there.
template <typename Call>
void perform(weir_comm_t comm, Way way, const Stream& stream, Call call) {
  const bool streams = way == Way::kStream || way == Way::kStreamAndRequest;
  const bool asks = way == Way::kRequest || way == Way::kStreamAndRequest;
  if (streams) {
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
  }
  weir_request_t request = nullptr;
  EXPECT_WEIR(comm, call(asks ? &request : nullptr));
  if (asks) {
    EXPECT_WEIR(comm, weir_wait(&request));
  }
  if (!streams) return;
  stream.synchronize();
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
}

// The sum of one number of each rank, by device memory.
inline void expect_sum(weir_comm_t comm, int n, int rank) {
  const DeviceArray<int> data(std::vector<int>(100, rank + 1));
  ASSERT_WEIR(comm,
              weir_all_reduce(comm, data.data(), data.data(), 100, WEIR_INT32, WEIR_SUM, nullptr));
  EXPECT_EQ(data.get(), std::vector<int>(100, n * (n + 1) / 2));
}

// The text of a deadline, once it has been told.
inline std::string expect_deadline(weir_comm_t comm) {
  weir_result_t error = WEIR_OK;
  for (int i = 0; i < 1000 && error == WEIR_OK; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_WEIR(comm, weir_comm_async_error(comm, &error));
  }
  EXPECT_EQ(error, WEIR_ERROR_TIMEOUT);
  return weir_last_error(comm);
}

}  // namespace weir::test
