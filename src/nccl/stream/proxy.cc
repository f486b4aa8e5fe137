// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/base/per_process.h"
#include "nccl/base/background.h"
#include "nccl/stream/pause.h"
#include "nccl/stream/runner.h"

namespace weir::nccl {

namespace {

using std::chrono::milliseconds;

constexpr size_t kTasksMax = 16384;
// How long a thread without work waits for more.
constexpr milliseconds kLinger{20};
// Between two checks of conditions that nothing signals.
constexpr milliseconds kLook{10};
constexpr milliseconds kExit{100};

// Threads that read pinned memory must have stopped when a driver frees it at exit. Weir's stand-in
// frees nothing, so that with it they go on until the process is gone.
std::atomic<bool> leaving{false};

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

// The number of proxy threads; a forked child has none of its parent's.
std::atomic<int>& serving_count() {
  static constinit PerProcess<std::atomic<int>> it;
  return it.get();
}

void leave_at_exit() {
  {
    Leaving& it = leaving_state();
    std::lock_guard lock(it.lock);
    it.registered = false;
    it.exits = std::this_thread::get_id();
    leaving = true;
  }
  const auto end = std::chrono::steady_clock::now() + kExit;
  while (serving_count() > 0 && std::chrono::steady_clock::now() < end) {
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
  if (leaving && it.exits == std::this_thread::get_id()) leaving = false;
  if (!std::exchange(it.registered, true)) (void)std::atexit(leave_at_exit);
}

void Proxy::enqueue_begins(const cuda::Driver& driver) {
  leave_before_cuda(driver);
  std::unique_lock lock(lock_);
  while (tasks_.size() >= kTasksMax && !leaving) changed_.wait_for(lock, kLook);
  if (!serving_) {
    run_in_background([self = shared_from_this()] { self->serve(); });
    serving_ = true;
    ++serving_count();
  }
  ++enqueueing_;
}

void Proxy::add(std::shared_ptr<ProxyTask> task) {
  std::lock_guard lock(lock_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void Proxy::enqueue_ends(const std::shared_ptr<ProxyTask>& task, size_t rings,
                         const std::shared_ptr<GraphTasks>& graph_tasks) {
  std::lock_guard lock(lock_);
  --enqueueing_;
  if (task != nullptr && rings < task->rings) task->rings = rings;
  if (task != nullptr && graph_tasks == nullptr && rings == 0) {
    std::erase(tasks_, task);  // it has not begun and never will
  } else if (task != nullptr && graph_tasks != nullptr && rings > 0) {
    auto& parts = graph_tasks->parts_;
    if (parts.empty() || parts.back().staging != task->staging) {
      parts.emplace_back().staging = task->staging;
    }
    parts.back().tasks.push_back(task);
    keep(graph_tasks);
  }
  changed_.notify_all();
}

void Proxy::keep(const std::shared_ptr<GraphTasks>& graph_tasks) {
  if (std::find(graph_tasks_.begin(), graph_tasks_.end(), graph_tasks) == graph_tasks_.end()) {
    graph_tasks_.push_back(graph_tasks);
  }
}

void Proxy::watch(std::shared_ptr<StreamWatch> it, const std::shared_ptr<GraphTasks>& graph_tasks) {
  std::lock_guard lock(lock_);
  if (graph_tasks == nullptr) {
    watches_[it->order()].push_back(std::move(it));
  } else {
    graph_tasks->watches_.push_back(std::move(it));
    keep(graph_tasks);
  }
  changed_.notify_all();
}

void Proxy::drop(const std::shared_ptr<StreamWatch>& it,
                 const std::shared_ptr<GraphTasks>& graph_tasks) {
  std::lock_guard lock(lock_);
  if (graph_tasks == nullptr) {
    std::erase(watches_[it->order()], it);
  } else {
    std::erase(graph_tasks->watches_, it);
  }
  changed_.notify_all();
}

std::vector<std::shared_ptr<StreamWatch>> Proxy::take_ended_watches() {
  std::vector<std::shared_ptr<StreamWatch>> taken;
  for (auto& watches : watches_) {
    while (!watches.empty() && (watches.front()->ended() || watches.front()->lost())) {
      taken.push_back(std::move(watches.front()));
      watches.pop_front();
    }
  }
  return taken;
}

std::vector<std::shared_ptr<StreamWatch>> Proxy::watches_now() const {
  std::vector<std::shared_ptr<StreamWatch>> now;
  // The calls of an order follow each other.
  for (const auto& watches : watches_) {
    if (!watches.empty()) now.push_back(watches.front());
  }
  for (const auto& graph_tasks : graph_tasks_) {
    if (graph_tasks->released) continue;
    for (const auto& it : graph_tasks->watches_) {
      if (it->running()) now.push_back(it);
    }
  }
  return now;
}

std::shared_ptr<GraphTasks> Proxy::find_graph_tasks(uint64_t capture) {
  std::lock_guard lock(lock_);
  for (const auto& graph_tasks : graph_tasks_) {
    if (graph_tasks->capture == capture && !graph_tasks->released) return graph_tasks;
  }
  return nullptr;
}

void Proxy::release(GraphTasks& graph_tasks) {
  std::lock_guard lock(lock_);
  graph_tasks.released = true;
  changed_.notify_all();
}

bool Proxy::idle() {
  std::lock_guard lock(lock_);
  return has_only_held_tasks();
}

bool Proxy::has_only_held_tasks() const {
  const auto is_quiet = [](const auto& watches) {
    return std::all_of(watches.begin(), watches.end(),
                       [](const auto& it) { return it->held() || it->ended(); });
  };
  return is_quiet(watches_[0]) && is_quiet(watches_[1]) &&
         std::all_of(tasks_.begin(), tasks_.end(), [](const auto& it) { return it->held(); });
}

void Proxy::wait_until_idle(Comm& comm) {
  const cuda::Driver* driver = cuda::known_driver();
  std::unique_lock lock(lock_);
  while (!has_only_held_tasks() && !comm.broken() && !leaving) {
    changed_.wait_for(lock, kLook);
    if (driver == nullptr || !driver->is_stand_in) continue;
    lock.unlock();
    if (const std::unique_lock enqueue(enqueue_lock_, std::try_to_lock); enqueue.owns_lock()) {
      Outcome outcome;
      (void)fail_if_lost(*driver, comm, &outcome);
    }
    lock.lock();
  }
}

void Proxy::check(Comm& comm, const Outcome& outcome) {
  const cuda::Driver* driver = cuda::known_driver();
  if (driver == nullptr || !driver->is_stand_in || comm.broken()) return;
  const std::lock_guard lock(enqueue_lock_);
  Outcome lost = outcome;
  (void)fail_if_lost(*driver, comm, &lost);
}

bool Proxy::fail_if_lost(const cuda::Driver& driver, Comm& comm, Outcome* outcome) {
  if (!lost(driver)) return false;
  *outcome = {ncclUnhandledCudaError,
              fmt::format("{}{}the device of the communicator's streams was reset, and what they "
                          "held is lost",
                          outcome->text, outcome->ok() ? "" : "; ")};
  comm.give_up(*outcome);
  return true;
}

bool Proxy::lost(const cuda::Driver& driver) {
  if (lost_) return true;
  if (chain_.last == nullptr || driver.cuEventQuery == nullptr) return false;
  const cuda::RelaxedCapture relaxed(driver);
  const cuda::Result result = driver.cuEventQuery(chain_.last->get());
  if (result != cuda::kErrorInvalidHandle && result != cuda::kErrorContextIsDestroyed) return false;
  lost_ = true;
  std::lock_guard lock(lock_);
  for (const auto& task : tasks_) task->lost.store(true, std::memory_order_release);
  for (const auto& watches : watches_) {
    for (const auto& watch : watches) watch->lose();
  }
  changed_.notify_all();
  return true;
}

std::vector<std::shared_ptr<ProxyTask>> Proxy::take_lost_tasks() {
  std::vector<std::shared_ptr<ProxyTask>> taken;
  for (const auto& task : tasks_) {
    if (task->lost) taken.push_back(task);
  }
  std::erase_if(tasks_, [](const auto& task) { return task->lost.load(); });
  return taken;
}

Proxy::Ready Proxy::find_ready() {
  if (!tasks_.empty()) {
    ProxyTask& first = *tasks_.front();
    if (!first.held() && first.doorbell().rung() == first.number) return {&first, nullptr};
  }
  for (const auto& graph_tasks : graph_tasks_) {
    if (graph_tasks->released) continue;
    for (const auto& part : graph_tasks->parts_) {
      const uint32_t number = part.staging->mailboxes[0].rung();
      if (number > 0 && number <= part.tasks.size() && !part.tasks[number - 1]->held()) {
        return {part.tasks[number - 1].get(), graph_tasks};
      }
    }
  }
  return {};
}

void Proxy::serve() noexcept {
  Pause pause;
  std::unique_lock lock(lock_);
  while (!leaving) {
    // Destroying it may destroy its communicator, which must not happen under the lock.
    std::vector<std::shared_ptr<GraphTasks>> gone;
    for (size_t i = 0; i < graph_tasks_.size();) {
      if (graph_tasks_[i]->released) {
        gone.push_back(std::move(graph_tasks_[i]));
        graph_tasks_.erase(graph_tasks_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    std::vector<std::shared_ptr<ProxyTask>> lost_tasks = take_lost_tasks();
    std::vector<std::shared_ptr<StreamWatch>> ended_watches = take_ended_watches();
    if (!gone.empty() || !lost_tasks.empty() || !ended_watches.empty()) {
      lock.unlock();
      if (!ended_watches.empty()) pause.reset();
      for (const auto& it : ended_watches) {
        if (it->ended()) it->note_ended();
      }
      gone.clear();
      lost_tasks.clear();
      ended_watches.clear();
      lock.lock();
      changed_.notify_all();
    }
    if (std::vector<std::shared_ptr<StreamWatch>> watched = watches_now(); !watched.empty()) {
      lock.unlock();
      for (const auto& it : watched) it->look();
      watched.clear();
      lock.lock();
    }
    const Ready ready = find_ready();
    if (ready.task != nullptr) {
      lock.unlock();
      run(*ready.task, leaving);
      std::shared_ptr<ProxyTask> ended;
      lock.lock();
      if (ready.graph_tasks == nullptr) {
        ended = std::move(tasks_.front());
        tasks_.pop_front();
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

std::shared_ptr<Proxy> proxy_of(Comm& comm) {
  return std::static_pointer_cast<Proxy>(
      comm.stream_work([]() -> std::shared_ptr<StreamWork> { return std::make_shared<Proxy>(); }));
}

}  // namespace weir::nccl
