// SPDX-License-Identifier: Apache-2.0
// Starting between hosts: every way to meet, the trust that each needs, and that no secret appears
// anywhere.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "netns/lab.h"
#include "support/collective_checks.h"

namespace weir::test {
namespace {

const std::string kSecret = "8d3c0b6a51f94e27b0a1c2d3e4f50617-job";

class Start : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
    std::string name = testing::TempDir() + "weir-start-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    secret_file_ = folder_ + "/secret";
    std::ofstream(secret_file_) << kSecret << "\n";
    ASSERT_EQ(chmod(secret_file_.c_str(), 0600), 0);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  // A job whose ranks know address and port of the first host.
  LabOptions by_master(std::vector<std::vector<int>> hosts) const {
    return {.hosts = std::move(hosts),
            .environment = {{"MASTER_ADDR", "10.77.0.1"},
                            {"MASTER_PORT", "29500"},
                            {"WEIR_SECRET_FILE", secret_file_}},
            .launched = true};
  }

  std::string folder_;
  std::string secret_file_;
};

void check(int, weir_comm_t comm) { check_every_collective(comm, 1000); }

TEST_F(Start, ByMasterBetweenHosts) {
  run_in_lab(by_master({{0, 2}, {1}, {3}}), [](int rank, weir_comm_t comm) {
    check(rank, comm);
    // The next communicator of the job.
    weir_comm_t second = nullptr;
    ASSERT_EQ(weir_comm_create_from_env(&second, nullptr), WEIR_OK) << weir_last_error(nullptr);
    check(rank, second);
    ASSERT_EQ(weir_comm_destroy(second), WEIR_OK);
  });
}

TEST_F(Start, ByMasterWhereRank0IsNotOnTheHostOfMaster) {
  run_in_lab(by_master({{2, 1}, {0}}), check);
}

TEST_F(Start, ByMasterWhosePortSomebodyElseHas) {
  LabOptions options = by_master({{0}, {1}});
  // A store that accepts and is silent.
  options.before = [](int rank) {
    if (rank != 0) return;
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(29500);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
    ASSERT_EQ(listen(fd, 8), 0);
  };
  run_in_lab(options, check);
}

TEST_F(Start, ByMasterOfNoHostOfOursTimesOutAndSaysWhereItLooked) {
  LabOptions options = by_master({{0}, {1}});
  options.environment[0].second = "10.77.0.99";
  options.timeout_ms = 1500;
  options.environment.emplace_back("WEIR_LOG", "info");
  options.environment.emplace_back("WEIR_LOG_FILE", folder_ + "/log");
  // The failure of creation is a failed expectation: the ranks end with 1, not by a hang.
  EXPECT_EQ(run_in_lab_status(options, check), (std::vector<int>{1, 1}));
}

TEST_F(Start, ByAFileOnASharedFileSystem) {
  run_in_lab({.hosts = {{0}, {1, 2}, {3}},
              .environment = {{"WEIR_RENDEZVOUS", "file:" + folder_ + "/meet"}},
              .launched = true},
             check);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/meet"));
}

TEST_F(Start, ByUniqueIdWithRank0OnAnotherHost) {
  run_in_lab({.hosts = {{2}, {0, 1}}, .id_rank = 2}, check);
  run_in_lab({.hosts = {{0, 3}, {1}, {2}}, .id_rank = 1}, check);
}

TEST_F(Start, FortyRanksOfFourHostsFormATree) {
  std::vector<std::vector<int>> hosts(4);
  for (int rank = 0; rank < 40; ++rank) hosts[static_cast<size_t>(rank * 7 % 4)].push_back(rank);
  run_in_lab(by_master(std::move(hosts)), [](int, weir_comm_t comm) {
    int32_t sum = 1;
    ASSERT_EQ(weir_all_reduce(comm, &sum, &sum, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK)
        << weir_last_error(comm);
    EXPECT_EQ(sum, 40);
  });
}

// Until the process ends, connects to every port where the root may listen, and says something
// else.
void scan_ports() {
  const std::string greeting = "GET / HTTP/1.1\r\n\r\n";
  for (;;) {
    for (uint16_t port = 16384; port < 32768; ++port) {
      sockaddr_in root{};
      root.sin_family = AF_INET;
      root.sin_port = htons(port);
      root.sin_addr.s_addr = htonl(0x0a4d0001);  // 10.77.0.1
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&root), sizeof root) == 0) {
        (void)send(fd, greeting.data(), port % 3 == 0 ? greeting.size() : 0, MSG_NOSIGNAL);
      }
      close(fd);
    }
  }
}

TEST_F(Start, APortScanKeepsNobodyOut) {
  LabOptions options = by_master({{0}, {1, 2}});
  options.before = [](int rank) {
    if (rank == 2) std::thread(scan_ports).detach();
    if (rank != 2) usleep(300'000);  // the scan has begun
  };
  run_in_lab(options, check);
}

TEST_F(Start, WithoutASecretIsRefusedAtOnce) {
  LabOptions options = by_master({{0}, {1}});
  options.environment.pop_back();
  options.timeout_ms = 300'000;
  EXPECT_EQ(run_in_lab_status(options, check), (std::vector<int>{1, 1}));
}

TEST_F(Start, WithAnotherSecretDoesNotJoin) {
  LabOptions options = by_master({{0}, {1}});
  options.environment.back().second = folder_ + "/secret%i";
  options.timeout_ms = 1500;
  for (const char* host : {"0", "1"}) {
    const std::string name = secret_file_ + host;
    std::ofstream(name) << kSecret << host;
    ASSERT_EQ(chmod(name.c_str(), 0600), 0);
  }
  EXPECT_EQ(run_in_lab_status(options, check), (std::vector<int>{1, 1}));
}

// Every file below the folder, and the variables of each rank, hold nothing of the secret.
TEST_F(Start, NoSecretAppearsInAnyLogOrError) {
  const std::string hex = [] {
    std::string text;
    for (const unsigned char c : kSecret) {
      text.push_back("0123456789abcdef"[c >> 4]);
      text.push_back("0123456789abcdef"[c & 15]);
    }
    return text;
  }();
  LabOptions options = by_master({{0}, {1, 2}});
  options.environment.emplace_back("WEIR_LOG", "trace");
  options.environment.emplace_back("WEIR_EXPLAIN", "1");
  options.environment.emplace_back("WEIR_LOG_FILE", folder_ + "/log.%p");
  options.environment.emplace_back("WEIR_HOOKS", "trace");
  options.environment.emplace_back("WEIR_TRACE_FILE", folder_ + "/trace.%r");
  options.before = [this](int rank) {
    for (const int fd : {1, 2}) {
      const std::string name = folder_ + "/output." + std::to_string(rank);
      const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
      ASSERT_EQ(dup2(file, fd), fd);
    }
  };
  run_in_lab(options, check);
  // Started by the wrong variables, so that there are errors as well.
  options.environment.emplace_back("WEIR_SECRET", kSecret);
  options.environment.emplace_back("MASTER_ADDR", "10.77.0.99");
  options.timeout_ms = 1500;
  EXPECT_EQ(run_in_lab_status(options, check), (std::vector<int>{1, 1, 1}));
  size_t log_count = 0;
  bool tells_how = false;
  bool tells_why = false;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().filename() == "secret") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    log_count += entry.path().filename().string().starts_with("log.");
    tells_how = tells_how || text.find("rendezvous: master, at 10.77.0.1") != std::string::npos;
    tells_why =
        tells_why || text.find("found no process that listens for the ranks") != std::string::npos;
    EXPECT_EQ(text.find(kSecret.substr(0, 8)), std::string::npos) << entry.path();
    EXPECT_EQ(text.find(hex.substr(0, 16)), std::string::npos) << entry.path();
  }
  EXPECT_GE(log_count, 3u);
  EXPECT_TRUE(tells_how);
  EXPECT_TRUE(tells_why);
}

}  // namespace
}  // namespace weir::test
