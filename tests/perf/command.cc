// SPDX-License-Identifier: Apache-2.0
#include "perf/command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace weir::test {
namespace {

constexpr const char* kLauncherPrefixes[] = {
    "WEIR_RANK=", "WEIR_SIZE=", "RANK=", "WORLD_SIZE=", "OMPI_", "PMI_", "SLURM_", "PMIX_"};

bool is_launcher_variable(const char* entry) {
  for (const char* prefix : kLauncherPrefixes) {
    if (std::strncmp(entry, prefix, std::strlen(prefix)) == 0) return true;
  }
  return false;
}

// A file without a name that stays readable through its descriptor.
int scratch_file() {
  char name[] = "/tmp/weir-test-XXXXXX";
  const int descriptor = mkstemp(name);
  if (descriptor >= 0) unlink(name);
  return descriptor;
}

std::string content_of(int descriptor) {
  std::string text;
  char block[4096];
  lseek(descriptor, 0, SEEK_SET);
  for (ssize_t n = 0; (n = read(descriptor, block, sizeof(block))) > 0;) {
    text.append(block, static_cast<size_t>(n));
  }
  close(descriptor);
  return text;
}

}  // namespace

CommandResult run_command(const std::string& program, const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::vector<char*> variables;
  for (const std::string& entry : environment) {
    variables.push_back(const_cast<char*>(entry.c_str()));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_launcher_variable(*entry)) variables.push_back(*entry);
  }
  variables.push_back(nullptr);

  const int out = scratch_file();
  const int err = scratch_file();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err, STDERR_FILENO);
  CommandResult result;
  pid_t pid = 0;
  if (posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), variables.data()) == 0) {
    int state = 0;
    waitpid(pid, &state, 0);
    result.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  }
  posix_spawn_file_actions_destroy(&actions);
  result.out = content_of(out);
  result.err = content_of(err);
  return result;
}

CommandResult run_tool(const std::string& tool, const std::vector<std::string>& arguments,
                       const std::vector<std::string>& environment) {
  return run_command(std::string(WEIR_PERF_FOLDER) + "/" + tool, arguments, environment);
}

}  // namespace weir::test
