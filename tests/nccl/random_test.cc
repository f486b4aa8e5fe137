// SPDX-License-Identifier: Apache-2.0
// Random programs: one thread holds all ranks of several communicators and runs groups of
// collectives, messages and one-sided writes, whose order between communicators and kinds differs
// from rank to rank. Between groups it makes communicators, blocking ones and others, splits,
// shrinks and destroys them. Every value is compared with what a serial model says. WEIR_TEST_SEED
// is the first seed, WEIR_TEST_SEEDS their number.
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

constexpr size_t kWindowCount = 100000;

// All ranks of a communicator.
class Family {
 public:
  Family(std::vector<ncclComm_t> comms, bool blocking)
      : comms_(std::move(comms)), blocking_(blocking), windows_(comms_.size()) {
    settle_all();
  }
  ~Family() {
    for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
    for (int32_t* memory : memory_) EXPECT_NCCL(ncclMemFree(memory));
  }
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  static std::unique_ptr<Family> make(int n, bool blocking) {
    std::vector<ncclComm_t> comms(static_cast<size_t>(n));
    if (blocking) {
      EXPECT_NCCL(ncclCommInitAll(comms.data(), n, nullptr));
    } else {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      const ncclUniqueId id = make_id();
      EXPECT_NCCL(ncclGroupStart());
      for (int rank = 0; rank < n; ++rank) {
        EXPECT_NCCL(
            ncclCommInitRankConfig(&comms[static_cast<size_t>(rank)], n, id, rank, &config));
      }
      EXPECT_EQ(ncclGroupEnd(), ncclInProgress) << ncclGetLastError(nullptr);
    }
    return std::make_unique<Family>(std::move(comms), blocking);
  }

  ncclComm_t operator[](int rank) const { return comms_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(comms_.size()); }
  bool blocking() const { return blocking_; }

  // The end of a group that these ranks are in.
  void end(ncclResult_t result) const {
    EXPECT_EQ(result, blocking_ ? ncclSuccess : ncclInProgress) << ncclGetLastError(nullptr);
    settle_all();
  }
  void settle_all() const {
    for (ncclComm_t comm : comms_) {
      EXPECT_EQ(settle(comm), ncclSuccess) << ncclGetLastError(comm);
    }
  }

  // Every rank of color i is in the i-th of the result, ordered by key and rank; color -1 in none.
  std::vector<std::unique_ptr<Family>> split(const std::vector<int>& colors,
                                             const std::vector<int>& keys) const {
    std::vector<ncclComm_t> made(comms_.size());
    EXPECT_NCCL(ncclGroupStart());
    for (size_t r = 0; r < comms_.size(); ++r) {
      EXPECT_NCCL(ncclCommSplit(comms_[r], colors[r], keys[r], &made[r], nullptr));
    }
    end(ncclGroupEnd());
    std::vector<std::unique_ptr<Family>> families;
    for (int color = 0; color <= *std::max_element(colors.begin(), colors.end()); ++color) {
      std::vector<std::pair<int, size_t>> members;
      for (size_t r = 0; r < colors.size(); ++r) {
        if (colors[r] == color) members.emplace_back(keys[r], r);
        if (colors[r] < 0) {
          EXPECT_EQ(made[r], nullptr);
        }
      }
      std::sort(members.begin(), members.end());
      std::vector<ncclComm_t> comms;
      for (const auto& member : members) comms.push_back(made[member.second]);
      if (!comms.empty()) families.push_back(std::make_unique<Family>(comms, blocking_));
    }
    return families;
  }

  std::unique_ptr<Family> shrink(std::vector<int> excluded) const {
    std::vector<ncclComm_t> made;
    made.reserve(comms_.size());
    EXPECT_NCCL(ncclGroupStart());
    for (int rank = 0; rank < size(); ++rank) {
      if (std::find(excluded.begin(), excluded.end(), rank) != excluded.end()) continue;
      made.push_back(nullptr);
      EXPECT_NCCL(ncclCommShrink((*this)[rank], excluded.data(), static_cast<int>(excluded.size()),
                                 &made.back(), nullptr, NCCL_SHRINK_DEFAULT));
    }
    end(ncclGroupEnd());
    return std::make_unique<Family>(made, blocking_);
  }

  void open_windows() {
    EXPECT_NCCL(ncclGroupStart());
    for (size_t r = 0; r < comms_.size(); ++r) {
      void* memory = nullptr;
      EXPECT_NCCL(ncclMemAlloc(&memory, kWindowCount * sizeof(int32_t)));
      memory_.push_back(static_cast<int32_t*>(memory));
      EXPECT_NCCL(ncclCommWindowRegister(comms_[r], memory, kWindowCount * sizeof(int32_t),
                                         &windows_[r], NCCL_WIN_COLL_SYMMETRIC));
    }
    end(ncclGroupEnd());
    room_.assign(comms_.size(), kWindowCount);
  }
  // Room in a rank's window that no other write of the group has; false: none is left.
  bool take_room(int rank, size_t count, size_t* offset) const {
    if (room_.empty() || room_[static_cast<size_t>(rank)] < count) return false;
    room_[static_cast<size_t>(rank)] -= count;
    *offset = room_[static_cast<size_t>(rank)];
    return true;
  }
  void give_room_back() const {
    if (!room_.empty()) room_.assign(comms_.size(), kWindowCount);
  }
  ncclWindow_t window(int rank) const { return windows_[static_cast<size_t>(rank)]; }
  const int32_t* memory(int rank) const { return memory_[static_cast<size_t>(rank)]; }

 private:
  std::vector<ncclComm_t> comms_;
  bool blocking_;
  std::vector<ncclWindow_t> windows_;
  std::vector<int32_t*> memory_;
  mutable std::vector<size_t> room_;  // empty: there are no windows
};

struct Operation {
  const Family* ranks = nullptr;
  bool message = false;
  bool put = false;   // a message that is written into the receiver's window
  size_t offset = 0;  // there
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
      add(Family::make(pick(1, 4), pick(0, 3) > 0));
    }
  }

  void run() {
    const int groups = pick(1, 4);
    for (int i = 0; i < groups && !testing::Test::HasFailure(); ++i) {
      run_group(true);
      run_group(false);
      change();
    }
  }

 private:
  void add(std::unique_ptr<Family> family) {
    if (pick(0, 1) == 0) family->open_windows();
    communicators_.push_back(std::move(family));
  }

  // Makes communicators of one that there is, or destroys it.
  void change() {
    const auto index = static_cast<size_t>(pick(0, static_cast<int>(communicators_.size()) - 1));
    const Family& family = *communicators_[index];
    const int n = family.size();
    const int what = pick(0, 3);
    if (what == 0) {
      std::vector<int> colors, keys;
      for (int rank = 0; rank < n; ++rank) {
        colors.push_back(pick(-1, 2));
        keys.push_back(pick(-2, 2));
      }
      for (auto& made : family.split(colors, keys)) add(std::move(made));
    } else if (what == 1 && n > 1) {
      std::vector<int> excluded;
      for (int rank = 0; rank < n; ++rank) excluded.push_back(rank);
      std::shuffle(excluded.begin(), excluded.end(), random_);
      excluded.resize(static_cast<size_t>(pick(1, n - 1)));
      add(family.shrink(excluded));
    } else if (what == 2 && communicators_.size() > 1) {
      communicators_.erase(communicators_.begin() + static_cast<ptrdiff_t>(index));
    }
  }

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

  Operation some_operation(const std::vector<const Family*>& families) {
    Operation it;
    it.ranks = families[static_cast<size_t>(pick(0, static_cast<int>(families.size()) - 1))];
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
      it.put = pick(0, 1) == 0 && it.ranks->take_room(it.receiver, it.count, &it.offset);
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
    if (it.put) {
      ncclResult_t result = ncclSuccess;
      if (rank == it.root) {
        result = ncclPutSignal(send, it.count, ncclInt32, it.receiver, it.ranks->window(rank),
                               it.offset * sizeof(int32_t), 0, 0, 0, comm, nullptr);
      }
      ncclWaitSignalDesc_t one{1, it.root, 0, 0};
      if (rank == it.receiver && result == ncclSuccess) {
        result = ncclWaitSignal(1, &one, comm, nullptr);
      }
      return result;
    }
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
  std::vector<Operation*> order_of(std::vector<Operation>& operations, const Family* ranks) {
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

  // Of the blocking communicators, or of the others: they do not mix.
  void run_group(bool blocking) {
    std::vector<const Family*> families;
    for (const auto& family : communicators_) {
      if (family->blocking() == blocking) families.push_back(family.get());
    }
    if (families.empty()) return;
    std::vector<Operation> operations(static_cast<size_t>(pick(1, 8)));
    for (Operation& it : operations) it = some_operation(families);
    // (communicator, rank) in any order.
    std::vector<std::pair<const Family*, int>> callers;
    for (const Family* ranks : families) {
      for (int rank = 0; rank < ranks->size(); ++rank) callers.emplace_back(ranks, rank);
    }
    std::shuffle(callers.begin(), callers.end(), random_);
    EXPECT_NCCL(ncclGroupStart());
    for (const auto& [ranks, rank] : callers) {
      for (Operation* it : order_of(operations, ranks)) EXPECT_NCCL(call(*it, rank));
    }
    const ncclResult_t ended = ncclGroupEnd();
    EXPECT_EQ(ended, blocking ? ncclSuccess : ncclInProgress) << ncclGetLastError(nullptr);
    for (const Family* family : families) {
      family->settle_all();
      family->give_room_back();
    }
    for (Operation& it : operations) {
      if (it.put) {
        const int32_t* place = it.ranks->memory(it.receiver) + it.offset;
        it.parts[static_cast<size_t>(it.receiver)].recv.assign(place, place + it.count);
      }
      for (size_t rank = 0; rank < it.parts.size(); ++rank) {
        EXPECT_EQ(it.parts[rank].recv, it.parts[rank].expected)
            << "rank " << rank << " of " << it.parts.size() << ", "
            << (it.put       ? "put"
                : it.message ? "message"
                             : "collective")
            << " " << static_cast<int>(it.kind);
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Family>> communicators_;
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
