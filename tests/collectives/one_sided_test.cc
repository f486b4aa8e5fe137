// SPDX-License-Identifier: Apache-2.0
// One-sided operations as weir.h has them, over whatever transport the environment names: what
// each promises, its order, targets that do nothing, bad arguments, deadlines. With
// WEIR_TEST_HOSTS=2 the processes are those of two hosts, in turns.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/one_sided_support.h"
#include "support/shared_counter.h"

namespace weir::test {
namespace {

TEST(Put, AndFlushBringEverySizeToEveryRank) {
  for (const bool symmetric : {false, true}) {
    SCOPED_TRACE(symmetric ? "symmetric" : "ordinary");
    both_ways(3, [symmetric](int rank, weir_comm_t comm) {
      const int n = size_of(comm);
      Memory memory(comm, kRoom * 3, symmetric);
      weir_window_t window = nullptr;
      OK(weir_window_create(comm, memory.bytes(), kRoom * 3, &window));
      for (size_t i = 0; i < kSizes.size(); ++i) {
        const size_t bytes = kSizes[i];
        for (int target = 0; target < n; ++target) {
          const auto data = pattern(bytes, i * 100 + static_cast<size_t>(rank * 10 + target));
          OK(weir_put(window, target, static_cast<size_t>(rank) * kRoom, data.data(), bytes,
                      nullptr));
        }
        OK(weir_flush(comm, WEIR_ALL_RANKS, nullptr));
        OK(weir_barrier(comm, nullptr));
        for (int origin = 0; origin < n; ++origin) {
          const auto data = pattern(bytes, i * 100 + static_cast<size_t>(origin * 10 + rank));
          ASSERT_EQ(
              std::memcmp(memory.bytes() + static_cast<size_t>(origin) * kRoom, data.data(), bytes),
              0)
              << bytes << " bytes from rank " << origin;
        }
        OK(weir_barrier(comm, nullptr));
      }
      OK(weir_window_destroy(window));
    });
    if (HasFailure()) return;
  }
}

TEST(Put, OfManyAtOnceIsCompleteWhenItsRequestsAre) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, 1 << 20, false);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), 1 << 20, &window));
    const auto data = pattern(1 << 20, static_cast<uint64_t>(rank));
    std::vector<weir_request_t> requests(256, nullptr);
    constexpr size_t kPart = (1 << 20) / 256;
    for (size_t i = 0; i < requests.size(); ++i) {
      OK(weir_put(window, 1 - rank, i * kPart, data.data() + i * kPart, kPart, &requests[i]));
    }
    OK(weir_wait_all(requests.data(), requests.size()));
    OK(weir_flush(comm, 1 - rank, nullptr));
    OK(weir_barrier(comm, nullptr));
    const auto theirs = pattern(1 << 20, static_cast<uint64_t>(1 - rank));
    EXPECT_EQ(std::memcmp(memory.bytes(), theirs.data(), theirs.size()), 0);
    OK(weir_window_destroy(window));
  });
}

TEST(Window, EachRankGivesItsOwnSize) {
  both_ways(3, [](int rank, weir_comm_t comm) {
    const size_t mine = rank == 0 ? 0 : static_cast<size_t>(rank) * 1000;
    Memory memory(comm, 4096, false);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, mine == 0 ? nullptr : memory.bytes(), mine, &window));
    for (int p = 0; p < 3; ++p) {
      size_t bytes = 7;
      OK(weir_window_bytes(window, p, &bytes));
      EXPECT_EQ(bytes, static_cast<size_t>(p) * 1000);
    }
    unsigned char byte = 9;
    OK(weir_put(window, 0, 0, &byte, 0, nullptr));
    EXPECT_EQ(weir_put(window, 0, 0, &byte, 1, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_put(window, 1, 1000, &byte, 1, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    OK(weir_put(window, 2, static_cast<size_t>(rank), &byte, 1, nullptr));
    OK(weir_window_destroy(window));
    if (rank == 2) {
      EXPECT_EQ(memory.bytes()[0] + memory.bytes()[1] + memory.bytes()[2], 27);
    }
  });
}

TEST(Window, ManyMayLieInTheSameMemoryAndEndInAnyOrder) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, 4096, true);
    weir_window_t windows[8] = {};
    for (size_t i = 0; i < 8; ++i) {
      OK(weir_window_create(comm, memory.bytes() + i * 64, 1024, &windows[i]));
    }
    for (const size_t i : {5u, 0u, 7u, 3u}) {
      OK(weir_window_destroy(windows[i]));
      windows[i] = nullptr;
    }
    const uint64_t value = 77;
    OK(weir_put(windows[2], 1 - rank, 8, &value, 8, nullptr));
    OK(weir_flush(comm, 1 - rank, nullptr));
    OK(weir_barrier(comm, nullptr));
    EXPECT_EQ(memory.words()[2 * 8 + 1], 77u);
    for (weir_window_t window : windows) OK(weir_window_destroy(window));
    OK(weir_window_create(comm, memory.bytes(), 8, &windows[0]));
    OK(weir_window_destroy(windows[0]));
  });
}

TEST(Get, BringsWhatTheTargetHas) {
  for (const bool symmetric : {false, true}) {
    both_ways(3, [symmetric](int rank, weir_comm_t comm) {
      Memory memory(comm, kRoom, symmetric);
      const auto mine = pattern(kRoom, static_cast<uint64_t>(rank));
      std::memcpy(memory.bytes(), mine.data(), kRoom);
      weir_window_t window = nullptr;
      OK(weir_window_create(comm, memory.bytes(), kRoom, &window));
      for (const size_t bytes : kSizes) {
        for (int target = 0; target < 3; ++target) {
          std::vector<unsigned char> data(bytes + 1, 3);
          const size_t offset = (kRoom - bytes) / 2;
          OK(weir_get(window, target, offset, data.data(), bytes, nullptr));
          const auto theirs = pattern(kRoom, static_cast<uint64_t>(target));
          ASSERT_EQ(std::memcmp(data.data(), theirs.data() + offset, bytes), 0) << bytes;
          EXPECT_EQ(data[bytes], 3);
        }
      }
      // More than replies may be under way.
      std::vector<uint64_t> words(500);
      std::vector<weir_request_t> requests(500, nullptr);
      for (size_t i = 0; i < 500; ++i) {
        OK(weir_get(window, (rank + 1) % 3, i * 8, &words[i], 8, &requests[i]));
      }
      OK(weir_wait_all(requests.data(), requests.size()));
      const auto next = pattern(kRoom, static_cast<uint64_t>((rank + 1) % 3));
      EXPECT_EQ(std::memcmp(words.data(), next.data(), 4000), 0);
      OK(weir_window_destroy(window));
    });
    if (HasFailure()) return;
  }
}

TEST(Signal, CoversTheBytesOfItsPut) {
  for (const bool symmetric : {false, true}) {
    both_ways(2, [symmetric](int rank, weir_comm_t comm) {
      Memory memory(comm, kRoom, symmetric);
      Memory words(comm, 64, symmetric);
      weir_window_t window = nullptr, signals = nullptr;
      OK(weir_window_create(comm, memory.bytes(), kRoom, &window));
      OK(weir_window_create(comm, words.bytes(), 64, &signals));
      uint64_t turn = 0;
      // Ping and pong: whoever has been signalled looks at the bytes at once.
      for (const size_t bytes : kSizes) {
        for (int round = 0; round < 20; ++round) {
          ++turn;
          const auto data = pattern(bytes, turn * 2 + static_cast<uint64_t>(rank));
          const auto theirs = pattern(bytes, turn * 2 + static_cast<uint64_t>(1 - rank));
          if (rank == 1) {
            OK(weir_wait_signal(signals, 8, turn, nullptr));
            ASSERT_EQ(std::memcmp(memory.bytes(), theirs.data(), bytes), 0) << bytes;
          }
          OK(weir_put_signal(window, 1 - rank, 0, data.data(), bytes, signals, 8, 1, nullptr));
          if (rank == 0) {
            OK(weir_wait_signal(signals, 8, turn, nullptr));
            ASSERT_EQ(std::memcmp(memory.bytes(), theirs.data(), bytes), 0) << bytes;
          }
        }
      }
      OK(weir_window_destroy(window));
      OK(weir_window_destroy(signals));
    });
    if (HasFailure()) return;
  }
}

TEST(Signal, CoversWhatAFenceHasPutBeforeIt) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    // The one window is mapped where memory is shared, the other one is not.
    Memory ordinary(comm, kRoom, false);
    Memory symmetric(comm, 64, true);
    weir_window_t data_window = nullptr, signals = nullptr;
    OK(weir_window_create(comm, ordinary.bytes(), kRoom, &data_window));
    OK(weir_window_create(comm, symmetric.bytes(), 64, &signals));
    std::vector<unsigned char> data(kRoom);
    for (uint64_t round = 1; round <= 30; ++round) {
      if (rank == 0) {
        std::memset(data.data(), static_cast<int>(round), kRoom);
        for (size_t i = 0; i < 10; ++i) {
          OK(weir_put(data_window, 1, i * 1000, data.data(), 1000, nullptr));
        }
        OK(weir_put(data_window, 1, 10'000, data.data(), kRoom - 10'000, nullptr));
        OK(weir_fence(comm, round % 2 == 0 ? 1 : WEIR_ALL_RANKS));
        OK(weir_signal(signals, 1, 0, 1, nullptr));
        OK(weir_wait_signal(signals, 0, round, nullptr));
      } else {
        OK(weir_wait_signal(signals, 0, round, nullptr));
        for (size_t i = 0; i < kRoom; ++i) {
          ASSERT_EQ(ordinary.bytes()[i], static_cast<unsigned char>(round)) << i;
        }
        OK(weir_signal(signals, 0, 0, 1, nullptr));
      }
    }
    OK(weir_window_destroy(data_window));
    OK(weir_window_destroy(signals));
  });
}

TEST(Fence, KeepsAPutBehindAGetOfTheSameBytes) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, kRoom, false);
    std::memset(memory.bytes(), 0, kRoom);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), kRoom, &window));
    std::vector<unsigned char> got(kRoom), data(kRoom);
    for (int round = 1; round < 20 && rank == 0; ++round) {
      weir_request_t get = nullptr, put = nullptr;
      std::memset(data.data(), round, kRoom);
      OK(weir_get(window, 1, 0, got.data(), kRoom, &get));
      OK(weir_fence(comm, 1));
      OK(weir_put(window, 1, 0, data.data(), kRoom, &put));
      OK(weir_fence(comm, 1));
      OK(weir_wait(&get));
      for (const unsigned char byte : got) ASSERT_EQ(byte, round - 1);
      OK(weir_wait(&put));
    }
    OK(weir_window_destroy(window));
  });
}

TEST(Atomics, OfAllRanksOnOneWordLoseNothing) {
  for (const bool symmetric : {false, true}) {
    both_ways(4, [symmetric](int rank, weir_comm_t comm) {
      constexpr uint64_t kRounds = 60;
      Memory memory(comm, 64, symmetric);
      std::memset(memory.bytes(), 0, 64);
      weir_window_t window = nullptr;
      OK(weir_window_create(comm, memory.bytes(), 64, &window));
      std::vector<uint64_t> tickets;
      for (uint64_t i = 0; i < kRounds; ++i) {
        uint64_t old = 0;
        OK(weir_fetch_add(window, 1, 0, 1, &old, nullptr));
        tickets.push_back(old);
        OK(weir_signal(window, 1, 0, 1, nullptr));
        // A lock around a read and a write, held by who has changed the word from 0.
        for (;;) {
          OK(weir_compare_swap(window, 1, 8, 0, static_cast<uint64_t>(rank) + 1, &old, nullptr));
          if (old == 0) break;
          usleep(50);  // whoever holds it may need the core
        }
        uint64_t value = 0;
        OK(weir_get(window, 1, 16, &value, 8, nullptr));
        ++value;
        OK(weir_put(window, 1, 16, &value, 8, nullptr));
        OK(weir_fence(comm, 1));
        OK(weir_compare_swap(window, 1, 8, static_cast<uint64_t>(rank) + 1, 0, &old, nullptr));
        EXPECT_EQ(old, static_cast<uint64_t>(rank) + 1);
        if (rank == 1) std::atomic_ref<uint64_t>(memory.words()[3]).fetch_add(1);
        OK(weir_fetch_add(window, 1, 24, 1, nullptr, nullptr));
      }
      for (size_t i = 1; i < tickets.size(); ++i) EXPECT_LT(tickets[i - 1], tickets[i]);
      OK(weir_window_destroy(window));
      if (rank == 1) {
        EXPECT_EQ(memory.words()[0], 4 * kRounds * 2);
        EXPECT_EQ(memory.words()[1], 0u);
        EXPECT_EQ(memory.words()[2], 4 * kRounds);
        EXPECT_EQ(memory.words()[3], 5 * kRounds);
      }
    });
    if (HasFailure()) return;
  }
}

TEST(Atomics, OfManyRequestsAtOnceEachHaveTheirOwnValue) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, 64, false);
    std::memset(memory.bytes(), 0, 64);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), 64, &window));
    std::vector<uint64_t> old(300, ~uint64_t{0});
    std::vector<weir_request_t> requests(300, nullptr);
    for (size_t i = 0; i < 300; ++i) {
      OK(weir_fetch_add(window, 1 - rank, 0, 1, &old[i], &requests[i]));
    }
    OK(weir_wait_all(requests.data(), requests.size()));
    std::vector<bool> seen(300);
    for (const uint64_t value : old) {
      ASSERT_LT(value, 300u);
      EXPECT_FALSE(seen[value]);
      seen[value] = true;
    }
    OK(weir_window_destroy(window));
  });
}

// The target sleeps outside of Weir, in processes of their own.
TEST(Target, NeedNotCallAnything) {
  const SharedCounter done;
  done.get() = 0;
  as_processes(
      2,
      [&](int rank, weir_comm_t comm) {
        for (const bool symmetric : {false, true}) {
          Memory memory(comm, kRoom, symmetric);
          std::memset(memory.bytes(), 5, kRoom);
          weir_window_t window = nullptr;
          OK(weir_window_create(comm, memory.bytes(), kRoom, &window));
          if (rank == 0) {
            std::vector<unsigned char> data(kRoom);
            OK(weir_get(window, 1, 0, data.data(), kRoom, nullptr));
            EXPECT_EQ(data[kRoom - 1], 5);
            uint64_t old = 0;
            OK(weir_fetch_add(window, 1, 0, 1, &old, nullptr));
            EXPECT_EQ(old, 0x0505050505050505u);
            OK(weir_put(window, 1, 8, data.data(), 1'000'000, nullptr));
            OK(weir_flush(comm, 1, nullptr));
            ++done.get();
          } else {
            for (int i = 0; i < 20'000 && done.get() <= (symmetric ? 1 : 0); ++i) usleep(1000);
            EXPECT_EQ(done.get(), symmetric ? 2 : 1) << "not served while this rank slept";
            EXPECT_EQ(memory.words()[0], 0x0505050505050506u);
          }
          OK(weir_window_destroy(window));
        }
      },
      with_timeout(60'000));
}

TEST(WaitSignal, WithARequestIsTestedAndWrapsAround) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, 64, false);
    std::memset(memory.bytes(), 0, 64);
    memory.words()[1] = ~uint64_t{0} - 2;
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), 64, &window));
    weir_request_t wait = nullptr;
    OK(weir_wait_signal(window, 8, 3, &wait));
    int done = 0;
    if (rank == 0) {
      OK(weir_test(&wait, &done));
      EXPECT_EQ(done, 0);
    }
    OK(weir_barrier(comm, nullptr));
    for (int i = 0; i < 6; ++i) OK(weir_signal(window, 1 - rank, 8, 1, nullptr));
    OK(weir_wait(&wait));
    EXPECT_EQ(now_of(&memory.words()[1]), 3u);
    OK(weir_wait_signal(window, 8, 2, nullptr));  // reached before
    OK(weir_window_destroy(window));
  });
}

TEST(Arguments, ThatAreWrongSendNothing) {
  run_threads(2, [](int rank, weir_comm_t comm) {
    EXPECT_EQ(weir_flush(comm, 0, nullptr), WEIR_ERROR_INVALID_USAGE);
    OK(weir_fence(comm, 0));
    alignas(8) unsigned char memory[68] = {};
    weir_window_t window = nullptr, registered = nullptr;
    EXPECT_EQ(weir_window_create(comm, nullptr, 8, &window), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_window_create(comm, memory, SIZE_MAX, &window), WEIR_ERROR_INVALID_ARGUMENT);
    OK(weir_window_create(comm, memory + 4, 64, &window));  // words at odd multiples of 4
    OK(weir_register(comm, memory, 64, &registered));
    uint64_t word = 0;
    weir_request_t request = nullptr;
    const int other = 1 - rank;
    const auto refused = [&](weir_result_t result, const char* text) {
      EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
      const std::string said = weir_last_error(nullptr);
      EXPECT_NE(said.find(text), std::string::npos) << "no '" << text << "' in: " << said;
    };
    refused(weir_put(nullptr, other, 0, &word, 8, nullptr), "NULL or destroyed");
    refused(weir_put(window, 2, 0, &word, 8, nullptr), "target 2 is not a rank of 2");
    refused(weir_put(window, -1, 0, &word, 8, nullptr), "target -1");
    refused(weir_put(window, other, 57, &word, 8, nullptr), "8 bytes at offset 57");
    refused(weir_put(window, other, SIZE_MAX - 3, &word, 8, nullptr), "do not lie in the 64");
    refused(weir_put(window, other, 8, &word, SIZE_MAX - 4, nullptr), "do not lie in the 64");
    refused(weir_put(window, other, 0, nullptr, 8, &request), "the buffer is NULL");
    EXPECT_EQ(request, nullptr);
    refused(weir_put(registered, other, 0, &word, 8, nullptr), "weir_register");
    refused(weir_get(window, other, 65, &word, 0, nullptr), "0 bytes at offset 65");
    refused(weir_fetch_add(window, other, 0, 1, &word, nullptr), "not a multiple of 8");
    refused(weir_compare_swap(window, other, 60, 1, 2, &word, nullptr), "8 bytes at offset 60");
    refused(weir_signal(window, other, 1, 1, nullptr), "not a multiple of 8");
    refused(weir_wait_signal(window, 1, 1, nullptr), "not a multiple of 8");
    refused(weir_put_signal(window, other, 0, &word, 8, registered, 4, 1, nullptr), "register");
    refused(weir_put_signal(window, other, 0, &word, 8, nullptr, 4, 1, nullptr), "NULL");
    refused(weir_deregister(comm, window), "weir_window_destroy");
    refused(weir_window_destroy(registered), "weir_register");
    refused(weir_window_retire(registered), "weir_register");
    EXPECT_EQ(weir_fence(comm, 2), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(weir_flush(comm, -2, nullptr), WEIR_ERROR_INVALID_ARGUMENT);
    OK(weir_fetch_add(window, other, 4, 1, &word, nullptr));
    OK(weir_window_destroy(nullptr));
    OK(weir_deregister(comm, registered));
    OK(weir_window_destroy(window));
    for (int i = 0; i < 68; ++i) EXPECT_EQ(memory[i], i == 8 ? 1 : 0);
  });
}

TEST(Deadline, OfASignalThatNeverComesNamesTheOperation) {
  as_processes(
      2,
      [](int rank, weir_comm_t comm) {
        Memory memory(comm, 64, false);
        std::memset(memory.bytes(), 0, 64);
        weir_window_t window = nullptr;
        OK(weir_window_create(comm, memory.bytes(), 64, &window));
        if (rank == 0) {
          const auto start = Clock::now();
          OK(weir_comm_set_timeout(comm, 500));
          EXPECT_EQ(weir_wait_signal(window, 8, 1, nullptr), WEIR_ERROR_TIMEOUT);
          EXPECT_LT(seconds_since(start), 10);
          const std::string text = weir_last_error(comm);
          EXPECT_NE(text.find("wait_signal at offset 8 until 1 (it is 0)"), std::string::npos)
              << text;
        } else {
          sleep(2);
        }
      },
      with_timeout(20'000));
}

TEST(Window, KeepsItsSymmetricMemoryFromBeingFreed) {
  both_ways(2, [](int, weir_comm_t comm) {
    void* memory = nullptr;
    OK(weir_mem_alloc(comm, 4096, &memory));
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, static_cast<char*>(memory) + 1024, 64, &window));
    EXPECT_EQ(weir_mem_free(comm, memory), WEIR_ERROR_INVALID_USAGE);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("destroy or retire it first"), std::string::npos) << text;
    OK(weir_window_destroy(window));
    OK(weir_mem_free(comm, memory));
  });
}

TEST(Window, DifferentOnesDestroyedTogetherAreNamedOnEveryRank) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    std::vector<uint64_t> memory(8);
    weir_window_t windows[2] = {};
    for (weir_window_t& window : windows) OK(weir_window_create(comm, memory.data(), 64, &window));
    EXPECT_EQ(weir_window_destroy(windows[rank]), WEIR_ERROR_MISMATCH);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("rank 0 destroys window 1"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 destroys window 2"), std::string::npos) << text;
  });
}

TEST(Window, CreatedAgainstAnotherCallIsNamedAsTheUserWroteIt) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    std::vector<uint64_t> memory(8);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.data(), 64, &window));
    if (rank == 0) {
      EXPECT_EQ(weir_window_destroy(window), WEIR_ERROR_MISMATCH);
    } else {
      weir_window_t other = nullptr;
      EXPECT_EQ(weir_window_create(comm, memory.data(), 64, &other), WEIR_ERROR_MISMATCH);
    }
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("window_destroy()"), std::string::npos) << text;
    EXPECT_NE(text.find("window_create()"), std::string::npos) << text;
  });
}

TEST(EndedWindow, EndsAWaitForItsSignalWithAText) {
  both_ways(2, [](int, weir_comm_t comm) {
    std::vector<uint64_t> memory(8);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.data(), 64, &window));
    weir_request_t wait = nullptr;
    OK(weir_wait_signal(window, 8, 1, &wait));
    OK(weir_window_destroy(window));
    EXPECT_EQ(weir_wait(&wait), WEIR_ERROR_INVALID_USAGE);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("the window was destroyed"), std::string::npos) << text;
    EXPECT_EQ(text, weir_last_error(nullptr));
  });
}

// It had not flushed them: some may be lost, and nothing else is.
// One waits for it in a collective, the other one in a get: both name it, and nobody else.
// Its goodbye may have come while nothing needed it.
TEST(Abort, EndsOperationsInFlightHereAndAtThePeers) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, 64, false);
    std::memset(memory.bytes(), 0, 64);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), 64, &window));
    OK(weir_barrier(comm, nullptr));
    std::thread aborts;
    if (rank == 0) {
      aborts = std::thread([comm] {
        usleep(100'000);
        EXPECT_EQ(weir_comm_abort(comm), WEIR_OK);
      });
    }
    const auto start = Clock::now();
    EXPECT_EQ(weir_wait_signal(window, 0, 1, nullptr), WEIR_ERROR_ABORTED) << weir_last_error(comm);
    EXPECT_LT(seconds_since(start), 10);
    if (aborts.joinable()) aborts.join();
    weir_result_t error = WEIR_OK;
    EXPECT_EQ(weir_comm_async_error(comm, &error), WEIR_OK);
    EXPECT_EQ(error, WEIR_ERROR_ABORTED);
    uint64_t word = 0;
    EXPECT_EQ(weir_get(window, 1 - rank, 0, &word, 8, nullptr), WEIR_ERROR_ABORTED);
  });
}

TEST(Destroy, WithOperationsInFlightEndsThem) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    weir_comm_t child = nullptr;
    OK(weir_comm_split(comm, 0, rank, nullptr, &child));
    auto memory = std::make_unique<std::vector<unsigned char>>(kRoom);
    weir_window_t window = nullptr;
    OK(weir_window_create(child, memory->data(), kRoom, &window));
    std::vector<unsigned char> data(kRoom);
    weir_request_t wait = nullptr, get = nullptr;
    OK(weir_wait_signal(window, 0, 1, &wait));
    OK(weir_get(window, 1 - rank, 0, data.data(), kRoom, &get));
    OK(weir_comm_destroy(child));
    memory.reset();
    // The other rank may have left before.
    const auto is_end = [](weir_result_t result) {
      return result == WEIR_ERROR_ABORTED || result == WEIR_ERROR_PEER_LOST;
    };
    const weir_result_t of_wait = weir_wait(&wait), of_get = weir_wait(&get);
    EXPECT_TRUE(is_end(of_wait)) << of_wait;
    EXPECT_TRUE(of_get == WEIR_OK || is_end(of_get)) << of_get;
    weir_window_t next = nullptr;
    uint64_t word = 0;
    OK(weir_window_create(comm, &word, 8, &next));
    OK(weir_window_destroy(next));
  });
}

TEST(Leaving, WithoutTheEndOfItsWindowsIsNoFailureForTheOthers) {
  both_ways(3, [](int rank, weir_comm_t comm) {
    weir_comm_t child = nullptr;
    OK(weir_comm_split(comm, 0, rank, nullptr, &child));
    Memory memory(comm, 64, false);
    std::memset(memory.bytes(), 0, 64);
    weir_window_t window = nullptr;
    OK(weir_window_create(child, memory.bytes(), 64, &window));
    if (rank == 2) {
      OK(weir_signal(window, 0, 0, 1, nullptr));
      OK(weir_flush(child, 0, nullptr));
    }
    if (rank != 2) {
      usleep(50'000);
      for (uint64_t i = 0; i < 50; ++i) {
        OK(weir_signal(window, 1 - rank, 8, 1, nullptr));
        OK(weir_wait_signal(window, 8, i + 1, nullptr));
      }
      if (rank == 0) {
        OK(weir_wait_signal(window, 0, 1, nullptr));
      }
      OK(weir_flush(child, 1 - rank, nullptr));
      // A rank that has left answers no flush.
      float mine = 0, other = 0;
      weir_request_t request = nullptr;
      OK(weir_recv(comm, &other, 1, WEIR_FLOAT32, 1 - rank, &request));
      OK(weir_send(comm, &mine, 1, WEIR_FLOAT32, 1 - rank, nullptr));
      OK(weir_wait(&request));
    }
    OK(weir_comm_destroy(child));
    OK(weir_barrier(comm, nullptr));
  });
}

TEST(Threads, OfOneRankWorkBesideEachOtherAndBesideCollectives) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    constexpr size_t kThreads = 4, kPart = 5000;
    Memory memory(comm, kThreads * kPart + 64, false);
    std::memset(memory.bytes(), 0, kThreads * kPart + 64);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), kThreads * kPart + 64, &window));
    std::vector<std::thread> threads;
    for (size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 50; ++i) {
          const auto data = pattern(kPart, t * 1000 + i);
          std::vector<unsigned char> back(kPart);
          OK(weir_put(window, 1 - rank, 64 + t * kPart, data.data(), kPart, nullptr));
          OK(weir_flush(comm, 1 - rank, nullptr));
          OK(weir_get(window, 1 - rank, 64 + t * kPart, back.data(), kPart, nullptr));
          ASSERT_EQ(back, data);
          OK(weir_fetch_add(window, 1 - rank, 0, 1, nullptr, nullptr));
        }
      });
    }
    for (int i = 0; i < 100; ++i) {
      float value = 1;
      OK(weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr));
      ASSERT_EQ(value, 2);
    }
    for (std::thread& thread : threads) thread.join();
    OK(weir_window_destroy(window));
    EXPECT_EQ(memory.words()[0], kThreads * 50);
  });
}

TEST(Fork, LeavesAChildWithoutTheWindowsOfItsParent) {
  as_processes(2, [](int rank, weir_comm_t comm) {
    Memory memory(comm, 64, false);
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, memory.bytes(), 64, &window));
    const pid_t child = fork();
    if (child == 0) {
      uint64_t word = 0;
      const bool refused =
          weir_put(window, 1 - rank, 0, &word, 8, nullptr) == WEIR_ERROR_INVALID_USAGE &&
          weir_flush(comm, 0, nullptr) == WEIR_ERROR_INVALID_USAGE &&
          weir_fetch_add(window, rank, 0, 1, &word, nullptr) == WEIR_ERROR_INVALID_USAGE &&
          weir_window_destroy(window) == WEIR_ERROR_INVALID_USAGE &&
          weir_window_retire(window) == WEIR_ERROR_INVALID_USAGE &&
          weir_comm_destroy(comm) == WEIR_OK;
      _exit(refused ? 0 : 1);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    OK(weir_signal(window, 1 - rank, 0, 1, nullptr));
    OK(weir_wait_signal(window, 0, 1, nullptr));
    OK(weir_window_destroy(window));
  });
}

}  // namespace
}  // namespace weir::test
