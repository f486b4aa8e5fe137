// SPDX-License-Identifier: Apache-2.0
// weir_request_on_complete: called exactly once, however the operation ends and whoever makes
// progress, and free to call what weir.h lists.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

#define OK(call) ASSERT_EQ((call), WEIR_OK) << weir_last_error(nullptr)

struct Called {
  std::atomic<int> times{0};
  std::atomic<int> result{-1};
};

void call(void* context, weir_result_t result) {
  auto* called = static_cast<Called*>(context);
  called->result = result;
  ++called->times;
}

bool comes(const Called& called, double seconds = 20) {
  const auto start = Clock::now();
  while (called.times == 0 && seconds_since(start) < seconds) usleep(200);
  return called.times == 1;
}

weir_comm_config_t with_timeout(int64_t timeout_ms) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = timeout_ms;
  return config;
}

void both_ways(int n, const Body& body, weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
  run_processes(n, body, {}, config);
  if (!testing::Test::HasFailure()) run_threads(n, body, config);
}

TEST(Callback, IsCalledOnceForEachKindOfOperation) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    const int other = 1 - rank;
    uint64_t words[8] = {};
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, words, sizeof words, &window));
    std::vector<float> data(100'000, 1), more(100'000);
    Called called[6];
    weir_request_t requests[6] = {};
    uint64_t old = 0;
    OK(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, WEIR_SUM,
                       &requests[0]));
    OK(weir_send(comm, data.data(), 100, WEIR_FLOAT32, other, &requests[1]));
    OK(weir_recv(comm, more.data(), 100, WEIR_FLOAT32, other, &requests[2]));
    OK(weir_signal(window, other, 0, 1, &requests[3]));
    OK(weir_wait_signal(window, 0, 1, &requests[4]));
    OK(weir_fetch_add(window, other, 8, 1, &old, &requests[5]));
    for (int i = 0; i < 6; ++i) OK(weir_request_on_complete(requests[i], call, &called[i]));
    for (int i = 0; i < 6; ++i) {
      EXPECT_TRUE(comes(called[i])) << i;
      EXPECT_EQ(called[i].result, WEIR_OK) << i;
    }
    OK(weir_wait_all(requests, 6));
    OK(weir_window_destroy(window));
    for (const Called& it : called) EXPECT_EQ(it.times, 1);
  });
}

TEST(Callback, IsCalledAtOnceWhereTheOperationIsDone) {
  run_threads(1, [](int, weir_comm_t comm) {
    weir_request_t request = nullptr;
    OK(weir_barrier(comm, &request));
    int done = 0;
    Called first;
    // Whether or not the barrier is done by now.
    OK(weir_request_on_complete(request, call, &first));
    EXPECT_TRUE(comes(first));
    Called second;
    EXPECT_EQ(weir_request_on_complete(request, call, &second), WEIR_ERROR_INVALID_USAGE);
    OK(weir_test(&request, &done));
    EXPECT_EQ(done, 1);
    uint64_t word = 0;
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, &word, 8, &window));
    OK(weir_signal(window, 0, 0, 5, &request));
    Called at_once;
    OK(weir_request_on_complete(request, call, &at_once));
    EXPECT_EQ(at_once.times, 1);
    OK(weir_wait(&request));
    OK(weir_window_destroy(window));
    EXPECT_EQ(weir_request_on_complete(nullptr, call, &second), WEIR_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(second.times, 0);
  });
}

// That group belongs to the caller of the function which calls the callback.
TEST(Callback, IsNotPartOfTheGroupThatItsThreadHasOpen) {
  run_threads(1, [](int, weir_comm_t comm) {
    uint64_t word = 0;
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, &word, 8, &window));
    weir_request_t request = nullptr;
    OK(weir_signal(window, 0, 0, 5, &request));
    struct Inside {
      weir_comm_t comm;
      weir_request_t request;
      weir_result_t blocking;
      weir_result_t started;
      int done;
    } inside = {comm, nullptr, WEIR_OK, WEIR_OK, 0};
    OK(weir_group_start());
    OK(weir_request_on_complete(
        request,
        [](void* context, weir_result_t) {
          auto* it = static_cast<Inside*>(context);
          it->blocking = weir_barrier(it->comm, nullptr);
          it->started = weir_barrier(it->comm, &it->request);
          if (it->started == WEIR_OK) it->started = weir_test(&it->request, &it->done);
        },
        &inside));
    EXPECT_EQ(inside.blocking, WEIR_ERROR_INVALID_USAGE);
    EXPECT_EQ(inside.started, WEIR_OK);
    EXPECT_EQ(inside.done, 1);
    OK(weir_group_end());
    OK(weir_wait(&request));
    OK(weir_window_destroy(window));
  });
}

TEST(Callback, OfAGroupIsCalledAfterItsEnd) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    float in = static_cast<float>(rank), out = -1;
    weir_request_t requests[2] = {};
    Called called[2];
    OK(weir_group_start());
    OK(weir_send(comm, &in, 1, WEIR_FLOAT32, 1 - rank, &requests[0]));
    OK(weir_recv(comm, &out, 1, WEIR_FLOAT32, 1 - rank, &requests[1]));
    for (int i = 0; i < 2; ++i) OK(weir_request_on_complete(requests[i], call, &called[i]));
    EXPECT_EQ(called[0].times + called[1].times, 0);
    OK(weir_group_end());
    OK(weir_wait_all(requests, 2));
    EXPECT_TRUE(comes(called[0]));
    EXPECT_TRUE(comes(called[1]));
    EXPECT_EQ(out, static_cast<float>(1 - rank));
  });
}

struct Chain {
  weir_comm_t comm;
  weir_request_t request = nullptr;
  float value = 1;
  std::atomic<int> left{100};
  std::atomic<int> wrong{0};
};

// Looks after the operation that has ended and starts the next one.
void next_in_chain(void* context, weir_result_t result) {
  auto* chain = static_cast<Chain*>(context);
  int done = 0, size = 0;
  weir_result_t error = WEIR_ERROR_INTERNAL;
  const bool sound = result == WEIR_OK && weir_test(&chain->request, &done) == WEIR_OK &&
                     done == 1 && weir_comm_size(chain->comm, &size) == WEIR_OK && size == 2 &&
                     weir_comm_async_error(chain->comm, &error) == WEIR_OK && error == WEIR_OK;
  if (!sound) ++chain->wrong;
  if (--chain->left == 0) return;
  weir_request_t request = nullptr;
  if (weir_all_reduce(chain->comm, &chain->value, &chain->value, 1, WEIR_FLOAT32, WEIR_MAX,
                      &request) != WEIR_OK) {
    ++chain->wrong;
    return;
  }
  chain->request = request;
  if (weir_request_on_complete(request, next_in_chain, chain) != WEIR_OK) ++chain->wrong;
}

TEST(Callback, MayStartTheNextOperation) {
  both_ways(2, [](int, weir_comm_t comm) {
    Chain chain{.comm = comm};
    OK(weir_all_reduce(comm, &chain.value, &chain.value, 1, WEIR_FLOAT32, WEIR_MAX,
                       &chain.request));
    OK(weir_request_on_complete(chain.request, next_in_chain, &chain));
    const auto start = Clock::now();
    while (chain.left > 0 && seconds_since(start) < 30) usleep(1000);
    EXPECT_EQ(chain.left, 0);
    EXPECT_EQ(chain.wrong, 0);
  });
}

struct Uses {
  weir_comm_t comm;
  std::atomic<int> good{0};
};

// Waits for another thread that uses this communicator, and makes one of its own.
void use_elsewhere(void* context, weir_result_t) {
  auto* uses = static_cast<Uses*>(context);
  std::thread([uses] {
    weir_result_t error = WEIR_OK;
    int done = 0;
    float value = 1;
    weir_request_t request = nullptr;
    const weir_unique_id_t id = make_id();
    weir_comm_t alone = nullptr;
    if (weir_comm_async_error(uses->comm, &error) == WEIR_OK &&
        weir_all_reduce(uses->comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, &request) ==
            WEIR_OK &&
        weir_test(&request, &done) == WEIR_OK && (done == 1 || weir_wait(&request) == WEIR_OK) &&
        value == 2 && weir_comm_create(&alone, 1, &id, 0, nullptr) == WEIR_OK &&
        weir_comm_destroy(alone) == WEIR_OK) {
      ++uses->good;
    }
  }).join();
}

struct Refused {
  weir_comm_t comm = nullptr;
  weir_request_t pending = nullptr;
  std::vector<weir_result_t> results;
  std::string text;
  std::atomic<bool> done{false};
};

TEST(Callback, IsRefusedWhatWouldWait) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    uint64_t word = 0;
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, &word, sizeof word, &window));
    Refused refused;
    refused.comm = comm;
    int value = rank;
    int other = -1;
    OK(weir_recv(comm, &other, 1, WEIR_INT32, 1 - rank, &refused.pending));
    OK(weir_barrier(comm, nullptr));
    weir_request_t request = nullptr;
    OK(weir_barrier(comm, &request));
    const auto calls = [](void* context, weir_result_t) {
      auto* it = static_cast<Refused*>(context);
      weir_comm_t made = nullptr;
      void* memory = nullptr;
      weir_window_t another = nullptr;
      float sum = 1;
      it->results = {weir_barrier(it->comm, nullptr),
                     weir_all_reduce(it->comm, &sum, &sum, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
                     weir_send(it->comm, &sum, 1, WEIR_FLOAT32, 0, nullptr),
                     weir_flush(it->comm, WEIR_ALL_RANKS, nullptr),
                     weir_wait(&it->pending),
                     weir_group_start(),
                     weir_comm_split(it->comm, 0, 0, nullptr, &made),
                     weir_comm_add_program(it->comm, "a", "", 0, 0),
                     weir_mem_alloc(it->comm, 64, &memory),
                     weir_window_create(it->comm, &sum, sizeof sum, &another),
                     weir_comm_destroy(it->comm)};
      it->text = weir_last_error(nullptr);
      it->done = true;
    };
    OK(weir_request_on_complete(request, calls, &refused));
    OK(weir_wait(&request));
    for (int i = 0; i < 100'000 && !refused.done; ++i) usleep(200);
    ASSERT_EQ(refused.results.size(), 11u);
    for (size_t i = 0; i < refused.results.size(); ++i) {
      EXPECT_EQ(refused.results[i], WEIR_ERROR_INVALID_USAGE) << "call " << i;
    }
    EXPECT_NE(refused.text.find("comm_destroy: may not be called inside a callback"),
              std::string::npos)
        << refused.text;
    // Nothing of it has had an effect.
    OK(weir_send(comm, &value, 1, WEIR_INT32, 1 - rank, nullptr));
    OK(weir_wait(&refused.pending));
    EXPECT_EQ(other, 1 - rank);
    OK(weir_window_destroy(window));
  });
}

TEST(Callback, HoldsNoLockThatOtherThreadsNeed) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    Uses uses{.comm = comm};
    float value = 1, got = 0;
    weir_request_t request = nullptr;
    OK(weir_recv(comm, &got, 1, WEIR_FLOAT32, 1 - rank, &request));
    OK(weir_request_on_complete(request, use_elsewhere, &uses));
    usleep(20'000);
    OK(weir_send(comm, &value, 1, WEIR_FLOAT32, 1 - rank, nullptr));
    OK(weir_wait(&request));
    const auto start = Clock::now();
    while (uses.good == 0 && seconds_since(start) < 20) usleep(1000);
    EXPECT_EQ(uses.good, 1);
  });
}

TEST(Callback, OfManyThreadsAreEachCalledOnce) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    constexpr int kThreads = 4, kRounds = 100;
    uint64_t words[8] = {};
    weir_window_t window = nullptr;
    OK(weir_window_create(comm, words, sizeof words, &window));
    std::vector<Called> called(kThreads * kRounds);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kRounds; ++i) {
          Called& it = called[static_cast<size_t>(t) * kRounds + static_cast<size_t>(i)];
          uint64_t old = 0;
          weir_request_t request = nullptr;
          OK(weir_fetch_add(window, 1 - rank, 8 * static_cast<size_t>(t), 1, &old, &request));
          OK(weir_request_on_complete(request, call, &it));
          OK(weir_wait(&request));
          EXPECT_EQ(old, static_cast<uint64_t>(i));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Called& it : called) EXPECT_TRUE(comes(it));
    OK(weir_window_destroy(window));
    for (const Called& it : called) EXPECT_EQ(it.times, 1);
  });
}

TEST(Callback, TellsOfADeadlineThatNobodyWaitsFor) {
  both_ways(
      2,
      [](int rank, weir_comm_t comm) {
        Called called;
        weir_request_t request = nullptr;
        float value = 0;
        if (rank == 0) {
          OK(weir_comm_set_timeout(comm, 300));
          OK(weir_recv(comm, &value, 1, WEIR_FLOAT32, 1, &request));
          OK(weir_request_on_complete(request, call, &called));
          EXPECT_TRUE(comes(called));
          EXPECT_EQ(called.result, WEIR_ERROR_TIMEOUT);
          EXPECT_EQ(weir_wait(&request), WEIR_ERROR_TIMEOUT);
        } else {
          usleep(1'500'000);
        }
      },
      with_timeout(20'000));
}

TEST(Callback, TellsOfADeadPeerThatNobodyWaitsFor) {
  const std::vector<int> statuses = run_processes_status(
      2,
      [](int rank, weir_comm_t comm) {
        Called called;
        weir_request_t request = nullptr;
        float value = 0;
        if (rank == 1) {
          usleep(100'000);
          raise(SIGKILL);
        }
        OK(weir_recv(comm, &value, 1, WEIR_FLOAT32, 1, &request));
        OK(weir_request_on_complete(request, call, &called));
        EXPECT_TRUE(comes(called));
        EXPECT_EQ(called.result, WEIR_ERROR_PEER_LOST);
        EXPECT_EQ(weir_wait(&request), WEIR_ERROR_PEER_LOST);
      },
      {}, with_timeout(20'000));
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
}

TEST(Callback, TellsOfAnAbort) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    Called called;
    weir_request_t request = nullptr;
    float value = 0;
    OK(weir_recv(comm, &value, 1, WEIR_FLOAT32, 1 - rank, &request));
    OK(weir_request_on_complete(request, call, &called));
    usleep(50'000);
    OK(weir_comm_abort(comm));
    EXPECT_TRUE(comes(called));
    EXPECT_EQ(called.result, WEIR_ERROR_ABORTED);
    EXPECT_EQ(weir_wait(&request), WEIR_ERROR_ABORTED);
    EXPECT_EQ(called.times, 1);
  });
}

TEST(Callback, IsCalledBeforeDestroyReturns) {
  both_ways(2, [](int rank, weir_comm_t comm) {
    for (int round = 0; round < 20; ++round) {
      weir_comm_t child = nullptr;
      OK(weir_comm_split(comm, 0, rank, nullptr, &child));
      Called called[2];
      weir_request_t requests[2] = {};
      float value = 0;
      uint64_t word = 0;  // the window's memory, until the communicator ends
      OK(weir_recv(child, &value, 1, WEIR_FLOAT32, 1 - rank, &requests[0]));
      OK(weir_request_on_complete(requests[0], call, &called[0]));
      if (round % 2 == 0) {
        weir_window_t window = nullptr;
        OK(weir_window_create(child, &word, 8, &window));
        OK(weir_wait_signal(window, 0, 1, &requests[1]));
        OK(weir_request_on_complete(requests[1], call, &called[1]));
      }
      OK(weir_barrier(comm, nullptr));
      OK(weir_comm_destroy(child));
      EXPECT_EQ(called[0].times, 1);
      // A peer may have been first to leave.
      EXPECT_NE(called[0].result, WEIR_OK);
      if (round % 2 == 0) {
        EXPECT_EQ(called[1].times, 1);
      }
      Called late;
      OK(weir_request_on_complete(requests[0], call, &late));
      EXPECT_EQ(late.times, 1);
      for (weir_request_t& request : requests) {
        if (request != nullptr) {
          EXPECT_NE(weir_wait(&request), WEIR_OK);
        }
      }
    }
  });
}

}  // namespace
}  // namespace weir::test
