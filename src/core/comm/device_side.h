// SPDX-License-Identifier: Apache-2.0
// DeviceSide: what a communicator holds to run collectives on memory of devices, from the first such call
// on: the transport that takes them whole (WEIR_CAP_COLLECTIVES), how far the ranks have come in
// starting it, and the operations under way. Guarded by the communicator's lock. The work is in
// device.cc.
//
// Start. All ranks call the same first operation, so at its place in the queue of collectives each
// enters a *meeting*: a request at the head of the queue that exchanges a record with all others,
// by all-gather over the communicator's own transport, as often as it takes. First everybody tells
// whether it can and what the others must know; then all begin to join and exchange how that goes,
// until all have joined or one has failed. Every rank draws its conclusion from the same records.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/comm/request.h"
#include "weir/plugin.h"

namespace weir::comm {

// What a rank tells in a meeting, as it lies in memory; not trusted.
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

struct DeviceSide {
  enum class State : uint8_t {
    kMeeting,   // exchanges whether all can
    kStarting,  // joins, and exchanges how that goes
    kReady,
    kRefused,  // `refusal` is the answer to every call
    kEnding,  // the communicator has failed; operations end once the transport lets go of their buffers
  };

  State state = State::kMeeting;
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

}  // namespace weir::comm
