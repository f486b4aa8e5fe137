// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/stream_commands.h"

#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "nccl/cuda/cuda_error.h"

namespace weir::nccl {

namespace {

cuda::DevicePointer address(const void* pointer) {
  return static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}

// The offset of a slice in a block of the caller's buffer.
size_t begin(const Subtask& subtask, size_t slice) {
  return slice * subtask.cut.width * subtask.cut.element_bytes;
}
size_t stride(const Subtask& subtask) {
  return subtask.operation.count * subtask.cut.element_bytes;
}

}  // namespace

StreamCommands::StreamCommands(const cuda::Driver& driver, cuda::Stream stream, bool joined,
                               CallsInFlight* calls, std::vector<ProxyTask*> tasks)
    : driver_(driver),
      stream_(stream),
      joined_(joined),
      calls_(calls),
      tasks_(std::move(tasks)),
      rings_(tasks_.size(), 0),
      enqueued_rings_(tasks_.size(), 0) {
  if (!takes_turns()) return;
  WEIR_CHECK(tasks_.size() == 1 && tasks_[0]->order_count == 1,
             "slices take turns in the stream only where nothing else waits for it");
  step_count_ = tasks_[0]->items.size() + tasks_[0]->window;
}

Outcome StreamCommands::enqueue_step() {
  if (step_ == 0) {
    for (const ProxyTask* task : tasks_) {
      for (const Subtask& subtask : task->subtasks) {
        if (subtask.scalar_on_device) copy_scalar(*task, subtask);
      }
    }
  }
  if (takes_turns()) {
    turn(*tasks_[0], step_);
  } else if (step_ == 0) {
    hand_over();
  } else {
    take_back();
  }
  ++step_;
  // Within the turns, the end of one and the begin of the next are one batch, if no other rank's
  // turn comes between: it may wait, in the same hardware queue, for this one's ring.
  if (!takes_turns() || joined_ || step_ == step_count_) flush();
  return outcome_;
}

void StreamCommands::hand_over() {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    const ProxyTask& task = *tasks_[i];
    if (task.gated) {
      for (const Subtask& subtask : task.subtasks) copy_in(task, subtask, 0);
      ring(i, task.doorbell());
      continue;
    }
    for (const Item& item : task.items) {
      const Subtask& subtask = task.subtasks[item.subtask];
      copy_in(task, subtask, item.slice);
      ring(i, task.mailbox(subtask, item.slice));
    }
  }
}

void StreamCommands::take_back() {
  for (const ProxyTask* task : tasks_) {
    if (task->gated) {
      await(task->doorbell());
      for (const Subtask& subtask : task->subtasks) copy_out(*task, subtask, 0);
      clear(task->doorbell());
      continue;
    }
    take_back(*task, true);
    take_back(*task, false);
  }
}

// Slices that the stream copies come first: the stream then has less to wait for when it reaches
// the others.
void StreamCommands::take_back(const ProxyTask& task, bool copied) {
  for (const Item& item : task.items) {
    const Subtask& subtask = task.subtasks[item.subtask];
    if (subtask.recv_on_device != copied) continue;
    comm::Mailbox& mailbox = task.mailbox(subtask, item.slice);
    await(mailbox);
    copy_out(task, subtask, item.slice);
    clear(mailbox);
  }
}

void StreamCommands::turn(const ProxyTask& task, size_t step) {
  if (step >= task.window) {
    const Item& item = task.items[step - task.window];
    const Subtask& subtask = task.subtasks[item.subtask];
    comm::Mailbox& mailbox = task.mailbox(subtask, item.slice);
    await(mailbox);
    copy_out(task, subtask, item.slice);
    clear(mailbox);
  }
  if (step < task.items.size()) {
    const Item& item = task.items[step];
    const Subtask& subtask = task.subtasks[item.subtask];
    copy_in(task, subtask, item.slice);
    ring(0, task.mailbox(subtask, item.slice));
  }
}

void StreamCommands::copy_scalar(const ProxyTask& task, const Subtask& subtask) {
  copy(task.staging->bytes + subtask.scalar_offset, subtask.operation.factor->device_scalar,
       subtask.cut.element_bytes);
}

void StreamCommands::copy_in(const ProxyTask& task, const Subtask& subtask, size_t slice) {
  if (!subtask.send_on_device) return;
  const size_t bytes = subtask.slice_width(slice) * subtask.cut.element_bytes;
  const auto* from = static_cast<const char*>(subtask.operation.send);
  move(task.send_stage(subtask, slice), bytes, from + begin(subtask, slice), stride(subtask),
       subtask.cut.send_blocks, bytes);
}

void StreamCommands::copy_out(const ProxyTask& task, const Subtask& subtask, size_t slice) {
  if (!subtask.recv_on_device) return;
  const size_t bytes = subtask.slice_width(slice) * subtask.cut.element_bytes;
  auto* to = static_cast<char*>(subtask.operation.recv);
  move(to + begin(subtask, slice), stride(subtask), task.recv_stage(subtask, slice), bytes,
       subtask.cut.recv_blocks, bytes);
}

void StreamCommands::move(char* to, size_t to_stride, const char* from, size_t from_stride,
                          size_t blocks, size_t bytes) {
  if (to_stride == bytes && from_stride == bytes) {
    copy(to, from, blocks * bytes);
    return;
  }
  for (size_t i = 0; i < blocks; ++i) copy(to + i * to_stride, from + i * from_stride, bytes);
}

void StreamCommands::copy(void* to, const void* from, size_t bytes) {
  flush();
  if (bytes == 0 || !outcome_.ok()) return;
  count(1);
  hold("cuMemcpyAsync", driver_.cuMemcpyAsync(address(to), address(from), bytes, stream_));
}

void StreamCommands::ring(size_t index, comm::Mailbox& mailbox) {
  ++rings_[index];
  add(cuda::kWriteValue32, &mailbox.ready, tasks_[index]->number, cuda::kWriteDefault);
  mark();
}
void StreamCommands::await(comm::Mailbox& mailbox) {
  add(cuda::kWaitValue32, &mailbox.done, 1, cuda::kWaitEqual);
}
void StreamCommands::clear(comm::Mailbox& mailbox) {
  add(cuda::kWriteValue32, &mailbox.done, 0, cuda::kWriteDefault);
  mark();
}
void StreamCommands::mark() {
  if (calls_ != nullptr && calls_->wants_mark()) {
    add(cuda::kWriteValue32, calls_->word(), calls_->mark(), cuda::kWriteDefault);
  }
}
void StreamCommands::count(size_t calls) {
  if (calls_ != nullptr) calls_->enter(calls, *tasks_[0]->comm);
}

void StreamCommands::add(uint32_t operation, uint32_t* flag, uint32_t value, unsigned flags) {
  entries_.push_back({operation, address(flag), value, flags, 0, 0});
  if (entries_.size() == cuda::kBatchMax) flush();
}

void StreamCommands::flush() {
  if (entries_.empty()) return;
  if (!outcome_.ok()) return entries_.clear();
  count(driver_.cuStreamBatchMemOp_v2 != nullptr ? 1 : entries_.size());
  cuda::enqueue_flags(driver_, stream_, &entries_,
                      [this](const char* call, cuda::Result result) { hold(call, result); });
  if (outcome_.ok()) enqueued_rings_ = rings_;
}

void StreamCommands::hold(const char* call, cuda::Result result) {
  if (result != cuda::kSuccess) {
    outcome_ = cuda_failed(driver_, tasks_[0]->subtasks[0].operation.function, call, result);
  }
}

}  // namespace weir::nccl
