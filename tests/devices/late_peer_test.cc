// SPDX-License-Identifier: Apache-2.0
// What a program may do between a call of the C API on memory of a device and its end, while a peer
// is late: far more launches, memory that is freed, a kernel that is loaded. And threads that have
// no CUDA context. Between processes, and between threads of one with a device each.
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "devices/stream_messages_cases.h"

namespace weir::test {
namespace {

void in_both_ways(int n, const DeviceBody& body) {
  messages_between_processes(n, body);
  const std::vector<int> statuses = run_processes_each(
      1, [&](int, weir_comm_t) { messages_between_threads(n, body); },
      [](int) { return Environment(); });
  EXPECT_EQ(statuses, std::vector<int>{0});
}

// Ranks take turns in being late.
void come_late(int rank, int round, int n) {
  if (rank == round % n) std::this_thread::sleep_for(std::chrono::milliseconds(150));
}

// The calls of one kind that a rank makes, and what must come of them.
struct Kind {
  const char* name;
  std::function<weir_result_t(weir_comm_t, int n, int rank, const DeviceArray<int>& out,
                              const DeviceArray<int>& in, weir_request_t*)>
      call;
  std::function<std::vector<int>(int n, int rank, int first)> expected;
};

constexpr size_t kCount = 100'003;  // several rounds

std::vector<Kind> kinds() {
  return {
      {"all_reduce",
       [](weir_comm_t comm, int, int, const auto& out, const auto& in, weir_request_t* request) {
         return weir_all_reduce(comm, out.data(), in.data(), kCount, WEIR_INT32, WEIR_SUM, request);
       },
       [](int n, int, int first) { return std::vector<int>(kCount, n * first + n * (n - 1) / 2); }},
      {"broadcast",
       [](weir_comm_t comm, int, int, const auto& out, const auto& in, weir_request_t* request) {
         return weir_broadcast(comm, out.data(), in.data(), kCount, WEIR_INT32, 1, request);
       },
       [](int, int, int first) { return std::vector<int>(kCount, first + 1); }},
      // A ring of messages, of which the request is the receive's.
      {"messages",
       [](weir_comm_t comm, int n, int rank, const auto& out, const auto& in,
          weir_request_t* request) {
         weir_result_t result = weir_group_start();
         if (result == WEIR_OK) result = send(comm, out, kCount, (rank + 1) % n);
         if (result == WEIR_OK) result = recv(comm, in, kCount, (rank + n - 1) % n, request);
         const weir_result_t end = weir_group_end();
         return result == WEIR_OK ? end : result;
       },
       [](int n, int rank, int first) {
         return std::vector<int>(kCount, first + (rank + n - 1) % n);
       }},
  };
}

// Every kind, on a stream of the program's and without one; `meanwhile` comes between the call and
// the wait for it.
void behind_a_late_peer(weir_comm_t comm, int n, int rank,
                        const std::function<void(const Stream&)>& meanwhile) {
  const Stream stream;
  const DeviceArray<int> out(std::vector<int>(kCount, 0));
  const DeviceArray<int> in(std::vector<int>(kCount, 0));
  int round = 0;
  for (const Kind& it : kinds()) {
    for (const bool streams : {true, false}) {
      out.set(std::vector<int>(kCount, round + rank));
      come_late(rank, round, n);
      EXPECT_WEIR(comm, weir_comm_set_stream(comm, streams ? stream.get() : WEIR_NO_STREAM));
      weir_request_t request = nullptr;
      ASSERT_WEIR(comm, it.call(comm, n, rank, out, in, streams ? nullptr : &request));
      meanwhile(stream);
      if (!streams) {
        EXPECT_WEIR(comm, weir_wait(&request));
      }
      stream.synchronize();
      EXPECT_EQ(in.get() == it.expected(n, rank, round), true)
          << it.name << (streams ? " on a stream" : "") << ", rank " << rank << " of " << n;
      ++round;
    }
  }
  EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
}

// A launch queue has room for 1024: the call that finds none waits with the lock of the context.
TEST(DeviceLatePeer, AProgramMayBeThreeThousandLaunchesAhead) {
  in_both_ways(2, [](weir_comm_t comm, int n, int rank) {
    const DeviceArray<int> from(std::vector<int>(16, 1));
    const DeviceArray<int> to(std::vector<int>(16, 0));
    behind_a_late_peer(comm, n, rank, [&](const Stream& stream) {
      for (int i = 0; i < 3000; ++i) to.copy_of(from, stream);
    });
  });
}

// What frees memory waits for the device, with the lock of the context; so does what loads a kernel
// for the first time.
TEST(DeviceLatePeer, AProgramMayFreeMemoryAndLoadKernels) {
  in_both_ways(3, [](weir_comm_t comm, int n, int rank) {
    int calls = 0;
    behind_a_late_peer(comm, n, rank, [&](const Stream&) {
      cuda::DevicePointer spare = 0;
      EXPECT_CUDA(cuMemAlloc_v2(&spare, 4096));
      if (++calls % 2 == 0 && cuda::is_strict()) strict_cuda_load_lazily();
      EXPECT_CUDA(cuMemFree_v2(spare));
    });
  });
}

// ---- Threads without a context ------------------------------------------------------------------

void in_thread_without_context(const std::function<void()>& body) {
  std::thread([&] {
    cuda::Context context = nullptr;
    body();
    EXPECT_CUDA(cuCtxGetCurrent(&context));
    EXPECT_EQ(context, nullptr) << "a call left a context";
  }).join();
}

TEST(DeviceLatePeer, AThreadWithoutAContextMayMakeTheCalls) {
  in_both_ways(2, [](weir_comm_t comm, int n, int rank) {
    const Stream stream;
    const DeviceArray<int> out(std::vector<int>(kCount, 0));
    const DeviceArray<int> in(std::vector<int>(kCount, 0));
    int round = 0;
    for (const Kind& it : kinds()) {
      for (const bool streams : {false, true}) {
        for (const bool asks : {false, true}) {
          out.set(std::vector<int>(kCount, round + rank));
          in_thread_without_context([&] {
            EXPECT_WEIR(comm, weir_comm_set_stream(comm, streams ? stream.get() : WEIR_NO_STREAM));
            weir_request_t request = nullptr;
            EXPECT_WEIR(comm, it.call(comm, n, rank, out, in, asks ? &request : nullptr));
            if (asks) {
              EXPECT_WEIR(comm, weir_wait(&request));
            }
          });
          stream.synchronize();
          EXPECT_EQ(in.get() == it.expected(n, rank, round), true)
              << it.name << (streams ? " on a stream" : "") << ", rank " << rank;
          ++round;
        }
      }
    }
    EXPECT_WEIR(comm, weir_comm_set_stream(comm, WEIR_NO_STREAM));
  });
}

// The first call on memory of a device makes what all use.
TEST(DeviceLatePeer, AThreadWithoutAContextMayMakeTheFirstCall) {
  run_processes_on_device(2, [](weir_comm_t comm, int n, int rank) {
    const DeviceArray<int> data(std::vector<int>(1000, rank + 1));
    in_thread_without_context([&] {
      EXPECT_WEIR(comm, weir_all_reduce(comm, data.data(), data.data(), 1000, WEIR_INT32, WEIR_SUM,
                                        nullptr));
    });
    EXPECT_EQ(data.get(), std::vector<int>(1000, n * (n + 1) / 2));
  });
}

}  // namespace
}  // namespace weir::test
