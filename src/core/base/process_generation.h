// SPDX-License-Identifier: Apache-2.0
// Identifies this process by a load and a comparison. An object of a process (a communicator, an
// optimizer, a thread, a file) keeps the generation in which it was made; a child made by fork() or
// clone() has another generation, so it can tell that an inherited object is its parent's.
//
// A handler of fork() increments the generation. For clone(), which does not run it, the number
// also lies in a page that the kernel wipes in a child; where the kernel cannot (before Linux 4.14)
// only fork() is noticed. A child that shares its parent's memory (vfork(), posix_spawn()) is not
// distinguished from it. Thread-safe; nothing here waits.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace weir {

namespace process_generation_detail {
// 0: not yet determined in this process.
extern std::atomic<const std::atomic<uint64_t>*> word;
uint64_t find_out();
}  // namespace process_generation_detail

// For comparison with an earlier result of process_generation(): equal in the same process; in
// another process it differs or is 0.
inline uint64_t process_generation_if_known() {
  return process_generation_detail::word.load(std::memory_order_acquire)
      ->load(std::memory_order_relaxed);
}

// Never 0, and larger than in every ancestor of this process.
inline uint64_t process_generation() {
  const uint64_t known = process_generation_if_known();
  return known != 0 ? known : process_generation_detail::find_out();
}

// The process that made something, kept with it.
class MakingProcess {
 public:
  MakingProcess();

  bool is_this() const { return generation_ == process_generation_if_known(); }
  // "this memory was made by process 12, and this is its child 34"
  std::string origin(const char* what) const;
  // The same, for an object that destroy frees: "..., which cannot use it: make one here, ..."
  std::string refusal(const char* what) const;

 private:
  uint64_t generation_;
  pid_t id_;
};

}  // namespace weir
