// SPDX-License-Identifier: Apache-2.0
// Calls of exit handlers, which run after C++ has destroyed the thread_local objects of the thread
// that exits: whenever a handler was registered, what it does works. Each test is a child that
// exits as a program does. On the strict libcuda and on the stand-in.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

constexpr size_t kCount = 1 << 16;
constexpr int kEnded = 42;  // what the handler leaves with
constexpr unsigned kPatienceS = 30;

// Two ranks share the only device, if there is one.
int device_of(int rank) { return rank % cuda::device_count(); }

// Two communicators of one thread, each with a device. Never destroyed.
struct Ranks {
  ncclComm_t comms[2] = {};
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Array>> memory;

  void make_communicators() {
    const int devices[] = {device_of(0), device_of(1)};
    ASSERT_NCCL(ncclCommInitAll(comms, 2, devices));
  }
  void make_memory() {
    for (const int rank : {0, 1}) {
      use_device(device_of(rank));
      streams.push_back(std::make_unique<Stream>());
      memory.push_back(std::make_unique<Array>(MemoryKind::kDevice, kCount));
    }
  }
  void start_sum() const {
    for (const int rank : {0, 1}) {
      use_device(device_of(rank));
      memory[static_cast<size_t>(rank)]->write(values[rank], *streams[static_cast<size_t>(rank)]);
    }
    EXPECT_NCCL(ncclGroupStart());
    for (const int rank : {0, 1}) {
      int* const data = memory[static_cast<size_t>(rank)]->data();
      EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclInt, ncclSum, comms[rank],
                                streams[static_cast<size_t>(rank)]->nccl()));
    }
    EXPECT_NCCL(ncclGroupEnd());
  }
  void expect_sum() const {
    for (const int rank : {0, 1}) {
      use_device(device_of(rank));
      streams[static_cast<size_t>(rank)]->synchronize();
      EXPECT_EQ(memory[static_cast<size_t>(rank)]->get(), std::vector<int>(kCount, 3));
    }
  }
  void destroy() const {
    for (ncclComm_t comm : comms) EXPECT_NCCL(ncclCommDestroy(comm));
  }

  const std::vector<int> values[2] = {std::vector<int>(kCount, 1), std::vector<int>(kCount, 2)};
};

Ranks& ranks() {
  static auto* const it = new Ranks;
  return *it;
}

enum class Registered { kAfterDriver, kAfterCommunicators, kAfterCollective };
enum class Action { kSum, kWait, kDestroy, kNewCommunicators, kErrorText };
Action action_of_handler;

void handle() {
  switch (action_of_handler) {
    case Action::kSum:
      ranks().start_sum();
      ranks().expect_sum();
      break;
    case Action::kWait:  // for what was enqueued before
      ranks().expect_sum();
      break;
    case Action::kDestroy:
      ranks().expect_sum();
      ranks().destroy();
      break;
    case Action::kNewCommunicators:
      ranks().make_communicators();
      ranks().start_sum();
      ranks().expect_sum();
      ranks().destroy();
      break;
    case Action::kErrorText:
      EXPECT_EQ(ncclAllReduce(nullptr, nullptr, kCount, ncclInt, ncclSum, ranks().comms[0],
                              ranks().streams[0]->nccl()),
                ncclInvalidArgument);
      expect_error_with({"ncclAllReduce", "sendbuff is NULL"});
      break;
  }
}

// The first handler that is registered, and so the last one to run.
void end() { _exit(testing::Test::HasFailure() ? 1 : kEnded); }

[[noreturn]] void run_child(Registered registered, bool in_thread) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kPatienceS);
  std::atexit(end);
  const auto work = [registered] {
    use_device(0);
    if (registered == Registered::kAfterDriver) std::atexit(handle);
    ranks().make_communicators();
    ranks().make_memory();
    if (registered == Registered::kAfterCommunicators) std::atexit(handle);
    // So that the thread's state holds memory of its own.
    EXPECT_EQ(ncclCommCount(nullptr, nullptr), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)), "");
    ranks().start_sum();
    if (action_of_handler == Action::kSum || action_of_handler == Action::kNewCommunicators) {
      ranks().expect_sum();
    }
    if (registered == Registered::kAfterCollective) std::atexit(handle);
    std::exit(0);
  };
  if (in_thread) std::thread(work).join();
  work();
  std::abort();
}

class ExitHandlers : public testing::TestWithParam<std::tuple<Registered, Action, bool>> {};

TEST_P(ExitHandlers, MayMakeCalls) {
  const auto [registered, action, in_thread] = GetParam();
  action_of_handler = action;
  const pid_t pid = fork();
  if (pid == 0) run_child(registered, in_thread);
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), kEnded);
}

INSTANTIATE_TEST_SUITE_P(
    All, ExitHandlers,
    testing::Combine(testing::Values(Registered::kAfterCommunicators, Registered::kAfterCollective),
                     testing::Values(Action::kSum, Action::kWait, Action::kDestroy,
                                     Action::kNewCommunicators, Action::kErrorText),
                     testing::Bool()));

// The work that streams hold when a driver's own handlers may have run already is lost on the
// strict libcuda, as on a real driver, but later calls work.
INSTANTIATE_TEST_SUITE_P(RegisteredEarly, ExitHandlers,
                         testing::Combine(testing::Values(Registered::kAfterDriver),
                                          testing::Values(Action::kSum, Action::kNewCommunicators,
                                                          Action::kErrorText),
                                          testing::Bool()));

}  // namespace
}  // namespace weir::nccl::test
