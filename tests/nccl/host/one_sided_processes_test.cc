// SPDX-License-Identifier: Apache-2.0
// Puts and signals between processes: directly where the memory is ncclMemAlloc's, as messages
// where it is not or must not be reached. A program of its own: nothing here starts a thread before
// it forks.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "nccl/host/window_memory.h"
#include "nccl/processes.h"
#include "weir/nccl_device.h"

namespace weir::nccl::test {
namespace {

ncclResult_t wait_for(ncclComm_t comm, int peer, int count) {
  ncclWaitSignalDesc_t one{count, peer, 0, 0};
  return ncclWaitSignal(1, &one, comm, nullptr);
}

void meet(ncclComm_t comm) {
  int one = 1;
  EXPECT_NCCL(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr));
}

// Every rank writes to every other, of many sizes, and each value is looked at.
void exchange_all(int rank, int n, ncclComm_t comm, int* memory, size_t room) {
  ncclWindow_t window = nullptr;
  ASSERT_NCCL(ncclCommWindowRegister(comm, memory, static_cast<size_t>(n) * room * sizeof(int),
                                     &window, NCCL_WIN_COLL_SYMMETRIC));
  const auto place = [&](int of) { return static_cast<size_t>(of) * room; };
  int round = 0;
  for (const size_t count : {size_t{1}, size_t{0}, size_t{777}, room, size_t{2}}) {
    ++round;
    std::vector<int> data(count);
    std::iota(data.begin(), data.end(), 10000 * rank + round);
    for (int peer = 0; peer < n; ++peer) {
      EXPECT_NCCL(ncclPutSignal(data.data(), count, ncclInt, peer, window,
                                place(rank) * sizeof(int), 0, 0, 0, comm, nullptr));
    }
    for (int peer = 0; peer < n; ++peer) {
      EXPECT_NCCL(wait_for(comm, peer, 1));
      for (size_t i = 0; i < count; ++i) {
        ASSERT_EQ(memory[place(peer) + i], 10000 * peer + round + static_cast<int>(i));
      }
    }
    meet(comm);
  }
  EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
}

constexpr size_t kRoom = 300000;

void exchange_in_allocated_memory(int rank, int n, ncclComm_t comm) {
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, static_cast<size_t>(n) * kRoom * sizeof(int)));
  exchange_all(rank, n, comm, static_cast<int*>(memory), kRoom);
  EXPECT_NCCL(ncclMemFree(memory));
}

void exchange_in_ordinary_memory(int rank, int n, ncclComm_t comm) {
  std::vector<int> memory(static_cast<size_t>(n) * kRoom);
  exchange_all(rank, n, comm, memory.data(), kRoom);
}

TEST(NcclOneSidedProcesses, EveryRankWritesToEveryOtherInAllocatedMemory) {
  EXPECT_EQ(run_processes(3,
                          [](int rank, ncclComm_t comm) {
                            exchange_in_allocated_memory(rank, 3, comm);
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(3, 0));
}

TEST(NcclOneSidedProcesses, EveryRankWritesToEveryOtherInOrdinaryMemory) {
  EXPECT_EQ(run_processes(3,
                          [](int rank, ncclComm_t comm) {
                            exchange_in_ordinary_memory(rank, 3, comm);
                            exchange_in_allocated_memory(rank, 3, comm);
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(3, 0));
}

// Memory of ncclMemAlloc, this process's or another's, that this process has mapped.
int mapped_allocations() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("weir-symmetric") != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(NcclOneSidedProcesses, AWindowMapsThePeersMemoryUnlessThatIsDisabled) {
  for (const bool disabled : {false, true}) {
    if (disabled) setenv("NCCL_P2P_DISABLE", "1", 1);
    EXPECT_EQ(run_processes(2,
                            [&](int, ncclComm_t comm) {
                              void* memory = nullptr;
                              ncclWindow_t window = nullptr;
                              ASSERT_NCCL(ncclMemAlloc(&memory, 8192));
                              EXPECT_EQ(mapped_allocations(), 1);
                              ASSERT_NCCL(ncclCommWindowRegister(comm, memory, 8192, &window, 0));
                              // Windows and counters of signals; and the gates of both.
                              EXPECT_EQ(mapped_allocations(), disabled ? 2 : 8);
                              meet(comm);
                              EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
                              EXPECT_NCCL(ncclMemFree(memory));
                              EXPECT_NCCL(ncclCommDestroy(comm));
                            }),
              std::vector<int>(2, 0));
    unsetenv("NCCL_P2P_DISABLE");
  }
}

// What PyTorch's symmetric memory asks for every peer of a window.
void read_by_address(int rank, ncclComm_t comm, bool disabled) {
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, 8192));
  static_cast<int*>(memory)[100] = 1000 + rank;
  ASSERT_NCCL(ncclCommWindowRegister(comm, memory, 8192, &window, 0));
  meet(comm);
  for (const int peer : {0, 1}) {
    void* address = memory;
    EXPECT_NCCL(ncclGetPeerDevicePointer(window, 400, peer, &address));
    const bool reached = peer == rank || !disabled;
    ASSERT_EQ(address != nullptr, reached);
    if (reached) {
      EXPECT_EQ(*static_cast<const int*>(address), 1000 + peer);
    }
    EXPECT_EQ(ncclGetPeerDevicePointer(window, 8193, peer, &address), ncclInvalidArgument);
    EXPECT_EQ(address, nullptr);
  }
  void* address = nullptr;
  EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 2, &address), ncclInvalidArgument);
  EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 1, nullptr), ncclInvalidArgument);
  meet(comm);
  EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
  EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 1, &address), ncclInvalidArgument);
  EXPECT_NCCL(ncclMemFree(memory));
  EXPECT_NCCL(ncclCommDestroy(comm));
}

TEST(NcclOneSidedProcesses, APeersMemoryHasAnAddressWhereAWindowMapsIt) {
  for (const bool disabled : {false, true}) {
    if (disabled) setenv("NCCL_P2P_DISABLE", "1", 1);
    EXPECT_EQ(
        run_processes(2, [&](int rank, ncclComm_t comm) { read_by_address(rank, comm, disabled); }),
        std::vector<int>(2, 0));
    unsetenv("NCCL_P2P_DISABLE");
  }
}

TEST(NcclOneSidedProcesses, WithoutDirectAccessAllGoesAsMessages) {
  setenv("NCCL_P2P_DISABLE", "1", 1);
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t comm) {
                            exchange_in_allocated_memory(rank, 2, comm);
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
  unsetenv("NCCL_P2P_DISABLE");
}

TEST(NcclOneSidedProcesses, OverTcpToo) {
  setenv("WEIR_TRANSPORT", "tcp", 1);
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t comm) {
                            exchange_in_ordinary_memory(rank, 2, comm);
                            EXPECT_NCCL(ncclCommDestroy(comm));
                          }),
            std::vector<int>(2, 0));
  unsetenv("WEIR_TRANSPORT");
}

// The target does nothing at all: it is stopped.
TEST(NcclOneSidedProcesses, APutToAllocatedMemoryNeedsNoHelpOfTheTarget) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    void* memory = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, sizeof(int)));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory, sizeof(int), &window, 0));
    if (rank == 1) {
      const pid_t self = getpid();
      EXPECT_EQ(write(ready[1], &self, sizeof self), static_cast<ssize_t>(sizeof self));
      raise(SIGSTOP);
      EXPECT_NCCL(wait_for(comm, 0, 1));
      EXPECT_EQ(*static_cast<int*>(memory), 99);
    } else {
      pid_t peer = 0;
      ASSERT_EQ(read(ready[0], &peer, sizeof peer), static_cast<ssize_t>(sizeof peer));
      // The parent alone may wait for it; its state tells.
      const std::string path = "/proc/" + std::to_string(peer) + "/stat";
      for (char state = 0; state != 'T';) {
        FILE* file = fopen(path.c_str(), "re");
        ASSERT_NE(file, nullptr);
        ASSERT_EQ(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
        fclose(file);
      }
      const int value = 99;
      EXPECT_NCCL(ncclPutSignal(&value, 1, ncclInt, 1, window, 0, 0, 0, 0, comm, nullptr));
      kill(peer, SIGCONT);
    }
    meet(comm);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_NCCL(ncclCommDestroy(comm));
    EXPECT_NCCL(ncclMemFree(memory));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  close(ready[0]);
  close(ready[1]);
}

TEST(NcclOneSidedProcesses, ARankThatDoesNotSignalIsNamedAtTheDeadline) {
  int sent[2];
  int done[2];
  ASSERT_EQ(pipe(sent), 0);
  ASSERT_EQ(pipe(done), 0);
  const std::vector<int> statuses = run_processes(3, [&](int rank, ncclComm_t comm) {
    void* memory = nullptr;
    ASSERT_NCCL(ncclMemAlloc(&memory, sizeof(int)));
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory, sizeof(int), &window, 0));
    char byte = 0;
    if (rank == 0) {
      EXPECT_EQ(read(sent[0], &byte, 1), 1);
      setenv("WEIR_TIMEOUT_MS", "300", 1);
      ncclWaitSignalDesc_t both[] = {{1, 1, 0, 0}, {1, 2, 0, 0}};
      EXPECT_EQ(ncclWaitSignal(2, both, comm, nullptr), ncclRemoteError);
      expect_error_with({"ncclWaitSignal", "no signal from rank 2 ", "300 ms", "WEIR_TIMEOUT_MS"});
      // Nothing was taken.
      EXPECT_NCCL(wait_for(comm, 1, 1));
      EXPECT_EQ(write(done[1], "..", 2), 2);
    } else {
      if (rank == 1) {
        EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, nullptr));
        EXPECT_EQ(write(sent[1], ".", 1), 1);
      }
      EXPECT_EQ(read(done[0], &byte, 1), 1);
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
  for (const int fd : {sent[0], sent[1], done[0], done[1]}) close(fd);
}

TEST(NcclOneSidedProcesses, ARankThatDiedIsNamed) {
  for (const bool allocated : {true, false}) {
    const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
      void* memory = nullptr;
      int ordinary = 0;
      ASSERT_NCCL(ncclMemAlloc(&memory, sizeof(int)));
      if (!allocated) memory = &ordinary;
      ncclWindow_t window = nullptr;
      ASSERT_NCCL(ncclCommWindowRegister(comm, memory, sizeof(int), &window, 0));
      if (rank == 1) {
        EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, nullptr));
        raise(SIGKILL);
      }
      EXPECT_NCCL(wait_for(comm, 1, 1));
      EXPECT_EQ(wait_for(comm, 1, 1), ncclRemoteError);
      expect_error_with({"ncclWaitSignal", "rank 1"});
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
    EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
  }
}

// A rank that is done leaves; the others' messages go on.
TEST(NcclOneSidedProcesses, ARankMayLeaveWhileOthersStillWrite) {
  int gone[2];
  ASSERT_EQ(pipe(gone), 0);
  const std::vector<int> statuses = run_processes(3, [&](int rank, ncclComm_t comm) {
    std::vector<int> memory(10);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), 40, &window, 0));
    meet(comm);
    if (rank == 0) {
      EXPECT_NCCL(ncclCommDestroy(comm));
      EXPECT_EQ(write(gone[1], "..", 2), 2);
      return;
    }
    char byte = 0;
    EXPECT_EQ(read(gone[0], &byte, 1), 1);
    const int peer = 3 - rank;
    for (int i = 0; i < 50; ++i) {
      EXPECT_NCCL(ncclPutSignal(&i, 1, ncclInt, peer, window, 0, 0, 0, 0, comm, nullptr));
      EXPECT_NCCL(wait_for(comm, peer, 1));
    }
    EXPECT_EQ(memory[0], 49);
    // Not before the peer has had its last answer.
    EXPECT_NCCL(ncclSignal(peer, 0, 0, 0, comm, nullptr));
    EXPECT_NCCL(wait_for(comm, peer, 1));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0}));
  close(gone[0]);
  close(gone[1]);
}

TEST(NcclOneSidedProcesses, AProcessMayExitWithoutDestroyingItsCommunicator) {
  const std::vector<int> statuses = run_processes(2, [](int rank, ncclComm_t comm) {
    std::vector<int> memory(10);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), 40, &window, 0));
    EXPECT_NCCL(ncclPutSignal(&rank, 1, ncclInt, 1 - rank, window, 0, 0, 0, 0, comm, nullptr));
    EXPECT_NCCL(wait_for(comm, 1 - rank, 1));
    EXPECT_EQ(memory[0], 1 - rank);
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

TEST(NcclOneSidedProcesses, AWriteToAWindowThatIsGoneIsRefused) {
  const std::vector<int> statuses = run_processes(2, [](int rank, ncclComm_t comm) {
    std::vector<int> memory(10);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), 40, &window, 0));
    if (rank == 1) {
      EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    }
    meet(comm);
    if (rank == 0) {
      const int value = 1;
      EXPECT_EQ(ncclPutSignal(&value, 1, ncclInt, 1, window, 0, 0, 0, 0, comm, nullptr),
                ncclRemoteError);
      expect_error_with({"ncclPutSignal", "rank 1", "has deregistered its window"});
    }
    meet(comm);
    EXPECT_EQ(memory, std::vector<int>(10));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
}

constexpr std::chrono::seconds kPutsEndAfter{20};

// Rank 1 ends its part of a window and uses its memory for something else, while rank 0 puts to it
// without a pause.
void put_during_end(MemoryKind kind, bool destroys) {
  constexpr size_t kBytes = size_t{1} << 20;
  int begun[2];
  int refused[2];
  ASSERT_EQ(pipe(begun), 0);
  ASSERT_EQ(pipe(refused), 0);
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    WindowMemory memory(kind, kBytes);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.base(), kBytes, &window, 0));
    char byte = 0;
    if (rank == 1) {
      EXPECT_EQ(read(begun[0], &byte, 1), 1);
      EXPECT_NCCL(destroys ? ncclCommDestroy(comm) : ncclCommWindowDeregister(comm, window));
      memory.fill(0x55);
      EXPECT_EQ(read(refused[0], &byte, 1), 1);
      EXPECT_TRUE(memory.holds_only(0x55));
      memory.free();
      if (!destroys) {
        EXPECT_NCCL(ncclCommDestroy(comm));
      }
      return;
    }
    const std::vector<unsigned char> data(kBytes, 1);
    ncclResult_t result = ncclSuccess;
    const auto until = std::chrono::steady_clock::now() + kPutsEndAfter;
    for (int puts = 0; result == ncclSuccess && std::chrono::steady_clock::now() < until; ++puts) {
      result = ncclPutSignal(data.data(), kBytes, ncclUint8, 1, window, 0, 0, 0, 0, comm, nullptr);
      if (puts == 0) {
        EXPECT_EQ(write(begun[1], ".", 1), 1);
      }
    }
    EXPECT_EQ(result, ncclRemoteError);
    expect_error_with({"ncclPutSignal", "rank 1"});
    EXPECT_EQ(write(refused[1], ".", 1), 1);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 0}));
  for (const int fd : {begun[0], begun[1], refused[0], refused[1]}) close(fd);
}

TEST(NcclOneSidedProcesses, APartEndsBeforeOrAfterEveryPutInProgress) {
  for (const MemoryKind kind : kMemoryKinds) {
    for (const bool destroys : {false, true}) put_during_end(kind, destroys);
  }
}

// It may have died in the middle of a put.
TEST(NcclOneSidedProcesses, TheEndOfAPartDoesNotWaitForAWriterThatDied) {
  constexpr size_t kBytes = size_t{1} << 26;
  int begun[2];
  ASSERT_EQ(pipe(begun), 0);
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    WindowMemory memory(MemoryKind::kAllocated, kBytes);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.base(), kBytes, &window, 0));
    if (rank == 1) {
      pid_t writer = 0;
      EXPECT_EQ(read(begun[0], &writer, sizeof writer), static_cast<ssize_t>(sizeof writer));
      usleep(20'000);  // most of the time the writer copies
      kill(writer, SIGKILL);
      EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
      EXPECT_NCCL(ncclCommDestroy(comm));
      return;
    }
    const pid_t self = getpid();
    const std::vector<unsigned char> data(kBytes, 1);
    EXPECT_EQ(write(begun[1], &self, sizeof self), static_cast<ssize_t>(sizeof self));
    for (;;) {
      (void)ncclPutSignal(data.data(), kBytes, ncclUint8, 1, window, 0, 0, 0, 0, comm, nullptr);
    }
  });
  EXPECT_EQ(statuses, (std::vector<int>{128 + SIGKILL, 0}));
  close(begun[0]);
  close(begun[1]);
}

}  // namespace
}  // namespace weir::nccl::test
