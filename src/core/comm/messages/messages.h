// SPDX-License-Identifier: Apache-2.0
// Messages: the sends and receives of a communicator, beside its collectives and in order per peer
// and direction. A message on device memory that uses a stream is posted when the stream reaches
// the call, and after all earlier ones with the same peer in the same direction, since the k-th of
// them meets the peer's k-th.
//
// `take_device_buffer`, `takes_device` and `device_of` take the communicator's lock; the others are
// called with it held.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/device/device_context.h"
#include "core/comm/device/device_route.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"

namespace weir::comm {

class Messages {
 public:
  Messages(CommState& state, Requests& requests, const DeviceRoute& devices)
      : state_(state), requests_(requests), devices_(devices) {}
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  // ---- Any thread.
  // Marks a message whose buffer lies on `device` as one on device memory. Fails if the transport
  // does not take it, or if the messages of this rank lie on another device. `not_direct`: why it
  // does not go directly between devices, or "".
  Status take_device_buffer(Request& request, int device, const std::string& not_direct = {});
  // Whether the transport takes messages with `peer` on memory of `device`. Asks it.
  bool takes_device(Rank peer, int device);
  // The device in whose memory `buffer` lies, if messages with `peer` may lie there, else -1.
  int device_of(Rank peer, const void* buffer);

  // ---- With the lock held.
  void start(Request& request, OperationFailure* failure);
  // True when something moved.
  bool poll(OperationFailure* failure);
  void fail_all(const Status& status);
  bool is_empty() const { return posted_.empty() && waiting_.empty(); }
  // The messages that the transport has.
  const std::vector<Request*>& posted() const { return posted_; }
  bool waits_for_stream(const Request& request) const;
  // The context that a thread needs to call the transport (see DeviceContext::Scope); nullptr:
  // none.
  const DeviceContext* device_context() const { return device_.get(); }
  // In a child made by fork: CUDA's objects do not work there, not even to be destroyed.
  void leave_to_child() { (void)device_.release(); }

 private:
  bool post_waiting(OperationFailure* failure);  // posts the messages whose turn has come
  void post(Request& request, OperationFailure* failure);
  void record(Request& request, bool is_done);  // unless it has a record

  CommState& state_;
  Requests& requests_;
  const DeviceRoute& devices_;
  std::unique_ptr<DeviceContext> device_;  // once there was a message on device memory
  std::vector<Request*> posted_;           // not done
  // Started, not posted, in the order of the calls: their streams have not reached them, or they
  // come after such a message.
  std::vector<Request*> waiting_;
};

}  // namespace weir::comm
