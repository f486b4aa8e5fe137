// SPDX-License-Identifier: Apache-2.0
#include "core/base/process_generation.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace weir {

namespace {

// Used where no page can be had that the kernel wipes.
std::atomic<uint64_t> kept_word{0};
// Not wiped: a child counts on from it.
std::atomic<uint64_t> latest{0};

std::atomic<uint64_t>* writable_word() {
  return const_cast<std::atomic<uint64_t>*>(
      process_generation_detail::word.load(std::memory_order_acquire));
}

void begin_in_child() { writable_word()->store(latest.fetch_add(1) + 1); }

// Runs at the first call in the process from which all others descend.
void set_up() {
  // Two threads at once may register it twice: then a child's number grows by two.
  (void)pthread_atfork(nullptr, nullptr, begin_in_child);
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  const std::atomic<uint64_t>* expected = &kept_word;
  if (madvise(page, bytes, MADV_WIPEONFORK) != 0 ||
      !process_generation_detail::word.compare_exchange_strong(
          expected, static_cast<std::atomic<uint64_t>*>(page))) {
    munmap(page, bytes);
  }
}

}  // namespace

namespace process_generation_detail {

std::atomic<const std::atomic<uint64_t>*> word{&kept_word};

uint64_t find_out() {
  if (latest.load() == 0) set_up();
  std::atomic<uint64_t>* const here = writable_word();
  // Any thread may be first. A thread that comes second wastes a number.
  uint64_t known = 0;
  const uint64_t next = latest.fetch_add(1) + 1;
  return here->compare_exchange_strong(known, next) ? next : known;
}

}  // namespace process_generation_detail

MakingProcess::MakingProcess() : generation_(process_generation()), id_(getpid()) {}

std::string MakingProcess::origin(const char* what) const {
  return fmt::format("this {} was made by process {}, and this is its child {}", what, id_,
                     getpid());
}

std::string MakingProcess::refusal(const char* what) const {
  return origin(what) +
         ", which cannot use it: create one in the child, or call exec; destroying it in the child "
         "frees its memory and notifies no other rank";
}

}  // namespace weir
