// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/proxy.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "core/base/per_process.h"
#include "nccl/background.h"
#include "nccl/direct/reduce_kernels.h"
#include "nccl/stream/pause.h"
#include "nccl/stream/runner.h"

namespace weir::nccl {

namespace {

using std::chrono::milliseconds;

constexpr size_t kFlightsMax = 16384;
// How long a thread without work waits for more.
constexpr milliseconds kLinger{20};
// Between two looks at what may end a wait without a word.
constexpr milliseconds kLook{10};
constexpr milliseconds kExit{100};

// Threads that look at pinned memory must have stopped when CUDA takes it away at exit.
std::atomic<bool> leaving{false};

// Threads that serve; a forked child has none of its parent's.
std::atomic<int>& serving_count() {
  static constinit PerProcess<std::atomic<int>> it;
  return it.get();
}

void leave_at_exit() {
  leaving = true;
  const auto end = std::chrono::steady_clock::now() + kExit;
  while (serving_count() > 0 && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void prepare_exit() {
  // After CUDA has been called, and so before its own exit handlers.
  static const int once = std::atexit(leave_at_exit);
  (void)once;
}

}  // namespace

Outcome Proxy::queue(const cuda::Driver& driver, const char* function,
                     std::shared_ptr<DeviceQueue>* queue) {
  cuda::Context context = nullptr;
  (void)driver.ctx_get_current(&context);
  for (const auto& known : queues_) {
    if (known->context() == context) {
      *queue = known;
      return {};
    }
  }
  // Now, since a stream that waits for this call may hold up the load.
  std::string ignored;
  (void)reduce_kernels(driver, &ignored);
  Outcome outcome = DeviceQueue::make(driver, function, queue);
  if (outcome.ok()) queues_.push_back(*queue);
  return outcome;
}

void Proxy::enqueue_begins() {
  prepare_exit();
  std::unique_lock lock(lock_);
  while (flights_.size() >= kFlightsMax && !leaving) changed_.wait_for(lock, kLook);
  if (!serving_) {
    run_in_background([self = shared_from_this()] { self->serve(); });
    serving_ = true;
    ++serving_count();
  }
  ++enqueueing_;
}

void Proxy::add(std::shared_ptr<Flight> flight) {
  std::lock_guard lock(lock_);
  flights_.push_back(std::move(flight));
  changed_.notify_all();
}

void Proxy::enqueue_ends(const std::shared_ptr<Flight>& flight, size_t rings,
                         const std::shared_ptr<Recording>& recording) {
  std::lock_guard lock(lock_);
  --enqueueing_;
  if (flight != nullptr && rings < flight->rings) flight->rings = rings;
  if (flight != nullptr && recording == nullptr && rings == 0) {
    std::erase(flights_, flight);  // it has not begun, nor will it
  } else if (flight != nullptr && recording != nullptr && rings > 0) {
    auto& parts = recording->parts_;
    if (parts.empty() || parts.back().staging != flight->staging) {
      parts.emplace_back().staging = flight->staging;
    }
    parts.back().flights.push_back(flight);
    if (std::find(recordings_.begin(), recordings_.end(), recording) == recordings_.end()) {
      recordings_.push_back(recording);
    }
  }
  changed_.notify_all();
}

std::shared_ptr<Recording> Proxy::find_recording(uint64_t capture) {
  std::lock_guard lock(lock_);
  for (const auto& recording : recordings_) {
    if (recording->capture == capture && !recording->released) return recording;
  }
  return nullptr;
}

void Proxy::release(Recording& recording) {
  std::lock_guard lock(lock_);
  recording.released = true;
  changed_.notify_all();
}

bool Proxy::idle() {
  std::lock_guard lock(lock_);
  return flights_.empty();
}

void Proxy::wait_until_idle(const Comm& comm) {
  std::unique_lock lock(lock_);
  while (!flights_.empty() && !comm.broken() && !leaving) changed_.wait_for(lock, kLook);
}

Proxy::Rung Proxy::find_rung() {
  if (!flights_.empty()) {
    Flight& first = *flights_.front();
    if (first.door().rung() == first.number) return {&first, nullptr};
  }
  for (const auto& recording : recordings_) {
    if (recording->released) continue;
    for (const auto& part : recording->parts_) {
      const uint32_t number = part.staging->mailboxes[0].rung();
      if (number > 0 && number <= part.flights.size()) {
        return {part.flights[number - 1].get(), recording};
      }
    }
  }
  return {};
}

void Proxy::serve() noexcept {
  Pause pause;
  std::unique_lock lock(lock_);
  while (!leaving) {
    // What goes takes its communicator along, perhaps: not with the lock.
    std::vector<std::shared_ptr<Recording>> gone;
    for (size_t i = 0; i < recordings_.size();) {
      if (recordings_[i]->released) {
        gone.push_back(std::move(recordings_[i]));
        recordings_.erase(recordings_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    if (!gone.empty()) {
      lock.unlock();
      gone.clear();
      lock.lock();
    }
    const Rung rung = find_rung();
    if (rung.flight != nullptr) {
      lock.unlock();
      run(*rung.flight, leaving);
      std::shared_ptr<Flight> ended;
      lock.lock();
      if (rung.recording == nullptr) {
        ended = std::move(flights_.front());
        flights_.pop_front();
        changed_.notify_all();
      }
      lock.unlock();
      ended.reset();
      pause.reset();
      lock.lock();
      continue;
    }
    if (!has_work()) {
      changed_.wait_for(lock, kLinger, [&] { return has_work() || leaving; });
      if (!has_work()) break;
      pause.reset();
      continue;
    }
    pause.look();
    if (const auto nap = pause.nap(); nap.count() == 0) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else {
      changed_.wait_for(lock, nap);
    }
  }
  serving_ = false;
  --serving_count();
}

}  // namespace weir::nccl
