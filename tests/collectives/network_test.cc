// SPDX-License-Identifier: Apache-2.0
// Dead and stopped ranks where ranks share no memory but only connections.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/cost/cache.h"
#include "support/attempts.h"
#include "support/collective_checks.h"
#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

// tcp, or what WEIR_TEST_TRANSPORT names.
const char* transport_under_test() {
  const char* name = std::getenv("WEIR_TEST_TRANSPORT");
  return name != nullptr ? name : "tcp";
}

const Environment kTcp = {{"WEIR_TRANSPORT", transport_under_test()}};

unsigned test_seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 0))
                         : std::random_device{}();
}

TEST(KilledOverTcp, EverySurvivorHearsOfItAndShrinkGoesOn) {
  const unsigned seed = test_seed();
  std::printf("WEIR_TEST_SEED=%u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    const int victim = static_cast<int>(random() % 4);
    const useconds_t moment_us = random() % 20'000;
    const size_t count = random() % 2 == 0 ? 10 : 200'000;
    SCOPED_TRACE("rank " + std::to_string(victim) + " dies after " + std::to_string(moment_us) +
                 " us, count " + std::to_string(count));
    std::vector<int> expected(4, 0);
    expected[static_cast<size_t>(victim)] = 128 + SIGKILL;
    const std::vector<int> statuses = run_processes_status(
        4,
        [&](int rank, weir_comm_t comm) {
          if (rank == victim) {
            std::thread([moment_us] {
              usleep(moment_us);
              kill(getpid(), SIGKILL);
            }).detach();
          }
          std::vector<float> data(count, 1.0f);
          weir_result_t result = WEIR_OK;
          while (result == WEIR_OK) {
            result = weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, WEIR_MAX,
                                     nullptr);
          }
          EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
          const std::string text = weir_last_error(comm);
          EXPECT_NE(text.find("rank " + std::to_string(victim) + " died"), std::string::npos)
              << text;
          int lost[4];
          int lost_count = 0;
          ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 4, &lost_count), WEIR_OK);
          ASSERT_EQ(lost_count, 1) << text;
          EXPECT_EQ(lost[0], victim);
          weir_comm_t rest = nullptr;
          ASSERT_EQ(weir_comm_shrink(comm, lost, 1, nullptr, &rest), WEIR_OK)
              << weir_last_error(comm);
          check_every_collective(rest, 1000);
          ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
        },
        kTcp, with_timeout(60'000));
    EXPECT_EQ(statuses, expected);
    if (HasFailure()) return;
  }
}

TEST(StoppedOverTcp, WhoWaitsForItNamesItAtTheDeadline) {
  const std::vector<int> statuses = run_processes_status(
      2,
      [](int rank, weir_comm_t comm) {
        std::vector<float> data(100'000, 1.0f);
        if (rank == 1) {
          const pid_t self = getpid();
          if (fork() == 0) {  // so that the test can collect it
            usleep(3'000'000);
            kill(self, SIGKILL);
            _exit(0);
          }
          raise(SIGSTOP);
        }
        ASSERT_EQ(weir_comm_set_timeout(comm, 1000), WEIR_OK);
        EXPECT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                  WEIR_SUM, nullptr),
                  WEIR_ERROR_TIMEOUT);
        EXPECT_NE(std::string(weir_last_error(comm)).find("rank 1"), std::string::npos)
            << weir_last_error(comm);
      },
      kTcp, with_timeout(60'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
}

// Processes that want one processor all the time.
class BusyNeighbours {
 public:
  explicit BusyNeighbours(int cpu) : pids_(8) {
    for (pid_t& pid : pids_) {
      pid = fork();
      if (pid != 0) continue;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      stay_on(cpu);
      for (volatile uint64_t count = 0;;) count = count + 1;
    }
  }
  ~BusyNeighbours() {
    for (const pid_t pid : pids_) kill(pid, SIGKILL);
    for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
  }
  BusyNeighbours(const BusyNeighbours&) = delete;
  BusyNeighbours& operator=(const BusyNeighbours&) = delete;

  static void stay_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof set, &set), 0);
  }

 private:
  std::vector<pid_t> pids_;
};

// Where every yield of that thread hands its processor to many others, too.
TEST(StoppedOverTcp, ARankWhoseProgressThreadWorksIsNotTakenForIt) {
  const int cpu = sched_getcpu();
  const BusyNeighbours neighbours(cpu);
  const SharedCounter asked;
  const std::vector<int> statuses = run_processes_status(
      3,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(weir_comm_set_timeout(comm, 2000), WEIR_OK);
        std::vector<float> data(1000, 1.0f);
        if (rank == 2) {
          const pid_t self = getpid();
          if (fork() == 0) {  // so that the test can collect it
            usleep(5'000'000);
            kill(self, SIGKILL);
            _exit(0);
          }
          raise(SIGSTOP);
        }
        if (rank == 1) BusyNeighbours::stay_on(cpu);
        weir_request_t request = nullptr;
        ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                  WEIR_SUM, &request),
                  WEIR_OK);
        if (rank == 1) usleep(3'000'000);  // computes
        EXPECT_EQ(weir_wait(&request), WEIR_ERROR_TIMEOUT);
        int lost[3];
        int count = 0;
        ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 3, &count), WEIR_OK);
        EXPECT_EQ(std::vector<int>(lost, lost + count), std::vector<int>{2})
            << weir_last_error(comm);
        // Who destroys the communicator is lost to the others.
        ++asked.get();
        asked.wait_for(2);
      },
      {{"WEIR_TRANSPORT", "tcp"}, {"WEIR_PROGRESS_THREAD", "1"}}, with_timeout(60'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(MismatchOverTcp, ARankThatHearsAnotherCallSaysWhoCalledWhat) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        std::vector<float> data(1000, 1.0f);
        const weir_result_t result =
            weir_all_reduce(comm, data.data(), data.data(), rank == 0 ? 1000 : 999, WEIR_FLOAT32,
                            WEIR_SUM, nullptr);
        EXPECT_EQ(result, WEIR_ERROR_MISMATCH) << weir_last_error(comm);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("count 1000"), std::string::npos) << text;
        EXPECT_NE(text.find("count 999"), std::string::npos) << text;
      },
      kTcp, with_timeout(60'000));
}

TEST(ListOverTcp, TheSettingMayNameSeveralTransports) {
  run_processes(
      2, [](int, weir_comm_t comm) { check_every_collective(comm, 100); },
      {{"WEIR_TRANSPORT", "tcp,shm"}}, with_timeout(60'000));
}

TEST(CostsOverTcp, AreMeasuredOnTheConnectionsAndKeptApartFromThoseOfMemory) {
  std::string pattern = std::filesystem::temp_directory_path() / "weir-costs-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const auto figures_of = [&](const std::string& transport) {
    run_processes(
        2, [](int, weir_comm_t comm) { ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK); },
        {{"WEIR_TRANSPORT", transport}, {"WEIR_CACHE_DIR", pattern}, {"WEIR_PROBE", "1"}},
        with_timeout(60'000));
    std::set<double> message_ns;
    for (const auto& entry : std::filesystem::directory_iterator(pattern)) {
      std::ifstream file(entry.path());
      const auto json = nlohmann::json::parse(file);
      message_ns.insert(json["shm_shared_cache.message_ns"].get<double>());
      EXPECT_GT(json["shm_shared_cache.slot_in_ns_per_byte_l3"].get<double>(), 0);
    }
    return message_ns;
  };
  std::set<double> tcp;
  for (Attempts attempts; tcp.empty() && attempts.next();) tcp = figures_of("tcp");
  ASSERT_EQ(tcp.size(), 1u);
  // Two system calls, at least.
  EXPECT_GT(*tcp.begin(), 500);
  EXPECT_EQ(figures_of("tcp"), tcp) << "they were measured again";
  // On a busy machine two ranks do not always meet often enough in time, and nothing is kept.
  size_t kept = 1;
  for (Attempts attempts; kept < 2 && attempts.next();) kept = figures_of("shm").size();
  EXPECT_EQ(kept, 2u);
  std::filesystem::remove_all(pattern);
}

// The costs that jobs of two ranks over shared memory measure and keep.
class KeptCosts : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = std::filesystem::temp_directory_path() / "weir-costs-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Runs a job, with a pass of calls of four decisions `passes` times, and returns what was cached
  // afterwards.
  std::string start(int passes, const std::string& hooks = "") {
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          std::vector<int32_t> data(4096, rank);
          std::vector<int32_t> all(8192);
          for (int i = 0; i < passes; ++i) {
            for (const size_t count : {8, 1024, 4096}) {
              ASSERT_EQ(weir_all_reduce(comm, data.data(), all.data(), count, WEIR_INT32, WEIR_SUM,
                                        nullptr),
                        WEIR_OK);
            }
            ASSERT_EQ(weir_all_gather(comm, data.data(), all.data(), 1024, WEIR_INT32, nullptr),
                      WEIR_OK);
          }
        },
        {{"WEIR_TRANSPORT", "shm"},
         {"WEIR_CACHE_DIR", folder_},
         {"WEIR_PROBE", "1"},
         {"WEIR_HOOKS", hooks}},
        with_timeout(60'000));
    return cached();
  }
  // The same with calls that go the shortest way, since they are small and all wait.
  std::string start_with_small_calls(int passes) {
    run_processes(
        2,
        [&](int, weir_comm_t comm) {
          std::vector<int64_t> data(4);
          for (const size_t count : {1, 2, 4}) {
            for (int i = 0; i < passes; ++i) {
              ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_INT64, WEIR_SUM,
                                        nullptr),
                        WEIR_OK);
            }
          }
        },
        {{"WEIR_TRANSPORT", "shm"}, {"WEIR_CACHE_DIR", folder_}, {"WEIR_PROBE", "1"}},
        with_timeout(60'000));
    return cached();
  }
  std::filesystem::path file_that_ends(const char* extension) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() == extension) return entry.path();
    }
    return {};
  }
  std::string cached() const {
    std::ifstream file(file_that_ends(".json"));
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  // On a busy machine not every start measures what may be kept.
  std::string start_until_cached_is_not(const std::string& old) {
    std::string now = old;
    for (Attempts attempts; now == old && attempts.next();) now = start(1);
    return now;
  }
  // Each figure of the host becomes the value for its kind, as if it had been measured so.
  void forge(double message_ns, double ns_per_byte) const {
    auto json = nlohmann::ordered_json::parse(cached());
    for (auto& [name, value] : json.items()) {
      const bool is_link = name.starts_with("shm_");
      if (name.find("ns_per_byte") != std::string::npos) {
        if (is_link || name.starts_with("copy_") || name.starts_with("reduce")) value = ns_per_byte;
      } else if (is_link) {
        value = message_ns;
      }
    }
    const auto table = cost::table_from_json(json.dump());
    ASSERT_TRUE(table.ok()) << table.status().text();
    ASSERT_TRUE(cost::write_table(file_that_ends(".json"), table.value()).ok());
  }

  std::string folder_;
};

TEST_F(KeptCosts, ThatAreImplausibleAreMeasuredAnewAndOthersStay) {
  const std::string first = start_until_cached_is_not("");
  ASSERT_NE(first, "");
  EXPECT_EQ(start(1), first) << "they were measured again";
  forge(51'675, 0.1);
  const std::string forged = cached();
  const std::string second = start_until_cached_is_not(forged);
  EXPECT_NE(second, forged);
  EXPECT_EQ(start(1), second) << "they were measured again";
}

TEST_F(KeptCosts, WithWhichMeasuredTimesDisagreeAreMeasuredAnewAtTheNextStart) {
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  if (CPU_COUNT(&cores) < 2) GTEST_SKIP() << "where ranks share cores, times are not compared";
  ASSERT_NE(start_until_cached_is_not(""), "");
  // As slow as is still believed.
  forge(6'000, 1.5);
  const std::string forged = cached();
  EXPECT_EQ(start(10), forged);
  EXPECT_EQ(file_that_ends(".doubts"), "") << "after few calls";
  for (Attempts attempts; file_that_ends(".doubts").empty() && attempts.next();) {
    EXPECT_EQ(start(1000), forged) << "a job's own costs stay";
  }
  ASSERT_NE(file_that_ends(".doubts"), "");
  const std::string measured = start_until_cached_is_not(forged);
  EXPECT_NE(measured, forged);
  EXPECT_EQ(start(1), measured) << "they were measured again";
  // Not twice on the same day.
  forge(5'900, 1.4);
  const std::string other = cached();
  EXPECT_EQ(start(1000), other);
  EXPECT_EQ(start(1), other);
}

TEST_F(KeptCosts, AreDoubtedForSmallCallsAlone) {
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  if (CPU_COUNT(&cores) < 2) GTEST_SKIP() << "where ranks share cores, times are not compared";
  ASSERT_NE(start_until_cached_is_not(""), "");
  forge(6'000, 1.5);
  for (Attempts attempts; file_that_ends(".doubts").empty() && attempts.next();) {
    start_with_small_calls(2000);
  }
  EXPECT_NE(file_that_ends(".doubts"), "");
}

TEST_F(KeptCosts, AreNotDoubtedWithHooks) {
  ASSERT_NE(start_until_cached_is_not(""), "");
  forge(6'000, 1.5);
  const std::string forged = cached();
  EXPECT_EQ(start(1000, "check"), forged);
  EXPECT_EQ(file_that_ends(".doubts"), "");
}

TEST_F(KeptCosts, AreNotDoubtedWhereRanksShareACore) {
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  ASSERT_NE(start_until_cached_is_not(""), "");
  forge(6'000, 1.5);
  const std::string forged = cached();
  EXPECT_EQ(start(1000), forged);
  ASSERT_EQ(sched_setaffinity(0, sizeof cores, &cores), 0);
  EXPECT_EQ(file_that_ends(".doubts"), "");
}

TEST(Costs, AreKeptUnderTheTopologyThatAFileDescribes) {
  std::string pattern = std::filesystem::temp_directory_path() / "weir-costs-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::string file = pattern + "/topology.xml";
  // No machine has this device.
  std::ofstream(file) << R"(<system version="1"><cpu numaid="0" affinity="1">
<pci busid="fffff:ff:1f.7" class="0x030200"/></cpu></system>)";
  const auto said = [&](const std::string& merge) {
    const std::string log = pattern + "/log" + merge;
    run_processes(
        2, [](int, weir_comm_t comm) { ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK); },
        {{"WEIR_TRANSPORT", "tcp"},
         {"WEIR_CACHE_DIR", pattern + "/" + merge},
         {"WEIR_PROBE", "1"},
         {"WEIR_TOPOLOGY_FILE", file},
         {"WEIR_TOPOLOGY_MERGE", merge},
         {"WEIR_LOG_FILE", log}},
        with_timeout(60'000));
    std::ifstream lines(log);
    return std::string(std::istreambuf_iterator<char>(lines), {});
  };
  EXPECT_NE(said("auto").find("is taken alone: it cannot be merged"), std::string::npos);
  EXPECT_EQ(said("0").find("topology"), std::string::npos);
  const std::string must_merge = said("1");
  EXPECT_NE(must_merge.find("WEIR_TOPOLOGY_FILE is ignored"), std::string::npos) << must_merge;
  EXPECT_NE(must_merge.find("it cannot be merged with what"), std::string::npos) << must_merge;
  EXPECT_NE(must_merge.find("WEIR_TOPOLOGY_MERGE=1 asks"), std::string::npos) << must_merge;
  std::filesystem::remove_all(pattern);
}

// Also where nothing needs the topology: one host, without a measurement.
TEST(TopologyFile, ThatIsMissingIsIgnoredWithAWarning) {
  std::string pattern = std::filesystem::temp_directory_path() / "weir-costs-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  for (const char* const transport : {"shm", "tcp"}) {
    for (const char* const probe : {"0", "1"}) {
      const std::string log = pattern + "/log-" + transport + probe;
      run_processes(
          2, [](int, weir_comm_t comm) { ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK); },
          {{"WEIR_TRANSPORT", transport},
           {"WEIR_CACHE_DIR", pattern + "/cache"},
           {"WEIR_PROBE", probe},
           {"WEIR_TOPOLOGY_FILE", pattern + "/missing.xml"},
           {"WEIR_LOG_FILE", log}},
          with_timeout(60'000));
      std::ifstream lines(log);
      const std::string said(std::istreambuf_iterator<char>(lines), {});
      EXPECT_NE(said.find("WEIR_TOPOLOGY_FILE is ignored"), std::string::npos)
          << transport << ", WEIR_PROBE=" << probe << ": " << said;
      EXPECT_NE(said.find("missing.xml"), std::string::npos) << said;
    }
  }
  std::filesystem::remove_all(pattern);
}

TEST(CostsOverTcp, AreWrittenWhereTheSettingSays) {
  std::string pattern = std::filesystem::temp_directory_path() / "weir-costs-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::string path = pattern + "/costs.json";
  run_processes(
      2, [](int, weir_comm_t comm) { ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK); },
      {{"WEIR_TRANSPORT", "tcp"},
       {"WEIR_CACHE_DIR", pattern},
       {"WEIR_PROBE", "1"},
       {"WEIR_COSTS_FILE", path}},
      with_timeout(60'000));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["version"].get<int>(), 4);
  EXPECT_GT(json["shm_shared_cache.message_ns"].get<double>(), 500);
  std::filesystem::remove_all(pattern);
}

TEST(ManyOverTcp, SixteenAndTwentyFourRanksGetTheRightResults) {
  for (const int n : {16, 24}) {
    run_processes(
        n,
        [](int, weir_comm_t comm) {
          for (const size_t count : {size_t{1}, size_t{3000}}) check_every_collective(comm, count);
        },
        kTcp, with_timeout(60'000));
  }
}

}  // namespace
}  // namespace weir::test
