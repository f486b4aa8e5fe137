// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/message_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/rank_list.h"

namespace weir::comm {

MessageWatch::MessageWatch(WatchedCall call, const std::vector<StreamMessage>& messages,
                           bool runs_beside)
    : StreamWatch(std::move(call)), runs_beside_(runs_beside) {
  for (const StreamMessage& it : messages) messages_.push_back({it.peer, it.sends, it.bytes, 0});
}

void MessageWatch::end_by_counters(const std::vector<StreamMessage>& messages,
                                   const uint64_t* begun) {
  const std::vector<MessageCall::Order> orders = MessageCall::orders_of(messages);
  for (const Message& it : messages_) {
    const auto order = std::find_if(orders.begin(), orders.end(), [&](const auto& one) {
      return one.peer == it.peer && one.sends == it.sends;
    });
    const auto before = std::find_if(ends_.rbegin(), ends_.rend(), [&](const MessageEnd& earlier) {
      return earlier.is_before(it.peer, it.sends);
    });
    ends_.push_back(MessageEnd(memory(), it.peer, it.sends, it.bytes,
                               begun + (order - orders.begin()) * kernels::kMessageLanes,
                               before == ends_.rend() ? nullptr : &*before));
  }
}

// The messages of a pair end in their order.
bool MessageWatch::has_moved_all() const {
  return !ends_.empty() && std::all_of(ends_.rbegin(), ends_.rend(), [](const MessageEnd& it) {
    return it.has_come() && it.is_left();
  });
}

void MessageWatch::note_begun() {
  if (std::exchange(begun_, true)) return;
  if (in_graph()) {
    for (const Message& it : messages_) record_capture(it.bytes);
  }
  if (record() == nullptr) return;
  for (Message& it : messages_) {
    it.record = record()->message_begun(it.sends, it.peer, it.bytes);
  }
}

void MessageWatch::note_ended() {
  if (record() == nullptr) return;
  record()->waits_no_more();
  for (const Message& it : messages_) {
    if (it.record != 0) record()->message_ended(it.record);
  }
}

kernels::MessageLane* MessageWatch::lanes(const Message& one) const {
  return one.sends ? memory().flags().lanes(memory().rank(), one.peer)
                   : memory().flags().lanes(one.peer, memory().rank());
}

// This end is not done with the lanes of the pair, and the other end must come first.
bool MessageWatch::waits_in(const Message& one) const {
  for (uint32_t i = 0; i < kernels::kMessageLanes; ++i) {
    const kernels::MessageLane& lane = lanes(one)[i];
    const uint32_t waiting = load_word(lane.put) - load_word(lane.taken);
    if (one.sends ? load_word(lane.sends) != 0 && waiting >= kernels::kMessageSlots
                  : load_word(lane.receives) != 0 && waiting == 0) {
      return true;
    }
  }
  return false;
}

std::vector<Rank> MessageWatch::awaited_as(bool sends) const {
  std::vector<Rank> ranks;
  for (const Message& it : messages_) {
    if (it.sends == sends && waits_in(it)) ranks.push_back(it.peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

uint64_t MessageWatch::progress_mark() const {
  uint64_t mark = 0;
  for (const Message& it : messages_) {
    for (uint32_t i = 0; i < kernels::kMessageLanes; ++i) {
      const kernels::MessageLane& lane = lanes(it)[i];
      mark = (mark * 1099511628211u + load_word(lane.put)) * 1099511628211u + load_word(lane.taken);
    }
  }
  return mark;
}

// The kernel of the receiver has found another length than that of its own message.
bool MessageWatch::finds_fault() {
  for (const Message& it : messages_) {
    const kernels::MessageLane& lane = lanes(it)[0];
    if (load_word(lane.refused) == 0) continue;
    const uint64_t sent = lane.bytes[load_word(lane.taken) % kernels::kMessageSlots];
    const Rank me = memory().rank();
    fail(Code::kMismatch,
         fmt::format("rank {} sends {} bytes, rank {} receives {}: a send and its receive must "
                     "have the same count and type",
                     it.sends ? me : it.peer, sent, it.sends ? it.peer : me, lane.expected));
    return true;
  }
  return false;
}

std::vector<Rank> MessageWatch::needed_of(const std::vector<Rank>& gone) const {
  std::vector<Rank> needed;
  for (const Rank rank : gone) {
    const bool any = std::any_of(messages_.begin(), messages_.end(), [&](const Message& it) {
      return it.peer == rank && waits_in(it);
    });
    if (any) needed.push_back(rank);
  }
  return needed;
}

std::vector<Rank> MessageWatch::without_end() const {
  std::vector<Rank> ranks;
  for (const Message& it : messages_) {
    const kernels::MessageLane& lane = lanes(it)[0];
    const bool is_there = load_word(it.sends ? lane.receives : lane.sends) != 0;
    if (it.peer != memory().rank() && waits_in(it) && !is_there) ranks.push_back(it.peer);
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string MessageWatch::late_text(const std::vector<Rank>& culprits) const {
  std::string text;
  if (const std::vector<Rank> ranks = awaited_as(true); !ranks.empty()) {
    text += fmt::format(
        "; {} did not receive what this rank sends (messages that wait for each other belong in "
        "one group)",
        describe_ranks(ranks));
  }
  if (const std::vector<Rank> ranks = awaited_as(false); !ranks.empty()) {
    text += fmt::format("; {} did not send what this rank receives", describe_ranks(ranks));
  }
  const std::vector<Rank> direct = awaited();
  std::vector<Rank> behind;
  std::set_difference(culprits.begin(), culprits.end(), direct.begin(), direct.end(),
                      std::back_inserter(behind));
  if (!behind.empty()) {
    const bool is_one = direct.size() == 1;
    text += fmt::format("; {} {} for {}", is_one ? "that rank" : "these ranks",
                        is_one ? "waits" : "wait", describe_ranks(behind));
  }
  return text + owner().message_hint(without_end());
}

std::vector<Rank> MessageWatch::awaited() const {
  std::vector<Rank> ranks = awaited_as(true);
  for (const Rank rank : awaited_as(false)) ranks.push_back(rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void MessageWatch::record_wait(uint64_t since_ns) const {
  for (const Message& it : messages_) {
    if (it.record == 0 || !waits_in(it)) continue;
    std::vector<Rank> ranks{it.peer};
    for (const bool sends : {true, false}) {
      for (const Rank rank : awaited_as(sends)) {
        if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
      }
    }
    record()->message_waits(it.record, it.sends, it.bytes, since_ns, ranks);
    return;
  }
}

}  // namespace weir::comm
