// SPDX-License-Identifier: Apache-2.0
// Windows on devices of the strict libcuda, between processes: memory of each kind, and what ends
// the mappings, which waits for the device, while a peer is late.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/direct/rank_processes.h"

namespace weir::nccl::test {
namespace {

const bool kEnvironment = setenv("WEIR_EXPLAIN", "1", 1) == 0;
constexpr size_t kCount = 90'001;  // of more than 128 KiB, so that windows are used

// Ends the process when it stands still: nothing else gets a thread out of a call to CUDA.
void end_within(std::chrono::seconds limit) {
  std::thread([limit] {
    std::this_thread::sleep_for(limit);
    std::fprintf(stderr, "the process stands still\n");
    _exit(91);
  }).detach();
}

// A window over memory of ncclMemAlloc, or of cuMemAlloc.
class Window {
 public:
  Window(ncclComm_t comm, bool by_mapping) : comm_(comm), by_mapping_(by_mapping) {
    if (by_mapping) {
      EXPECT_NCCL(ncclMemAlloc(&memory_, kCount * sizeof(int)));
    } else {
      cuda::DevicePointer address = 0;
      EXPECT_CUDA(cuMemAlloc_v2(&address, kCount * sizeof(int)));
      memory_ = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    }
    EXPECT_NCCL(ncclCommWindowRegister(comm, memory_, kCount * sizeof(int), &window_,
                                       NCCL_WIN_COLL_SYMMETRIC));
  }
  void deregister() const { EXPECT_NCCL(ncclCommWindowDeregister(comm_, window_)); }
  // When all ranks have deregistered it.
  void free_memory() const {
    if (by_mapping_) {
      EXPECT_NCCL(ncclMemFree(memory_));
    } else {
      EXPECT_CUDA(cuMemFree_v2(reinterpret_cast<uintptr_t>(memory_)));
    }
  }
  void sum(const Stream& stream) const {
    EXPECT_NCCL(ncclAllReduce(memory_, memory_, kCount, ncclInt, ncclSum, comm_, stream.nccl()));
  }
  void copy(void* to, const void* from, const Stream& stream) const {
    EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                              kCount * sizeof(int), stream.get()));
    stream.synchronize();
  }
  void set(const std::vector<int>& values, const Stream& stream) const {
    copy(memory_, values.data(), stream);
  }
  std::vector<int> get(const Stream& stream) const {
    std::vector<int> values(kCount);
    copy(values.data(), memory_, stream);
    return values;
  }

 private:
  ncclComm_t comm_;
  bool by_mapping_;
  void* memory_ = nullptr;
  ncclWindow_t window_ = nullptr;
};

void run(int n, const std::function<void(const Rank&)>& body) {
  ASSERT_TRUE(kEnvironment);
  run_on(n, [&](const Rank& rank) {
    end_within(std::chrono::seconds(30));
    body(rank);
  });
}

// All ranks have come to it.
void meet(const Rank& rank, const Stream& stream) {
  const Array word(MemoryKind::kDevice, 1);
  EXPECT_NCCL(
      ncclAllReduce(word.data(), word.data(), 1, ncclInt, ncclSum, rank.comm(), stream.nccl()));
  stream.synchronize();
}

TEST(NcclStreamWindows, MemoryOfEachKindIsUsedWhereItLies) {
  for (const bool by_mapping : {true, false}) {
    run(3, [=](const Rank& rank) {
      const Stream stream;
      testing::internal::CaptureStderr();
      for (int round = 0; round < 3; ++round) {
        const Window window(rank.comm(), by_mapping);
        for (int call = 0; call < 3; ++call) {
          window.set(std::vector<int>(kCount, rank.rank() + call + round), stream);
          std::this_thread::sleep_for(std::chrono::milliseconds(5 * ((rank.rank() + call) % 3)));
          window.sum(stream);
          EXPECT_EQ(window.get(stream), std::vector<int>(kCount, 3 + 3 * (call + round)));
        }
        window.deregister();
        meet(rank, stream);
        window.free_memory();
      }
      const std::string told = testing::internal::GetCapturedStderr();
      // ncclMemAlloc's is not for others where the driver gives no descriptors of it.
      const bool is_used = !by_mapping || std::getenv("STRICT_CUDA_SHARES") == nullptr;
      EXPECT_EQ(told.find("use buffers in windows on devices where they lie") != std::string::npos,
                is_used && rank.rank() == 0)
          << told;
    });
  }
}

enum class Ends { kDeregister, kDestroy };

// A window of one communicator ends while an operation of another one waits for a late peer, which
// ends its own part before that operation or after it.
void window_ends(bool by_mapping, Ends ends, bool before) {
  run(2, [=](const Rank& rank) {
    const Stream stream;
    const Array data(MemoryKind::kDevice, kCount);
    data.set(std::vector<int>(kCount, rank.rank() + 1), stream);
    ncclComm_t other = nullptr;
    EXPECT_NCCL(ncclCommSplit(rank.comm(), 0, rank.rank(), &other, nullptr));
    const Window window(other, by_mapping);
    window.set(std::vector<int>(kCount, 5), stream);
    window.sum(stream);
    stream.synchronize();
    const auto end = [&] {
      if (ends == Ends::kDeregister) window.deregister();
      EXPECT_NCCL(ncclCommDestroy(other));
    };
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    if (rank.rank() == 1 && before) end();
    EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, rank.comm(),
                              stream.nccl()));
    if (rank.rank() == 0 || !before) end();
    stream.synchronize();
    EXPECT_EQ(data.get(stream), std::vector<int>(kCount, 3));
    EXPECT_EQ(window.get(stream), std::vector<int>(kCount, 10));
    meet(rank, stream);
    window.free_memory();
  });
}

TEST(NcclStreamWindows, OneEndsWhileAnOperationOfAnotherCommunicatorWaitsForALatePeer) {
  for (const bool by_mapping : {true, false}) {
    for (const Ends ends : {Ends::kDeregister, Ends::kDestroy}) {
      for (const bool before : {false, true}) window_ends(by_mapping, ends, before);
    }
  }
}

// Two processes of two ranks with a device each: one rank ends a window, for which it waits until
// its device has done what the other rank of its process calls only after it has mapped a window.
TEST(NcclStreamWindows, ARankMayMapOneWhileAnotherOfItsProcessWaitsForTheEndOfOne) {
  const ncclUniqueId id = make_id();
  const auto rank_of_process = [&](int rank) {
    use_device(rank);
    ncclComm_t all = nullptr;
    ncclComm_t pair = nullptr;  // of ranks of both processes
    EXPECT_NCCL(ncclCommInitRank(&all, 4, id, rank));
    EXPECT_NCCL(ncclCommSplit(all, rank % 2, rank, &pair, nullptr));
    const Stream stream;
    const Array data(MemoryKind::kDevice, kCount);
    data.set(std::vector<int>(kCount, rank), stream);
    const auto sum = [&] {
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, all, stream.nccl()));
    };
    if (rank % 2 == 0) {
      const Window window(pair, true);
      sum();
      window.deregister();
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const Window window(pair, true);
      sum();
      window.deregister();
    }
    stream.synchronize();
    EXPECT_EQ(data.get(stream), std::vector<int>(kCount, 6));
    EXPECT_NCCL(ncclCommDestroy(pair));
    EXPECT_NCCL(ncclCommDestroy(all));
  };
  EXPECT_EQ(run_processes(2,
                          [&](int process, ncclComm_t first) {
                            end_within(std::chrono::seconds(20));
                            std::thread other([&] { rank_of_process(2 * process + 1); });
                            rank_of_process(2 * process);
                            other.join();
                            EXPECT_NCCL(ncclCommDestroy(first));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclStreamWindows, MemoryOfMemAllocIsFreedWhileAPeerIsLate) {
  run(2, [](const Rank& rank) {
    const Stream stream;
    const Array data(MemoryKind::kDevice, kCount);
    for (int round = 0; round < 4; ++round) {
      data.set(std::vector<int>(kCount, rank.rank() + round), stream);
      void* spare = nullptr;
      EXPECT_NCCL(ncclMemAlloc(&spare, 1 << 20));
      if (rank.rank() == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, rank.comm(),
                                stream.nccl()));
      EXPECT_NCCL(ncclMemFree(spare));
      stream.synchronize();
      EXPECT_EQ(data.get(stream), std::vector<int>(kCount, 1 + 2 * round));
    }
  });
}

}  // namespace
}  // namespace weir::nccl::test
