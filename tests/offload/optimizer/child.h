// SPDX-License-Identifier: Apache-2.0
// What a test has to try in a process of its own: limits, rights and cores that are given up do not
// come back.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace weir::offload::test {

struct Child {
  pid_t pid = -1;
  int end = -1;  // of a pipe: what it says
};

// `body` in a fork of this process, which has one thread. What it returns is what it says.
inline Child start_child(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return {};
  const pid_t pid = ::fork();
  if (pid == 0) {
    const std::string text = body();
    const ssize_t sent = ::write(ends[1], text.data(), text.size());
    ::_exit(sent == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  return {pid, ends[0]};
}

inline std::string what_it_says(const Child& child) {
  if (child.pid < 0) return "no child";
  std::string text;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(child.end, part, sizeof part)) > 0;)
    text.append(part, static_cast<size_t>(got));
  ::close(child.end);
  int status = 0;
  ::waitpid(child.pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : text + " [the child failed]";
}

}  // namespace weir::offload::test
