// SPDX-License-Identifier: Apache-2.0
// What tests of one-sided operations share: ranks in both ways, and memory of both kinds. With
// WEIR_TEST_HOSTS=2 the processes are those of two hosts, in turns.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"

#define OK(call) ASSERT_EQ((call), WEIR_OK) << weir_last_error(nullptr)

namespace weir::test {

inline weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

inline std::vector<int> processes_status(int n, const Body& body,
                                         weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  const char* hosts = getenv("WEIR_TEST_HOSTS");
  const int count = hosts == nullptr ? 1 : atoi(hosts);
  return run_processes_each(
      n, body,
      [&](int rank) {
        Environment own;
        if (count > 1) own.emplace_back("WEIR_HOST_ID", "host " + std::to_string(rank % count));
        return own;
      },
      config);
}

inline void as_processes(int n, const Body& body,
                         weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  const std::vector<int> statuses = processes_status(n, body, config);
  for (int rank = 0; rank < n; ++rank) {
    EXPECT_EQ(statuses[static_cast<size_t>(rank)], 0) << "rank " << rank << " of " << n;
  }
}

inline void both_ways(int n, const Body& body) {
  {
    SCOPED_TRACE("processes");
    as_processes(n, body);
  }
  if (testing::Test::HasFailure() || getenv("WEIR_TEST_HOSTS") != nullptr) return;
  SCOPED_TRACE("threads");
  run_threads(n, body);
}

// Memory of one rank, of which its window is made: ordinary, or symmetric.
class Memory {
 public:
  Memory(weir_comm_t comm, size_t bytes, bool symmetric) : comm_(comm), symmetric_(symmetric) {
    if (symmetric) {
      EXPECT_EQ(weir_mem_alloc(comm, bytes, &memory_), WEIR_OK) << weir_last_error(comm);
    } else {
      own_.resize(bytes / 8 + 1);
      memory_ = own_.data();
    }
  }
  ~Memory() {
    if (symmetric_) {
      EXPECT_EQ(weir_mem_free(comm_, memory_), WEIR_OK);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  unsigned char* bytes() { return static_cast<unsigned char*>(memory_); }
  uint64_t* words() { return static_cast<uint64_t*>(memory_); }

 private:
  weir_comm_t comm_;
  bool symmetric_;
  void* memory_ = nullptr;
  std::vector<uint64_t> own_;
};

inline uint64_t now_of(uint64_t* word) { return std::atomic_ref<uint64_t>(*word).load(); }

inline int size_of(weir_comm_t comm) {
  int n = 0;
  EXPECT_EQ(weir_comm_size(comm, &n), WEIR_OK);
  return n;
}

inline std::vector<unsigned char> pattern(size_t bytes, uint64_t seed) {
  std::vector<unsigned char> data(bytes);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (unsigned char& byte : data) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<unsigned char>(state >> 56);
  }
  return data;
}

inline const std::vector<size_t> kSizes = {0, 1, 8, 191, 192, 193, 1000, 4096, 70'001, 3'000'000};
inline constexpr size_t kRoom = 3'000'000;

}  // namespace weir::test
