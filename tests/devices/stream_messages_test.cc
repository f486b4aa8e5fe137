// SPDX-License-Identifier: Apache-2.0
// Messages of the C API that go directly between devices: between threads.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include "devices/stream_messages_cases.h"

namespace weir::test {
namespace {

TEST(StreamMessages, GoRoundARingInEveryWay) {
  for (const int n : {2, 3}) messages_between_threads(n, in_a_ring);
}

TEST(StreamMessages, WithoutAStreamNoneWaitsForAnother) {
  for (const int n : {1, 2, 4}) messages_between_threads(n, with_all_ranks_at_once);
}

TEST(StreamMessages, InAGroupTheyDoNotWaitForItsCollectives) {
  for (const int n : {2, 4}) messages_between_threads(n, beside_collectives);
}

TEST(StreamMessages, StreamsWaitForThemInTheOrderOfTheCalls) {
  messages_between_threads(2, on_several_streams);
}

TEST(StreamMessages, ACapturedGraphIsLaunchedAgainAndAgain) {
  for (const int n : {2, 3}) messages_between_threads(n, replayed);
}

TEST(StreamMessages, AtRandom) {
  messages_between_threads(
      3, [](weir_comm_t comm, int n, int rank) { at_random(comm, n, rank, seed_of_test()); });
}

TEST(StreamMessages, ACallWaitsForItsStreamAndTheCallerDoesNot) {
  messages_between_threads(2, [](weir_comm_t comm, int, int rank) {
    const Stream stream;
    const DeviceArray<int> source(numbers(5000, 7));
    const DeviceArray<int> data(std::vector<int>(5000, 0));
    Gate gate(stream);
    if (rank == 0) data.copy_of(source, stream);
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    weir_request_t request = nullptr;
    EXPECT_WEIR(comm, rank == 0 ? send(comm, data, 5000, 1, &request)
                                : recv(comm, data, 5000, 0, &request));
    int done = 1;
    EXPECT_WEIR(comm, weir_test(&request, &done));
    EXPECT_EQ(done, 0);
    gate.open();
    EXPECT_WEIR(comm, weir_wait(&request));
    EXPECT_EQ(data.get(), numbers(5000, 7));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  });
}

// As those that do not know yet which device they will use.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Eight times as many cost about eight times as much; 400 times where each looks at all others.
TEST(StreamMessages, TheEndOfALargeGroupCostsInProportionToItsMessages) {
  messages_between_threads(2, [](weir_comm_t comm, int, int rank) {
    const Stream stream;
    const DeviceArray<int> out(numbers(5, rank));
    const DeviceArray<int> in(std::vector<int>(5, -1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    const auto least = [&](int count) {
      double seconds = 1e9;
      for (int round = 0; round < 3; ++round) {
        EXPECT_WEIR(comm, weir_group_start());
        for (int i = 0; i < count; ++i) {
          EXPECT_WEIR(comm, send(comm, out, 5, 1 - rank));
          EXPECT_WEIR(comm, recv(comm, in, 5, 1 - rank));
        }
        const double begin = thread_seconds();
        EXPECT_WEIR(comm, weir_group_end());
        seconds = std::min(seconds, thread_seconds() - begin);
        stream.synchronize();
      }
      return seconds;
    };
    const double few = least(100);
    const double many = least(800);
    EXPECT_LT(many, 40 * few) << "100 cost " << few << " s, 800 " << many << " s";
  });
}

TEST(StreamMessages, OfAGroupMayBeOfADestroyedCommunicator) {
  messages_between_threads(2, [](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    const DeviceArray<int> data(numbers(1000, rank));
    const DeviceArray<int> in(std::vector<int>(1000, -1));
    weir_comm_t destroyed = nullptr;
    ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &destroyed));
    EXPECT_WEIR(comm, weir_comm_set_stream(destroyed, stream.get()));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    EXPECT_WEIR(comm, weir_group_start());
    ASSERT_WEIR(destroyed, send(destroyed, data, 1000, 1 - rank));
    ASSERT_WEIR(destroyed, weir_all_reduce(destroyed, data.data(), data.data(), 1000, WEIR_INT32,
                                           WEIR_SUM, nullptr));
    ASSERT_WEIR(comm, send(comm, data, 1000, (rank + 1) % n));
    ASSERT_WEIR(comm, recv(comm, in, 1000, (rank + 1) % n));
    EXPECT_WEIR(comm, weir_comm_destroy(destroyed));
    EXPECT_WEIR(comm, weir_group_end());
    stream.synchronize();
    EXPECT_EQ(in.get(), numbers(1000, (rank + 1) % n));
    EXPECT_EQ(data.get(), numbers(1000, rank));
  });
}

TEST(StreamMessages, OfACommunicatorMadeBeforeADeviceNeedACollectiveFirst) {
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    const DeviceArray<int> data(numbers(10, rank));
    EXPECT_EQ(send(comm, data, 10, 1 - rank), WEIR_ERROR_UNSUPPORTED);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("when the communicator was made"), std::string::npos) << text;
    expect_sum(comm, n, rank);
    in_a_ring(comm, n, rank);
  });
}

TEST(StreamMessages, OfAnotherDeviceAreRefused) {
  WEIR_NEEDS_DEVICES(6);
  messages_between_threads(2, [](weir_comm_t comm, int n, int rank) {
    use_device(rank + 4);
    const DeviceArray<int> data(numbers(10, rank));
    EXPECT_EQ(send(comm, data, 10, 1 - rank), WEIR_ERROR_INVALID_ARGUMENT);
    const std::string text = weir_last_error(comm);
    EXPECT_NE(text.find("which was current when the communicator was made"), std::string::npos)
        << text;
    use_device(rank);
    in_a_ring(comm, n, rank);
  });
}

TEST(StreamMessages, WhereTheyCannotGoDirectlyTheReasonIsTold) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  run_threads_on_one_device(2, [](weir_comm_t comm, int n, int rank) {
    with_device_from_the_start(comm, n, rank, [](weir_comm_t made, int, int me) {
      const DeviceArray<int> data(numbers(10, me));
      EXPECT_EQ(send(made, data, 10, 1 - me), WEIR_ERROR_UNSUPPORTED);
      const std::string text = weir_last_error(made);
      EXPECT_NE(text.find("2 ranks"), std::string::npos) << text;
      EXPECT_NE(text.find("WEIR_DIRECT=1"), std::string::npos) << text;
    });
  });
}

// One end on a device, the other in memory of the host: they never meet.
TEST(StreamMessages, WhoseEndsLieInDifferentKindsOfMemoryAreNamed) {
  constexpr size_t kShort = 100;
  constexpr size_t kLong = 500'000;  // more than the slots hold: the sender waits, too
  for (const size_t count : {kShort, kLong}) {
    for (const int on_device : {0, 1}) {
      messages_between_threads(2, [=](weir_comm_t comm, int, int rank) {
        EXPECT_WEIR(comm, weir_comm_set_timeout(comm, 400));
        const DeviceArray<int> device(std::vector<int>(count, rank));
        std::vector<int> host(count, rank);
        void* const buffer = rank == on_device ? static_cast<void*>(device.data()) : host.data();
        const weir_result_t result = rank == 0
                                         ? weir_send(comm, buffer, count, WEIR_INT32, 1, nullptr)
                                         : weir_recv(comm, buffer, count, WEIR_INT32, 0, nullptr);
        // A short message is done when its sender has put it into slots, or has given it away.
        if (rank == 0 && count == kShort) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1500));
          return;
        }
        EXPECT_NE(result, WEIR_OK);
        const std::string text = weir_last_error(comm);
        EXPECT_NE(text.find("both ends of a message must lie in the same kind of memory"),
                  std::string::npos)
            << text;
        const bool says = text.find("on a device") != std::string::npos &&
                          text.find("memory of the host") != std::string::npos;
        EXPECT_TRUE(says || (count == kShort && on_device == 1)) << text;
      });
    }
  }
}

// Without a stream; the receiver comes later, and the first message stands before all others.
double cost_of_a_send(size_t count) {
  double us = 0;
  std::atomic<bool> called{false};
  messages_between_threads(2, [&](weir_comm_t comm, int, int rank) {
    const DeviceArray<int> data(rank == 0 ? numbers(count, 1) : std::vector<int>(count, 0));
    std::vector<weir_request_t> requests(count);
    while (rank == 1 && !called) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double begin = thread_seconds();
    for (size_t i = 0; i < count; ++i) {
      EXPECT_WEIR(comm, rank == 0
                            ? weir_send(comm, data.data() + i, 1, WEIR_INT32, 1, &requests[i])
                            : weir_recv(comm, data.data() + i, 1, WEIR_INT32, 0, &requests[i]));
    }
    if (rank == 0) {
      us = 1e6 * (thread_seconds() - begin) / static_cast<double>(count);
      called = true;
    }
    for (weir_request_t& it : requests) EXPECT_WEIR(comm, weir_wait(&it));
    EXPECT_EQ(data.get(), numbers(count, 1));
  });
  return us;
}

TEST(StreamMessages, ACallCostsTheSameHoweverManyAreInFlight) {
  WEIR_NEEDS_DEVICES(2);
  const double few = cost_of_a_send(200);
  const double many = cost_of_a_send(4000);
  std::printf("a send costs %.2f us of 200 in flight, %.2f us of 4000\n", few, many);
  EXPECT_LT(many, 5 * few);
}

}  // namespace
}  // namespace weir::test
