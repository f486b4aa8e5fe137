// SPDX-License-Identifier: Apache-2.0
// DeviceSide: the operations of a communicator on memory of devices. They go from device to device
// where all ranks can (DeviceStreams, DeviceMessages); else, and where a collective is of another
// kind, a transport takes collectives whole (WEIR_CAP_COLLECTIVES), one after the other.
//
// Start. Where all ranks have a device when the communicator is made, they make DeviceStreams ready
// then (`prepare`). Otherwise, or where that was not possible, all ranks call the same first
// collective, and at its place in the queue of collectives each enters a meeting. First the ranks
// make DeviceStreams ready, or find out which of them cannot take part, and why. If one cannot,
// they go on to start the transport in the same meeting: each rank tells whether it can take part
// and what the others must know; then all begin to join and exchange their progress, until all have
// joined or one has failed. A call that only the transport performs begins with that, in a meeting
// of its own.
//
// Messages. Not all ranks call one, so the first of them cannot begin a meeting: they go from
// device to device once there has been one. Where the communicator's transport takes memory of
// devices on any rank, messages are its own instead.
//
// With the communicator's lock held, but for `is_open`, `has_calls` and `enqueue_pending`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/collective_queue.h"
#include "core/comm/device/device_messages.h"
#include "core/comm/device/device_streams.h"
#include "core/comm/device/meeting.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/stream/stream_owner.h"
#include "core/control/network.h"
#include "weir/plugin.h"

namespace weir::comm {

class DeviceSide {
 public:
  DeviceSide(CommState& state, Requests& requests, CollectiveQueue& queue)
      : state_(state),
        requests_(requests),
        queue_(queue),
        streams_(state, requests),
        messages_(state, requests) {}
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  // Before any call. `owner`: the communicator, for threads that watch its calls; `network`:
  // nullptr where this is the only rank.
  void set_owner(std::shared_ptr<StreamOwner> owner, control::Network* network) {
    owner_ = std::move(owner);
    network_ = network;
  }

  // Whether there was such a call, or a preparation. Any thread.
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }
  bool has_calls() const { return has_calls_.load(std::memory_order_acquire); }

  // While the communicator is made, on all ranks: begins to make it ready for calls on memory of
  // `device`. Without effect where it is not possible.
  void prepare(int device);
  // While the ranks find out whether calls go from device to device: the request that waits for the
  // other ranks.
  Request* deciding();
  // Calls do so.
  bool is_ready() const { return streams_.is_ready(); }
  const StreamParts& stream_parts() const { return streams_.parts(); }

  // Whether a message on memory of a device goes from device to device, or will once that is
  // decided; else `why_not` says why not.
  bool takes_message(std::string* why_not) const;

  // Of this rank, for calls from device to device.
  int device() const { return streams_.device(); }

  // Takes an operation over. Fails without effect.
  Status start(Request& request);
  // True when something moved.
  bool poll(OperationFailure* failure);
  // Without the lock, in a thread that may call CUDA: puts operations on their streams. Costs a
  // load where there are none.
  void enqueue_pending();
  // All operations fail once the transport releases their buffers.
  void fail_all(const Status& status);

  // Of collectives.
  bool is_empty() const { return first() == nullptr; }
  const Request* first() const {
    if (!streams_.is_empty()) return streams_.first();
    return opened_ == nullptr ? nullptr : opened_->first;
  }
  const DeviceMessages& messages() const { return messages_; }
  // What calls from device to device use; nullptr: they do not go so, or it is not decided yet, and
  // `why_not` says why. The same on all ranks at the same place among their collectives.
  StreamMemory* stream_memory(std::string* why_not) const;
  bool is_undecided() const { return stream_step_ == StreamStep::kNone; }
  // An operation without a handle at the caller; nullptr: there is none.
  Request* first_detached() const;
  // The transport, or the stream, has the operation, and does not tell which ranks it waits for.
  bool has(const Request& request) const {
    if (!request.is_of_device_side()) return false;
    if (request.device->by_stream) return request.device->enqueued;
    return opened_ != nullptr && opened_->step == Step::kReady;
  }
  // Its stream has not reached it.
  static bool waits_for_stream(const Request& request) {
    const StreamWatch* watch = watch_of(request);
    return watch != nullptr && !watch->running() && !watch->ended();
  }
  // Its stream is in it, and a thread of its own watches its deadline; or will be, and nobody waits
  // for it.
  static bool is_watched(const Request& request) {
    const StreamWatch* watch = watch_of(request);
    if (watch == nullptr) return false;
    return watch->running() || (request.device->detached && !watch->ended());
  }

  // The last call: waits, for a bounded time, until the device releases the buffers.
  void close();
  // In a child made by fork: CUDA's objects do not work there, not even to be destroyed.
  void leave_to_child() {
    (void)opened_.release();
    messages_.leave_to_child();
    streams_.leave_to_child();
  }

 private:
  enum class Step : uint8_t {
    kMeeting,   // exchanges whether all can take part
    kStarting,  // joins, and exchanges the progress
    kReady,
    kRefused,  // `refusal` is the answer to every call
    // The communicator has failed; operations end once the transport releases their buffers.
    kEnding,
  };

  struct Opened {
    Step step = Step::kMeeting;
    int device = 0;  // of this rank
    const weir_transport_functions_t* transport = nullptr;
    const weir_collective_functions_t* functions = nullptr;
    weir_transport_t* instance = nullptr;

    std::unique_ptr<Meeting> meeting;
    weir_result_t joined = WEIR_IN_PROGRESS;
    bool tells_at_once = false;  // `join` has been called, and nothing was told since

    Status refusal;
    Status failure;
    uint64_t ending_ns = 0;  // since when

    // Operations in the order of the calls, linked by Request::next.
    Request* first = nullptr;
    Request* last = nullptr;
  };

  static const StreamWatch* watch_of(const Request& request) {
    const bool has_any =
        request.is_of_device_side() && request.device->by_stream && request.device->enqueued;
    return has_any ? request.device->watch.get() : nullptr;
  }

  // ---- From device to device.
  enum class StreamStep : uint8_t {
    kNone,
    kMeeting,  // exchanges what each rank has
    kVoting,   // exchanges whether each reaches the others
    kDecided,
  };
  void open_streams(int device);
  Status start_message(Request& request);
  void refuse_messages();
  void poll_streams_meeting();
  void stream_exchange_done();
  void refuse_streams(const std::string& reason);

  bool end_streams(const Status& status);  // true when no operation is left
  std::string why_no_streams() const;      // "; …", or ""
  Status other_device(const Request& request, int device) const;

  // ---- By the transport.
  Status start_with_transport(Request& request);
  void start_all_with_transport(const std::vector<Request*>& pending);
  // Begins in this meeting, whose exchange has ended.
  void open(int device, std::unique_ptr<Meeting> meeting);
  Status find_transport(int device, MeetingRecord* mine);
  void exchange_done();
  void refuse(const Status& reason);
  bool poll_transport(OperationFailure* failure);
  bool poll_joining();
  bool serve(OperationFailure* failure);
  void explain_transport(const Request& request);
  void operation_failed(const Request& request, weir_result_t result,
                        OperationFailure* failure) const;
  bool end();  // true when no operation is left
  void take_out(Request* before, Request& request);
  void complete_all(const Status& status);
  std::string way() const;

  CommState& state_;
  Requests& requests_;
  CollectiveQueue& queue_;
  std::shared_ptr<StreamOwner> owner_;
  control::Network* network_ = nullptr;

  StreamStep stream_step_ = StreamStep::kNone;
  DeviceStreams streams_;
  DeviceMessages messages_;
  std::mutex enqueue_lock_;                  // of the thread that puts calls on streams
  std::unique_ptr<Meeting> stream_meeting_;  // until it is decided
  bool prepares_ = false;                    // while the communicator is made
  std::string prepare_refusal_;              // why it was not possible then
  std::string stream_refusal_;               // why not; "": undecided, or they do
  bool transport_has_messages_ = false;      // on memory of devices, on some rank
  uint64_t streams_ending_ns_ = 0;           // since when they end; 0: they do not

  std::unique_ptr<Opened> opened_;
  std::set<std::string> explained_;
  std::atomic<bool> is_open_{false};
  std::atomic<bool> has_calls_{false};
};

}  // namespace weir::comm
