// SPDX-License-Identifier: Apache-2.0
// ProxyTask: the operations of one group on one communicator, cut into slices, as the stream and
// the proxy carry them out together. The stream copies data from a device into staging, rings a
// doorbell, waits for the answer and copies the results back; the proxy runs Weir's operations in
// between. This file is the proxy's half, which knows no CUDA; stream_commands.h is the stream's.
//
// There are three forms. A *gated* task rings once, before everything, and is answered once, after
// everything; it has no operation of several slices on a device. In the other two, each slice rings
// and is answered by itself. Operations of one order that are alone on their streams have a few
// slots each (`depth`), which their slices use in turns. The other operations of groups have a slot
// for each slice, and the stream hands all of them over before it takes the first one back: if it
// waited for a slice of one operation before it handed over the rest of another, it could wait for
// ever, since a peer may reach the first only when it has all of the second.
//
// So the proxy makes no call to CUDA while a stream waits for it. Such a call could wait for a
// thread of the program that is inside a call of its own until that stream goes on (the first
// launch of a kernel, a full launch queue), or stand behind that stream in a hardware queue.
//
// Orders: collectives are one order, one-sided operations another, and the messages with each peer
// in each direction one each. Operations of one order start one after the other, all slices of the
// first and then those of the next, so that a peer may have other operations in the same group;
// orders do not wait for each other. One-sided operations, which may wait for a peer's signal, end
// last.
//
// Not thread-safe: made by one thread, then used by the proxy.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "core/comm/stream/staging.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/host/operation.h"
#include "nccl/host/slices.h"

namespace weir::nccl {

// Slices of an operation that are under way at the same time, at most.
inline constexpr size_t kDepthMax = 4;
// A task that would need more staging gets less depth.
inline constexpr size_t kStagingMax = size_t{256} << 20;

// One operation of a task.
struct Subtask {
  Operation operation;
  Cut cut;
  bool send_on_device = false;
  bool recv_on_device = false;
  bool scalar_on_device = false;
  size_t order = 0;
  size_t depth = 1;
  size_t first_mailbox = 0;    // of `depth`, in a task that is not gated
  size_t send_offset = kNone;  // of `depth` times cut.send_bytes() in the staging's bytes
  size_t recv_offset = kNone;  // the same for cut.recv_bytes()
  size_t scalar_offset = kNone;

  static constexpr size_t kNone = ~size_t{0};

  // A message that the transport itself sends from or receives in device memory; it is not copied.
  bool passed() const { return operation.device >= 0; }
  bool message() const { return is_message(operation.kind); }
  bool one_sided() const { return operation.kind == OperationKind::kOneSided; }
  size_t slice_width(size_t slice) const {
    const size_t begin = slice * cut.width;
    return std::min(cut.width, operation.count - begin);
  }
};

struct Item {
  size_t subtask = 0;
  size_t slice = 0;
};

struct ProxyTask {
  std::shared_ptr<Comm> comm;
  std::vector<Subtask> subtasks;
  std::vector<Item> items;
  size_t order_count = 0;
  size_t window = kDepthMax;  // items that are under way at a time, where they take turns
  bool gated = true;
  bool takes_turns = false;
  size_t mailbox_count = 1;
  size_t byte_count = 0;
  std::shared_ptr<comm::Staging> staging;  // empty: run without a stream
  uint32_t number = 0;                     // what the stream writes to ring; not 0
  // How often the stream will ring; fewer times after an error in enqueueing.
  std::atomic<size_t> rings{1};
  std::atomic<bool> lost{false};                     // the stream will not ring any more
  std::shared_ptr<const std::atomic<bool>> may_run;  // empty: yes

  bool held() const { return may_run != nullptr && !may_run->load(std::memory_order_acquire); }

  char* send_stage(const Subtask& subtask, size_t slice) const;
  char* recv_stage(const Subtask& subtask, size_t slice) const;
  comm::Mailbox& mailbox(const Subtask& subtask, size_t slice) const;
  // The mailbox that rings first.
  comm::Mailbox& doorbell() const { return staging->mailboxes[0]; }
};

// Cuts the operations and lays out the staging. `alone`: no other task uses their streams in
// between.
// `on_device` tells of a pointer whether only a device reaches it.
std::unique_ptr<ProxyTask> plan_task(std::vector<Operation> operations, bool alone,
                                     bool (*on_device)(const void* context, const void* pointer),
                                     const void* context);

}  // namespace weir::nccl
