// SPDX-License-Identifier: Apache-2.0
// StreamRecord: the recorder's file for collectives and messages that are work of their streams
// alone (core/comm/record). They have numbers of their own, so the file is one beside the
// communicator's. A call is begun when it is enqueued and completed when its stream has passed it,
// as far as the thread that watches has seen; once its stream stands in it for long, the file says
// for whom, and in which way the call goes. Of a call in a graph there is one record, of its
// capture, among the messages, and none of its launches, which no thread of the host sees.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/record/recorder.h"
#include "core/comm/stream/stream_call.h"

namespace weir::comm {

class StreamRecord {
 public:
  // `number`: the same on all ranks, and of no other communicator. nullptr: the recorder is off, or
  // has no file. `earlier`: some time before now.
  static std::shared_ptr<StreamRecord> open(const std::string& comm_name, Rank rank,
                                            Rank rank_count, uint64_t number,
                                            const ClockReading& earlier);

  // Calls have the numbers 1, 2, … (StreamMemory::next_call), and begin and end in this order.
  void begun(uint64_t call, const CallWords& words);
  void ended(uint64_t call);
  // Its stream has stood in it for long without any progress; may be repeated.
  void waits(uint64_t call, const CallWords& words, const CallWay& way, uint64_t since_ns,
             const std::vector<Rank>& awaited);
  // A call of so many bytes became part of a graph.
  void captured(uint64_t bytes);
  void waits_no_more();
  // A message; its number.
  uint64_t message_begun(bool sends, Rank peer, uint64_t bytes);
  void message_ended(uint64_t number);
  void message_waits(uint64_t number, bool sends, uint64_t bytes, uint64_t since_ns,
                     const std::vector<Rank>& awaited);
  // The first one counts.
  void failed(const std::string& why);

 private:
  StreamRecord() = default;
  void write(const Wait& wait);

  std::mutex lock_;
  Recorder recorder_;
  Rank rank_ = 0;
  bool failed_ = false;
};

}  // namespace weir::comm
