// SPDX-License-Identifier: Apache-2.0
// Properties of the core's one-sided operations over a transport, whatever of them the transport
// does itself: ranks of weir.h, in processes of their own, to which the environment names the
// variant's transport, hook, second transport and hosts.
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "conformance/harness.h"
#include "conformance/two_hosts.h"
#include "support/one_sided_programs.h"
#include "support/ranks.h"
#include "support/shared_counter.h"

namespace weir::conformance {
namespace {

using test::Body;
using test::Environment;

#define OK(call) ASSERT_EQ((call), WEIR_OK) << weir_last_error(nullptr)

constexpr char kFailover[] = "failover_";

Environment environment_of(const Variant& variant, int rank) {
  const bool has_second = variant.transport.starts_with(kFailover);
  Environment all;
  all.emplace_back("WEIR_TRANSPORT",
                   has_second ? variant.transport.substr(sizeof kFailover - 1) : variant.transport);
  if (has_second) all.emplace_back("WEIR_FAILOVER", "tcp");
  if (variant.hook == "hosts") {
    // Two ranks share one host, others have another.
    all.emplace_back("WEIR_HOST_ID", rank < 2 ? "one host" : "another host");
    return all;
  }
  if (!variant.hook.empty()) all.emplace_back("WEIR_HOOKS", variant.hook);
  if (variant.hook == "fault") {
    all.emplace_back("WEIR_FAULT", "delay_us=100,seed=" + std::to_string(test_seed() % 1000));
  }
  return all;
}

// How each rank ended. Ranks that are threads have a process to themselves, since a process reads
// its environment once.
std::vector<int> play(const Variant& variant, int n, const Body& body) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = 60'000;
  if (variant.processes) {
    return test::run_processes_each(
        n, body, [&](int rank) { return environment_of(variant, rank); }, config);
  }
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const auto& [name, value] : environment_of(variant, 0)) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    test::run_threads(n, body, config);
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

void play_well(const Variant& variant, int n, const Body& body) {
  for (const int status : play(variant, n, body)) EXPECT_EQ(status, 0);
}

bool applies_to(const Variant& variant) {
  // Threads are on one host. Namespaces have a test of their own (tests/netns).
  return (variant.processes || variant.hook != "hosts") &&
         getenv("WEIR_CONFORMANCE_HOSTS") == nullptr;
}

bool has_processes(const Variant& variant) { return applies_to(variant) && variant.processes; }

void random_programs(const Variant& variant) {
  for (uint64_t i = 0; i < 2; ++i) {
    const uint64_t seed = test_seed() % 1'000'000 * 2 + i;
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto program = test::make_one_sided_program(seed);
    play_well(variant, program.rank_count,
              [&](int rank, weir_comm_t comm) { run_one_sided_program(program, rank, comm); });
    if (testing::Test::HasFailure()) return;
  }
}

// Who has been signalled looks at the bytes at once; a fence puts a put before a signal.
void signals_cover(const Variant& variant) {
  play_well(variant, 3, [](int rank, weir_comm_t comm) {
    constexpr size_t kBytes = 200'000;
    std::vector<uint64_t> memory(kBytes / 8 + 2);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.data(), memory.size() * 8, &window));
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    std::vector<unsigned char> data(kBytes);
    for (uint64_t round = 1; round <= 12; ++round) {
      const size_t bytes = round % 3 == 0 ? kBytes : round % 3 == 1 ? 100 : 5000;
      memset(data.data(), static_cast<int>(round * 16) + rank, bytes);
      if (round % 2 == 0) {
        OK(weir_put(window, next, 16, data.data(), bytes, nullptr));
        OK(weir_fence(comm, next));
        OK(weir_signal(window, next, 0, 1, nullptr));
      } else {
        OK(weir_put_signal(window, next, 16, data.data(), bytes, window, 0, 1, nullptr));
      }
      OK(weir_wait_signal(window, 0, round, nullptr));
      const auto expected = static_cast<unsigned char>(static_cast<int>(round * 16) + previous);
      const auto* got = reinterpret_cast<const unsigned char*>(memory.data()) + 16;
      for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(got[i], expected) << round << ": " << i;
      // The next round may overwrite it once the origin knows.
      OK(weir_signal(window, previous, 8, 1, nullptr));
      OK(weir_wait_signal(window, 8, round, nullptr));
    }
    OK(weir_window_destroy(window));
  });
}

void atomics_lose_nothing(const Variant& variant) {
  play_well(variant, 3, [](int rank, weir_comm_t comm) {
    constexpr uint64_t kRounds = 30;
    alignas(8) uint64_t words[4] = {};
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, words, sizeof words, &window));
    uint64_t latest = 0;
    for (uint64_t i = 0; i < kRounds; ++i) {
      uint64_t old = 0;
      OK(weir_fetch_add(window, 1, 0, 2, &old, nullptr));
      ASSERT_TRUE(i == 0 || old > latest);
      latest = old;
      // The target's own processor is one of those that change the word.
      if (rank == 1) std::atomic_ref<uint64_t>(words[0]).fetch_add(1);
      OK(weir_signal(window, 1, 8, 1, nullptr));
      do {
        OK(weir_compare_swap(window, 1, 16, static_cast<uint64_t>(rank) + 3 * i,
                             static_cast<uint64_t>(rank) + 3 * i + 1, &old, nullptr));
      } while (old != static_cast<uint64_t>(rank) + 3 * i);
    }
    OK(weir_flush(comm, WEIR_ALL_RANKS, nullptr));
    OK(weir_window_destroy(window));
    if (rank == 1) {
      EXPECT_EQ(words[0], 7 * kRounds);
      EXPECT_EQ(words[1], 3 * kRounds);
      EXPECT_EQ(words[2], 3 * kRounds);
    }
  });
}

void windows_are_retired(const Variant& variant) {
  play_well(variant, 3, [](int rank, weir_comm_t comm) {
    constexpr size_t kBytes = 300'000;
    for (int round = 0; round < 3; ++round) {
      auto memory = std::make_unique<std::vector<unsigned char>>(kBytes);
      std::vector<unsigned char> data(kBytes / 3);
      weir_window_t window = nullptr;
      OK(weir_window_create(comm, memory->data(), kBytes, &window));
      weir_request_t put = nullptr;
      const size_t at = static_cast<size_t>(rank) * data.size();
      const weir_result_t result =
          weir_put(window, (rank + 1) % 3, at, data.data(), data.size(), &put);
      ASSERT_TRUE(result == WEIR_OK || result == WEIR_ERROR_INVALID_USAGE)
          << weir_last_error(nullptr);
      if (rank == round) {
        OK(weir_window_retire(window));
        memset(memory->data(), 1, kBytes);
      }
      OK(weir_barrier(comm, nullptr));
      if (rank != round) {
        EXPECT_EQ(weir_put(window, round, 0, data.data(), 1, nullptr), WEIR_ERROR_INVALID_USAGE);
        const std::string text = weir_last_error(nullptr);
        EXPECT_NE(text.find("rank " + std::to_string(round)), std::string::npos) << text;
        EXPECT_NE(text.find("window " + std::to_string(round + 1)), std::string::npos) << text;
        OK(weir_window_retire(window));
      }
      if (put != nullptr) {
        const weir_result_t ended = weir_wait(&put);
        EXPECT_TRUE(ended == WEIR_OK || ended == WEIR_ERROR_INVALID_USAGE);
      }
      for (size_t i = 0; rank == round && i < kBytes; ++i) ASSERT_EQ((*memory)[i], 1);
    }
  });
}

void dead_targets_are_named(const Variant& variant) {
  const test::SharedCounter here;
  const std::vector<int> statuses = play(variant, 3, [&](int rank, weir_comm_t comm) {
    std::vector<uint64_t> memory(20'000);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.data(), memory.size() * 8, &window));
    here.meet(3);
    if (rank == 1) raise(SIGKILL);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(45);
    weir_result_t result = WEIR_OK;
    std::vector<uint64_t> data(20'000);
    uint64_t old = 0;
    while (result == WEIR_OK && std::chrono::steady_clock::now() < end) {
      result = rank == 0 ? weir_fetch_add(window, 1, 0, 1, &old, nullptr)
                         : weir_put(window, 1, 0, data.data(), data.size() * 8, nullptr);
      if (result == WEIR_OK) result = weir_flush(comm, 1, nullptr);
    }
    EXPECT_EQ(result, WEIR_ERROR_PEER_LOST) << weir_last_error(comm);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  });
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL, 0}));
}

}  // namespace

const std::vector<Property>& one_sided_properties() {
  // Runs of their own: each of these makes communicators.
  static constexpr char kPrefix[] = "one_sided_";
  static const std::vector<Property> all = {
      {"RandomProgramsLeaveTheMemoryOfASequentialModel", 0, 4, random_programs, applies_to,
       kPrefix},
      {"ASignalCoversItsPutAndWhatAFenceHasPutBeforeIt", 0, 3, signals_cover, applies_to, kPrefix},
      {"AtomicsOfAllRanksOnOneWordLoseNothing", 0, 3, atomics_lose_nothing, applies_to, kPrefix},
      {"APartOfAWindowIsRetiredWithoutTheOthers", 0, 3, windows_are_retired, applies_to, kPrefix},
      {"ATargetThatDiedIsNamed", 0, 3, dead_targets_are_named, has_processes, kPrefix},
  };
  return all;
}

}  // namespace weir::conformance
