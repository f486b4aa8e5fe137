// SPDX-License-Identifier: Apache-2.0
// Meeting: how the ranks agree, at the place of a call in the queue of collectives, on how calls on
// memory of devices are performed: a request at the head of the queue that exchanges a record with
// all others, by all-gather over the communicator's own transport, as often as it takes. All ranks
// decide from the same records.
//
// With the communicator's lock held.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/collective_queue.h"
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
  uint32_t transport_has_messages = 0;  // 1: those on memory of devices
  unsigned char introduction[WEIR_TRANSPORT_ADDRESS_BYTES_MAX] = {};
  char text[kTextBytes] = {};  // why

  void say(State the_state, const Status& why);
  // Without what a terminal would take for more than text.
  std::string why() const;
};
static_assert(sizeof(MeetingRecord) == 1024);

class Meeting {
 public:
  Meeting(CommState& state, Requests& requests, CollectiveQueue& queue);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Takes its place at the end of the queue, and begins the first exchange once it has come to the
  // head.
  void enqueue();
  // Exchanges `mine` again.
  void exchange();
  // True once after each exchange: `all` is there.
  bool has_exchanged();
  bool is_exchanging() const { return exchanging_; }
  // Not OK: the exchange itself could not be planned.
  Status failure() const;
  // Leaves the queue, wherever in it.
  void end();
  uint64_t exchanged_ns() const { return exchanged_ns_; }  // when the latest exchange ended
  Request& request() { return request_; }

  MeetingRecord mine;
  std::vector<MeetingRecord> all;

 private:
  CommState& state_;
  Requests& requests_;
  CollectiveQueue& queue_;
  Request request_;
  bool exchanging_ = false;
  uint64_t exchanged_ns_ = 0;
};

}  // namespace weir::comm
