// SPDX-License-Identifier: Apache-2.0
// weir-trace and weir-info --live on real processes: what hangs, dies or is stopped is named, by
// rank and operation, and what runs is not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "perf/command.h"
#include "trace/job.h"

namespace weir::test {
namespace {

using Json = nlohmann::json;

struct Looked {
  int status = -1;
  Json json;  // of the communicator
  std::string text;
};

Looked look(const std::string& folder, const std::vector<std::string>& more = {},
            const std::string& stuck_after_ms = "100") {
  std::vector<std::string> arguments = {folder, "--json", "--stuck-after-ms", stuck_after_ms};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const CommandResult result = run_command(WEIR_TRACE, arguments);
  Looked looked;
  looked.status = result.status;
  looked.text = result.out + result.err;
  const Json all = Json::parse(result.out, nullptr, false);
  if (all.is_discarded() || all["communicators"].empty()) return looked;
  looked.json = all["communicators"][0];
  return looked;
}

// Looks until the verdict is `finding`, of these ranks if they are given: processes take the time
// that the machine gives them, and are found on their way.
Looked look_until(const std::string& folder, const std::string& finding,
                  const std::vector<int>& ranks = {}) {
  Looked looked;
  for (int attempt = 0; attempt < 600; ++attempt) {
    looked = look(folder);
    if (looked.json.is_object() && looked.json["verdict"]["finding"] == finding &&
        (ranks.empty() || looked.json["verdict"]["ranks"] == Json(ranks))) {
      return looked;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ADD_FAILURE() << "never judged '" << finding << "': " << looked.text;
  return looked;
}

// Until every one of the ranks has completed a few.
void wait_for_operations(const Job& job, size_t rank_count) {
  for (int attempt = 0; attempt < 6000; ++attempt) {
    const Looked looked = look(job.folder().path(), {}, "60000");
    size_t under_way = 0;
    if (looked.json.is_object()) {
      for (const Json& rank : looked.json["ranks"]) under_way += rank["completed"] >= 10;
    }
    if (under_way == rank_count) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "the ranks never ran";
}

// Until a rank has written that it still waits, long enough after what it has written by now: of a
// dead one nothing else tells how long it has waited.
void wait_for_sign(const Job& job, size_t rank) {
  uint64_t first_ns = 0;
  for (int attempt = 0; attempt < 600; ++attempt) {
    const Looked looked = look(job.folder().path());
    if (looked.json.is_object()) {
      const uint64_t latest_ns = looked.json["ranks"][rank]["latest_ns"];
      if (first_ns == 0) first_ns = latest_ns;
      if (latest_ns > first_ns + 150'000'000) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ADD_FAILURE() << "rank " << rank << " never wrote that it waits";
}

void expect_verdict(const Looked& looked, const std::vector<int>& ranks, uint64_t operation,
                    const std::string& part) {
  ASSERT_TRUE(looked.json.is_object()) << looked.text;
  const Json& verdict = looked.json["verdict"];
  EXPECT_EQ(looked.status, 1);
  EXPECT_EQ(verdict["ranks"], Json(ranks)) << verdict;
  if (operation != 0) {
    EXPECT_EQ(verdict["operation"], operation) << verdict;
  }
  const std::string text = verdict["text"];
  EXPECT_NE(text.find(part), std::string::npos) << "no '" << part << "' in: " << text;
}

class Trace : public testing::TestWithParam<const char*> {
 protected:
  Environment environment() const { return {{"WEIR_TRANSPORT", GetParam()}}; }
};

INSTANTIATE_TEST_SUITE_P(Transports, Trace, testing::Values("shm", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

TEST_P(Trace, NamesTheRankThatNeverMadeACall) {
  const Job job(
      3,
      [](int rank, weir_comm_t comm) {
        for (int i = 0; i < 300; ++i) ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
        if (rank == 1) hang();
        std::vector<float> data(1000);
        whatever(
            weir_broadcast(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32, 1, nullptr));
        hang();
      },
      environment());
  const Looked looked = look_until(job.folder().path(), "never called", {1});
  expect_verdict(looked, {1}, 301, "rank 1 never called operation 301");
  expect_verdict(looked, {1}, 301, "broadcast(float32, count 1000, root 1)");
  const Json& waiter = looked.json["ranks"][0];
  EXPECT_EQ(waiter["completed"], 300);
  EXPECT_EQ(waiter["wait"]["awaited_ranks"], Json({1})) << waiter["wait"];
  EXPECT_EQ(waiter["operations"].size(), 256u);
  EXPECT_EQ(looked.json["ranks"][1]["activity"], "not in Weir");
}

TEST_P(Trace, NamesTheRankThatCalledAnotherSize) {
  Job job(
      3,
      [](int rank, weir_comm_t comm) {
        for (int i = 0; i < 10; ++i) ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
        EXPECT_NE(all_reduce(comm, rank == 2 ? 8 : 4), WEIR_OK);
      },
      environment());
  job.join();
  // The communicators are destroyed and the processes gone: failed ones leave their records.
  const Looked looked = look(job.folder().path());
  expect_verdict(looked, {2}, 11, "rank 2 called all_reduce(float32, sum, count 8)");
  expect_verdict(looked, {2}, 11, "another count");
}

TEST_P(Trace, NamesTheRankThatSkippedAnOperation) {
  Job job(
      3,
      [](int rank, weir_comm_t comm) {
        for (int i = 0; i < 10; ++i) ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
        weir_request_t requests[2] = {};
        std::vector<float> data(64, 1.0f);
        if (rank != 1) {
          whatever(weir_all_reduce(comm, data.data(), data.data(), 64, WEIR_FLOAT32, WEIR_MAX,
                                   &requests[0]));
        }
        whatever(weir_all_reduce(comm, data.data(), data.data(), 32, WEIR_FLOAT32, WEIR_SUM,
                                 &requests[1]));
        for (weir_request_t& request : requests) {
          if (request != nullptr) whatever(weir_wait(&request));
        }
      },
      environment());
  job.join();
  expect_verdict(look(job.folder().path()), {1}, 11,
                 "rank 1 called all_reduce(float32, sum, count 32) as operation 11");
}

TEST_P(Trace, NamesTheRankThatWasKilledWhileTheOthersLive) {
  const Job job(
      3,
      [](int, weir_comm_t comm) {
        while (all_reduce(comm, 2) == WEIR_OK) {
        }
        hang();
      },
      environment());
  wait_for_operations(job, 3);
  job.signal(1, SIGKILL);
  const Looked looked = look_until(job.folder().path(), "died", {1});
  expect_verdict(looked, {1}, 0, "rank 1 died");
  EXPECT_GE(looked.json["verdict"]["operation"], 10) << looked.json["verdict"];
  EXPECT_EQ(looked.json["ranks"][1]["life"], "dead");
  EXPECT_EQ(looked.json["ranks"].size(), 3u);
}

TEST_P(Trace, NamesTheRankThatWasStopped) {
  const Job job(
      3,
      [](int, weir_comm_t comm) {
        while (all_reduce(comm, 20'000) == WEIR_OK) {
        }
      },
      environment());
  wait_for_operations(job, 3);
  job.signal(2, SIGSTOP);
  const Looked looked = look_until(job.folder().path(), "stopped", {2});
  expect_verdict(looked, {2}, 0, "rank 2 stopped");
  EXPECT_EQ(looked.json["ranks"][2]["life"], "stopped");
  EXPECT_GE(looked.json["verdict"]["operation"], 10) << looked.json["verdict"];
}

TEST_P(Trace, NamesTheRankThatBeganAndWentNoFurther) {
  const Job job(
      3,
      [](int rank, weir_comm_t comm) {
        ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
        std::vector<float> data(4'000'000, 1.0f);
        weir_request_t request = nullptr;
        ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), data.size(), WEIR_FLOAT32,
                                  WEIR_SUM, &request),
                  WEIR_OK);
        if (rank == 0) hang();
        whatever(weir_wait(&request));
      },
      environment());
  const Looked looked = look_until(job.folder().path(), "stuck inside", {0});
  expect_verdict(looked, {0}, 2, "rank 0 began operation 2 and went no further");
  EXPECT_GT(looked.json["ranks"][1]["wait"]["step_count"], 0) << looked.text;
}

TEST_P(Trace, NamesTheRankThatNeverSentAMessage) {
  const Job job(
      2,
      [](int rank, weir_comm_t comm) {
        ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
        if (rank == 1) hang();
        std::vector<float> data(10);
        whatever(weir_recv(comm, data.data(), data.size(), WEIR_FLOAT32, 1, nullptr));
        hang();
      },
      environment());
  const Looked looked = look_until(job.folder().path(), "never called", {1});
  expect_verdict(looked, {1}, 0, "rank 0 waits for a message of 40 bytes from rank 1");
  EXPECT_EQ(looked.json["ranks"][0]["messages"][0]["completed"], false);
}

TEST_P(Trace, NamesTheRankThatNeverSignalled) {
  const Job job(
      2,
      [](int rank, weir_comm_t comm) {
        std::vector<uint64_t> memory(8);
        weir_window_t window = nullptr;
        ASSERT_EQ(weir_window_create(comm, memory.data(), 64, &window), WEIR_OK);
        if (rank == 1) hang();
        const std::vector<char> data(40);
        uint64_t old = 0;
        ASSERT_EQ(weir_put(window, 1, 0, data.data(), data.size(), nullptr), WEIR_OK);
        ASSERT_EQ(weir_fetch_add(window, 1, 48, 1, &old, nullptr), WEIR_OK);
        ASSERT_EQ(weir_fetch_add(window, 0, 48, 1, &old, nullptr), WEIR_OK);
        whatever(weir_wait_signal(window, 56, 3, nullptr));
        hang();
      },
      environment());
  const Looked looked = look_until(job.folder().path(), "never called", {1});
  expect_verdict(looked, {1}, 0, "rank 0 waits for a signal of rank 1 (a word is to reach 3)");
  // In the record of the communicator that has the window.
  ASSERT_EQ(looked.json["ranks"].size(), 2u);
  const Json& rank = looked.json["ranks"][0];
  EXPECT_EQ(rank["wait"]["kind"], "wait for a word");
  EXPECT_EQ(rank["wait"]["value"], 3);
  std::vector<std::string> told;
  for (const Json& one : rank["messages"]) {
    const std::string kind = one["kind"];
    told.push_back(kind + " " + one["peer"].dump() + " " + one["completed"].dump());
  }
  EXPECT_EQ(told, (std::vector<std::string>{"put 1 true", "fetch and add 1 true",
                                            "fetch and add 0 true", "wait for a word 0 false"}));
  EXPECT_EQ(rank["messages"][0]["bytes"], 40);
}

TEST_P(Trace, SuspectsNobodyWhileAJobRuns) {
  const Job job(
      2,
      [](int, weir_comm_t comm) {
        while (all_reduce(comm, 2) == WEIR_OK) {
        }
      },
      environment());
  wait_for_operations(job, 2);
  for (int i = 0; i < 5; ++i) {
    const Looked looked = look(job.folder().path(), {}, "60000");
    EXPECT_EQ(looked.status, 0) << looked.text;
  }
}

TEST(Records, SurviveSigkillOfEveryRank) {
  Job job(2, [](int rank, weir_comm_t comm) {
    ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
    if (rank == 1) hang();
    whatever(weir_barrier(comm, nullptr));
  });
  look_until(job.folder().path(), "never called");
  wait_for_sign(job, 0);
  job.signal(0, SIGKILL);
  job.signal(1, SIGKILL);
  job.join();
  const Looked looked = look(job.folder().path());
  expect_verdict(looked, {1}, 2, "rank 1 never called operation 2");
  EXPECT_EQ(looked.json["ranks"][0]["life"], "dead");
}

TEST(Records, AreReadableByTheirOwnerOnlyAndHoldNoSecret) {
  TemporaryFolder parent;
  const std::string folder = parent.path() + "/run";
  weir_unique_id_t id = make_id();
  const pid_t child = fork();
  if (child == 0) {
    setenv("WEIR_RECORDER_DIR", folder.c_str(), 1);
    std::thread other([&] {
      weir_comm_t comm = nullptr;
      if (weir_comm_create(&comm, 2, &id, 1, nullptr) == WEIR_OK) all_reduce(comm, 2);
    });
    weir_comm_t comm = nullptr;
    if (weir_comm_create(&comm, 2, &id, 0, nullptr) == WEIR_OK) all_reduce(comm, 2);
    other.join();
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  struct stat status {};
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  size_t records = 0;
  size_t parts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    ++records;
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const std::string secret(reinterpret_cast<const char*>(&id), sizeof id);
    for (size_t at = 0; at + 8 <= secret.size(); at += 8) {
      const std::string part = secret.substr(at, 8);
      // Small numbers and padding stand everywhere.
      if (std::count(part.begin(), part.end(), '\0') > 2) continue;
      ++parts;
      EXPECT_EQ(bytes.find(part), std::string::npos) << "8 bytes of the id at " << at;
    }
  }
  EXPECT_EQ(records, 2u);
  EXPECT_GT(parts, 4u);
}

TEST(Records, OfProcessesThatEndInOrderAreRemoved) {
  const auto run = [](bool destroys) {
    TemporaryFolder parent;
    const std::string folder = parent.path() + "/run";
    const weir_unique_id_t id = make_id();
    std::vector<pid_t> children;
    for (int rank = 0; rank < 2; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        setenv("WEIR_RECORDER_DIR", folder.c_str(), 1);
        weir_comm_t comm = nullptr;
        bool good = weir_comm_create(&comm, 2, &id, rank, nullptr) == WEIR_OK;
        good = good && !std::filesystem::is_empty(folder);
        for (int i = 0; i < 1000; ++i) good = good && all_reduce(comm, 2) == WEIR_OK;
        if (destroys) good = good && weir_comm_destroy(comm) == WEIR_OK;
        std::exit(good ? 0 : 1);
      }
      children.push_back(child);
    }
    for (const pid_t child : children) {
      int status = -1;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << destroys;
  };
  run(true);
  run(false);
}

TEST(Records, AreNotWrittenWhereTheRecorderIsOff) {
  TemporaryFolder parent;
  const auto written = [&](const char* value) {
    const std::string folder = parent.path() + "/run" + value;
    run_processes_status(2,
                         [](int, weir_comm_t comm) {
                           EXPECT_EQ(all_reduce(comm, 2), WEIR_OK);
                           raise(SIGKILL);
                         },
                         {{"WEIR_RECORDER_DIR", folder}, {"WEIR_RECORDER", value}});
    return std::filesystem::exists(folder);
  };
  EXPECT_TRUE(written("1"));
  EXPECT_FALSE(written("0"));
}

TEST(Records, ThatCannotBeMadeDoNotFailAnything) {
  TemporaryFolder parent;
  for (const std::string& path : {parent.path() + "/missing/run", std::string("/proc/self/run")}) {
    run_processes(2,
                  [](int, weir_comm_t comm) {
                    for (int i = 0; i < 100; ++i) ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
                    ASSERT_EQ(all_reduce(comm, 100'000), WEIR_OK);
                    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK);
                  },
                  {{"WEIR_RECORDER_DIR", path}});
  }
}

TEST(WeirTrace, WritesAChromeTraceWithATrackForEachRank) {
  const Job job(3, [](int rank, weir_comm_t comm) {
    for (int i = 0; i < 50; ++i) ASSERT_EQ(all_reduce(comm, i % 2 == 0 ? 2 : 50'000), WEIR_OK);
    if (rank == 1) hang();
    whatever(weir_barrier(comm, nullptr));
  });
  look_until(job.folder().path(), "never called");
  TemporaryFolder out;
  const std::string path = out.path() + "/trace.json";
  look(job.folder().path(), {"--chrome", path});
  std::ifstream file(path);
  const Json trace = Json::parse(file, nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  std::map<int, size_t> finished;
  std::map<int, double> latest;
  size_t unfinished = 0;
  std::set<std::string> tracks;
  for (const Json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") tracks.insert(event["args"]["name"]);
    if (event["ph"] != "X") continue;
    EXPECT_GT(event["dur"], 0.0);
    EXPECT_GE(event["ts"], 0.0);
    if (event["cat"] == "unfinished") ++unfinished;
    if (event["cat"] != "collective") continue;
    const int rank = event["tid"];
    ++finished[rank];
    EXPECT_GE(event["ts"], latest[rank]) << event;
    latest[rank] = event["ts"];
  }
  EXPECT_EQ(tracks, (std::set<std::string>{"rank 0", "rank 1", "rank 2"}));
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(finished[rank], 50u) << rank;
  EXPECT_EQ(unfinished, 2u);
}

TEST(WeirTrace, ReadsTheTextOfARealHang) {
  const Job job(2, [](int rank, weir_comm_t comm) {
    ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
    if (rank == 1) hang();
    whatever(all_reduce(comm, 1024));
  });
  look_until(job.folder().path(), "never called");
  const CommandResult result =
      run_command(WEIR_TRACE, {job.folder().path(), "--stuck-after-ms", "100"});
  EXPECT_EQ(result.status, 1);
  for (const char* part :
       {"2 ranks, transport shm", "operation 2, all_reduce(float32, sum, count 1024)", "for rank 1",
        "verdict: never called: rank 1 never called operation 2"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
}

TEST(WeirTrace, TellsWhatItCannotReadAndGoesOn) {
  Job job(2, [](int rank, weir_comm_t comm) { whatever(all_reduce(comm, rank == 1 ? 2 : 4)); });
  job.join();
  const std::string folder = job.folder().path();
  const std::vector<std::string> files = job.folder().files();
  ASSERT_EQ(files.size(), 2u);
  std::ofstream(folder + "/empty.rec");
  std::ofstream(folder + "/foreign.rec") << std::string(20480, 'x');
  std::filesystem::copy_file(folder + "/" + files[0], folder + "/short.rec");
  std::filesystem::resize_file(folder + "/short.rec", 5000);
  ASSERT_EQ(mkfifo((folder + "/pipe.rec").c_str(), 0600), 0);
  std::filesystem::create_symlink(files[0], folder + "/link.rec");
  const Looked looked = look(folder);
  EXPECT_EQ(looked.status, 1) << looked.text;
  ASSERT_TRUE(looked.json.is_object());
  EXPECT_EQ(looked.json["ranks"].size(), 2u);
  for (const char* part : {"empty.rec: not a file of Weir's recorder", "foreign.rec",
                           "short.rec: 5000", "pipe.rec: not a regular file", "link.rec"}) {
    EXPECT_NE(looked.text.find(part), std::string::npos) << part << "\n" << looked.text;
  }
}

TEST(WeirTrace, ExitsWithThreeWhereThereIsNothingToRead) {
  TemporaryFolder folder;
  EXPECT_EQ(run_command(WEIR_TRACE, {folder.path()}).status, 3);
  EXPECT_EQ(run_command(WEIR_TRACE, {folder.path() + "/nowhere"}).status, 3);
  EXPECT_EQ(run_command(WEIR_TRACE, {"--no-such-flag"}).status, 3);
  EXPECT_EQ(run_command(WEIR_TRACE, {"--help"}).status, 0);
}

TEST(WeirInfoLive, ShowsWhoWaitsForWhomInARunningJob) {
  const Job job(3, [](int rank, weir_comm_t comm) {
    ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
    if (rank == 2) hang();
    whatever(weir_barrier(comm, nullptr));
  });
  look_until(job.folder().path(), "never called");
  const CommandResult live =
      run_command(WEIR_INFO, {"--live"}, {"WEIR_RECORDER_DIR=" + job.folder().path()});
  EXPECT_EQ(live.status, 0);
  for (const char* part : {"3 ranks", "barrier()", "for rank 2", "not in Weir", "alive",
                           "started, rank", " ms: rendezvous ", ", connect "}) {
    EXPECT_NE(live.out.find(part), std::string::npos) << part << "\n" << live.out;
  }
  const CommandResult as_json =
      run_command(WEIR_INFO, {"--live", "--json"}, {"WEIR_RECORDER_DIR=" + job.folder().path()});
  const auto json = nlohmann::json::parse(as_json.out);
  for (const auto& rank : json["communicators"][0]["ranks"]) {
    for (const char* part : {"rendezvous", "exchange", "connect"}) {
      EXPECT_GT(rank["start_ns"][part].get<uint64_t>(), 0u) << part;
    }
  }
  TemporaryFolder nothing;
  const CommandResult none =
      run_command(WEIR_INFO, {"--live"}, {"WEIR_RECORDER_DIR=" + nothing.path()});
  EXPECT_EQ(none.status, 0);
  EXPECT_NE(none.out.find("no communicator"), std::string::npos);
}

TEST(WeirInfoLive, ShowsWhichWayLeadsToEachPeerAndWhy) {
  const Job job(3,
                [](int rank, weir_comm_t comm) {
                  ASSERT_EQ(all_reduce(comm, 2), WEIR_OK);
                  if (rank == 2) hang();
                  whatever(weir_barrier(comm, nullptr));
                  hang();
                },
                {{"WEIR_TRANSPORT", "tcp"}});
  look_until(job.folder().path(), "never called");
  const std::string folder = "WEIR_RECORDER_DIR=" + job.folder().path();
  const CommandResult live = run_command(WEIR_INFO, {"--live"}, {folder});
  EXPECT_EQ(live.status, 0);
  for (const char* part : {"rank 1 reaches\n    rank 0 at ", "rank 2, which connected to ",
                           " and chose the path", "\n  rank 2 reaches\n    rank 0 at "}) {
    EXPECT_NE(live.out.find(part), std::string::npos) << part << "\n" << live.out;
  }
  // A process that was killed leaves it, too.
  job.signal(2, SIGKILL);
  look_until(job.folder().path(), "died");
  const CommandResult as_json = run_command(WEIR_INFO, {"--live", "--json"}, {folder});
  const auto json = nlohmann::json::parse(as_json.out);
  ASSERT_EQ(json["communicators"].size(), 1u) << as_json.out;
  const auto& ranks = json["communicators"][0]["ranks"];
  ASSERT_EQ(ranks.size(), 3u) << as_json.out;
  for (const auto& rank : ranks) {
    ASSERT_EQ(rank["ways"].size(), 2u) << rank;
    for (const auto& way : rank["ways"]) {
      const auto peer = way["peer"].get<uint32_t>();
      const auto text = way["text"].get<std::string>();
      const bool chose = peer < rank["rank"].get<uint32_t>();
      const std::string begin =
          "rank " + std::to_string(peer) + (chose ? " at " : ", which connected ");
      EXPECT_EQ(text.substr(0, begin.size()), begin);
      // The reason stands in brackets.
      EXPECT_EQ(chose, text.find(" (") != std::string::npos) << text;
    }
  }
}

}  // namespace
}  // namespace weir::test
