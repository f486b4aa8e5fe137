// SPDX-License-Identifier: Apache-2.0
#include "trace/job.h"

namespace weir::test {

Job::Job(int n, const Body& body, const Environment& environment) {
  const weir_unique_id_t id = make_id();
  std::fflush(nullptr);
  for (int rank = 0; rank < n; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      setenv("WEIR_RECORDER_DIR", folder_.path().c_str(), 1);
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
      config.timeout_ms = 120'000;
      run_rank(n, rank, id, body, config);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    processes_.push_back(process);
  }
}

Job::~Job() {
  for (const pid_t process : processes_) kill(process, SIGKILL);
  join();
}

void Job::signal(int rank, int number) const { ASSERT_EQ(kill(process(rank), number), 0); }

void Job::join() {
  for (const pid_t process : processes_) waitpid(process, nullptr, 0);
  processes_.clear();
}

weir_result_t all_reduce(weir_comm_t comm, size_t count) {
  std::vector<float> data(count, 1.0f);
  return weir_all_reduce(comm, data.data(), data.data(), count, WEIR_FLOAT32, WEIR_SUM, nullptr);
}

void hang() {
  for (;;) pause();
}

}  // namespace weir::test
