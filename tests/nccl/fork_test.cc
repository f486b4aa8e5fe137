// SPDX-License-Identifier: Apache-2.0
// Ranks of libnccl.so.2 that fork while they have communicators. A program of its own: nothing here
// starts a thread before it forks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "nccl/processes.h"

namespace weir::nccl::test {
namespace {

template <typename ChildBody>
int run_child(ChildBody body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    body();
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void go_on(ncclComm_t comm, int rank) {
  for (int i = 0; i < 40; ++i) {
    int sum = 0;
    ASSERT_NCCL(sum_of_ranks(comm, rank, &sum));
    ASSERT_EQ(sum, 3);
  }
}

void expect_refusal(ncclResult_t result, const std::string& function,
                    const std::string& what = "communicator") {
  EXPECT_EQ(result, ncclInvalidUsage) << function;
  const std::string text = ncclGetLastError(nullptr);
  EXPECT_EQ(text.find(function + ": this " + what + " was made by process " +
                      std::to_string(getppid()) + ", and this is its child"),
            0u)
      << text;
}

const std::vector<int> kGood{0, 0};

TEST(NcclFork, NoCallOfAChildIsAccepted) {
  const std::vector<int> statuses = run_processes(2, [](int rank, ncclComm_t comm) {
    go_on(comm, rank);
    // The other rank waits in the same call meanwhile: what the child sends would be its sum.
    if (rank == 1) {
      EXPECT_EQ(run_child([&] {
                  int value = 78;
                  int number = 0;
                  ncclResult_t error = ncclSuccess;
                  ncclComm_t made = nullptr;
                  ncclUniqueId id{};
                  expect_refusal(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr),
                                 "ncclAllReduce");
                  expect_refusal(ncclSend(&value, 1, ncclInt, 0, comm, nullptr), "ncclSend");
                  EXPECT_NCCL(ncclGroupStart());
                  expect_refusal(ncclAllReduce(&value, &value, 1, ncclInt, ncclSum, comm, nullptr),
                                 "ncclAllReduce");
                  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
                  expect_refusal(ncclCommGetAsyncError(comm, &error), "ncclCommGetAsyncError");
                  expect_refusal(ncclCommUserRank(comm, &number), "ncclCommUserRank");
                  expect_refusal(ncclCommCount(comm, &number), "ncclCommCount");
                  expect_refusal(ncclCommFinalize(comm), "ncclCommFinalize");
                  expect_refusal(ncclCommGetUniqueId(comm, &id), "ncclCommGetUniqueId");
                  expect_refusal(ncclCommSplit(comm, 0, 0, &made, nullptr), "ncclCommSplit");
                  expect_refusal(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), "ncclCommRevoke");
                }),
                0);
    }
    go_on(comm, rank);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, kGood);
}

TEST(NcclFork, DestroyAndAbortInAChildTellNobody) {
  const std::vector<int> statuses = run_processes(2, [](int rank, ncclComm_t comm) {
    go_on(comm, rank);
    ncclComm_t half = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &half, nullptr));
    for (auto* const end : {&ncclCommDestroy, &ncclCommAbort}) {
      EXPECT_EQ(run_child([&] {
                  EXPECT_NCCL(end(half));
                  EXPECT_NCCL(end(comm));
                  EXPECT_EQ(end(comm), ncclInvalidArgument);
                  std::exit(testing::Test::HasFailure() ? 1 : 0);
                }),
                0);
      go_on(comm, rank);
      go_on(half, rank);
    }
    EXPECT_NCCL(ncclCommDestroy(half));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, kGood);
}

TEST(NcclFork, AGroupThatWasOpenIsNotOpenInAChild) {
  const std::vector<int> statuses = run_processes(2, [](int rank, ncclComm_t comm) {
    int sum = 0;
    ASSERT_NCCL(ncclGroupStart());
    ASSERT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(run_child([] {
                EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
                EXPECT_NCCL(ncclGroupStart());
                EXPECT_NCCL(ncclGroupEnd());
              }),
              0);
    ASSERT_NCCL(ncclGroupEnd());
    EXPECT_EQ(sum, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, kGood);
}

TEST(NcclFork, ChildrenMakeCommunicatorsOfTheirOwn) {
  const ncclUniqueId id = make_id();
  const std::vector<int> statuses = run_processes(2, [&](int rank, ncclComm_t comm) {
    EXPECT_EQ(run_child([&] {
                void* memory = nullptr;
                EXPECT_NCCL(ncclMemAlloc(&memory, 4096));
                EXPECT_NCCL(ncclMemFree(memory));
                ncclComm_t own = nullptr;
                ASSERT_NCCL(ncclCommInitRank(&own, 2, id, rank));
                go_on(own, rank);
                EXPECT_NCCL(ncclCommDestroy(own));
                EXPECT_NCCL(ncclCommDestroy(comm));
              }),
              0);
    go_on(comm, rank);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, kGood);
}

TEST(NcclFork, MemoryOfTheParentIsNotFreedByAChild) {
  void* memory = nullptr;
  ASSERT_NCCL(ncclMemAlloc(&memory, 4096));
  int* number = static_cast<int*>(memory);
  EXPECT_EQ(run_child([&] {
              for (int i = 0; i < 2; ++i) {
                expect_refusal(ncclMemFree(memory), "ncclMemFree", "memory");
                *number += 1;  // it is shared
              }
            }),
            0);
  EXPECT_EQ(*number, 2);
  EXPECT_NCCL(ncclMemFree(memory));
}

// Its messages are served by a thread, which no child has.
TEST(NcclFork, ACommunicatorWithOneSidedOperationsIsLeftToo) {
  const std::vector<int> statuses = run_processes(2, [](int rank, ncclComm_t comm) {
    std::vector<int> buffer(64, rank);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, buffer.data(), buffer.size() * sizeof(int), &window,
                                       NCCL_WIN_DEFAULT));
    EXPECT_EQ(run_child([&] {
                expect_refusal(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
                EXPECT_NCCL(ncclCommDestroy(comm));
                std::exit(testing::Test::HasFailure() ? 1 : 0);
              }),
              0);
    go_on(comm, rank);
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  EXPECT_EQ(statuses, kGood);
}

}  // namespace
}  // namespace weir::nccl::test
