// SPDX-License-Identifier: Apache-2.0
// StreamOwner: the communicator of calls that are work of streams alone, as the threads that watch
// them (stream_watch.h) see it. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/state/wait_time.h"

namespace weir::comm {

class StreamOwner {
 public:
  virtual ~StreamOwner() = default;

  // It has failed, or was stopped here: its streams are let go.
  virtual bool is_broken() = 0;
  virtual std::string last_error() = 0;
  // Whether a peer has reported an error; it has failed then. `function`: of the call.
  virtual bool hears_of_error(const char* function) = 0;
  // Ranks that have died or left; none where a peer has reported an error, which is heard of then.
  virtual std::vector<Rank> gone_ranks() = 0;
  // Of such ranks: "rank 3 died and rank 0 destroyed the communicator".
  virtual std::string describe_lost(const std::vector<Rank>& ranks) = 0;
  // A call of it is stuck: shows the peers for which ranks it waits, each time that it is called;
  // none: it does not any more. `call`: which; it is not used.
  virtual void note_stuck(const void* call, const std::vector<Rank>& awaited) = 0;
  // After the deadline of a call that waits for these ranks: those at fault among them and those
  // that they wait for, and so on; none where that is not known. False: it is too early to say.
  virtual bool find_culprits(const std::vector<Rank>& awaited, const WaitTime& time,
                             uint64_t timeout_ns, std::vector<Rank>* culprits) = 0;
  // It fails, and its peers are told. `blamed`: the ranks that were waited for in vain.
  virtual void give_up(const Status& why, const std::vector<Rank>& blamed) = 0;
  // Of ranks that do not bring their ends of messages on devices: the text that they may bring them
  // in memory of the host, or "" where that makes no difference.
  virtual std::string message_hint(const std::vector<Rank>& ranks) = 0;
  // Of ranks that made no call on memory of a device: which of them have called a collective on
  // memory of the host that this rank has not called, or wait for this rank otherwise; or "".
  virtual std::string collective_hint(const std::vector<Rank>& ranks) = 0;
  // For the end of a deadline's text: "; ranks 0 and 1 share a hardware queue", or "".
  virtual std::string queue_hint() = 0;
};

}  // namespace weir::comm
