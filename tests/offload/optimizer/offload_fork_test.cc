// SPDX-License-Identifier: Apache-2.0
// A process that forks while it has an optimizer: what a child does with the handle changes nothing
// for the parent, whose steps and store go on as if there had been no child.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "offload/optimizer/optimizer_support.h"
#include "weir/offload.h"

namespace weir::offload::test {
namespace {

#define ASSERT_WEIR_OK(call) ASSERT_EQ(call, WEIR_OK) << weir_last_error(nullptr)

constexpr uint64_t kCount = 200'000;

enum class Way { kFork, kClone };  // kClone: no handler of fork runs

template <typename ChildBody>
int run_child(Way way, ChildBody body) {
  std::fflush(nullptr);
  const pid_t child =
      way == Way::kFork ? fork() : static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(120);
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// An optimizer and what it computes; over drives where a directory is given.
struct Run {
  explicit Run(const std::string& place) : directory(place) {
    group.name = "w";
    group.element_count = kCount;
    config.chunk_bytes = 16384;
    directories[0] = directory.c_str();
    if (!directory.empty()) {
      config.directories = directories;
      config.directory_count = 1;
    }
  }

  void create() {
    ASSERT_WEIR_OK(weir_optimizer_create(&optimizer, &config, &group, 1));
    const std::vector<float> first(kCount, 0.5f);
    ASSERT_WEIR_OK(
        weir_optimizer_set_parameters(optimizer, 0, 0, kCount, WEIR_FLOAT32, first.data()));
  }
  void begin_step() {
    gradient =
        gradient_bytes({"w", kCount, 0, {}, {}, {}}, 0, 0, kCount, ++steps, DataType::kFloat16);
    ASSERT_WEIR_OK(weir_optimizer_gradient(optimizer, 0, 0, kCount, WEIR_FLOAT16, gradient.data()));
    ASSERT_WEIR_OK(weir_optimizer_step_start(optimizer, nullptr));
  }
  void end_step() { ASSERT_WEIR_OK(weir_optimizer_step_finish(optimizer, &report)); }
  std::vector<float> parameters() const {
    std::vector<float> values(kCount);
    EXPECT_EQ(weir_optimizer_get_parameters(optimizer, 0, 0, kCount, WEIR_FLOAT32, values.data()),
              WEIR_OK)
        << weir_last_error(nullptr);
    return values;
  }

  std::string directory;
  const char* directories[1] = {};
  weir_offload_config_t config = WEIR_OFFLOAD_CONFIG_INIT;
  weir_parameter_group_t group = WEIR_PARAMETER_GROUP_INIT;
  weir_step_report_t report = WEIR_STEP_REPORT_INIT;
  weir_optimizer_t optimizer = nullptr;
  std::vector<unsigned char> gradient;
  uint64_t steps = 0;
};

void expect_refusal(weir_result_t result, const char* what) {
  EXPECT_EQ(result, WEIR_ERROR_INVALID_USAGE) << what;
  const std::string text = weir_last_error(nullptr);
  const std::string expected =
      "this optimizer was made by process " + std::to_string(getppid()) + ", and this is its child";
  EXPECT_NE(text.find(expected), std::string::npos) << what << ": " << text;
}

void expect_that_all_is_refused(weir_optimizer_t it) {
  std::vector<float> values(8);
  uint64_t number = 0;
  double sum = 0;
  int finite = 0;
  weir_step_report_t report = WEIR_STEP_REPORT_INIT;
  const weir_hyper_t hyper = WEIR_HYPER_INIT;
  const char* const places[] = {"/nowhere"};
  float* v = values.data();
  expect_refusal(weir_optimizer_restore(it, places, 1, 1), "restore");
  expect_refusal(weir_optimizer_set_parameters(it, 0, 0, 8, WEIR_FLOAT32, v), "set_parameters");
  expect_refusal(weir_optimizer_get_parameters(it, 0, 0, 8, WEIR_FLOAT32, v), "get_parameters");
  expect_refusal(weir_optimizer_gradient(it, 0, 0, 8, WEIR_FLOAT32, v), "gradient");
  expect_refusal(weir_optimizer_accumulate(it, 0, 0, 8, WEIR_FLOAT32, v), "accumulate");
  expect_refusal(weir_optimizer_set_output(it, 0, WEIR_FLOAT32, v, 0), "set_output");
  expect_refusal(weir_optimizer_set_hyper(it, 0, &hyper), "set_hyper");
  expect_refusal(weir_optimizer_gradient_stats(it, &sum, &finite), "gradient_stats");
  expect_refusal(weir_optimizer_step(it, nullptr, &report), "step");
  expect_refusal(weir_optimizer_step_start(it, nullptr), "step_start");
  expect_refusal(weir_optimizer_wait(it, 0, 0, 8), "wait");
  expect_refusal(weir_optimizer_step_finish(it, &report), "step_finish");
  expect_refusal(weir_optimizer_accept(it), "accept");
  expect_refusal(weir_optimizer_undo(it), "undo");
  expect_refusal(weir_optimizer_commit(it), "commit");
  expect_refusal(weir_optimizer_committed_step(it, &number), "committed_step");
  expect_refusal(weir_optimizer_peers_committed(it, 1), "peers_committed");
  expect_refusal(weir_optimizer_roll_back(it, 1), "roll_back");
  expect_refusal(weir_optimizer_checkpoint(it, places, 1), "checkpoint");
  expect_refusal(weir_optimizer_memory(it, &number), "memory");
  EXPECT_EQ(std::string(weir_optimizer_describe(it)), "");
}

// Of this process, but for what the background scrub reads: it opens that at its own time.
size_t descriptor_count() {
  namespace fs = std::filesystem;
  size_t count = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const fs::path file = fs::read_symlink(entry.path(), gone);
    if (gone) continue;
    const int fd = std::stoi(entry.path().filename().string());
    const int flags = ::fcntl(fd, F_GETFL);
    const bool is_slot = file.filename().string().rfind("slot-", 0) == 0;
    count += is_slot && flags >= 0 && (flags & O_ACCMODE) == O_RDONLY ? 0u : 1u;
  }
  return count;
}

// A child that has its say before, within and after each of some steps; and the same steps without.
void children_change_nothing(bool on_drives) {
  ScratchDirectory scratch;
  Run alone("");
  alone.create();
  Run run(on_drives ? scratch / "store" : "");
  run.create();
  const size_t descriptors = descriptor_count();
  for (int step = 0; step < 3; ++step) {
    for (const Way way : {Way::kFork, Way::kClone}) {
      alone.begin_step();
      alone.end_step();
      run.begin_step();
      // With clone nobody sees to it that no other thread is in malloc.
      if (way == Way::kClone) run.end_step();
      EXPECT_EQ(run_child(way,
                          [&] {
                            expect_that_all_is_refused(run.optimizer);
                            EXPECT_EQ(weir_optimizer_destroy(run.optimizer), WEIR_OK);
                            exit(testing::Test::HasFailure() ? 1 : 0);
                          }),
                0);
      if (way == Way::kFork) run.end_step();
      EXPECT_EQ(
          run_child(way,
                    [&] {
                      const size_t before = descriptor_count();
                      EXPECT_EQ(weir_optimizer_destroy(run.optimizer), WEIR_OK);
                      if (on_drives) {
                        EXPECT_LT(descriptor_count(), before);
                      }
                      Run own(on_drives ? scratch / ("of_child_" + std::to_string(getpid())) : "");
                      own.create();
                      own.begin_step();
                      own.end_step();
                      EXPECT_EQ(weir_optimizer_destroy(own.optimizer), WEIR_OK);
                    }),
          0);
      EXPECT_EQ(run_child(way, [] { exit(0); }), 0);
    }
  }
  EXPECT_EQ(descriptor_count(), descriptors);
  const std::vector<float> expected = alone.parameters();
  EXPECT_TRUE(same_bits({run.parameters()}, {expected}));
  if (on_drives) {
    // No child has let go of the lock.
    weir_optimizer_t second = nullptr;
    EXPECT_EQ(weir_optimizer_open(&second, &run.config, &run.group, 1), WEIR_ERROR_REFUSED)
        << weir_last_error(nullptr);
    ASSERT_WEIR_OK(weir_optimizer_destroy(run.optimizer));
    ASSERT_WEIR_OK(weir_optimizer_open(&run.optimizer, &run.config, &run.group, 1));
    EXPECT_TRUE(same_bits({run.parameters()}, {expected}));
    uint64_t committed = 0;
    ASSERT_WEIR_OK(weir_optimizer_committed_step(run.optimizer, &committed));
    EXPECT_EQ(committed, run.steps);
  }
  ASSERT_WEIR_OK(weir_optimizer_destroy(run.optimizer));
  ASSERT_WEIR_OK(weir_optimizer_destroy(alone.optimizer));
}

TEST(OffloadFork, ChildrenChangeNothingOfAStateInMemory) { children_change_nothing(false); }

TEST(OffloadFork, ChildrenChangeNothingOfAStateOnDrives) { children_change_nothing(true); }

}  // namespace
}  // namespace weir::offload::test
