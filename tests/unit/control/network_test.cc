// SPDX-License-Identifier: Apache-2.0
// The control network among ranks of one process, and of processes that die.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/control/network_address.h"
#include "core/control/overlay.h"
#include "core/control/socket_network.h"

namespace weir::control {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kSecondNs = 1'000'000'000;

NetworkConfig config_of(Rank rank, Rank count, bool leaves_host) {
  NetworkConfig config;
  config.comm_id = 7;
  config.rank = rank;
  config.rank_count = count;
  config.secret = secret_from_text("network test");
  config.leaves_host = leaves_host;
  return config;
}

// All ranks of a communicator in this process.
class Job {
 public:
  // `leaves_late`: only after it has been opened.
  Job(Rank count, bool leaves_host, net::TlsMode tls = net::TlsMode::kOff, bool seems_apart = true,
      bool leaves_late = false) {
    seems_apart = seems_apart && leaves_host;
    std::vector<std::string> addresses;
    for (Rank r = 0; r < count; ++r) {
      NetworkConfig config = config_of(r, count, leaves_host && !leaves_late);
      config.tls = tls;
      auto made = SocketNetwork::make(config);
      EXPECT_TRUE(made.ok()) << made.status().text();
      ranks.push_back(made.take());
      if (leaves_late) {
        EXPECT_TRUE(ranks.back()->leave_host().ok());
      }
      std::string address = ranks.back()->address();
      // Another host's, as far as the others can tell.
      if (seems_apart) address[12] = static_cast<char>(address[12] ^ static_cast<char>(r + 1));
      addresses.push_back(address);
    }
    std::vector<std::thread> threads;
    statuses.resize(count);
    for (Rank r = 0; r < count; ++r) {
      threads.emplace_back([&, r] {
        std::vector<std::string> own = addresses;
        if (seems_apart) own[r] = ranks[r]->address();
        statuses[r] = ranks[r]->join(own, now_ns() + 20 * kSecondNs, {});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.text();
  }
  ~Job() {
    for (auto& rank : ranks) {
      if (rank != nullptr) rank->leave();
    }
  }

  std::vector<std::unique_ptr<SocketNetwork>> ranks;
  std::vector<Status> statuses;
};

template <typename Condition>
bool becomes_true(const Condition& condition, uint64_t patience_ns = 5 * kSecondNs) {
  const uint64_t until_ns = now_ns() + patience_ns;
  while (!condition()) {
    if (now_ns() > until_ns) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}

bool everybody_shows(const Job& job, Rank of, const std::string& notice) {
  for (const auto& rank : job.ranks) {
    if (rank == nullptr) continue;
    std::string seen;
    uint32_t version = 0;
    (void)rank->read(of, &version, &seen);
    if (seen != notice) return false;
  }
  return true;
}

bool everybody_sees(const Job& job, Rank of, Life life) {
  for (Rank r = 0; r < job.ranks.size(); ++r) {
    if (job.ranks[r] != nullptr && r != of && job.ranks[r]->life(of) != life) return false;
  }
  return true;
}

struct Way {
  bool leaves_host;
  net::TlsMode tls;
};

class NetworkOver : public testing::TestWithParam<Way> {};

TEST_P(NetworkOver, ANoticeReachesEveryRankAndTheLatestOneStays) {
  for (const Rank count : {2u, 3u, 5u, 16u}) {
    Job job(count, GetParam().leaves_host, GetParam().tls);
    for (int i = 0; i < 50; ++i) job.ranks[count - 1]->show("notice " + std::to_string(i));
    EXPECT_TRUE(becomes_true([&] { return everybody_shows(job, count - 1, "notice 49"); }));
    job.ranks[0]->show(std::string(kNoticeBytesMax, 'x'));
    EXPECT_TRUE(
        becomes_true([&] { return everybody_shows(job, 0, std::string(kNoticeBytesMax, 'x')); }));
    EXPECT_TRUE(everybody_shows(job, count - 1, "notice 49"));
  }
}

TEST_P(NetworkOver, WhoLeavesHasLeftAndHasNotDied) {
  Job job(5, GetParam().leaves_host, GetParam().tls);
  job.ranks[3]->show("last words");
  job.ranks[3]->leave();
  job.ranks[3].reset();
  EXPECT_TRUE(becomes_true([&] { return everybody_sees(job, 3, Life::kLeft); }));
  EXPECT_TRUE(everybody_shows(job, 3, "last words"));
  std::this_thread::sleep_for(100ms);
  EXPECT_TRUE(everybody_sees(job, 3, Life::kLeft));
}

TEST_P(NetworkOver, WhoEndsWithoutAGoodbyeHasDied) {
  Job job(6, GetParam().leaves_host, GetParam().tls);
  const uint64_t began_ns = now_ns();
  job.ranks[2].reset();
  EXPECT_TRUE(becomes_true([&] { return everybody_sees(job, 2, Life::kLost); }));
  EXPECT_LT(now_ns() - began_ns, kSecondNs);
  for (const Rank r : {0u, 1u, 3u, 4u, 5u}) EXPECT_TRUE(everybody_sees(job, r, Life::kHere)) << r;
}

TEST_P(NetworkOver, MessagesArriveInOrderBetweenAnyTwoRanks) {
  constexpr Rank kCount = 11;
  Job job(kCount, GetParam().leaves_host, GetParam().tls);
  for (int i = 0; i < 20; ++i) {
    for (Rank from = 0; from < kCount; ++from) {
      for (Rank to = 0; to < kCount; ++to) {
        if (from == to) continue;
        const std::string text = std::to_string(from) + ":" + std::to_string(i);
        ASSERT_TRUE(job.ranks[from]->send(to, 0, text).ok());
      }
    }
  }
  for (Rank from = 0; from < kCount; ++from) {
    for (Rank to = 0; to < kCount; ++to) {
      if (from == to) continue;
      for (int i = 0; i < 20; ++i) {
        std::string text;
        ASSERT_TRUE(becomes_true([&] { return job.ranks[to]->receive(from, 0, &text); }))
            << from << " to " << to << ", message " << i;
        EXPECT_EQ(text, std::to_string(from) + ":" + std::to_string(i));
      }
    }
  }
}

TEST_P(NetworkOver, ALinkThatIsNotUsedIsClosedAndMadeAgain) {
  constexpr Rank kCount = 16;  // 0 and 3 are no neighbors
  Job job(kCount, GetParam().leaves_host, GetParam().tls);
  const size_t before = job.ranks[0]->link_count();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(job.ranks[0]->send(3, 0, std::to_string(i)).ok());
    ASSERT_TRUE(job.ranks[3]->send(0, 0, "back").ok());
    for (int i = 0; i < 100; ++i) {
      std::string text;
      ASSERT_TRUE(becomes_true([&] { return job.ranks[3]->receive(0, 0, &text); })) << i;
      EXPECT_EQ(text, std::to_string(i));
    }
    std::string text;
    ASSERT_TRUE(becomes_true([&] { return job.ranks[0]->receive(3, 0, &text); }));
    EXPECT_EQ(job.ranks[0]->link_count(), before + 1);
    EXPECT_TRUE(becomes_true([&] { return job.ranks[0]->link_count() == before; }));
    EXPECT_EQ(job.ranks[0]->life(3), Life::kHere);
    EXPECT_EQ(job.ranks[3]->life(0), Life::kHere);
  }
}

TEST_P(NetworkOver, WhatWasSaidBeforeTheEndIsHeardAfterIt) {
  Job job(3, GetParam().leaves_host, GetParam().tls);
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(job.ranks[1]->send(0, 5, std::to_string(i)).ok());
  ASSERT_TRUE(job.ranks[1]->flush(0, now_ns() + 5 * kSecondNs).ok());
  job.ranks[1]->leave();
  job.ranks[1].reset();
  EXPECT_TRUE(becomes_true([&] { return job.ranks[0]->life(1) == Life::kLeft; }));
  for (int i = 0; i < 20; ++i) {
    std::string text;
    ASSERT_TRUE(becomes_true([&] { return job.ranks[0]->receive(1, 5, &text); })) << i;
    EXPECT_EQ(text, std::to_string(i));
  }
  std::string text;
  EXPECT_FALSE(job.ranks[0]->receive(1, 5, &text));
  EXPECT_EQ(job.ranks[0]->send(1, 5, "too late").code(), Code::kPeerLost);
}

TEST_P(NetworkOver, TheLongestMessageArrivesAndALongerOneIsRefused) {
  Job job(2, GetParam().leaves_host, GetParam().tls);
  const std::string longest(kMessageBytesMax, 'm');
  ASSERT_TRUE(job.ranks[0]->send(1, 0, longest).ok());
  EXPECT_EQ(job.ranks[0]->send(1, 0, longest + "m").code(), Code::kInvalidArgument);
  ASSERT_TRUE(job.ranks[0]->send(1, 0, "next").ok());
  std::string text;
  ASSERT_TRUE(becomes_true([&] { return job.ranks[1]->receive(0, 0, &text); }));
  EXPECT_EQ(text, longest);
  ASSERT_TRUE(becomes_true([&] { return job.ranks[1]->receive(0, 0, &text); }));
  EXPECT_EQ(text, "next");
}

TEST_P(NetworkOver, WhoSaysMoreThanIsEverHeardIsCutOff) {
  Job job(3, GetParam().leaves_host, GetParam().tls);
  for (int i = 0; i < 1100; ++i) (void)job.ranks[1]->send(0, 0, "not heard");
  EXPECT_TRUE(becomes_true([&] { return job.ranks[0]->life(1) == Life::kLost; }));
  EXPECT_TRUE(job.ranks[0]->is_cut_off(1)) << "it lives";
  EXPECT_EQ(job.ranks[0]->life(2), Life::kHere);
  EXPECT_EQ(job.ranks[2]->life(1), Life::kHere);
}

// Breaks the process's connections over TCP, with what is on its way.
int break_connections() {
  int count = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    tcp_info info{};
    socklen_t bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) continue;
    if (info.tcpi_state != TCP_ESTABLISHED || shutdown(fd, SHUT_RDWR) != 0) continue;
    ++count;
  }
  return count;
}

TEST_P(NetworkOver, LinksThatBreakAreMadeAgainAndLoseNoMessage) {
  constexpr Rank kCount = 4;
  constexpr int kMessages = 400;
  Job job(kCount, GetParam().leaves_host, GetParam().tls);
  std::atomic<bool> ends{false};
  int broken = 0;
  std::thread breaks([&] {
    while (!ends) {
      broken += break_connections();
      std::this_thread::sleep_for(30ms);
    }
  });
  const auto text_of = [](Rank from, Rank to, int i) {
    const std::string head = std::to_string(from) + "-" + std::to_string(to) + "-";
    return head + std::to_string(i) + std::string(static_cast<size_t>(i % 7 * 1000), 'm');
  };
  std::vector<int> arrived(size_t{kCount} * kCount);
  const auto take = [&] {
    int missing = 0;
    for (Rank from = 0; from < kCount; ++from) {
      for (Rank to = 0; to < kCount; ++to) {
        int& count = arrived[from * kCount + to];
        std::string text;
        while (from != to && job.ranks[to]->receive(from, 0, &text)) {
          EXPECT_EQ(text, text_of(from, to, count)) << "message " << count;
          ++count;
        }
        missing += from != to ? kMessages - count : 0;
      }
    }
    return missing;
  };
  for (int i = 0; i < kMessages; ++i) {
    for (Rank from = 0; from < kCount; ++from) {
      for (Rank to = 0; to < kCount; ++to) {
        if (from == to) continue;
        ASSERT_TRUE(job.ranks[from]->send(to, 0, text_of(from, to, i)).ok());
      }
    }
    job.ranks[0]->show("notice " + std::to_string(i));
    std::this_thread::sleep_for(2ms);
    (void)take();
  }
  EXPECT_TRUE(becomes_true([&] { return take() == 0; }, 20 * kSecondNs))
      << take() << " are missing";
  ends = true;
  breaks.join();
  EXPECT_EQ(broken > 50, GetParam().leaves_host) << broken;
  for (Rank r = 0; r < kCount; ++r) EXPECT_TRUE(everybody_sees(job, r, Life::kHere)) << r;
  const std::string last = "notice " + std::to_string(kMessages - 1);
  EXPECT_TRUE(becomes_true([&] { return everybody_shows(job, 0, last); }));
}

TEST_P(NetworkOver, TwoRanksThatSayNothingToEachOtherShareAKey) {
  Job job(9, GetParam().leaves_host, GetParam().tls);
  const net::Mac key = job.ranks[0]->pair_key(3, "data");
  EXPECT_EQ(job.ranks[3]->pair_key(0, "data"), key);
  EXPECT_NE(job.ranks[3]->pair_key(0, "other"), key);
  EXPECT_NE(job.ranks[3]->pair_key(1, "data"), key);
}

// It has no listener of the network until then.
TEST(Network, RanksOfOtherHostsConnectOnceItListensForThem) {
  NetworkAddress address;
  auto alone = SocketNetwork::make(config_of(0, 2, false));
  ASSERT_TRUE(alone.ok()) << alone.status().text();
  ASSERT_TRUE(NetworkAddress::unpack(alone.value()->address(), &address));
  EXPECT_TRUE(address.offers.empty());
  ASSERT_TRUE(alone.value()->leave_host().ok());
  ASSERT_TRUE(NetworkAddress::unpack(alone.value()->address(), &address));
  EXPECT_FALSE(address.offers.empty());

  for (const net::TlsMode tls : {net::TlsMode::kOff, net::TlsMode::kControl}) {
    Job job(5, true, tls, true, true);
    job.ranks[4]->show("from afar");
    EXPECT_TRUE(becomes_true([&] { return everybody_shows(job, 4, "from afar"); }));
    EXPECT_EQ(job.ranks[0]->describe(1).find("Unix"), std::string::npos);
    EXPECT_NE(job.ranks[0]->describe(1), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, NetworkOver,
                         testing::Values(Way{false, net::TlsMode::kOff},
                                         Way{true, net::TlsMode::kOff},
                                         Way{true, net::TlsMode::kControl},
                                         Way{true, net::TlsMode::kAll}),
                         [](const auto& test) {
                           return !test.param.leaves_host ? std::string("UnixSockets")
                                  : test.param.tls == net::TlsMode::kOff
                                      ? std::string("Tcp")
                                      : std::string("Tls_") + net::name_of(test.param.tls);
                         });

TEST(Network, ADescriptorIsPassedAlongATree) {
  constexpr Rank kCount = 13;
  Job job(kCount, false);
  const int memory = memfd_create("weir network test", MFD_CLOEXEC);
  ASSERT_GE(memory, 0);
  ASSERT_EQ(write(memory, "shared", 6), 6);
  const Network::Key key = {1, 2, 3};
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (Rank r = 1; r < kCount; ++r) {
    threads.emplace_back([&, r] {
      auto got = job.ranks[r]->fetch(tree_parent(r), key, now_ns() + 10 * kSecondNs, {});
      ASSERT_TRUE(got.ok()) << got.status().text();
      EXPECT_TRUE(job.ranks[r]->offer(key, got.value()).ok());
      char bytes[6] = {};
      if (pread(got.value(), bytes, 6, 0) == 6 && std::string(bytes, 6) == "shared") ++good;
      close(got.value());
    });
  }
  std::this_thread::sleep_for(20ms);  // they ask before it is offered
  ASSERT_TRUE(job.ranks[0]->offer(key, memory).ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, static_cast<int>(kCount) - 1);
  close(memory);
}

TEST(Network, WhatIsSaidBeforeTheRanksJoinArrivesAfterwards) {
  auto one = SocketNetwork::make(config_of(0, 2, false));
  auto two = SocketNetwork::make(config_of(1, 2, false));
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_TRUE(one.value()->send(1, 0, "early").ok());
  EXPECT_EQ(one.value()->fetch(1, {1}, now_ns() + kSecondNs, {}).status().code(),
            Code::kInvalidUsage);
  const std::vector<std::string> addresses = {one.value()->address(), two.value()->address()};
  std::thread other(
      [&] { EXPECT_TRUE(two.value()->join(addresses, now_ns() + 5 * kSecondNs, {}).ok()); });
  EXPECT_TRUE(one.value()->join(addresses, now_ns() + 5 * kSecondNs, {}).ok());
  other.join();
  std::string text;
  EXPECT_TRUE(becomes_true([&] { return two.value()->receive(0, 0, &text); }));
  EXPECT_EQ(text, "early");
  one.value()->leave();
  two.value()->leave();
}

TEST(Network, FetchingFromARankThatDiesEnds) {
  Job job(3, false);
  std::thread ends([&] {
    std::this_thread::sleep_for(50ms);
    job.ranks[1].reset();
  });
  const auto got = job.ranks[0]->fetch(1, {9}, now_ns() + 10 * kSecondNs, {});
  ends.join();
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.status().code(), Code::kPeerLost);
  const auto late = job.ranks[0]->fetch(2, {9}, now_ns() + kSecondNs / 5, {});
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.status().code(), Code::kTimeout);
}

// In a process of its own, whose limit is its own, too.
TEST(Network, ADescriptorForWhichThereIsNoRoomIsToldAndTheLinkStays) {
  int up[2];
  int down[2];
  ASSERT_EQ(pipe(up), 0);
  ASSERT_EQ(pipe(down), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto made = SocketNetwork::make(config_of(1, 2, false));
    if (!made.ok()) _exit(1);
    const std::string own = made.value()->address();
    (void)!write(up[1], own.data(), own.size());
    std::string other(own.size(), '\0');
    if (read(down[0], other.data(), other.size()) != static_cast<ssize_t>(other.size())) _exit(2);
    if (!made.value()->join({other, own}, now_ns() + 5 * kSecondNs, {}).ok()) _exit(3);
    rlimit limit{};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = std::exchange(limit.rlim_cur, 3);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(4);
    const auto none = made.value()->fetch(0, {7}, now_ns() + 20 * kSecondNs, {});
    if (none.ok() || none.status().text().find("ulimit -n") == std::string::npos) _exit(5);
    limit.rlim_cur = before;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(6);
    if (!made.value()->fetch(0, {7}, now_ns() + 20 * kSecondNs, {}).ok()) _exit(7);
    // Rank 0 may answer before its own join has returned, which fails where rank 1 ends.
    char joined = 0;
    _exit(read(down[0], &joined, 1) == 1 ? 0 : 8);
  }
  auto made = SocketNetwork::make(config_of(0, 2, false));
  ASSERT_TRUE(made.ok());
  ASSERT_TRUE(made.value()->offer({7}, up[0]).ok());
  const std::string own = made.value()->address();
  std::string other(own.size(), '\0');
  ASSERT_EQ(read(up[0], other.data(), other.size()), static_cast<ssize_t>(other.size()));
  ASSERT_EQ(write(down[1], own.data(), own.size()), static_cast<ssize_t>(own.size()));
  const Status joined = made.value()->join({own, other}, now_ns() + 5 * kSecondNs, {});
  EXPECT_TRUE(joined.ok()) << joined.text();
  ASSERT_EQ(write(down[1], "1", 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const int fd : {up[0], up[1], down[0], down[1]}) close(fd);
}

// In a process of its own, whose limit is its own, too.
TEST(Network, ADescriptorThatItsOwnerCannotCopyIsToldToWhoWaitsForIt) {
  int up[2];
  int down[2];
  ASSERT_EQ(pipe(up), 0);
  ASSERT_EQ(pipe(down), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto made = SocketNetwork::make(config_of(1, 2, false));
    if (!made.ok() || !made.value()->offer({8}, up[0]).ok()) _exit(1);
    const std::string own = made.value()->address();
    (void)!write(up[1], own.data(), own.size());
    std::string other(own.size(), '\0');
    if (read(down[0], other.data(), other.size()) != static_cast<ssize_t>(other.size())) _exit(2);
    if (!made.value()->join({other, own}, now_ns() + 5 * kSecondNs, {}).ok()) _exit(3);
    rlimit limit{};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    const rlim_t before = std::exchange(limit.rlim_cur, 3);
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(4);
    char word = 'w';
    if (write(up[1], &word, 1) != 1 || read(down[0], &word, 1) != 1) _exit(5);
    limit.rlim_cur = before;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(6);
    if (write(up[1], &word, 1) != 1 || read(down[0], &word, 1) != 1) _exit(7);
    _exit(0);
  }
  auto made = SocketNetwork::make(config_of(0, 2, false));
  ASSERT_TRUE(made.ok());
  const std::string own = made.value()->address();
  std::string other(own.size(), '\0');
  ASSERT_EQ(read(up[0], other.data(), other.size()), static_cast<ssize_t>(other.size()));
  ASSERT_EQ(write(down[1], own.data(), own.size()), static_cast<ssize_t>(own.size()));
  const Status joined = made.value()->join({own, other}, now_ns() + 5 * kSecondNs, {});
  ASSERT_TRUE(joined.ok()) << joined.text();
  char word = 0;
  ASSERT_EQ(read(up[0], &word, 1), 1);
  const auto none = made.value()->fetch(1, {8}, now_ns() + 20 * kSecondNs, {});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), Code::kSystem) << none.status().text();
  EXPECT_NE(none.status().text().find("the process of rank 1 is out of file descriptors"),
            std::string::npos)
      << none.status().text();
  ASSERT_EQ(write(down[1], &word, 1), 1);
  ASSERT_EQ(read(up[0], &word, 1), 1);
  const auto some = made.value()->fetch(1, {8}, now_ns() + 20 * kSecondNs, {});
  ASSERT_TRUE(some.ok()) << some.status().text();
  close(some.value());
  ASSERT_EQ(write(down[1], &word, 1), 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (const int fd : {up[0], up[1], down[0], down[1]}) close(fd);
}

TEST(Network, LinksGrowWithTheLogarithmOfTheNumberOfRanks) {
  for (const Rank count : {16u, 64u, 256u}) {
    Job job(count, false);
    const auto bound = static_cast<size_t>(2 * std::log2(count));
    for (const auto& rank : job.ranks) {
      EXPECT_LE(rank->link_count(), bound);
      EXPECT_LE(rank->descriptor_count(), bound + 1);
    }
    job.ranks[0]->show("hello");
    EXPECT_TRUE(becomes_true([&] { return everybody_shows(job, 0, "hello"); }));
    uint64_t frames = 0;
    for (const auto& rank : job.ranks) frames = std::max(frames, rank->frame_count());
    EXPECT_LE(frames, bound);
  }
}

// One thread answers for all of them, and takes its time: who goes on to the next address of a rank
// whose socket has taken the connection makes it slower still.
TEST(Network, ManyRanksOfAHostMeetWithoutTryingTheNetwork) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  const uint64_t began_ns = now_ns();
  {
    const Job job(256, true, net::TlsMode::kOff, false);
    EXPECT_LT(now_ns() - began_ns, 15 * kSecondNs);
  }
  limit.rlim_cur = before;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(Network, DeathsInTheMiddleCutNobodyOff) {
  constexpr Rank kCount = 32;
  Job job(kCount, false);
  // All neighbors of rank 0, at once and one after the other.
  for (const Rank neighbor : neighbors(0, kCount)) job.ranks[neighbor].reset();
  for (const Rank neighbor : neighbors(0, kCount)) {
    EXPECT_TRUE(becomes_true([&] { return everybody_sees(job, neighbor, Life::kLost); }))
        << neighbor;
  }
  job.ranks[0]->show("still here");
  EXPECT_TRUE(becomes_true([&] { return everybody_shows(job, 0, "still here"); }));
}

TEST(Network, TheLastFewOfManyStayConnected) {
  constexpr Rank kCount = 40;
  Job job(kCount, false);
  for (Rank r = 0; r < kCount; ++r) {
    if (r % 13 == 5) continue;  // 5, 18, 31 stay
    job.ranks[r]->leave();
    job.ranks[r].reset();
  }
  job.ranks[18]->show("hello");
  EXPECT_TRUE(becomes_true([&] { return everybody_shows(job, 18, "hello"); }));
  job.ranks[31].reset();
  EXPECT_TRUE(becomes_true([&] {
    return job.ranks[5]->life(31) == Life::kLost && job.ranks[18]->life(31) == Life::kLost;
  }));
}

TEST(Network, ARankToWhichNoAddressLeadsFromHereIsLostWithItsLink) {
  std::vector<std::unique_ptr<SocketNetwork>> ranks;
  std::vector<std::string> addresses;
  for (Rank r = 0; r < 2; ++r) {
    auto made = SocketNetwork::make(config_of(r, 2, false));
    ASSERT_TRUE(made.ok()) << made.status().text();
    ranks.push_back(made.take());
    addresses.push_back(ranks.back()->address());
  }
  // Rank 1 connects; what rank 0 is told of it leads nowhere.
  NetworkAddress nowhere;
  ASSERT_TRUE(NetworkAddress::unpack(addresses[1], &nowhere));
  nowhere.host = {};
  nowhere.offers.clear();
  Status joined;
  std::thread other([&] { joined = ranks[1]->join(addresses, now_ns() + 20 * kSecondNs, {}); });
  const Status own = ranks[0]->join({addresses[0], nowhere.pack()}, now_ns() + 20 * kSecondNs, {});
  other.join();
  ASSERT_TRUE(own.ok()) << own.text();
  ASSERT_TRUE(joined.ok()) << joined.text();
  ranks[1].reset();
  EXPECT_TRUE(becomes_true([&] { return ranks[0]->life(1) == Life::kLost; }));
}

TEST(Network, ARankWithAnotherSecretIsNotLetIn) {
  auto one = SocketNetwork::make(config_of(0, 2, false));
  NetworkConfig other = config_of(1, 2, false);
  other.secret = secret_from_text("another");
  auto two = SocketNetwork::make(other);
  ASSERT_TRUE(one.ok() && two.ok());
  const std::vector<std::string> addresses = {one.value()->address(), two.value()->address()};
  std::thread host([&] {
    const Status joined = one.value()->join(addresses, now_ns() + kSecondNs / 2, {});
    EXPECT_EQ(joined.code(), Code::kTimeout) << joined.text();
  });
  const Status joined = two.value()->join(addresses, now_ns() + 5 * kSecondNs, {});
  EXPECT_EQ(joined.code(), Code::kRefused) << joined.text();
  host.join();
}

TEST(Network, WhoIsMissingIsNamed) {
  auto one = SocketNetwork::make(config_of(0, 3, false));
  auto two = SocketNetwork::make(config_of(1, 3, false));
  auto three = SocketNetwork::make(config_of(2, 3, false));
  ASSERT_TRUE(one.ok() && two.ok() && three.ok());
  const std::vector<std::string> addresses = {one.value()->address(), two.value()->address(),
                                              three.value()->address()};
  three.value().reset();
  std::thread host([&] { (void)one.value()->join(addresses, now_ns() + kSecondNs / 4, {}); });
  const Status joined = two.value()->join(addresses, now_ns() + kSecondNs / 4, {});
  host.join();
  EXPECT_EQ(joined.code(), Code::kTimeout);
  EXPECT_NE(joined.text().find("rank 2 of 3"), std::string::npos) << joined.text();
}

// Rank 1 is another process, which is killed while a child of its own still holds its connections.
TEST(Network, AProcessThatIsKilledHasDiedAlsoWhileItsChildLives) {
  int up[2];
  int down[2];
  ASSERT_EQ(pipe(up), 0);
  ASSERT_EQ(pipe(down), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto made = SocketNetwork::make(config_of(1, 2, false));
    if (!made.ok()) _exit(1);
    const std::string own = made.value()->address();
    (void)!write(up[1], own.data(), own.size());
    std::string other(own.size(), '\0');
    if (read(down[0], other.data(), other.size()) != static_cast<ssize_t>(other.size())) _exit(2);
    if (!made.value()->join({other, own}, now_ns() + 5 * kSecondNs, {}).ok()) _exit(3);
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      made.value().reset();  // tells nobody
      pause();
      _exit(0);
    }
    (void)!write(up[1], &grandchild, sizeof grandchild);
    pause();
    _exit(0);
  }
  auto made = SocketNetwork::make(config_of(0, 2, false));
  ASSERT_TRUE(made.ok());
  const std::string own = made.value()->address();
  std::string other(own.size(), '\0');
  ASSERT_EQ(read(up[0], other.data(), other.size()), static_cast<ssize_t>(other.size()));
  ASSERT_EQ(write(down[1], own.data(), own.size()), static_cast<ssize_t>(own.size()));
  const Status joined = made.value()->join({own, other}, now_ns() + 5 * kSecondNs, {});
  ASSERT_TRUE(joined.ok()) << joined.text();
  pid_t grandchild = 0;
  ASSERT_EQ(read(up[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(made.value()->life(1), Life::kHere);
  const uint64_t began_ns = now_ns();
  kill(child, SIGKILL);
  EXPECT_TRUE(becomes_true([&] { return made.value()->life(1) == Life::kLost; }));
  EXPECT_FALSE(made.value()->is_cut_off(1));
  EXPECT_LT(now_ns() - began_ns, kSecondNs);
  kill(grandchild, SIGKILL);
  waitpid(child, nullptr, 0);
  for (const int fd : {up[0], up[1], down[0], down[1]}) close(fd);
}

}  // namespace
}  // namespace weir::control
