// SPDX-License-Identifier: Apache-2.0
// Health: checks the operations of a communicator while a thread waits for them, and decides when
// the communicator has failed: mismatched calls, deadlines, dead and stopped peers, the failures of
// peers, abort. It tells this rank's state to the peers, and the results of operations to the
// threads that wait.
//
// The first group of functions may be called from any thread, and takes the communicator's lock
// where it must; the second is called with it held.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "core/base/status.h"
#include "core/comm/health/culprits.h"
#include "core/comm/health/health_texts.h"
#include "core/comm/reports/peer_reports.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/request.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/records.h"
#include "core/comm/state/wait_time.h"

namespace weir::comm {

class Health {
 public:
  // All outlive it. `failed` is called once, with the lock held, when the communicator fails.
  Health(CommState& state, PeerReports& reports, OperationStatus& operations, Records& records,
         std::function<void(const Status&, const std::vector<Rank>&)> failed);
  Health(const Health&) = delete;
  Health& operator=(const Health&) = delete;

  // The ranks are known.
  void open() { awaited_.reserve(64 + 4 * size_t{state_.rank_count()}); }

  // ---- Any thread.
  // The failure that a peer has reported; does not wait.
  Status reported_failure();
  // Ranks whose process has ended, that have left, or that an operation waited for in vain, here or
  // on a peer.
  void collect_lost(std::set<Rank>* lost);
  // See StreamOwner.
  std::vector<Rank> gone_ranks();
  void note_stuck(const void* call, const std::vector<Rank>& awaited);
  bool find_culprits(const std::vector<Rank>& awaited, const WaitTime& time, uint64_t timeout_ns,
                     std::vector<Rank>* culprits);
  // The same; with the lock held.
  std::string describe_lost(const std::vector<Rank>& ranks) const {
    return texts_.describe_lost(ranks);
  }
  std::string calls_elsewhere(const std::vector<Rank>& ranks) const {
    return texts_.calls_elsewhere(ranks);
  }
  // Checks that all ranks except `out`, which take part in `call`, are alive as far as this rank
  // knows: one that has died or left is reported now, not at the deadline.
  Status check_survivors(const std::set<Rank>& out, const char* call, const char* remedy);
  // Takes no lock: peers that share no memory with this rank hear of it by `tell_failure`.
  // `revokes`: that is what the peers are told.
  void abort(bool revokes = false);
  // Breaks the communicator with the failure of another one of the same ranks, and tells the peers.
  // Waits for no poll, and for other holders of the lock 20 ms at most; the operations end at the
  // next look.
  void adopt(const Status& status, const std::vector<Rank>& blamed);

  // ---- With the lock held.
  // The checks that are too slow for each poll, for a request that a thread waits for. Fails the
  // communicator where something is wrong.
  void check(Request& request);
  // Something has moved since the last check.
  void note_progress() {
    lost_looks_ = 0;
    gone_wait_ns_ = 0;
  }
  // Shows the peers that this rank lives, if that is due.
  void show_life();
  // Shows the peers that this rank waits for these ranks in what is no operation of this
  // communicator: in another communicator of the same ranks, or in a call on a stream; none: it
  // does not any more. `where`: which of them; it is not used.
  void note_elsewhere(const void* where, const std::vector<Rank>& awaited);
  // So long that peers should hear of it.
  bool has_waited_long(const Request& request) const;
  // The communicator is broken from now on; `blamed`: the ranks that were waited for in vain.
  void fail(Status status, const std::vector<Rank>& blamed = {});
  // The same, with the reason that the peers tell, if they do so within a bounded time.
  void fail(const OperationFailure& failure);
  // Fails the communicator if a peer has reported a failure. Does not wait.
  void fail_as_reported();
  // Shows the failure on the board, if it is not shown yet.
  void tell_failure();
  // This rank destroys the communicator.
  void say_goodbye();

 private:
  bool is_many() const;
  uint64_t look_interval_ns() const;
  // Peers that will do nothing more for an operation.
  struct Lost {
    std::vector<Rank> died;
    std::vector<Rank> left;  // they left before they had done all of it
  };

  // `failed`: the operation has failed, so that nothing more will come from them. `late`: the
  // deadline has passed.
  Lost find_lost(const Request& request, bool failed, bool late) const;
  // True when a rank that the request needs, or may need, has died or left: the communicator has
  // failed, or will fail if this persists. `waited_ns`: since the last look.
  bool look_for_lost(const Request& request, uint64_t waited_ns, bool late);
  // Adopts the failure of a peer, if one reports any.
  bool adopt_reported();
  // The failure that a peer reports; ok: none does. Adds the ranks that it blames.
  Status failure_of_peers(std::vector<Rank>* blamed) const;
  // After the transport has failed an operation: the reason, as far as peers tell it within a
  // bounded time.
  Status why_failed(const Status& status, const Request& request, std::vector<Rank>* blamed);
  // How long this rank ignores a dead rank that only other ranks may still need.
  uint64_t chain_patience_ns() const;
  Status mismatch(const Request& request);
  uint64_t word_patience_ns() const;  // how long the reason of a loss may be on its way
  int64_t timeout_ms_of(const Request& request) const;
  // Tells the recorder that a thread waits and, once the wait is long, for which ranks.
  void record_wait(Request& request, uint64_t now_ns);
  void record_one_sided_wait(Request& request, uint64_t now_ns);
  void show_on_board(bool waits);
  void beat(uint64_t now_ns);
  // All ranks that this one waits for.
  void collect_awaited(std::vector<Rank>* ranks) const;
  // That it lives, and for whom it waits.
  void show_wait(uint64_t now_ns);
  // On the board, that another communicator has broken this one.
  void tell_adopted();
  Status aborted() const;
  // What tells a collective with this number from others (engine::Context::call_mark).
  uint32_t mark_of(const Request& request, uint64_t sequence) const;

  CommState& state_;
  PeerReports& reports_;
  OperationStatus& operations_;
  Records& records_;
  const std::function<void(const Status&, const std::vector<Rank>&)> failed_;
  WaitTime wait_time_;  // of the request that was checked last
  const HealthTexts texts_;
  const Culprits culprits_;
  std::vector<Rank> awaited_;  // of the latest long wait; kept, so that waiting allocates nothing
  struct Elsewhere {
    const void* where;
    std::vector<Rank> awaited;
  };
  std::vector<Elsewhere> elsewhere_;  // see note_elsewhere
  bool told_ = false;                 // the peers of the board have been shown the failure
  uint64_t waited_ns_ = 0;            // since the reports were last looked over
  uint32_t report_looks_ = 0;  // a peer's failure is taken over only after a poll after the news
  uint32_t lost_looks_ = 0;    // a peer is lost only if a poll after the news moved nothing
  uint64_t lost_wait_ns_ = 0;  // since then, while only others may need it
  uint64_t gone_wait_ns_ = 0;  // that nothing has moved, while a rank that is needed has left
};

}  // namespace weir::comm
