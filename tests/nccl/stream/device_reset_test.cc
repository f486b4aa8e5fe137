// SPDX-License-Identifier: Apache-2.0
// Exit handlers that run twice, and reset devices or destroy streams in between: calls on what is
// gone are refused, the peers of a rank whose call was refused are told, and nothing waits for
// ever. Each test is a child that exits as a program does. On the stand-in.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "nccl/stream/stream_support.h"

extern "C" int cuDevicePrimaryCtxReset_v2(int device);

namespace weir::nccl::test {
namespace {

constexpr int kEnded = 42;  // what the last handler leaves with
constexpr unsigned kPatienceS = 20;

enum class Ranks { kOneThread, kThreads, kProcesses };
// Between the two runs.
enum class Event { kResetAll, kResetOne, kDestroyStreams, kDestroyOneStream };
struct Setup {
  Ranks ranks;
  Event event;
  MemoryKind memory;
  size_t count;
  bool group;
  bool destroys;  // the communicators, at the end
  bool waits;     // for the first run's collective, before the event
};
Setup setup;

// A rank's part. Never destroyed.
struct Rank {
  int number = 0;
  ncclComm_t comm = nullptr;
  cuda::Stream stream = nullptr;
  int* data = nullptr;
  ncclResult_t second = ncclSuccess;  // of the calls of the second run
};
std::vector<Rank>& mine() {
  static auto* const it = new std::vector<Rank>;
  return *it;
}
int runs = 0;

void prepare(Rank& it) {
  use_device(it.number);
  EXPECT_CUDA(cuStreamCreate(&it.stream, cuda::kStreamNonBlocking));
  if (setup.memory == MemoryKind::kDevice) {
    cuda::DevicePointer address = 0;
    EXPECT_CUDA(cuMemAlloc_v2(&address, setup.count * sizeof(int)));
    it.data = reinterpret_cast<int*>(static_cast<uintptr_t>(address));
  } else {
    it.data = new int[setup.count];
  }
}

ncclResult_t call(const Rank& it) {
  use_device(it.number);
  return ncclAllReduce(it.data, it.data, setup.count, ncclInt, ncclSum, it.comm,
                       static_cast<cudaStream_t>(it.stream));
}

bool hit(const Rank& it) {
  return it.number == 1 || setup.event == Event::kResetAll || setup.event == Event::kDestroyStreams;
}

void disturb(Rank& it) {
  if (!hit(it)) return;
  use_device(it.number);
  if (setup.event == Event::kResetAll || setup.event == Event::kResetOne) {
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(it.number), 0);
  } else {
    EXPECT_CUDA(cuStreamDestroy_v2(it.stream));
  }
}

void run_ranks(const std::vector<Rank*>& ranks) {
  if (setup.group) {
    EXPECT_NCCL(ncclGroupStart());
  }
  for (Rank* it : ranks) it->second = call(*it);
  if (setup.group) {
    const ncclResult_t result = ncclGroupEnd();
    for (Rank* it : ranks) {
      if (it->second == ncclSuccess) it->second = result;
    }
  }
  for (Rank* it : ranks) {
    use_device(it->number);
    const int waited = cuStreamSynchronize(it->stream);
    if (runs == 2) {
      EXPECT_TRUE(it->second != ncclSuccess || waited != cuda::kSuccess ||
                  async_error(it->comm) != ncclSuccess);
    }
  }
}

void handle() {
  ++runs;
  std::vector<Rank*> ranks;
  for (Rank& it : mine()) ranks.push_back(&it);
  const auto each = [&](auto body) {
    if (setup.ranks != Ranks::kThreads) return body(ranks);
    std::vector<std::thread> threads;
    for (Rank* it : ranks) threads.emplace_back([=] { body(std::vector<Rank*>{it}); });
    for (std::thread& it : threads) it.join();
  };
  if (runs == 2 || setup.waits) {
    each(run_ranks);
  } else if (setup.ranks != Ranks::kProcesses) {
    EXPECT_NCCL(call(mine()[0]));  // its peer never comes
  } else if (mine()[0].number == 0) {
    EXPECT_NCCL(call(mine()[0]));
  }
  if (runs == 1) {
    each([](const std::vector<Rank*>& all) {
      for (Rank* it : all) disturb(*it);
    });
  }
  if (runs == 2 && setup.destroys) {
    for (const Rank& it : mine()) EXPECT_NCCL(ncclCommDestroy(it.comm));
  }
}

// The first handler that is registered, and so the last one to run.
void end() { _exit(testing::Test::HasFailure() ? 1 : kEnded); }

[[noreturn]] void run_child(const ncclUniqueId* id, int rank) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(kPatienceS);
  std::atexit(end);
  if (id != nullptr) {
    mine().push_back({rank});
    use_device(rank);
    EXPECT_NCCL(ncclCommInitRank(&mine()[0].comm, 2, *id, rank));
  } else {
    mine() = {{0}, {1}};
    ncclComm_t comms[2] = {};
    use_device(0);
    EXPECT_NCCL(ncclCommInitAll(comms, 2, nullptr));
    for (Rank& it : mine()) it.comm = comms[it.number];
  }
  for (Rank& it : mine()) prepare(it);
  std::atexit(handle);
  std::atexit(handle);
  std::exit(0);
}

std::string name_of(const testing::TestParamInfo<Setup>& info) {
  static constexpr const char* kRanks[] = {"OneThread", "Threads", "Processes"};
  static constexpr const char* kEvents[] = {"ResetAll", "ResetOne", "DestroyStreams",
                                            "DestroyOneStream"};
  const Setup& it = info.param;
  return std::string(kRanks[static_cast<int>(it.ranks)]) + kEvents[static_cast<int>(it.event)] +
         (it.memory == MemoryKind::kDevice ? "Device" : "Host") + std::to_string(it.count) +
         (it.group ? "Group" : "") + (it.destroys ? "Destroys" : "") + (it.waits ? "Waits" : "");
}

// A refused call may be repeated, so that the peer waits until its deadline.
bool may_be_repeated(const Setup& it) {
  if (it.event == Event::kDestroyOneStream) return !it.group || it.ranks != Ranks::kOneThread;
  return it.event == Event::kResetOne && !it.waits;  // rank 1 has enqueued nothing before
}

std::vector<Setup> all_setups() {
  std::vector<Setup> all;
  for (const Ranks ranks : {Ranks::kOneThread, Ranks::kThreads, Ranks::kProcesses}) {
    for (const Event event :
         {Event::kResetAll, Event::kResetOne, Event::kDestroyStreams, Event::kDestroyOneStream}) {
      for (const MemoryKind memory : {MemoryKind::kDevice, MemoryKind::kHost}) {
        for (const size_t count : {size_t{256}, size_t{1} << 16}) {
          for (int i = 0; i < 4; ++i) {
            const Setup it = {ranks,     event, memory, count, i % 2 == 1, i == 0 || i == 3,
                              i / 2 == 1};
            const bool waits_long = may_be_repeated(it) && ranks != Ranks::kProcesses;
            if (waits_long && (count != 256 || memory == MemoryKind::kDevice || it.group)) continue;
            all.push_back(it);
          }
        }
      }
    }
  }
  return all;
}

class TwiceAtExit : public testing::TestWithParam<Setup> {};

TEST_P(TwiceAtExit, CallsOnWhatIsGoneAreRefusedAndNothingWaitsForEver) {
  setup = GetParam();
  if (may_be_repeated(setup)) setenv("WEIR_TIMEOUT_MS", "1500", 1);
  std::vector<pid_t> children;
  const bool apart = setup.ranks == Ranks::kProcesses;
  const ncclUniqueId id = make_id();
  for (int rank = 0; rank < (apart ? 2 : 1); ++rank) {
    children.push_back(fork());
    if (children.back() == 0) run_child(apart ? &id : nullptr, rank);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), kEnded);
  }
  unsetenv("WEIR_TIMEOUT_MS");
}

// Ends the process if the body has not returned in time.
template <typename Body>
void in_a_child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kPatienceS);
    body();
    _exit(testing::Test::HasFailure() ? 1 : kEnded);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), kEnded);
}

void make_two(size_t count) {
  setup = {};
  setup.count = count;
  setup.memory = MemoryKind::kDevice;
  mine() = {{0}, {1}};
  ncclComm_t comms[2] = {};
  use_device(0);
  EXPECT_NCCL(ncclCommInitAll(comms, 2, nullptr));
  for (Rank& it : mine()) {
    it.comm = comms[it.number];
    prepare(it);
  }
}

TEST(DeviceReset, OperationsThatWereUnderWayAreGivenUpAndTheirPeersAreTold) {
  // Of one slice, of many of which some are under way, and from device to device.
  for (const char* chunk_bytes : {"", "4096", "65536"}) {
    in_a_child([chunk_bytes] {
      if (*chunk_bytes != 0) setenv("WEIR_NCCL_CHUNK_BYTES", chunk_bytes, 1);
      setenv("WEIR_DIRECT", *chunk_bytes != 0 ? "0" : "1", 1);
      make_two(1 << 17);
      Rank& first = mine()[0];
      for (int i = 0; i < 3; ++i) EXPECT_NCCL(call(first));  // the peer has not come
      usleep(50'000);
      EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), 0);
      prepare(first);
      EXPECT_EQ(call(first), ncclUnhandledCudaError);
      expect_error_with({"ncclAllReduce", "device", "reset"});
      EXPECT_CUDA(cuStreamSynchronize(first.stream));
      EXPECT_EQ(async_error(first.comm), ncclUnhandledCudaError);
      Rank& second = mine()[1];
      (void)call(second);
      EXPECT_CUDA(cuStreamSynchronize(second.stream));
      EXPECT_EQ(async_error(second.comm), ncclRemoteError);
      const std::string text = ncclGetLastError(second.comm);
      EXPECT_NE(text.find("rank 0 of 2 failed: ncclAllReduce"), std::string::npos) << text;
      EXPECT_NE(text.find("was reset"), std::string::npos) << text;
      for (const Rank& it : mine()) EXPECT_NCCL(ncclCommDestroy(it.comm));
    });
  }
}

TEST(DeviceReset, CallsThatWaitForTheStreamsEnd) {
  in_a_child([] {
    make_two(256);
    EXPECT_NCCL(call(mine()[0]));
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), 0);
    EXPECT_EQ(ncclCommFinalize(mine()[0].comm), ncclUnhandledCudaError);
    EXPECT_EQ(async_error(mine()[0].comm), ncclUnhandledCudaError);
    for (const Rank& it : mine()) EXPECT_NCCL(ncclCommDestroy(it.comm));
  });
}

TEST(DeviceReset, ARankThatLeavesAfterItTellsThePeersOfTheOperationsThatItEnded) {
  in_a_child([] {
    make_two(1 << 17);
    Rank& first = mine()[0];
    EXPECT_NCCL(call(first));  // the peer comes when this rank has left
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), 0);
    EXPECT_NCCL(ncclCommDestroy(first.comm));
    Rank& second = mine()[1];
    (void)call(second);
    EXPECT_CUDA(cuStreamSynchronize(second.stream));
    EXPECT_EQ(async_error(second.comm), ncclRemoteError);
    const std::string text = ncclGetLastError(second.comm);
    EXPECT_NE(text.find("was reset"), std::string::npos) << text;
    EXPECT_NCCL(ncclCommDestroy(second.comm));
  });
}

TEST(DeviceReset, NoLaterStreamHasTheHandleOfOneThatIsGone) {
  in_a_child([] {
    use_device(0);
    cuda::Stream old = nullptr;
    EXPECT_CUDA(cuStreamCreate(&old, cuda::kStreamNonBlocking));
    EXPECT_EQ(cuDevicePrimaryCtxReset_v2(0), 0);
    use_device(0);
    for (int i = 0; i < 100; ++i) {
      cuda::Stream made = nullptr;
      EXPECT_CUDA(cuStreamCreate(&made, cuda::kStreamNonBlocking));
      EXPECT_NE(made, old);
    }
    EXPECT_EQ(cuStreamQuery(old), cuda::kErrorInvalidHandle);
  });
}

// In host mode, with processes: the handler of one rank is refused both times.
TEST(TwiceAtExitInHostMode, TheOthersOfARefusedCallAreToldWhenItsProcessEnds) {
  const ncclUniqueId id = make_id();
  static ncclComm_t comm;
  static int rank;
  std::vector<pid_t> children;
  for (rank = 0; rank < 2; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(kPatienceS);
    std::atexit(end);
    EXPECT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    const auto sum = [] {
      int value = 1;
      EXPECT_NCCL(ncclGroupStart());
      int* const data = rank == 0 ? &value : nullptr;
      (void)ncclAllReduce(data, data, 1, ncclInt, ncclSum, comm, nullptr);
      EXPECT_EQ(ncclGroupEnd(), rank == 0 ? ncclRemoteError : ncclInvalidArgument);
    };
    std::atexit(sum);
    std::atexit(sum);
    std::exit(0);
  }
  for (const pid_t pid : children) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), kEnded);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TwiceAtExit, testing::ValuesIn(all_setups()), name_of);

}  // namespace
}  // namespace weir::nccl::test
