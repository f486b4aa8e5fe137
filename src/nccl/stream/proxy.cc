// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/proxy.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "core/base/background.h"
#include "core/base/pause.h"
#include "core/comm/stream/leaving.h"
#include "nccl/stream/runner.h"

namespace weir::nccl {

namespace {

using std::chrono::milliseconds;

constexpr size_t kTasksMax = 16384;
// How long a thread without work waits for more.
constexpr milliseconds kLinger{20};
// Between two checks of conditions that nothing signals.
constexpr milliseconds kLook{10};

}  // namespace

Proxy::Proxy()
    : watches_(std::make_shared<comm::StreamWatches>([this] { changed_.notify_all(); })) {}

void Proxy::enqueue_begins(const cuda::Driver& driver) {
  comm::leave_before_cuda(driver);
  std::unique_lock lock(lock_);
  while (tasks_.size() >= kTasksMax && !comm::leaving()) changed_.wait_for(lock, kLook);
  if (!serving_) {
    run_in_background([self = shared_from_this()] { self->serve(); });
    serving_ = true;
    comm::pinned_reader_begins();
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
  }
  if (graph_tasks != nullptr) keep(graph_tasks);
  changed_.notify_all();
}

void Proxy::keep(const std::shared_ptr<GraphTasks>& graph_tasks) {
  if (std::find(graph_tasks_.begin(), graph_tasks_.end(), graph_tasks) == graph_tasks_.end()) {
    graph_tasks_.push_back(graph_tasks);
  }
}

std::shared_ptr<GraphTasks> Proxy::find_graph_tasks(uint64_t capture) {
  std::lock_guard lock(lock_);
  for (const auto& graph_tasks : graph_tasks_) {
    if (graph_tasks->capture == capture && !graph_tasks->released) return graph_tasks;
  }
  return nullptr;
}

void Proxy::release(GraphTasks& graph_tasks) {
  graph_tasks.watches->release();
  std::lock_guard lock(lock_);
  graph_tasks.released = true;
  changed_.notify_all();
}

bool Proxy::idle() {
  std::lock_guard lock(lock_);
  return has_only_held_tasks();
}

bool Proxy::has_only_held_tasks() const {
  return watches_->are_quiet() &&
         std::all_of(tasks_.begin(), tasks_.end(), [](const auto& it) { return it->held(); });
}

void Proxy::wait_until_idle(Comm& comm) {
  const cuda::Driver* driver = cuda::known_driver();
  std::unique_lock lock(lock_);
  while (!has_only_held_tasks() && !comm.broken() && !comm::leaving()) {
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
                          "held is lost; destroy the communicator and make a new one",
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
  watches_->lose_all();
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
  while (!comm::leaving()) {
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
    if (!gone.empty() || !lost_tasks.empty()) {
      lock.unlock();
      gone.clear();
      lost_tasks.clear();
      lock.lock();
      changed_.notify_all();
    }
    const Ready ready = find_ready();
    if (ready.task != nullptr) {
      lock.unlock();
      run(*ready.task, comm::leaving());
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
      changed_.wait_for(lock, kLinger, [&] { return has_work() || comm::leaving(); });
      if (!has_work()) break;
      pause.reset();
      continue;
    }
    if (!must_poll()) {
      changed_.wait_for(lock, kLook);
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
  comm::pinned_reader_ends();
}

bool Proxy::must_poll() const {
  return !tasks_.empty() || enqueueing_ > 0 ||
         std::any_of(graph_tasks_.begin(), graph_tasks_.end(), [](const auto& graph_tasks) {
           return !graph_tasks->parts_.empty() || graph_tasks->released;
         });
}

std::shared_ptr<Proxy> proxy_of(Comm& comm) {
  return std::static_pointer_cast<Proxy>(
      comm.stream_work([]() -> std::shared_ptr<StreamWork> { return std::make_shared<Proxy>(); }));
}

}  // namespace weir::nccl
