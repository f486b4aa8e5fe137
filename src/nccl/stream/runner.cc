// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/base/pause.h"
#include "nccl/host/buffers.h"
#include "nccl/stream/neighbors.h"

namespace weir::nccl {

namespace {

// Copies a slice of several blocks between the caller's buffer and the staging, on the host.
void move_blocks(char* to, size_t to_stride, const char* from, size_t from_stride, size_t blocks,
                 size_t bytes) {
  if (bytes == 0) return;
  for (size_t i = 0; i < blocks; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, bytes);
  }
}

class Runner {
 public:
  // `memory`: the bytes of the staging. `answers`: a stream rings and waits.
  Runner(ProxyTask& task, char* memory, bool answers, const std::atomic<bool>& leave)
      : task_(task), memory_(memory), rings_(answers && !task.gated), leave_(leave) {
    size_t slots = 0;
    for (const Subtask& it : task.subtasks) slots += it.depth;
    busy_.resize(slots);
    orders_.resize(task.order_count);
    under_way_.resize(task.subtasks.size());
    for (const Item& item : task.items) orders_[subtask(item).order].items.push_back(item);
    running_.reserve(slots);
    late_.reserve(slots);
  }

  // Runs a task of one plain operation to its end. False: it is not one.
  bool run_at_once() {
    if (task_.items.size() != 1 || rings_) return false;
    const Item& item = task_.items[0];
    if (broken(item)) return false;
    fail(nccl::start(sliced(item), nullptr));
    if (first_.ok()) unpack(item);
    return true;
  }

  // The number of rings may become smaller while it runs.
  bool finished() const {
    if (rings_ && task_.lost.load(std::memory_order_acquire)) return true;
    const size_t all = rings_ ? task_.rings.load(std::memory_order_acquire) : task_.items.size();
    return done_ + late_.size() >= all;
  }
  // True when something moved.
  bool advance() {
    bool moved = false;
    for (Order& it : orders_) moved = start_what_can(it) || moved;
    return test_all() || moved;
  }
  // Whether it can only wait for Weir's operations.
  bool may_wait() const {
    return std::all_of(orders_.begin(), orders_.end(),
                       [](const Order& it) { return it.next == it.items.size(); }) &&
           !running_.empty() &&
           std::all_of(running_.begin(), running_.end(),
                       [](const Running& it) { return it.request != nullptr; });
  }
  void wait() { settle(running_.front(), weir_wait(&running_.front().request)); }

  Outcome end() {
    // Weir's operations hold buffers until they have ended, which they do by their deadlines.
    for (Running& it : running_) {
      if (it.request != nullptr) settle(it, weir_wait(&it.request));
      finish(it);
    }
    for (const Running& it : late_) wait_for_signals(it);
    return std::move(first_);
  }

  // A buffer may have been freed since the call: a graph can be launched long after it. Then
  // nothing is started, and the peers are told.
  void check_memory() {
    for (const Subtask& it : task_.subtasks) {
      if (it.one_sided() || task_.comm->broken()) continue;
      Outcome outcome = check_buffers(it.operation);
      if (outcome.ok()) continue;
      outcome.text += " when the stream came to the call";
      task_.comm->give_up(outcome);
      fail(std::move(outcome));
    }
  }

  Outcome run() {
    if (run_at_once()) return std::move(first_);
    Pause pause;
    while (!finished() && !leave_.load(std::memory_order_relaxed)) {
      if (advance()) {
        pause.reset();
      } else if (may_wait()) {
        wait();
        pause.reset();
      } else {
        pause.wait();
      }
    }
    return end();
  }

 private:
  // A slice that has been started.
  struct Running {
    Item item;
    weir_request_t request = nullptr;
  };
  // Items that start one after the other.
  struct Order {
    std::vector<Item> items;
    size_t next = 0;
  };

  bool broken(const Item& item) { return !first_.ok() || subtask(item).operation.comm->broken(); }

  void fail(Outcome outcome) {
    if (!outcome.ok() && first_.ok()) first_ = std::move(outcome);
  }

  // Before the operation was started, for which the peers would wait.
  void fail_unstarted(const Subtask& on, Outcome outcome) {
    const bool on_stream = task_.staging != nullptr;  // elsewhere the caller may repeat the call
    if (!outcome.ok() && on_stream && !on.one_sided()) on.operation.comm->give_up(outcome);
    fail(std::move(outcome));
  }

  Subtask& subtask(const Item& item) { return task_.subtasks[item.subtask]; }

  char* stage(size_t offset, size_t row_bytes, const Subtask& subtask, size_t slice) const {
    return offset == Subtask::kNone ? nullptr
                                    : memory_ + offset + slice % subtask.depth * row_bytes;
  }
  char* send_stage(const Subtask& subtask, size_t slice) const {
    return stage(subtask.send_offset, subtask.cut.send_bytes(), subtask, slice);
  }
  char* recv_stage(const Subtask& subtask, size_t slice) const {
    return stage(subtask.recv_offset, subtask.cut.recv_bytes(), subtask, slice);
  }

  // The operation of one slice, on the addresses of its data.
  Operation sliced(const Item& item) {
    Subtask& it = subtask(item);
    Operation operation = it.operation;
    operation.count = it.slice_width(item.slice);
    const size_t bytes = operation.count * it.cut.element_bytes;
    const size_t begin = item.slice * it.cut.width * it.cut.element_bytes;
    const size_t stride = it.operation.count * it.cut.element_bytes;
    if (char* to = send_stage(it, item.slice); to != nullptr) {
      if (!it.send_on_device) {
        move_blocks(to, bytes, static_cast<const char*>(operation.send) + begin, stride,
                    it.cut.send_blocks, bytes);
      }
      operation.send = to;
    } else if (operation.send != nullptr) {
      operation.send = static_cast<const char*>(operation.send) + begin;
    }
    if (char* to = recv_stage(it, item.slice); to != nullptr) {
      operation.recv = to;
    } else if (operation.recv != nullptr) {
      operation.recv = static_cast<char*>(operation.recv) + begin;
    }
    if (it.scalar_on_device) operation.factor->device_scalar = memory_ + it.scalar_offset;
    return operation;
  }

  // Copies results that no stream copies to the caller's buffer.
  void unpack(const Item& item) {
    Subtask& it = subtask(item);
    char* from = recv_stage(it, item.slice);
    if (from == nullptr || it.recv_on_device) return;
    const size_t bytes = it.slice_width(item.slice) * it.cut.element_bytes;
    move_blocks(
        static_cast<char*>(it.operation.recv) + item.slice * it.cut.width * it.cut.element_bytes,
        it.operation.count * it.cut.element_bytes, from, bytes, it.cut.recv_blocks, bytes);
  }

  // The slot that the slice uses.
  size_t slot(const Item& item) {
    const Subtask& it = subtask(item);
    return it.first_mailbox + item.slice % it.depth;
  }

  bool can_start(const Item& item) {
    if (busy_[slot(item)] || under_way_[item.subtask] == kDepthMax) return false;
    return !rings_ || task_.mailbox(subtask(item), item.slice).rung() == task_.number;
  }

  void start_operation(Running& it) {
    try {
      if (!broken(it.item)) {
        fail_unstarted(subtask(it.item), nccl::start(sliced(it.item), &it.request));
      }
    } catch (...) {
      fail(outcome_of_exception(subtask(it.item).operation.function, std::current_exception()));
    }
  }

  bool start_what_can(Order& order) {
    bool moved = false;
    for (; order.next < order.items.size() && can_start(order.items[order.next]); ++order.next) {
      start(order.items[order.next]);
      moved = true;
    }
    return moved;
  }

  // An item that is begun is always finished, since the stream waits for it.
  void start(const Item& item) {
    Running it{item};
    if (rings_) task_.mailbox(subtask(it.item), it.item.slice).take();
    busy_[slot(it.item)] = true;
    ++under_way_[it.item.subtask];
    start_operation(it);
    if (waits_for_signals(subtask(it.item).operation) && !broken(it.item)) {
      late_.push_back(it);
    } else if (it.request != nullptr) {
      running_.push_back(it);  // never grows: each has its slot
    } else {
      finish(it);
    }
  }

  // True when it has ended.
  bool is_over(Running& it) {
    if (it.request == nullptr) return true;
    int done = 0;
    const weir_result_t result = weir_test(&it.request, &done);
    if (done == 0 && it.request != nullptr) return false;
    settle(it, result);
    return true;
  }

  bool test_all() {
    bool moved = false;
    for (size_t i = 0; i < running_.size();) {
      if (!is_over(running_[i])) {
        ++i;
        continue;
      }
      finish(running_[i]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      moved = true;
    }
    return moved;
  }

  void wait_for_signals(const Running& it) {
    try {
      if (!broken(it.item)) fail(nccl::finish(subtask(it.item).operation));
    } catch (...) {
      fail(outcome_of_exception(subtask(it.item).operation.function, std::current_exception()));
    }
    finish(it);
  }

  // Weir's operation has ended.
  void settle(Running& it, weir_result_t result) {
    it.request = nullptr;
    if (result == WEIR_OK || !first_.ok()) return;
    try {
      const Subtask& on = subtask(it.item);
      Outcome outcome = on.operation.comm->outcome(on.operation.function, result);
      if (!outcome.ok() && on.cut.slice_count > 1) {
        outcome.text += fmt::format("; what it names is one of {} slices of a call with count {}",
                                    on.cut.slice_count, on.operation.count);
      }
      fail(std::move(outcome));
    } catch (...) {
      first_.code = ncclSystemError;  // no memory for the text
    }
  }

  void finish(const Running& it) {
    if (!broken(it.item)) unpack(it.item);
    busy_[slot(it.item)] = false;
    --under_way_[it.item.subtask];
    ++done_;
    if (rings_ && !leave_.load(std::memory_order_relaxed)) {
      // Set before the stream goes on, so that the next call of a thread that waited for it is
      // refused.
      if (!first_.ok()) task_.comm->stream_failed(first_);
      task_.mailbox(subtask(it.item), it.item.slice).answer();
    }
  }

  ProxyTask& task_;
  char* const memory_;
  const bool rings_;  // each slice rings and is answered
  const std::atomic<bool>& leave_;
  std::vector<char> busy_;         // slots
  std::vector<size_t> under_way_;  // slices of each subtask
  std::vector<Order> orders_;
  size_t done_ = 0;
  std::vector<Running> running_;
  std::vector<Running> late_;  // one-sided
  Outcome first_;
};

// For a task that cannot be run for lack of memory.
void answer_all(ProxyTask& task, const std::atomic<bool>& leave) {
  Pause pause;
  for (size_t i = 0; i < task.rings;) {
    if (leave.load(std::memory_order_relaxed)) return;
    comm::Mailbox& it = task.mailbox(task.subtasks[task.items[i].subtask], task.items[i].slice);
    if (it.rung() != task.number) {
      pause.wait();
      continue;
    }
    it.take();
    it.answer();
    ++i;
    pause.reset();
  }
}

}  // namespace

void run(ProxyTask& task, const std::atomic<bool>& leave) {
  if (task.gated) task.doorbell().take();
  Outcome outcome;
  task.comm->runs(task.subtasks[0].operation.function);
  try {
    Runner runner(task, task.staging->bytes, true, leave);
    runner.check_memory();
    outcome = runner.run();
  } catch (...) {
    outcome = outcome_of_exception(task.subtasks[0].operation.function, std::current_exception());
    if (!task.gated) answer_all(task, leave);
  }
  const Neighbors* neighbors = task.comm->devices().neighbors().get();
  const cuda::Driver* driver = cuda::known_driver();
  // Its text names the setting.
  const bool late = outcome.text.find("WEIR_TIMEOUT_MS") != std::string::npos;
  if (late && neighbors != nullptr && driver != nullptr) {
    outcome.text += neighbors->hint(*driver, task.comm->rank());
  }
  if (!outcome.ok()) task.comm->stream_failed(outcome);
  task.comm->runs(nullptr);
  if (task.gated && !leave.load(std::memory_order_relaxed)) task.doorbell().answer();
}

Outcome run_here(const std::vector<std::unique_ptr<ProxyTask>>& tasks) {
  static const std::atomic<bool> never{false};
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<std::unique_ptr<Runner>> runners;
  for (const auto& task : tasks) {
    memory.emplace_back(new char[task->byte_count]);
    runners.push_back(std::make_unique<Runner>(*task, memory.back().get(), false, never));
  }
  if (runners.size() == 1) return runners[0]->run();
  // The communicators may be each other's peers: none is waited for alone before all have been
  // started.
  Pause pause;
  for (bool all_finished = false; !all_finished;) {
    all_finished = true;
    bool moved = false;
    Runner* waits = nullptr;
    bool all_wait = true;
    for (const auto& it : runners) {
      if (it->finished()) continue;
      all_finished = false;
      moved = it->advance() || moved;
      if (it->finished()) continue;
      if (it->may_wait()) {
        waits = it.get();
      } else {
        all_wait = false;
      }
    }
    if (moved) {
      pause.reset();
    } else if (waits != nullptr && all_wait) {
      waits->wait();
      pause.reset();
    } else if (!all_finished) {
      pause.wait();
    }
  }
  Outcome first;
  for (size_t i = 0; i < runners.size(); ++i) {
    Outcome outcome = runners[i]->end();
    if (outcome.ok()) continue;
    tasks[i]->comm->note_error(outcome.text);
    if (first.ok()) first = std::move(outcome);
  }
  return first;
}

}  // namespace weir::nccl
