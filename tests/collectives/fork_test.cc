// SPDX-License-Identifier: Apache-2.0
// Processes that fork while they have communicators. Whatever a child does with a handle of its
// parent's, however it ends, and whatever another thread of the parent was doing at that moment:
// the parents go on, with right sums, and the child can make communicators of its own.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <link.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "support/ranks.h"

extern char** environ;

namespace weir::test {
namespace {

// ---- Children -----------------------------------------------------------------------------------

enum class Way { kFork, kClone };  // kClone: no handler of fork runs

pid_t divide(Way way) {
  std::fflush(nullptr);
  return way == Way::kFork ? fork() : static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}

// What hangs is a failure, of this child alone.
void begin_child() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(240);
}

[[noreturn]] void end_child() {
  std::fflush(nullptr);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

int ending_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

template <typename ChildBody>
int run_child(Way way, ChildBody body) {
  const pid_t child = divide(way);
  if (child == 0) {
    begin_child();
    body();
    end_child();
  }
  return ending_of(child);
}

size_t descriptor_count() {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

// ---- Communicators ------------------------------------------------------------------------------

// Messages of all kinds of protocols, each with its right sum.
void go_on(weir_comm_t comm, int rank, int rank_count, int rounds = 40) {
  const auto sum = static_cast<float>(rank_count * (rank_count + 1) / 2);
  for (int i = 0; i < rounds; ++i) {
    const size_t count = i % 10 == 9 ? 300'000 : i % 10 == 8 ? 5'000 : 2;
    std::vector<float> data(count, static_cast<float>(rank + 1));
    ASSERT_EQ(
        weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, WEIR_SUM, nullptr),
        WEIR_OK)
        << weir_last_error(comm) << ", round " << i;
    ASSERT_EQ(data.front(), sum);
    ASSERT_EQ(data.back(), sum);
  }
}

// Ends when both ranks have nothing more to wait for.
template <typename IsDone>
void go_on_until(weir_comm_t comm, IsDone is_done) {
  for (int done = 0; done == 0;) {
    done = is_done() ? 1 : 0;
    ASSERT_EQ(weir_all_reduce(comm, &done, &done, 1, WEIR_INT32, WEIR_MIN, nullptr), WEIR_OK)
        << weir_last_error(comm);
  }
}

bool has_ended(pid_t child, int* ending) {
  if (*ending >= 0) return true;
  int status = 0;
  if (waitpid(child, &status, WNOHANG) != child) return false;
  *ending = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return true;
}

std::string transport_of_tests() {
  const char* name = getenv("WEIR_TRANSPORT");
  return name != nullptr ? name : "";
}

struct Case {
  const char* name;
  Environment environment;
};

std::vector<Case> cases() {
  if (!transport_of_tests().empty()) {
    return {{"as it is", {}},
            {"progress thread", {{"WEIR_PROGRESS_THREAD", "1"}}},
            {"failover", {{"WEIR_FAILOVER", "tcp"}}}};
  }
  return {{"shm", {}},
          {"shm, progress thread", {{"WEIR_PROGRESS_THREAD", "1"}}},
          {"tcp", {{"WEIR_TRANSPORT", "tcp"}}},
          {"tcp, progress thread", {{"WEIR_TRANSPORT", "tcp"}, {"WEIR_PROGRESS_THREAD", "1"}}},
          {"tcp, TLS", {{"WEIR_TRANSPORT", "tcp"}, {"WEIR_TLS", "all"}}},
          {"tcp, failover", {{"WEIR_TRANSPORT", "tcp"}, {"WEIR_FAILOVER", "tcp"}}},
          {"hooks", {{"WEIR_HOOKS", "check"}}}};
}

// ---- What a child may not do
// ----------------------------------------------------------------------

void expect_refusal(weir_result_t result, const char* what) {
  EXPECT_EQ(result, WEIR_ERROR_INVALID_USAGE) << what;
  const std::string text = weir_last_error(nullptr);
  const std::string expected = "this communicator was made by process " +
                               std::to_string(getppid()) + ", and this is its child " +
                               std::to_string(getpid());
  EXPECT_NE(text.find(expected), std::string::npos) << what << ": " << text;
}

void expect_that_all_is_refused(weir_comm_t comm) {
  std::vector<float> data(64, 78.0f);
  float* d = data.data();
  const size_t counts[] = {1, 1};
  const size_t places[] = {0, 1};
  const int nobody[] = {0};
  int number = 0;
  weir_result_t error = WEIR_OK;
  weir_comm_t made = nullptr;
  void* memory = nullptr;
  weir_window_t window = nullptr;
  weir_redop_t op = 0;
  weir_request_t request = nullptr;
  weir_start_times_t times = WEIR_START_TIMES_INIT;
  expect_refusal(weir_all_reduce(comm, d, d, 1, WEIR_FLOAT32, WEIR_SUM, nullptr), "all_reduce");
  expect_refusal(weir_all_reduce(comm, d, d, 1, WEIR_FLOAT32, WEIR_SUM, &request), "all_reduce");
  EXPECT_EQ(request, nullptr);
  expect_refusal(weir_reduce(comm, d, d, 1, WEIR_FLOAT32, WEIR_SUM, 0, nullptr), "reduce");
  expect_refusal(weir_broadcast(comm, d, d, 1, WEIR_FLOAT32, 0, nullptr), "broadcast");
  expect_refusal(weir_reduce_scatter(comm, d, d + 8, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
                 "reduce_scatter");
  expect_refusal(weir_reduce_scatter_v(comm, d, d + 8, counts, WEIR_FLOAT32, WEIR_SUM, nullptr),
                 "reduce_scatter_v");
  expect_refusal(weir_all_gather(comm, d, d + 8, 1, WEIR_FLOAT32, nullptr), "all_gather");
  expect_refusal(weir_all_gather_v(comm, d, d + 8, counts, places, WEIR_FLOAT32, nullptr),
                 "all_gather_v");
  expect_refusal(weir_all_to_all(comm, d, d + 8, 1, WEIR_FLOAT32, nullptr), "all_to_all");
  expect_refusal(
      weir_all_to_all_v(comm, d, counts, places, d + 8, counts, places, WEIR_FLOAT32, nullptr),
      "all_to_all_v");
  expect_refusal(weir_gather(comm, d, d + 8, 1, WEIR_FLOAT32, 0, nullptr), "gather");
  expect_refusal(weir_scatter(comm, d, d + 8, 1, WEIR_FLOAT32, 0, nullptr), "scatter");
  expect_refusal(weir_barrier(comm, nullptr), "barrier");
  expect_refusal(weir_send(comm, d, 1, WEIR_FLOAT32, 0, &request), "send");
  expect_refusal(weir_recv(comm, d, 1, WEIR_FLOAT32, 0, &request), "recv");
  expect_refusal(weir_comm_split(comm, 0, 0, nullptr, &made), "comm_split");
  expect_refusal(weir_comm_add_program(comm, "a", "", 0, 0), "comm_add_program");
  expect_refusal(weir_comm_shrink(comm, nobody, 1, nullptr, &made), "comm_shrink");
  expect_refusal(weir_comm_lost_ranks(comm, &number, 1, &number), "comm_lost_ranks");
  expect_refusal(weir_comm_rank(comm, &number), "comm_rank");
  expect_refusal(weir_comm_size(comm, &number), "comm_size");
  expect_refusal(weir_comm_start_times(comm, &times), "comm_start_times");
  expect_refusal(weir_comm_async_error(comm, &error), "comm_async_error");
  expect_refusal(weir_comm_set_timeout(comm, 1000), "comm_set_timeout");
  expect_refusal(weir_comm_set_stream(comm, nullptr), "comm_set_stream");
  expect_refusal(weir_mem_alloc(comm, 4096, &memory), "mem_alloc");
  expect_refusal(weir_mem_free(comm, d), "mem_free");
  expect_refusal(weir_register(comm, d, 64, &window), "register");
  expect_refusal(weir_redop_create_premul_sum(comm, d, WEIR_FLOAT32, &op), "redop_create");
  expect_refusal(weir_redop_destroy(comm, 16), "redop_destroy");
  expect_refusal(weir_comm_abort(comm), "comm_abort");
  EXPECT_NE(std::string(weir_last_error(comm)).find("comm_abort"), std::string::npos);
  EXPECT_EQ(made, nullptr);
}

void children_are_refused(Way way) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          SCOPED_TRACE(one.name);
          go_on(comm, rank, 2, 10);
          float incoming = 0;
          weir_request_t request = nullptr;
          ASSERT_EQ(weir_recv(comm, &incoming, 1, WEIR_FLOAT32, 1 - rank, &request), WEIR_OK);
          // The other rank waits in the same call meanwhile: what the child sends would be its sum.
          if (rank == 1) {
            EXPECT_EQ(run_child(way,
                                [&] {
                                  expect_that_all_is_refused(comm);
                                  int done = 0;
                                  weir_request_t copy = request;
                                  expect_refusal(weir_test(&copy, &done), "test");
                                  EXPECT_EQ(copy, nullptr);
                                  expect_refusal(weir_wait(&request), "wait");
                                  EXPECT_EQ(request, nullptr);
                                }),
                      0);
          }
          float value = static_cast<float>(rank + 1);
          ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
                    WEIR_OK)
              << weir_last_error(comm);
          EXPECT_EQ(value, 3.0f);
          const float mine = static_cast<float>(10 + rank);
          ASSERT_EQ(weir_send(comm, &mine, 1, WEIR_FLOAT32, 1 - rank, nullptr), WEIR_OK);
          ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
          EXPECT_EQ(incoming, static_cast<float>(11 - rank));
          go_on(comm, rank, 2);
        },
        one.environment);
  }
}

TEST(ForkedChild, NoCallOnItsParentsCommunicatorIsAccepted) { children_are_refused(Way::kFork); }

TEST(ClonedChild, NoCallOnItsParentsCommunicatorIsAccepted) { children_are_refused(Way::kClone); }

TEST(ForkedChild, AGroupThatWasOpenIsNotOpenInIt) {
  run_processes(2, [](int rank, weir_comm_t comm) {
    float value = static_cast<float>(rank + 1);
    ASSERT_EQ(weir_group_start(), WEIR_OK);
    ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, nullptr), WEIR_OK);
    EXPECT_EQ(run_child(Way::kFork,
                        [] {
                          EXPECT_EQ(weir_group_end(), WEIR_ERROR_INVALID_USAGE);
                          EXPECT_EQ(weir_group_start(), WEIR_OK);
                          EXPECT_EQ(weir_group_end(), WEIR_OK);
                        }),
              0);
    ASSERT_EQ(weir_group_end(), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(value, 3.0f);
  });
}

// ---- How a child ends
// -----------------------------------------------------------------------------

weir_comm_t inherited = nullptr;

void destroy_at_exit() {
  (void)weir_comm_abort(inherited);
  (void)weir_comm_destroy(inherited);
}

struct Ending {
  const char* name;
  void (*run)(weir_comm_t comm);
  int status;
};

const Ending kEndings[] = {
    {"destroys", [](weir_comm_t comm) { EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK); }, 0},
    {"aborts and destroys",
     [](weir_comm_t comm) {
       EXPECT_EQ(weir_comm_abort(comm), WEIR_ERROR_INVALID_USAGE);
       EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
     },
     0},
    {"exits", [](weir_comm_t) { exit(testing::Test::HasFailure() ? 1 : 0); }, 0},
    {"exits through a handler that aborts and destroys",
     [](weir_comm_t comm) {
       inherited = comm;
       atexit(destroy_at_exit);
       exit(testing::Test::HasFailure() ? 1 : 0);
     },
     0},
    {"crashes",
     [](weir_comm_t) {
       const rlimit none = {0, 0};
       setrlimit(RLIMIT_CORE, &none);
       signal(SIGABRT, SIG_DFL);
       abort();
     },
     128 + SIGABRT},
    {"is killed", [](weir_comm_t) { raise(SIGKILL); }, 128 + SIGKILL},
    {"calls exec", [](weir_comm_t) { execl("/bin/true", "true", static_cast<char*>(nullptr)); }, 0},
};

void children_end(Way way) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          void* memory = nullptr;
          ASSERT_EQ(weir_mem_alloc(comm, 1 << 20, &memory), WEIR_OK) << weir_last_error(comm);
          auto* shared = static_cast<float*>(memory);
          go_on(comm, rank, 2, 10);
          const size_t descriptors = descriptor_count();
          for (const Ending& ending : kEndings) {
            SCOPED_TRACE(std::string(one.name) + ": the child " + ending.name);
            EXPECT_EQ(run_child(way, [&] { ending.run(comm); }), ending.status);
            go_on(comm, rank, 2, 20);
            shared[0] = static_cast<float>(rank + 1);
            ASSERT_EQ(weir_all_reduce(comm, shared, shared, 1, WEIR_FLOAT32, WEIR_SUM, nullptr),
                      WEIR_OK)
                << weir_last_error(comm);
            EXPECT_EQ(shared[0], 3.0f);
          }
          // Fewer where the other rank has ended by now, and with it the connections to it.
          EXPECT_LE(descriptor_count(), descriptors);
          ASSERT_EQ(weir_mem_free(comm, memory), WEIR_OK);
        },
        one.environment);
  }
}

TEST(ForkedChild, EndsAsItLikesAndTheParentsGoOn) { children_end(Way::kFork); }

TEST(ClonedChild, EndsAsItLikesAndTheParentsGoOn) { children_end(Way::kClone); }

TEST(ForkedChild, ClosesItsCopiesOfConnections) {
  run_processes(2,
                [](int rank, weir_comm_t comm) {
                  EXPECT_EQ(run_child(Way::kFork,
                                      [&] {
                                        const size_t before = descriptor_count();
                                        EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
                                        EXPECT_LT(descriptor_count(), before);
                                      }),
                            0);
                  go_on(comm, rank, 2);
                },
                {{"WEIR_TRANSPORT", "tcp"}});
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ForkedChild, LeavesTheFilesOfItsParentAlone) {
  std::string folder = testing::TempDir() + "fork_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  for (const char* transport : {"shm", "tcp"}) {
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          go_on(comm, rank, 2, 10);
          std::filesystem::path record;
          for (const auto& entry : std::filesystem::directory_iterator(folder)) {
            if (entry.path().string().find(std::to_string(getpid())) != std::string::npos) {
              record = entry.path();
            }
          }
          ASSERT_FALSE(record.empty());
          const std::string before = content_of(record);
          for (const Ending& ending : kEndings) {
            SCOPED_TRACE(ending.name);
            EXPECT_EQ(run_child(Way::kFork, [&] { ending.run(comm); }), ending.status);
            ASSERT_TRUE(std::filesystem::exists(record));
            EXPECT_TRUE(content_of(record) == before);
          }
          go_on(comm, rank, 2);
        },
        {{"WEIR_TRANSPORT", transport}, {"WEIR_RECORDER_DIR", folder}});
  }
  std::filesystem::remove_all(folder);
}

// The hook that keeps a trace writes it when a communicator ends: not when that of the child does.
TEST(ForkedChild, WritesNoTraceOfItsParent) {
  std::string folder = testing::TempDir() + "fork_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  run_processes(
      2,
      [&](int rank, weir_comm_t comm) {
        EXPECT_EQ(run_child(Way::kFork, [&] { EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK); }), 0);
        EXPECT_FALSE(std::filesystem::exists(folder + "/" + std::to_string(rank)));
        go_on(comm, rank, 2);
      },
      {{"WEIR_HOOKS", "trace"}, {"WEIR_TRACE_FILE", folder + "/%r"}});
  EXPECT_TRUE(std::filesystem::exists(folder + "/1"));
  std::filesystem::remove_all(folder);
}

// ---- What a child may do
// --------------------------------------------------------------------------

// UCX does not survive a fork, and says so.
void choose_what_survives_a_fork() {
  if (transport_of_tests() == "ucx") setenv("WEIR_TRANSPORT", "shm", 1);
}

void use_own(int rank, const weir_unique_id_t& id) {
  choose_what_survives_a_fork();
  weir_comm_t own = nullptr;
  ASSERT_EQ(weir_comm_create(&own, 2, &id, rank, nullptr), WEIR_OK) << weir_last_error(nullptr);
  go_on(own, rank, 2);
  weir_comm_t half = nullptr;
  ASSERT_EQ(weir_comm_split(own, 0, -rank, nullptr, &half), WEIR_OK) << weir_last_error(own);
  go_on(half, rank, 2);
  std::vector<float> data(1000, 1.0f);
  weir_request_t request = nullptr;
  ASSERT_EQ(weir_all_reduce(half, data.data(), data.data(), data.size(), WEIR_FLOAT32, WEIR_SUM,
                            &request),
            WEIR_OK);
  ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(half);
  EXPECT_EQ(data.back(), 2.0f);
  EXPECT_EQ(weir_comm_destroy(half), WEIR_OK);
  EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
  // The same by a launcher's environment, with a job's name of its own.
  setenv("WEIR_RANK", std::to_string(rank).c_str(), 1);
  setenv("WEIR_SIZE", "2", 1);
  std::string job = "children";
  for (int i = 8; i < 16; ++i) job += "-" + std::to_string(id.bytes[i]);
  setenv("WEIR_ID", job.c_str(), 1);
  ASSERT_EQ(weir_comm_create_from_env(&own, nullptr), WEIR_OK) << weir_last_error(nullptr);
  go_on(own, rank, 2, 10);
  EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
}

void children_make_their_own(Way way) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    const weir_unique_id_t id = make_id();
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          SCOPED_TRACE(one.name);
          go_on(comm, rank, 2, 10);
          const pid_t child = divide(way);
          if (child == 0) {
            begin_child();
            use_own(rank, id);
            expect_refusal(weir_barrier(comm, nullptr), "barrier");
            EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
            end_child();
          }
          int ending = -1;
          go_on_until(comm, [&] { return has_ended(child, &ending); });
          EXPECT_EQ(ending, 0);
          go_on(comm, rank, 2);
        },
        one.environment);
  }
}

TEST(ForkedChild, MakesCommunicatorsOfItsOwnWhileTheParentsGoOn) {
  children_make_their_own(Way::kFork);
}

TEST(ClonedChild, MakesCommunicatorsOfItsOwnWhileTheParentsGoOn) {
  children_make_their_own(Way::kClone);
}

TEST(ForkedChild, ItsOwnCommunicatorIsNoneOfAGrandchild) {
  weir_unique_id_t id = make_id();
  weir_comm_t comm = nullptr;
  ASSERT_EQ(weir_comm_create(&comm, 1, &id, 0, nullptr), WEIR_OK) << weir_last_error(nullptr);
  EXPECT_EQ(run_child(Way::kFork,
                      [&] {
                        const weir_unique_id_t own_id = make_id();
                        weir_comm_t own = nullptr;
                        ASSERT_EQ(weir_comm_create(&own, 1, &own_id, 0, nullptr), WEIR_OK);
                        for (const Way way : {Way::kFork, Way::kClone}) {
                          EXPECT_EQ(run_child(way,
                                              [&] {
                                                expect_refusal(weir_barrier(own, nullptr), "own");
                                                EXPECT_EQ(weir_barrier(comm, nullptr),
                                                          WEIR_ERROR_INVALID_USAGE);
                                                EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
                                                EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
                                              }),
                                    0);
                        }
                        EXPECT_EQ(weir_barrier(own, nullptr), WEIR_OK) << weir_last_error(own);
                        EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
                      }),
            0);
  EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
  EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
}

// One that shares the parent's memory until it calls exec.
TEST(SpawnedChild, DisturbsNobody) {
  for (const Case& one : cases()) {
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          SCOPED_TRACE(one.name);
          for (int i = 0; i < 5; ++i) {
            char name[] = "true";
            char* const arguments[] = {name, nullptr};
            pid_t child = -1;
            ASSERT_EQ(posix_spawn(&child, "/bin/true", nullptr, nullptr, arguments, environ), 0);
            EXPECT_EQ(ending_of(child), 0);
            const pid_t twin = vfork();
            if (twin == 0) _exit(0);
            EXPECT_EQ(ending_of(twin), 0);
            go_on(comm, rank, 2, 10);
          }
        },
        one.environment);
  }
}

// The child's progress thread is its own: without it the other rank would wait for calls that do
// not come.
void children_have_progress_threads(Way way) {
  const weir_unique_id_t id = make_id();
  int word[2];
  ASSERT_EQ(pipe2(word, O_CLOEXEC), 0);
  run_processes(
      2,
      [&](int rank, weir_comm_t comm) {
        // The parent has one, and it has work.
        float value = 1.0f;
        weir_request_t pending = nullptr;
        ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_FLOAT32, WEIR_SUM, &pending),
                  WEIR_OK);
        EXPECT_EQ(run_child(way,
                            [&] {
                              choose_what_survives_a_fork();
                              weir_comm_t own = nullptr;
                              ASSERT_EQ(weir_comm_create(&own, 2, &id, rank, nullptr), WEIR_OK)
                                  << weir_last_error(nullptr);
                              std::vector<float> data(4'000'000, 1.0f);
                              weir_request_t request = nullptr;
                              ASSERT_EQ(weir_all_reduce(own, data.data(), data.data(), data.size(),
                                                        WEIR_FLOAT32, WEIR_SUM, &request),
                                        WEIR_OK);
                              char told = 1;
                              if (rank == 0) {
                                ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(own);
                                ASSERT_EQ(write(word[1], &told, 1), 1);
                              } else {
                                ASSERT_EQ(read(word[0], &told, 1), 1);
                                ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(own);
                              }
                              EXPECT_EQ(data.back(), 2.0f);
                              EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
                            }),
                  0);
        ASSERT_EQ(weir_wait(&pending), WEIR_OK) << weir_last_error(comm);
        EXPECT_EQ(value, 2.0f);
      },
      {{"WEIR_PROGRESS_THREAD", "1"}});
  close(word[0]);
  close(word[1]);
}

TEST(ForkedChild, HasAProgressThreadOfItsOwn) { children_have_progress_threads(Way::kFork); }

TEST(ClonedChild, HasAProgressThreadOfItsOwn) { children_have_progress_threads(Way::kClone); }

// ---- Other threads
// --------------------------------------------------------------------------------

int fork_count() {
  const char* text = getenv("WEIR_TEST_FORKS");
  return text != nullptr ? atoi(text) : 200;
}

// A communicator of two ranks, both of this process.
void pass_between_threads() {
  run_threads(2, [](int rank, weir_comm_t comm) { go_on(comm, rank, 2, 5); });
}

// One thread is in the middle of collectives, another makes and ends communicators all the time,
// which takes every lock there is: each child finds some of them held.
TEST(ForkedChild, TakesNoHarmOfWhatOtherThreadsWereAt) {
  for (const char* transport : {"shm", "tcp"}) {
    if (!transport_of_tests().empty() && transport_of_tests() != transport) continue;
    run_processes(
        2,
        [&](int rank, weir_comm_t comm) {
          std::atomic<bool> stop{false};
          std::thread collectives([&] { go_on_until(comm, [&] { return stop.load(); }); });
          std::thread makers([&] {
            while (!stop) {
              const weir_unique_id_t id = make_id();
              weir_comm_t own = nullptr;
              EXPECT_EQ(weir_comm_create(&own, 1, &id, 0, nullptr), WEIR_OK);
              EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
            }
          });
          for (int i = 0; i < fork_count() && !testing::Test::HasFailure(); ++i) {
            EXPECT_EQ(run_child(Way::kFork,
                                [&] {
                                  expect_refusal(weir_barrier(comm, nullptr), "barrier");
                                  if (i % 2 == 0) {
                                    EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
                                  }
                                  const weir_unique_id_t id = make_id();
                                  weir_comm_t own = nullptr;
                                  EXPECT_EQ(weir_comm_create(&own, 1, &id, 0, nullptr), WEIR_OK)
                                      << weir_last_error(nullptr);
                                  EXPECT_EQ(weir_barrier(own, nullptr), WEIR_OK);
                                  EXPECT_EQ(weir_comm_destroy(own), WEIR_OK);
                                  if (i % 20 == 0) pass_between_threads();
                                }),
                      0)
                << "fork " << i;
          }
          stop = true;
          collectives.join();
          makers.join();
          go_on(comm, rank, 2);
        },
        {{"WEIR_TRANSPORT", transport}});
  }
}

// Before a fork, but before Weir's handler that waits: handlers run in the opposite order.
int let_discovery_go_on = -1;
void before_fork() {
  const char word = 1;
  if (let_discovery_go_on < 0) return;
  EXPECT_EQ(write(let_discovery_go_on, &word, 1), 1);
  let_discovery_go_on = -1;
}

// hwloc, which discovers the machine, opens its plugins with a lock held: one of the test's waits
// there (fork_in_discovery.cc). In a process that knows the machine already there is nothing to
// try.
// `goes_on`: as soon as there is a fork; else when the child has ended.
void fork_in_discovery(bool goes_on) {
  if (getenv("HWLOC_PLUGINS_PATH") == nullptr) GTEST_SKIP() << "see fork_in_discovery_* of ctest";
  int begun[2];
  int ends[2];
  ASSERT_EQ(pipe2(begun, O_CLOEXEC), 0);
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const std::string pipes = std::to_string(begun[1]) + " " + std::to_string(ends[0]);
  setenv("WEIR_TEST_IN_DISCOVERY", pipes.c_str(), 1);
  std::thread maker([&] {
    run_threads(1, [](int, weir_comm_t comm) { EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK); });
    close(begun[1]);
  });
  char word = 0;
  const bool waits = read(begun[0], &word, 1) == 1;
  if (waits) {
    if (goes_on) {
      EXPECT_EQ(pthread_atfork(before_fork, nullptr, nullptr), 0);
      let_discovery_go_on = ends[1];
    }
    EXPECT_EQ(run_child(Way::kFork,
                        [goes_on] {
                          alarm(30);
                          unsetenv("WEIR_TEST_IN_DISCOVERY");
                          const std::string log =
                              testing::TempDir() + "fork_log_" + std::to_string(getpid());
                          setenv("WEIR_LOG_FILE", log.c_str(), 1);
                          pass_between_threads();
                          const bool is_without =
                              content_of(log).find("the topology of this machine is unknown") !=
                              std::string::npos;
                          EXPECT_EQ(is_without, !goes_on);
                          unlink(log.c_str());
                        }),
              0);
    if (!goes_on) {
      EXPECT_EQ(write(ends[1], &word, 1), 1);
    }
  }
  maker.join();
  close(begun[0]);
  close(ends[0]);
  close(ends[1]);
  if (!waits) GTEST_SKIP() << "hwloc opens no plugins, or knows the machine";
}

TEST(ForkWhileTheMachineIsDiscovered, WaitsForTheEndOfIt) { fork_in_discovery(true); }

TEST(ForkWhileTheMachineIsDiscovered, WaitsNotForEver) { fork_in_discovery(false); }

void pass_blocking_and_not(int rank, weir_comm_t comm) {
  go_on(comm, rank, 2, 20);
  int value = 1;
  weir_request_t request = nullptr;
  ASSERT_EQ(weir_all_reduce(comm, &value, &value, 1, WEIR_INT32, WEIR_SUM, &request), WEIR_OK);
  ASSERT_EQ(weir_wait(&request), WEIR_OK) << weir_last_error(comm);
  EXPECT_EQ(value, 2);
}

// The loader's list of what is loaded, which an exception, a profiler or dlopen() may be reading or
// changing in any thread. The C library does not let go of its lock in a child.
TEST(ForkedChild, NeedsNoLockOfTheLoaderThatAnotherThreadHeld) {
  for (const char* transport : {"shm", "tcp"}) {
    if (!transport_of_tests().empty() && transport_of_tests() != transport) continue;
    run_processes(1,
                  [](int, weir_comm_t comm) {
                    struct Hold {
                      std::atomic<bool> begun{false};
                      std::atomic<bool> ends{false};
                    } hold;
                    std::thread holder([&hold] {
                      const auto stay = [](dl_phdr_info*, size_t, void* data) {
                        Hold& it = *static_cast<Hold*>(data);
                        it.begun = true;
                        it.begun.notify_one();
                        it.ends.wait(false);
                        return 1;
                      };
                      dl_iterate_phdr(stay, &hold);
                    });
                    hold.begun.wait(false);
                    EXPECT_EQ(run_child(Way::kFork,
                                        [comm] {
                                          alarm(30);
                                          EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
                                          run_threads(2, pass_blocking_and_not);
                                        }),
                              0);
                    hold.ends = true;
                    hold.ends.notify_one();
                    holder.join();
                    EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
                  },
                  {{"WEIR_TRANSPORT", transport}});
  }
}

}  // namespace
}  // namespace weir::test
