// SPDX-License-Identifier: Apache-2.0
// Request: one operation from the call until it is complete. Owned by the communicator's pool, or
// by the stack of a blocking call. Guarded by the communicator's lock, but for `done`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/engine/call.h"
#include "weir/plugin.h"

namespace weir::comm {

class Communicator;

enum class RequestKind : uint8_t { kCollective, kSend, kRecv, kAllToAllV, kDevice };

// Of a call on device memory, as it was made.
struct DeviceCall {
  int device = 0;
  // Of a message: where its stream must have come to (DeviceContext::Mark); null: it has.
  void* mark = nullptr;
  // The rest of a collective.
  bool on_stream = false;  // the caller's; its call ends when the operation is on it
  void* stream = nullptr;
  bool is_all_to_all_v = false;
  std::vector<uint64_t> send_counts, send_displacements, recv_counts, recv_displacements;
  bool taken = false;  // by the transport
  bool enqueued = false;
  bool detached = false;  // nobody has a handle of it: the communicator releases it
};

struct Request {
  Communicator* comm = nullptr;
  RequestKind kind = RequestKind::kCollective;
  engine::Call call;
  std::vector<size_t> block_counts;  // owned copies of what call points to
  std::vector<size_t> block_displacements;

  // Point to point.
  Rank peer = 0;
  uint64_t bytes = 0;
  int known_device =
      -1;  // on which the caller knows that the buffer lies, also where it else is the host's
  weir_transport_op_t op{};
  // All-to-all-v: one message each way per peer.
  std::vector<Request> parts;
  std::unique_ptr<DeviceCall> device;  // kDevice, and messages on device memory

  Request* next = nullptr;  // in the communicator's queue of collectives, or of those on devices
  bool started = false;
  bool described = false;    // the call has been published, to agree on windows
  uint64_t sequence = 0;     // of a collective, once started
  int64_t timeout_ms = 0;    // the communicator's when it was started; 0: the one it has now
  uint64_t deadline_ns = 0;  // 0 until somebody has to wait
  uint64_t begin_ns = 0;     // when it began, where times are recorded
  uint64_t waited_ns = 0;    // since when somebody waits, as of the first slow look; 0: nobody
  uint64_t record = 0;       // number of a message in the recorder
  Status status;
  std::atomic<bool> done{false};

  Request() = default;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  Request(Request&& other) noexcept;  // before it is started only
};

}  // namespace weir::comm
