// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/proxy_task.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "nccl/stream/direct_policy.h"

namespace weir::nccl {

namespace {

// Rows of staging begin at a multiple of this.
constexpr size_t kAlign = 256;

size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A slice of several blocks is not contiguous in the caller's buffer.
bool needs_stage(const Cut& cut, size_t blocks, bool on_device) {
  return blocks > 0 && (on_device || (blocks > 1 && cut.slice_count > 1));
}

// Assigns operations to orders.
class Orders {
 public:
  size_t of(const Operation& operation) {
    size_t key = 0;
    if (operation.kind == OperationKind::kOneSided) key = 1;
    if (is_message(operation.kind)) {
      key = 2 + 2 * static_cast<size_t>(operation.peer) + (operation.kind == OperationKind::kSend);
    }
    return known_.try_emplace(key, known_.size()).first->second;
  }
  size_t count() const { return known_.size(); }

 private:
  std::unordered_map<size_t, size_t> known_;
};

// Chooses how often the stream rings.
void choose_form(ProxyTask& task, bool alone, size_t slices_max) {
  const bool copied = std::any_of(task.subtasks.begin(), task.subtasks.end(), [](const auto& it) {
    return it.send_on_device || it.recv_on_device;
  });
  if (!copied || slices_max == 1) return;
  task.takes_turns = alone && task.order_count == 1;
  task.gated = false;
}

// Items after which the stream takes the first of them back. A slot is used again only then.
size_t window_of(const ProxyTask& task) {
  size_t window = kDepthMax;
  for (const Subtask& it : task.subtasks) {
    if (it.depth < it.cut.slice_count) window = std::min(window, it.depth);
  }
  return window;
}

}  // namespace

char* ProxyTask::send_stage(const Subtask& subtask, size_t slice) const {
  return staging->bytes + subtask.send_offset + slice % subtask.depth * subtask.cut.send_bytes();
}

char* ProxyTask::recv_stage(const Subtask& subtask, size_t slice) const {
  return staging->bytes + subtask.recv_offset + slice % subtask.depth * subtask.cut.recv_bytes();
}

comm::Mailbox& ProxyTask::mailbox(const Subtask& subtask, size_t slice) const {
  return staging->mailboxes[gated ? 0 : subtask.first_mailbox + slice % subtask.depth];
}

std::unique_ptr<ProxyTask> plan_task(std::vector<Operation> operations, bool alone,
                                     bool (*on_device)(const void* context, const void* pointer),
                                     const void* context) {
  auto task = std::make_unique<ProxyTask>();
  task->comm = operations.front().comm;
  size_t slices_max = 1;
  size_t once_bytes = 0;  // of staging, at depth 1
  Orders orders;
  for (Operation& operation : operations) {
    Subtask& subtask = task->subtasks.emplace_back();
    subtask.operation = std::move(operation);
    subtask.cut = cut(subtask.operation, task->comm->devices().chunk_bytes());
    const bool some = subtask.operation.count > 0;
    subtask.send_on_device =
        some && subtask.cut.send_blocks > 0 && on_device(context, subtask.operation.send);
    subtask.recv_on_device =
        some && subtask.cut.recv_blocks > 0 && on_device(context, subtask.operation.recv);
    const auto& factor = subtask.operation.factor;
    subtask.scalar_on_device = factor.has_value() && factor->device_scalar != nullptr &&
                               on_device(context, factor->device_scalar);
    subtask.order = orders.of(subtask.operation);
    if (subtask.message() && (subtask.send_on_device || subtask.recv_on_device)) {
      subtask.operation.device = task->comm->passes(
          subtask.operation.peer,
          subtask.send_on_device ? subtask.operation.send : subtask.operation.recv);
      if (subtask.passed()) {
        subtask.send_on_device = subtask.recv_on_device = false;
        if (task->comm->devices().note(DeviceState::Event::kTransported)) {
          explain(
              *task->comm,
              fmt::format("the transport itself performs the messages of rank {} on device memory",
                          task->comm->rank()));
        }
      }
    }
    slices_max = std::max(slices_max, subtask.cut.slice_count);
    if (needs_stage(subtask.cut, subtask.cut.send_blocks, subtask.send_on_device)) {
      once_bytes += subtask.cut.send_bytes();
    }
    if (needs_stage(subtask.cut, subtask.cut.recv_blocks, subtask.recv_on_device)) {
      once_bytes += subtask.cut.recv_bytes();
    }
  }
  task->order_count = orders.count();
  choose_form(*task, alone, slices_max);
  const size_t affordable = once_bytes == 0 ? kDepthMax : kStagingMax / once_bytes;
  const bool whole = !task->gated && !task->takes_turns;
  size_t offset = 0;
  size_t mailbox = 0;
  for (Subtask& subtask : task->subtasks) {
    subtask.depth =
        whole ? subtask.cut.slice_count
              : std::clamp<size_t>(std::min(affordable, subtask.cut.slice_count), 1, kDepthMax);
    subtask.first_mailbox = mailbox;
    mailbox += subtask.depth;
    const auto place = [&](size_t bytes) {
      const size_t at = offset;
      offset += aligned(subtask.depth * bytes);
      return at;
    };
    if (needs_stage(subtask.cut, subtask.cut.send_blocks, subtask.send_on_device)) {
      subtask.send_offset = place(subtask.cut.send_bytes());
    }
    if (needs_stage(subtask.cut, subtask.cut.recv_blocks, subtask.recv_on_device)) {
      subtask.recv_offset = place(subtask.cut.recv_bytes());
    }
    if (subtask.scalar_on_device) {
      subtask.scalar_offset = offset;
      offset += kAlign;
    }
  }
  task->mailbox_count = task->gated ? 1 : mailbox;
  task->byte_count = offset;
  for (size_t i = 0; i < task->subtasks.size(); ++i) {
    for (size_t k = 0; k < task->subtasks[i].cut.slice_count; ++k) task->items.push_back({i, k});
  }
  task->rings = task->gated ? 1 : task->items.size();
  task->window = window_of(*task);
  return task;
}

}  // namespace weir::nccl
