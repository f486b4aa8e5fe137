// SPDX-License-Identifier: Apache-2.0
// Messages that are work of the program's stream alone, between processes that share one device of
// the strict libcuda, with the hardware queues that CUDA_DEVICE_MAX_CONNECTIONS says. No thread of
// a process but the program's may be needed while they run, so the tests also do between a call and
// its end what holds up such threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "nccl/direct/rank_processes.h"
#include "nccl/stream/graph_support.h"
#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

// Of some lanes; of more than the slots of a pair hold.
constexpr size_t kCount = 10007;
constexpr size_t kLong = 100003;

// One end of a message.
struct End {
  End(const Rank& on, bool the_sends, int the_peer, size_t the_count, int the_seed,
      MemoryKind kind = MemoryKind::kDevice)
      : rank(on),
        sends(the_sends),
        peer(the_peer),
        count(the_count),
        memory(kind, std::max(count, size_t{1})) {
    fill(the_seed);
  }
  void fill(int with) {
    seed = with;
    memory.set(sends ? values() : std::vector<int>(memory.size(), kUntouched));
  }
  std::vector<int> values() const {
    return count == 0 ? std::vector<int>(1, kUntouched)
                      : numbers(count, sends ? rank.rank() : peer, seed);
  }
  void enqueue(const Stream& stream) const {
    EXPECT_NCCL(sends ? ncclSend(memory.data(), count, ncclInt, peer, rank.comm(), stream.nccl())
                      : ncclRecv(memory.data(), count, ncclInt, peer, rank.comm(), stream.nccl()));
  }
  void check() const {
    EXPECT_EQ(memory.get(), values()) << count << " with rank " << peer << ", at " << rank.rank();
  }

  const Rank& rank;
  const bool sends;
  const int peer;
  const size_t count;
  int seed = 0;
  Array memory;
};

void enqueue_group(const std::vector<End>& ends, const Stream& stream) {
  EXPECT_NCCL(ncclGroupStart());
  for (const End& it : ends) it.enqueue(stream);
  EXPECT_NCCL(ncclGroupEnd());
}

// With every rank, itself included.
std::vector<End> all_to_all(const Rank& rank, size_t count, int seed) {
  std::vector<End> ends;
  ends.reserve(2 * static_cast<size_t>(rank.size()));
  for (int peer = 0; peer < rank.size(); ++peer) {
    ends.emplace_back(rank, true, peer, count, seed + rank.rank() * 100 + peer);
    ends.emplace_back(rank, false, peer, count, seed + peer * 100 + rank.rank());
  }
  return ends;
}

TEST(NcclStreamMessages, OfEverySizeAreWorkOfTheStreamAlone) {
  for (const int n : {2, 3, 4}) {
    run_on(n, [](const Rank& rank) {
      const Stream stream;
      int seed = 0;
      for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, kCount, kLong}) {
        const std::vector<End> ends = all_to_all(rank, count, ++seed);
        stream.synchronize();
        const int before = host_copies();
        enqueue_group(ends, stream);
        stream.synchronize();
        EXPECT_EQ(host_copies(), before);
        for (const End& it : ends) it.check();
      }
    });
  }
}

// One rank has the question and the answer in one group, the other in separate calls; both are
// longer than what the slots hold.
TEST(NcclStreamMessages, AnAnswerMayNeedAllOfTheQuestion) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    for (int round = 0; round < 4; ++round) {
      const int peer = 1 - rank.rank();
      const bool asks = rank.rank() == round % 2;
      std::vector<End> ends;
      ends.reserve(2);
      ends.emplace_back(rank, asks, peer, kLong, round);
      ends.emplace_back(rank, !asks, peer, kLong, round + 100);
      if (asks) {
        enqueue_group(ends, stream);
      } else {
        for (const End& it : ends) it.enqueue(stream);
      }
      stream.synchronize();
      for (const End& it : ends) it.check();
    }
  });
}

// Rank 0 sends to both others at once; each of them takes its message when it has one of the other.
TEST(NcclStreamMessages, OfDifferentPeersDoNotWaitForEachOther) {
  run_on(3, [](const Rank& rank) {
    const Stream stream;
    std::vector<End> ends;
    ends.reserve(3);
    if (rank.rank() == 0) {
      ends.emplace_back(rank, true, 1, kLong, 1);
      ends.emplace_back(rank, true, 2, kLong, 2);
      enqueue_group(ends, stream);
    } else if (rank.rank() == 1) {
      ends.emplace_back(rank, false, 2, kLong, 3);
      ends.emplace_back(rank, false, 0, kLong, 1);
      for (const End& it : ends) it.enqueue(stream);
    } else {
      ends.emplace_back(rank, false, 0, kLong, 2);
      ends.emplace_back(rank, true, 1, kLong, 3);
      for (const End& it : ends) it.enqueue(stream);
    }
    stream.synchronize();
    for (const End& it : ends) it.check();
  });
}

TEST(NcclStreamMessages, ManyOfOneGroupKeepTheOrderOfTheirPair) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    const int peer = 1 - rank.rank();
    std::vector<End> ends;
    ends.reserve(400);  // more than the parameters of a kernel hold
    for (int i = 0; i < 200; ++i) {
      const size_t count = i % 7 == 0 ? kCount : static_cast<size_t>(i % 5);
      ends.emplace_back(rank, true, peer, count, 1000 * rank.rank() + i);
      ends.emplace_back(rank, false, peer, count, 1000 * peer + i);
    }
    enqueue_group(ends, stream);
    stream.synchronize();
    for (const End& it : ends) it.check();
  });
}

// With few queues, too, since a kernel that waits holds up no other stream.
TEST(NcclStreamMessages, AGroupMixesThemWithCollectivesThatItsPeerCallsInAnotherOrder) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    const int peer = 1 - rank.rank();
    for (int round = 0; round < 6; ++round) {
      const bool groups = rank.rank() == round % 2;
      const bool first = round / 2 % 2 == 0;
      Array sum(MemoryKind::kDevice, kLong);
      sum.set(std::vector<int>(kLong, rank.rank() + round));
      const auto reduce = [&] {
        EXPECT_NCCL(ncclAllReduce(sum.data(), sum.data(), kLong, ncclInt, ncclSum, rank.comm(),
                                  stream.nccl()));
      };
      const End message(rank, groups == (round < 3), peer, kLong, round);
      EXPECT_NCCL(groups ? ncclGroupStart() : ncclSuccess);
      if (first == groups) reduce();
      message.enqueue(stream);
      if (first != groups) reduce();
      EXPECT_NCCL(groups ? ncclGroupEnd() : ncclSuccess);
      stream.synchronize();
      message.check();
      EXPECT_EQ(sum.get(), std::vector<int>(kLong, 1 + 2 * round));
    }
  });
}

TEST(NcclStreamMessages, BuffersMayLieInMemoryOfAnyKindAndDifferBetweenRanks) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    for (int round = 0; round < 9; ++round) {
      const auto kind = static_cast<MemoryKind>(rank.rank() == 0 ? round % 3 : round / 3);
      const auto other = static_cast<MemoryKind>(rank.rank() == 0 ? round / 3 : round % 3);
      const int peer = 1 - rank.rank();
      std::vector<End> ends;
      ends.reserve(3);
      ends.emplace_back(rank, true, peer, kCount, 10 * round + rank.rank(), kind);
      ends.emplace_back(rank, false, peer, kCount, 10 * round + peer, other);
      ends.emplace_back(rank, rank.rank() == 0, peer, kLong, 10 * round + 5, kind);
      enqueue_group(ends, stream);
      stream.synchronize();
      for (const End& it : ends) it.check();
    }
  });
}

// ---- What holds up threads of the host ----------------------------------------------------------

// What frees memory waits for the device, with the lock of the context; so does what loads a kernel
// for the first time.
TEST(NcclStreamMessages, AProgramMayFreeMemoryAndLoadKernelsWhileTheyWaitForALatePeer) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    for (int round = 0; round < 4; ++round) {
      const std::vector<End> ends = all_to_all(rank, kLong, round);
      auto spare = std::make_unique<Array>(MemoryKind::kDevice, kCount);
      if (rank.rank() == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      enqueue_group(ends, stream);
      if (round >= 2 && strict_cuda_load_lazily != nullptr) strict_cuda_load_lazily();
      spare.reset();
      stream.synchronize();
      for (const End& it : ends) it.check();
    }
  });
}

// A launch queue has room for 1024: the call that finds none waits with the lock of the context.
TEST(NcclStreamMessages, AProgramMayBeThreeThousandLaunchesAheadOfALatePeer) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    const std::vector<End> ends = all_to_all(rank, kLong, 1);
    const Array from(MemoryKind::kDevice, 16);
    const Array to(MemoryKind::kDevice, 16);
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    enqueue_group(ends, stream);
    for (int i = 0; i < 3000; ++i) {
      EXPECT_CUDA(cuMemcpyAsync(reinterpret_cast<uintptr_t>(to.data()),
                                reinterpret_cast<uintptr_t>(from.data()), 64, stream.get()));
    }
    stream.synchronize();
    for (const End& it : ends) it.check();
  });
}

TEST(NcclStreamMessages, CallsAreEnqueuedFarAheadByRanksThatComeAtDifferentTimes) {
  run_on(3, [](const Rank& rank) {
    const Stream stream;
    std::vector<std::vector<End>> groups;
    for (int i = 0; i < 40; ++i) {
      groups.push_back(all_to_all(rank, i % 5 == 0 ? kCount : size_t{70}, i));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50 * rank.rank()));
    for (const auto& it : groups) enqueue_group(it, stream);
    stream.synchronize();
    for (const auto& group : groups) {
      for (const End& it : group) it.check();
    }
  });
}

// ---- Random programs ----------------------------------------------------------------------------

// All ranks know all messages, in one order; each groups its own as it likes, on two streams.
TEST(NcclStreamMessages, WhateverEachRankGroupsAllGetWhatWasSent) {
  const char* const text = std::getenv("WEIR_TEST_SEED");
  const auto first = text != nullptr ? std::strtoul(text, nullptr, 10) : std::random_device()();
  std::printf("WEIR_TEST_SEED=%lu\n", static_cast<unsigned long>(first));
  for (unsigned long program = 0; program < 6; ++program) {
    run_on(2 + static_cast<int>(program % 3), [&](const Rank& rank) {
      std::mt19937_64 common(first + program);
      std::mt19937_64 own(first * 31 + program * 7 + static_cast<unsigned>(rank.rank()));
      const auto n = static_cast<unsigned>(rank.size());
      const Stream streams[2];
      for (int round = 0; round < 12; ++round) {
        constexpr size_t kSizes[] = {0, 1, 300, 5000, kCount, 40001, kLong};
        std::vector<std::unique_ptr<End>> mine;
        for (int i = 0; i < 24; ++i) {
          const auto from = static_cast<int>(common() % n);
          const auto to =
              static_cast<int>((static_cast<unsigned>(from) + 1 + common() % (n - 1)) % n);
          const size_t count = kSizes[common() % std::size(kSizes)];
          if (from == rank.rank()) mine.push_back(std::make_unique<End>(rank, true, to, count, i));
          if (to == rank.rank()) mine.push_back(std::make_unique<End>(rank, false, from, count, i));
        }
        for (size_t begin = 0; begin < mine.size();) {
          const size_t end = std::min(mine.size(), begin + 1 + own() % 6);
          // Another order, which keeps that of each pair and direction.
          for (size_t pass = begin; pass < end; ++pass) {
            for (size_t i = begin; i + 1 < end; ++i) {
              const bool ordered =
                  mine[i]->peer == mine[i + 1]->peer && mine[i]->sends == mine[i + 1]->sends;
              if (own() % 2 == 0 && !ordered) std::swap(mine[i], mine[i + 1]);
            }
          }
          const Stream& stream = streams[own() % 2];
          EXPECT_NCCL(ncclGroupStart());
          for (size_t i = begin; i < end; ++i) mine[i]->enqueue(stream);
          EXPECT_NCCL(ncclGroupEnd());
          begin = end;
        }
        for (const Stream& it : streams) it.synchronize();
        for (const auto& it : mine) it->check();
      }
    });
  }
}

// ---- Graphs -------------------------------------------------------------------------------------

TEST(NcclStreamMessagesGraphs, AGraphIsLaunchedAHundredTimesByEachRankAtItsOwnTime) {
  run_on(3, [](const Rank& rank) {
    const Stream stream;
    std::mt19937 random(static_cast<unsigned>(rank.rank()));
    {
      std::vector<End> all = all_to_all(rank, 3001, 1);
      std::vector<End> ring;
      ring.reserve(2);
      ring.emplace_back(rank, true, (rank.rank() + 1) % 3, kLong, 2);
      ring.emplace_back(rank, false, (rank.rank() + 2) % 3, kLong, 2);
      const Graph graph(stream, [&] {
        enqueue_group(all, stream);
        enqueue_group(ring, stream);
      });
      for (int launch = 0; launch < 100; ++launch) {
        // Some launches follow each other at once, on each rank others.
        const bool looks = launch % 10 == 9;
        if (launch % 10 == 0) {
          for (End& it : all) {
            it.fill(launch + (it.sends ? rank.rank() * 10 + it.peer : it.peer * 10 + rank.rank()));
          }
          for (End& it : ring) it.fill(launch + 7);
        }
        if (random() % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        graph.launch(stream);
        if (!looks) continue;
        stream.synchronize();
        for (const End& it : all) it.check();
        for (const End& it : ring) it.check();
      }
    }
    EXPECT_EQ(async_error(rank.comm()), ncclSuccess);
  });
}

// What the graph of one rank holds, the other calls without one.
TEST(NcclStreamMessagesGraphs, LaunchesMeetOrdinaryCalls) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    const bool captures = rank.rank() == 0;
    {
      std::vector<End> ends;
      ends.reserve(2);
      ends.emplace_back(rank, captures, 1 - rank.rank(), kLong, 1);
      ends.emplace_back(rank, !captures, 1 - rank.rank(), 50, 2);
      std::unique_ptr<Graph> graph;
      if (captures) graph = std::make_unique<Graph>(stream, [&] { enqueue_group(ends, stream); });
      for (int round = 0; round < 20; ++round) {
        ends[0].fill(round);
        ends[1].fill(round + 500);
        if (captures) {
          graph->launch(stream);
        } else {
          for (const End& it : ends) it.enqueue(stream);
        }
        stream.synchronize();
        for (const End& it : ends) it.check();
      }
    }
  });
}

// ---- What goes wrong ----------------------------------------------------------------------------

TEST(NcclStreamMessages, StreamsGoOnWhenAPeerHasDiedAndTheCommunicatorNamesIt) {
  EXPECT_EQ(run_processes(
                3,
                [](int rank, ncclComm_t first) {
                  use_device_of(rank);
                  ncclComm_t comm = nullptr;
                  EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                  const Stream stream;
                  const Array data(MemoryKind::kDevice, kLong);
                  const int peer = rank == 2 ? 1 : (rank + 1) % 2;
                  if (rank == 1) {
                    std::this_thread::sleep_for(std::chrono::milliseconds(100));
                    _exit(0);
                  }
                  EXPECT_NCCL(
                      rank == 0 ? ncclSend(data.data(), kLong, ncclInt, peer, comm, stream.nccl())
                                : ncclRecv(data.data(), kLong, ncclInt, peer, comm, stream.nccl()));
                  stream.synchronize();
                  EXPECT_EQ(async_error(comm), ncclRemoteError);
                  const std::string text = ncclGetLastError(comm);
                  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
                  EXPECT_NCCL(ncclCommAbort(comm));
                }),
            std::vector<int>(3, 0));
}

// The ranks that exchange messages do not need the one that has gone.
TEST(NcclStreamMessages, ARankThatLeavesIsNotMissedByOthers) {
  run_on(3, [](const Rank& rank) {
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclCommSplit(rank.comm(), 0, rank.rank(), &comm, nullptr));
    if (rank.rank() == 2) {
      EXPECT_NCCL(ncclCommDestroy(comm));
      return;
    }
    const Stream stream;
    Array data(MemoryKind::kDevice, kLong);
    data.set(std::vector<int>(kLong, rank.rank()));
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    EXPECT_NCCL(rank.rank() == 0 ? ncclSend(data.data(), kLong, ncclInt, 1, comm, stream.nccl())
                                 : ncclRecv(data.data(), kLong, ncclInt, 0, comm, stream.nccl()));
    stream.synchronize();
    EXPECT_EQ(async_error(comm), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(data.get(), std::vector<int>(kLong, 0));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclStreamMessages, ADeadlineNamesWhoDidNotCall) {
  EXPECT_EQ(
      run_processes(
          3,
          [](int rank, ncclComm_t first) {
            use_device_of(rank);
            ncclComm_t comm = nullptr;
            setenv("WEIR_TIMEOUT_MS", "700", 1);
            EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
            const Stream stream;
            const Array to(MemoryKind::kDevice, kCount);
            const Array from(MemoryKind::kDevice, kCount);
            const Array last(MemoryKind::kDevice, kCount);
            if (rank == 0) {
              EXPECT_NCCL(ncclGroupStart());
              EXPECT_NCCL(ncclSend(to.data(), kCount, ncclInt, 2, comm, stream.nccl()));
              EXPECT_NCCL(ncclRecv(from.data(), kCount, ncclInt, 1, comm, stream.nccl()));
              EXPECT_NCCL(ncclRecv(last.data(), kCount, ncclInt, 2, comm, stream.nccl()));
              EXPECT_NCCL(ncclGroupEnd());
              stream.synchronize();
              EXPECT_EQ(async_error(comm), ncclRemoteError);
              const std::string text = ncclGetLastError(comm);
              EXPECT_NE(text.find("rank 1 did not send what this rank receives"), std::string::npos)
                  << text;
            } else if (rank == 2) {
              EXPECT_NCCL(ncclRecv(from.data(), kCount, ncclInt, 0, comm, stream.nccl()));
              EXPECT_NCCL(ncclSend(to.data(), kCount, ncclInt, 0, comm, stream.nccl()));
              stream.synchronize();
            }
            if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(1));
            EXPECT_NCCL(ncclCommAbort(comm));
          }),
      std::vector<int>(3, 0));
}

TEST(NcclStreamMessages, AnAbortReleasesTheStreamsOfBothEnds) {
  EXPECT_EQ(run_processes(2,
                          [](int rank, ncclComm_t first) {
                            use_device_of(rank);
                            ncclComm_t comm = nullptr;
                            EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
                            const Stream stream;
                            const Array data(MemoryKind::kDevice, kLong);
                            EXPECT_NCCL(ncclRecv(data.data(), kLong, ncclInt, 1 - rank, comm,
                                                 stream.nccl()));
                            if (rank == 0) {
                              stream.synchronize();
                              EXPECT_EQ(async_error(comm), ncclRemoteError);
                              EXPECT_NCCL(ncclCommAbort(comm));
                            } else {
                              std::this_thread::sleep_for(std::chrono::milliseconds(100));
                              EXPECT_NCCL(ncclCommAbort(comm));
                              stream.synchronize();
                            }
                          }),
            std::vector<int>(2, 0));
}

// Scratch and counters of one serve the next, also where something was sent and not received.
TEST(NcclStreamMessages, CommunicatorsComeAndGo) {
  run_on(2, [](const Rank& rank) {
    const Stream stream;
    for (int round = 0; round < 6; ++round) {
      ncclComm_t comm = nullptr;
      EXPECT_NCCL(ncclCommSplit(rank.comm(), 0, rank.rank(), &comm, nullptr));
      Array data(MemoryKind::kDevice, kCount);
      const Array lost(MemoryKind::kDevice, 100);
      data.set(std::vector<int>(kCount, 10 * round + rank.rank()));
      EXPECT_NCCL(
          rank.rank() == round % 2
              ? ncclSend(data.data(), kCount, ncclInt, 1 - rank.rank(), comm, stream.nccl())
              : ncclRecv(data.data(), kCount, ncclInt, 1 - rank.rank(), comm, stream.nccl()));
      if (rank.rank() == 0) {
        EXPECT_NCCL(ncclSend(lost.data(), 100, ncclInt, 1, comm, stream.nccl()));
      }
      // What is enqueued still runs.
      EXPECT_NCCL(ncclCommDestroy(comm));
      stream.synchronize();
      EXPECT_EQ(data.get(), std::vector<int>(kCount, 10 * round + round % 2));
    }
  });
}

}  // namespace
}  // namespace weir::nccl::test
