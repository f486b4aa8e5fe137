// SPDX-License-Identifier: Apache-2.0
// Random programs: one thread holds all ranks of several communicators and runs groups of collectives
// and messages, whose order between communicators and messages differs from rank to rank. Every value
// is compared with what a serial model says. WEIR_TEST_SEED is the first seed, WEIR_TEST_SEEDS their
// number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

using Values = std::vector<int32_t>;

// One rank's part of an operation.
struct Part {
  Values send;
  Values recv;
  Values expected;
};

enum class Kind { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather, kAllToAll, kCount };

struct Operation {
  const AllRanks* ranks = nullptr;
  bool message = false;
  Kind kind = Kind::kAllReduce;
  ncclRedOp_t op = ncclSum;
  size_t count = 0;
  int root = 0;             // of a message: who sends
  int receiver = 0;         // of a message
  std::vector<Part> parts;  // by rank
};

class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed) {
    const int communicators = pick(1, 3);
    for (int i = 0; i < communicators; ++i) {
      communicators_.push_back(std::make_unique<AllRanks>(pick(1, 4)));
    }
  }

  void run() {
    const int groups = pick(1, 4);
    for (int i = 0; i < groups && !testing::Test::HasFailure(); ++i) run_group();
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  Values some(size_t count) {
    Values values(count);
    for (int32_t& value : values) value = pick(-1000, 1000);
    return values;
  }

  size_t some_count() {
    switch (pick(0, 3)) {
      case 0:
        return static_cast<size_t>(pick(0, 3));
      case 1:
        return static_cast<size_t>(pick(4, 300));
      case 2:
        return static_cast<size_t>(pick(300, 5000));
      default:
        return static_cast<size_t>(pick(5000, 60000));
    }
  }

  static int32_t fold(ncclRedOp_t op, int32_t a, int32_t b) {
    return op == ncclSum ? a + b : op == ncclMax ? std::max(a, b) : std::min(a, b);
  }

  // The fold over ranks of each element.
  static Values folded(const Operation& operation) {
    Values result = operation.parts[0].send;
    for (size_t rank = 1; rank < operation.parts.size(); ++rank) {
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = fold(operation.op, result[i], operation.parts[rank].send[i]);
      }
    }
    return result;
  }

  Operation some_operation() {
    Operation it;
    it.ranks =
        communicators_[static_cast<size_t>(pick(0, static_cast<int>(communicators_.size()) - 1))]
            .get();
    const int n = it.ranks->size();
    it.message = pick(0, 2) == 0;
    it.kind = static_cast<Kind>(pick(0, static_cast<int>(Kind::kCount) - 1));
    constexpr ncclRedOp_t kOps[] = {ncclSum, ncclMax, ncclMin};
    it.op = kOps[pick(0, 2)];
    it.count = some_count();
    it.root = pick(0, n - 1);
    it.receiver = pick(0, n - 1);
    it.parts.resize(static_cast<size_t>(n));
    if (it.message) {
      Part& from = it.parts[static_cast<size_t>(it.root)];
      Part& to = it.parts[static_cast<size_t>(it.receiver)];
      from.send = some(it.count);
      to.expected = from.send;
      to.recv.assign(it.count, -7);
      return it;
    }
    const bool scatters = it.kind == Kind::kReduceScatter || it.kind == Kind::kAllToAll;
    const bool gathers = it.kind == Kind::kAllGather || it.kind == Kind::kAllToAll;
    for (Part& part : it.parts) {
      part.send = some(it.count * (scatters ? it.parts.size() : 1));
      part.recv.assign(it.count * (gathers ? it.parts.size() : 1), -7);
    }
    const Values sum = folded(it);
    for (size_t rank = 0; rank < it.parts.size(); ++rank) expect(it, rank, sum);
    return it;
  }

  // What the serial model says of one rank.
  static void expect(Operation& it, size_t rank, const Values& sum) {
    Part& part = it.parts[rank];
    const auto block = [&](const Values& values, size_t index) {
      const auto begin = values.begin() + static_cast<ptrdiff_t>(index * it.count);
      part.expected.insert(part.expected.end(), begin, begin + static_cast<ptrdiff_t>(it.count));
    };
    switch (it.kind) {
      case Kind::kAllReduce:
        part.expected = sum;
        break;
      case Kind::kReduce:
        part.expected = static_cast<int>(rank) == it.root ? sum : part.recv;
        break;
      case Kind::kBroadcast:
        part.expected = it.parts[static_cast<size_t>(it.root)].send;
        break;
      case Kind::kReduceScatter:
        block(sum, rank);
        break;
      case Kind::kAllGather:
        for (const Part& from : it.parts) block(from.send, 0);
        break;
      default:
        for (const Part& from : it.parts) block(from.send, rank);
        break;
    }
  }

  static ncclResult_t call(Operation& it, int rank) {
    Part& part = it.parts[static_cast<size_t>(rank)];
    const void* send = part.send.data();
    void* recv = part.recv.data();
    const ncclComm_t comm = (*it.ranks)[rank];
    if (it.message) {
      ncclResult_t result = ncclSuccess;
      if (rank == it.root) {
        result = ncclSend(send, it.count, ncclInt32, it.receiver, comm, nullptr);
      }
      if (rank == it.receiver && result == ncclSuccess) {
        result = ncclRecv(recv, it.count, ncclInt32, it.root, comm, nullptr);
      }
      return result;
    }
    switch (it.kind) {
      case Kind::kAllReduce:
        return ncclAllReduce(send, recv, it.count, ncclInt32, it.op, comm, nullptr);
      case Kind::kReduce:
        return ncclReduce(send, recv, it.count, ncclInt32, it.op, it.root, comm, nullptr);
      case Kind::kBroadcast:
        return ncclBroadcast(send, recv, it.count, ncclInt32, it.root, comm, nullptr);
      case Kind::kReduceScatter:
        return ncclReduceScatter(send, recv, it.count, ncclInt32, it.op, comm, nullptr);
      case Kind::kAllGather:
        return ncclAllGather(send, recv, it.count, ncclInt32, comm, nullptr);
      default:
        return ncclAlltoAll(send, recv, it.count, ncclInt32, comm, nullptr);
    }
  }

  // The calls of one rank of one communicator: collectives in their order, messages in theirs, and
  // the two shuffled together.
  std::vector<Operation*> order_of(std::vector<Operation>& operations, const AllRanks* ranks) {
    std::vector<Operation*> collectives, messages, all;
    for (Operation& it : operations) {
      if (it.ranks == ranks) (it.message ? messages : collectives).push_back(&it);
    }
    std::reverse(collectives.begin(), collectives.end());
    std::reverse(messages.begin(), messages.end());
    while (!collectives.empty() || !messages.empty()) {
      auto& next =
          messages.empty() || (!collectives.empty() && pick(0, 1) == 0) ? collectives : messages;
      all.push_back(next.back());
      next.pop_back();
    }
    return all;
  }

  void run_group() {
    std::vector<Operation> operations(static_cast<size_t>(pick(1, 8)));
    for (Operation& it : operations) it = some_operation();
    // (communicator, rank) in any order.
    std::vector<std::pair<const AllRanks*, int>> callers;
    for (const auto& ranks : communicators_) {
      for (int rank = 0; rank < ranks->size(); ++rank) callers.emplace_back(ranks.get(), rank);
    }
    std::shuffle(callers.begin(), callers.end(), random_);
    EXPECT_NCCL(ncclGroupStart());
    for (const auto& [ranks, rank] : callers) {
      for (Operation* it : order_of(operations, ranks)) EXPECT_NCCL(call(*it, rank));
    }
    EXPECT_NCCL(ncclGroupEnd());
    for (const Operation& it : operations) {
      for (size_t rank = 0; rank < it.parts.size(); ++rank) {
        EXPECT_EQ(it.parts[rank].recv, it.parts[rank].expected)
            << "rank " << rank << " of " << it.parts.size() << ", "
            << (it.message ? "message" : "collective") << " " << static_cast<int>(it.kind);
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<AllRanks>> communicators_;
};

TEST(NcclRandom, GroupsOfAnyOperationsInAnyOrderGiveWhatASerialModelSays) {
  const uint64_t first = from_environment("WEIR_TEST_SEED", std::random_device()());
  const uint64_t count = from_environment("WEIR_TEST_SEEDS", 200);
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(first));
  for (uint64_t seed = first; seed < first + count; ++seed) {
    Program(seed).run();
    ASSERT_FALSE(HasFailure()) << "WEIR_TEST_SEED=" << seed;
  }
}

}  // namespace
}  // namespace weir::nccl::test
