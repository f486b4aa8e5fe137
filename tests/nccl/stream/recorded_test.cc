// SPDX-License-Identifier: Apache-2.0
// What weir-trace tells of one-sided operations and of graphs, where Weir does the work.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "nccl/stream/graph_support.h"
#include "perf/command.h"
#include "trace/temporary_folder.h"

namespace weir::nccl::test {
namespace {

using Json = nlohmann::json;

// The library looks at the environment once a process: one folder for all tests.
const std::string& folder() {
  static const auto* it = [] {
    auto* made = new weir::test::TemporaryFolder();
    setenv("WEIR_RECORDER_DIR", made->path().c_str(), 1);
    std::atexit([] { (void)rmdir(std::getenv("WEIR_RECORDER_DIR")); });
    return made;
  }();
  return it->path();
}

class NcclOwnRecord : public testing::Test {
 protected:
  void SetUp() override { (void)folder(); }
};

Json look_at_all() {
  const auto result =
      weir::test::run_command(WEIR_TRACE, {folder(), "--json", "--stuck-after-ms", "1"});
  const Json all = Json::parse(result.out, nullptr, false);
  return all.is_discarded() ? Json::array() : all["communicators"];
}

// What is told of the one communicator that there is; null where there is none.
Json look() {
  const Json all = look_at_all();
  return all.empty() ? Json() : all[0];
}

// The same of its collectives that are work of the streams alone.
Json look_at_streams() {
  for (const Json& it : look_at_all()) {
    if (it["transport"] == "streams of devices") return it;
  }
  return nullptr;
}

// Of a rank's messages those of a kind, as "peer units completed".
std::vector<std::string> messages_of(const Json& communicator, size_t rank,
                                     const std::string& kind) {
  std::vector<std::string> found;
  for (const Json& one : communicator["ranks"][rank]["messages"]) {
    if (one["kind"] != kind) continue;
    const char* units = one.contains("signals") ? "signals" : "bytes";
    found.push_back(one["peer"].dump() + " " + one[units].dump() + " " + one["completed"].dump());
  }
  return found;
}

// Rank 1 does not signal before it has read of rank 0 what it waits for.
TEST_F(NcclOwnRecord, AWaitForSignalsNamesWhoHasNotSentThem) {
  run_threads(2, [](int rank, ncclComm_t comm) {
    std::vector<int> memory(100);
    ncclWindow_t window = nullptr;
    ASSERT_NCCL(ncclCommWindowRegister(comm, memory.data(), 400, &window, 0));
    if (rank == 0) {
      const std::vector<int> data(50, 7);
      EXPECT_NCCL(ncclPutSignal(data.data(), 50, ncclInt, 1, window, 0, 0, 0, 0, comm, nullptr));
      EXPECT_NCCL(ncclSignal(1, 0, 0, 0, comm, nullptr));
      ncclWaitSignalDesc_t two{2, 1, 0, 0};
      EXPECT_NCCL(ncclWaitSignal(1, &two, comm, nullptr));
    } else {
      Json told = look();
      while (told.is_null() || told["verdict"]["finding"] != "never called") {
        std::this_thread::yield();
        told = look();
      }
      const std::string text = told["verdict"]["text"];
      EXPECT_EQ(told["verdict"]["ranks"], Json({1})) << text;
      EXPECT_NE(text.find("rank 0 waits for signals of rank 1 (2 asked for in all)"),
                std::string::npos)
          << text;
      EXPECT_EQ(told["ranks"][0]["wait"]["kind"], "wait for signals");
      EXPECT_EQ(told["ranks"][0]["wait"]["signals"], 2);
      const std::string activity = told["ranks"][0]["activity"];
      EXPECT_EQ(activity.find("wait for 2 signals, of rank 1 the first, waits"), 0u) << activity;
      using Strings = std::vector<std::string>;
      EXPECT_EQ(messages_of(told, 0, "put with signal"), Strings{"1 200 true"});
      EXPECT_EQ(messages_of(told, 0, "signal"), Strings{"1 0 true"});
      EXPECT_EQ(messages_of(told, 0, "wait for signals"), Strings{"1 2 false"});
      EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, nullptr));
      EXPECT_NCCL(ncclSignal(0, 0, 0, 0, comm, nullptr));
    }
    int one = 1;
    EXPECT_NCCL(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr));
    if (rank == 0) {
      const Json told = look();
      ASSERT_FALSE(told.is_null());
      EXPECT_EQ(messages_of(told, 0, "wait for signals"), std::vector<std::string>{"1 2 true"});
    }
    EXPECT_NCCL(ncclAllReduce(&one, &one, 1, ncclInt, ncclSum, comm, nullptr));
    EXPECT_NCCL(ncclCommWindowDeregister(comm, window));
  });
}

// Each replay is an operation as any other; the capture itself is none.
TEST_F(NcclOwnRecord, EveryReplayOfAGraphIsAnOperation) {
  constexpr size_t kCount = 10;
  constexpr int kReplays = 3;
  std::atomic<bool> looked{false};
  std::atomic<int> ready{0};
  run_threads(2, [&](int rank, ncclComm_t comm) {
    use_device(0);
    const Stream stream;
    const Array data(MemoryKind::kDevice, kCount);
    const Graph graph(stream, [&] {
      EXPECT_NCCL(
          ncclAllReduce(data.data(), data.data(), kCount, ncclInt, ncclSum, comm, stream.nccl()));
    });
    data.set(std::vector<int>(kCount, rank));
    for (int replay = 0; replay < kReplays; ++replay) {
      graph.launch(stream);
      stream.synchronize();
    }
    ++ready;
    while (ready < 2) std::this_thread::yield();
    if (rank == 0) {
      const Json told = look();
      EXPECT_FALSE(told.is_null());
      for (size_t of = 0; of < 2 && !told.is_null(); ++of) {
        int replays = 0;
        for (const Json& one : told["ranks"][of]["operations"]) {
          replays += one["call"] == "all_reduce(int32, sum, count 10)" && one["completed"] == true;
        }
        EXPECT_EQ(replays, kReplays) << told["ranks"][of].dump(1);
      }
      looked = true;
    }
    while (!looked) std::this_thread::yield();
  });
}

// Looks until the verdict is this one; what is told then.
Json look_until(const std::string& finding) {
  Json told = look_at_streams();
  while (told.is_null() || told["verdict"]["finding"] != finding) {
    std::this_thread::yield();
    told = look_at_streams();
  }
  return told;
}

// Of a rank, as "number call completed".
std::vector<std::string> operations_of(const Json& communicator, size_t rank) {
  std::vector<std::string> found;
  for (const Json& one : communicator["ranks"][rank]["operations"]) {
    found.push_back(one["number"].dump() + " " + one["call"].get<std::string>() +
                    (one["completed"] == true ? " completed" : ""));
  }
  return found;
}

// Each rank has a device, so that no thread of the host takes part in the collectives.
TEST_F(NcclOwnRecord, ARankWhoseStreamDoesNotComeIsNamed) {
  const AllRanks ranks(2);
  std::vector<Stream> streams;
  std::vector<Array> data;
  for (int rank = 0; rank < 2; ++rank) {
    use_device(rank);
    streams.emplace_back();
    data.emplace_back(MemoryKind::kDevice, 3000);
    data.back().set(std::vector<int>(3000, rank + 1));
  }
  const auto call_on = [&](size_t rank) {
    use_device(static_cast<int>(rank));
    EXPECT_NCCL(ncclAllReduce(data[rank].data(), data[rank].data(), 3000, ncclInt, ncclSum,
                              ranks[static_cast<int>(rank)], streams[rank].nccl()));
  };
  for (const size_t rank : {size_t{0}, size_t{1}}) call_on(rank);
  streams[0].synchronize();
  call_on(0);
  Json told = look_until("never called");
  std::string text = told["verdict"]["text"];
  EXPECT_EQ(told["verdict"]["ranks"], Json({1})) << text;
  EXPECT_NE(text.find("rank 1 never called operation 2"), std::string::npos) << text;
  EXPECT_EQ(told["ranks"][1]["activity"], "nothing is enqueued");
  const std::string call = "all_reduce(int32, sum, count 3000)";
  EXPECT_EQ(operations_of(told, 0),
            (std::vector<std::string>{"1 " + call + " completed", "2 " + call}));

  Gate gate(streams[1]);
  call_on(1);
  told = look_until("stuck inside");
  text = told["verdict"]["text"];
  EXPECT_EQ(told["verdict"]["ranks"], Json({1})) << text;
  EXPECT_NE(text.find("rank 1 enqueued operation 2, and the stream there has not come to it"),
            std::string::npos)
      << text;
  EXPECT_EQ(told["ranks"][1]["activity"], "operation 2, " + call + ", is enqueued");
  const std::string activity = told["ranks"][0]["activity"];
  EXPECT_EQ(activity.find("operation 2, " + call + ", one phase by scratch, waits "), 0u)
      << activity;
  EXPECT_NE(activity.find(" for rank 1"), std::string::npos) << activity;

  gate.open();
  for (const Stream& it : streams) it.synchronize();
  told = look_until("nothing wrong");
  while (told["ranks"][0]["completed"] != 2 || told["ranks"][1]["completed"] != 2) {
    std::this_thread::yield();
    told = look_until("nothing wrong");
  }
  EXPECT_EQ(operations_of(told, 1),
            (std::vector<std::string>{"1 " + call + " completed", "2 " + call + " completed"}));
  use_device(0);
}

// The same for messages.
TEST_F(NcclOwnRecord, TheCaptureOfACallIsRecordedAndItsLaunchesAreNot) {
  const AllRanks ranks(2);
  std::vector<Stream> streams;
  std::vector<Array> data;
  std::vector<Graph> graphs;
  streams.reserve(2);
  for (int rank = 0; rank < 2; ++rank) {
    use_device(rank);
    const Stream& stream = streams.emplace_back();
    data.emplace_back(MemoryKind::kDevice, 10);
    data.back().set(std::vector<int>(10, rank));
    graphs.emplace_back(stream, [&] {
      EXPECT_NCCL(ncclAllReduce(data.back().data(), data.back().data(), 10, ncclInt, ncclSum,
                                ranks[rank], stream.nccl()));
    });
  }
  for (int launch = 0; launch < 3; ++launch) {
    for (size_t rank = 0; rank < 2; ++rank) graphs[rank].launch(streams[rank]);
    for (size_t rank = 0; rank < 2; ++rank) streams[rank].synchronize();
  }
  const Json told = look_at_streams();
  ASSERT_FALSE(told.is_null());
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(messages_of(told, rank, "capture into a graph"),
              std::vector<std::string>{std::to_string(rank) + " 40 true"});
    EXPECT_TRUE(told["ranks"][rank]["operations"].empty()) << told["ranks"][rank].dump(1);
  }
}

TEST_F(NcclOwnRecord, ARankThatDoesNotSendIsNamed) {
  const AllRanks ranks(2);
  std::vector<Stream> streams;
  std::vector<Array> data;
  for (int rank = 0; rank < 2; ++rank) {
    use_device(rank);
    streams.emplace_back();
    data.emplace_back(MemoryKind::kDevice, 3000);
  }
  const auto call_on = [&](int rank) {
    use_device(rank);
    const auto at = static_cast<size_t>(rank);
    EXPECT_NCCL(rank == 1
                    ? ncclSend(data[at].data(), 3000, ncclInt, 0, ranks[1], streams[at].nccl())
                    : ncclRecv(data[at].data(), 3000, ncclInt, 1, ranks[0], streams[at].nccl()));
  };
  for (const int rank : {0, 1}) call_on(rank);
  streams[0].synchronize();
  call_on(0);
  Json told = look_until("never called");
  const std::string text = told["verdict"]["text"];
  EXPECT_EQ(told["verdict"]["ranks"], Json({1})) << text;
  using Strings = std::vector<std::string>;
  EXPECT_EQ(messages_of(told, 0, "receive"), (Strings{"1 12000 true", "1 12000 false"}));
  EXPECT_EQ(messages_of(told, 1, "send"), Strings{"0 12000 true"});
  const std::string activity = told["ranks"][0]["activity"];
  EXPECT_NE(activity.find("12000 bytes"), std::string::npos) << activity;
  call_on(1);
  for (const Stream& it : streams) it.synchronize();
  told = look_until("nothing wrong");
  while (messages_of(told, 0, "receive") != Strings{"1 12000 true", "1 12000 true"}) {
    std::this_thread::yield();
    told = look_until("nothing wrong");
  }
  use_device(0);
}

}  // namespace
}  // namespace weir::nccl::test
