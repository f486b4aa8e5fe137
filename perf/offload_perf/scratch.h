// SPDX-License-Identifier: Apache-2.0
// Directories that are removed when the program ends, however it ends: a child process waits for
// that and removes them. One object per process, made while there is one thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace weir::perf {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { (void)remove(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Makes a new directory in each of `parents`. Returns "", or the error; then nothing is left.
  std::string create(const std::vector<std::string>& parents);
  // In the order of the parents.
  const std::vector<std::string>& directories() const { return directories_; }
  // Removes them now and waits for it. Returns "", or what is left.
  std::string remove();

 private:
  std::vector<std::string> directories_;
  pid_t janitor_ = -1;
  int pipe_ = -1;  // the janitor starts when it is closed
};

}  // namespace weir::perf
