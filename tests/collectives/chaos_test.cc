// SPDX-License-Identifier: Apache-2.0
// A rank is killed or stopped at a random moment of random collectives, over and over. Every
// survivor must get an error that names it, within twice the timeout, and the rest must go on with
// exact results. 50 rounds; WEIR_TEST_ROUNDS sets another number.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "support/collective_checks.h"
#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

constexpr int kTimeoutMs = 1000;
// What must not depend on the timeout under test, as making communicators.
constexpr int64_t kPatienceMs = 60'000;

unsigned number_from(const char* name, unsigned otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? static_cast<unsigned>(std::strtoul(text, nullptr, 0)) : otherwise;
}

int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch())
      .count();
}

// What the ranks and the one who strikes share.
struct Scene {
  std::atomic<int> pid;  // of the victim, once it is at work
  std::atomic<int64_t> struck_us;
  std::atomic<int> told;  // survivors that have got their error
  std::atomic<bool> over;
};

struct Round {
  int rank_count;
  int victim;
  int signal;
  useconds_t moment_us;
  unsigned seed;
};

weir_result_t one_collective(weir_comm_t comm, int n, std::mt19937& random,
                             std::vector<int32_t>& in, std::vector<int32_t>& out) {
  const size_t count = std::array<size_t, 4>{1, 300, 20'000, 150'000}[random() % 4];
  const size_t block = count / static_cast<size_t>(n);
  const int root = static_cast<int>(random() % static_cast<unsigned>(n));
  switch (random() % 6) {
    case 0:
      return weir_all_gather(comm, in.data(), out.data(), block, WEIR_INT32, nullptr);
    case 1:
      return weir_broadcast(comm, in.data(), out.data(), count, WEIR_INT32, root, nullptr);
    case 2:
      return weir_reduce_scatter(comm, in.data(), out.data(), block, WEIR_INT32, WEIR_SUM, nullptr);
    case 3:
      return weir_all_to_all(comm, in.data(), out.data(), block, WEIR_INT32, nullptr);
    case 4:
      return weir_barrier(comm, nullptr);
    default: {
      const weir_result_t result =
          weir_all_reduce(comm, in.data(), out.data(), count, WEIR_INT32, WEIR_SUM, nullptr);
      if (result == WEIR_OK) {
        EXPECT_EQ(out[0], n * (n + 1) / 2);
        EXPECT_EQ(out[count - 1], n * (n + 1) / 2);
      }
      return result;
    }
  }
}

void survive(const Round& round, Scene* scene, Promises& promises, int rank, weir_comm_t comm) {
  const int timeout_ms = kTimeoutMs * promises.scale();
  ASSERT_EQ(weir_comm_set_timeout(comm, timeout_ms), WEIR_OK);
  if (rank == round.victim) scene->pid = getpid();
  std::mt19937 random(round.seed);
  std::vector<int32_t> in(150'000, rank + 1), out(150'000);
  weir_result_t result = WEIR_OK;
  int64_t began_us = 0;
  while (result == WEIR_OK) {
    began_us = now_us();
    result = one_collective(comm, round.rank_count, random, in, out);
  }
  const int64_t since_us = std::max(began_us, scene->struck_us.load());
  promises.within(2e-3 * timeout_ms, Clock::time_point(std::chrono::microseconds(since_us)));
  ++scene->told;
  ASSERT_NE(rank, round.victim) << weir_last_error(comm);
  const std::string text = weir_last_error(comm);
  EXPECT_EQ(result, round.signal == SIGKILL ? WEIR_ERROR_PEER_LOST : WEIR_ERROR_TIMEOUT) << text;
  EXPECT_NE(text.find("rank " + std::to_string(round.victim)), std::string::npos) << text;
  int lost[8];
  int lost_count = 0;
  ASSERT_EQ(weir_comm_lost_ranks(comm, lost, 8, &lost_count), WEIR_OK);
  ASSERT_EQ(lost_count, 1) << text;
  ASSERT_EQ(lost[0], round.victim) << text;
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kPatienceMs;
  weir_comm_t rest = nullptr;
  ASSERT_EQ(weir_comm_shrink(comm, lost, 1, &config, &rest), WEIR_OK) << weir_last_error(comm);
  check_every_collective(rest, 200);
  ASSERT_EQ(weir_comm_destroy(rest), WEIR_OK);
}

void play(const Round& round, Promises& promises) {
  void* memory =
      mmap(nullptr, sizeof(Scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* scene = new (memory) Scene{};
  std::thread striker([&] {
    while (scene->pid == 0 && !scene->over) usleep(100);
    if (scene->pid == 0) return;
    usleep(round.moment_us);
    scene->struck_us = now_us();
    kill(scene->pid, round.signal);
    // So that a stopped one can be collected.
    while (scene->told < round.rank_count - 1 && !scene->over &&
           now_us() < scene->struck_us + 1000 * kPatienceMs) {
      usleep(1000);
    }
    kill(scene->pid, SIGKILL);
  });
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = kPatienceMs;
  const std::vector<int> statuses = run_processes_status(
      round.rank_count,
      [&](int rank, weir_comm_t comm) { survive(round, scene, promises, rank, comm); }, {}, config);
  scene->over = true;
  striker.join();
  std::vector<int> expected(static_cast<size_t>(round.rank_count), 0);
  expected[static_cast<size_t>(round.victim)] = 128 + SIGKILL;
  EXPECT_EQ(statuses, expected);
  munmap(memory, sizeof(Scene));
}

TEST(Chaos, EverySurvivorNamesTheRankThatWasKilledOrStoppedAndTheRestGoesOn) {
  const unsigned seed = number_from("WEIR_TEST_SEED", std::random_device{}());
  const unsigned rounds = number_from("WEIR_TEST_ROUNDS", 50);
  std::printf("WEIR_TEST_SEED=%u WEIR_TEST_ROUNDS=%u\n", seed, rounds);
  std::mt19937 random(seed);
  for (unsigned i = 0; i < rounds; ++i) {
    Round round;
    round.rank_count = 3 + static_cast<int>(random() % 2);
    round.victim = static_cast<int>(random() % static_cast<unsigned>(round.rank_count));
    round.signal = random() % 5 < 2 ? SIGSTOP : SIGKILL;
    round.moment_us = random() % 15'000;
    round.seed = random();
    SCOPED_TRACE("round " + std::to_string(i) + ": rank " + std::to_string(round.victim) + " of " +
                 std::to_string(round.rank_count) + ", signal " + std::to_string(round.signal) +
                 " after " + std::to_string(round.moment_us) + " us");
    Promises promises;
    promises.hold([&] { play(round, promises); });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace weir::test
