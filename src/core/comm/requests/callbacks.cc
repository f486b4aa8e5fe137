// SPDX-License-Identifier: Apache-2.0
#include "core/comm/requests/callbacks.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/per_process.h"

namespace weir::comm {

namespace callbacks_detail {
std::atomic<uint32_t> ready_count{0};
}  // namespace callbacks_detail

constinit thread_local uint32_t t_call_nesting = 0;

namespace {

struct Ready {
  const void* of;
  Completion completion;
  Code code;
};

struct Queue {
  std::mutex lock;
  std::deque<Ready> ready;
  std::vector<const void*> running;  // of the callbacks that are being called
  std::condition_variable returned;
};
constinit PerProcess<Queue> queue;

}  // namespace

void add_ready(const void* of, const Completion& completion, Code code) {
  Queue& q = queue.get();
  const std::lock_guard lock(q.lock);
  q.ready.push_back({of, completion, code});
  callbacks_detail::ready_count.fetch_add(1, std::memory_order_relaxed);
}

void call_back(const Completion& completion, Code code) {
  const uint32_t before = std::exchange(t_call_nesting, t_call_nesting | kInCallback);
  completion.callback(completion.context, static_cast<weir_result_t>(code));
  t_call_nesting = before;
}

void callbacks_detail::run_all() {
  if (in_callback()) return;
  Queue& q = queue.get();
  std::unique_lock lock(q.lock);
  // A child of fork() inherits the count of its parent's callbacks, but none of the callbacks.
  if (q.ready.empty()) ready_count.store(0, std::memory_order_relaxed);
  while (!q.ready.empty()) {
    const Ready next = q.ready.front();
    q.ready.pop_front();
    ready_count.fetch_sub(1, std::memory_order_relaxed);
    q.running.push_back(next.of);
    lock.unlock();
    call_back(next.completion, next.code);
    lock.lock();
    q.running.erase(std::find(q.running.begin(), q.running.end(), next.of));
    q.returned.notify_all();
  }
}

void finish_callbacks(const void* of) {
  run_ready();
  if (in_callback()) return;
  Queue& q = queue.get();
  std::unique_lock lock(q.lock);
  q.returned.wait(lock, [&] {
    const bool waiting =
        std::any_of(q.ready.begin(), q.ready.end(), [of](const Ready& it) { return it.of == of; });
    return !waiting && std::find(q.running.begin(), q.running.end(), of) == q.running.end();
  });
}

}  // namespace weir::comm
