// SPDX-License-Identifier: Apache-2.0
// Many ranks, several of them in each process, with several rails and a transport that stands by,
// on a busy machine: random collectives and messages, after which all leave at different times.
// Nobody dies, so nobody may be called dead, and every result is right.
//
// WEIR_TEST_SEED: of the first round; WEIR_TEST_ROUNDS: how many; WEIR_TEST_LOAD: threads that are
// busy beside.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

unsigned number_from(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 0)) : otherwise;
}

// Processes that take the cores from the ranks.
class Load {
 public:
  explicit Load(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (std::atomic<uint64_t> turns = 0;;) ++turns;
      }
      pids_.push_back(pid);
    }
  }
  ~Load() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> pids_;
};

struct Shape {
  int processes;
  int ranks_of_each;
  int rails;
  int calls;
  unsigned seed;
  int count() const { return processes * ranks_of_each; }
};

Shape shape_of(unsigned seed) {
  std::mt19937 random(seed);
  Shape shape{};
  shape.processes = 2 + static_cast<int>(random() % 7);
  shape.ranks_of_each =
      std::max(2, (20 + static_cast<int>(random() % 29)) / std::max(1, shape.processes));
  shape.rails = 2 + static_cast<int>(random() % 7);
  shape.calls = 4 + static_cast<int>(random() % 40);
  shape.seed = seed;
  return shape;
}

void expect_ok(weir_result_t result, const char* what, int rank, weir_comm_t comm) {
  EXPECT_EQ(result, WEIR_OK) << "rank " << rank << ", " << what << ": " << weir_last_error(comm);
}

void call_at_random(const Shape& shape, int rank, weir_comm_t comm) {
  const int n = shape.count();
  const auto total = static_cast<int32_t>(n * (n + 1) / 2);
  std::mt19937 random(shape.seed);  // the same on all ranks
  for (int call = 0; call < shape.calls && !testing::Test::HasFailure(); ++call) {
    const size_t sizes[] = {1, 37, 1000, 9000, 60'000};
    const size_t block = sizes[random() % 5];
    const int root = static_cast<int>(random() % static_cast<unsigned>(n));
    const int other = static_cast<int>(random() % static_cast<unsigned>(n));
    const unsigned kind = random() % 6;
    const auto pause_us = static_cast<useconds_t>(random() % 2000);
    const size_t all = kind < 2 ? block : std::min<size_t>(block, 3000) * static_cast<size_t>(n);
    std::vector<int32_t> in(all, rank + 1), out(all, -1);
    switch (kind) {
      case 0:
        expect_ok(
            weir_all_reduce(comm, in.data(), out.data(), block, WEIR_INT32, WEIR_SUM, nullptr),
            "all_reduce", rank, comm);
        EXPECT_EQ(out[block / 2], total);
        break;
      case 1:
        expect_ok(weir_broadcast(comm, in.data(), out.data(), block, WEIR_INT32, root, nullptr),
                  "broadcast", rank, comm);
        EXPECT_EQ(out[block - 1], root + 1);
        break;
      case 2:
      case 3: {
        const size_t each = all / static_cast<size_t>(n);
        const bool gathers = kind == 2;
        expect_ok(gathers ? weir_all_gather(comm, in.data(), out.data(), each, WEIR_INT32, nullptr)
                          : weir_all_to_all(comm, in.data(), out.data(), each, WEIR_INT32, nullptr),
                  gathers ? "all_gather" : "all_to_all", rank, comm);
        for (int p = 0; p < n; ++p) EXPECT_EQ(out[static_cast<size_t>(p) * each], p + 1);
        break;
      }
      case 4:
        // One way: the receiver may come much later than the sender.
        if (root == other) break;
        if (rank == root) {
          expect_ok(weir_send(comm, in.data(), block, WEIR_INT32, other, nullptr), "send", rank,
                    comm);
        } else if (rank == other) {
          usleep(pause_us);
          out.resize(block);
          expect_ok(weir_recv(comm, out.data(), block, WEIR_INT32, root, nullptr), "recv", rank,
                    comm);
          EXPECT_EQ(out[0], root + 1);
          EXPECT_EQ(out[block - 1], root + 1);
        }
        break;
      default:
        expect_ok(weir_barrier(comm, nullptr), "barrier", rank, comm);
    }
  }
}

void run_process(const Shape& shape, int process, const weir_unique_id_t& id) {
  rlimit limit{};
  (void)getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
  setenv("WEIR_TRANSPORT", "tcp", 1);
  setenv("WEIR_FAILOVER", "tcp", 0);
  setenv("WEIR_TCP_CONNECTIONS", std::to_string(shape.rails).c_str(), 1);
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = 120'000;
  std::vector<std::thread> threads;
  for (int i = 0; i < shape.ranks_of_each; ++i) {
    const int rank = process * shape.ranks_of_each + i;
    threads.emplace_back([&, rank] {
      run_rank(
          shape.count(), rank, id,
          [&](int, weir_comm_t comm) { call_at_random(shape, rank, comm); }, config);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RailsSoak, NobodyIsCalledDeadWhileAllLive) {
  const unsigned first = number_from("WEIR_TEST_SEED", std::random_device{}());
  const Load load(number_from("WEIR_TEST_LOAD", 0));
  for (unsigned round = 0; round < number_from("WEIR_TEST_ROUNDS", 1) && !HasFailure(); ++round) {
    const Shape shape = shape_of(first + round);
    const auto start = Clock::now();
    const weir_unique_id_t id = make_id();
    std::vector<pid_t> children;
    std::fflush(nullptr);
    for (int process = 0; process < shape.processes; ++process) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_process(shape, process, id);
        std::fflush(nullptr);
        _exit(testing::Test::HasFailure() ? 1 : 0);
      }
      children.push_back(pid);
    }
    for (const pid_t pid : children) {
      int status = 0;
      EXPECT_EQ(waitpid(pid, &status, 0), pid);
      EXPECT_EQ(status, 0);
    }
    std::printf("WEIR_TEST_SEED=%u: %d processes of %d ranks, %d rails, %d calls: %.2f s%s\n",
                shape.seed, shape.processes, shape.ranks_of_each, shape.rails, shape.calls,
                seconds_since(start), HasFailure() ? ", failed" : "");
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace weir::test
