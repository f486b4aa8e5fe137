// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/meeting.h"

#include <cstdio>
#include <cstring>

#include "core/base/clock.h"

namespace weir::comm {

void MeetingRecord::say(State the_state, const Status& why) {
  state = the_state;
  code = static_cast<uint32_t>(why.code());
  std::snprintf(text, sizeof text, "%s", why.text().c_str());
}

std::string MeetingRecord::why() const {
  std::string copy(text, strnlen(text, sizeof text));
  for (char& c : copy) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return copy;
}

Meeting::Meeting(CommState& state, Requests& requests, CollectiveQueue& queue)
    : all(state.rank_count()), state_(state), requests_(requests), queue_(queue) {}

void Meeting::enqueue() {
  request_.timeout_ms = state_.timeout_ms.load();
  request_.call.collective = Collective::kAllGather;
  request_.call.type = DataType::kUint8;
  request_.call.count = sizeof(MeetingRecord);
  request_.call.input = &mine;
  request_.call.output = all.data();
  request_.repeats = true;
  requests_.begin(request_);
  queue_.enqueue(request_);
  exchange();
}

void Meeting::exchange() {
  request_.paused = false;
  exchanging_ = true;
}

bool Meeting::has_exchanged() {
  if (!exchanging_ || !request_.paused) return false;
  exchanging_ = false;
  exchanged_ns_ = now_ns();
  return true;
}

Status Meeting::failure() const {
  return request_.done.load(std::memory_order_relaxed) ? request_.status : Status();
}

void Meeting::end() {
  queue_.remove(request_);
  exchanging_ = false;
  if (!request_.done.load(std::memory_order_relaxed)) requests_.complete(request_, Status());
}

}  // namespace weir::comm
