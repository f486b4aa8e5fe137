// SPDX-License-Identifier: Apache-2.0
// Flight: the operations of one group on one communicator, cut into slices, as the stream and the
// proxy carry them out together. The stream brings data that lie on a device into staging, rings,
// waits for the answer and takes the results back; the proxy runs Weir's operations in between.
// This file is the proxy's half, which knows no CUDA; program.h is the stream's.
//
// Three forms. A *gated* flight rings once, before everything, and is answered once, after
// everything: one that has no operation of several slices on a device. Where there are any, each
// slice rings and is answered by itself: an operation that is alone on its streams has a few places
// (`depth`), which its slices use one after the other, in turns. Those of a group have a place for
// each slice, and the stream hands all of them over before it takes the first one back: were it to
// wait for a slice of one operation before it hands over the rest of another, it could wait for
// ever, for a peer may come to the first only when it has all of the second.
//
// So the proxy makes no call to CUDA while a stream waits for it, in which it could wait for a
// thread of the program's that stands in a call of its own until that stream goes on (the first
// launch of a kernel, a full launch queue). But for two cases, in which the proxy copies, on a
// stream of its own, and the flight is gated: operations that may go directly, since whether they
// do is known only when all ranks have come; and a group that needs more staging than kWholeMax.
//
// Orders: the collectives are one, the one-sided operations another, and the messages with each
// peer in each direction are one each. Operations of one order start one after the other, all
// slices of the first and then those of the next, so that it makes no difference what the peers
// have in a group; orders do not wait for each other. One-sided operations, which may wait for a
// peer's signal, are ended after all else.
//
// Not thread-safe: built by one thread, then the proxy's.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "nccl/comm.h"
#include "nccl/direct/device_queue.h"
#include "nccl/operation.h"
#include "nccl/outcome.h"
#include "nccl/stream/slices.h"
#include "nccl/stream/staging.h"

namespace weir::nccl {

// Slices of an operation that are under way at the same time.
inline constexpr size_t kDepthMax = 4;
// Staging of a flight, above which it is content with less depth.
inline constexpr size_t kStagingMax = size_t{256} << 20;
// Staging of a group that has a place for each slice.
inline constexpr size_t kWholeMax = size_t{1} << 30;

// One operation of a flight.
struct Lane {
  Operation operation;
  Cut cut;
  bool send_on_device = false;
  bool recv_on_device = false;
  bool scalar_on_device = false;
  size_t order = 0;
  size_t depth = 1;
  size_t first_mailbox = 0;    // of `depth`, in a flight that is not gated
  size_t send_offset = kNone;  // of `depth` times cut.send_bytes() in the staging's bytes
  size_t recv_offset = kNone;  // the same for cut.recv_bytes()
  size_t scalar_offset = kNone;

  static constexpr size_t kNone = ~size_t{0};

  // A message that the transport itself takes from its device or brings there, and that nobody copies.
  bool passed() const { return operation.device >= 0; }
  bool message() const { return is_message(operation.kind); }
  bool one_sided() const { return operation.kind == OperationKind::kOneSided; }
  size_t slice_width(size_t slice) const {
    const size_t begin = slice * cut.width;
    return std::min(cut.width, operation.count - begin);
  }
};

struct Item {
  size_t lane = 0;
  size_t slice = 0;
};

struct Flight {
  std::shared_ptr<Comm> comm;
  std::vector<Lane> lanes;
  std::vector<Item> items;
  size_t order_count = 0;
  bool gated = true;
  bool takes_turns = false;
  bool copied_by_proxy = false;
  std::shared_ptr<DeviceQueue> queue;  // where it is
  size_t mailbox_count = 1;
  size_t byte_count = 0;
  std::shared_ptr<Staging> staging;  // empty: run_here()
  uint32_t number = 0;               // what the stream writes to ring; not 0
  // How often the stream will ring; less from when enqueueing has failed.
  std::atomic<size_t> rings{1};

  char* send_stage(const Lane& lane, size_t slice) const;
  char* recv_stage(const Lane& lane, size_t slice) const;
  Mailbox& mailbox(const Lane& lane, size_t slice) const;
  // The first to ring.
  Mailbox& door() const { return staging->mailboxes[0]; }
};

// Cuts the operations and lays out the staging. `alone`: no other flight uses its streams in between.
// `on_device` tells of a pointer whether only a device reaches it.
std::unique_ptr<Flight> plan_flight(std::vector<Operation> operations, bool alone,
                                    bool (*on_device)(const void* context, const void* pointer),
                                    const void* context);

}  // namespace weir::nccl
