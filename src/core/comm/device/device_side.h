// SPDX-License-Identifier: Apache-2.0
// DeviceSide: the collectives of a communicator on memory of a device, from the first such call on:
// a transport takes them whole (WEIR_CAP_COLLECTIVES), one after the other.
//
// Start. All ranks call the same first operation, so at its place in the queue of collectives each
// enters a *meeting*: a request at the head of the queue that exchanges a record with all others,
// by all-gather over the communicator's own transport, as often as it takes. First each rank tells
// whether it can take part and what the others must know; then all begin to join and exchange their
// progress, until all have joined or one has failed. All ranks decide from the same records.
//
// With the communicator's lock held, but for `is_open`.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/collective_queue.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"
#include "weir/plugin.h"

namespace weir::comm {

// The record that a rank sends in a meeting, as it lies in memory; not trusted.
struct MeetingRecord {
  static constexpr uint32_t kTextBytes = 496;
  enum State : uint32_t { kUnable = 0, kAble = 1, kJoining = 2, kJoined = 3, kFailed = 4 };

  uint32_t state = kUnable;
  uint32_t code = 0;  // Code, where it is unable or has failed
  uint32_t introduction_bytes = 0;
  uint32_t reserved = 0;
  unsigned char introduction[WEIR_TRANSPORT_ADDRESS_BYTES_MAX] = {};
  char text[kTextBytes] = {};  // why

  void say(State the_state, const Status& why);
};
static_assert(sizeof(MeetingRecord) == 1024);

class DeviceSide {
 public:
  DeviceSide(CommState& state, Requests& requests, CollectiveQueue& queue)
      : state_(state), requests_(requests), queue_(queue) {}
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  // Whether there was such a call. Any thread.
  bool is_open() const { return is_open_.load(std::memory_order_acquire); }

  // Takes an operation over. Fails without effect.
  Status start(Request& request);
  // True when something moved.
  bool poll(OperationFailure* failure);
  // All operations fail once the transport releases their buffers.
  void fail_all(const Status& status);

  bool is_empty() const { return opened_ == nullptr || opened_->first == nullptr; }
  const Request* first() const { return is_empty() ? nullptr : opened_->first; }
  // An operation without a handle at the caller; nullptr: there is none.
  Request* first_detached() const;
  // The transport has the operation, and does not tell which ranks it waits for.
  bool has(const Request& request) const {
    return request.kind == RequestKind::kDevice && opened_ != nullptr &&
           opened_->step == Step::kReady;
  }

  // The last call: waits, for a bounded time, until the device releases the buffers.
  void close();
  // In a child made by fork: CUDA's objects do not work there, not even to be destroyed.
  void leave_to_child() { (void)opened_.release(); }

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

    Request meeting;
    bool exchanging = false;
    uint64_t exchanged_ns = 0;  // when the latest exchange ended
    weir_result_t joined = WEIR_IN_PROGRESS;
    MeetingRecord mine;
    std::vector<MeetingRecord> all;

    Status refusal;
    Status failure;
    uint64_t ending_ns = 0;  // since when

    // Operations in the order of the calls, linked by Request::next.
    Request* first = nullptr;
    Request* last = nullptr;
  };

  void open(int device);
  Status find_transport(int device);
  void begin_exchange();
  void exchange_done();
  void refuse(const Status& reason);
  bool poll_joining();
  bool serve(OperationFailure* failure);
  void operation_failed(const Request& request, weir_result_t result,
                        OperationFailure* failure) const;
  bool end();  // true when no operation is left
  void take_out(Request* before, Request& request);
  void complete_all(const Status& status);
  std::string way() const;

  CommState& state_;
  Requests& requests_;
  CollectiveQueue& queue_;
  std::unique_ptr<Opened> opened_;
  std::atomic<bool> is_open_{false};
};

}  // namespace weir::comm
