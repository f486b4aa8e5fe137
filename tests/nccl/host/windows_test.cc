// SPDX-License-Identifier: Apache-2.0
// Collectives on memory of windows go from rank to rank without a copy in between. A program of its
// own: it has an environment that the library reads once, and starts no thread before it forks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "nccl/processes.h"

namespace weir::nccl::test {
namespace {

// Rules by which every collective goes by windows where it can, whatever the machine's speeds are.
class Rules {
 public:
  Rules() {
    std::string text;
    for (const char* collective :
         {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"}) {
      text +=
          std::string("[[rule]]\ncollective = \"") + collective + "\"\nalgorithm = \"window\"\n";
    }
    const int file = mkstemp(path_.data());
    written_ = file >= 0 && write(file, text.data(), text.size()) == ssize_t(text.size());
    if (file >= 0) close(file);
    setenv("WEIR_TUNING_FILE", path_.c_str(), 1);
    setenv("WEIR_EXPLAIN", "1", 1);
  }
  ~Rules() { unlink(path_.c_str()); }
  bool written() const { return written_; }

 private:
  std::string path_ = testing::TempDir() + "weir_windows_XXXXXX";
  bool written_ = false;
};
const Rules rules;

constexpr size_t kCount = 100003;  // of one block

struct Memory {
  int* send = nullptr;
  int* recv = nullptr;
};

int value(int rank, size_t i, int seed) {
  return rank * 1009 + static_cast<int>(i % 5003) * 7 + seed;
}

void fill(const Memory& memory, int rank, int n, int seed) {
  for (size_t i = 0; i < kCount * static_cast<size_t>(n); ++i) {
    memory.send[i] = value(rank, i, seed);
    memory.recv[i] = -1;
  }
}

// Every collective, with every value looked at.
void run_all(ncclComm_t comm, int rank, int n, const Memory& at) {
  const auto me = static_cast<size_t>(rank);
  const auto ranks = static_cast<size_t>(n);
  const int root = n - 1;
  fill(at, rank, n, 1);
  ASSERT_NCCL(ncclAllReduce(at.send, at.recv, kCount, ncclInt, ncclSum, comm, nullptr));
  for (size_t i = 0; i < kCount; ++i) {
    int sum = 0;
    for (int r = 0; r < n; ++r) sum += value(r, i, 1);
    ASSERT_EQ(at.recv[i], sum) << i;
  }
  fill(at, rank, n, 2);
  ASSERT_NCCL(ncclReduceScatter(at.send, at.recv, kCount, ncclInt, ncclMax, comm, nullptr));
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(at.recv[i], value(root, me * kCount + i, 2)) << i;
  fill(at, rank, n, 3);
  ASSERT_NCCL(ncclAllGather(at.send, at.recv, kCount, ncclInt, comm, nullptr));
  for (size_t i = 0; i < kCount * ranks; ++i) {
    ASSERT_EQ(at.recv[i], value(static_cast<int>(i / kCount), i % kCount, 3)) << i;
  }
  fill(at, rank, n, 4);
  ASSERT_NCCL(ncclAlltoAll(at.send, at.recv, kCount, ncclInt, comm, nullptr));
  for (size_t i = 0; i < kCount * ranks; ++i) {
    ASSERT_EQ(at.recv[i], value(static_cast<int>(i / kCount), me * kCount + i % kCount, 4)) << i;
  }
  // A rank that only receives or only sends may pass NULL for the other buffer.
  fill(at, rank, n, 5);
  ASSERT_NCCL(ncclBroadcast(rank == root ? at.send : nullptr, at.recv, kCount, ncclInt, root, comm,
                            nullptr));
  for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(at.recv[i], value(root, i, 5)) << i;
  fill(at, rank, n, 6);
  ASSERT_NCCL(ncclReduce(at.send, rank == root ? at.recv : nullptr, kCount, ncclInt, ncclMax, root,
                         comm, nullptr));
  if (rank == root) {
    for (size_t i = 0; i < kCount; ++i) ASSERT_EQ(at.recv[i], value(root, i, 6)) << i;
  }
}

size_t part_bytes(int n) { return (kCount * static_cast<size_t>(n) + 16) * sizeof(int); }

Memory parts_of(void* memory, int n) {
  auto* begin = static_cast<char*>(memory);
  return {reinterpret_cast<int*>(begin), reinterpret_cast<int*>(begin + part_bytes(n))};
}

// How often the text tells of `algorithm` as the one that was chosen.
size_t chosen(const std::string& text, const std::string& algorithm) {
  size_t count = 0;
  for (size_t at = text.find(": " + algorithm + ","); at != std::string::npos;
       at = text.find(": " + algorithm + ",", at + 1)) {
    ++count;
  }
  return count;
}

TEST(NcclWindowCollectives, ProcessesReachEachOthersAllocatedMemory) {
  constexpr int kRanks = 3;
  EXPECT_EQ(run_processes(kRanks,
                          [](int rank, ncclComm_t comm) {
                            EXPECT_TRUE(rules.written());
                            void* memory = nullptr;
                            const size_t bytes = 2 * part_bytes(kRanks);
                            ASSERT_NCCL(ncclMemAlloc(&memory, bytes));
                            ncclWindow_t window = nullptr;
                            ASSERT_NCCL(ncclCommWindowRegister(comm, memory, bytes, &window,
                                                               NCCL_WIN_COLL_SYMMETRIC));
                            testing::internal::CaptureStderr();
                            run_all(comm, rank, kRanks, parts_of(memory, kRanks));
                            const std::string told = testing::internal::GetCapturedStderr();
                            if (rank == 0) {
                              EXPECT_EQ(chosen(told, "window"), 6u) << told;
                            }
                            EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                            EXPECT_NCCL(ncclMemFree(memory));
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(kRanks, 0));
}

TEST(NcclWindowCollectives, ARankThatHasWithdrawnItsWindowMeetsOthersThatHaveNot) {
  constexpr int kRanks = 2;
  EXPECT_EQ(run_processes(kRanks,
                          [](int rank, ncclComm_t comm) {
                            void* memory = nullptr;
                            const size_t bytes = 2 * part_bytes(kRanks);
                            ASSERT_NCCL(ncclMemAlloc(&memory, bytes));
                            ncclWindow_t whole = nullptr;
                            ncclWindow_t again = nullptr;
                            ASSERT_NCCL(ncclCommWindowRegister(comm, memory, bytes, &whole, 0));
                            ASSERT_NCCL(ncclCommWindowRegister(comm, memory, bytes, &again, 0));
                            testing::internal::CaptureStderr();
                            run_all(comm, rank, kRanks, parts_of(memory, kRanks));
                            // The other one's buffers now lie in `whole`, and this one's in
                            // `again`.
                            if (rank == 1) {
                              EXPECT_NCCL(ncclCommWindowDeregister(comm, whole));
                            }
                            run_all(comm, rank, kRanks, parts_of(memory, kRanks));
                            if (rank == 0) {
                              EXPECT_NCCL(ncclCommWindowDeregister(comm, whole));
                            }
                            run_all(comm, rank, kRanks, parts_of(memory, kRanks));
                            if (rank == 0) {
                              EXPECT_NCCL(ncclCommWindowDeregister(comm, again));
                            }
                            run_all(comm, rank, kRanks, parts_of(memory, kRanks));
                            (void)testing::internal::GetCapturedStderr();
                            EXPECT_NCCL(ncclMemFree(memory));
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(kRanks, 0));
}

TEST(NcclWindowCollectives, WhatCannotBeReachedIsCopiedAsBefore) {
  // Ordinary memory of processes; one rank's buffers beside its window; access that is not wanted.
  for (const int way : {0, 1, 2}) {
    if (way == 2) setenv("NCCL_P2P_DISABLE", "1", 1);
    EXPECT_EQ(run_processes(2,
                            [way](int rank, ncclComm_t comm) {
                              const size_t bytes = 2 * part_bytes(2);
                              std::vector<char> ordinary(bytes);
                              void* memory = ordinary.data();
                              if (way > 0) {
                                ASSERT_NCCL(ncclMemAlloc(&memory, bytes));
                              }
                              ncclWindow_t window = nullptr;
                              ASSERT_NCCL(ncclCommWindowRegister(comm, memory, bytes, &window, 0));
                              void* used = way == 1 && rank == 1 ? ordinary.data() : memory;
                              testing::internal::CaptureStderr();
                              run_all(comm, rank, 2, parts_of(used, 2));
                              const std::string told = testing::internal::GetCapturedStderr();
                              EXPECT_EQ(chosen(told, "window"), 0u) << told;
                              EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                              if (way > 0) {
                                EXPECT_NCCL(ncclMemFree(memory));
                              }
                              EXPECT_NCCL(ncclCommDestroy(comm));
                            }),
              std::vector<int>(2, 0));
    unsetenv("NCCL_P2P_DISABLE");
  }
}

// The last test: it has threads.
TEST(NcclWindowCollectives, ThreadsReachEachOthersMemoryOfAnyKind) {
  testing::internal::CaptureStderr();
  run_threads(4, [](int rank, ncclComm_t comm) {
    std::vector<char> memory(2 * part_bytes(4));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), memory.size(), &window, 0));
    run_all(comm, rank, 4, parts_of(memory.data(), 4));
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
  });
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(chosen(told, "window"), 6u) << told;
}

}  // namespace
}  // namespace weir::nccl::test
