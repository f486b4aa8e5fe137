// SPDX-License-Identifier: Apache-2.0
#include "weir_info/run_program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <map>

extern char** environ;

namespace weir::info {
namespace {

constexpr size_t kOutputBytesMax = size_t{1} << 20;

std::vector<std::string> joined_environment(
    const std::vector<std::pair<std::string, std::string>>& added) {
  std::map<std::string, std::string> values;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string text = *one;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) values[text.substr(0, equals)] = text.substr(equals + 1);
  }
  for (const auto& [name, value] : added) values[name] = value;
  std::vector<std::string> words;
  for (const auto& [name, value] : values) words.push_back(fmt::format("{}={}", name, value));
  return words;
}

std::vector<char*> pointers_to(std::vector<std::string>* words) {
  std::vector<char*> pointers;
  for (std::string& word : *words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

struct Pipe {
  int ends[2] = {-1, -1};
  ~Pipe() {
    for (int& end : ends) shut(&end);
  }
  static void shut(int* end) {
    if (*end >= 0) close(*end);
    *end = -1;
  }
};

// False: the time is over, or the output is too long.
bool read_all(Pipe (&pipes)[2], Output* output, int timeout_ms) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  std::string* texts[] = {&output->out, &output->err};
  while (pipes[0].ends[0] >= 0 || pipes[1].ends[0] >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waits[2] = {{pipes[0].ends[0], POLLIN, 0}, {pipes[1].ends[0], POLLIN, 0}};
    if (poll(waits, 2, static_cast<int>(left.count())) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    for (int i = 0; i < 2; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = read(waits[i].fd, buffer, sizeof buffer);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        Pipe::shut(&pipes[i].ends[0]);
        continue;
      }
      texts[i]->append(buffer, static_cast<size_t>(count));
      if (texts[i]->size() > kOutputBytesMax) return false;
    }
  }
  return true;
}

// Collects the child's output and exit status; false: it was killed, since it took too long or
// wrote too much.
bool read_to_end(pid_t child, Pipe (&pipes)[2], Output* output, int* status, int timeout_ms) {
  const bool done = read_all(pipes, output, timeout_ms);
  if (!done) kill(child, SIGKILL);
  while (waitpid(child, status, 0) < 0 && errno == EINTR) {
  }
  return done;
}

}  // namespace

Result<Output> run_program(const std::vector<std::string>& arguments,
                           const std::vector<std::pair<std::string, std::string>>& environment,
                           int timeout_ms) {
  std::vector<std::string> argument_words = arguments;
  std::vector<std::string> environment_words = joined_environment(environment);
  Pipe pipes[2];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  for (int i = 0; i < 2; ++i) {
    if (pipe2(pipes[i].ends, O_CLOEXEC) != 0) {
      posix_spawn_file_actions_destroy(&actions);
      return system_error("pipe");
    }
    posix_spawn_file_actions_adddup2(&actions, pipes[i].ends[1], i + 1);
  }
  pid_t child = -1;
  const int error =
      posix_spawn(&child, arguments[0].c_str(), &actions, nullptr,
                  pointers_to(&argument_words).data(), pointers_to(&environment_words).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return system_error("start " + arguments[0], error);
  for (Pipe& pipe : pipes) Pipe::shut(&pipe.ends[1]);

  Output output;
  int status = 0;
  const bool done = read_to_end(child, pipes, &output, &status, timeout_ms);
  if (!done) {
    return Status(Code::kTimeout, arguments[0] + " did not end in " + std::to_string(timeout_ms) +
                                      " ms, or printed too much");
  }
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

Result<std::string> answer_of_fork(const std::function<std::string()>& work, int timeout_ms) {
  Pipe pipes[2];  // the second one stays closed
  if (pipe2(pipes[0].ends, O_CLOEXEC) != 0) return system_error("pipe");
  const pid_t child = fork();
  if (child < 0) return system_error("fork");
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    const std::string answer = work();
    size_t done = 0;
    while (done < answer.size()) {
      const ssize_t count = write(pipes[0].ends[1], answer.data() + done, answer.size() - done);
      if (count <= 0 && errno != EINTR) break;
      if (count > 0) done += static_cast<size_t>(count);
    }
    _exit(done == answer.size() ? 0 : 1);
  }
  Pipe::shut(&pipes[0].ends[1]);
  Output output;
  int status = 0;
  const bool done = read_to_end(child, pipes, &output, &status, timeout_ms);
  if (!done) {
    return Status(Code::kTimeout, "it did not end in " + std::to_string(timeout_ms) + " ms");
  }
  if (WIFSIGNALED(status)) {
    return Status(Code::kSystem, "it was ended by signal " + std::to_string(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) != 0) return Status(Code::kSystem, "it ended without an answer");
  return output.out;
}

}  // namespace weir::info
