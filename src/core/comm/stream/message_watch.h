// SPDX-License-Identifier: Apache-2.0
// MessageWatch: the watch of the messages of one group on one communicator that are work of the
// stream alone (MessageCall). What has moved, and for whom a kernel waits, it reads from the
// counters of the lanes, which lie in memory of the host.
//
// Used as StreamWatch is.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/stream/message_call.h"
#include "core/comm/stream/message_end.h"
#include "core/comm/stream/stream_watch.h"

namespace weir::comm {

class MessageWatch : public StreamWatch {
 public:
  // `runs_beside`: other calls with messages may run at the same time, with other peers or in other
  // directions.
  MessageWatch(WatchedCall call, const std::vector<StreamMessage>& messages,
               bool runs_beside = false);

  // The stream does not tell the end of the call: the counters of the lanes do. `begun`: of
  // MessageCall::tell_begin, with the same messages. Before the call is enqueued.
  void end_by_counters(const std::vector<StreamMessage>& messages, const uint64_t* begun);
  // Then: the ends of the messages, in the order of the calls.
  const std::vector<MessageEnd>& ends() const { return ends_; }

  size_t order() const override { return 1; }
  bool is_followed_only() const override { return !runs_beside_; }
  void note_begun() override;

 private:
  void note_ended() override;
  struct Message {
    Rank peer;
    bool sends;
    uint64_t bytes;
    uint64_t record;  // StreamRecord::message_begun; 0: none
  };

  kernels::MessageLane* lanes(const Message& one) const;
  // For whom the kernel waits, as a sender or as a receiver.
  std::vector<Rank> awaited_as(bool sends) const;
  // The peers of which no kernel has anything for this message.
  std::vector<Rank> without_end() const;
  bool waits_in(const Message& one) const;

  bool has_moved_all() const override;
  uint64_t progress_mark() const override;
  void release() override { memory().stop_messages(); }
  bool finds_fault() override;
  std::vector<Rank> needed_of(const std::vector<Rank>& gone) const override;
  std::vector<Rank> awaited() const override;
  std::vector<Rank> late_ranks() const override { return awaited(); }
  std::string late_text(const std::vector<Rank>& culprits) const override;
  void record_wait(uint64_t since_ns) const override;

  const bool runs_beside_;
  std::vector<Message> messages_;  // in the order of the calls
  std::vector<MessageEnd> ends_;   // where the counters tell them
  bool begun_ = false;
};

}  // namespace weir::comm
