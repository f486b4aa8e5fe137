// SPDX-License-Identifier: Apache-2.0
// WatchedCommunicator: a communicator as those threads see it that watch its calls on streams,
// which may outlive it: graphs can be launched after its end. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "core/comm/stream/stream_owner.h"

namespace weir::comm {

class Communicator;

class WatchedCommunicator final : public StreamOwner {
 public:
  explicit WatchedCommunicator(Communicator* comm) : comm_(comm) {}

  // The communicator ends: from now on it counts as broken. Waits for a thread that is using it.
  void detach();

  bool is_broken() override;
  std::string last_error() override;
  bool hears_of_error(const char* function) override;
  std::vector<Rank> gone_ranks() override;
  void note_stuck(const void* call, const std::vector<Rank>& awaited) override;
  bool find_culprits(const std::vector<Rank>& awaited, const WaitTime& time, uint64_t timeout_ns,
                     std::vector<Rank>* culprits) override;
  void give_up(const Status& why, const std::vector<Rank>& blamed) override;
  std::string describe_lost(const std::vector<Rank>& ranks) override;
  std::string message_hint(const std::vector<Rank>& ranks) override;
  std::string collective_hint(const std::vector<Rank>& ranks) override;
  std::string queue_hint() override { return ""; }

 private:
  std::mutex lock_;
  Communicator* comm_;  // nullptr: it has ended
};

}  // namespace weir::comm
