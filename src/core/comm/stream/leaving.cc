// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/leaving.h"

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/per_process.h"

namespace weir::comm {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kExit{100};

std::atomic<bool> is_leaving{false};

// Of the handler of exit().
struct Leaving {
  std::mutex lock;
  bool registered = false;
  std::thread::id exits;  // the thread that runs exit handlers; none before the first of ours
};
Leaving& leaving_state() {
  static constinit PerProcess<Leaving> it;
  return it.get();
}

// A forked child has none of its parent's threads.
std::atomic<int>& reader_count() {
  static constinit PerProcess<std::atomic<int>> it;
  return it.get();
}

void leave_at_exit() {
  {
    Leaving& it = leaving_state();
    std::lock_guard lock(it.lock);
    it.registered = false;
    it.exits = std::this_thread::get_id();
    is_leaving = true;
  }
  const auto end = std::chrono::steady_clock::now() + kExit;
  while (reader_count() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

}  // namespace

void leave_before_cuda(const cuda::Driver& driver) {
  if (driver.is_stand_in) return;
  Leaving& it = leaving_state();
  std::lock_guard lock(it.lock);
  // An exit handler of the program that runs after ours, but before CUDA's, makes calls: the
  // threads serve again until it returns, since a handler registered now is run next.
  if (is_leaving && it.exits == std::this_thread::get_id()) is_leaving = false;
  if (!std::exchange(it.registered, true)) (void)std::atexit(leave_at_exit);
}

const std::atomic<bool>& leaving() { return is_leaving; }

void pinned_reader_begins() { ++reader_count(); }
void pinned_reader_ends() { --reader_count(); }

}  // namespace weir::comm
