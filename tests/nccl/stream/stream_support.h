// SPDX-License-Identifier: Apache-2.0
// For tests of operations in stream order, on the strict libcuda: memory of each kind, streams, and
// what each collective must give.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "nccl/support.h"
#include "support/driver_needs.h"

#define EXPECT_CUDA(call) EXPECT_EQ(call, weir::cuda::kSuccess)

namespace weir::nccl::test {

// The calling thread uses a device.
inline void use_device(int device) {
  cuda::Context context = nullptr;
  EXPECT_CUDA(cuInit(0));
  EXPECT_CUDA(cuDevicePrimaryCtxRetain(&context, device));
  EXPECT_CUDA(cuCtxSetCurrent(context));
}

// With WEIR_TEST_DEVICES=own each rank has a device of its own, and so hardware queues of its own,
// as ranks have that are processes; else all share device 0.
inline bool has_own_devices() {
  const char* devices = std::getenv("WEIR_TEST_DEVICES");
  return devices != nullptr && std::string_view(devices) == "own";
}
inline int device_number_of(int rank) { return has_own_devices() ? rank : 0; }
// From now on the calling thread works for the rank.
inline void use_device_of(int rank) { use_device(device_number_of(rank)); }

// The hardware queues of a device; 32, the most that a driver has, where there is no end of them:
// on Weir's stand-in, and on the strict libcuda with STRICT_CUDA_QUEUES=endless.
inline int queue_count() {
  static const bool endless = std::getenv("STRICT_CUDA_QUEUES") != nullptr ||
                              dlsym(RTLD_DEFAULT, "weir_hostcuda_has_memory") != nullptr;
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return endless ? 32 : connections != nullptr ? std::atoi(connections) : 8;
}
// For tests whose ranks share a device and make their calls one by one: in one queue the first wait
// stands before all that comes after it. Ranks that have a device each need one queue.
#define WEIR_NEEDS_QUEUES(count)                               \
  if (!has_own_devices() && queue_count() < (count)) {         \
    GTEST_SKIP() << "needs " << (count) << " hardware queues"; \
  }
// For those that need them whatever device a rank has: a gate in one stream is opened only after
// work in another one of the same device, or communicators share a device in any case, as those
// that are made before their threads have a context.
#define WEIR_NEEDS_QUEUES_OF_A_DEVICE(count)                               \
  if (queue_count() < (count)) {                                           \
    GTEST_SKIP() << "needs " << (count) << " hardware queues of a device"; \
  }

// Ranks that are threads, each with its device when its communicator is made.
inline void run_device_threads(int n, const Body& body) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      use_device_of(rank);
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
      body(rank, comm);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Apart from the legacy default stream, for which others would wait, and it for them.
class Stream {
 public:
  Stream() { EXPECT_CUDA(cuStreamCreate(&stream_, cuda::kStreamNonBlocking)); }
  explicit Stream(int priority) {
    EXPECT_CUDA(cuStreamCreateWithPriority(&stream_, cuda::kStreamNonBlocking, priority));
  }
  ~Stream() {
    if (stream_ == nullptr) return;
    EXPECT_CUDA(cuStreamDestroy_v2(stream_));
  }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&&) = delete;

  cuda::Stream get() const { return stream_; }
  cudaStream_t nccl() const { return static_cast<cudaStream_t>(stream_); }
  void synchronize() const { EXPECT_CUDA(cuStreamSynchronize(stream_)); }
  bool idle() const { return cuStreamQuery(stream_) == cuda::kSuccess; }
  bool is_alive() const { return cuStreamQuery(stream_) != cuda::kErrorInvalidHandle; }
  cuda::Stream release() { return std::exchange(stream_, nullptr); }

 private:
  cuda::Stream stream_ = nullptr;
};

// A stream for each rank.
inline std::vector<Stream> streams_of_ranks(int n) {
  std::vector<Stream> streams;
  for (int rank = 0; rank < n; ++rank) {
    use_device_of(rank);
    streams.emplace_back();
  }
  use_device_of(0);
  return streams;
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
  // After the stream has passed.
  ~Gate() {
    if (value_ != nullptr) (void)cuMemFreeHost(value_);
  }
  Gate(Gate&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  Gate& operator=(Gate&&) = delete;
  void open() { std::atomic_ref(*value_).store(1); }

 private:
  uint32_t* value_ = nullptr;
};

// A stream of the calling thread and its context: a test that made one for each copy would soon
// have some in the hardware queues of its ranks. Exit handlers use it, too: never destroyed.
inline const Stream& copy_stream() {
  static auto* const lock = new std::mutex();
  static auto* const streams = new std::map<std::pair<std::thread::id, cuda::Context>, Stream>();
  cuda::Context context = nullptr;
  EXPECT_CUDA(cuCtxGetCurrent(&context));
  const std::pair key(std::this_thread::get_id(), context);
  const std::lock_guard guard(*lock);
  const auto known = streams->find(key);
  if (known != streams->end() && known->second.is_alive()) return known->second;
  if (known != streams->end()) (void)known->second.release();  // the device has been reset
  streams->erase(key);
  return streams->try_emplace(key).first->second;
}

// What receive buffers hold before.
inline constexpr int kUntouched = -77;

enum class MemoryKind { kDevice, kPinned, kHost };

// `size` numbers in memory of a kind.
class Array {
 public:
  Array(MemoryKind kind, size_t size) : kind_(kind), size_(size) {
    const size_t bytes = std::max<size_t>(size, 1) * sizeof(int);
    if (kind == MemoryKind::kDevice) {
      cuda::DevicePointer address = 0;
      EXPECT_CUDA(cuMemAlloc_v2(&address, bytes));
      data_ = reinterpret_cast<int*>(static_cast<uintptr_t>(address));
    } else if (kind == MemoryKind::kPinned) {
      void* pinned = nullptr;
      EXPECT_CUDA(cuMemHostAlloc(&pinned, bytes, cuda::kHostPortable));
      data_ = static_cast<int*>(pinned);
    } else {
      data_ = new int[std::max<size_t>(size, 1)];
    }
  }
  ~Array() {
    if (data_ == nullptr) return;
    if (kind_ == MemoryKind::kDevice) {
      EXPECT_CUDA(cuMemFree_v2(reinterpret_cast<uintptr_t>(data_)));
    } else if (kind_ == MemoryKind::kPinned) {
      EXPECT_CUDA(cuMemFreeHost(data_));
    } else {
      delete[] data_;
    }
  }
  Array(Array&& other) noexcept
      : kind_(other.kind_), size_(other.size_), data_(std::exchange(other.data_, nullptr)) {}
  Array& operator=(Array&&) = delete;

  int* data() const { return data_; }
  size_t size() const { return size_; }

  // In stream order, without waiting for it where neither is plain host memory and one is a
  // device's.
  void copy_of(const Array& from, const Stream& stream) const {
    EXPECT_EQ(size_, from.size_);
    copy(data_, from.data_, stream);
  }
  // In stream order; `values` stays until the stream has passed, for which the call may wait: they
  // are not pinned.
  void write(const std::vector<int>& values, const Stream& stream) const {
    copy(data_, values.data(), stream);
  }
  void read(std::vector<int>* values, const Stream& stream) const {
    values->resize(size_);
    copy(values->data(), data_, stream);
  }
  // The same, waited for. Threads that share a device, and so its hardware queues, use no further
  // stream for it than the one that they have.
  void set(const std::vector<int>& values, const Stream& stream) const {
    write(values, stream);
    stream.synchronize();
  }
  std::vector<int> get(const Stream& stream) const {
    std::vector<int> values;
    read(&values, stream);
    stream.synchronize();
    return values;
  }
  // On the thread's stream for copies.
  void set(const std::vector<int>& values) const { set(values, copy_stream()); }
  std::vector<int> get() const { return get(copy_stream()); }

 private:
  void copy(void* to, const void* from, const Stream& stream) const {
    if (size_ == 0) return;
    EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                              size_ * sizeof(int), stream.get()));
  }

  MemoryKind kind_;
  size_t size_;
  int* data_ = nullptr;
};

// ---- Collectives --------------------------------------------------------------------------------

enum class Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kAllGather,
  kAlltoAll,
  kGather,
  kScatter,
};
inline constexpr Kind kKinds[] = {Kind::kAllReduce,     Kind::kReduce,    Kind::kBroadcast,
                                  Kind::kReduceScatter, Kind::kAllGather, Kind::kAlltoAll,
                                  Kind::kGather,        Kind::kScatter};

inline size_t send_size(Kind kind, size_t n, size_t count) {
  const bool blocks =
      kind == Kind::kReduceScatter || kind == Kind::kAlltoAll || kind == Kind::kScatter;
  return blocks ? n * count : count;
}
inline size_t recv_size(Kind kind, size_t n, size_t count) {
  const bool blocks = kind == Kind::kAllGather || kind == Kind::kAlltoAll || kind == Kind::kGather;
  return blocks ? n * count : count;
}

inline ncclResult_t call(Kind kind, const int* send, int* recv, size_t count, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  switch (kind) {
    case Kind::kAllReduce:
      return ncclAllReduce(send, recv, count, ncclInt, ncclSum, comm, stream);
    case Kind::kReduce:
      return ncclReduce(send, recv, count, ncclInt, ncclSum, root, comm, stream);
    case Kind::kBroadcast:
      return ncclBroadcast(send, recv, count, ncclInt, root, comm, stream);
    case Kind::kReduceScatter:
      return ncclReduceScatter(send, recv, count, ncclInt, ncclSum, comm, stream);
    case Kind::kAllGather:
      return ncclAllGather(send, recv, count, ncclInt, comm, stream);
    case Kind::kAlltoAll:
      return ncclAlltoAll(send, recv, count, ncclInt, comm, stream);
    case Kind::kGather:
      return ncclGather(send, recv, count, ncclInt, root, comm, stream);
    case Kind::kScatter:
      return ncclScatter(send, recv, count, ncclInt, root, comm, stream);
  }
  return ncclInternalError;
}

// What `rank` receives when rank i sends sends[i]; empty: nothing.
inline std::vector<int> expected(Kind kind, const std::vector<std::vector<int>>& sends, int rank,
                                 size_t count, int root) {
  const size_t n = sends.size();
  const auto me = static_cast<size_t>(rank);
  const auto top = static_cast<size_t>(root);
  const bool rooted = kind == Kind::kReduce || kind == Kind::kGather;
  if (rooted && rank != root) return {};
  std::vector<int> out(recv_size(kind, n, count));
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t block = i / std::max<size_t>(count, 1);
    const size_t at = i % std::max<size_t>(count, 1);
    if (kind == Kind::kAllReduce || kind == Kind::kReduce) {
      for (const auto& send : sends) out[i] += send[i];
    } else if (kind == Kind::kBroadcast) {
      out[i] = sends[top][i];
    } else if (kind == Kind::kReduceScatter) {
      for (const auto& send : sends) out[i] += send[me * count + i];
    } else if (kind == Kind::kAllGather || kind == Kind::kGather) {
      out[i] = sends[block][at];
    } else if (kind == Kind::kAlltoAll) {
      out[i] = sends[block][me * count + at];
    } else {
      out[i] = sends[top][me * count + i];
    }
  }
  return out;
}

// Numbers of their own for each rank and call.
inline std::vector<int> numbers(size_t size, int rank, int seed) {
  std::vector<int> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = static_cast<int>(i * 7 + static_cast<size_t>(rank) * 100003 +
                                 static_cast<size_t>(seed) * 9176);
  }
  return values;
}

// Every rank's arrays for one call, and what they must hold after it.
struct Exchange {
  Exchange(Kind the_kind, int n, size_t the_count, int the_root, int seed,
           const std::function<MemoryKind(int)>& memory)
      : kind(the_kind), count(the_count), root(the_root) {
    const auto ranks = static_cast<size_t>(n);
    for (int rank = 0; rank < n; ++rank) {
      use_device_of(rank);
      values.push_back(numbers(send_size(kind, ranks, count), rank, seed));
      sends.emplace_back(memory(2 * rank), values.back().size());
      recvs.emplace_back(memory(2 * rank + 1), recv_size(kind, ranks, count));
      sends.back().set(values.back());
      recvs.back().set(std::vector<int>(recvs.back().size(), kUntouched));
    }
    use_device_of(0);
  }
  ncclResult_t call_on(int rank, ncclComm_t comm, const Stream& stream) const {
    const auto i = static_cast<size_t>(rank);
    return call(kind, sends[i].data(), recvs[i].data(), count, root, comm, stream.nccl());
  }
  void check() const {
    for (size_t i = 0; i < recvs.size(); ++i) {
      const auto wanted = expected(kind, values, static_cast<int>(i), count, root);
      if (!wanted.empty()) {
        EXPECT_EQ(recvs[i].get(), wanted)
            << "kind " << static_cast<int>(kind) << ", count " << count << ", rank " << i;
      }
    }
  }

  Kind kind;
  size_t count;
  int root;
  std::vector<std::vector<int>> values;
  std::vector<Array> sends;
  std::vector<Array> recvs;
};

inline MemoryKind device(int) { return MemoryKind::kDevice; }

// n ranks in the calling thread, with a stream each.
class StreamRanks {
 public:
  explicit StreamRanks(int n) : ranks_(n), streams_(streams_of_ranks(n)) {}

  ncclComm_t comm(int rank) const { return ranks_[rank]; }
  const Stream& stream(int rank) const { return streams_[static_cast<size_t>(rank)]; }
  int size() const { return ranks_.size(); }
  void synchronize() const {
    for (const Stream& it : streams_) it.synchronize();
  }

 private:
  AllRanks ranks_;
  std::vector<Stream> streams_;
};

// An event as programs give it to a call: without timing.
class LaunchEvent {
 public:
  LaunchEvent() { EXPECT_CUDA(cuEventCreate(&event_, cuda::kEventDisableTiming)); }
  ~LaunchEvent() { EXPECT_CUDA(cuEventDestroy_v2(event_)); }
  LaunchEvent(const LaunchEvent&) = delete;
  LaunchEvent& operator=(const LaunchEvent&) = delete;

  cuda::Event get() const { return event_; }
  // An all-reduce in place that records it.
  ncclResult_t sum(const Array& data, ncclComm_t comm, const Stream& stream) const {
    ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
    config.launchCompletionEvent = static_cast<cudaEvent_t>(event_);
    return ncclAllReduceConfig(data.data(), data.data(), data.size(), ncclInt, ncclSum, comm,
                               stream.nccl(), &config);
  }

 private:
  cuda::Event event_ = nullptr;
};

// Whether collectives are work of the streams alone; some tests are run again without.
inline bool goes_directly() {
  const char* direct = std::getenv("WEIR_DIRECT");
  return direct == nullptr || std::string_view(direct) != "0";
}

inline ncclResult_t async_error(ncclComm_t comm) {
  ncclResult_t error = ncclInternalError;
  EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
  return error;
}

}  // namespace weir::nccl::test
