// SPDX-License-Identifier: Apache-2.0
// What is staged where the driver's launch queue is full, or a thread of the program's waits for
// the device with the context's lock: nothing may need a call to CUDA that comes later. Memory is
// staged in pieces of 1 MiB, the default.
#include <gtest/gtest.h>
#include <unistd.h>

#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMebibyte = (size_t{1} << 20) / sizeof(int);  // in numbers
constexpr milliseconds kLate{300};

// Ends the process when a test stands still: nothing else gets a thread out of a call to CUDA.
class Deadline {
 public:
  Deadline() : thread_([this] { wait(); }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(lock_);
      over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  void wait() {
    std::unique_lock lock(lock_);
    if (changed_.wait_for(lock, std::chrono::seconds(100), [&] { return over_; })) return;
    std::fprintf(stderr, "an operation waits for itself\n");
    _exit(1);
  }
  std::mutex lock_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

// Another driver's launch queue has the room that it has.
void set_room(int calls) {
  if (cuda::is_strict()) strict_cuda_queue(calls);
}

class LaunchQueue : public testing::Test {
 protected:
  void SetUp() override { use_device(0); }
  void TearDown() override { set_room(1024); }
  const Deadline deadline_;
};

// Each rank has a thread and, with `shared` false, a device; the second one comes late.
template <typename Body>
void run_ranks(int n, bool shared, const Body& body) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      use_device(shared ? 0 : rank);
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
      const Stream stream;
      if (rank > 0) std::this_thread::sleep_for(kLate);
      body(rank, comm, stream);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& it : threads) it.join();
}

void all_reduce(size_t size, int n) {
  run_ranks(n, false, [&](int rank, ncclComm_t comm, const Stream& stream) {
    const Array memory(MemoryKind::kDevice, size);
    memory.set(numbers(size, rank, 1));
    EXPECT_NCCL(
        ncclAllReduce(memory.data(), memory.data(), size, ncclInt, ncclSum, comm, stream.nccl()));
    stream.synchronize();
    std::vector<int> sums(size);
    for (int r = 0; r < n; ++r) {
      const auto theirs = numbers(size, r, 1);
      for (size_t i = 0; i < size; ++i) sums[i] += theirs[i];
    }
    EXPECT_EQ(memory.get(), sums);
  });
}

TEST_F(LaunchQueue, AnOperationOfMoreCallsThanItHoldsDoesNotWaitForItself) {
  WEIR_NEEDS_DEVICES(2);
  set_room(32);
  all_reduce(24 * kMebibyte + 7, 2);
}

// Each of two ranks sends to the other and receives from it, in one group; then the program goes on
// by itself.
template <typename Ahead>
void exchange(const Ahead& ahead) {
  const size_t size = 4 * kMebibyte + 3;
  run_ranks(2, false, [&](int rank, ncclComm_t comm, const Stream& stream) {
    const Array out(MemoryKind::kDevice, size);
    const Array in(MemoryKind::kDevice, size);
    out.set(numbers(size, rank, 2));
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(ncclSend(out.data(), size, ncclInt, 1 - rank, comm, stream.nccl()));
    EXPECT_NCCL(ncclRecv(in.data(), size, ncclInt, 1 - rank, comm, stream.nccl()));
    EXPECT_NCCL(ncclGroupEnd());
    ahead(stream);
    stream.synchronize();
    EXPECT_EQ(in.get(), numbers(size, 1 - rank, 2));
  });
}

TEST_F(LaunchQueue, AGroupDoesNotWaitForAKernelThatIsLoadedAfterIt) {
  WEIR_NEEDS_STRICT_CUDA();
  exchange([](const Stream&) { strict_cuda_load_lazily(); });
}

TEST_F(LaunchQueue, AGroupDoesNotWaitForLaunchesThatStandBehindIt) {
  WEIR_NEEDS_DEVICES(2);
  exchange([](const Stream& stream) {
    void* pinned = nullptr;
    EXPECT_CUDA(cuMemHostAlloc(&pinned, sizeof(uint32_t), cuda::kHostPortable));
    for (uint32_t i = 0; i < 3000; ++i) {
      EXPECT_CUDA(cuStreamWriteValue32_v2(stream.get(), reinterpret_cast<uintptr_t>(pinned), i,
                                          cuda::kWriteDefault));
    }
    stream.synchronize();
    EXPECT_CUDA(cuMemFreeHost(pinned));
  });
}

TEST_F(LaunchQueue, AGroupOfMoreCallsThanItHoldsDoesNotWaitForItself) {
  WEIR_NEEDS_DEVICES(2);
  set_room(8);
  exchange([](const Stream&) {});
}

// A thread that is far ahead waits for its launch queue, but not with the lock of the context,
// which the other rank's thread needs to catch up.
TEST_F(LaunchQueue, AThreadThatIsFarAheadDoesNotKeepItsPeerFromCalling) {
  WEIR_NEEDS_QUEUES(8);
  std::barrier ended(2);  // freeing memory waits for the device
  run_ranks(2, true, [&](int rank, ncclComm_t comm, const Stream& stream) {
    const Array data(MemoryKind::kDevice, 10);
    data.set(std::vector<int>(10, 1), stream);
    for (int k = 0; k < 2000; ++k) {
      ASSERT_NCCL(ncclAllReduce(data.data(), data.data(), 10, ncclInt,
                                k % 100 == 0 ? ncclSum : ncclMax, comm, stream.nccl()));
    }
    stream.synchronize();
    EXPECT_EQ(data.get(stream), std::vector<int>(10, 1 << 20)) << rank;
    ended.arrive_and_wait();
  });
}

// All calls of one rank, more than may be in flight, before the first of the next, in one thread.
TEST_F(LaunchQueue, OneThreadMayMakeAllCallsOfARankBeforeThoseOfTheNext) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES(8);
  set_room(64 * 1024);
  constexpr int kCalls = 400;
  const StreamRanks ranks(2);
  const Array first(MemoryKind::kDevice, 10);
  const Array second(MemoryKind::kDevice, 10);
  const Array* const data[] = {&first, &second};
  for (const Array* it : data) it->set(std::vector<int>(10, 1));
  for (int rank = 0; rank < 2; ++rank) {
    for (int k = 0; k < kCalls; ++k) {
      ASSERT_NCCL(ncclAllReduce(data[rank]->data(), data[rank]->data(), 10, ncclInt,
                                k % 100 == 0 ? ncclSum : ncclMax, ranks.comm(rank),
                                ranks.stream(rank).nccl()));
    }
  }
  ranks.synchronize();
  for (const Array* it : data) EXPECT_EQ(it->get(), std::vector<int>(10, 1 << 4));
}

// So that the calls for one operation have room, whatever its size.
TEST_F(LaunchQueue, ALargeOperationOfThreadsThatShareADeviceDoesNotWaitForItself) {
  WEIR_NEEDS_QUEUES(8);
  std::barrier ended(2);
  const size_t size = 300 * kMebibyte + 5;
  run_ranks(2, true, [&](int rank, ncclComm_t comm, const Stream& stream) {
    const Array data(MemoryKind::kDevice, size);
    data.set(std::vector<int>(size, rank + 1), stream);
    EXPECT_NCCL(
        ncclAllReduce(data.data(), data.data(), size, ncclInt, ncclSum, comm, stream.nccl()));
    stream.synchronize();
    EXPECT_EQ(data.get(stream), std::vector<int>(size, 3));
    ended.arrive_and_wait();
  });
}

// All ranks in one thread, which brings the work of one rank after that of another.
void one_thread(int grouped) {
  const int n = 2;
  const size_t size = 24 * kMebibyte + 5;
  std::vector<Array> memory;
  const Array out(MemoryKind::kDevice, 2 * kMebibyte);
  const Array in(MemoryKind::kDevice, 2 * kMebibyte);
  out.set(numbers(out.size(), 0, 4));
  for (int rank = 0; rank < n; ++rank) {
    memory.emplace_back(MemoryKind::kDevice, size);
    memory.back().set(numbers(size, rank, 3));
  }
  const StreamRanks ranks(n);
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < n; ++rank) {
    int* data = memory[static_cast<size_t>(rank)].data();
    EXPECT_NCCL(ncclAllReduce(data, data, size, ncclInt, ncclSum, ranks.comm(rank),
                              ranks.stream(rank).nccl()));
    if (rank != grouped) continue;  // it has a message to itself besides
    EXPECT_NCCL(ncclSend(out.data(), out.size(), ncclInt, rank, ranks.comm(rank),
                         ranks.stream(rank).nccl()));
    EXPECT_NCCL(
        ncclRecv(in.data(), in.size(), ncclInt, rank, ranks.comm(rank), ranks.stream(rank).nccl()));
  }
  EXPECT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  std::vector<int> sums = numbers(size, 0, 3);
  const std::vector<int> others = numbers(size, 1, 3);
  for (size_t i = 0; i < size; ++i) sums[i] += others[i];
  for (const Array& it : memory) EXPECT_EQ(it.get(), sums);
  if (grouped >= 0) {
    EXPECT_EQ(in.get(), out.get());
  }
}

TEST_F(LaunchQueue, OneThreadBringsTheTurnsOfAllItsRanks) {
  set_room(32);
  one_thread(-1);
}

// One rank's slices take turns, the other one hands all of them over: both orders.
TEST_F(LaunchQueue, OneThreadBringsTurnsBeforeItTakesAWholeGroupBack) {
  set_room(80);
  for (const int grouped : {0, 1}) one_thread(grouped);
}

}  // namespace
}  // namespace weir::nccl::test
