// SPDX-License-Identifier: Apache-2.0
// Collectives that copy from device to device: on a CUDA whose device memory no host can touch,
// with all ranks in this process; and with what cannot go that way beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "nccl/direct/direct_support.h"
#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

using NcclDirect = DirectTest;
using NcclDirectGraphs = NcclDirect;
using NcclDirectFaults = NcclDirect;

// Above the size from which ranks copy directly, also of one block.
constexpr size_t kCount = 30011;
constexpr Kind kCopies[] = {Kind::kBroadcast, Kind::kAllGather, Kind::kAlltoAll, Kind::kGather,
                            Kind::kScatter};

void call_all(const StreamRanks& ranks, const Exchange& it) {
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < ranks.size(); ++r) {
    EXPECT_NCCL(it.call_on(r, ranks.comm(r), ranks.stream(r)));
  }
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
}

TEST_F(NcclDirect, WhatIsOnlyCopiedDoesNotPassThroughHostMemory) {
  const StreamRanks ranks(3);
  int seed = 0;
  for (const Kind kind : kCopies) {
    for (const int root : {0, 2}) {
      const Exchange it(kind, 3, kCount, root, seed++, device);
      const int before = host_copies();
      call_all(ranks, it);
      EXPECT_EQ(host_copies(), before) << "kind " << static_cast<int>(kind);
      it.check();
    }
  }
}

TEST_F(NcclDirect, CallsNeedNoGroupAndReturnBeforeTheirStreams) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(3);
  const Exchange first(Kind::kAllGather, 3, kCount, 0, 1, device);
  const Exchange second(Kind::kBroadcast, 3, kCount, 1, 2, device);
  Gate gate(ranks.stream(1));
  for (int r = 0; r < 3; ++r) {
    EXPECT_NCCL(first.call_on(r, ranks.comm(r), ranks.stream(r)));
    EXPECT_NCCL(second.call_on(r, ranks.comm(r), ranks.stream(r)));
  }
  for (int r = 0; r < 3; ++r) EXPECT_FALSE(ranks.stream(r).idle());
  gate.open();
  ranks.synchronize();
  first.check();
  second.check();
}

TEST_F(NcclDirect, InPlaceToo) {
  const StreamRanks ranks(3);
  for (const Kind kind : kCopies) {
    const int root = 1;
    const size_t count = kCount;
    std::vector<Array> buffers;
    std::vector<std::vector<int>> sends;
    for (int r = 0; r < 3; ++r) {
      buffers.emplace_back(MemoryKind::kDevice, 3 * count);
      buffers.back().set(numbers(3 * count, r, 4));
    }
    const auto block = [&](int r) {
      return buffers[static_cast<size_t>(r)].data() + static_cast<size_t>(r) * count;
    };
    for (int r = 0; r < 3; ++r) {
      const auto all = numbers(3 * count, r, 4);
      const bool own_block = kind == Kind::kAllGather || kind == Kind::kGather;
      const auto begin = all.begin() + (own_block ? static_cast<std::ptrdiff_t>(r * count) : 0);
      const size_t size = send_size(kind, 3, count);
      sends.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(size));
    }
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      int* whole = buffers[static_cast<size_t>(r)].data();
      const bool own_block = kind == Kind::kAllGather || kind == Kind::kGather;
      int* recv = kind == Kind::kScatter ? block(r) : whole;
      EXPECT_NCCL(call(kind, own_block ? block(r) : whole, recv, count, root, ranks.comm(r),
                       ranks.stream(r).nccl()));
    }
    ASSERT_NCCL(ncclGroupEnd());
    ranks.synchronize();
    for (int r = 0; r < 3; ++r) {
      const auto wanted = expected(kind, sends, r, count, root);
      auto got = buffers[static_cast<size_t>(r)].get();
      if (kind == Kind::kScatter)
        got.erase(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(r * count));
      if (!wanted.empty()) {
        got.resize(wanted.size());
        EXPECT_EQ(got, wanted) << "kind " << static_cast<int>(kind) << ", rank " << r;
      }
    }
  }
}

TEST_F(NcclDirect, RanksMayHaveMemoryOfAnyKind) {
  const StreamRanks ranks(3);
  int seed = 0;
  for (const Kind kind : kKinds) {
    const Exchange it(kind, 3, kCount, seed % 3, seed,
                      [&](int i) { return static_cast<MemoryKind>((i * i + seed) % 3); });
    ++seed;
    call_all(ranks, it);
    it.check();
    const Exchange again(kind, 3, kCount, seed % 3, seed, device);
    const int before = host_copies();
    call_all(ranks, again);
    const bool copies =
        kind != Kind::kAllReduce && kind != Kind::kReduce && kind != Kind::kReduceScatter;
    if (copies || WEIR_TEST_HAS_KERNELS == 1) {
      EXPECT_EQ(host_copies(), before) << "kind " << static_cast<int>(kind);
    }
    again.check();
  }
}

TEST_F(NcclDirect, OperationsOfAGroupMixWithThoseOutsideOfOne) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Array out(MemoryKind::kDevice, 2 * kCount);
  const Array in(MemoryKind::kDevice, 2 * kCount);
  for (int round = 0; round < 3; ++round) {
    const Exchange all(Kind::kAllGather, 2, kCount, 0, 1 + round, device);
    const Exchange sum(Kind::kAllReduce, 2, kCount, 0, 2 + round, device);
    const Exchange swap(Kind::kAlltoAll, 2, kCount, 0, 3 + round, device);
    out.set(numbers(2 * kCount, 0, 10 + round));
    in.set(std::vector<int>(2 * kCount, kUntouched));
    // One rank receives first, of many pieces; the other has all in one group, in another order.
    EXPECT_NCCL(ncclRecv(in.data(), in.size(), ncclInt, 0, ranks.comm(1), ranks.stream(1).nccl()));
    for (const Exchange* it : {&all, &sum, &swap}) {
      EXPECT_NCCL(it->call_on(1, ranks.comm(1), ranks.stream(1)));
    }
    EXPECT_NCCL(ncclGroupStart());
    EXPECT_NCCL(all.call_on(0, ranks.comm(0), ranks.stream(0)));
    EXPECT_NCCL(
        ncclSend(out.data(), out.size(), ncclInt, 1, ranks.comm(0), ranks.stream(0).nccl()));
    EXPECT_NCCL(ncclGroupEnd());
    for (const Exchange* it : {&sum, &swap}) {
      EXPECT_NCCL(it->call_on(0, ranks.comm(0), ranks.stream(0)));
    }
    ranks.synchronize();
    all.check();
    sum.check();
    swap.check();
    EXPECT_EQ(in.get(), numbers(2 * kCount, 0, 10 + round));
  }
}

TEST_F(NcclDirect, CollectivesOfOneGroupKeepTheirOrderWhateverTheirSizesAndMemory) {
  const StreamRanks ranks(3);
  for (int round = 0; round < 4; ++round) {
    std::vector<Exchange> all;
    int seed = round;
    for (const size_t count : {size_t{100}, kCount, size_t{700}}) {
      for (const Kind kind : kKinds) {
        const int of_call = seed++;
        all.emplace_back(kind, 3, count, of_call % 3, of_call, [&](int i) {
          // In the first round all of it lies on devices.
          return round == 0 ? MemoryKind::kDevice : static_cast<MemoryKind>((i + of_call) % 4 % 3);
        });
      }
    }
    ASSERT_NCCL(ncclGroupStart());
    for (int r = 0; r < 3; ++r) {
      for (const Exchange& it : all) {
        EXPECT_NCCL(it.call_on(r, ranks.comm(r), ranks.stream(r)));
      }
    }
    ASSERT_NCCL(ncclGroupEnd());
    ranks.synchronize();
    for (int r = 0; r < 3; ++r) EXPECT_EQ(async_error(ranks.comm(r)), ncclSuccess);
    for (const Exchange& it : all) it.check();
  }
}

TEST_F(NcclDirect, RanksWithoutAStreamTakePartWithHostMemory) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  for (const Kind kind : kKinds) {
    std::vector<std::vector<int>> values;
    for (int r = 0; r < 3; ++r) values.push_back(numbers(send_size(kind, 3, kCount), r, 7));
    std::barrier ended(3);  // freeing memory waits for the device, with a lock that others need
    run_threads(3, [&](int rank, ncclComm_t comm) {
      const size_t recv = recv_size(kind, 3, kCount);
      const auto i = static_cast<size_t>(rank);
      std::vector<int> got(recv);
      if (rank == 1) {  // its thread has no context
        EXPECT_NCCL(call(kind, values[i].data(), got.data(), kCount, 2, comm, nullptr));
        ended.arrive_and_wait();
      } else {
        use_device_of(rank);
        const Stream stream;
        const Array in(MemoryKind::kDevice, values[i].size());
        const Array out(MemoryKind::kDevice, recv);
        in.set(values[i], stream);
        EXPECT_NCCL(call(kind, in.data(), out.data(), kCount, 2, comm, stream.nccl()));
        stream.synchronize();
        got = out.get(stream);
        ended.arrive_and_wait();
      }
      const auto wanted = expected(kind, values, rank, kCount, 2);
      if (!wanted.empty()) {
        EXPECT_EQ(got, wanted) << "kind " << static_cast<int>(kind);
      }
    });
  }
}

TEST_F(NcclDirect, OneThreadWithoutAStreamHoldsAllRanks) {
  std::thread([] {
    const AllRanks ranks(3);
    std::vector<std::vector<int>> sends;
    std::vector<std::vector<int>> recvs(3, std::vector<int>(3 * kCount));
    for (int r = 0; r < 3; ++r) sends.push_back(numbers(3 * kCount, r, 2));
    for (const Kind kind : kKinds) {
      ASSERT_NCCL(ncclGroupStart());
      for (int r = 0; r < 3; ++r) {
        const auto i = static_cast<size_t>(r);
        EXPECT_NCCL(call(kind, sends[i].data(), recvs[i].data(), kCount, 0, ranks[r], nullptr));
      }
      ASSERT_NCCL(ncclGroupEnd());
      for (int r = 0; r < 3; ++r) {
        const auto wanted = expected(kind, sends, r, kCount, 0);
        auto got = recvs[static_cast<size_t>(r)];
        got.resize(wanted.size());
        EXPECT_EQ(got, wanted) << "kind " << static_cast<int>(kind);
      }
    }
  }).join();
}

TEST_F(NcclDirect, DifferentDevicesOfOneProcess) {
  WEIR_NEEDS_DEVICES(2);
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  run_threads(2, [](int rank, ncclComm_t comm) {
    use_device(rank);
    const Stream stream;
    const Array in(MemoryKind::kDevice, kCount);
    const Array out(MemoryKind::kDevice, 2 * kCount);
    in.set(numbers(kCount, rank, 1));
    EXPECT_NCCL(ncclAllGather(in.data(), out.data(), kCount, ncclInt, comm, stream.nccl()));
    stream.synchronize();
    EXPECT_EQ(out.get(), expected(Kind::kAllGather, {numbers(kCount, 0, 1), numbers(kCount, 1, 1)},
                                  rank, kCount, 0));
  });
}

// Of more than 128 KiB. Between processes: direct_windows_test.cc.
TEST_F(NcclDirect, BuffersInWindowsAreUsedWhereTheyLie) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "there are no kernels";
  constexpr size_t kLarge = 50'021;
  for (const bool shared : {false, true}) {
    run_threads(2, [&](int rank, ncclComm_t first) {
      use_device(shared ? 0 : rank);
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
      const Stream stream;
      const Array memory(MemoryKind::kDevice, 3 * kLarge);
      ncclWindow_t window = nullptr;
      ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), 3 * kLarge * sizeof(int), &window,
                                         NCCL_WIN_COLL_SYMMETRIC));
      std::vector<int> values = numbers(kLarge, rank, 1);
      values.resize(3 * kLarge);
      memory.set(values);
      int* const gathered = memory.data() + kLarge;
      EXPECT_NCCL(ncclAllGather(memory.data(), gathered, kLarge, ncclInt, comm, stream.nccl()));
      EXPECT_NCCL(ncclAllReduce(memory.data(), memory.data(), kLarge, ncclInt, ncclMax, comm,
                                stream.nccl()));
      stream.synchronize();
      const std::vector<int> got = memory.get();
      const std::vector<int> all[] = {numbers(kLarge, 0, 1), numbers(kLarge, 1, 1)};
      for (size_t i = 0; i < kLarge; ++i) {
        ASSERT_EQ(got[i], std::max(all[0][i], all[1][i])) << i;
        ASSERT_EQ(got[kLarge + i], all[0][i]) << i;
        ASSERT_EQ(got[2 * kLarge + i], all[1][i]) << i;
      }
      EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST_F(NcclDirectGraphs, EveryLaunchOfAGraphCopiesAgain) {
  WEIR_NEEDS_QUEUES(8);
  run_device_threads(3, [](int rank, ncclComm_t comm) {
    const Stream stream;
    const Array mine(MemoryKind::kDevice, kCount);
    const Array all(MemoryKind::kDevice, 3 * kCount);
    const Array swapped(MemoryKind::kDevice, 3 * kCount);
    const auto calls = [&] {
      EXPECT_NCCL(ncclAllGather(mine.data(), all.data(), kCount, ncclInt, comm, stream.nccl()));
      EXPECT_NCCL(ncclAlltoAll(all.data(), swapped.data(), kCount, ncclInt, comm, stream.nccl()));
    };
    launch_again_and_again(stream, mine, rank, calls, [&](int round) {
      const auto own = numbers(kCount, rank, round);
      const auto got = swapped.get();
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], own[i % kCount]) << round;
    });
  });
}

// ---- What goes wrong ----------------------------------------------------------------------------

TEST_F(NcclDirect, AbortReleasesAStreamWhosePeerNeverComes) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Array in(MemoryKind::kDevice, kCount);
  const Array out(MemoryKind::kDevice, 2 * kCount);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NCCL(ncclAllGather(in.data(), out.data(), kCount, ncclInt, comms[0], stream.nccl()));
  }
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  stream.synchronize();
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

TEST_F(NcclDirect, APeersAbortReleasesTheStreamAndIsTold) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Array in(MemoryKind::kDevice, kCount);
  const Array out(MemoryKind::kDevice, 2 * kCount);
  EXPECT_NCCL(ncclAllGather(in.data(), out.data(), kCount, ncclInt, comms[0], stream.nccl()));
  EXPECT_NCCL(ncclCommAbort(comms[1]));
  stream.synchronize();
  EXPECT_EQ(async_error(comms[0]), ncclRemoteError);
  EXPECT_NCCL(ncclCommAbort(comms[0]));
}

TEST_F(NcclDirect, RanksThatDisagreeAreToldAndReleased) {
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  std::vector<Array> in;
  std::vector<Array> out;
  for (int r = 0; r < 2; ++r) {
    in.emplace_back(MemoryKind::kDevice, 2 * kCount);
    out.emplace_back(MemoryKind::kDevice, 4 * kCount);
    const auto count = kCount + static_cast<size_t>(r);
    EXPECT_NCCL(ncclAllGather(in.back().data(), out.back().data(), count, ncclInt, ranks.comm(r),
                              ranks.stream(r).nccl()));
  }
  ranks.synchronize();
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(async_error(ranks.comm(r)), ncclInvalidUsage);
    const std::string text = ncclGetLastError(ranks.comm(r));
    EXPECT_EQ(text.find("ncclAllGather, rank " + std::to_string(r) + " of 2: "), 0U) << text;
    for (const char* called : {"rank 0 called ncclAllGather(ncclInt32, count 30011);",
                               "rank 1 called ncclAllGather(ncclInt32, count 30012);"}) {
      EXPECT_NE(text.find(called), std::string::npos) << text;
    }
  }
}

// Which the strict libcuda brings about, in the call of rank 1. Nothing of it is on the stream: it
// may be repeated.
TEST_F(NcclDirectFaults, ACallOfWhichCudaRefusesTheFirstPartMayBeRepeated) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES(8);
  const StreamRanks ranks(2);
  const Exchange it(Kind::kAllGather, 2, kCount, 0, 1, device);
  EXPECT_NCCL(it.call_on(0, ranks.comm(0), ranks.stream(0)));
  strict_cuda_fail("cuStreamBatchMemOp", 0);
  EXPECT_EQ(it.call_on(1, ranks.comm(1), ranks.stream(1)), ncclUnhandledCudaError);
  EXPECT_NE(std::string(ncclGetLastError(ranks.comm(1))).find("cuStreamBatchMemOp"),
            std::string::npos);
  EXPECT_NCCL(it.call_on(1, ranks.comm(1), ranks.stream(1)));
  ranks.synchronize();
  for (int r = 0; r < 2; ++r) EXPECT_EQ(async_error(ranks.comm(r)), ncclSuccess);
  it.check();
}

TEST_F(NcclDirectFaults, ACallOfWhichCudaRefusesAnotherPartIsToldToThePeerAndHoldsUpNobody) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES(8);
  for (const char* function : {"cuMemcpyAsync", "cuStreamBatchMemOp"}) {
    ncclComm_t comms[2] = {};
    ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    const std::vector<Stream> streams = streams_of_ranks(2);
    const Exchange it(Kind::kAllGather, 2, kCount, 0, 1, device);
    EXPECT_NCCL(it.call_on(0, comms[0], streams[0]));
    strict_cuda_fail(function, function[2] == 'M' ? 0 : 1);
    EXPECT_EQ(it.call_on(1, comms[1], streams[1]), ncclUnhandledCudaError);
    for (const Stream& stream : streams) stream.synchronize();
    EXPECT_EQ(async_error(comms[1]), ncclUnhandledCudaError);
    EXPECT_EQ(async_error(comms[0]), ncclRemoteError);
    const std::string text = ncclGetLastError(comms[0]);
    EXPECT_NE(text.find(std::string("rank 1 of 2 failed: ncclAllGather: ") + function),
              std::string::npos)
        << text;
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommAbort(comm));
  }
}

}  // namespace
}  // namespace weir::nccl::test
