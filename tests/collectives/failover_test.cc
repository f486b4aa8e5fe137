// SPDX-License-Identifier: Apache-2.0
// A transport fails between two ranks, by the hook fault or by death, in the middle of collectives,
// and the next one takes over. WEIR_TEST_TRANSPORT names the one that fails; it is tcp without it,
// and tcp takes over.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

constexpr int64_t kTimeoutMs = 60'000;

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

unsigned test_seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 0))
                         : std::random_device{}();
}

// The operations at which something fails: all of the first few, and then every `step`-th;
// WEIR_TEST_EVERY sets another step for all.
std::vector<unsigned> moments(unsigned all_to, unsigned step, unsigned end) {
  const char* text = std::getenv("WEIR_TEST_EVERY");
  const unsigned every = text != nullptr ? std::max(1, std::atoi(text)) : 0;
  std::vector<unsigned> list;
  for (unsigned k = 1; k < end; k += every != 0 ? every : k < all_to ? 1 : step) list.push_back(k);
  return list;
}

std::string first_transport() {
  const char* name = std::getenv("WEIR_TEST_TRANSPORT");
  return name != nullptr ? name : "tcp";
}

// A folder for the logs of the ranks.
class Logs {
 public:
  Logs() {
    std::string pattern = std::filesystem::temp_directory_path() / "weir-failover-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~Logs() { std::filesystem::remove_all(folder_); }
  std::string pattern() const { return folder_ + "/%p"; }
  // Lines of all ranks that contain all the words, and forgets them.
  std::vector<std::string> take(const std::vector<std::string>& words) {
    std::vector<std::string> lines;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        bool all = true;
        for (const std::string& word : words) all = all && line.find(word) != std::string::npos;
        if (all) lines.push_back(line);
      }
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove(entry.path());
    }
    return lines;
  }

 private:
  std::string folder_;
};

Environment environment(const Logs& logs, const std::string& fault,
                        const std::string& standby = "tcp") {
  return {{"WEIR_TRANSPORT", first_transport()},
          {"WEIR_FAILOVER", standby},
          {"WEIR_HOOKS", "fault"},
          {"WEIR_FAULT", fault},
          {"WEIR_FAILOVER_MS", "400"},
          {"WEIR_LOG_FILE", logs.pattern()}};
}

// Results that do not depend on anything but the call, in short and long messages.
void a_sequence_of_collectives(int, weir_comm_t comm) {
  const Bench b(comm);
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{40'000}}) {
    check_all_reduce(b, count, How::kOutOfPlace);
    check_broadcast(b, count, How::kInPlace, b.n - 1);
    check_all_gather(b, count, How::kNonblocking);
    check_reduce_scatter(b, count, How::kInPlace);
    check_all_to_all(b, count, How::kOutOfPlace);
    if (testing::Test::HasFailure()) return;
  }
  check_all_reduce(b, 1'000'000, How::kInPlace);
}

TEST(TransportFails, AtAnyMessageAndTheResultsAreExact) {
  Logs logs;
  std::vector<unsigned> list = moments(10, 29, 420);
  // Past all messages: nothing fails where nothing is asked for.
  list.push_back(1'000'000);
  size_t takeovers = 0;
  for (const unsigned k : list) {
    SCOPED_TRACE("fails from operation " + std::to_string(k) + " of rank 0 on");
    run_processes(2, a_sequence_of_collectives,
                  environment(logs, "fail_from=" + std::to_string(k) + ",rank=0"),
                  with_timeout(kTimeoutMs));
    const size_t lines = logs.take({"continues with rank", "over tcp instead of"}).size();
    EXPECT_EQ(lines != 0, lines == 2) << "one of two ranks has told it, or one has told it twice";
    if (k < 100 || k == list.back()) {
      EXPECT_EQ(lines, k < 100 ? 2u : 0u);
    }
    takeovers += lines / 2;
    if (HasFailure()) return;
  }
  std::printf("%zu takeovers\n", takeovers);
}

TEST(TransportFails, AtBothEndsAtOnceAndTheResultsAreExact) {
  Logs logs;
  const std::vector<unsigned> list = moments(1, 47, 300);
  for (const unsigned k : list) {
    SCOPED_TRACE("fails from operation " + std::to_string(k) + " of both ranks on");
    run_processes(2, a_sequence_of_collectives, environment(logs, "fail_from=" + std::to_string(k)),
                  with_timeout(kTimeoutMs));
    if (HasFailure()) return;
  }
  EXPECT_GE(logs.take({"continues with rank"}).size(), list.size());
}

TEST(TransportFails, AndTheNextOneWhileItTakesOver) {
  Logs logs;
  const std::vector<unsigned> list = moments(1, 47, 300);
  for (const unsigned k : list) {
    SCOPED_TRACE("fails from operation " + std::to_string(k) + " of each transport on");
    run_processes(2, a_sequence_of_collectives,
                  environment(logs, "fail_from=" + std::to_string(k) + ",rank=1", "tcp,tcp"),
                  with_timeout(kTimeoutMs));
    if (HasFailure()) return;
  }
  EXPECT_GE(logs.take({"over tcp instead of fault(tcp)"}).size(), list.size() / 2);
}

bool is_between(const std::string& line, int a, int b) {
  const auto names = [&](int from, int to) {
    return line.find("rank " + std::to_string(from) + " continues with rank " + std::to_string(to) +
                     " ") != std::string::npos;
  };
  return names(a, b) || names(b, a);
}

// All lines of ranks that go on over another transport are of these two, unless the first one could
// not leave one of them alone; tcp always can.
void expect_others_stay(Logs* logs, int a, int b, size_t least) {
  const std::vector<std::string> lines = logs->take({"continues with rank"});
  const auto count = [&](const auto& is) {
    return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), is));
  };
  const size_t between = count([&](const std::string& line) { return is_between(line, a, b); });
  const size_t forced =
      count([](const std::string& line) { return line.find("cannot leave") != std::string::npos; });
  std::printf("%zu pairs' ends went over, %zu of them because it could not leave one only\n",
              lines.size(), forced);
  EXPECT_GE(between, least);
  EXPECT_LE(between, 2u);
  if (first_transport() == "tcp") {
    EXPECT_EQ(forced, 0u);
  }
  if (forced != 0) return;
  EXPECT_EQ(between, lines.size()) << testing::PrintToString(lines);
}

TEST(TransportFails, BetweenTwoOfFourRanksAndTheOthersKeepIt) {
  Logs logs;
  for (const unsigned k : {1u, 5u, 30u, 62u, 150u}) {
    SCOPED_TRACE("fails from operation " + std::to_string(k) + " of rank 1 on");
    run_processes(4, a_sequence_of_collectives,
                  environment(logs, "fail_from=" + std::to_string(k) + ",rank=1,peer=2"),
                  with_timeout(kTimeoutMs));
    expect_others_stay(&logs, 1, 2, k > 30 ? 0 : 2);
    if (HasFailure()) return;
  }
}

TEST(TransportStandsStill, BetweenTwoOfThreeRanksAndTheOthersKeepIt) {
  Logs logs;
  for (const unsigned k : {3u, 40u}) {
    SCOPED_TRACE("stands still from operation " + std::to_string(k) + " of rank 0 on");
    run_processes(3, a_sequence_of_collectives,
                  environment(logs, "still_from=" + std::to_string(k) + ",rank=0,peer=2"),
                  with_timeout(kTimeoutMs));
    expect_others_stay(&logs, 0, 2, 2);
    if (HasFailure()) return;
  }
}

TEST(TransportFails, AndTheNextCommunicatorBeginsWithItAgain) {
  Logs logs;
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        check_every_collective(comm, 2000);
        weir_comm_t next = nullptr;
        ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &next), WEIR_OK) << weir_last_error(comm);
        check_every_collective(next, 2000);
        ASSERT_EQ(weir_comm_destroy(next), WEIR_OK);
      },
      environment(logs, "fail_from=9,rank=0"), with_timeout(kTimeoutMs));
  // Of each communicator two: it fails in the second, so the second began with it.
  EXPECT_EQ(logs.take({"continues with rank", "over tcp instead of"}).size(), 4u);
}

TEST(TransportFails, WhenACommunicatorIsMadeAndItBeginsWithTheNextOne) {
  Logs logs;
  for (const char* fault : {"connect_fails=1,rank=1", "connect_fails=1"}) {
    SCOPED_TRACE(fault);
    run_processes(3, a_sequence_of_collectives, environment(logs, fault), with_timeout(kTimeoutMs));
    const bool all = std::string(fault) == "connect_fails=1";
    EXPECT_EQ(logs.take({"starts without", "connect of rank"}).size(), all ? 3u : 1u);
  }
}

TEST(TransportStandsStill, AndTheNextOneTakesOver) {
  Logs logs;
  for (const char* fault : {"still_from=1,rank=0", "still_from=33,rank=1", "still_from=60",
                            "still_from=90,rank=1", "still_from=140,rank=0"}) {
    SCOPED_TRACE(fault);
    run_processes(2, a_sequence_of_collectives, environment(logs, fault), with_timeout(kTimeoutMs));
    EXPECT_EQ(logs.take({"continues with rank"}).size(), 2u);
    if (HasFailure()) return;
  }
}

TEST(TransportStandsStill, ButASlowPeerIsNoReason) {
  Logs logs;
  run_processes(
      3,
      [](int rank, weir_comm_t comm) {
        const Bench b(comm);
        for (const size_t count : {size_t{1}, size_t{100'000}}) {
          if (rank == 1) usleep(1'500'000);  // computes, far longer than the bound
          check_all_reduce(b, count, How::kOutOfPlace);
        }
      },
      environment(logs, "rank=0"), with_timeout(kTimeoutMs));
  EXPECT_EQ(logs.take({"continues with"}), std::vector<std::string>{});
}

TEST(PeerDies, IsNamedAsWithoutAnotherTransport) {
  Logs logs;
  const unsigned seed = test_seed();
  std::printf("WEIR_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    // In half of the rounds its transport fails a little before, to both others or to one of them.
    const std::string fault = round % 2 == 0 ? "rank=0"
                                             : "fail_from=" + std::to_string(1 + random() % 200) +
                                                   ",rank=2" + (round % 4 == 1 ? ",peer=0" : "");
    const useconds_t moment_us = random() % 30'000;
    SCOPED_TRACE(fault + ", dies after " + std::to_string(moment_us) + " us");
    const std::vector<int> statuses = run_processes_status(
        3,
        [&](int rank, weir_comm_t comm) {
          if (rank == 2) {
            std::thread([moment_us] {
              usleep(moment_us);
              kill(getpid(), SIGKILL);
            }).detach();
          }
          std::vector<float> data(20'000, 1.0f);
          weir_result_t result = WEIR_OK;
          while (result == WEIR_OK) {
            result = weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                     WEIR_MAX, nullptr);
          }
          EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
          int lost[3];
          int lost_count = 0;
          ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 3, &lost_count), WEIR_OK);
          ASSERT_EQ(std::vector<int>(lost, lost + lost_count), std::vector<int>{2})
              << weir_last_error(comm);
          weir_comm_t rest = nullptr;
          ASSERT_EQ(weir_comm_shrink(comm, lost, 1, nullptr, &rest), WEIR_OK)
              << weir_last_error(comm);
          setenv("WEIR_FAULT", "rank=0", 1);
          check_every_collective(rest, 100);
          ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
        },
        environment(logs, fault), with_timeout(kTimeoutMs));
    EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
    if (HasFailure()) return;
  }
}

TEST(Hosts, KeepTheirSharedMemoryWhileTheNetworkGoesOver) {
  Logs logs;
  const std::vector<int> statuses = run_processes_each(
      4, a_sequence_of_collectives,
      [&](int rank) {
        Environment all = environment(logs, "fail_from=40,rank=0");
        all[0].second = "shm," + first_transport();
        all.emplace_back("WEIR_HOST_ID", rank < 2 ? "a" : "b");
        return all;
      },
      with_timeout(kTimeoutMs));
  EXPECT_EQ(statuses, std::vector<int>(4, 0));
  EXPECT_GE(logs.take({"continues with rank"}).size(), 2u);
}

TEST(Setting, ATransportThatCannotTakePartIsRefused) {
  const auto refused = [](const char* transport, const char* failover, const char* word,
                          int rank_count = 2) {
    const pid_t child = fork();
    if (child == 0) {
      setenv("WEIR_TRANSPORT", transport, 1);
      setenv("WEIR_FAILOVER", failover, 1);
      const weir_unique_id_t id = make_id();
      weir_comm_t comm = nullptr;
      const weir_comm_config_t config = with_timeout(2000);
      const weir_result_t result = weir_comm_create(&comm, rank_count, &id, 0, &config);
      const std::string text = weir_last_error(nullptr);
      const bool good = result == WEIR_ERROR_UNSUPPORTED && text.find(word) != std::string::npos;
      if (!good) std::fprintf(stderr, "%d: %s\n", static_cast<int>(result), text.c_str());
      _exit(good ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << failover;
  };
  refused("tcp", "shm", "'shm' cannot take part");
  refused("tcp", "carrier_pigeon", "WEIR_FAILOVER");
  // Where nothing would go over, too.
  refused("shm", "carrier_pigeon", "WEIR_FAILOVER");
  refused("", "tcp,carrier_pigeon", "WEIR_FAILOVER");
  refused("", "carrier_pigeon", "WEIR_FAILOVER", 1);
}

}  // namespace
}  // namespace weir::test
