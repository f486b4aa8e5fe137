// SPDX-License-Identifier: Apache-2.0
// Collectives that are work of the program's stream alone, between processes that share one device
// of the strict libcuda, with the hardware queues that CUDA_DEVICE_MAX_CONNECTIONS says.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nccl/direct/rank_processes.h"
#include "nccl/stream/graph_support.h"
#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kCount = 30011;

// One rank's buffers of a call, and what must come of it.
struct Call {
  Call(const Rank& on, Kind the_kind, size_t the_count, int the_root, int the_seed,
       MemoryKind in = MemoryKind::kDevice, MemoryKind out = MemoryKind::kDevice)
      : rank(on),
        kind(the_kind),
        count(the_count),
        root(the_root),
        seed(the_seed),
        send(in, send_size(kind, static_cast<size_t>(on.size()), count)),
        recv(out, recv_size(kind, static_cast<size_t>(on.size()), count)) {
    fill(seed);
  }
  void fill(int with) {
    seed = with;
    send.set(numbers(send.size(), rank.rank(), seed));
    recv.set(std::vector<int>(recv.size(), kUntouched));
  }
  void enqueue(const Stream& stream) const {
    EXPECT_NCCL(call(kind, send.data(), recv.data(), count, root, rank.comm(), stream.nccl()));
  }
  void check() const {
    std::vector<std::vector<int>> all;
    for (int r = 0; r < rank.size(); ++r) all.push_back(numbers(send.size(), r, seed));
    const auto wanted = expected(kind, all, rank.rank(), count, root);
    if (wanted.empty()) return;
    EXPECT_EQ(recv.get(), wanted) << "kind " << static_cast<int>(kind) << ", count " << count
                                  << ", rank " << rank.rank() << " of " << rank.size();
  }

  const Rank& rank;
  const Kind kind;
  const size_t count;
  const int root;
  int seed;
  Array send;
  Array recv;
};

TEST(NcclStreamProcesses, EveryCollectiveOfEverySizeIsWorkOfItsStream) {
  for (const int n : {2, 3, 4}) {
    run_on(n, [](const Rank& rank) {
      const Stream stream;
      int seed = 0;
      for (const Kind kind : kKinds) {
        for (const size_t count : {size_t{2}, size_t{1000}, kCount, size_t{150001}}) {
          const Call it(rank, kind, count, seed % rank.size(), seed);
          ++seed;
          stream.synchronize();
          const int before = host_copies();
          it.enqueue(stream);
          stream.synchronize();
          EXPECT_EQ(host_copies(), before);
          it.check();
        }
      }
    });
  }
}

TEST(NcclStreamProcesses, CallsAreEnqueuedFarAheadByRanksThatComeAtDifferentTimes) {
  run_on(3, [](const Rank& rank) {
    const Stream stream;
    std::vector<Call> calls;
    calls.reserve(24);
    for (int i = 0; i < 24; ++i) {
      calls.emplace_back(rank, kKinds[i % 8], i % 5 == 0 ? kCount : size_t{700}, i % rank.size(),
                         i);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank.rank()));
    for (const Call& it : calls) it.enqueue(stream);
    stream.synchronize();
    for (const Call& it : calls) it.check();
  });
}

TEST(NcclStreamProcesses, BuffersMayLieInMemoryOfAnyKindAndDifferBetweenRanks) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    int seed = 0;
    for (const Kind kind : kKinds) {
      for (int i = 0; i < 4; ++i) {
        const auto in = static_cast<MemoryKind>((seed + rank.rank()) % 3);
        const auto out = static_cast<MemoryKind>((seed / 2 + 2 * rank.rank()) % 3);
        const Call it(rank, kind, i % 2 == 0 ? 900 : kCount, seed % 2, seed, in, out);
        ++seed;
        it.enqueue(stream);
        stream.synchronize();
        it.check();
      }
    }
  });
}

// A copy of CUDA's from memory of the host to memory of the host waits for its stream.
TEST(NcclStreamProcesses, CallsReturnBeforeTheirStreamsWhateverMemoryOfTheHostTheyUse) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    constexpr MemoryKind kOnHost[] = {MemoryKind::kPinned, MemoryKind::kHost};
    std::vector<Call> calls;
    calls.reserve(64);
    for (const Kind kind : kKinds) {
      for (const MemoryKind in : kOnHost) {
        for (const MemoryKind out : kOnHost) {
          calls.emplace_back(rank, kind, size_t{900}, 0, static_cast<int>(calls.size()), in, out);
        }
      }
    }
    Gate gate(stream);
    std::atomic<bool> called = false;
    std::atomic<bool> late = false;
    std::thread opener([&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!called && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      late = !called;
      gate.open();
    });
    for (const Call& it : calls) it.enqueue(stream);
    called = true;
    opener.join();
    EXPECT_FALSE(late);
    stream.synchronize();
    for (const Call& it : calls) it.check();
  });
}

TEST(NcclStreamProcesses, AGroupOfCollectivesKeepsItsOrder) {
  run_on(3, [](const Rank& rank) {
    const Stream stream;
    std::vector<Call> calls;
    calls.reserve(16);
    for (int i = 0; i < 16; ++i) {
      calls.emplace_back(rank, kKinds[i % 8], i % 3 == 0 ? kCount : size_t{90}, i % 3, i);
    }
    EXPECT_NCCL(ncclGroupStart());
    for (const Call& it : calls) it.enqueue(stream);
    EXPECT_NCCL(ncclGroupEnd());
    stream.synchronize();
    for (const Call& it : calls) it.check();
  });
}

// PyTorch gives collectives a stream of high priority. Whether a driver keeps the queues of
// priorities apart is not known (driver_probe alias), so this is of the strict libcuda alone.
TEST(NcclStreamProcesses, CollectivesOnAnUrgentStreamPassAStreamThatWaits) {
  if (strict_cuda_host_copies == nullptr || std::getenv("STRICT_CUDA_PRIORITIES") != nullptr) {
    GTEST_SKIP() << "streams of all priorities may share hardware queues";
  }
  run_on(2, [](const Rank& rank) {
    int least = 0;
    int greatest = 0;
    EXPECT_CUDA(cuCtxGetStreamPriorityRange(&least, &greatest));
    const Stream waits(least);
    const Stream urgent(greatest);
    const Call sum(rank, Kind::kAllReduce, 4 * kCount, 0, 1);
    const Call all(rank, Kind::kAllGather, kCount, 0, 2);
    Gate gate(waits);
    sum.enqueue(urgent);
    all.enqueue(urgent);
    urgent.synchronize();
    EXPECT_FALSE(waits.idle());
    gate.open();
    waits.synchronize();
    sum.check();
    all.check();
  });
}

// What frees memory waits for the device, with the lock of the context; so does what loads a
// kernel for the first time.
TEST(NcclStreamProcesses, AProgramMayFreeMemoryAndLoadKernelsWhileOperationsWaitForALatePeer) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    Call first(rank, Kind::kAllReduce, 4 * kCount, 0, 1);
    Call second(rank, Kind::kAllGather, kCount, 0, 2);
    for (int round = 0; round < 3; ++round) {
      first.fill(3 * round);
      second.fill(3 * round + 1);
      auto spare = std::make_unique<Array>(MemoryKind::kDevice, kCount);
      if (rank.rank() == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      first.enqueue(stream);
      second.enqueue(stream);
      if (round == 2 && strict_cuda_load_lazily != nullptr) strict_cuda_load_lazily();
      spare.reset();
      stream.synchronize();
      first.check();
      second.check();
    }
  });
}

TEST(NcclStreamProcessesGraphs, AGraphIsLaunchedAHundredTimesByEachRankAtItsOwnTime) {
  run_on(3, [](const Rank& rank) {
    const Stream stream;
    std::mt19937 random(static_cast<unsigned>(rank.rank()));
    {
      Call sum(rank, Kind::kAllReduce, kCount, 0, 1);
      Call all(rank, Kind::kAllGather, 500, 0, 2);
      const Graph graph(stream, [&] {
        sum.enqueue(stream);
        all.enqueue(stream);
      });
      for (int launch = 0; launch < 100; ++launch) {
        // Some launches follow each other at once, on each rank others.
        const bool looks = launch % 10 == 9;
        if (launch % 10 == 0) {
          sum.fill(launch);
          all.fill(launch + 1);
        }
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        graph.launch(stream);
        if (!looks) continue;
        stream.synchronize();
        sum.check();
        all.check();
      }
    }
    EXPECT_EQ(async_error(rank.comm()), ncclSuccess);
  });
}

TEST(NcclStreamProcesses, AStreamGoesOnWhenAPeerHasDiedAndTheCommunicatorNamesIt) {
  EXPECT_EQ(run_processes(3,
                          [](int rank, ncclComm_t first) {
                            use_device_of(rank);
                            ncclComm_t comm = nullptr;
                            EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                            const Stream stream;
                            const Array data(MemoryKind::kDevice, kCount);
                            const auto sum = [&] {
                              return ncclAllReduce(data.data(), data.data(), kCount, ncclInt,
                                                   ncclSum, comm, stream.nccl());
                            };
                            EXPECT_NCCL(sum());
                            stream.synchronize();
                            if (rank == 1) _exit(0);
                            for (int i = 0; i < 3; ++i) EXPECT_NCCL(sum());
                            stream.synchronize();
                            EXPECT_EQ(async_error(comm), ncclRemoteError);
                            const std::string text = ncclGetLastError(comm);
                            EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
                            EXPECT_NCCL(ncclCommAbort(comm));
                          }),
            std::vector<int>(3, 0));
}

TEST(NcclStreamProcesses, ALaterLaunchOfAGraphOfOneCallGoesOnWhenAPeerHasDied) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            use_device_of(rank);
                            ncclComm_t comm = nullptr;
                            EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                            const Stream stream;
                            const Array data(MemoryKind::kDevice, kCount);
                            const Graph graph(stream, [&] {
                              EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt,
                                                        ncclSum, comm, stream.nccl()));
                            });
                            graph.launch(stream);
                            stream.synchronize();
                            if (rank == 1) _exit(0);
                            for (int i = 0; i < 2; ++i) {
                              graph.launch(stream);
                              stream.synchronize();
                            }
                            EXPECT_EQ(async_error(comm), ncclRemoteError);
                            EXPECT_NCCL(ncclCommAbort(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclStreamProcesses, AnAbortReleasesTheStreamsOfAllRanks) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            use_device_of(rank);
                            ncclComm_t comm = nullptr;
                            EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                            const Stream stream;
                            const Array data(MemoryKind::kDevice, kCount);
                            if (rank == 0) {
                              EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), kCount, ncclInt,
                                                        ncclSum, comm, stream.nccl()));
                              stream.synchronize();
                              EXPECT_EQ(async_error(comm), ncclRemoteError);
                            } else {
                              std::this_thread::sleep_for(std::chrono::milliseconds(100));
                            }
                            EXPECT_NCCL(ncclCommAbort(comm));
                          }),
            std::vector<int>(2, 0));
}

TEST(NcclStreamProcesses, RanksThatMakeDifferentCallsAreBothTold) {
  EXPECT_EQ(
      run_processes(2,
                    [](int rank, ncclComm_t first) {
                      use_device_of(rank);
                      ncclComm_t comm = nullptr;
                      EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                      const Stream stream;
                      const Array data(MemoryKind::kDevice, kCount + 1);
                      const size_t count = kCount + static_cast<size_t>(rank);
                      EXPECT_NCCL(ncclAllReduce(data.data(), data.data(), count, ncclInt, ncclSum,
                                                comm, stream.nccl()));
                      stream.synchronize();
                      EXPECT_EQ(async_error(comm), ncclInvalidUsage);
                      const std::string text = ncclGetLastError(comm);
                      for (const char* called : {"rank 0 called ncclAllReduce(", "count 30011)",
                                                 "rank 1 called ncclAllReduce(", "count 30012)"}) {
                        EXPECT_NE(text.find(called), std::string::npos) << text;
                      }
                      EXPECT_NCCL(ncclCommAbort(comm));
                    }),
      std::vector<int>(2, 0));
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// Scratch and flags of one serve the next.
TEST(NcclStreamProcesses, CommunicatorsComeAndGo) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    size_t before = 0;
    for (int round = 0; round < 12; ++round) {
      ncclComm_t comm = nullptr;
      EXPECT_NCCL(ncclCommSplit(rank.comm(), 0, rank.rank(), &comm, nullptr));
      Array data(MemoryKind::kDevice, kCount);
      data.set(std::vector<int>(kCount, round + rank.rank()));
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, comm, stream.nccl()));
      // What is enqueued still runs.
      EXPECT_NCCL(ncclCommDestroy(comm));
      stream.synchronize();
      EXPECT_EQ(data.get(), std::vector<int>(kCount, 2 * round + 1));
      // Memory of the strict libcuda's devices has a descriptor.
      if (round == 3) before = open_descriptors();
    }
    EXPECT_LE(open_descriptors(), before + 4);
  });
}

// Flags have a descriptor, and memory of the strict libcuda's device, too.
TEST(NcclStreamProcesses, CommunicatorsThatAreAbortedUnderAStreamLeaveNothing) {
  for (const bool as_message : {false, true}) {
    run_on(2, [&](const Rank& rank) {
      const Stream stream;
      const Array data(MemoryKind::kDevice, kCount);
      size_t before = 0;
      for (int round = 0; round < 30; ++round) {
        ncclComm_t comm = nullptr;
        EXPECT_NCCL(ncclCommSplit(rank.comm(), 0, rank.rank(), &comm, nullptr));
        // The call fails where the other rank has been faster after all.
        if (rank.rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
        } else if (as_message) {
          (void)ncclRecv(data.data(), kCount, ncclInt, 1, comm, stream.nccl());
        } else {
          (void)ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, comm,
                              stream.nccl());
        }
        EXPECT_NCCL(ncclCommAbort(comm));
        stream.synchronize();
        if (round == 9) before = open_descriptors();
      }
      // A rank may have left a communicator only after the next one was made.
      EXPECT_LE(open_descriptors(), before + 6);
    });
  }
}

TEST(NcclStreamProcesses, ARankThatAbortsAtOnceTakesTheCommunicatorFromNobody) {
  run_on(3, [&](const Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      ncclComm_t comm = nullptr;
      EXPECT_NCCL(ncclCommSplit(rank.comm(), 0, rank.rank(), &comm, nullptr)) << "round " << round;
      if (comm == nullptr) return;
      EXPECT_NCCL(ncclCommAbort(comm));
    }
  });
}

}  // namespace
}  // namespace weir::nccl::test
