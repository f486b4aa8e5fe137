// SPDX-License-Identifier: Apache-2.0
// The end of a rank's part of a window, by ncclCommWindowDeregister or with its communicator, while
// ranks of the same process put there.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "nccl/host/window_memory.h"
#include "nccl/support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr std::chrono::seconds kPutsEndAfter{20};

ncclResult_t put(const std::vector<unsigned char>& data, ncclWindow_t window, ncclComm_t comm,
                 size_t offset = 0) {
  return ncclPutSignal(data.data(), data.size(), ncclUint8, 1, window, offset, 0, 0, 0, comm,
                       nullptr);
}

enum class End : unsigned char { kDeregister, kDestroy, kAbort };

void end_part(End end, ncclComm_t comm, ncclWindow_t window) {
  if (end == End::kDeregister) {
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
  } else if (end == End::kDestroy) {
    EXPECT_NCCL(ncclCommDestroy(comm));
  } else {
    EXPECT_NCCL(ncclCommAbort(comm));
  }
}

void expect_refused(End end) {
  // Of an abort the rank may have heard before its put.
  if (end == End::kAbort) return expect_error_with({"ncclPutSignal", "rank 1"});
  expect_error_with({"ncclPutSignal", end == End::kDeregister
                                          ? "rank 1 has deregistered its window"
                                          : "rank 1 has ended its communicator"});
}

// Rank 1 ends its part; its memory is freed, or keeps what the rank writes to it then.
void put_after_end(End end, MemoryKind kind, bool is_freed) {
  std::vector<ncclComm_t> comms(2);
  ASSERT_NCCL(ncclCommInitAll(comms.data(), 2, nullptr));
  WindowMemory zero(kind, kBytes);
  WindowMemory one(kind, kBytes);
  ncclWindow_t windows[2] = {};
  ASSERT_NCCL(ncclGroupStart());
  EXPECT_NCCL(ncclCommWindowRegister(comms[0], zero.base(), kBytes, &windows[0], 0));
  EXPECT_NCCL(ncclCommWindowRegister(comms[1], one.base(), kBytes, &windows[1], 0));
  ASSERT_NCCL(ncclGroupEnd());
  const std::vector<unsigned char> data(4096, 1);
  EXPECT_NCCL(put(data, windows[0], comms[0]));
  end_part(end, comms[1], windows[1]);
  if (is_freed) {
    one.free();
  } else {
    one.fill(0x55);
  }
  EXPECT_EQ(put(data, windows[0], comms[0]), ncclRemoteError);
  expect_refused(end);
  if (!is_freed) {
    EXPECT_TRUE(one.holds_only(0x55));
  }
  if (end == End::kDeregister) {
    // The signals have not ended.
    EXPECT_NCCL(ncclSignal(1, 0, 0, 0, comms[0], nullptr));
    EXPECT_NCCL(ncclCommDestroy(comms[1]));
  }
  EXPECT_EQ(ncclSignal(1, 0, 0, 0, comms[0], nullptr), ncclRemoteError);
  expect_error_with({"ncclSignal", "rank 1"});
  EXPECT_NCCL(ncclCommDestroy(comms[0]));
}

TEST(NcclOneSidedEnd, APutToAPartThatHasEndedIsRefused) {
  for (const End end : {End::kDeregister, End::kDestroy, End::kAbort}) {
    for (const MemoryKind kind : kMemoryKinds) {
      for (const bool is_freed : {false, true}) put_after_end(end, kind, is_freed);
    }
  }
}

// Ranks 0 and 2 put without a pause while rank 1 ends its part.
void put_during_end(End end, MemoryKind kind) {
  const ncclUniqueId id = make_id();
  std::atomic<int> puts{0};
  std::vector<std::thread> ranks;
  for (const int rank : {0, 1, 2}) {
    ranks.emplace_back([&, rank] {
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, 3, id, rank));
      WindowMemory memory(kind, kBytes);
      ncclWindow_t window = nullptr;
      ASSERT_NCCL(ncclCommWindowRegister(comm, memory.base(), kBytes, &window, 0));
      if (rank == 1) {
        while (puts < 20) std::this_thread::yield();
        end_part(end, comm, window);
        memory.fill(0x55);
        EXPECT_TRUE(memory.holds_only(0x55));
        memory.free();
        if (end == End::kDeregister) {
          EXPECT_NCCL(ncclCommDestroy(comm));
        }
        return;
      }
      // Each writes to a half of its own.
      const std::vector<unsigned char> data(kBytes / 2, static_cast<unsigned char>(1 + rank));
      const size_t offset = rank == 0 ? 0 : kBytes / 2;
      ncclResult_t result = ncclSuccess;
      const auto until = std::chrono::steady_clock::now() + kPutsEndAfter;
      while (result == ncclSuccess && std::chrono::steady_clock::now() < until) {
        result = put(data, window, comm, offset);
        ++puts;
      }
      EXPECT_EQ(result, ncclRemoteError);
      expect_error_with({"ncclPutSignal", "rank 1 has "});
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(NcclOneSidedEnd, APartEndsBeforeOrAfterEveryPutInProgress) {
  for (int round = 0; round < 5; ++round) {
    for (const MemoryKind kind : kMemoryKinds) {
      put_during_end(End::kDeregister, kind);
      put_during_end(End::kDestroy, kind);
    }
  }
}

}  // namespace
}  // namespace weir::nccl::test
