// SPDX-License-Identifier: Apache-2.0
// Requests: the requests of a communicator from the call to their end: a pool for the nonblocking
// calls, how many are under way, and their callbacks.
//
// The first group of functions takes the communicator's lock; the second is called with it held.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/reports/peer_reports.h"
#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"

namespace weir::comm {

class Requests {
 public:
  Requests(CommState& state, PeerReports& reports) : state_(state), reports_(reports) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // ---- Any thread.
  Request* acquire();
  void release(Request* request);
  // Calls back when the request is done. True: it is already, and there is no callback.
  Result<bool> call_back(Request& request, const Completion& completion);
  // Ends a request that could not be started with `status`.
  void end_unstarted(Request& request, const Status& status);
  // Some are under way. Costs a load.
  bool any() const { return in_flight_.load(std::memory_order_relaxed) != 0; }
  bool any_with_callback() const { return called_back_count_.load(std::memory_order_relaxed) != 0; }

  // ---- With the lock held.
  // The request is under way from now on, until `complete`, or `withdraw` if nothing has happened.
  void begin(Request& request);
  void withdraw(Request& request);
  void complete(Request& request, const Status& status);
  // Until `end_watch` the communicator is polled as if one more request were under way.
  void begin_watch() { in_flight_.fetch_add(1, std::memory_order_relaxed); }
  void end_watch() { in_flight_.fetch_sub(1, std::memory_order_relaxed); }
  // The next request with a callback, in turn: perhaps no thread waits for it. nullptr: there is
  // none.
  Request* next_with_callback();

  // ---- The end of the communicator, once all that was under way is complete. Requests of the pool
  // that were not waited for return their results later.
  void close(const Status& unfinished);
  // The same in a child made by fork, where nothing of a device is touched.
  void leave_to_child(const Status& refusal);
  // The result of such a request; frees it.
  static Status end_of_left(Request* request);

 private:
  void release_locked(Request* request);
  void forget_callback(Request& request);
  void leave(const Status& unfinished, bool call_back);

  CommState& state_;
  PeerReports& reports_;
  std::vector<std::unique_ptr<Request>> pool_;
  std::vector<Request*> free_;
  std::atomic<uint32_t> in_flight_{0};
  std::vector<Request*> called_back_;  // of those under way, the ones with a callback
  std::atomic<uint32_t> called_back_count_{0};
  size_t next_ = 0;  // of them
};

}  // namespace weir::comm
