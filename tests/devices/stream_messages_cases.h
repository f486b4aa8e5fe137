// SPDX-License-Identifier: Apache-2.0
// weir_send and weir_recv directly between devices of the strict libcuda, in every way in which a
// program can order them.
#pragma once

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "devices/streams_support.h"

namespace weir::test {

// A communicator that is made while every rank has its device: messages need no call before.
inline void with_device_from_the_start(weir_comm_t comm, int n, int rank, const DeviceBody& body) {
  weir_comm_t made = nullptr;
  ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &made));
  body(made, n, rank);
  EXPECT_WEIR(comm, weir_comm_destroy(made));
}
inline void messages_between_threads(int n, const DeviceBody& body) {
  run_threads_on_devices(n, [&](weir_comm_t comm, int count, int rank) {
    with_device_from_the_start(comm, count, rank, body);
  });
}
inline void messages_between_processes(int n, const DeviceBody& body) {
  run_processes_on_device(n, [&](weir_comm_t comm, int count, int rank) {
    with_device_from_the_start(comm, count, rank, body);
  });
}

inline std::vector<int> numbers(size_t count, int first) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<int>(i % 10007);
  return values;
}

// With slots of 3 KiB the last ones are far more than the slots hold.
inline constexpr size_t kCounts[] = {1, 1000, 20011, 400'003};

inline weir_result_t send(weir_comm_t comm, const DeviceArray<int>& data, size_t count, int peer,
                          weir_request_t* request = nullptr) {
  return weir_send(comm, data.data(), count, WEIR_INT32, peer, request);
}
inline weir_result_t recv(weir_comm_t comm, const DeviceArray<int>& data, size_t count, int peer,
                          weir_request_t* request = nullptr) {
  return weir_recv(comm, data.data(), count, WEIR_INT32, peer, request);
}

// Each rank sends to the next one, and receives from the one before it.
inline void in_a_ring(weir_comm_t comm, int n, int rank) {
  const int next = (rank + 1) % n;
  const int before = (rank + n - 1) % n;
  const Stream stream;
  int first = 0;
  for (const size_t count : kCounts) {
    const DeviceArray<int> out(numbers(count, 0));
    const DeviceArray<int> in(std::vector<int>(count, -1));
    const auto expect = [&](const char* way) {
      EXPECT_EQ(in.get() == numbers(count, first + before), true)
          << way << ", count " << count << ", rank " << rank << " of " << n;
      ++first;
      out.set(numbers(count, first + rank));
      in.set(std::vector<int>(count, -1));
    };
    out.set(numbers(count, first + rank));
    // Whatever is called first: nothing waits for it.
    for (const bool receives_first : {true, false}) {
      weir_request_t requests[2] = {};
      if (receives_first) {
        ASSERT_WEIR(comm, recv(comm, in, count, before, &requests[0]));
      }
      ASSERT_WEIR(comm, send(comm, out, count, next, &requests[1]));
      if (!receives_first) {
        ASSERT_WEIR(comm, recv(comm, in, count, before, &requests[0]));
      }
      EXPECT_WEIR(comm, weir_wait_all(requests, 2));
      expect(receives_first ? "receives first" : "sends first");
    }
    if (rank == 0) {
      EXPECT_WEIR(comm, send(comm, out, count, next));
      EXPECT_WEIR(comm, recv(comm, in, count, before));
    } else {
      const DeviceArray<int> other(numbers(count, first + rank));
      EXPECT_WEIR(comm, recv(comm, in, count, before));
      EXPECT_WEIR(comm, send(comm, other, count, next));
    }
    expect("blocking");
    for (const bool streams : {false, true}) {
      if (streams) {
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
      }
      EXPECT_WEIR(comm, weir_group_start());
      ASSERT_WEIR(comm, send(comm, out, count, next));
      ASSERT_WEIR(comm, recv(comm, in, count, before));
      EXPECT_WEIR(comm, weir_group_end());
      if (streams) stream.synchronize();
      expect(streams ? "group on a stream" : "group");
      weir_request_t requests[2] = {};
      EXPECT_WEIR(comm, weir_group_start());
      ASSERT_WEIR(comm, send(comm, out, count, next, &requests[0]));
      ASSERT_WEIR(comm, recv(comm, in, count, before, &requests[1]));
      EXPECT_WEIR(comm, weir_group_end());
      EXPECT_WEIR(comm, weir_wait_all(requests, 2));
      expect(streams ? "group with requests on a stream" : "group with requests");
    }
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  }
}

// Messages with all ranks, this one included, whose requests are waited for in another order.
inline void with_all_ranks_at_once(weir_comm_t comm, int n, int rank) {
  constexpr size_t kCount = 50'003;
  constexpr int kRounds = 3;
  std::vector<DeviceArray<int>> out;
  std::vector<DeviceArray<int>> in;
  std::vector<weir_request_t> requests;
  for (int round = 0; round < kRounds; ++round) {
    for (int peer = 0; peer < n; ++peer) {
      out.emplace_back(numbers(kCount, 100 * rank + 10 * peer + round));
      in.emplace_back(std::vector<int>(kCount, -1));
      requests.resize(requests.size() + 2);
      weir_request_t* const two = &requests[requests.size() - 2];
      ASSERT_WEIR(comm, recv(comm, in.back(), kCount, peer, &two[0]));
      int done = 0;
      EXPECT_WEIR(comm, weir_test(&two[0], &done));
      ASSERT_WEIR(comm, send(comm, out.back(), kCount, peer, &two[1]));
    }
  }
  for (size_t i = requests.size(); i-- > 0;) {
    if (requests[i] != nullptr) {
      EXPECT_WEIR(comm, weir_wait(&requests[i]));
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int peer = 0; peer < n; ++peer) {
      const DeviceArray<int>& it =
          in[static_cast<size_t>(round) * static_cast<size_t>(n) + static_cast<size_t>(peer)];
      EXPECT_EQ(it.get() == numbers(kCount, 100 * peer + 10 * rank + round), true)
          << "round " << round << ", from rank " << peer << " to rank " << rank;
    }
  }
}

// In one group on the even ranks; the odd ones call the collective first.
inline void beside_collectives(weir_comm_t comm, int n, int rank) {
  const int peer = rank ^ 1;
  const Stream stream;
  for (const size_t count : kCounts) {
    const DeviceArray<int> out(numbers(count, rank));
    const DeviceArray<int> in(std::vector<int>(count, -1));
    const DeviceArray<int> sum(std::vector<int>(count, rank + 1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    const auto reduce = [&] {
      return weir_all_reduce(comm, sum.data(), sum.data(), count, WEIR_INT32, WEIR_SUM, nullptr);
    };
    // The peer needs the sum before it has the messages.
    if (rank % 2 == 1) {
      ASSERT_WEIR(comm, reduce());
    }
    EXPECT_WEIR(comm, weir_group_start());
    ASSERT_WEIR(comm, send(comm, out, count, peer));
    ASSERT_WEIR(comm, recv(comm, in, count, peer));
    if (rank % 2 == 0) {
      ASSERT_WEIR(comm, reduce());
    }
    EXPECT_WEIR(comm, weir_group_end());
    stream.synchronize();
    EXPECT_EQ(in.get() == numbers(count, peer), true) << "count " << count;
    EXPECT_EQ(sum.get(), std::vector<int>(count, n * (n + 1) / 2));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  }
}

// A group that uses two streams, and messages with one peer on streams that take turns.
inline void on_several_streams(weir_comm_t comm, int, int rank) {
  constexpr size_t kCount = 50'003;
  const int peer = 1 - rank;
  const Stream streams[2];
  const DeviceArray<int> source(numbers(kCount, rank));
  const DeviceArray<int> out(std::vector<int>(kCount, -1));
  const DeviceArray<int> in(std::vector<int>(kCount, -1));
  const DeviceArray<int> result(std::vector<int>(kCount, -1));
  out.copy_of(source, streams[0]);
  EXPECT_WEIR(comm, weir_group_start());
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, streams[0].get()));
  ASSERT_WEIR(comm, send(comm, out, kCount, peer));
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, streams[1].get()));
  ASSERT_WEIR(comm, recv(comm, in, kCount, peer));
  EXPECT_WEIR(comm, weir_group_end());
  result.copy_of(in, streams[1]);
  streams[1].synchronize();
  EXPECT_EQ(result.get() == numbers(kCount, peer), true);
  std::vector<DeviceArray<int>> data;
  for (int i = 0; i < 8; ++i) {
    data.emplace_back(rank == 0 ? numbers(1000, i) : std::vector<int>(1000, -1));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, streams[i % 2].get()));
    if (rank == 0) {
      ASSERT_WEIR(comm, send(comm, data.back(), 1000, 1));
    } else {
      ASSERT_WEIR(comm, recv(comm, data.back(), 1000, 0));
    }
  }
  for (const Stream& it : streams) it.synchronize();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(data[static_cast<size_t>(i)].get(), numbers(1000, i));
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
}

// Random messages, of which each rank calls its own in the order of all: alone with requests, on a
// stream, or several in a group.
inline void at_random(weir_comm_t comm, int n, int rank, unsigned seed) {
  std::mt19937 random(seed);  // the same on all ranks
  struct Message {
    int from;
    int to;
    size_t count;
    DeviceArray<int> data;
  };
  const Stream stream;
  for (int round = 0; round < 6; ++round) {
    const unsigned way = random() % 3;
    std::vector<Message> messages;
    std::vector<weir_request_t> requests(40);
    for (size_t i = 0; i < requests.size(); ++i) {
      const int from = static_cast<int>(random() % static_cast<unsigned>(n));
      const int to = static_cast<int>(random() % static_cast<unsigned>(n));
      const size_t count = 1 + random() % (random() % 4 == 0 ? 60'000 : 300);
      const bool is_mine = from == rank || to == rank;
      messages.push_back({from, to, count,
                          DeviceArray<int>(from == rank ? numbers(count, static_cast<int>(i))
                                           : is_mine    ? std::vector<int>(count, -1)
                                                        : std::vector<int>(1))});
    }
    if (way == 1) {
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    }
    if (way != 0) {
      EXPECT_WEIR(comm, weir_group_start());
    }
    std::vector<DeviceArray<int>> to_self;
    for (size_t i = 0; i < messages.size(); ++i) {
      const Message& it = messages[i];
      weir_request_t* const request = way == 1 ? nullptr : &requests[i];
      if (it.from == rank && it.to == rank) continue;
      if (it.from == rank) {
        ASSERT_WEIR(comm, send(comm, it.data, it.count, it.to, request));
      }
      if (it.to == rank) {
        ASSERT_WEIR(comm, recv(comm, it.data, it.count, it.from, request));
      }
    }
    if (way != 0) {
      EXPECT_WEIR(comm, weir_group_end());
    }
    if (way != 1) {
      EXPECT_WEIR(comm, weir_wait_all(requests.data(), requests.size()));
    }
    stream.synchronize();
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
    for (size_t i = 0; i < messages.size(); ++i) {
      const Message& it = messages[i];
      if (it.to != rank || it.from == rank) continue;
      EXPECT_EQ(it.data.get() == numbers(it.count, static_cast<int>(i)), true)
          << "seed " << seed << ", round " << round << ", way " << way << ", message " << i
          << " from rank " << it.from << " to rank " << rank;
    }
  }
}

inline unsigned seed_of_test() {
  const char* set = std::getenv("WEIR_TEST_SEED");
  return set != nullptr ? static_cast<unsigned>(std::atoi(set)) : 20261128u;
}

// A graph of messages in both directions and a collective, launched by each rank at its own time,
// with calls in between.
inline void replayed(weir_comm_t comm, int n, int rank) {
  constexpr size_t kCount = 50'003;
  const int next = (rank + 1) % n;
  const int before = (rank + n - 1) % n;
  const Stream stream;
  const DeviceArray<int> out(std::vector<int>(kCount, 0));
  const DeviceArray<int> in(std::vector<int>(kCount, 0));
  const DeviceArray<int> sum(std::vector<int>(1000, 0));
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
  {
    const Graph graph(stream, [&] {
      EXPECT_WEIR(comm, weir_group_start());
      EXPECT_WEIR(comm, send(comm, out, kCount, next));
      EXPECT_WEIR(comm, recv(comm, in, kCount, before));
      EXPECT_WEIR(
          comm, weir_all_reduce(comm, out.data(), sum.data(), 1000, WEIR_INT32, WEIR_SUM, nullptr));
      EXPECT_WEIR(comm, weir_group_end());
      EXPECT_WEIR(comm, weir_group_start());
      EXPECT_WEIR(comm, recv(comm, out, kCount, before));
      EXPECT_WEIR(comm, send(comm, in, kCount, next));
      EXPECT_WEIR(comm, weir_group_end());
    });
    for (int round = 0; round < 5; ++round) {
      out.set(std::vector<int>(kCount, rank + round));
      std::this_thread::sleep_for(std::chrono::milliseconds(10 * ((rank + round) % n)));
      graph.launch(stream);
      stream.synchronize();
      EXPECT_EQ(in.get(), std::vector<int>(kCount, before + round));
      EXPECT_EQ(out.get(), std::vector<int>(kCount, (rank + 2 * n - 2) % n + round));
      EXPECT_EQ(sum.get(), std::vector<int>(1000, n * round + n * (n - 1) / 2));
      if (round == 2) {
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
        with_all_ranks_at_once(comm, n, rank);
        EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
      }
    }
  }
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
}

}  // namespace weir::test
