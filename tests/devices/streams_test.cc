// SPDX-License-Identifier: Apache-2.0
// Collectives of the C API that go directly between devices, without NCCL, on the strict libcuda of
// tests/nccl: between threads, with and without a stream, and in graphs.
#include <cmath>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "devices/streams_cases.h"

namespace weir::test {
namespace {

TEST(DeviceStreams, EveryCollectiveHoldsTheHostsResultBetweenThreads) {
  for (const int n : {1, 2, 3, 4}) run_threads_on_devices(n, every_collective);
}

TEST(DeviceStreams, EveryTypeAndReductionHoldsTheHostsResult) {
  run_threads_on_devices(3, [](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    float factor = 0.5F;
    weir_redop_t half = WEIR_SUM;
    ASSERT_WEIR(comm, weir_redop_create_premul_sum(comm, &factor, WEIR_FLOAT32, &half));
    for (int type = WEIR_INT8; type <= WEIR_FLOAT8_E5M2; ++type) {
      for (const weir_redop_t op : {WEIR_SUM, WEIR_PROD, WEIR_MAX, WEIR_MIN, WEIR_AVG}) {
        for (const Case& it : kCases) {
          if (!it.is_reduction) continue;
          expect_as_on_host(it, comm, n, rank, 1003, static_cast<weir_datatype_t>(type), op, type,
                            Way::kStream, stream);
        }
      }
    }
    expect_as_on_host(kCases[0], comm, n, rank, 50001, WEIR_FLOAT32, half, 0, Way::kBlocking,
                      stream);
    EXPECT_WEIR(comm, weir_redop_destroy(comm, half));
  });
}

// As weir_redop_t and docs/device_memory.md have it: the arithmetic of NCCL, without the flag.
TEST(DeviceStreams, ANumberComesBeforeANanAndFp8SaturatesUnlikeOnTheHost) {
  run_threads_on_devices(2, [](weir_comm_t comm, int, int rank) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const weir_redop_t op : {WEIR_MAX, WEIR_MIN}) {
      // A NaN of rank 0, one of rank 1, and of both.
      const std::vector<float> host = {rank == 0 ? nan : 5, rank == 1 ? nan : 6, nan};
      const DeviceArray<float> data(host);
      ASSERT_WEIR(comm,
                  weir_all_reduce(comm, data.data(), data.data(), 3, WEIR_FLOAT32, op, nullptr));
      const std::vector<float> got = data.get();
      EXPECT_EQ(got[0], 5);
      EXPECT_EQ(got[1], 6);
      EXPECT_TRUE(std::isnan(got[2]));
      std::vector<float> on_host = host;
      ASSERT_WEIR(comm, weir_all_reduce(comm, on_host.data(), on_host.data(), 3, WEIR_FLOAT32, op,
                                        nullptr));
      for (const float value : on_host) EXPECT_TRUE(std::isnan(value));
    }
    constexpr unsigned char kLargest = 0x7e;  // 448 in e4m3
    constexpr unsigned char kNan = 0x7f;
    std::vector<unsigned char> on_host = {kLargest};
    const DeviceArray<unsigned char> data(on_host);
    ASSERT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_FLOAT8_E4M3, WEIR_SUM,
                                      nullptr));
    EXPECT_EQ(data.get()[0], kLargest);
    ASSERT_WEIR(comm, weir_all_reduce(comm, on_host.data(), on_host.data(), 1, WEIR_FLOAT8_E4M3,
                                      WEIR_SUM, nullptr));
    EXPECT_EQ(on_host[0] & kNan, kNan);
  });
}

TEST(DeviceStreams, ADeterministicCommunicatorReducesOnDevices) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_DETERMINISTIC;
  run_threads_on_devices(
      2,
      [](weir_comm_t comm, int n, int rank) {
        const Stream stream;
        expect_as_on_host(kCases[0], comm, n, rank, 1000, WEIR_FLOAT32, WEIR_SUM, 0, Way::kBlocking,
                          stream);
      },
      config);
}

TEST(DeviceStreams, InPlace) {
  run_threads_on_devices(3, [](weir_comm_t comm, int n, int rank) {
    constexpr size_t kCount = 20000;
    const auto me = static_cast<size_t>(rank);
    std::vector<int> host(static_cast<size_t>(n) * kCount);
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<int>(i) * (rank + 1);
    for (const Case* it : {&kCases[0], &kCases[3], &kCases[4], &kCases[5]}) {
      const DeviceArray<int> data(host);
      std::vector<int> expected = host;
      const size_t send = it == &kCases[4] ? me * kCount : 0;
      const size_t recv = it == &kCases[3] ? me * kCount : 0;
      ASSERT_WEIR(comm, call(*it, comm, expected.data() + send, expected.data() + recv, kCount,
                             WEIR_INT32, WEIR_SUM, 0, nullptr));
      ASSERT_WEIR(comm, call(*it, comm, data.data() + send, data.data() + recv, kCount, WEIR_INT32,
                             WEIR_SUM, 0, nullptr));
      const std::vector<int> got = data.get();
      const auto begin = static_cast<std::ptrdiff_t>(recv);
      const size_t count = kCount * blocks(it->recv_blocks, n);
      EXPECT_TRUE(std::equal(got.begin() + begin, got.begin() + begin + static_cast<long>(count),
                             expected.begin() + begin))
          << it->name;
    }
  });
}

TEST(DeviceStreams, ACallWaitsForItsStreamAndTheCallerDoesNot) {
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    expect_sum(comm, n, rank);  // what the first call makes is there
    const Stream stream;
    const DeviceArray<int> source(std::vector<int>(5000, rank + 1));
    const DeviceArray<int> data(std::vector<int>(5000, 0));
    Gate gate(stream);
    data.copy_of(source, stream);
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
    weir_request_t request = nullptr;
    EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 5000, WEIR_INT32, WEIR_SUM,
                                      &request));
    int done = 1;
    EXPECT_WEIR(comm, weir_test(&request, &done));
    EXPECT_EQ(done, 0);
    gate.open();
    EXPECT_WEIR(comm, weir_wait(&request));
    EXPECT_EQ(data.get(), std::vector<int>(5000, n * (n + 1) / 2));
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  });
}

TEST(DeviceStreams, CallsOnSeveralStreamsRunInTheirOrder) {
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    const Stream streams[3];
    std::vector<DeviceArray<int>> data;
    std::vector<weir_request_t> requests(30);
    for (int i = 0; i < 30; ++i) data.emplace_back(std::vector<int>(9000, rank + i));
    // The first one is not waited for before the others are called.
    for (size_t i = 0; i < 30; ++i) {
      void* const stream = i % 4 == 3 ? WEIR_NO_STREAM : streams[i % 4].get();
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream));
      EXPECT_WEIR(comm, weir_all_reduce(comm, data[i].data(), data[i].data(), 9000, WEIR_INT32,
                                        WEIR_SUM, &requests[i]));
    }
    for (size_t i = 0; i < 30; ++i) {
      EXPECT_WEIR(comm, weir_wait(&requests[i]));
      EXPECT_EQ(data[i].get(), std::vector<int>(9000, n * static_cast<int>(i) + n * (n - 1) / 2));
    }
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  });
}

// Each rank has the calls of two communicators in another order, and rank 1 at times in no group.
TEST(DeviceStreams, CommunicatorsOfAGroupOnOneStreamMayComeInAnyOrder) {
  if (queue_count() < 8) GTEST_SKIP() << "one hardware queue keeps the order of the calls";
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    constexpr size_t kCount = 20'000;
    weir_comm_t comms[2] = {};
    const Stream stream;
    for (weir_comm_t& it : comms) {
      ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &it));
      EXPECT_WEIR(it, weir_comm_set_timeout(it, 10'000));
      EXPECT_WEIR(it, weir_comm_set_stream(it, stream.get()));
    }
    const DeviceArray<int> source(std::vector<int>(kCount, rank + 1));
    const DeviceArray<int> sum(std::vector<int>(kCount, 0));
    const DeviceArray<int> received(std::vector<int>(kCount, 0));
    const DeviceArray<int> after(std::vector<int>(kCount, 0));
    const int other = 1 - rank;
    const auto call = [&](int first) {
      for (int i = 0; i < 2; ++i) {
        weir_comm_t const it = comms[(first + i) % 2];
        if (it == comms[0]) {
          EXPECT_WEIR(it, weir_all_reduce(it, sum.data(), sum.data(), kCount, WEIR_INT32, WEIR_SUM,
                                          nullptr));
        } else {
          EXPECT_WEIR(it, weir_group_start());
          EXPECT_WEIR(it, weir_send(it, source.data(), kCount, WEIR_INT32, other, nullptr));
          EXPECT_WEIR(it, weir_recv(it, received.data(), kCount, WEIR_INT32, other, nullptr));
          EXPECT_WEIR(it, weir_group_end());
        }
      }
    };
    const auto expect_values = [&] {
      // The stream waits for them.
      after.copy_of(sum, stream);
      stream.synchronize();
      EXPECT_EQ(after.get(), std::vector<int>(kCount, n * (n + 1) / 2));
      EXPECT_EQ(received.get(), std::vector<int>(kCount, other + 1));
      received.set(std::vector<int>(kCount, 0));
    };
    for (int round = 0; round < 6; ++round) {
      // They begin behind what the stream has.
      sum.copy_of(source, stream);
      const bool groups = rank == 0 || round < 3;
      if (groups) {
        EXPECT_EQ(weir_group_start(), WEIR_OK);
      }
      call(round + rank);
      if (groups) {
        EXPECT_EQ(weir_group_end(), WEIR_OK);
      }
      expect_values();
    }
    {
      const Graph graph(stream, [&] {
        sum.copy_of(source, stream);
        EXPECT_EQ(weir_group_start(), WEIR_OK);
        call(rank);
        EXPECT_EQ(weir_group_end(), WEIR_OK);
      });
      for (int i = 0; i < 3; ++i) {
        graph.launch(stream);
        expect_values();
      }
    }
    for (weir_comm_t const it : comms) EXPECT_WEIR(it, weir_comm_destroy(it));
  });
}

// Two communicators in a group on one stream, with streams of the library's own.
class TwoInAGroup {
 public:
  TwoInAGroup(weir_comm_t comm, int n, int rank) : n_(n), rank_(rank) {
    for (weir_comm_t& it : comms_) {
      EXPECT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &it));
      EXPECT_WEIR(it, weir_comm_set_timeout(it, 10'000));
    }
  }
  ~TwoInAGroup() {
    for (weir_comm_t const it : comms_) EXPECT_WEIR(it, weir_comm_destroy(it));
  }
  TwoInAGroup(const TwoInAGroup&) = delete;
  TwoInAGroup& operator=(const TwoInAGroup&) = delete;

  // Each in its half of `data`, which all ranks of that communicator then have alike.
  void call(const Stream& stream, const DeviceArray<int>& data) {
    {
      const std::lock_guard lock(lock_);  // a communicator has one stream at a time
      EXPECT_EQ(weir_group_start(), WEIR_OK);
      for (int i = 0; i < 2; ++i) {
        const int which = (i + rank_) % 2;
        weir_comm_t const it = comms_[which];
        int* const half = data.data() + which * kHalf;
        EXPECT_WEIR(it, weir_comm_set_stream(it, stream.get()));
        EXPECT_WEIR(it, weir_all_reduce(it, half, half, kHalf, WEIR_INT32, WEIR_MAX, nullptr));
      }
    }
    EXPECT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(nullptr);
  }
  DeviceArray<int> data() const { return DeviceArray<int>(std::vector<int>(2 * kHalf, rank_)); }
  void expect_all(const DeviceArray<int>& data) const {
    EXPECT_EQ(data.get(), std::vector<int>(2 * kHalf, n_ - 1));
  }

 private:
  static constexpr int kHalf = 5000;
  const int n_;
  const int rank_;
  weir_comm_t comms_[2] = {};
  std::mutex lock_;
};

// A stream that was forked from a captured one stays in the capture until this ends.
TEST(DeviceStreams, AGroupBesideACaptureIsNotPartOfIt) {
  if (queue_count() < 8) GTEST_SKIP() << "one hardware queue keeps the order of the calls";
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    TwoInAGroup two(comm, n, rank);
    const Stream captured;
    const Stream plain;
    const DeviceArray<int> in_graph = two.data();
    const DeviceArray<int> again = two.data();
    const DeviceArray<int> beside = two.data();
    const Graph graph(captured, [&] {
      two.call(captured, in_graph);
      two.call(plain, beside);
      two.call(captured, again);
    });
    plain.synchronize();
    two.expect_all(beside);
    EXPECT_EQ(in_graph.get(), two.data().get());
    graph.launch(captured);
    captured.synchronize();
    two.expect_all(in_graph);
    two.expect_all(again);
  });
}

TEST(DeviceStreams, ThreadsMayEndGroupsOfTheSameCommunicatorsWhileOneCaptures) {
  if (queue_count() < 8) GTEST_SKIP() << "one hardware queue keeps the order of the calls";
  run_threads_on_devices(2, [](weir_comm_t comm, int n, int rank) {
    constexpr int kRounds = 30;
    TwoInAGroup two(comm, n, rank);
    const Stream captured;
    const Stream plain;
    std::vector<DeviceArray<int>> in_graphs;
    std::vector<std::unique_ptr<Graph>> graphs;
    for (int i = 0; i < kRounds; ++i) in_graphs.push_back(two.data());
    std::thread capturing([&] {
      use_device(rank);
      for (const DeviceArray<int>& it : in_graphs) {
        graphs.push_back(std::make_unique<Graph>(captured, [&] { two.call(captured, it); }));
      }
    });
    for (int i = 0; i < kRounds; ++i) {
      const DeviceArray<int> beside = two.data();
      two.call(plain, beside);
      plain.synchronize();
      two.expect_all(beside);
    }
    capturing.join();
    for (int i = 0; i < kRounds; ++i) {
      graphs[static_cast<size_t>(i)]->launch(captured);
      captured.synchronize();
      two.expect_all(in_graphs[static_cast<size_t>(i)]);
    }
  });
}

// The devices that the latest kernel that copies has read from, in its order.
std::vector<int> copied_from(int device) {
  std::vector<int> from(64);
  from.resize(static_cast<size_t>(
      strict_cuda_copied_from(device, from.data(), static_cast<int>(from.size()))));
  return from;
}

// So that all links of a device are used at the same time, and no device is read by all at first.
TEST(DeviceStreams, AllPeersAreReadByOneKernelAndEachRankBeginsWithAnotherOne) {
  WEIR_NEEDS_STRICT_CUDA();
  constexpr int kRanks = 4;
  constexpr size_t kCount = 60'000;  // an all-reduce in two phases, in several rounds
  run_threads_on_devices(kRanks, [](weir_comm_t comm, int n, int rank) {
    std::vector<int> all;
    std::vector<int> peers;
    for (int i = 0; i < n; ++i) all.push_back((rank + i) % n);
    peers.assign(all.begin() + 1, all.end());
    const DeviceArray<int> send(std::vector<int>(kCount * static_cast<size_t>(n), rank + 1));
    const DeviceArray<int> recv(std::vector<int>(kCount * static_cast<size_t>(n), 0));
    const auto expect_reads = [&](const std::vector<int>& from, const char* what) {
      EXPECT_EQ(copied_from(rank), from) << what << ", rank " << rank;
    };
    EXPECT_WEIR(comm, weir_all_gather(comm, send.data(), recv.data(), kCount, WEIR_INT32, nullptr));
    expect_reads(all, "all_gather");
    EXPECT_WEIR(comm, weir_all_reduce(comm, send.data(), recv.data(), kCount, WEIR_INT32, WEIR_SUM,
                                      nullptr));
    expect_reads(peers, "all_reduce");
    EXPECT_WEIR(comm, weir_all_to_all(comm, send.data(), recv.data(), kCount, WEIR_INT32, nullptr));
    expect_reads(all, "all_to_all");
    EXPECT_WEIR(comm, weir_reduce(comm, send.data(), recv.data(), kCount, WEIR_INT32, WEIR_SUM, 1,
                                  nullptr));
    if (rank == 1) expect_reads(peers, "reduce");
    EXPECT_WEIR(comm, weir_gather(comm, send.data(), recv.data(), kCount, WEIR_INT32, 2, nullptr));
    if (rank == 2) expect_reads(all, "gather");
  });
}

TEST(DeviceStreams, ACapturedGraphIsLaunchedAgainAndAgain) { run_threads_on_devices(3, replay); }

TEST(DeviceStreams, RanksThatShareADeviceNeedWeirDirect) {
  WEIR_NEEDS_HARDWARE_QUEUES();
  run_threads_on_one_device(2, [](weir_comm_t comm, int n, int rank) {
    refused(comm, n, rank, {"2 ranks", "WEIR_DIRECT=1"});
  });
}

// A kernel of the program has failed: CUDA then does nothing more on the device.
TEST(DeviceStreams, ALostContextIsNamedToAllRanksAndNobodyWaitsForTheDeadline) {
  WEIR_NEEDS_STRICT_CUDA();
  constexpr int kIllegalAddress = 700;
  for (const bool is_called_later : {false, true}) {
    run_threads(2, [&](int rank, weir_comm_t comm) {
      const int device = rank == 0 ? 0 : is_called_later ? 14 : 15;  // no other test uses these
      use_device(device);
      expect_sum(comm, 2, rank);
      const DeviceArray<int> data(std::vector<int>(1000, rank));
      const Stream stream;
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
      Gate gate(stream);
      const auto reduce = [&](weir_request_t* request) {
        return weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM, request);
      };
      if (rank == 1 && is_called_later) strict_cuda_lose(device, kIllegalAddress);
      weir_request_t request = nullptr;
      weir_result_t result = reduce(&request);
      if (rank == 1 && !is_called_later) strict_cuda_lose(device, kIllegalAddress);
      gate.open();
      if (result == WEIR_OK) result = weir_wait(&request);
      EXPECT_EQ(result, WEIR_ERROR_SYSTEM);
      const std::string text = weir_last_error(comm);
      EXPECT_NE(text.find("CUDA has lost the context"), std::string::npos) << text;
      EXPECT_NE(text.find("(700)"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    });
  }
}

}  // namespace
}  // namespace weir::test
