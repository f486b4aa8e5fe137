// SPDX-License-Identifier: Apache-2.0
// Reductions that kernels of the library carry out on devices, with all ranks in this process:
// against the staged way, bit for bit, and what goes wrong.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "nccl/direct/direct_support.h"
#include "nccl/stream/graph_support.h"

namespace weir::nccl::test {
namespace {

// Both ways then fold in the order of the ranks.
const int kInOrder = setenv("WEIR_DETERMINISTIC", "1", 1);

// On the stand-in, too.
class NcclDirectReduce : public DirectTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(kInOrder, 0);
    DirectTest::SetUp();
  }
};
// On the strict libcuda alone.
class NcclDirectReduceFaults : public NcclDirectReduce {};

constexpr size_t kElementBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static_assert(sizeof kElementBytes / sizeof kElementBytes[0] == ncclNumTypes);
constexpr size_t kBytes = size_t{64} << 10;
constexpr size_t kCount = kBytes / sizeof(int) + 1001;

uint64_t seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  const uint64_t value = text == nullptr ? 20260802 : std::strtoull(text, nullptr, 10);
  std::cout << "WEIR_TEST_SEED=" << value << "\n";
  return value;
}

// Ranks that do not reach for each other's memory.
class StagedRanks {
 public:
  explicit StagedRanks(int n) : set_(setenv("NCCL_P2P_DISABLE", "1", 1)), ranks_(n) {
    unsetenv("NCCL_P2P_DISABLE");
  }
  const StreamRanks& operator*() const { return ranks_; }

 private:
  int set_;
  StreamRanks ranks_;
};

// A buffer of each rank, with room before and behind.
struct Buffers {
  Buffers(int n, size_t bytes) {
    for (int r = 0; r < n; ++r) arrays.emplace_back(MemoryKind::kDevice, bytes / sizeof(int) + 64);
  }
  char* at(int rank, size_t offset) const {
    return reinterpret_cast<char*>(arrays[static_cast<size_t>(rank)].data()) + offset;
  }
  void fill(std::mt19937_64& random) const {
    for (const Array& it : arrays) {
      std::vector<int> values(it.size());
      for (int& value : values) value = static_cast<int>(random());
      it.set(values);
    }
  }
  void copy_of(const Buffers& from) const {
    for (size_t i = 0; i < arrays.size(); ++i) arrays[i].set(from.arrays[i].get());
  }
  std::vector<std::vector<int>> get() const {
    std::vector<std::vector<int>> all;
    for (const Array& it : arrays) all.push_back(it.get());
    return all;
  }
  std::vector<Array> arrays;
};

struct Reduction {
  Kind kind;
  ncclDataType_t type;
  int op;  // ncclNumOps: a pre-multiplied sum
  size_t count;
  int root;
  bool in_place;
  std::vector<size_t> send_offsets;  // bytes, by rank
  std::vector<size_t> recv_offsets;
  std::vector<uint64_t> factors;
};

void run(const StreamRanks& ranks, const Reduction& it, const Buffers& send, const Buffers& recv) {
  const int n = ranks.size();
  std::vector<ncclRedOp_t> ops(static_cast<size_t>(n), static_cast<ncclRedOp_t>(it.op));
  for (int r = 0; r < n && it.op == ncclNumOps; ++r) {
    uint64_t factor = it.factors[static_cast<size_t>(r)];
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&ops[static_cast<size_t>(r)], &factor, it.type,
                                         ncclScalarHostImmediate, ranks.comm(r)));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < n; ++r) {
    const auto i = static_cast<size_t>(r);
    const size_t block = it.count * kElementBytes[it.type];
    char* from = send.at(r, it.send_offsets[i]);
    char* to = recv.at(r, it.recv_offsets[i]);
    const bool scatter = it.kind == Kind::kReduceScatter;
    if (it.in_place) to = from + (scatter ? i * block : 0);
    cudaStream_t stream = ranks.stream(r).nccl();
    if (it.kind == Kind::kAllReduce) {
      EXPECT_NCCL(ncclAllReduce(from, to, it.count, it.type, ops[i], ranks.comm(r), stream));
    } else if (scatter) {
      EXPECT_NCCL(ncclReduceScatter(from, to, it.count, it.type, ops[i], ranks.comm(r), stream));
    } else {
      EXPECT_NCCL(ncclReduce(from, r == it.root ? to : nullptr, it.count, it.type, ops[i], it.root,
                             ranks.comm(r), stream));
    }
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < n && it.op == ncclNumOps; ++r) {
    EXPECT_NCCL(ncclRedOpDestroy(ops[static_cast<size_t>(r)], ranks.comm(r)));
  }
  ranks.synchronize();
  for (int r = 0; r < n; ++r) EXPECT_EQ(async_error(ranks.comm(r)), ncclSuccess);
}

Reduction random_reduction(std::mt19937_64& random, int n, int type, int op) {
  constexpr Kind kReductions[] = {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter};
  Reduction it;
  it.kind = kReductions[random() % 3];
  it.type = static_cast<ncclDataType_t>(type);
  it.op = op;
  const size_t width = kElementBytes[it.type];
  it.count = kBytes / width + random() % 999;
  if (it.kind == Kind::kReduceScatter) it.count = it.count / static_cast<size_t>(n) + 1;
  it.root = static_cast<int>(random() % static_cast<size_t>(n));
  it.in_place = random() % 2 == 0;
  const bool alike = random() % 2 == 0;
  const size_t shift = random() % 16;
  for (int r = 0; r < n; ++r) {
    it.send_offsets.push_back((alike ? shift : random() % 16) * width);
    it.recv_offsets.push_back((alike ? shift : random() % 16) * width);
    uint64_t factor = random();
    const float near = static_cast<float>(static_cast<int>(random() % 9) - 4) / 3.0f;
    const double near_double = near;
    if (it.type == ncclFloat32) std::memcpy(&factor, &near, sizeof near);
    if (it.type == ncclFloat64) std::memcpy(&factor, &near_double, sizeof factor);
    // From 1 up, so that products must be rounded.
    if (it.type == ncclFloat16) factor = 0x3c00 + random() % 64;
    if (it.type == ncclBfloat16) factor = 0x3f80 + random() % 16;
    if (it.type == ncclFloat8e4m3) factor = 0x38 + random() % 4;
    if (it.type == ncclFloat8e5m2) factor = 0x3c + random() % 2;
    it.factors.push_back(factor);
  }
  return it;
}

TEST_F(NcclDirectReduce, EveryReductionGivesTheBitsOfTheStagedWay) {
  std::mt19937_64 random(seed());
  constexpr int kRanks = 3;
  const StreamRanks ranks(kRanks);
  const StagedRanks staged(kRanks);
  const size_t bytes = kBytes + 8 * 999 + kRanks * 64;
  const Buffers send(kRanks, bytes);
  const Buffers recv(kRanks, bytes);
  const Buffers staged_send(kRanks, bytes);
  const Buffers staged_recv(kRanks, bytes);
  for (int type = 0; type < ncclNumTypes; ++type) {
    for (int op = 0; op <= ncclNumOps; ++op) {
      const Reduction it = random_reduction(random, kRanks, type, op);
      send.fill(random);
      recv.fill(random);
      staged_send.copy_of(send);
      staged_recv.copy_of(recv);
      const int copies_before = host_copies();
      const int kernels_before = kernels();
      run(ranks, it, send, recv);
      if (strict_cuda_kernels != nullptr && WEIR_TEST_HAS_KERNELS == 1) {
        EXPECT_EQ(host_copies(), copies_before);
        const int folds = it.kind == Kind::kReduce ? 1 : kRanks;
        const int blocks = it.kind == Kind::kReduceScatter ? kRanks : 1;
        const int products = op == ncclNumOps ? kRanks * blocks : 0;
        EXPECT_EQ(kernels(), kernels_before + folds + products);
      }
      run(*staged, it, staged_send, staged_recv);
      EXPECT_TRUE(send.get() == staged_send.get() && recv.get() == staged_recv.get())
          << "kind " << static_cast<int>(it.kind) << ", type " << type << ", op " << op
          << ", count " << it.count << ", in place " << it.in_place << ", root " << it.root;
    }
  }
}

TEST_F(NcclDirectReduce, AFactorMayLieOnTheDeviceAndIsReadWhenTheStreamComesToIt) {
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  const StreamRanks ranks(2);
  const Buffers send(2, kCount * sizeof(int));
  const Buffers recv(2, kCount * sizeof(int));
  std::vector<Array> factors;
  std::vector<Gate> gates;
  ncclRedOp_t ops[2];
  for (int r = 0; r < 2; ++r) {
    const auto i = static_cast<size_t>(r);
    factors.emplace_back(MemoryKind::kDevice, 1);
    send.arrays[i].set(std::vector<int>(send.arrays[i].size(), r + 5));
    EXPECT_NCCL(ncclRedOpCreatePreMulSum(&ops[i], factors[i].data(), ncclInt, ncclScalarDevice,
                                         ranks.comm(r)));
    gates.emplace_back(ranks.stream(r));
  }
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclAllReduce(send.at(r, 0), recv.at(r, 0), kCount, ncclInt, ops[r], ranks.comm(r),
                              ranks.stream(r).nccl()));
  }
  ASSERT_NCCL(ncclGroupEnd());
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclRedOpDestroy(ops[r], ranks.comm(r)));
    factors[static_cast<size_t>(r)].set({r == 0 ? 7 : 100});
  }
  for (Gate& gate : gates) gate.open();
  ranks.synchronize();
  for (int r = 0; r < 2; ++r) {
    auto got = recv.arrays[static_cast<size_t>(r)].get();
    got.resize(kCount);
    EXPECT_EQ(got, std::vector<int>(kCount, 5 * 7 + 6 * 100));
  }
}

// Some rounds of a sum on memory of the thread's device.
void sum_rounds(int rank, ncclComm_t comm) {
  const Stream stream;
  const Array in(MemoryKind::kDevice, kCount);
  const Array out(MemoryKind::kDevice, kCount);
  for (int round = 0; round < 3; ++round) {
    in.set(numbers(kCount, rank, round));
    EXPECT_NCCL(
        ncclAllReduce(in.data(), out.data(), kCount, ncclInt, ncclSum, comm, stream.nccl()));
    stream.synchronize();
    EXPECT_EQ(out.get(),
              expected(Kind::kAllReduce, {numbers(kCount, 0, round), numbers(kCount, 1, round)},
                       rank, kCount, 0));
  }
}

// Of two ranks, on communicators made before the threads had a context, and after.
void sum_on(const std::function<int(int rank)>& device_of) {
  run_threads(2, [&](int rank, ncclComm_t first) {
    use_device(device_of(rank));
    sum_rounds(rank, first);
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
    sum_rounds(rank, comm);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(NcclDirectReduce, ReductionsOfDifferentDevicesOfOneProcess) {
  WEIR_NEEDS_DEVICES(2);
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  const int before = kernels();
  sum_on([](int rank) { return rank; });
  if (strict_cuda_kernels != nullptr && WEIR_TEST_HAS_KERNELS == 1) {
    EXPECT_EQ(kernels(), before + 2 * 2 * 3);
  }
}

TEST_F(NcclDirectReduce, RanksThatNameDifferentReductionsAreTold) {
  WEIR_NEEDS_QUEUES(8);
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  const StreamRanks ranks(2);
  const Buffers buffers(2, kCount * sizeof(int));
  for (int r = 0; r < 2; ++r) {
    EXPECT_NCCL(ncclAllReduce(buffers.at(r, 0), buffers.at(r, 0), kCount, ncclInt,
                              r == 0 ? ncclSum : ncclMax, ranks.comm(r), ranks.stream(r).nccl()));
  }
  ranks.synchronize();
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(async_error(ranks.comm(r)), ncclInvalidUsage);
    const std::string text = ncclGetLastError(ranks.comm(r));
    EXPECT_NE(text.find("ncclAllReduce(ncclInt32, ncclMax"), std::string::npos) << text;
  }
}

TEST_F(NcclDirectReduce, AbortReleasesAReductionWhosePeerNeverComes) {
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const Stream stream;
  const Buffers buffers(1, kCount * sizeof(int));
  for (int i = 0; i < 3; ++i) {
    EXPECT_NCCL(ncclAllReduce(buffers.at(0, 0), buffers.at(0, 0), kCount, ncclInt, ncclSum,
                              comms[0], stream.nccl()));
  }
  EXPECT_NCCL(ncclCommAbort(comms[0]));
  stream.synchronize();
  EXPECT_NCCL(ncclCommAbort(comms[1]));
}

// ---- On the strict libcuda ----------------------------------------------------------------------

TEST_F(NcclDirectReduceFaults, EveryLaunchOfAGraphReducesAgain) {
  WEIR_NEEDS_QUEUES(8);
  run_device_threads(3, [](int rank, ncclComm_t first) {
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
    {
      const Stream stream;
      const Array mine(MemoryKind::kDevice, kCount);
      const Array sum(MemoryKind::kDevice, kCount);
      const auto calls = [&] {
        EXPECT_NCCL(
            ncclAllReduce(mine.data(), sum.data(), kCount, ncclInt, ncclSum, comm, stream.nccl()));
        EXPECT_NCCL(
            ncclAllReduce(sum.data(), sum.data(), kCount, ncclInt, ncclMax, comm, stream.nccl()));
      };
      launch_again_and_again(stream, mine, rank, calls, [&](int round) {
        EXPECT_EQ(sum.get(), expected(Kind::kAllReduce,
                                      {numbers(kCount, 0, round), numbers(kCount, 1, round),
                                       numbers(kCount, 2, round)},
                                      rank, kCount, 0));
      });
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(NcclDirectReduceFaults, ALaunchThatCudaRefusesIsToldByItsRankAndToTheOthers) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES(8);
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  ncclComm_t comms[2] = {};
  ASSERT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  const std::vector<Stream> streams = streams_of_ranks(2);
  const Exchange it(Kind::kAllReduce, 2, kCount, 0, 1, device);
  EXPECT_NCCL(it.call_on(0, comms[0], streams[0]));
  strict_cuda_fail("cuLaunchKernel", 0);
  EXPECT_EQ(it.call_on(1, comms[1], streams[1]), ncclUnhandledCudaError);
  for (const Stream& stream : streams) stream.synchronize();
  EXPECT_EQ(async_error(comms[1]), ncclUnhandledCudaError);
  EXPECT_EQ(async_error(comms[0]), ncclRemoteError);
  for (ncclComm_t comm : comms) {
    const std::string text = ncclGetLastError(comm);
    EXPECT_NE(text.find("cuLaunchKernel"), std::string::npos) << text;
    EXPECT_NCCL(ncclCommAbort(comm));
  }
}

TEST_F(NcclDirectReduceFaults, WhereOneRankDoesNotReachAnotherAllAreStaged) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  run_threads(2, [](int rank, ncclComm_t first) {
    use_device(2 + rank);  // which no other test uses, so that there is no access yet
    ncclComm_t comm = nullptr;
    if (rank == 0) strict_cuda_fail("cuCtxEnablePeerAccess", 0);
    EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
    {
      const Stream stream;
      const Array in(MemoryKind::kDevice, kCount);
      const Array out(MemoryKind::kDevice, 2 * kCount);
      const Array sum(MemoryKind::kDevice, kCount);
      for (int round = 0; round < 3; ++round) {
        in.set(numbers(kCount, rank, round));
        EXPECT_NCCL(
            ncclAllReduce(in.data(), sum.data(), kCount, ncclInt, ncclSum, comm, stream.nccl()));
        stream.synchronize();
        const std::vector<std::vector<int>> sends = {numbers(kCount, 0, round),
                                                     numbers(kCount, 1, round)};
        EXPECT_EQ(sum.get(), expected(Kind::kAllReduce, sends, rank, kCount, 0));
        EXPECT_NCCL(ncclAllGather(in.data(), out.data(), kCount, ncclInt, comm, stream.nccl()));
        stream.synchronize();
        EXPECT_EQ(out.get(), expected(Kind::kAllGather, sends, rank, kCount, 0));
      }
    }
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST_F(NcclDirectReduceFaults, KernelsThatCannotBeLoadedAreDoneWithout) {
  WEIR_NEEDS_STRICT_CUDA();
  WEIR_NEEDS_QUEUES_OF_A_DEVICE(8);
  if (WEIR_TEST_HAS_KERNELS == 0) GTEST_SKIP() << "built without nvcc, so without kernels";
  const int before = kernels();
  run_threads(2, [](int rank, ncclComm_t first) {
    use_device(6);  // which no other test uses
    if (rank == 0) strict_cuda_fail("cuModuleLoadData", 0);
    ncclComm_t comm = nullptr;
    EXPECT_NCCL(ncclCommSplit(first, 0, rank, &comm, nullptr));
    sum_rounds(rank, comm);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(kernels(), before);
}

TEST_F(NcclDirectReduceFaults, BuffersNeedNotBeAtMultiplesOfTheirType) {
  const StreamRanks ranks(2);
  const Buffers send(2, kCount * sizeof(int));
  const Buffers recv(2, kCount * sizeof(int));
  for (int r = 0; r < 2; ++r) {
    const auto i = static_cast<size_t>(r);
    send.arrays[i].set(std::vector<int>(send.arrays[i].size(), 0x01010101 << r));
  }
  const int before = host_copies();
  ASSERT_NCCL(ncclGroupStart());
  for (int r = 0; r < 2; ++r) {
    const auto shift = static_cast<size_t>(r);
    EXPECT_NCCL(ncclAllReduce(send.at(r, shift), recv.at(r, 4 * shift), kCount, ncclInt, ncclSum,
                              ranks.comm(r), ranks.stream(r).nccl()));
  }
  ASSERT_NCCL(ncclGroupEnd());
  ranks.synchronize();
  if (WEIR_TEST_HAS_KERNELS == 1) {
    EXPECT_EQ(host_copies(), before);
  }
  for (int r = 0; r < 2; ++r) {
    auto got = recv.arrays[static_cast<size_t>(r)].get();
    const auto begin = got.begin() + r;
    EXPECT_EQ(std::vector<int>(begin, begin + kCount), std::vector<int>(kCount, 0x03030303));
  }
}

}  // namespace
}  // namespace weir::nccl::test
