// SPDX-License-Identifier: Apache-2.0
// Collectives whose buffers lie in windows on devices, between processes: peers use them where they
// lie, whatever the memory was made by.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "hostcuda/runtime/functions.h"
#include "nccl/direct/direct_processes.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kBlock = 40'009;  // of more than 128 KiB, so that windows are used
constexpr const char* kInWindows = "use buffers in windows on devices where they lie";
constexpr const char* kThroughScratch = "a window on devices is copied through scratch";

class Stream {
 public:
  Stream() { EXPECT_CUDA(cuStreamCreate(&stream_, 0)); }
  ~Stream() { EXPECT_CUDA(cuStreamDestroy_v2(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }
  cudaStream_t on() const { return reinterpret_cast<cudaStream_t>(stream_); }
  void wait() const { EXPECT_CUDA(cuStreamSynchronize(stream_)); }

 private:
  CUstream stream_ = nullptr;
};

std::vector<int> sum_of(int n, size_t count, int seed) {
  std::vector<int> sum(count);
  for (int r = 0; r < n; ++r) {
    const std::vector<int> theirs = values_of(r, count, seed);
    for (size_t i = 0; i < count; ++i) sum[i] += theirs[i];
  }
  return sum;
}

std::vector<int> part_of(const std::vector<int>& values, size_t begin, size_t count) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

struct Ranks {
  ncclComm_t comm;
  int rank;
  int n;
  const Stream& stream;

  size_t all() const { return static_cast<size_t>(n) * kBlock; }
  size_t mine() const { return static_cast<size_t>(rank) * kBlock; }
};

void set(int* at, const std::vector<int>& values) {
  EXPECT_CUDA(cuMemcpyHtoD_v2(reinterpret_cast<CUdeviceptr>(at), values.data(),
                              values.size() * sizeof(int)));
}
std::vector<int> get(const int* at, size_t count) {
  std::vector<int> values(count);
  EXPECT_CUDA(
      cuMemcpyDtoH_v2(values.data(), reinterpret_cast<CUdeviceptr>(at), count * sizeof(int)));
  return values;
}

// Both buffers hold n blocks.
void reduce_and_copy(const Ranks& it, int* send, int* recv, int seed) {
  const auto reset = [&] { set(send, values_of(it.rank, it.all(), seed)); };
  const std::vector<int> sum = sum_of(it.n, it.all(), seed);
  for (const bool in_place : {false, true}) {
    reset();
    int* const to = in_place ? send : recv;
    EXPECT_NCCL(ncclAllReduce(send, to, it.all(), ncclInt, ncclSum, it.comm, it.stream.on()));
    it.stream.wait();
    EXPECT_EQ(get(to, it.all()) == sum, true) << "all-reduce " << in_place;
    reset();
    int* const block = in_place ? send + it.mine() : recv;
    EXPECT_NCCL(ncclReduceScatter(send, block, kBlock, ncclInt, ncclSum, it.comm, it.stream.on()));
    it.stream.wait();
    EXPECT_EQ(get(block, kBlock) == part_of(sum, it.mine(), kBlock), true)
        << "scatter " << in_place;
    reset();
    const int* const from = in_place ? recv + it.mine() : send;
    if (in_place) set(recv + it.mine(), part_of(values_of(it.rank, it.all(), seed), 0, kBlock));
    EXPECT_NCCL(ncclAllGather(from, recv, kBlock, ncclInt, it.comm, it.stream.on()));
    it.stream.wait();
    for (int r = 0; r < it.n; ++r) {
      EXPECT_EQ(get(recv + static_cast<size_t>(r) * kBlock, kBlock) ==
                    part_of(values_of(r, it.all(), seed), 0, kBlock),
                true)
          << "all-gather " << in_place;
    }
  }
  reset();
  EXPECT_NCCL(ncclAlltoAll(send, recv, kBlock, ncclInt, it.comm, it.stream.on()));
  // Peers have read it when the stream is past the call.
  EXPECT_EQ(cudaMemsetAsync(send, 0, it.all() * sizeof(int), it.stream.on()), cudaSuccess);
  it.stream.wait();
  for (int r = 0; r < it.n; ++r) {
    EXPECT_EQ(get(recv + static_cast<size_t>(r) * kBlock, kBlock) ==
                  part_of(values_of(r, it.all(), seed), it.mine(), kBlock),
              true)
        << "all-to-all";
  }
}

// Only what peers read must lie in a window; plain memory of the host is filled piece by piece.
void into_memory_of_the_host(const Ranks& it, int* send, int seed) {
  set(send, values_of(it.rank, it.all(), seed));
  std::vector<int> sum(kBlock);
  std::vector<int> all(it.all());
  EXPECT_NCCL(
      ncclReduceScatter(send, sum.data(), kBlock, ncclInt, ncclSum, it.comm, it.stream.on()));
  EXPECT_NCCL(ncclAllGather(send, all.data(), kBlock, ncclInt, it.comm, it.stream.on()));
  it.stream.wait();
  EXPECT_EQ(sum == part_of(sum_of(it.n, it.all(), seed), it.mine(), kBlock), true);
  for (int r = 0; r < it.n; ++r) {
    EXPECT_EQ(part_of(all, static_cast<size_t>(r) * kBlock, kBlock) ==
                  part_of(values_of(r, it.all(), seed), 0, kBlock),
              true);
  }
}

ncclWindow_t register_window(ncclComm_t comm, const Numbers& memory, size_t count,
                             int flags = NCCL_WIN_COLL_SYMMETRIC) {
  ncclWindow_t window = nullptr;
  EXPECT_NCCL(ncclCommWindowRegister(comm, memory.data(), count * sizeof(int), &window, flags));
  return window;
}

void meet(const Ranks& it) {
  const Numbers word(1);
  EXPECT_NCCL(
      ncclAllReduce(word.data(), word.data(), 1, ncclInt, ncclSum, it.comm, it.stream.on()));
  it.stream.wait();
}

void use_windows(Kind kind, int n, int devices) {
  EXPECT_EQ(run_processes(n,
                          [=](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, rank % devices);
                            const Stream stream;
                            const Ranks it{comm, rank, n, stream};
                            meet(it);
                            size_t descriptors = 0;
                            testing::internal::CaptureStderr();
                            for (int round = 0; round < 3; ++round) {
                              const Numbers memory(2 * it.all() + 100, kind);
                              const ncclWindow_t window =
                                  register_window(comm, memory, 2 * it.all() + 100);
                              int* const at = memory.data() + 4 * round;
                              reduce_and_copy(it, at, at + it.all(), round);
                              into_memory_of_the_host(it, at, round);
                              EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                              // Then through scratch again; no peer has it any more.
                              reduce_and_copy(it, at, at + it.all(), round + 7);
                              // After the first window, which makes more than its own.
                              if (round == 0) descriptors = open_descriptors();
                              if (round == 2) {
                                EXPECT_LE(open_descriptors(), descriptors);
                              }
                            }
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kInWindows), rank == 0 ? 1u : 0u) << told;
                            EXPECT_EQ(count_of(told, kThroughScratch), 0u) << told;
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(static_cast<size_t>(n), 0));
}

class NcclDirectWindows : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(kEnvironment);
    if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "there are no kernels";
  }
};

TEST_F(NcclDirectWindows, MemoryOfMemAllocIsUsedWhereItLies) {
  use_windows(Kind::kOfMemAlloc, 2, 1);
  use_windows(Kind::kOfMemAlloc, 3, 2);
}

TEST_F(NcclDirectWindows, MemoryOfCudaMallocIsUsedWhereItLies) {
  use_windows(Kind::kAllocated, 3, 2);
}

// As expandable segments have it.
TEST_F(NcclDirectWindows, MemoryOfSeveralAllocationsIsUsedWhereItLies) {
  use_windows(Kind::kMapped, 2, 2);
  use_windows(Kind::kMappedSideBySide, 3, 2);
}

TEST_F(NcclDirectWindows, ACapturedGraphIsLaunchedAgainAndAgain) {
  EXPECT_EQ(run_processes(
                2,
                [](int rank, ncclComm_t first) {
                  ncclComm_t comm = use_device_in(first, rank, rank);
                  const Stream stream;
                  const Numbers memory(2 * kBlock, Kind::kOfMemAlloc);
                  const ncclWindow_t window = register_window(comm, memory, 2 * kBlock);
                  int* const recv = memory.data() + kBlock;
                  CUgraph graph = nullptr;
                  CUgraphExec launchable = nullptr;
                  testing::internal::CaptureStderr();
                  EXPECT_CUDA(cuStreamBeginCapture_v2(stream.get(), CU_STREAM_CAPTURE_MODE_GLOBAL));
                  EXPECT_NCCL(ncclAllReduce(memory.data(), recv, kBlock, ncclInt, ncclSum, comm,
                                            stream.on()));
                  EXPECT_CUDA(cuStreamEndCapture(stream.get(), &graph));
                  EXPECT_EQ(count_of(testing::internal::GetCapturedStderr(), kInWindows),
                            rank == 0 ? 1u : 0u);
                  EXPECT_EQ(cudaGraphInstantiate(&launchable, graph, 0), cudaSuccess);
                  for (int launch = 0; launch < 5; ++launch) {
                    set(memory.data(), values_of(rank, kBlock, launch));
                    EXPECT_CUDA(cuGraphLaunch(launchable, stream.get()));
                    stream.wait();
                    EXPECT_EQ(get(recv, kBlock) == sum_of(2, kBlock, launch), true) << launch;
                  }
                  EXPECT_EQ(cudaGraphExecDestroy(launchable), cudaSuccess);
                  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
                  EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                  EXPECT_NCCL(ncclCommDestroy(comm));
                }),
            std::vector<int>(2, 0));
}

// Without the promise that buffers lie at the same places, through scratch.
TEST_F(NcclDirectWindows, OnlySymmetricOnesAreUsed) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, 0);
                            const Stream stream;
                            const Ranks it{comm, rank, 2, stream};
                            const Numbers memory(2 * it.all(), Kind::kOfMemAlloc);
                            const ncclWindow_t window =
                                register_window(comm, memory, 2 * it.all(),
                                                rank == 0 ? NCCL_WIN_COLL_SYMMETRIC : 0);
                            testing::internal::CaptureStderr();
                            reduce_and_copy(it, memory.data(), memory.data() + it.all(), 1);
                            const std::string told = testing::internal::GetCapturedStderr();
                            EXPECT_EQ(count_of(told, kInWindows), 0u) << told;
                            EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST_F(NcclDirectWindows, OneThatARankCannotHandOverIsCopiedAndTheOthersAreNot) {
  EXPECT_EQ(run_processes(
                2,
                [](int rank, ncclComm_t first) {
                  ncclComm_t comm = use_device_in(first, rank, 0);
                  const Stream stream;
                  const Ranks it{comm, rank, 2, stream};
                  const Numbers closed(2 * it.all(),
                                       rank == 1 ? Kind::kMappedForOne : Kind::kMapped);
                  const Numbers open(2 * it.all(), Kind::kMapped);
                  testing::internal::CaptureStderr();
                  const ncclWindow_t windows[] = {register_window(comm, closed, 2 * it.all()),
                                                  register_window(comm, open, 2 * it.all())};
                  reduce_and_copy(it, closed.data(), closed.data() + it.all(), 1);
                  std::string told = testing::internal::GetCapturedStderr();
                  EXPECT_EQ(count_of(told, kInWindows), 0u) << told;
                  EXPECT_EQ(count_of(told, kThroughScratch), rank == 0 ? 1u : 0u) << told;
                  EXPECT_EQ(count_of(told, "requestedHandleTypes"), rank == 0 ? 1u : 0u) << told;
                  testing::internal::CaptureStderr();
                  reduce_and_copy(it, open.data(), open.data() + it.all(), 2);
                  told = testing::internal::GetCapturedStderr();
                  EXPECT_EQ(count_of(told, kInWindows), rank == 0 ? 1u : 0u) << told;
                  for (const ncclWindow_t window : windows) {
                    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                  }
                  EXPECT_NCCL(ncclCommDestroy(comm));
                }),
            std::vector<int>(2, 0));
}

TEST_F(NcclDirectWindows, BuffersAtOtherPlacesAreToldAndNobodyUsesThem) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            ncclComm_t comm = use_device_in(first, rank, 0);
                            const Stream stream;
                            const Numbers memory(3 * kBlock, Kind::kOfMemAlloc);
                            const ncclWindow_t window = register_window(comm, memory, 3 * kBlock);
                            EXPECT_NE(window, nullptr);
                            int* const send = memory.data() + 4 * rank;
                            EXPECT_NCCL(ncclAllReduce(send, memory.data() + 2 * kBlock, kBlock,
                                                      ncclInt, ncclSum, comm, stream.on()));
                            stream.wait();
                            ncclResult_t error = ncclSuccess;
                            EXPECT_NCCL(ncclCommGetAsyncError(comm, &error));
                            EXPECT_NE(error, ncclSuccess);
                            const std::string text = ncclGetLastError(comm);
                            EXPECT_NE(text.find("other places of windows"), std::string::npos)
                                << text;
                            EXPECT_NCCL(ncclCommAbort(comm));
                          }),
            std::vector<int>(2, 0));
}

}  // namespace
}  // namespace weir::nccl::test
