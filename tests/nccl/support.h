// SPDX-License-Identifier: Apache-2.0
// Ranks for tests of libnccl.so.2: threads of this process, or all in one thread.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "weir/nccl.h"

#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)
#define ASSERT_NCCL(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

namespace weir::nccl::test {

inline ncclUniqueId make_id() {
  ncclUniqueId id{};
  EXPECT_NCCL(ncclGetUniqueId(&id));
  return id;
}

using Body = std::function<void(int rank, ncclComm_t comm)>;

// One thread a rank.
inline void run_threads(int n, const Body& body) {
  const ncclUniqueId id = make_id();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
      body(rank, comm);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// All ranks in the calling thread.
class AllRanks {
 public:
  explicit AllRanks(int n) : comms_(static_cast<size_t>(n)) {
    EXPECT_NCCL(ncclCommInitAll(comms_.data(), n, nullptr));
  }
  ~AllRanks() {
    for (ncclComm_t comm : comms_) EXPECT_NCCL(ncclCommDestroy(comm));
  }
  AllRanks(const AllRanks&) = delete;
  AllRanks& operator=(const AllRanks&) = delete;

  ncclComm_t operator[](int rank) const { return comms_[static_cast<size_t>(rank)]; }
  int size() const { return static_cast<int>(comms_.size()); }

 private:
  std::vector<ncclComm_t> comms_;
};

// Each rank contributes rank + 1; true when each has n (n + 1) / 2.
inline bool sums_up(const AllRanks& ranks) {
  std::vector<int> values(static_cast<size_t>(ranks.size()));
  EXPECT_NCCL(ncclGroupStart());
  for (int rank = 0; rank < ranks.size(); ++rank) {
    int& value = values[static_cast<size_t>(rank)];
    value = rank + 1;
    EXPECT_NCCL(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, ranks[rank], nullptr));
  }
  EXPECT_NCCL(ncclGroupEnd());
  for (const int value : values) {
    if (value != ranks.size() * (ranks.size() + 1) / 2) return false;
  }
  return true;
}

// The same for one rank of a communicator of n.
inline ncclResult_t sum_of_ranks(ncclComm_t comm, int rank, int* sum) {
  *sum = rank + 1;
  return ncclAllReduce(sum, sum, 1, ncclInt, ncclSum, comm, nullptr);
}

// Polls until the communicator is no longer in progress.
inline ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    std::this_thread::yield();
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
  }
  return state;
}

inline void expect_error_with(const std::vector<std::string>& words) {
  const std::string text = ncclGetLastError(nullptr);
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
  }
}

}  // namespace weir::nccl::test
