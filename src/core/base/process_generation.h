// SPDX-License-Identifier: Apache-2.0
// Which process this is, told by a load and a comparison. What a process owns (a communicator, an
// optimizer, a thread, a file) keeps the generation that it was made in; in a child made by fork()
// or clone() the generation is another, so the child can tell that what it has inherited is its
// parent's.
//
// A handler of fork() counts the generation up. The number also lies in a page that the kernel
// wipes in a child, for clone() without fork's handlers; where the kernel cannot (before Linux
// 4.14) fork() alone is noticed. A child that shares its parent's memory (vfork(), posix_spawn())
// is not told apart from it. Thread-safe; nothing here waits.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace weir {

namespace process_generation_detail {
// 0: nobody has asked in this process.
extern std::atomic<const std::atomic<uint64_t>*> word;
uint64_t find_out();
}  // namespace process_generation_detail

// For comparison with what process_generation() gave: equal, or another or no number.
inline uint64_t process_generation_if_known() {
  return process_generation_detail::word.load(std::memory_order_acquire)
      ->load(std::memory_order_relaxed);
}

// Never 0, and larger than in every process that this one descends from.
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
  // The same, for what destroy frees: "..., which cannot use it: make one here, ..."
  std::string refusal(const char* what) const;

 private:
  uint64_t generation_;
  pid_t id_;
};

}  // namespace weir
