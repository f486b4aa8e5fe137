// SPDX-License-Identifier: Apache-2.0
#include "nccl/process.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace weir::nccl {

ProcessNumber this_process() {
  // Threads may ask while the process ends.
  static std::mutex* const lock = new std::mutex();
  static pid_t process = 0;
  static ProcessNumber known;
  std::lock_guard guard(*lock);
  if (process != getpid()) {
    if (getrandom(known.data(), known.size(), 0) != static_cast<ssize_t>(known.size())) {
      throw std::runtime_error("no random number for this process");
    }
    process = getpid();
  }
  return known;
}

bool direct_allowed() {
  const char* text = std::getenv("NCCL_P2P_DISABLE");
  return text == nullptr || *text == '\0' || std::strcmp(text, "0") == 0;
}

}  // namespace weir::nccl
