// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts, which WEIR_HOST_ID makes of one machine: shared memory inside a host, a
// network transport between, in layouts that are even, uneven, interleaved and reversed.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

using Hosts = std::vector<int>;  // of each rank

const std::vector<Hosts> kLayouts = {{0, 0, 1, 1}, {0, 0, 0, 1},    {0, 1, 0, 1},
                                     {1, 1, 0, 0}, {0, 1, 2, 1, 0}, {0, 1, 1, 2, 2, 2}};

std::string text_of(const Hosts& hosts) {
  std::string text = "hosts";
  for (const int host : hosts) text += " " + std::to_string(host);
  return text;
}

void run_on_hosts(const Hosts& hosts, const Body& body, const Environment& more = {}) {
  const int n = static_cast<int>(hosts.size());
  const std::vector<int> statuses = run_processes_each(n, body, [&](int rank) {
    Environment own = more;
    own.emplace_back("WEIR_HOST_ID", "host " + std::to_string(hosts[static_cast<size_t>(rank)]));
    return own;
  });
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)], 0) << "rank " << rank;
  }
}

TEST(SeveralHosts, EveryCollectiveHolds) {
  for (const Hosts& hosts : kLayouts) {
    SCOPED_TRACE(text_of(hosts));
    run_on_hosts(hosts, [](int, weir_comm_t comm) {
      for (const size_t count : {size_t{0}, size_t{1}, size_t{255}, size_t{5000}, size_t{70'001}}) {
        check_every_collective(comm, count);
      }
    });
    if (HasFailure()) return;
  }
}

TEST(SeveralHosts, TheHierarchicalAlgorithmsHold) {
  const Environment forced = {{"WEIR_ALGORITHM",
                               "all_reduce=hierarchical,all_gather=hierarchical,"
                               "reduce_scatter=hierarchical,all_to_all=hierarchical,"
                               "broadcast=hierarchical,gather=hierarchical,"
                               "scatter=hierarchical"}};
  for (const Hosts& hosts : kLayouts) {
    SCOPED_TRACE(text_of(hosts));
    run_on_hosts(
        hosts,
        [](int, weir_comm_t comm) {
          for (const size_t count : {size_t{1}, size_t{5000}, size_t{70'001}}) {
            check_every_collective(comm, count);
          }
        },
        forced);
    if (HasFailure()) return;
  }
}

// Whether this process has mapped memory that it shares with others.
bool maps_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:weir") != std::string::npos) return true;
  }
  return false;
}

TEST(SeveralHosts, ShareMemoryInsideAHostOnly) {
  const Hosts hosts = {0, 1, 0};
  run_on_hosts(hosts, [](int rank, weir_comm_t comm) {
    check_every_collective(comm, 100);
    EXPECT_EQ(maps_shared_memory(), rank != 1);
  });
}

TEST(SeveralHosts, WithTcpAloneShareNone) {
  run_on_hosts({0, 1, 0},
               [](int, weir_comm_t comm) {
                 check_every_collective(comm, 100);
                 EXPECT_FALSE(maps_shared_memory());
               },
               {{"WEIR_TRANSPORT", "tcp"}});
}

TEST(SeveralHosts, AHookSeesAllMessages) {
  run_on_hosts({0, 0, 1}, [](int, weir_comm_t comm) { check_every_collective(comm, 1000); },
               {{"WEIR_HOOKS", "check"}});
}

TEST(SeveralHosts, ChildrenMayLieWithinOneOrAcross) {
  run_on_hosts({0, 0, 1, 1}, [](int rank, weir_comm_t comm) {
    for (const bool within : {true, false}) {
      weir_comm_t half = nullptr;
      ASSERT_EQ(weir_comm_split(comm, within ? rank / 2 : rank % 2, rank, nullptr, &half), WEIR_OK)
          << weir_last_error(comm);
      check_every_collective(half, 5000);
      ASSERT_EQ(weir_comm_destroy(half), WEIR_OK);
    }
  });
}

TEST(SeveralHosts, SharedMemoryAloneIsRefused) {
  const weir_unique_id_t id = make_id();
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    setenv("WEIR_TRANSPORT", "shm", 1);
    setenv("WEIR_HOST_ID", rank < 2 ? "a" : "b", 1);
    weir_comm_t comm = nullptr;
    weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
    config.timeout_ms = 10'000;
    const weir_result_t result = weir_comm_create(&comm, 3, &id, rank, &config);
    const std::string text = weir_last_error(nullptr);
    bool good = result == WEIR_ERROR_UNSUPPORTED;
    for (const char* word : {"'shm'", "rank 2", "WEIR_HOST_ID", "WEIR_TRANSPORT"}) {
      good = good && text.find(word) != std::string::npos;
    }
    if (!good) std::fprintf(stderr, "%d: %s\n", static_cast<int>(result), text.c_str());
    _exit(good ? 0 : 1);
  }
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(SeveralHosts, ADeadRankIsNamedOnBoth) {
  for (const int victim : {1, 3}) {
    const Hosts hosts = {0, 0, 1, 1};
    std::vector<int> expected(4, 0);
    expected[static_cast<size_t>(victim)] = 128 + SIGKILL;
    const std::vector<int> statuses = run_processes_each(
        4,
        [&](int rank, weir_comm_t comm) {
          std::vector<float> data(10'000, 1.0f);
          weir_result_t result = WEIR_OK;
          for (int i = 0; i < 1000 && result == WEIR_OK; ++i) {
            if (rank == victim && i == 5) kill(getpid(), SIGKILL);
            result = weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                     WEIR_MAX, nullptr);
          }
          EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
          weir_comm_t rest = nullptr;
          ASSERT_EQ(weir_comm_shrink(comm, &victim, 1, nullptr, &rest), WEIR_OK)
              << weir_last_error(comm);
          check_every_collective(rest, 1000);
          ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
        },
        [&](int rank) {
          return Environment{
              {"WEIR_HOST_ID", "host " + std::to_string(hosts[static_cast<size_t>(rank)])}};
        });
    EXPECT_EQ(statuses, expected);
  }
}

}  // namespace
}  // namespace weir::test
