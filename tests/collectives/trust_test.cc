// SPDX-License-Identifier: Apache-2.0
// Whom and what ranks trust, over the transport of WEIR_TRANSPORT: who speaks TLS and who does not,
// data that was changed on its way, and that no log tells the secret.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

// The values of WEIR_TLS, but off, where it is about anything.
std::vector<std::string> tls_modes() {
  const char* transport = getenv("WEIR_TRANSPORT");
  if (transport == nullptr || std::string(transport) == "shm") return {};
  return {"control", "all"};
}

void expect_sum(int rank, weir_comm_t comm, int count) {
  std::vector<float> data(10'000, static_cast<float>(rank + 1));
  for (int i = 0; i < 5; ++i) {
    std::vector<float> sum(data.size());
    ASSERT_EQ(weir_all_reduce(comm, data.data(), sum.data(), data.size(), WEIR_FLOAT32, WEIR_SUM,
                              nullptr),
              WEIR_OK)
        << weir_last_error(comm);
    const int expected = count * (count + 1) / 2;  // always whole
    EXPECT_EQ(sum.front(), static_cast<float>(expected));
    EXPECT_EQ(sum, std::vector<float>(data.size(), sum.front()));
  }
}

// What creating a communicator ends with on each rank, and its text, in forked ranks: 128 + 9 and
// so on when one was killed.
struct End {
  int status = 0;
  std::string text;
};

std::vector<End> create_each(int n, const weir_unique_id_t& id, const EnvironmentOf& environment_of,
                             const Body& body) {
  std::string folder = std::filesystem::temp_directory_path() / "weir-trust-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const auto& [name, value] : environment_of(rank)) {
        setenv(name.c_str(), value.c_str(), 1);
      }
      const weir_comm_config_t config = with_timeout(20'000);
      weir_comm_t comm = nullptr;
      const weir_result_t result = weir_comm_create(&comm, n, &id, rank, &config);
      if (result == WEIR_OK) {
        body(rank, comm);
        EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
      } else {
        std::ofstream(folder + "/" + std::to_string(rank)) << weir_last_error(nullptr);
      }
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 100 : static_cast<int>(result));
    }
    children.push_back(pid);
  }
  std::vector<End> ends;
  for (int rank = 0; rank < n; ++rank) {
    int status = 0;
    EXPECT_EQ(waitpid(children[static_cast<size_t>(rank)], &status, 0),
              children[static_cast<size_t>(rank)]);
    std::ifstream file(folder + "/" + std::to_string(rank));
    ends.push_back({WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                    {std::istreambuf_iterator<char>(file), {}}});
  }
  std::filesystem::remove_all(folder);
  return ends;
}

std::string hex_of(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    text.push_back("0123456789abcdef"[static_cast<unsigned char>(c) >> 4]);
    text.push_back("0123456789abcdef"[static_cast<unsigned char>(c) & 15]);
  }
  return text;
}

TEST(Tls, ACommunicatorFormsInsideItAndNoSecretIsLogged) {
  if (tls_modes().empty()) GTEST_SKIP() << "the transport of WEIR_TRANSPORT does not speak TLS";
  for (const std::string& mode : tls_modes()) {
    SCOPED_TRACE(mode);
    std::string folder = std::filesystem::temp_directory_path() / "weir-trust-XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    const weir_unique_id_t id = make_id();
    const auto environment = [&](int) -> Environment {
      return {{"WEIR_TLS", mode}, {"WEIR_LOG", "trace"}, {"WEIR_LOG_FILE", folder + "/log.%p"}};
    };
    const std::vector<End> ends = create_each(3, id, environment, [](int rank, weir_comm_t comm) {
      expect_sum(rank, comm, 3);
      weir_comm_t part = nullptr;  // with keys of its own
      ASSERT_EQ(weir_comm_split(comm, rank % 2, rank, nullptr, &part), WEIR_OK)
          << weir_last_error(comm);
      EXPECT_EQ(weir_comm_destroy(part), WEIR_OK);
    });
    for (const End& end : ends) EXPECT_EQ(end.status, 0) << end.text;
    int log_count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      ++log_count;
      EXPECT_NE(text.find("started in"), std::string::npos) << text;
      // Wherever in the id the secret lies.
      for (size_t at = 0; at + 8 <= sizeof id.bytes; ++at) {
        const std::string part(reinterpret_cast<const char*>(id.bytes) + at, 8);
        if (std::set<char>(part.begin(), part.end()).size() < 6) continue;
        EXPECT_EQ(text.find(part), std::string::npos) << at;
        EXPECT_EQ(text.find(hex_of(part)), std::string::npos) << at;
      }
    }
    EXPECT_EQ(log_count, 3);
    std::filesystem::remove_all(folder);
  }
}

TEST(Tls, RanksThatDisagreeAreToldWhoAndHow) {
  if (tls_modes().empty()) GTEST_SKIP() << "the transport of WEIR_TRANSPORT does not speak TLS";
  for (const std::string& mode : tls_modes()) {
    SCOPED_TRACE(mode);
    const std::vector<End> ends = create_each(
        3, make_id(),
        [&](int rank) -> Environment {
          return {{"WEIR_TLS", rank == 1 ? "off" : mode}};
        },
        [](int, weir_comm_t) { ADD_FAILURE() << "was made"; });
    for (const End& end : ends) {
      EXPECT_EQ(end.status, WEIR_ERROR_MISMATCH) << end.text;
      EXPECT_NE(end.text.find("ranks 0 and 1 must run with the same settings"), std::string::npos)
          << end.text;
      EXPECT_NE(end.text.find("WEIR_TLS=off"), std::string::npos) << end.text;
      EXPECT_NE(end.text.find("WEIR_TLS=" + mode), std::string::npos) << end.text;
      EXPECT_EQ(end.text.find("WEIR_SLICE_BYTES"), std::string::npos) << "it is the same on both";
    }
  }
}

// All-reduces until one fails, of integers: a float's last bit may vanish where it is added.
weir_result_t add_up(int rank, weir_comm_t comm, bool* right) {
  std::vector<uint32_t> data(10'000), sum(data.size());
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint32_t>(i) + (rank == 1);
  weir_result_t result = WEIR_OK;
  for (int i = 0; i < 20 && result == WEIR_OK; ++i) {
    result =
        weir_all_reduce(comm, data.data(), sum.data(), data.size(), WEIR_UINT32, WEIR_SUM, nullptr);
    for (size_t k = 0; result == WEIR_OK && k < data.size(); ++k) {
      *right = *right && sum[k] == 2 * k + 1;
    }
  }
  return result;
}

// Where `hooks` begins with one that looks.
void expect_a_changed_bit_is_found(const std::string& hooks) {
  run_processes(
      2,
      [](int rank, weir_comm_t comm) {
        bool right = true;
        EXPECT_NE(add_up(rank, comm, &right), WEIR_OK);
        EXPECT_TRUE(right);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("from rank 0 to rank 1"), std::string::npos) << text;
        EXPECT_NE(text.find("was altered in transit"), std::string::npos) << text;
      },
      {{"WEIR_HOOKS", hooks}, {"WEIR_FAULT", "corrupt_at=11,rank=1,seed=3"}}, with_timeout(20'000));
  // Without it the result is wrong, unless the receive is none of data: how many there are of each
  // depends on the plan.
  const SharedCounter wrong;
  for (const char* at : {"11", "12", "13", "14"}) {
    (void)run_processes_status(
        2,
        [&](int rank, weir_comm_t comm) {
          bool right = true;
          (void)add_up(rank, comm, &right);
          if (!right) ++wrong.get();
        },
        {{"WEIR_HOOKS", "fault"},
         {"WEIR_FAULT", std::string("corrupt_at=") + at + ",rank=1,seed=3"}},
        with_timeout(20'000));
  }
  EXPECT_GT(wrong.get(), 0) << "the fault is none";
}

TEST(Checksums, AChangedBitIsNoWrongResultButAnErrorThatNamesTheRanks) {
  expect_a_changed_bit_is_found("sum,fault");
}

TEST(Seal, AChangedBitIsNoWrongResultButAnErrorThatNamesTheRanks) {
  expect_a_changed_bit_is_found("seal,fault");
}

TEST(Seal, CommunicatorsOfManySizesAreRightUnderIt) {
  for (const int n : {2, 3, 5}) {
    run_processes(
        n, [n](int rank, weir_comm_t comm) { expect_sum(rank, comm, n); }, {{"WEIR_HOOKS", "seal"}},
        with_timeout(20'000));
  }
}

TEST(Checksums, AskedForTheyChangeNoResult) {
  for (const int n : {2, 3, 5}) {
    run_processes(
        n, [n](int rank, weir_comm_t comm) { expect_sum(rank, comm, n); }, {{"WEIR_HOOKS", "sum"}},
        with_timeout(20'000));
  }
}

}  // namespace
}  // namespace weir::test
