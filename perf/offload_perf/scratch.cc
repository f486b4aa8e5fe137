// SPDX-License-Identifier: Apache-2.0
#include "perf/offload_perf/scratch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace weir::perf {
namespace {

bool remove_all(const std::vector<std::string>& directories) {
  bool removed = true;
  for (const std::string& directory : directories) {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    removed = removed && !error;
  }
  return removed;
}

// In a session of its own, so that a signal to the program's whole group does not end it.
[[noreturn]] void run_janitor(int pipe, const std::vector<std::string>& directories) {
  setsid();
  const int nowhere = open("/dev/null", O_RDWR);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, standard);
  char byte;
  while (read(pipe, &byte, 1) < 0 && errno == EINTR) continue;
  _exit(remove_all(directories) ? 0 : 1);
}

}  // namespace

std::string Scratch::create(const std::vector<std::string>& parents) {
  // Until the janitor knows the directories, no signal may end the program.
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, &before);
  std::string problem;
  for (const std::string& parent : parents) {
    std::string path = parent + "/offload_perf.XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      problem = fmt::format("cannot make a directory in '{}': {}", parent, std::strerror(errno));
      break;
    }
    directories_.push_back(std::filesystem::absolute(path).string());
  }
  int ends[2] = {-1, -1};
  if (problem.empty() && pipe2(ends, O_CLOEXEC) == 0) {
    janitor_ = fork();
    if (janitor_ == 0) {
      close(ends[1]);
      run_janitor(ends[0], directories_);
    }
    close(ends[0]);
    pipe_ = ends[1];
  }
  if (janitor_ < 0) {
    if (problem.empty())
      problem = fmt::format("cannot start the process that cleans up: {}", std::strerror(errno));
    if (pipe_ >= 0) close(pipe_);
    pipe_ = -1;
    remove_all(directories_);
    directories_.clear();
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return problem;
}

std::string Scratch::remove() {
  if (janitor_ < 0) return {};
  close(pipe_);
  pipe_ = -1;
  int state = 0;
  while (waitpid(janitor_, &state, 0) < 0 && errno == EINTR) continue;
  janitor_ = -1;
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return {};
  std::string left;
  for (const std::string& directory : directories_) left += " " + directory;
  return "cannot remove all of" + left;
}

}  // namespace weir::perf
