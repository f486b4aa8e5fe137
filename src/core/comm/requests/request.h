// SPDX-License-Identifier: Apache-2.0
// Request: one operation from the call until it is complete. Owned by the communicator's pool, or
// by the stack of a blocking call. Guarded by the communicator's lock, but for `done`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/comm/requests/callbacks.h"
#include "core/comm/requests/one_sided_call.h"
#include "core/engine/call.h"
#include "weir/plugin.h"

namespace weir::comm {

class Communicator;

enum class RequestKind : uint8_t {
  kCollective,
  kSend,
  kRecv,
  kDevice,
  kOneSided,
  kTagSend,
  kTagRecv
};

class DeviceContext;
class StreamWatch;

// Removes a mark on a stream from the context that has made it.
struct RemoveMark {
  DeviceContext* context = nullptr;
  void operator()(void* mark) const;
};
using StreamMark = std::unique_ptr<void, RemoveMark>;

// The calls between weir_group_start and weir_group_end of which some are messages that are work of
// streams: such calls are enqueued together, once all of the group have been started.
struct CallGroup {
  std::atomic<bool> all_started{false};
};

// The device, stream and state of a call on device memory.
struct DeviceCall {
  int device = 0;
  StreamMark mark;  // of a message by the transport: the point that its stream must reach
  // The rest is not for messages by the transport.
  bool on_stream = false;  // the caller's stream; the call ends once the operation is on it
  void* stream = nullptr;
  bool is_all_to_all_v = false;
  std::vector<uint64_t> send_counts, send_displacements, recv_counts, recv_displacements;
  bool taken = false;  // by the transport
  bool enqueued = false;
  // Directly between the devices (DeviceStreams, DeviceMessages), and not by a transport.
  bool by_stream = false;
  std::shared_ptr<const CallGroup> group;  // empty: it is in no such group
  bool is_being_enqueued = false;          // by a thread without the communicator's lock
  std::shared_ptr<StreamWatch> watch;      // once enqueued, outside of graphs
  std::thread::id caller;
  bool detached = false;  // the caller has no handle: the communicator releases it

  bool is_of_open_group() const {
    return group != nullptr && !group->all_started.load(std::memory_order_acquire);
  }
};

// What a message with a tag has beside its peer, length and buffer.
struct TagCall {
  int32_t tag = 0;  // of a receive also WEIR_ANY_TAG
  bool is_from_any = false;
  bool is_blocking = false;
  weir_tag_info_t* info = nullptr;  // of a receive: the caller's, or nullptr
  uint32_t index = 0;               // in TagService
};

struct Request {
  Communicator* comm = nullptr;
  RequestKind kind = RequestKind::kCollective;
  engine::Call call;
  std::vector<size_t> block_counts;  // owned copies of what call points to
  std::vector<size_t> block_displacements;
  std::vector<size_t> recv_counts;
  std::vector<size_t> recv_displacements;

  // Point to point.
  Rank peer = 0;
  uint64_t bytes = 0;
  int known_device =
      -1;       // known to the caller to hold the buffer, which may otherwise count as host memory
  TagCall tag;  // kTagSend, kTagRecv
  weir_transport_op_t op{};
  std::unique_ptr<DeviceCall> device;       // kDevice, and messages on device memory
  std::unique_ptr<OneSidedCall> one_sided;  // kOneSided; kept for the next one
  Completion completion;                    // called when it is done

  Request* next = nullptr;  // in the communicator's queue of collectives, or of those on devices
  bool started = false;
  bool taken = false;  // by the communicator: it completes the request
  // The number by which it explores (Planner::plan_to_explore); 0: it does not.
  uint64_t explored = 0;
  bool described = false;  // the call has been published, to agree on what it needs
  bool ahead = false;      // its blocks, which are short, have been published, too
  // A collective that, when it is done, stays at the head of the queue, paused, until its owner
  // lets it run again or removes it.
  bool repeats = false;
  bool paused = false;
  uint64_t sequence = 0;     // of a collective, once started
  int64_t timeout_ms = 0;    // the communicator's when it was started; 0: the one it has now
  uint64_t deadline_ns = 0;  // 0 until a thread has to wait
  uint64_t begin_ns = 0;     // when it began, where times are recorded
  uint64_t waited_ns = 0;    // since when a thread waits, as of the first slow check; 0: none
  uint64_t record = 0;       // number of a message in the recorder
  Status status;
  // Of the pool: from acquire to release. A handle whose request is not alive was given back.
  std::atomic<bool> is_alive{false};
  std::atomic<bool> done{false};

  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  bool is_message() const { return kind == RequestKind::kSend || kind == RequestKind::kRecv; }
  // A message that goes directly between devices.
  bool is_stream_message() const { return is_message() && device != nullptr && device->by_stream; }
  // It is performed on devices, by work of streams or by a transport as a whole.
  bool is_of_device_side() const { return kind == RequestKind::kDevice || is_stream_message(); }
};

}  // namespace weir::comm
