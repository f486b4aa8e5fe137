// SPDX-License-Identifier: Apache-2.0
// weir_send and weir_recv on memory of devices, over a transport that takes it (device_double), on
// the stand-in for CUDA. Ranks are processes, each with a device of its own.
#include "nccl_plugin/support.h"

namespace weir::test {
namespace {

Environment over_devices(Environment more = {}) {
  more.emplace_back("WEIR_PLUGIN_PATH", WEIR_TEST_DEVICE_DOUBLES);
  bool has_transport = false;
  for (const auto& [name, value] : more) has_transport = has_transport || name == "WEIR_TRANSPORT";
  if (!has_transport) more.emplace_back("WEIR_TRANSPORT", "device_double");
  return with_double(kDouble, std::move(more));
}

std::vector<int> numbers(size_t count, int first) {
  std::vector<int> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<int>(i);
  return values;
}

// A stream that stands until `gate` is not 0.
class HeldStream {
 public:
  explicit HeldStream(const SharedCounter& gate) {
    EXPECT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream_,
                  [](void* counter) {
                    while (static_cast<std::atomic<int>*>(counter)->load() == 0) usleep(100);
                  },
                  &gate.get()),
              cudaSuccess);
  }
  ~HeldStream() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

bool is_done(weir_request_t* request) {
  int done = 0;
  for (int i = 0; i < 50 && done == 0; ++i) EXPECT_EQ(weir_test(request, &done), WEIR_OK);
  return done != 0;
}

void exchange(weir_comm_t comm, int rank) {
  const int peer = 1 - rank;
  for (const size_t count : {size_t{1}, size_t{100}, size_t{50'000}}) {
    OnDevice<int> out(numbers(count, 1000 * rank));
    OnDevice<int> in(count);
    std::vector<int> host(count);
    // From a device to a device, with requests and in a group.
    weir_request_t requests[2] = {};
    ASSERT_WEIR(comm, weir_recv(comm, in.data(), count, WEIR_INT32, peer, &requests[0]));
    ASSERT_WEIR(comm, weir_send(comm, out.data(), count, WEIR_INT32, peer, &requests[1]));
    EXPECT_WEIR(comm, weir_wait_all(requests, 2));
    EXPECT_EQ(in.read(), numbers(count, 1000 * peer));
    in.write(std::vector<int>(count, -1));
    EXPECT_WEIR(comm, weir_group_start());
    ASSERT_WEIR(comm, weir_send(comm, out.data(), count, WEIR_INT32, peer, nullptr));
    ASSERT_WEIR(comm, weir_recv(comm, in.data(), count, WEIR_INT32, peer, nullptr));
    EXPECT_WEIR(comm, weir_group_end());
    EXPECT_EQ(in.read(), numbers(count, 1000 * peer));
    // From a device to the host, and back.
    if (rank == 0) {
      EXPECT_WEIR(comm, weir_send(comm, out.data(), count, WEIR_INT32, peer, nullptr));
      EXPECT_WEIR(comm, weir_recv(comm, in.data(), count, WEIR_INT32, peer, nullptr));
      EXPECT_EQ(in.read(), numbers(count, 0));
    } else {
      EXPECT_WEIR(comm, weir_recv(comm, host.data(), count, WEIR_INT32, peer, nullptr));
      EXPECT_EQ(host, numbers(count, 0));
      EXPECT_WEIR(comm, weir_send(comm, host.data(), count, WEIR_INT32, peer, nullptr));
    }
  }
}

TEST(DeviceMessages, GoBetweenDevicesAndToAndFromTheHost) {
  run_on_devices(
      2, [](int rank, weir_comm_t comm) { exchange(comm, rank); }, over_devices());
}

TEST(DeviceMessages, GoThroughHooksThatDoNotReadThem) {
  run_on_devices(
      2, [](int rank, weir_comm_t comm) { exchange(comm, rank); },
      over_devices({{"WEIR_HOOKS", "check,fault"}, {"WEIR_FAULT", "delay_us=50,seed=3"}}));
}

TEST(DeviceMessages, GoBesideCollectivesOnDevicesInOneCommunicator) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        exchange(comm, rank);
        expect_sum_on_device(comm, rank, 2);
        expect_sum_on_host(comm, rank, 2);
        exchange(comm, rank);
      },
      over_devices());
}

TEST(DeviceMessages, AreSentAndReceivedWhenTheirStreamHasComeToThem) {
  const SharedCounter gate;
  const SharedCounter here;
  constexpr size_t kCount = 1000;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        OnDevice<int> data(numbers(kCount, 0));
        {
          HeldStream stream(gate);
          // What is behind the gate: the sender's data, and what the receiver must not see
          // afterwards.
          EXPECT_EQ(
              cudaMemsetAsync(data.data(), rank == 0 ? 7 : 9, kCount * sizeof(int), stream.get()),
              cudaSuccess);
          ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
          weir_request_t request = nullptr;
          ASSERT_WEIR(comm, rank == 0
                                ? weir_send(comm, data.data(), kCount, WEIR_INT32, 1, &request)
                                : weir_recv(comm, data.data(), kCount, WEIR_INT32, 0, &request));
          EXPECT_FALSE(is_done(&request));
          here.meet(2);
          gate.get().store(1);
          EXPECT_WEIR(comm, weir_wait(&request));
          ASSERT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
        }
        EXPECT_EQ(data.read(), std::vector<int>(kCount, 0x07070707));
      },
      over_devices());
}

TEST(DeviceMessages, BlockingCallsReturnWithTheMessage) {
  const SharedCounter gate;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        OnDevice<int> data(numbers(100, 0));
        {
          HeldStream stream(gate);
          EXPECT_EQ(cudaMemsetAsync(data.data(), rank == 0 ? 7 : 9, 400, stream.get()),
                    cudaSuccess);
          ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
          std::thread opens([&] {
            usleep(2000);
            gate.get().store(1);
          });
          EXPECT_WEIR(comm, rank == 0 ? weir_send(comm, data.data(), 100, WEIR_INT32, 1, nullptr)
                                      : weir_recv(comm, data.data(), 100, WEIR_INT32, 0, nullptr));
          opens.join();
        }
        EXPECT_EQ(data.read(), std::vector<int>(100, 0x07070707));
      },
      over_devices());
}

TEST(DeviceMessages, ThoseBehindOneThatWaitsForItsStreamKeepTheirOrderAndOthersPass) {
  const SharedCounter gate;
  const SharedCounter here;
  run_on_devices(
      3,
      [&](int rank, weir_comm_t comm) {
        OnDevice<int> data(numbers(100, 500));
        const std::vector<size_t> ones(3, 1);
        std::vector<int> out(3, rank), in(3, -1);
        weir_request_t requests[3] = {};
        if (rank == 0) {
          HeldStream stream(gate);
          ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
          const int second = 41;
          ASSERT_WEIR(comm, weir_send(comm, data.data(), 100, WEIR_INT32, 1, &requests[0]));
          ASSERT_WEIR(comm, weir_send(comm, &second, 1, WEIR_INT32, 1, &requests[1]));
          // To another rank nothing stands before it.
          EXPECT_WEIR(comm, weir_send(comm, &second, 1, WEIR_INT32, 2, nullptr));
          ASSERT_WEIR(comm, weir_all_to_all_v(comm, out.data(), ones.data(), nullptr, in.data(),
                                              ones.data(), nullptr, WEIR_INT32, &requests[2]));
          // A collective is no message: it waits for none.
          EXPECT_WEIR(comm, weir_wait(&requests[2]));
          for (int i = 0; i < 2; ++i) EXPECT_FALSE(is_done(&requests[i]));
          here.meet(3);
          gate.get().store(1);
          EXPECT_WEIR(comm, weir_wait_all(requests, 2));
        } else {
          std::vector<int> first(100);
          int second = 0;
          if (rank == 1) {
            ASSERT_WEIR(comm, weir_recv(comm, first.data(), 100, WEIR_INT32, 0, &requests[0]));
            ASSERT_WEIR(comm, weir_recv(comm, &second, 1, WEIR_INT32, 0, &requests[1]));
          } else {
            EXPECT_WEIR(comm, weir_recv(comm, &second, 1, WEIR_INT32, 0, nullptr));
          }
          ASSERT_WEIR(comm, weir_all_to_all_v(comm, out.data(), ones.data(), nullptr, in.data(),
                                              ones.data(), nullptr, WEIR_INT32, &requests[2]));
          EXPECT_WEIR(comm, weir_wait(&requests[2]));
          if (rank == 1) {
            for (int i = 0; i < 2; ++i) EXPECT_FALSE(is_done(&requests[i]));
          }
          here.meet(3);
          if (rank == 1) {
            EXPECT_WEIR(comm, weir_wait_all(requests, 2));
          }
          EXPECT_EQ(second, 41);
          if (rank == 1) {
            EXPECT_EQ(first, numbers(100, 500));
          }
        }
        EXPECT_EQ(in, (std::vector<int>{0, 1, 2}));
      },
      over_devices());
}

TEST(DeviceMessages, AStreamThatDoesNotComeToAMessageMeetsTheDeadlineAndIsNamed) {
  const SharedCounter gate;
  const SharedCounter here;
  run_on_devices(
      2,
      [&](int rank, weir_comm_t comm) {
        if (rank == 1) return here.meet(2);
        OnDevice<int> data(numbers(100, 0));
        HeldStream stream(gate);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream.get()));
        ASSERT_WEIR(comm, weir_comm_set_timeout(comm, 300));
        EXPECT_EQ(weir_send(comm, data.data(), 100, WEIR_INT32, 1, nullptr), WEIR_ERROR_TIMEOUT);
        expect_text(weir_last_error(comm),
                    "waiting for the CUDA stream, which has not reached the operation");
        gate.get().store(1);
        here.meet(2);
      },
      over_devices());
}

// The call fails as it is made, and the communicator goes on.
void refused(weir_comm_t comm, int rank, const std::string& word) {
  OnDevice<int> data(numbers(10, rank));
  const int peer = 1 - rank;
  EXPECT_EQ(weir_send(comm, data.data(), 10, WEIR_INT32, peer, nullptr), WEIR_ERROR_UNSUPPORTED);
  expect_text(weir_last_error(comm), word);
  EXPECT_EQ(weir_recv(comm, data.data(), 10, WEIR_INT32, peer, nullptr), WEIR_ERROR_UNSUPPORTED);
  expect_text(weir_last_error(comm), "device " + std::to_string(rank));
  expect_sum_on_host(comm, rank, 2);
}

TEST(DeviceMessages, ATransportOfHostMemoryIsNamed) {
  run_on_devices(
      2, [](int rank, weir_comm_t comm) { refused(comm, rank, "transport 'tcp'"); },
      over_devices({{"WEIR_TRANSPORT", "tcp"}}));
}

TEST(DeviceMessages, AHookThatReadsMessagesIsNamed) {
  run_on_devices(
      2, [](int rank, weir_comm_t comm) { refused(comm, rank, "transport 'sum(device_double)'"); },
      over_devices({{"WEIR_HOOKS", "sum"}}));
}

TEST(DeviceMessages, WhatTheTransportLacksIsToldAndOtherRanksHaveTheirMessages) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        OnDevice<int> data(numbers(10, 500 * rank));
        std::vector<int> host = numbers(10, 0);
        if (rank == 1) {
          refused(comm, rank, "device_double was told to refuse device 1");
          EXPECT_WEIR(comm, weir_recv(comm, host.data(), 10, WEIR_INT32, 0, nullptr));
          EXPECT_EQ(host, numbers(10, 0));
          return;
        }
        expect_sum_on_host(comm, rank, 2);
        EXPECT_WEIR(comm, weir_send(comm, data.data(), 10, WEIR_INT32, 1, nullptr));
      },
      over_devices({{"DEVICE_DOUBLE_REFUSES", "1"}}));
}

TEST(DeviceMessages, ABufferThatEndsOutsideItsAllocationIsRefused) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        constexpr size_t kCount = 1'000'000;
        OnDevice<int> whole(kCount);
        OnDevice<int> part(10);
        const auto expect_refused = [&](weir_result_t result, const char* name) {
          EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
          const std::string text = weir_last_error(comm);
          EXPECT_NE(text.find(name), text.npos) << text;
          EXPECT_NE(text.find("bytes and ends outside it"), text.npos) << text;
        };
        expect_refused(
            weir_all_reduce(comm, whole.data(), part.data(), kCount, WEIR_INT32, WEIR_SUM, nullptr),
            "receive buffer");
        expect_refused(
            weir_all_gather(comm, whole.data(), part.data(), kCount, WEIR_INT32, nullptr),
            "receive buffer");
        expect_refused(weir_reduce_scatter(comm, part.data(), whole.data(), kCount, WEIR_INT32,
                                           WEIR_SUM, nullptr),
                       "send buffer");
        expect_refused(weir_send(comm, part.data(), kCount, WEIR_INT32, 1 - rank, nullptr),
                       "send buffer");
        expect_refused(weir_recv(comm, part.data(), kCount, WEIR_INT32, 1 - rank, nullptr),
                       "receive buffer");
        exchange(comm, rank);
      },
      over_devices());
}

TEST(DeviceMessages, ABufferThatWasFreedIsRefused) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        exchange(comm, rank);
        int* gone = nullptr;
        {
          const OnDevice<int> freed(1000);
          gone = freed.data();
        }
        for (const weir_result_t result :
             {weir_all_reduce(comm, gone, gone, 1000, WEIR_INT32, WEIR_SUM, nullptr),
              weir_send(comm, gone, 1000, WEIR_INT32, 1 - rank, nullptr),
              weir_recv(comm, gone, 1000, WEIR_INT32, 1 - rank, nullptr)}) {
          EXPECT_EQ(result, WEIR_ERROR_INVALID_ARGUMENT);
          const std::string text = weir_last_error(comm);
          EXPECT_NE(text.find("it was freed, or nothing is mapped there"), text.npos) << text;
        }
        exchange(comm, rank);
      },
      over_devices());
}

TEST(DeviceMessages, AnotherDeviceNeedsAnotherCommunicator) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        exchange(comm, rank);
        ASSERT_EQ(cudaSetDevice(rank + 4), cudaSuccess);
        OnDevice<int> elsewhere(std::vector<int>{rank});
        EXPECT_EQ(weir_send(comm, elsewhere.data(), 1, WEIR_INT32, 1 - rank, nullptr),
                  WEIR_ERROR_INVALID_ARGUMENT);
        expect_text(weir_last_error(comm), "create another communicator for another device");
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        exchange(comm, rank);
      },
      over_devices());
}

TEST(DeviceMessages, NoneBecomesPartOfAGraphAndTheCaptureGoesOn) {
  run_on_devices(
      2,
      [](int rank, weir_comm_t comm) {
        OnDevice<int> data(numbers(10, 0));
        cudaStream_t stream = nullptr;
        ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, stream));
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
        EXPECT_EQ(weir_send(comm, data.data(), 10, WEIR_INT32, 1 - rank, nullptr),
                  WEIR_ERROR_UNSUPPORTED);
        expect_text(weir_last_error(comm), "cannot become part of a CUDA graph");
        cudaGraph_t graph = nullptr;
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
        exchange(comm, rank);
        ASSERT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
        EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
      },
      over_devices());
}

TEST(DeviceMessages, ADeathEndsAReceiveIntoADevice) {
  const SharedCounter here;
  const std::vector<int> statuses = run_processes_status(
      2,
      [&](int rank, weir_comm_t comm) {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        exchange(comm, rank);
        here.meet(2);
        if (rank == 1) raise(SIGKILL);
        OnDevice<int> data(numbers(10, 0));
        EXPECT_EQ(weir_recv(comm, data.data(), 10, WEIR_INT32, 1, nullptr), WEIR_ERROR_PEER_LOST);
        expect_text(weir_last_error(comm), "rank 1");
      },
      over_devices());
  EXPECT_EQ(statuses, (std::vector<int>{0, 128 + SIGKILL}));
}

}  // namespace
}  // namespace weir::test
