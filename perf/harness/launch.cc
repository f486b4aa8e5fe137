// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/launch.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace weir::perf {
namespace {

// Long enough for surviving ranks to print which rank they lost.
constexpr auto kGrace = std::chrono::seconds(10);

class ProcessGroup {
 public:
  ProcessGroup(int count, const char* program)
      : program_(program), pids_(static_cast<size_t>(count), 0) {
    sigemptyset(&watched_);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&watched_, signal);
    // Blocked before the first fork, so that the end of no child is missed.
    sigprocmask(SIG_BLOCK, &watched_, &before_);
  }
  ~ProcessGroup() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // False if the system has no more processes.
  bool start(const std::function<int(int)>& body) {
    const pid_t parent = getpid();
    for (size_t i = 0; i < pids_.size(); ++i) {
      const pid_t pid = fork();
      if (pid < 0) {
        fmt::print(stderr, "{}: cannot start rank process {}: {}\n", program_, i,
                   std::strerror(errno));
        return false;
      }
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(1);  // the parent ended before the line above
        sigprocmask(SIG_SETMASK, &before_, nullptr);
        std::exit(body(static_cast<int>(i)));
      }
      pids_[i] = pid;
    }
    return true;
  }

  int wait() {
    while (!reap()) {
      if (status_ != 0 && !killed_ && std::chrono::steady_clock::now() > kill_time_) kill_all();
      const timespec pause{0, 200'000'000};
      const int signal = sigtimedwait(&watched_, nullptr, &pause);
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
        if (status_ == 0) status_ = 128 + signal;
        kill_all();
      }
    }
    return status_;
  }

  void kill_all() {
    killed_ = true;
    for (const pid_t pid : pids_) {
      if (pid > 0) kill(pid, SIGKILL);
    }
  }

 private:
  // True when no child is left.
  bool reap() {
    bool all = true;
    for (size_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] <= 0) continue;
      int state = 0;
      const pid_t done = waitpid(pids_[i], &state, WNOHANG);
      if (done == 0) {
        all = false;
        continue;
      }
      pids_[i] = 0;
      if (done > 0) note_end(i, state);
    }
    return all;
  }

  void note_end(size_t index, int state) {
    int status = 0;
    if (WIFEXITED(state)) {
      status = WEXITSTATUS(state);
    } else if (WIFSIGNALED(state)) {
      status = 128 + WTERMSIG(state);
      if (!killed_) {
        fmt::print(stderr, "{}: rank process {} was ended by signal {} ({})\n", program_, index,
                   WTERMSIG(state), strsignal(WTERMSIG(state)));
      }
    }
    if (status == 0 || status_ != 0) return;
    status_ = status;
    kill_time_ = std::chrono::steady_clock::now() + kGrace;
  }

  const char* program_;
  std::vector<pid_t> pids_;
  sigset_t watched_{};
  sigset_t before_{};
  int status_ = 0;
  bool killed_ = false;
  std::chrono::steady_clock::time_point kill_time_;
};

}  // namespace

int run_processes(int process_count, const char* program, const std::function<int(int)>& body) {
  std::fflush(nullptr);  // or every child prints the buffered output again
  ProcessGroup group(process_count, program);
  const bool started = group.start(body);
  if (!started) group.kill_all();
  const int status = group.wait();
  return started ? status : 3;
}

int run_threads(int thread_count, const std::function<int(int)>& body) {
  if (thread_count == 1) return body(0);
  std::vector<int> status(static_cast<size_t>(thread_count), 0);
  std::vector<std::thread> threads;
  threads.reserve(status.size());
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&status, &body, i] { status[static_cast<size_t>(i)] = body(i); });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(status.begin(), status.end());
}

const char* launcher_in_environment() {
  const auto has = [](const char* name) { return std::getenv(name) != nullptr; };
  if (has("WEIR_RANK") || has("WEIR_SIZE")) return "WEIR_RANK";
  if (has("RANK") && has("WORLD_SIZE")) return "torchrun";
  if (has("OMPI_COMM_WORLD_RANK")) return "Open MPI";
  if (has("PMI_RANK") || has("PMI_SIZE")) return "MPICH (PMI)";
  if (has("SLURM_PROCID") && has("SLURM_STEP_ID")) return "Slurm";
  return nullptr;
}

}  // namespace weir::perf
