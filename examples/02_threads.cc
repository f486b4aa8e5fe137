// SPDX-License-Identifier: Apache-2.0
// 02: ranks are threads. Each thread has its own communicator handle; Weir handles ranks that share
// a process without any setting.
//
//   ./02_threads
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include <weir/weir.h>

namespace {

constexpr int kRankCount = 4;

void check(weir_result_t result, weir_comm_t comm) {
  if (result == WEIR_OK) return;
  std::fprintf(stderr, "%s: %s\n", weir_result_string(result), weir_last_error(comm));
  std::exit(1);
}

// Returns the largest element over all ranks, after every rank has the blocks of all ranks.
int run_rank(int rank, const weir_unique_id_t& id) {
  weir_comm_t comm = nullptr;
  // The name appears in errors and logs. Start from the INIT value: fields may be added later.
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.name = "example 02";
  check(weir_comm_create(&comm, kRankCount, &id, rank, &config), nullptr);

  std::vector<int> mine(3);
  std::iota(mine.begin(), mine.end(), 100 * rank);
  std::vector<int> all(mine.size() * kRankCount);
  check(weir_all_gather(comm, mine.data(), all.data(), mine.size(), WEIR_INT32, nullptr), comm);

  int largest = 0;
  check(weir_all_reduce(comm, &all[3 * static_cast<size_t>(rank)], &largest, 1, WEIR_INT32,
                        WEIR_MAX, nullptr),
        comm);
  check(weir_comm_destroy(comm), nullptr);
  return all.back() == 302 ? largest : -1;
}

}  // namespace

int main() {
  weir_unique_id_t id;
  check(weir_get_unique_id(&id), nullptr);

  std::vector<int> largest(kRankCount);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRankCount; ++rank) {
    threads.emplace_back(
        [&largest, &id, rank] { largest[static_cast<size_t>(rank)] = run_rank(rank, id); });
  }
  for (std::thread& thread : threads) thread.join();

  for (const int value : largest) {
    std::printf("largest: %d\n", value);
    if (value != 300) return 1;
  }
  return 0;
}
