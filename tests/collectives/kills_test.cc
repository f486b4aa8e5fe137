// SPDX-License-Identifier: Apache-2.0
// A rank is killed at any moment of the start and of the first operations, many times over. Whoever
// survives gets an error and goes on, in time: none of them crashes, none of them hangs, and those
// that have shrunk the communicator add up as many as they are. Everything else is as a user has
// it.
//
// WEIR_TEST_ROUNDS: how many kills; WEIR_TEST_SEED: where the first round begins.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"

namespace {

// This process dies as soon as it connects to another rank over the network.
bool dies_as_it_connects = false;

}  // namespace

// In place of the system's.
extern "C" __attribute__((visibility("default"))) int connect(int fd, const sockaddr* address,
                                                              socklen_t bytes) {
  if (dies_as_it_connects && address->sa_family != AF_UNIX) kill(getpid(), SIGKILL);
  return static_cast<int>(syscall(SYS_connect, fd, address, bytes));
}

namespace weir::test {
namespace {

constexpr int kRanks = 4;
constexpr int kTimeoutMs = 60'000;
constexpr unsigned kHangSeconds = 240;

// How a survivor ended.
enum Ended : int { kWentOn = 0, kNotMade = 10, kNotShrunk = 11, kWrong = 12 };

struct Moment {
  int victim;
  int operation;  // that it dies in; 0: in the start
  int delay_us;   // from the beginning of that
  size_t count;   // of elements
};

// What the ranks were told on their way, in memory that they share with the test: it outlives who
// crashes.
class Told {
 public:
  Told()
      : texts_(static_cast<Text*>(mmap(nullptr, kRanks * sizeof(Text), PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~Told() { munmap(texts_, kRanks * sizeof(Text)); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  void clear() { memset(texts_, 0, kRanks * sizeof(Text)); }
  void add(int rank, const std::string& what) {
    char* const text = texts_[rank];
    const size_t at = strlen(text);
    (void)snprintf(text + at, sizeof(Text) - at, "\n    %s", what.c_str());
  }
  const char* of(int rank) const { return texts_[rank]; }

 private:
  using Text = char[8192];
  Text* const texts_;
};

int number_from(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != nullptr ? atoi(text) : otherwise;
}

void die_in(int delay_us) {
  std::thread([delay_us] {
    usleep(static_cast<useconds_t>(delay_us));
    kill(getpid(), SIGKILL);
  }).detach();
}

Ended live(int rank, const weir_unique_id_t& id, const Moment& moment, Told* told) {
  const auto start = Clock::now();
  const auto tell = [&](const std::string& what, weir_comm_t comm) {
    told->add(rank, "after " + std::to_string(seconds_since(start)) + " s: " + what + ": " +
                        weir_last_error(comm));
  };
  const bool dies = rank == moment.victim;
  if (dies && moment.operation == 0) die_in(moment.delay_us);
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kTimeoutMs;
  weir_comm_t comm = nullptr;
  if (weir_comm_create(&comm, kRanks, &id, rank, &config) != WEIR_OK) {
    tell("weir_comm_create", nullptr);
    return kNotMade;
  }
  std::vector<float> data(moment.count, 1.0f);
  weir_result_t result = WEIR_OK;
  for (int operation = 1; result == WEIR_OK; ++operation) {
    if (dies && operation == moment.operation) die_in(moment.delay_us);
    result = weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, WEIR_MAX,
                             nullptr);
  }
  if (dies) {
    for (;;) pause();
  }
  std::array<int, kRanks> lost{};
  int lost_count = 0;
  tell("weir_all_reduce", comm);
  if (weir_comm_lost_ranks(comm, lost.data(), kRanks, &lost_count) != WEIR_OK) return kWrong;
  std::string list;
  for (int i = 0; i < lost_count; ++i) list += " " + std::to_string(lost[static_cast<size_t>(i)]);
  told->add(rank, "lost:" + list);
  weir_comm_t smaller = nullptr;
  Ended ended = kNotShrunk;
  if (weir_comm_shrink(comm, lost.data(), lost_count, &config, &smaller) == WEIR_OK) {
    int64_t value = 1;
    result = weir_all_reduce(smaller, &value, &value, 1, WEIR_INT64, WEIR_SUM, nullptr);
    if (result == WEIR_OK) {
      ended = value == kRanks - lost_count ? kWentOn : kWrong;
    } else {
      tell("weir_all_reduce of the rest", smaller);
    }
    if (weir_comm_destroy(smaller) != WEIR_OK) ended = kWrong;
  } else {
    tell("weir_comm_shrink", comm);
  }
  return weir_comm_destroy(comm) == WEIR_OK ? ended : kWrong;
}

// Excludes rank 0 while the last rank dies in the shrink, when all have met and connect; then both.
void shrink_twice(int rank, weir_comm_t comm) {
  const int excluded = 0;
  if (rank == excluded) return;
  dies_as_it_connects = rank == kRanks - 1;
  const auto start = Clock::now();
  weir_comm_t smaller = nullptr;
  EXPECT_EQ(weir_comm_shrink(comm, &excluded, 1, nullptr, &smaller), WEIR_ERROR_PEER_LOST)
      << weir_last_error(comm);
  EXPECT_LT(seconds_since(start), kTimeoutMs / 2000.0) << weir_last_error(comm);
  std::array<int, kRanks> lost{};
  int lost_count = 0;
  EXPECT_EQ(weir_comm_lost_ranks(comm, lost.data(), kRanks, &lost_count), WEIR_OK);
  std::set<int> out(lost.begin(), lost.begin() + lost_count);
  EXPECT_EQ(out.count(kRanks - 1), 1u);
  EXPECT_EQ(out.count(kRanks - 1 - rank), 0u) << "the other survivor";
  const std::array<int, 2> both = {0, kRanks - 1};
  ASSERT_EQ(weir_comm_shrink(comm, both.data(), 2, nullptr, &smaller), WEIR_OK)
      << weir_last_error(comm);
  int64_t value = 1;
  EXPECT_EQ(weir_all_reduce(smaller, &value, &value, 1, WEIR_INT64, WEIR_SUM, nullptr), WEIR_OK)
      << weir_last_error(smaller);
  EXPECT_EQ(value, kRanks - 2);
  EXPECT_EQ(weir_comm_destroy(smaller), WEIR_OK);
}

TEST(Kills, WhileTheRestOfAShrinkConnectAreToldAtOnce) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kTimeoutMs;
  const std::vector<int> statuses = run_processes_each(
      kRanks, shrink_twice,
      [](int rank) {
        return Environment{{"WEIR_HOST_ID", std::to_string(rank)}};
      },
      config);
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 0, 128 + SIGKILL}));
}

// As when the machine stalls a process that ends: what carries the messages is gone, and only later
// the connections that tell of its death, which are told by how they were made (net/ip_socket.cc).
void die_slowly(int) {
  const int nothing = open("/dev/null", O_RDWR);
  for (int fd = 3; fd < 1024; ++fd) {
    int domain = 0;
    socklen_t bytes = sizeof domain;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain == AF_UNIX) continue;
    unsigned int timeout_ms = 0;
    bytes = sizeof timeout_ms;
    (void)getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &bytes);
    if (timeout_ms != 0) continue;
    const linger at_once = {1, 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    dup2(nothing, fd);
  }
  usleep(2'500'000);
  kill(getpid(), SIGKILL);
}

TEST(Kills, ThatTakeTheirTimeAreNamedByAll) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kTimeoutMs;
  const auto body = [](int rank, weir_comm_t comm) {
    std::vector<float> data(1'000'000, 1.0f);
    weir_result_t result = WEIR_OK;
    for (int operation = 0; result == WEIR_OK; ++operation) {
      if (rank == 0 && operation == 3) {
        signal(SIGALRM, die_slowly);
        const itimerval soon = {{0, 0}, {0, 1000}};
        setitimer(ITIMER_REAL, &soon, nullptr);
      }
      // Rank 1 sends to the one that dies, and waits for nobody.
      result =
          weir_broadcast(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, 1, nullptr);
    }
    const std::string told = weir_last_error(comm);
    int lost = -1;
    int lost_count = 0;
    EXPECT_EQ(weir_comm_lost_ranks(comm, &lost, 1, &lost_count), WEIR_OK);
    EXPECT_EQ(lost_count, 1) << told;
    EXPECT_EQ(lost, 0) << told;
    weir_comm_t smaller = nullptr;
    ASSERT_EQ(weir_comm_shrink(comm, &lost, lost_count, nullptr, &smaller), WEIR_OK)
        << weir_last_error(comm) << "\nafter " << told;
    EXPECT_EQ(weir_comm_destroy(smaller), WEIR_OK);
  };
  const std::vector<int> statuses = run_processes_each(
      kRanks, body,
      [](int rank) {
        return Environment{{"WEIR_HOST_ID", std::to_string(rank)}};
      },
      config);
  EXPECT_EQ(statuses, (std::vector<int>{128 + SIGKILL, 0, 0, 0}));
}

// Also where no operation has met the death before, and for a rank that comes before it.
TEST(Kills, AreNamedBySplitAtOnce) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kTimeoutMs;
  const auto body = [](int rank, weir_comm_t comm) {
    if (rank == 2) {
      usleep(300'000);
      kill(getpid(), SIGKILL);
    }
    if (rank == 1) usleep(1'000'000);
    const auto start = Clock::now();
    weir_comm_t made = nullptr;
    EXPECT_EQ(weir_comm_split(comm, 0, rank, nullptr, &made), WEIR_ERROR_PEER_LOST);
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(10));
    const std::string told = weir_last_error(comm);
    EXPECT_NE(told.find("rank 2 died before all ranks had called weir_comm_split"), told.npos)
        << told;
    // The communicator is as it was, but for that rank.
    const int lost = 2;
    ASSERT_EQ(weir_comm_shrink(comm, &lost, 1, nullptr, &made), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(weir_comm_destroy(made), WEIR_OK);
  };
  for (const bool one_host : {true, false}) {
    const std::vector<int> statuses = run_processes_each(
        kRanks, body,
        [&](int rank) {
          return Environment{{"WEIR_HOST_ID", one_host ? "0" : std::to_string(rank)}};
        },
        config);
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL, 0}));
  }
}

TEST(Kills, AtAnyMomentLeaveSurvivorsThatGoOn) {
  const auto seed = static_cast<unsigned>(number_from("WEIR_TEST_SEED", 1));
  const int rounds = number_from("WEIR_TEST_ROUNDS", 20);
  std::map<int, int> endings;
  Told told;
  for (int round = 0; round < rounds && !HasFailure(); ++round) {
    std::mt19937 random(seed + static_cast<unsigned>(round));
    Moment moment{};
    moment.victim = static_cast<int>(random() % kRanks);
    moment.operation = random() % 3 == 0 ? 0 : 1 + static_cast<int>(random() % 3);
    moment.delay_us = static_cast<int>(random() % (moment.operation == 0 ? 400'000 : 1'500));
    moment.count = std::array<size_t, 4>{1, 1000, 30'000, 1'000'000}[random() % 4];
    const weir_unique_id_t id = make_id();
    const auto start = Clock::now();
    std::vector<pid_t> children;
    std::fflush(nullptr);
    told.clear();
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(kHangSeconds);
        // As on as many hosts: shared memory would carry the messages.
        setenv("WEIR_HOST_ID", std::to_string(rank).c_str(), 1);
        setenv("WEIR_LOG_FILE", "/dev/null", 0);
        _exit(live(rank, id, moment, &told));
      }
      children.push_back(pid);
    }
    std::string ends;
    for (int rank = 0; rank < kRanks; ++rank) {
      int status = 0;
      ASSERT_EQ(waitpid(children[static_cast<size_t>(rank)], &status, 0),
                children[static_cast<size_t>(rank)]);
      if (rank == moment.victim) continue;
      const int ending = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      ends += "\n  rank " + std::to_string(rank) + " ended with " + std::to_string(ending) +
              told.of(rank);
      ++endings[ending];
      EXPECT_TRUE(WIFEXITED(status)) << "rank " << rank << ": signal " << WTERMSIG(status);
      EXPECT_NE(ending, kWrong);
      // Behind the first operation all were made: they hear of the death in one, and go on, all
      // three.
      if (moment.operation > 1) {
        EXPECT_EQ(ending, kWentOn);
      }
    }
    EXPECT_FALSE(HasFailure()) << "seed " << seed + static_cast<unsigned>(round) << ": victim "
                               << moment.victim << " in operation " << moment.operation << " after "
                               << moment.delay_us << " us, count " << moment.count << ", "
                               << seconds_since(start) << " s" << ends;
  }
  for (const auto& [ending, count] : endings) {
    std::printf("%d survivors ended with %d\n", count, ending);
  }
}

}  // namespace
}  // namespace weir::test
