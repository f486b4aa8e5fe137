// SPDX-License-Identifier: Apache-2.0
// Every collective of the C API on device memory, beside those on host memory, over every way that
// the call can be made. The older double has no all-to-all, gather and scatter of its own.
#include "nccl_plugin/support.h"

namespace weir::test {
namespace {

constexpr size_t kCount = 20'000;  // several pieces of what the double moves at a time

float input_of(int rank, size_t i) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 5) % 11);
}

std::vector<float> inputs_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = input_of(rank, i);
  return values;
}

float sum_at(int n, size_t i) {
  float sum = 0;
  for (int p = 0; p < n; ++p) sum += input_of(p, i);
  return sum;
}

enum class Way { kBlocking, kRequest, kStream, kStreamAndRequest };

// Calls and waits until the result is there.
template <typename Call>
void perform(weir_comm_t comm, Way way, Call call) {
  cudaStream_t stream = nullptr;
  const bool streams = way == Way::kStream || way == Way::kStreamAndRequest;
  if (streams) {
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream));
  }
  weir_request_t request = nullptr;
  const bool asks = way == Way::kRequest || way == Way::kStreamAndRequest;
  EXPECT_WEIR(comm, call(asks ? &request : nullptr));
  if (asks) {
    EXPECT_WEIR(comm, weir_wait(&request));
  }
  if (!streams) return;
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

void reductions(weir_comm_t comm, int n, int rank, Way way) {
  const std::vector<float> input = inputs_of(rank, kCount);
  std::vector<float> sums(kCount);
  for (size_t i = 0; i < kCount; ++i) sums[i] = sum_at(n, i);
  OnDevice<float> send(input);
  OnDevice<float> recv(kCount);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_reduce(comm, send.data(), recv.data(), kCount, WEIR_FLOAT32, WEIR_SUM, request);
  });
  EXPECT_EQ(recv.read(), sums);
  const int root = n - 1;
  OnDevice<float> reduced(std::vector<float>(kCount, -1));
  perform(comm, way, [&](weir_request_t* request) {
    return weir_reduce(comm, send.data(), rank == root ? reduced.data() : nullptr, kCount,
                       WEIR_FLOAT32, WEIR_SUM, root, request);
  });
  EXPECT_EQ(reduced.read(), rank == root ? sums : std::vector<float>(kCount, -1));
  // Blocks of equal and of different sizes.
  const size_t block = kCount / static_cast<size_t>(n);
  const size_t begin = block * static_cast<size_t>(rank);
  OnDevice<float> part(block);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_reduce_scatter(comm, send.data(), part.data(), block, WEIR_FLOAT32, WEIR_SUM,
                               request);
  });
  EXPECT_EQ(part.read(), std::vector<float>(sums.begin() + static_cast<long>(begin),
                                            sums.begin() + static_cast<long>(begin + block)));
  std::vector<size_t> counts;
  size_t total = 0;
  for (int p = 0; p < n; ++p) {
    counts.push_back(p == 1 ? 0 : 100 + static_cast<size_t>(p));
    if (p < rank) total += counts.back();
  }
  const size_t mine = counts[static_cast<size_t>(rank)];
  OnDevice<float> some(std::vector<float>(200, -1));
  perform(comm, way, [&](weir_request_t* request) {
    return weir_reduce_scatter_v(comm, send.data(), mine > 0 ? some.data() : nullptr, counts.data(),
                                 WEIR_FLOAT32, WEIR_SUM, request);
  });
  const std::vector<float> got = some.read();
  for (size_t i = 0; i < 200; ++i) EXPECT_EQ(got[i], i < mine ? sums[total + i] : -1) << i;
}

void copies(weir_comm_t comm, int n, int rank, Way way) {
  const int root = n / 2;
  const auto all_count = static_cast<size_t>(n) * 1000;
  const auto at_rank = static_cast<size_t>(rank);
  OnDevice<float> send(inputs_of(rank, 1000));
  OnDevice<float> all(std::vector<float>(all_count, -1));
  const auto gathered = [&] {
    std::vector<float> values;
    for (int p = 0; p < n; ++p) {
      const std::vector<float> theirs = inputs_of(p, 1000);
      values.insert(values.end(), theirs.begin(), theirs.end());
    }
    return values;
  }();

  OnDevice<float> copy(1000);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_broadcast(comm, rank == root ? send.data() : nullptr, copy.data(), 1000,
                          WEIR_FLOAT32, root, request);
  });
  EXPECT_EQ(copy.read(), inputs_of(root, 1000));
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_gather(comm, send.data(), all.data(), 1000, WEIR_FLOAT32, request);
  });
  EXPECT_EQ(all.read(), gathered);
  // In place.
  OnDevice<float> own(std::vector<float>(all_count, -1));
  EXPECT_EQ(cudaMemcpy(own.data() + at_rank * 1000, send.data(), 4000, cudaMemcpyDeviceToDevice),
            cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_gather(comm, own.data() + at_rank * 1000, own.data(), 1000, WEIR_FLOAT32,
                           request);
  });
  EXPECT_EQ(own.read(), gathered);

  all.write(std::vector<float>(all_count, -1));
  perform(comm, way, [&](weir_request_t* request) {
    return weir_gather(comm, send.data(), rank == root ? all.data() : nullptr, 1000, WEIR_FLOAT32,
                       root, request);
  });
  EXPECT_EQ(all.read(), rank == root ? gathered : std::vector<float>(all_count, -1));
  OnDevice<float> blocks(gathered);
  OnDevice<float> block(1000);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_scatter(comm, rank == root ? blocks.data() : nullptr, block.data(), 1000,
                        WEIR_FLOAT32, root, request);
  });
  EXPECT_EQ(block.read(), inputs_of(rank, 1000));
  // The root's own block in place, at both ends.
  perform(comm, way, [&](weir_request_t* request) {
    float* mine = rank == root ? blocks.data() + at_rank * 1000 : send.data();
    return weir_gather(comm, mine, rank == root ? blocks.data() : nullptr, 1000, WEIR_FLOAT32, root,
                       request);
  });
  EXPECT_EQ(blocks.read(), gathered);

  // Rank p's block for q begins with 100 p + q.
  std::vector<float> mine(all_count);
  std::vector<float> expected(all_count);
  for (int p = 0; p < n; ++p) {
    for (size_t i = 0; i < 1000; ++i) {
      mine[static_cast<size_t>(p) * 1000 + i] =
          static_cast<float>(100 * rank + p) + static_cast<float>(i);
      expected[static_cast<size_t>(p) * 1000 + i] =
          static_cast<float>(100 * p + rank) + static_cast<float>(i);
    }
  }
  OnDevice<float> out(mine);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_to_all(comm, out.data(), all.data(), 1000, WEIR_FLOAT32, request);
  });
  EXPECT_EQ(all.read(), expected);
  // In place, there and back.
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_to_all(comm, out.data(), out.data(), 1000, WEIR_FLOAT32, request);
  });
  EXPECT_EQ(out.read(), expected);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_to_all(comm, out.data(), out.data(), 1000, WEIR_FLOAT32, request);
  });
  EXPECT_EQ(out.read(), mine);
}

void blocks_that_differ(weir_comm_t comm, int n, int rank, Way way) {
  // Rank p has 10 (p + 1) elements, stored in the reverse order of the ranks.
  std::vector<size_t> counts;
  std::vector<size_t> places(static_cast<size_t>(n));
  size_t total = 0;
  for (int p = 0; p < n; ++p) counts.push_back(10 * static_cast<size_t>(p + 1));
  for (int p = n - 1; p >= 0; --p) {
    places[static_cast<size_t>(p)] = total;
    total += counts[static_cast<size_t>(p)];
  }
  OnDevice<float> send(inputs_of(rank, counts[static_cast<size_t>(rank)]));
  OnDevice<float> recv(total);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_gather_v(comm, send.data(), recv.data(), counts.data(), places.data(),
                             WEIR_FLOAT32, request);
  });
  const std::vector<float> got = recv.read();
  for (int p = 0; p < n; ++p) {
    const auto q = static_cast<size_t>(p);
    for (size_t i = 0; i < counts[q]; ++i)
      EXPECT_EQ(got[places[q] + i], input_of(p, i)) << p << " " << i;
  }
  // Rank p sends p + q elements to q, of which the first is 1000 p + q.
  std::vector<size_t> to;
  std::vector<size_t> from;
  std::vector<float> mine;
  std::vector<float> expected;
  for (int q = 0; q < n; ++q) {
    to.push_back(static_cast<size_t>(rank + q));
    from.push_back(static_cast<size_t>(rank + q));
    for (int i = 0; i < rank + q; ++i) {
      mine.push_back(static_cast<float>(1000 * rank + q + i));
      expected.push_back(static_cast<float>(1000 * q + rank + i));
    }
  }
  OnDevice<float> out(std::vector<float>(mine.size() + 1));
  out.write(mine);
  OnDevice<float> in(expected.size() + 1);
  perform(comm, way, [&](weir_request_t* request) {
    return weir_all_to_all_v(comm, out.data(), to.data(), nullptr, in.data(), from.data(), nullptr,
                             WEIR_FLOAT32, request);
  });
  std::vector<float> arrived = in.read();
  arrived.pop_back();
  EXPECT_EQ(arrived, expected);
}

void every_collective(int n, const Environment& environment, const std::vector<Way>& ways) {
  run_on_devices(
      n,
      [&](int rank, weir_comm_t comm) {
        for (const Way way : ways) {
          reductions(comm, n, rank, way);
          copies(comm, n, rank, way);
          blocks_that_differ(comm, n, rank, way);
        }
        expect_sum_on_host(comm, rank, n);
      },
      environment);
}

TEST(DeviceCollectives, EveryOneHoldsItsResultInEveryWayToCallIt) {
  for (const int n : {1, 2, 3}) {
    every_collective(n, with_double(),
                     {Way::kBlocking, Way::kRequest, Way::kStream, Way::kStreamAndRequest});
  }
}

TEST(DeviceCollectives, AnNcclWithoutAllToAllGatherAndScatterIsGivenGroups) {
  every_collective(3, with_double(kOlderDouble), {Way::kBlocking, Way::kStream});
}

TEST(DeviceCollectives, WhatNcclEnqueuesLaterKeepsItsPlaceInTheStream) {
  every_collective(2, with_double(kDouble, {{"DOUBLE_POLLS", "5"}}),
                   {Way::kBlocking, Way::kRequest, Way::kStream, Way::kStreamAndRequest});
}

TEST(DeviceCollectives, OverConnectionsAsOverSharedMemory) {
  every_collective(2, with_double(kDouble, {{"WEIR_TRANSPORT", "tcp"}}), {Way::kBlocking});
}

TEST(DeviceCollectives, EveryReductionIsNccls) {
  run_on_devices(
      3,
      [](int rank, weir_comm_t comm) {
        const auto reduce = [&](weir_redop_t op) {
          OnDevice<int64_t> data(std::vector<int64_t>{rank + 2, -rank});
          EXPECT_WEIR(comm,
                      weir_all_reduce(comm, data.data(), data.data(), 2, WEIR_INT64, op, nullptr));
          return data.read();
        };
        EXPECT_EQ(reduce(WEIR_SUM), (std::vector<int64_t>{9, -3}));
        EXPECT_EQ(reduce(WEIR_PROD), (std::vector<int64_t>{24, 0}));
        EXPECT_EQ(reduce(WEIR_MAX), (std::vector<int64_t>{4, 0}));
        EXPECT_EQ(reduce(WEIR_MIN), (std::vector<int64_t>{2, -2}));
        EXPECT_EQ(reduce(WEIR_AVG), (std::vector<int64_t>{3, -1}));
        const int64_t factor = rank + 1;
        weir_redop_t scaled = 0;
        ASSERT_WEIR(comm, weir_redop_create_premul_sum(comm, &factor, WEIR_INT64, &scaled));
        EXPECT_EQ(reduce(scaled), (std::vector<int64_t>{2 + 6 + 12, -(2 + 6)}));
        EXPECT_WEIR(comm, weir_redop_destroy(comm, scaled));
      },
      with_double());
}

TEST(DeviceCollectives, HostAndDeviceOperationsInterleaveInOneCommunicator) {
  run_on_devices(
      3,
      [](int rank, weir_comm_t comm) {
        // The very first ones overlap with the start of NCCL's communicator.
        for (int round = 0; round < 20; ++round) {
          OnDevice<int> on_device(std::vector<int>(1000, rank + round));
          std::vector<int> on_host(1000, rank * round);
          int word = rank;
          weir_request_t requests[3] = {};
          ASSERT_WEIR(comm, weir_all_reduce(comm, on_device.data(), on_device.data(), 1000,
                                            WEIR_INT32, WEIR_SUM, &requests[0]));
          ASSERT_WEIR(comm, weir_all_reduce(comm, on_host.data(), on_host.data(), 1000, WEIR_INT32,
                                            WEIR_SUM, &requests[1]));
          ASSERT_WEIR(comm, weir_broadcast(comm, &word, &word, 1, WEIR_INT32, 2, &requests[2]));
          ASSERT_WEIR(comm, weir_barrier(comm, nullptr));
          EXPECT_WEIR(comm, weir_wait_all(requests, 3));
          EXPECT_EQ(on_device.read(), std::vector<int>(1000, 3 + 3 * round));
          EXPECT_EQ(on_host, std::vector<int>(1000, 3 * round));
          EXPECT_EQ(word, 2);
        }
      },
      with_double());
}

TEST(DeviceCollectives, AGroupMayCallTwoCommunicatorsInAnyOrder) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        weir_comm_t other = nullptr;
        ASSERT_WEIR(comm, weir_comm_split(comm, 0, rank, nullptr, &other));
        for (int round = 0; round < 3; ++round) {
          OnDevice<int> first(std::vector<int>(10, rank + 1));
          OnDevice<int> second(std::vector<int>(10, 10 * (rank + 1)));
          const auto call = [&](bool the_first) {
            int* data = (the_first ? first : second).data();
            return weir_all_reduce(the_first ? comm : other, data, data, 10, WEIR_INT32, WEIR_SUM,
                                   nullptr);
          };
          ASSERT_WEIR(comm, weir_group_start());
          EXPECT_WEIR(comm, call(rank == 0));
          EXPECT_WEIR(comm, call(rank != 0));
          EXPECT_WEIR(comm, weir_group_end());
          EXPECT_EQ(first.read(), std::vector<int>(10, 3));
          EXPECT_EQ(second.read(), std::vector<int>(10, 30));
        }
        EXPECT_WEIR(other, weir_comm_destroy(other));
      },
      with_double());
}

TEST(DeviceCollectives, ASplitHasNcclCommunicatorsOfItsOwn) {
  run_on_devices(
      4,
      [](int rank, weir_comm_t comm) {
        expect_sum_on_device(comm, rank, 4);
        weir_comm_t half = nullptr;
        ASSERT_WEIR(comm, weir_comm_split(comm, rank % 2, rank, nullptr, &half));
        OnDevice<int> data(std::vector<int>{rank});
        EXPECT_WEIR(half, weir_all_reduce(half, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM,
                                          nullptr));
        EXPECT_EQ(data.read()[0], rank % 2 == 0 ? 2 : 4);
        EXPECT_WEIR(half, weir_comm_destroy(half));
        expect_sum_on_device(comm, rank, 4);
      },
      with_double());
}

TEST(DeviceStreams, ACallReturnsWhileTheStreamIsHeldUpAndTheOperationComesBehind) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        void* words = nullptr;
        ASSERT_EQ(cudaHostAlloc(&words, 64, 0), cudaSuccess);
        auto* gate = static_cast<uint32_t*>(words);
        *gate = 0;
        cudaStream_t stream = nullptr;
        ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
        OnDevice<int> data(std::vector<int>(1000, -1));
        OnDevice<int> copy(1000);
        const std::vector<int> input(1000, rank + 1);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream));
        ASSERT_EQ(
            static_cast<int>(cuStreamWaitValue32_v2(reinterpret_cast<CUstream>(stream),
                                                    reinterpret_cast<CUdeviceptr>(gate), 1, 1)),
            0);
        ASSERT_EQ(cudaMemcpyAsync(data.data(), input.data(), 4000, cudaMemcpyHostToDevice, stream),
                  cudaSuccess);
        weir_request_t request = nullptr;
        for (int i = 0; i < 3; ++i) {
          ASSERT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32,
                                            WEIR_SUM, i < 2 ? nullptr : &request));
        }
        ASSERT_EQ(cudaMemcpyAsync(copy.data(), data.data(), 4000, cudaMemcpyDeviceToDevice, stream),
                  cudaSuccess);
        int done = 1;
        EXPECT_WEIR(comm, weir_test(&request, &done));
        EXPECT_EQ(done, 0);
        // On host memory nothing waits for the stream.
        expect_sum_on_host(comm, rank, 2);
        std::atomic_ref<uint32_t>(*gate).store(1);
        EXPECT_WEIR(comm, weir_wait(&request));
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        EXPECT_EQ(copy.read(), std::vector<int>(1000, 3 * 2 * 2));
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
        EXPECT_EQ(cudaFreeHost(words), cudaSuccess);
      },
      with_double());
}

TEST(DeviceStreams, ACallMayBeCapturedIntoAGraphAndReplayed) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        cudaStream_t stream = nullptr;
        ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
        expect_sum_on_device(comm, rank, 2);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream));
        OnDevice<int> data(std::vector<int>{1});
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1, WEIR_INT32, WEIR_SUM,
                                          nullptr));
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        EXPECT_EQ(data.read()[0], 1);
        ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        EXPECT_EQ(data.read()[0], 8);
        EXPECT_EQ(cudaGraphExecDestroy(replay), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      },
      with_double());
}

}  // namespace
}  // namespace weir::test
