// SPDX-License-Identifier: Apache-2.0
#include "core/base/bounded_call.h"

#include <dlfcn.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "core/base/clock.h"

namespace weir {
namespace {

struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

// Blocks signals, which are for the threads of the program; a new thread inherits its maker's mask.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// The code that an abandoned thread runs must not be unmapped.
void keep_this_library_loaded() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&keep_this_library_loaded), &info) != 0 &&
      info.dli_fname != nullptr) {
    (void)dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

}  // namespace

bool run_bounded(std::function<void()> work, uint64_t deadline_ns) {
  auto progress = std::make_shared<Progress>();
  std::thread thread;
  {
    const SignalsBlocked blocked;
    thread = std::thread([progress, work = std::move(work)] {
      work();
      std::lock_guard lock(progress->mutex);
      progress->done = true;
      progress->changed.notify_all();
    });
  }
  std::unique_lock lock(progress->mutex);
  while (!progress->done) {
    const uint64_t now = now_ns();
    if (now >= deadline_ns) break;
    progress->changed.wait_for(
        lock, std::chrono::nanoseconds(std::min<uint64_t>(deadline_ns - now, 1'000'000'000)));
  }
  const bool done = progress->done;
  lock.unlock();
  if (done) {
    thread.join();
  } else {
    keep_this_library_loaded();
    thread.detach();
  }
  return done;
}

}  // namespace weir
